//! Pure: what is known of one node's future: which GPUs are taken until when, and how many more
//! services are expected to need.

use super::Curve;
use crate::policy::GpuSet;

/// A stretch of time in which nothing changes, up to the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Segment {
    from_ms: u64,
    taken: u64,
    /// GPUs kept for services, wherever they are.
    kept: u32,
}

/// The known future of one node, from a moment on and without end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    gpus: u32,
    segments: Vec<Segment>,
}

impl Profile {
    /// A node on which nothing runs, with what services need.
    pub fn new(gpus: u32, now_ms: u64, services: &Curve) -> Self {
        let first = Segment { from_ms: now_ms, taken: 0, kept: services.at(now_ms) };
        let later = services.steps().iter().filter(|&&(at, _)| at > now_ms);
        let later = later.map(|&(from_ms, kept)| Segment { from_ms, taken: 0, kept });
        Self { gpus, segments: std::iter::once(first).chain(later).collect() }
    }

    /// Takes GPUs from one moment to another.
    pub fn take(&mut self, gpus: GpuSet, from_ms: u64, to_ms: u64) {
        let first = self.cut(from_ms);
        let last = self.cut(to_ms);
        for segment in &mut self.segments[first..last] {
            segment.taken |= gpus.0;
        }
    }

    /// Makes a segment begin at that moment and returns its place.
    fn cut(&mut self, at_ms: u64) -> usize {
        let after = self.segments.partition_point(|segment| segment.from_ms < at_ms);
        let exact = self.segments.get(after).is_some_and(|segment| segment.from_ms == at_ms);
        if !exact && after > 0 {
            let before = self.segments[after - 1];
            self.segments.insert(after, Segment { from_ms: at_ms, ..before });
        }
        after
    }

    /// Neighbouring GPUs that are free from a moment on for a while, with enough left for
    /// services all the time.
    pub fn fit(&self, at_ms: u64, width: u32, length_ms: u64) -> Option<GpuSet> {
        let begin = self.segments.partition_point(|segment| segment.from_ms <= at_ms);
        let mut taken = 0;
        for segment in &self.segments[begin.saturating_sub(1)..] {
            if segment.from_ms >= at_ms.saturating_add(length_ms) {
                break;
            }
            if segment.taken.count_ones() + segment.kept + width > self.gpus {
                return None;
            }
            taken |= segment.taken;
        }
        lowest_block(!taken, self.gpus, width)
    }

    /// The earliest moment from `from_ms` on at which it fits.
    ///
    /// Only the begin of a segment can be it: within one, moving earlier loses nothing.
    pub fn earliest(&self, from_ms: u64, width: u32, length_ms: u64) -> Option<(u64, GpuSet)> {
        let later = self.segments.iter().map(|segment| segment.from_ms).filter(|&at| at > from_ms);
        std::iter::once(from_ms)
            .chain(later)
            .find_map(|at| self.fit(at, width, length_ms).map(|gpus| (at, gpus)))
    }
}

/// Where blocks of `width` neighbours begin within a set of free GPUs, as a bit mask.
pub fn block_starts(free: u64, gpus: u32, width: u32) -> u64 {
    debug_assert!(width >= 1);
    let mut starts = free & GpuSet::first(gpus).0;
    // After doubling, `starts` marks runs of `have` neighbours.
    let mut have = 1;
    while have < width {
        let more = have.min(width - have);
        starts &= starts >> more;
        have += more;
    }
    starts
}

/// The lowest block of `width` neighbours.
pub fn lowest_block(free: u64, gpus: u32, width: u32) -> Option<GpuSet> {
    if width > gpus {
        return None;
    }
    let starts = block_starts(free, gpus, width);
    (starts != 0).then(|| GpuSet(GpuSet::first(width).0 << starts.trailing_zeros()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_runs_of_free_neighbours() {
        for free in 0..=255_u64 {
            for width in 1..=8 {
                let slow = (0..=8 - width).find(|at| {
                    let block = GpuSet::first(width).0 << at;
                    free & block == block
                });
                let fast = lowest_block(free, 8, width).map(|set| set.0.trailing_zeros());
                assert_eq!(fast, slow, "{free:08b} {width}");
            }
        }
        assert_eq!(lowest_block(u64::MAX, 64, 64), Some(GpuSet::first(64)));
        assert_eq!(lowest_block(u64::MAX, 8, 9), None);
    }

    #[test]
    fn the_earliest_start_waits_for_ends_and_troughs() {
        let services = Curve::new(vec![(0, 4), (100, 0), (200, 6)]);
        let mut profile = Profile::new(8, 0, &services);
        assert_eq!(profile.fit(0, 4, 100), Some(GpuSet::first(4)));
        assert_eq!(profile.fit(0, 5, 100), None);
        assert_eq!(profile.earliest(0, 5, 100), Some((100, GpuSet::first(5))));
        assert_eq!(profile.earliest(0, 5, 101), None);
        profile.take(GpuSet(0b0001_1000), 50, 150);
        assert_eq!(profile.fit(60, 3, 10), None);
        assert_eq!(profile.fit(100, 3, 50), Some(GpuSet::first(3)));
        assert_eq!(profile.earliest(100, 4, 50), Some((150, GpuSet::first(4))));
    }
}
