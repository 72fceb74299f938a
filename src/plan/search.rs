//! Pure side: looks for a better order of jobs, within a budget of schedules tried.
//!
//! Several orders of thumb are tried first. From the best of them on one job at a time is taken
//! out and put in elsewhere, or two change places, or one takes another of its shapes; what is
//! better is kept, and so is what is worse by less than a margin
//! that shrinks to nothing. The budget counts schedules and not time, and the random numbers have
//! a seed, so that the same question gets the same answer on every machine.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::kernel::{Kernel, Slot, Task};

/// How long to look.
#[derive(Clone, Copy, Debug)]
pub struct Budget<'a> {
    /// Schedules to try.
    pub schedules: u32,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Whoever watches it.
    pub control: Option<&'a Control>,
}

/// Lets others see how far searches are, and end them early with the best so far.
#[derive(Debug, Default)]
pub struct Control {
    /// Set to end every search.
    pub stop: AtomicBool,
    /// Schedules tried by all searches so far.
    pub tried: AtomicU64,
    /// How far the present play is, in milliseconds of its own clock.
    pub now_ms: AtomicU64,
}

impl Control {
    /// Says how far the present play is.
    pub(super) fn at(&self, now_ms: u64) {
        self.now_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Counts schedules, and says whether to go on.
    fn go_on(&self, tried: u32) -> bool {
        self.tried.fetch_add(u64::from(tried), Ordering::Relaxed);
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Schedules between two looks at the [`Control`].
const LOOK_EVERY: u32 = 256;

/// The best that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The order.
    pub order: Vec<u16>,
    /// Where each task was put.
    pub slots: Vec<Slot>,
    /// What that is worth.
    pub worth: i64,
    /// Schedules tried.
    pub tried: u32,
}

/// `SplitMix64`: sixty-four random bits per call, the same on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `bound`, which is above zero.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u128::try_from(bound).unwrap_or(u128::MAX);
        usize::try_from((u128::from(self.bits()) * bound) >> 64).unwrap_or_default()
    }
}

/// Orders of thumb, each job in its narrowest shape. `first` is one more, such as that of the
/// previous plan.
fn thumb(tasks: &[Task], first: &[u16]) -> Vec<Vec<u16>> {
    let all: Vec<u16> = (0_u16..)
        .zip(tasks)
        .filter(|&(at, task)| at == 0 || tasks[usize::from(at) - 1].job != task.job)
        .map(|(at, _)| at)
        .collect();
    let sorted = |key: fn(&Task) -> (u32, u32)| {
        let mut order = all.clone();
        order.sort_by_key(|&at| key(&tasks[usize::from(at)]));
        order
    };
    vec![
        first.to_vec(),
        all.clone(),
        sorted(|task| (most(task.priority), task.release)),
        sorted(|task| (most(task.priority), most(task.width))),
        sorted(|task| (most(task.priority.saturating_mul(task.work)), task.release)),
        sorted(|task| (most(task.priority * task.width), task.end_by)),
        sorted(|task| (task.end_by, most(task.priority))),
    ]
}

/// Turns ascending into descending.
const fn most(value: u32) -> u32 {
    u32::MAX - value
}

/// Looks for the best order, beginning with orders of thumb and with `first`, which holds one
/// shape of each job. Shapes of one job are neighbours among the tasks, the narrowest first.
pub fn search(kernel: &mut Kernel, first: &[u16], budget: Budget<'_>) -> Found {
    let mut slots = vec![Slot::NONE; kernel.tasks().len()];
    let mut best = Found { order: Vec::new(), slots: slots.clone(), worth: i64::MIN, tried: 0 };
    for order in thumb(kernel.tasks(), first) {
        debug_assert_eq!(order.len(), first.len());
        let worth = kernel.schedule(&order, &mut slots);
        best.tried += 1;
        if worth > best.worth {
            best.worth = worth;
            best.order = order;
            best.slots.copy_from_slice(&slots);
        }
    }
    let moves = Moves::new(kernel.tasks());
    if first.len() >= 2 || moves.reshapes() {
        improve(kernel, &moves, &mut best, &mut slots, budget);
    }
    best
}

fn improve(
    kernel: &mut Kernel,
    moves: &Moves,
    best: &mut Found,
    slots: &mut [Slot],
    budget: Budget<'_>,
) {
    let mut random = Random::new(budget.seed);
    let rounds = budget.schedules.saturating_sub(best.tried);
    // What half a job is worth on average: enough to let one go for another.
    let margin = best.worth / i64::try_from(2 * best.order.len()).unwrap_or(i64::MAX);
    let mut order = best.order.clone();
    let mut worth = best.worth;
    let mut late = vec![false; slots.len()];
    mark(kernel, &order, &best.slots, &mut late);
    for round in 0..rounds {
        let look = round % LOOK_EVERY == LOOK_EVERY - 1;
        if look && budget.control.is_some_and(|control| !control.go_on(LOOK_EVERY)) {
            break;
        }
        let change = moves.choose(&mut random, &order, &late);
        change.apply(&mut order);
        let tried = kernel.schedule(&order, slots);
        best.tried += 1;
        let left = i64::from(rounds - round);
        // Shrinks with the square, so that most of the time is spent close to the best.
        let allowed = margin * left / i64::from(rounds) * left / i64::from(rounds);
        if tried >= worth - allowed {
            worth = tried;
            mark(kernel, &order, slots, &mut late);
            if tried > best.worth {
                best.worth = tried;
                best.order.copy_from_slice(&order);
                best.slots.copy_from_slice(slots);
            }
        } else {
            change.undo(&mut order);
        }
    }
}

