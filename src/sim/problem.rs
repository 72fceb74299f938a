//! Pure: the work, the GPUs and the grid of time of one simulation.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::policy::GpuSet;

/// A step function of time.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Curve(Vec<(u64, u32)>);

impl Curve {
    /// From `(moment, value)` in ascending order of time; zero before the first.
    pub fn new(steps: Vec<(u64, u32)>) -> Self {
        debug_assert!(steps.is_sorted_by_key(|&(at, _)| at));
        let mut curve: Vec<(u64, u32)> = Vec::new();
        for (at, value) in steps {
            match curve.last_mut() {
                Some(last) if last.0 == at => last.1 = value,
                Some(last) if last.1 == value => {}
                None if value == 0 => {}
                _ => curve.push((at, value)),
            }
        }
        Self(curve)
    }

    /// The value at a moment.
    pub fn at(&self, time_ms: u64) -> u32 {
        let after = self.0.partition_point(|&(at, _)| at <= time_ms);
        after.checked_sub(1).map_or(0, |last| self.0[last].1)
    }

    /// The next change after a moment.
    pub fn next_change(&self, time_ms: u64) -> Option<u64> {
        let after = self.0.partition_point(|&(at, _)| at <= time_ms);
        self.0.get(after).map(|&(at, _)| at)
    }

    /// The moments of change, and the value from each on.
    pub fn steps(&self) -> &[(u64, u32)] {
        &self.0
    }

    /// The greatest value before a moment.
    pub fn peak(&self, before_ms: u64) -> u32 {
        let steps = self.0.iter().filter(|&&(at, _)| at < before_ms);
        steps.map(|&(_, value)| value).max().unwrap_or_default()
    }

    /// The integral from zero to a moment.
    pub fn area(&self, until_ms: u64) -> u64 {
        let ends = self.0.iter().skip(1).map(|&(at, _)| at).chain([u64::MAX]);
        let parts =
            self.0.iter().zip(ends).map(|(&(from, value), to)| {
                u64::from(value) * to.min(until_ms).saturating_sub(from)
            });
        parts.sum()
    }

    /// The sum of several curves.
    pub fn sum<'a>(curves: impl IntoIterator<Item = &'a Self>) -> Self {
        let curves: Vec<&Self> = curves.into_iter().collect();
        let all = curves.iter().flat_map(|curve| &curve.0);
        let times: BTreeSet<u64> = all.map(|&(at, _)| at).collect();
        let value = |at: u64| curves.iter().map(|curve| curve.at(at)).sum();
        Self::new(times.into_iter().map(|at| (at, value(at))).collect())
    }
}

/// A job that runs once on neighbouring GPUs of one node and is not interrupted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// What kind of work it is.
    pub kind: String,
    /// How much it matters.
    pub priority: u32,
    /// When it arrives.
    pub arrival_ms: u64,
    /// By when it is to end.
    pub deadline_ms: Option<u64>,
    /// GPUs that it needs.
    pub width: u32,
    /// How long it is expected to run: what a policy may know.
    pub estimate_ms: u64,
    /// How long it runs.
    pub run_ms: u64,
    /// Wider shapes that it may be started in instead, by width; empty where it has none. Only
    /// policies that look for them use them.
    pub wider: Vec<Shape>,
}

impl Job {
    /// The shape that it asks for.
    pub fn narrow(&self) -> Shape {
        Shape { width: self.width, estimate_ms: self.estimate_ms, run_ms: self.run_ms }
    }

    /// Every shape that it may be started in, the narrowest first.
    pub fn shapes(&self) -> impl Iterator<Item = Shape> + '_ {
        std::iter::once(self.narrow()).chain(self.wider.iter().copied())
    }

    /// The shape of a width, if it has one.
    pub fn shape(&self, width: u32) -> Option<Shape> {
        self.shapes().find(|shape| shape.width == width)
    }
}

/// A width in which a job may run, and what that means for its run time. It keeps the width from
/// its start to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Shape {
    /// GPUs.
    pub width: u32,
    /// How long it is expected to run on them.
    pub estimate_ms: u64,
    /// How long it runs on them.
    pub run_ms: u64,
}

/// A real-time service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// How much it matters.
    pub priority: u32,
    /// GPUs that it is expected to need: what a policy may know.
    pub forecast: Curve,
    /// GPUs that it needs.
    pub demand: Curve,
    /// What a scheduler without a forecast reserves for it all day.
    pub peak: u32,
}

/// GPUs of one node in the hands of one job, from when to when.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Run {
    /// The job, by its place in [`Problem::jobs`].
    pub job: usize,
    /// The node.
    pub node: usize,
    /// The GPUs.
    pub gpus: GpuSet,
    /// From when.
    pub start_ms: u64,
    /// Until when.
    pub end_ms: u64,
}

