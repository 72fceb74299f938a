//! Pure: the schedulers that the live rule is measured against, for jobs of one GPU, of several and
//! of a whole node on any number of nodes. Each is the usual rule at its best: smalls are packed, what runs is
//! known exactly, and a decision takes no time.
//!
//! - [`Rule::Greedy`]: whatever fits starts, smalls first, as where each pod is placed by itself.
//! - [`Rule::FifoStrict`]: arrival order, and the first blocks, as Kueue's `StrictFIFO`.
//! - [`Rule::FifoSkip`]: arrival order, whoever fits passes, as Kueue's `BestEffortFIFO` and
//!   Volcano without reservations.
//! - [`Rule::Easy`]: as before, but nobody delays the first one: Lifka, *The ANL/IBM SP Scheduling
//!   System*, 1995; Mu'alem and Feitelson, 2001.
//! - [`Rule::Reserve`]: a node is kept for a large that has waited long enough, as `YuniKorn`
//!   reserves nodes for pods that do not fit; at once, it is strict priority for larges.
//! - [`Rule::Partition`]: some nodes serve larges only and the others smalls only.
//!
//! Unlike [`super::queues`] these know no services, keep a queue for larges and one for all others,
//! and close single nodes instead of all.

use std::collections::{BTreeMap, VecDeque};

use super::{Moment, Policy, Problem, Running, Start};
use crate::policy::GpuSet;

/// Waiting smalls that EASY looks at behind its first, and others behind a wide one that does not
/// fit: as many as the live rule looks at behind a gate.
const DEPTH: usize = 300;

/// Who starts when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Smalls take whatever is free; a large starts where no small wants a node that is empty.
    Greedy,
    /// In order of arrival; whoever does not fit blocks everybody behind.
    FifoStrict,
    /// In order of arrival; whoever fits passes.
    FifoSkip,
    /// In order of arrival; the node on which the first that does not fit would have its GPUs
    /// soonest by limits is kept for it, and smalls pass elsewhere, or there if their limit ends
    /// before that.
    Easy,
    /// As [`Rule::FifoSkip`], but a large that has waited this long closes a node to everybody
    /// else, the one that is empty soonest, and goes before all others.
    Reserve {
        /// How long it waits before.
        after_ms: u64,
        /// Nodes that may be kept so at a time.
        drains: usize,
    },
    /// The first nodes are for larges only, the others for smalls only.
    Partition {
        /// Nodes for larges.
        larges: usize,
    },
}

/// Where smalls go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Place {
    /// To the fullest node that has room.
    #[default]
    Fullest,
    /// To the node whose latest end by limits it moves least, then the fullest: where the live
    /// rule puts them.
    LatestEnd,
    /// To the emptiest node that has room, as kube-scheduler does if nobody says otherwise.
    Emptiest,
}

impl Place {
    /// Orders nodes: the least goes first. A small would move a node's latest end by `moves`.
    pub(super) fn key(self, moves: u64, free: u32) -> (u64, u32) {
        match self {
            Self::Fullest => (0, free),
            Self::LatestEnd => (moves, free),
            Self::Emptiest => (0, u32::MAX - free),
        }
    }
}

/// Why a rival cannot serve a problem.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unfit {
    /// A job of neither shape, or of none.
    #[error("jobs of one GPU and of all {gpus} are compared here; one asks for {width}")]
    Width {
        /// What it asks for.
        width: u32,
        /// GPUs of a node.
        gpus: u32,
    },
    /// A real-time service.
    #[error("no real-time services are compared here; {0} is one")]
    Service(String),
    /// Nodes for larges only, and none for the others or none for larges.
    #[error("{larges} nodes for larges only, of {nodes}: leave at least one for each shape")]
    Partition {
        /// Nodes for larges.
        larges: usize,
        /// All nodes.
        nodes: usize,
    },
}

impl Unfit {
    /// Jobs of one GPU and of a whole node, and nothing else.
    pub(super) fn unless_one_or_all(problem: &Problem) -> Result<(), Self> {
        Self::unless_widths(problem, |width| width == 1 || width == problem.gpus)
    }

    fn unless_widths(problem: &Problem, fits: impl Fn(u32) -> bool) -> Result<(), Self> {
        if let Some(service) = problem.services.first() {
            return Err(Self::Service(service.name.clone()));
        }
        match problem.jobs.iter().find(|job| !fits(job.width)) {
            Some(job) => Err(Self::Width { width: job.width, gpus: problem.gpus }),
            None => Ok(()),
        }
    }
}

