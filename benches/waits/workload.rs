//! The three workloads, made from a seed: when which pod arrives, and how long it runs.

/// Seed of every workload: the same work for each scheduler, and from run to run.
const SEED: u64 = 20_261_130;

/// One pod to be created.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    /// After the beginning.
    pub(crate) at_ms: u64,
    /// Whole-node large, or small.
    pub(crate) large: bool,
    /// How long it runs.
    pub(crate) run_ms: u64,
}

/// A workload.
pub(crate) struct Workload {
    /// `W1`, `W2`, `W3`.
    pub(crate) name: &'static str,
    /// What it is, in a sentence.
    pub(crate) about: &'static str,
    /// Nodes of eight GPUs.
    pub(crate) nodes: usize,
    /// What arrives by the clock, in order.
    pub(crate) arrivals: Vec<Arrival>,
    /// A large follows each that ends, up to this moment; then none.
    pub(crate) refill_until_ms: Option<u64>,
    /// Length of the stream, over which utilisation is measured.
    pub(crate) stream_ms: u64,
    /// The longest run of a small.
    pub(crate) longest_small_ms: u64,
    /// The run of each large.
    pub(crate) large_ms: u64,
}

/// All three.
pub(crate) fn all() -> Vec<Workload> {
    vec![
        Workload {
            name: "W1",
            about: "one node; 184 smalls of 4 to 12 s in 180 s (more than it can run), larges of \
                    10 s at 20, 50 and 80 s",
            nodes: 1,
            arrivals: mixed(184, 180_000, &[20_000, 50_000, 80_000], 10_000, 1),
            refill_until_ms: None,
            stream_ms: 180_000,
            longest_small_ms: 12_000,
            large_ms: 10_000,
        },
        Workload {
            name: "W2",
            about: "one node; eight larges of 6 s at 10 s and another as each ends, 42 smalls of 4 \
                    to 12 s in 140 s (30 % of the node)",
            nodes: 1,
            arrivals: mixed(42, 140_000, &[10_000; 8], 6_000, 2),
            refill_until_ms: Some(140_000),
            stream_ms: 140_000,
            longest_small_ms: 12_000,
            large_ms: 6_000,
        },
        Workload {
            name: "W3",
            about: "four nodes; 767 smalls of 4 to 12 s in 174 s (more than they can run), a large \
                    of 10 s every 15 s from 15 to 165 s",
            nodes: 4,
            arrivals: mixed(767, 174_000, &every_15_s(), 10_000, 3),
            refill_until_ms: None,
            stream_ms: 174_000,
            longest_small_ms: 12_000,
            large_ms: 10_000,
        },
    ]
}

fn every_15_s() -> Vec<u64> {
    (1..=11).map(|number| number * 15_000).collect()
}

/// A Poisson stream of so many smalls, given their number, is so many independent uniform moments.
fn mixed(smalls: usize, span_ms: u64, larges: &[u64], large_ms: u64, stream: u64) -> Vec<Arrival> {
    let mut random = SplitMix(SEED + stream);
    let mut arrivals: Vec<Arrival> = (0..smalls)
        .map(|_| Arrival {
            at_ms: random.below(span_ms),
            large: false,
            run_ms: 4_000 + random.below(8_001),
        })
        .collect();
    arrivals.extend(larges.iter().map(|&at_ms| Arrival { at_ms, large: true, run_ms: large_ms }));
    // Stable: what arrives in the same millisecond keeps the order of making.
    arrivals.sort_by_key(|arrival| arrival.at_ms);
    arrivals
}

/// `SplitMix64`: the same numbers on every machine and in every release.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Uniform below that, but for a bias of less than one in 10^12 for the limits used here.
    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