impl Run {
    /// GPU-milliseconds of work that it does for its job before a moment. In a wider shape a GPU
    /// gets less done, and the work is that of the narrowest.
    pub fn work_ms(&self, job: &Job, until_ms: u64) -> u64 {
        let area = u128::from(self.area_ms(until_ms));
        let Some(shape) = job.wider.iter().find(|shape| shape.width == self.gpus.count()) else {
            return self.area_ms(until_ms);
        };
        let work = u128::from(job.width) * u128::from(job.run_ms);
        let costs = u128::from(shape.width) * u128::from(shape.run_ms);
        u64::try_from(area * work / costs.max(1)).unwrap_or(u64::MAX)
    }

    /// GPU-milliseconds before a moment.
    pub fn area_ms(&self, until_ms: u64) -> u64 {
        let length = self.end_ms.min(until_ms).saturating_sub(self.start_ms);
        length * u64::from(self.gpus.count())
    }
}

/// What is to be scheduled, and on what. Every moment and length is a multiple of `step_ms`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Problem {
    /// GPUs of a node, in a line.
    pub gpus: u32,
    /// Nodes.
    pub nodes: usize,
    /// The grid of time.
    pub step_ms: u64,
    /// Nothing starts at or after it, and nothing counts after it.
    pub horizon_ms: u64,
    /// GPUs by which one service may grow from one step to the next.
    pub churn_limit: u32,
    /// Jobs by arrival.
    pub jobs: Vec<Job>,
    /// Services, the most important first.
    pub services: Vec<Service>,
    /// What runs already at time zero, and is never interrupted.
    pub inherited: Vec<Run>,
}

impl Problem {
    /// GPUs that services are expected to need at each moment.
    pub fn forecast(&self) -> Curve {
        Curve::sum(self.services.iter().map(|service| &service.forecast))
    }

    /// GPUs that services need at each moment.
    pub fn demand(&self) -> Curve {
        Curve::sum(self.services.iter().map(|service| &service.demand))
    }

    /// GPUs that are reserved all day where nobody forecasts.
    pub fn peak(&self) -> u32 {
        self.services.iter().map(|service| service.peak).sum::<u32>().min(self.gpus)
    }

    /// Steps until the horizon.
    pub fn steps(&self) -> u64 {
        self.horizon_ms / self.step_ms
    }

    /// GPU-milliseconds of all nodes until the horizon.
    pub fn capacity_ms(&self) -> u64 {
        let nodes = u64::try_from(self.nodes).unwrap_or(u64::MAX);
        u64::from(self.gpus) * nodes * self.horizon_ms
    }

    /// Services expected to be given GPUs at each moment. A service that may grow by `churn_limit`
    /// GPUs per step gets them ahead of a steep rise.
    pub fn targets(&self) -> Vec<Curve> {
        let limit = self.churn_limit;
        let ahead = |curve: &Curve| {
            let mut steps: Vec<(u64, u32)> = Vec::new();
            let mut next = 0_u32;
            for step in (0..self.steps()).rev() {
                let at = step * self.step_ms;
                next = curve.at(at).max(next.saturating_sub(limit));
                steps.push((at, next));
            }
            steps.reverse();
            Curve::new(steps)
        };
        let steep = |curve: &Curve| {
            let steps = curve.steps();
            steps.windows(2).any(|pair| pair[1].1 > pair[0].1.saturating_add(limit))
        };
        let forecasts = self.services.iter().map(|service| &service.forecast);
        // Most curves rise gently enough to be their own target.
        forecasts.map(|curve| if steep(curve) { ahead(curve) } else { curve.clone() }).collect()
    }

    /// The sum of [`Problem::targets`].
    pub fn target(&self) -> Curve {
        Curve::sum(&self.targets())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_read_between_its_steps() {
        let curve = Curve::new(vec![(0, 0), (10, 2), (20, 2), (30, 5), (40, 0)]);
        assert_eq!(curve.steps(), [(10, 2), (30, 5), (40, 0)]);
        assert_eq!([0, 9, 10, 29, 30, 99].map(|at| curve.at(at)), [0, 0, 2, 2, 5, 0]);
        assert_eq!(curve.next_change(10), Some(30));
        assert_eq!(curve.next_change(40), None);
        assert_eq!(curve.area(35), 2 * 20 + 5 * 5);
        assert_eq!(curve.peak(30), 2);
        let sum = Curve::sum([&curve, &Curve::new(vec![(20, 1)])]);
        assert_eq!([15, 25, 35, 45].map(|at| sum.at(at)), [2, 3, 6, 1]);
    }
}