/// A scheduler of this family.
#[derive(Debug)]
pub struct Rival {
    rule: Rule,
    place: Place,
    smalls: VecDeque<usize>,
    larges: VecDeque<usize>,
    nodes: Vec<Seats>,
    /// The node of each job that runs.
    at: BTreeMap<usize, usize>,
    now_ms: u64,
    /// When the next large has waited long enough to close a node.
    due_ms: Option<u64>,
}

#[derive(Clone, Debug)]
struct Seats {
    all: GpuSet,
    free: GpuSet,
    /// Jobs, their GPUs, and when they end at the latest.
    holders: Vec<(usize, GpuSet, u64)>,
    kept: bool,
}

impl Seats {
    fn empty(&self) -> bool {
        self.free == self.all
    }

    fn latest_end_ms(&self, now_ms: u64) -> u64 {
        self.holders.iter().fold(now_ms, |latest, &(_, _, end)| latest.max(end))
    }

    /// When so many GPUs are free at the latest.
    fn free_by_ms(&self, width: u32, now_ms: u64) -> u64 {
        if width == self.all.count() {
            return self.latest_end_ms(now_ms);
        }
        let mut ends: Vec<_> = self.holders.iter().map(|&(_, gpus, end)| (end, gpus)).collect();
        ends.sort_unstable_by_key(|&(end, _)| end);
        let mut free = self.free.count();
        let mut by_ms = now_ms;
        for (end, gpus) in ends {
            if free >= width {
                break;
            }
            free += gpus.count();
            by_ms = by_ms.max(end);
        }
        by_ms
    }
}

impl Rival {
    /// A scheduler with nothing to do.
    pub fn new(problem: &Problem, rule: Rule, place: Place) -> Result<Self, Unfit> {
        Unfit::unless_widths(problem, |width| (1..=problem.gpus).contains(&width))?;
        if let Rule::Partition { larges } = rule
            && !(1..problem.nodes).contains(&larges)
        {
            return Err(Unfit::Partition { larges, nodes: problem.nodes });
        }
        Ok(Self {
            rule,
            place,
            smalls: VecDeque::new(),
            larges: VecDeque::new(),
            nodes: Vec::new(),
            at: BTreeMap::new(),
            now_ms: 0,
            due_ms: None,
        })
    }

    fn take_in(&mut self, moment: &Moment<'_>) {
        self.now_ms = moment.now_ms;
        if self.nodes.is_empty() {
            let all = GpuSet::first(moment.problem.gpus);
            let seats = Seats { all, free: all, holders: Vec::new(), kept: false };
            self.nodes = vec![seats; moment.problem.nodes];
            for (&job, &Running { node, gpus, expected_end_ms, .. }) in &moment.state.running {
                self.hold(job, node, gpus, expected_end_ms);
            }
        }
        for job in moment.ended {
            let Some(node) = self.at.remove(job) else { continue };
            let seats = &mut self.nodes[node];
            if let Some(place) = seats.holders.iter().position(|(holder, _, _)| holder == job) {
                let (_, gpus, _) = seats.holders.swap_remove(place);
                seats.free = seats.free.union(gpus);
            }
        }
        for &job in moment.arrived {
            if moment.problem.jobs[job].width == moment.problem.gpus {
                self.larges.push_back(job);
            } else {
                self.smalls.push_back(job);
            }
        }
    }

    fn hold(&mut self, job: usize, node: usize, gpus: GpuSet, end_ms: u64) {
        let seats = &mut self.nodes[node];
        seats.free = seats.free.minus(gpus);
        seats.holders.push((job, gpus, end_ms));
        self.at.insert(job, node);
    }

    /// The node for a small of so many GPUs among those that are open to it.
    fn node_for(
        &self,
        width: u32,
        end_ms: u64,
        open: impl Fn(usize, &Seats) -> bool,
    ) -> Option<usize> {
        let fitting = self.nodes.iter().enumerate();
        let fitting = fitting.filter(|&(id, n)| n.free.count() >= width && open(id, n));
        let key = |seats: &Seats| {
            let moves = end_ms.saturating_sub(seats.latest_end_ms(self.now_ms));
            self.place.key(moves, seats.free.count())
        };
        fitting.min_by_key(|&(id, seats)| (key(seats), id)).map(|(id, _)| id)
    }

