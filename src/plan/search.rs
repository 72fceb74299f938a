//! Pure side: looks for a better order of jobs, within a budget of schedules tried.
//!
//! Several orders of thumb are tried first. From the best of them on one job at a time is taken
//! out and put in elsewhere; what is better is kept, and so is what is worse by less than a margin
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

/// Orders of thumb. `first` is one more, such as that of the previous plan.
fn thumb(tasks: &[Task], first: &[u16]) -> Vec<Vec<u16>> {
    let all: Vec<u16> = (0..u16::try_from(tasks.len()).unwrap_or(u16::MAX)).collect();
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
        sorted(|task| (most(task.priority * task.width * task.length), task.release)),
        sorted(|task| (most(task.priority * task.width), task.end_by)),
        sorted(|task| (task.end_by, most(task.priority))),
    ]
}

/// Turns ascending into descending.
const fn most(value: u32) -> u32 {
    u32::MAX - value
}

/// Looks for the best order, beginning with orders of thumb and with `first` (which holds each
/// task once).
pub fn search(kernel: &mut Kernel, first: &[u16], budget: Budget<'_>) -> Found {
    let count = kernel.tasks().len();
    let mut slots = vec![Slot::NONE; count];
    let mut best = Found { order: Vec::new(), slots: slots.clone(), worth: i64::MIN, tried: 0 };
    for order in thumb(kernel.tasks(), first) {
        debug_assert_eq!(order.len(), count);
        let worth = kernel.schedule(&order, &mut slots);
        best.tried += 1;
        if worth > best.worth {
            best.worth = worth;
            best.order = order;
            best.slots.copy_from_slice(&slots);
        }
    }
    if count >= 2 {
        improve(kernel, &mut best, &mut slots, budget);
    }
    best
}

fn improve(kernel: &mut Kernel, best: &mut Found, slots: &mut [Slot], budget: Budget<'_>) {
    let mut random = Random::new(budget.seed);
    let count = best.order.len();
    let rounds = budget.schedules.saturating_sub(best.tried);
    let margin = best.worth / 50;
    let mut order = best.order.clone();
    let mut worth = best.worth;
    let mut placed: Vec<bool> = best.slots.iter().map(|slot| slot.is_placed()).collect();
    for round in 0..rounds {
        let look = round % LOOK_EVERY == LOOK_EVERY - 1;
        if look && budget.control.is_some_and(|control| !control.go_on(LOOK_EVERY)) {
            break;
        }
        let (from, to) = choose(&mut random, &order, &placed, count);
        shift(&mut order, from, to);
        let tried = kernel.schedule(&order, slots);
        best.tried += 1;
        let left = i64::from(rounds - round);
        // Shrinks with the square, so that most of the time is spent close to the best.
        let allowed = margin * left / i64::from(rounds) * left / i64::from(rounds);
        if tried >= worth - allowed {
            worth = tried;
            for (placed, slot) in placed.iter_mut().zip(slots.iter()) {
                *placed = slot.is_placed();
            }
            if tried > best.worth {
                best.worth = tried;
                best.order.copy_from_slice(&order);
                best.slots.copy_from_slice(slots);
            }
        } else {
            shift(&mut order, to, from);
        }
    }
}

/// From where to where a job moves. Every other time it is one that was left out, moving forward,
/// if the first that is drawn was.
fn choose(random: &mut Random, order: &[u16], placed: &[bool], count: usize) -> (usize, usize) {
    let from = random.below(count);
    let forward = !placed[usize::from(order[from])] && from > 0;
    let to = if forward { random.below(from) } else { random.below(count) };
    if from == to { (from, (to + 1) % count) } else { (from, to) }
}

/// Takes the element at `from` out and puts it in at `to`.
fn shift(order: &mut [u16], from: usize, to: usize) {
    if from < to {
        order[from..=to].rotate_left(1);
    } else {
        order[to..=from].rotate_right(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::score::Weights;

    #[test]
    fn a_move_and_its_reverse_cancel() {
        let mut random = Random::new(7);
        let mut order: Vec<u16> = (0..20).collect();
        let placed = vec![true; 20];
        for _ in 0..1_000 {
            let before = order.clone();
            let (from, to) = choose(&mut random, &order, &placed, 20);
            shift(&mut order, from, to);
            assert_ne!(order, before);
            let mut back = order.clone();
            shift(&mut back, to, from);
            assert_eq!(back, before);
        }
    }

    /// Four jobs whose best order no rule of thumb finds, against all 24 orders.
    #[test]
    fn the_best_order_of_a_few_is_found() {
        let task = |width, length, end_by, priority| Task {
            release: 0,
            end_by,
            width,
            length,
            priority,
            waited: 0,
        };
        let tasks =
            vec![task(5, 6, 12, 3), task(3, 12, 12, 4), task(4, 6, 7, 4), task(8, 5, 12, 3)];
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