/// Of ten changes of place, so many let two jobs change places.
const SWAPS: usize = 3;

/// Marks what was left out, or would end too late.
fn mark(kernel: &Kernel, order: &[u16], slots: &[Slot], late: &mut [bool]) {
    for &at in order {
        let at = usize::from(at);
        let slot = slots[at];
        late[at] = !slot.is_placed() || !kernel.in_time(at, slot.start);
    }
}

/// What can be changed about an order.
struct Moves {
    /// Per task, the first shape of its job and how many there are.
    shapes: Vec<(u16, u16)>,
}

/// One change of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    /// The job at one place goes to another.
    Shift(usize, usize),
    /// Two jobs change places.
    Swap(usize, usize),
    /// The job at a place takes another shape.
    Reshape(usize, u16, u16),
}

impl Change {
    fn apply(self, order: &mut [u16]) {
        match self {
            Self::Shift(from, to) if from < to => order[from..=to].rotate_left(1),
            Self::Shift(from, to) => order[to..=from].rotate_right(1),
            Self::Swap(one, other) => order.swap(one, other),
            Self::Reshape(at, _, shape) => order[at] = shape,
        }
    }

    fn undo(self, order: &mut [u16]) {
        match self {
            Self::Shift(from, to) => Self::Shift(to, from).apply(order),
            Self::Swap(..) => self.apply(order),
            Self::Reshape(at, before, _) => order[at] = before,
        }
    }
}

impl Moves {
    fn new(tasks: &[Task]) -> Self {
        let mut shapes: Vec<(u16, u16)> = Vec::with_capacity(tasks.len());
        let mut at = 0;
        for group in tasks.chunk_by(|a, b| a.job == b.job) {
            let count = u16::try_from(group.len()).unwrap_or(u16::MAX);
            shapes.resize(shapes.len() + group.len(), (at, count));
            at += count;
        }
        Self { shapes }
    }

    fn reshapes(&self) -> bool {
        self.shapes.iter().any(|&(_, count)| count > 1)
    }

    /// Every other time it is a job that is late or was left out, moving forward, if the first
    /// that is drawn is. A job with several shapes changes its shape every other time.
    fn choose(&self, random: &mut Random, order: &[u16], late: &[bool]) -> Change {
        let count = order.len();
        let from = random.below(count);
        let task = usize::from(order[from]);
        let (first, shapes) = self.shapes[task];
        if shapes > 1 && (count == 1 || random.below(2) == 0) {
            let mut shape =
                first + u16::try_from(random.below(usize::from(shapes - 1))).unwrap_or(0);
            if shape >= order[from] {
                shape += 1;
            }
            return Change::Reshape(from, order[from], shape);
        }
        let forward = late[task] && from > 0;
        let to = if forward { random.below(from) } else { random.below(count) };
        let to = if from == to { (to + 1) % count } else { to };
        if random.below(10) < SWAPS { Change::Swap(from, to) } else { Change::Shift(from, to) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::score::Weights;

    fn task(width: u32, length: u32, end_by: u32, priority: u32) -> Task {
        let work = width * length;
        Task { job: 0, release: 0, end_by, width, length, work, priority, waited: 0 }
    }

    #[test]
    fn a_move_and_its_reverse_cancel() {
        let mut random = Random::new(7);
        // Ten jobs of one shape, then ten of two.
        let jobs = (0..10).chain((10..20).flat_map(|job| [job, job]));
        let tasks: Vec<Task> = jobs.map(|job| Task { job, ..task(1, 1, 1, 1) }).collect();
        let moves = Moves::new(&tasks);
        let mut order: Vec<u16> = (0..10).chain((10..30).step_by(2)).collect();
        let mut reshaped = 0;
        for _ in 0..1_000 {
            let before = order.clone();
            let change = moves.choose(&mut random, &order, &[false; 30]);
            change.apply(&mut order);
            assert_ne!(order, before);
            let mut back = order.clone();
            change.undo(&mut back);
            assert_eq!(back, before);
            let mut jobs: Vec<u16> = order.iter().map(|&at| tasks[usize::from(at)].job).collect();
            jobs.sort_unstable();
            assert_eq!(jobs, (0..20).collect::<Vec<u16>>(), "each job once");
            reshaped += usize::from(matches!(change, Change::Reshape(..)));
        }
        assert!((150..350).contains(&reshaped), "{reshaped}");
    }

    /// Four jobs whose best order no rule of thumb finds, against all 24 orders.
    #[test]
    fn the_best_order_of_a_few_is_found() {
        let tasks = [task(5, 6, 12, 3), task(3, 12, 12, 4), task(4, 6, 7, 4), task(8, 5, 12, 3)];
        let tasks = (0..).zip(tasks).map(|(job, task)| Task { job, ..task }).collect();
        let mut kernel = Kernel::new(8, &[0; 12], tasks, Weights::default());
        let mut slots = [Slot::NONE; 4];
        let mut best = i64::MIN;
        for code in 0..256_u16 {
            let order = [code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6];
            if (0..4).all(|task| order.contains(&task)) {
                best = best.max(kernel.schedule(&order, &mut slots));
            }
        }
        let budget = Budget { schedules: 300, seed: 1, control: None };
        let found = search(&mut kernel, &[0, 1, 2, 3], budget);
        assert_eq!(found.worth, best);
        assert_eq!(found.tried, 300);
        let again = search(&mut kernel, &[0, 1, 2, 3], budget);
        assert_eq!(found, again);
    }
}