    fn start_small(
        &mut self,
        problem: &Problem,
        job: usize,
        open: impl Fn(usize, &Seats) -> bool,
    ) -> Option<Start> {
        let facts = &problem.jobs[job];
        let end_ms = self.now_ms.saturating_add(facts.estimate_ms);
        let node = self.node_for(facts.width, end_ms, open)?;
        let gpus = self.nodes[node].free.lowest(facts.width)?;
        self.hold(job, node, gpus, end_ms);
        Some(Start { job, node, gpus })
    }

    /// Starts the smalls that fit where they may, in order. Behind a wide one that does not fit so
    /// many are looked at.
    fn start_smalls(
        &mut self,
        problem: &Problem,
        starts: &mut Vec<Start>,
        open: impl Fn(usize, &Seats) -> bool + Copy,
    ) {
        let mut passed = 0;
        while passed < DEPTH
            && let Some(&job) = self.smalls.get(passed)
        {
            if let Some(start) = self.start_small(problem, job, open) {
                self.smalls.remove(passed);
                starts.push(start);
            } else if problem.jobs[job].width == 1 {
                break;
            } else {
                passed += 1;
            }
        }
    }

    /// On an empty node that it may have: one that was kept first, since the others serve smalls.
    fn start_large(&mut self, problem: &Problem, job: usize, kept: bool) -> Option<Start> {
        let end_ms = self.now_ms.saturating_add(problem.jobs[job].estimate_ms);
        let empty = self.nodes.iter().enumerate();
        let empty = empty.filter(|(_, seats)| seats.empty() && (kept || !seats.kept));
        let node = empty.min_by_key(|&(id, seats)| (!seats.kept, id)).map(|(id, _)| id)?;
        let gpus = self.nodes[node].all;
        self.nodes[node].kept = false;
        self.hold(job, node, gpus, end_ms);
        Some(Start { job, node, gpus })
    }

    fn small_is_first(&self) -> Option<bool> {
        match (self.smalls.front(), self.larges.front()) {
            (Some(small), Some(large)) => Some(small < large),
            (Some(_), None) => Some(true),
            (None, Some(_)) => Some(false),
            (None, None) => None,
        }
    }

    fn smalls_first(&mut self, problem: &Problem, starts: &mut Vec<Start>) {
        self.start_smalls(problem, starts, |_, _| true);
        while let Some(&job) = self.larges.front()
            && let Some(start) = self.start_large(problem, job, true)
        {
            self.larges.pop_front();
            starts.push(start);
        }
    }

    /// In order of arrival until the first that does not fit.
    fn in_order(&mut self, problem: &Problem, starts: &mut Vec<Start>) {
        while let Some(small) = self.small_is_first() {
            let (queue, start) = if small {
                let Some(&job) = self.smalls.front() else { break };
                let start = self.start_small(problem, job, |_, seats| !seats.kept);
                (&mut self.smalls, start)
            } else {
                let Some(&job) = self.larges.front() else { break };
                let start = self.start_large(problem, job, false);
                (&mut self.larges, start)
            };
            let Some(start) = start else { break };
            queue.pop_front();
            starts.push(start);
        }
    }

    /// In order of arrival; larges that find no empty node are passed.
    fn passing(&mut self, problem: &Problem, starts: &mut Vec<Start>) {
        self.in_order(problem, starts);
        self.start_smalls(problem, starts, |_, seats| !seats.kept);
    }

    fn partitioned(&mut self, problem: &Problem, larges: usize, starts: &mut Vec<Start>) {
        self.start_smalls(problem, starts, |id, _| id >= larges);
        for id in 0..larges {
            if self.nodes[id].empty()
                && let Some(job) = self.larges.pop_front()
            {
                let end_ms = self.now_ms.saturating_add(problem.jobs[job].estimate_ms);
                let gpus = self.nodes[id].all;
                self.hold(job, id, gpus, end_ms);
                starts.push(Start { job, node: id, gpus });
            }
        }
    }

