//! Pure side: turns an order of jobs into a schedule, many thousand times a second.
//!
//! Each job in turn is put at its earliest start at which neighbouring GPUs are free for its whole
//! run and enough are left for services, if it can end by its deadline there. In a second turn the
//! others are put, in the same order, where that takes nothing from the first: late work, of which
//! only what runs before the horizon counts, and for less. No floating point, no allocation, no
//! clock.

use super::score::{Fragmentation, UNIT, Weights, overrun_permille, staleness};
use crate::policy::GpuSet;
use crate::sim::profile::block_starts;

/// A job as the kernel sees it; time in steps from now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Task {
    /// Whose shape this is: an order names one shape of each job.
    pub job: u16,
    /// Not before.
    pub release: u32,
    /// Ends by then.
    pub end_by: u32,
    /// Neighbouring GPUs.
    pub width: u32,
    /// Steps that it runs.
    pub length: u32,
    /// GPU-steps that it is worth: those of its narrowest shape. A wider one that costs more of
    /// them is worth no more.
    pub work: u32,
    /// What a GPU-step of it is worth.
    pub priority: u32,
    /// Steps that it has waited already.
    pub waited: u32,
}

/// Where a task was put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// First step; [`Slot::NONE`] where it was left out.
    pub start: u32,
    /// The GPUs.
    pub gpus: GpuSet,
}

impl Slot {
    /// Left out.
    pub const NONE: Self = Self { start: u32::MAX, gpus: GpuSet::EMPTY };

    /// Whether the task was put anywhere.
    pub fn is_placed(self) -> bool {
        self.start != u32::MAX
    }
}

/// GPUs over time, and the tasks to put on them.
#[derive(Clone, Debug)]
pub struct Kernel {
    gpus: u32,
    tasks: Vec<Task>,
    weights: Weights,
    fragmentation: Fragmentation,
    /// Before any task is put: GPUs taken, and how many in all with those kept for services.
    base: Vec<Step>,
    steps: Vec<Step>,
    /// Per task, what one step of waiting costs.
    staleness: Vec<i64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Step {
    taken: u64,
    used: u32,
}

impl Kernel {
    /// An empty node over `steps` steps with GPUs kept for services.
    pub fn new(gpus: u32, kept: &[u32], tasks: Vec<Task>, weights: Weights) -> Self {
        let base: Vec<Step> = kept.iter().map(|&used| Step { taken: 0, used }).collect();
        let waiting = tasks.iter().map(|task| (task.width, task.priority));
        let fragmentation = Fragmentation::new(gpus, waiting);
        let horizon = u64::try_from(kept.len()).unwrap_or(u64::MAX);
        let cost = |task: &Task| staleness(task.priority, task.width, horizon, &weights);
        let staleness = tasks.iter().map(cost).collect();
        Self { gpus, weights, fragmentation, steps: base.clone(), base, staleness, tasks }
    }

    /// Takes GPUs for what runs already, or is promised.
    pub fn take(&mut self, gpus: GpuSet, from: u32, to: u32) {
        for step in &mut self.base[span(from, to, self.steps.len())] {
            step.used += gpus.minus(GpuSet(step.taken)).count();
            step.taken |= gpus.0;
        }
    }

    /// The tasks.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// What free GPUs are worth to those who wait.
    pub fn fragmentation(&self) -> &Fragmentation {
        &self.fragmentation
    }

    /// Puts the tasks in this order into `slots` and returns what that is worth. Tasks that the
    /// order does not name are left out.
    pub fn schedule(&mut self, order: &[u16], slots: &mut [Slot]) -> i64 {
        self.steps.copy_from_slice(&self.base);
        let mut total = 0;
        let mut left_out = false;
        for &at in order {
            let at = usize::from(at);
            let task = self.tasks[at];
            let last = task.end_by.checked_sub(task.length);
            let slot = last.map_or(Slot::NONE, |last| self.place(task, last, task.length));
            slots[at] = slot;
            if slot.is_placed() {
                self.hold(slot, task);
                total += self.worth(at, slot.start);
            } else {
                left_out = true;
            }
        }
        if left_out && self.weights.late_permille > 0 {
            total += self.schedule_late(order, slots);
        }
        total
    }

    /// The second turn: what cannot end in time runs where nothing else does.
    fn schedule_late(&mut self, order: &[u16], slots: &mut [Slot]) -> i64 {
        let mut total = 0;
        let horizon = self.horizon();
        for &at in order {
            let at = usize::from(at);
            let task = self.tasks[at];
            if slots[at].is_placed() || task.release >= horizon {
                continue;
            }
            let slot = self.place(task, horizon - 1, task.length);
            if slot.is_placed() {
                slots[at] = slot;
                self.hold(slot, task);
                total += self.worth(at, slot.start);
            }
        }
        total
    }

    fn hold(&mut self, slot: Slot, task: Task) {
        let all = self.steps.len();
        for step in &mut self.steps[span(slot.start, slot.start + task.length, all)] {
            step.taken |= slot.gpus.0;
            step.used += task.width;
        }
    }

    fn horizon(&self) -> u32 {
        u32::try_from(self.steps.len()).unwrap_or(u32::MAX)
    }

    /// Whether a task that starts at a step ends in time.
    pub fn in_time(&self, at: usize, start: u32) -> bool {
        let task = &self.tasks[at];
        start.saturating_add(task.length) <= task.end_by
    }

    /// What a task is worth when it starts at a step.
    pub fn worth(&self, at: usize, start: u32) -> i64 {
        self.useful(at, start) - self.risk(at, start)
    }

    /// All of its work where it ends in time; otherwise what it does before the horizon, for less.
    fn useful(&self, at: usize, start: u32) -> i64 {
        let task = &self.tasks[at];
        let whole = UNIT * i64::from(task.priority) * i64::from(task.work);
        if self.in_time(at, start) {
            return whole;
        }
        let runs = self.horizon().saturating_sub(start).min(task.length);
        let share = whole * i64::from(runs) / i64::from(task.length.max(1));
        share * self.weights.late_permille / 1_000
    }

    /// Deadline at stake, and time waited.
    pub fn risk(&self, at: usize, start: u32) -> i64 {
        let task = &self.tasks[at];
        let in_time = self.in_time(at, start);
        let stale = self.staleness[at] * i64::from(start - task.release + task.waited);
        if !in_time {
            return stale * self.weights.late_permille / 1_000;
        }
        if self.weights.estimate_error_permille == 0 {
            return stale;
        }
        let useful = UNIT * i64::from(task.priority) * i64::from(task.work);
        let slack = u64::from(task.end_by - start - task.length);
        let error = self.weights.estimate_error_permille;
        stale + useful / 1_000 * overrun_permille(slack, u64::from(task.length), error)
    }

    /// The earliest start up to `last` with room for `length` steps, or for those that are left
    /// before the horizon.
    fn place(&self, task: Task, last: u32, length: u32) -> Slot {
        let Task { release, width, .. } = task;
        let Some(room) = self.gpus.checked_sub(width) else { return Slot::NONE };
        let all = self.steps.len();
        let mut start = release;
        'starts: while start <= last {
            let mut taken = 0;
            let window = &self.steps[span(start, start + length, all)];
            // From the end: what is in the way there is in the way of every start before it.
            for (offset, step) in (0..length).zip(window).rev() {
                let more = taken | step.taken;
                let blocked = step.used > room
                    || (more != taken && block_starts(!more, self.gpus, width) == 0);
                if blocked {
                    start += offset + 1;
                    continue 'starts;
                }
                taken = more;
            }
            let at_start = window.first().map_or(0, |step| step.taken);
            let gpus = GpuSet(self.fragmentation.best_block(!taken, at_start, width));
            return Slot { start, gpus };
        }
        Slot::NONE
    }
}

/// A span of steps as indexes.
fn span(from: u32, to: u32, most: usize) -> std::ops::Range<usize> {
    let index = |step: u32| usize::try_from(step).unwrap_or(usize::MAX).min(most);
    index(from)..index(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(width: u32, length: u32, end_by: u32) -> Task {
        let work = width * length;
        Task { job: 0, release: 0, end_by, width, length, work, priority: 2, waited: 0 }
    }

    #[test]
    fn the_first_in_the_order_chooses_first() {
        let tasks = vec![task(8, 4, 10), task(1, 10, 10), task(4, 6, 10)];
        let mut kernel = Kernel::new(8, &[0; 10], tasks, Weights::default());
        let mut slots = [Slot::NONE; 3];
        let large_first = kernel.schedule(&[0, 1, 2], &mut slots);
        // The second ends late wherever it goes, so that it goes where the others leave room.
        assert_eq!(slots.map(|slot| slot.start), [0, 4, 4]);
        let small_first = kernel.schedule(&[1, 0, 2], &mut slots);
        assert_eq!(slots.map(|slot| slot.start), [u32::MAX, 0, 0]);
        // 8 x 4 + 4 x 6 against 10 + 24, at priority 2; waiting costs a little.
        assert_eq!(small_first, 2 * UNIT * 34);
        // Of the late one half of its six steps before the horizon counts.
        assert!((2 * UNIT * 58..2 * UNIT * 59).contains(&large_first), "{large_first}");
    }

    /// What cannot end in time runs beside what can, whatever its place in the order, and its part
    /// before the horizon counts half.
    #[test]
    fn late_work_gets_what_is_left() {
        let tasks = vec![task(8, 4, 10), task(1, 10, 10), task(4, 6, 10)];
        let mut worths = [0, 500].map(|late_permille| {
            let weights = Weights { late_permille, ..Weights::default() };
            let mut kernel = Kernel::new(8, &[0; 10], tasks.clone(), weights);
            let mut slots = [Slot::NONE; 3];
            let worth = kernel.schedule(&[0, 1, 2], &mut slots);
            assert_eq!([slots[0].start, slots[2].start], [0, 4]);
            assert_eq!(slots[1].start, if late_permille == 0 { u32::MAX } else { 4 });
            assert!(!slots[1].gpus.overlaps(slots[2].gpus));
            worth
        });
        worths.sort_unstable();
        // Six of its ten steps at priority 2, less four of waiting at 50 each; half of both.
        assert_eq!(worths[1] - worths[0], 6 * UNIT - 100);
    }

    #[test]
    fn services_and_running_jobs_come_first() {
        let kept = [0, 0, 6, 6, 0, 0, 0, 0];
        let mut kernel =
            Kernel::new(8, &kept, vec![task(3, 2, 8), task(1, 1, 8)], Weights::default());
        kernel.take(GpuSet(0b0011_1000), 0, 5);
        let mut slots = [Slot::NONE; 2];
        kernel.schedule(&[0, 1], &mut slots);
        // Three fit at once beside what runs, though not apart from it later.
        assert_eq!(slots[0], Slot { start: 0, gpus: GpuSet(0b0000_0111) });
        assert_eq!(slots[1].start, 0);
        kernel.take(GpuSet(0b1100_0001), 0, 3);
        kernel.schedule(&[0, 1], &mut slots);
        assert_eq!(slots[0].start, 4);
        assert_eq!(slots[1], Slot { start: 0, gpus: GpuSet(0b0000_0010) });
    }
}