    fn easy(&mut self, problem: &Problem, starts: &mut Vec<Start>) {
        self.open_all();
        self.in_order(problem, starts);
        let Some(small) = self.small_is_first() else { return };
        let queue = if small { &self.smalls } else { &self.larges };
        let width = queue.front().map_or(1, |&job| problem.jobs[job].width);
        if width == 1 {
            return;
        }
        let Some((by_ms, kept)) = self.soonest(width, |_| true) else { return };
        self.nodes[kept].kept = true;
        let mut at = usize::from(small);
        for _ in 0..DEPTH {
            let Some(&job) = self.smalls.get(at) else { break };
            if self.nodes.iter().all(|seats| seats.free.is_empty()) {
                break;
            }
            let in_time = self.now_ms.saturating_add(problem.jobs[job].estimate_ms) <= by_ms;
            let elsewhere = self.start_small(problem, job, |id, _| id != kept);
            let start = elsewhere.or_else(|| {
                if in_time { self.start_small(problem, job, |id, _| id == kept) } else { None }
            });
            if let Some(start) = start {
                self.smalls.remove(at);
                starts.push(start);
            } else {
                at += 1;
            }
        }
    }

    fn open_all(&mut self) {
        for seats in &mut self.nodes {
            seats.kept = false;
        }
    }

    /// The node on which so many GPUs are free soonest, and when.
    fn soonest(&self, width: u32, among: impl Fn(&Seats) -> bool) -> Option<(u64, usize)> {
        let nodes = self.nodes.iter().enumerate().filter(|(_, seats)| among(seats));
        let keys = nodes
            .map(|(id, seats)| (seats.free_by_ms(width, self.now_ms), seats.holders.len(), id));
        keys.min().map(|(by_ms, _, id)| (by_ms, id))
    }

    fn reserve(&mut self, moment: &Moment<'_>, after_ms: u64, drains: usize, out: &mut Vec<Start>) {
        let problem = moment.problem;
        let due = |job: usize| problem.jobs[job].arrival_ms.saturating_add(after_ms) <= self.now_ms;
        let mut entitled = self.larges.partition_point(|&job| due(job));
        while entitled > 0
            && let Some(&job) = self.larges.front()
            && let Some(start) = self.start_large(problem, job, true)
        {
            self.larges.pop_front();
            entitled -= 1;
            out.push(start);
        }
        let wanted = entitled.min(drains);
        let kept = |nodes: &[Seats]| nodes.iter().filter(|seats| seats.kept).count();
        while kept(&self.nodes) > wanted
            && let Some(latest) = (0..self.nodes.len())
                .filter(|&id| self.nodes[id].kept)
                .max_by_key(|&id| (self.nodes[id].latest_end_ms(self.now_ms), id))
        {
            self.nodes[latest].kept = false;
        }
        let held_by_large =
            |seats: &Seats| seats.holders.iter().any(|&(_, gpus, _)| gpus == seats.all);
        while kept(&self.nodes) < wanted
            && let Some((_, id)) =
                self.soonest(problem.gpus, |seats| !seats.kept && !held_by_large(seats))
        {
            self.nodes[id].kept = true;
        }
        // Where larges are due there is no empty node left, so that only smalls start here.
        self.passing(problem, out);
        let young = self.larges.get(entitled).map(|&job| problem.jobs[job].arrival_ms);
        self.due_ms = young.map(|arrival_ms| arrival_ms.saturating_add(after_ms));
    }
}

impl Policy for Rival {
    fn decide(&mut self, moment: Moment<'_>) -> Vec<Start> {
        self.take_in(&moment);
        let (problem, mut starts) = (moment.problem, Vec::new());
        match self.rule {
            Rule::Greedy => self.smalls_first(problem, &mut starts),
            Rule::FifoStrict => {
                self.open_all();
                self.in_order(problem, &mut starts);
                let blocked = self.small_is_first().is_some();
                for seats in &mut self.nodes {
                    seats.kept = blocked;
                }
            }
            Rule::FifoSkip => self.passing(problem, &mut starts),
            Rule::Easy => self.easy(problem, &mut starts),
            Rule::Reserve { after_ms, drains } => {
                self.reserve(&moment, after_ms, drains, &mut starts);
            }
            Rule::Partition { larges } => self.partitioned(problem, larges, &mut starts),
        }
        starts
    }

    fn wake_ms(&self, _now_ms: u64) -> Option<u64> {
        self.due_ms
    }

    fn keeps(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(|seats| seats.kept)
    }
}
