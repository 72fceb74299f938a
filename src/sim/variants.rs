//! Pure: the plain rule written a second time, for one-GPU and whole-node jobs that all run to
//! their end, with changes that were tried and are not in the product. Without a change it starts
//! the same jobs on the same nodes as the live rule (`tests/stream.rs`), so that what differs
//! comes of the change.

use std::collections::VecDeque;

use super::rivals::{Place, Unfit};
use super::{Moment, Policy, Problem, Start};
use crate::policy::GpuSet;

/// Waiting smalls that are looked at behind a gate: as many as the live rule looks at.
const BACKFILL_DEPTH: usize = 300;

/// How long larges follow one another on a node without a wave.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Follow {
    /// A wave after each.
    #[default]
    One,
    /// A wave after so many.
    Larges(u32),
    /// While the next one's limit ends within so many milliseconds of the first one's start.
    WithinMs(u64),
    /// Until the first small has waited so many milliseconds.
    OldestMs(u64),
}

/// Which open node drains.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Drain {
    /// The one that is empty soonest by limits, then the one with the fewest holders.
    #[default]
    Soonest,
    /// As the first, and the gate moves when another would be empty sooner.
    Moving,
    /// The one with the fewest holders.
    Fewest,
    /// The one that is empty soonest by run times, which nobody knows.
    Oracle,
    /// The one that is empty last by limits.
    Last,
}

/// What differs from the plain rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a change of its own")]
pub struct Changes {
    /// How long larges follow one another.
    pub follow: Follow,
    /// Smalls start behind a gate if their limit ends no later than the drain.
    pub backfill: bool,
    /// Backfilled smalls pass also those who waited when such a gate opened without its large.
    pub pass_given_up: bool,
    /// Smalls that come later fill a wave that was short, whatever their limit.
    pub join: bool,
    /// A large's end owes a wave on its own node whatever else is open.
    pub node_credit: bool,
    /// Larges follow one another while another node is in a wave or drains.
    pub one_wave: bool,
    /// Gates closed at a time at most.
    pub drains: usize,
    /// Gates behind waves stay closed while larges wait, whatever `drains` says.
    pub waves_free: bool,
    /// Where smalls go.
    pub place: Place,
    /// Which node drains.
    pub drain: Drain,
}

impl Default for Changes {
    fn default() -> Self {
        Self {
            follow: Follow::One,
            backfill: false,
            pass_given_up: false,
            join: false,
            node_credit: false,
            one_wave: false,
            drains: 1,
            waves_free: false,
            place: Place::LatestEnd,
            drain: Drain::Soonest,
        }
    }
}

/// The rule with its changes.
#[derive(Debug)]
pub struct Variant {
    changes: Changes,
    smalls: VecDeque<usize>,
    larges: VecDeque<usize>,
    nodes: Vec<Node>,
    now_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Open,
    Draining(usize),
    Wave { large: usize, admitted: u32 },
    Exclusive(usize),
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    job: usize,
    gpus: GpuSet,
    /// By its limit.
    end_ms: u64,
    /// By its run time.
    ends_really_ms: u64,
    backfilled: bool,
}

/// Larges that follow one another.
#[derive(Clone, Copy, Debug)]
struct Turn {
    since_ms: u64,
    larges: u32,
}

#[derive(Clone, Debug)]
struct Node {
    free: GpuSet,
    holders: Vec<Holder>,
    phase: Phase,
    turn: Option<Turn>,
    given_up_ms: Option<u64>,
}

impl Node {
    fn gate(&self) -> Option<usize> {
        match self.phase {
            Phase::Draining(large) | Phase::Wave { large, .. } => Some(large),
            Phase::Open | Phase::Exclusive(_) => None,
        }
    }

    fn empty_by_ms(&self, now_ms: u64) -> u64 {
        self.holders.iter().fold(now_ms, |latest, holder| latest.max(holder.end_ms))
    }
}

impl Variant {
    /// A scheduler with nothing to do.
    pub fn new(problem: &Problem, changes: Changes) -> Result<Self, Unfit> {
        Unfit::unless_one_or_all(problem)?;
        let all = GpuSet::first(problem.gpus);
        let node = Node {
            free: all,
            holders: Vec::new(),
            phase: Phase::Open,
            turn: None,
            given_up_ms: None,
        };
        let (smalls, larges) = (VecDeque::new(), VecDeque::new());
        Ok(Self { changes, smalls, larges, nodes: vec![node; problem.nodes], now_ms: 0 })
    }

    fn take_in(&mut self, moment: &Moment<'_>) {
        self.now_ms = moment.now_ms;
        for node in &mut self.nodes {
            for holder in node.holders.extract_if(.., |held| moment.ended.contains(&held.job)) {
                node.free = node.free.union(holder.gpus);
            }
        }
        for &job in moment.arrived {
            let large = moment.problem.jobs[job].width == moment.problem.gpus;
            if large { self.larges.push_back(job) } else { self.smalls.push_back(job) }
        }
    }

    fn hold(
        &mut self,
        problem: &Problem,
        job: usize,
        id: usize,
        backfilled: bool,
    ) -> Option<Start> {
        let facts = &problem.jobs[job];
        let node = &mut self.nodes[id];
        let gpus = node.free.lowest(facts.width)?;
        node.free = node.free.minus(gpus);
        let end_ms = self.now_ms.saturating_add(facts.estimate_ms);
        let ends_really_ms = self.now_ms.saturating_add(facts.run_ms);
        node.holders.push(Holder { job, gpus, end_ms, ends_really_ms, backfilled });
        Some(Start { job, node: id, gpus })
    }

    /// What the end of a large gives the smalls: a wave, or nothing.
    fn settle(&mut self, problem: &Problem, starts: &mut Vec<Start>) {
        for id in 0..self.nodes.len() {
            let Phase::Exclusive(large) = self.nodes[id].phase else { continue };
            if self.nodes[id].holders.iter().any(|holder| holder.job == large) {
                continue;
            }
            self.nodes[id].phase = Phase::Open;
            let Some(&next) = self.larges.front() else {
                self.nodes[id].turn = None;
                continue;
            };
            if self.smalls.is_empty() || self.goes_on(problem, id, next) {
                continue;
            }
            self.nodes[id].turn = None;
            let mut admitted = 0;
            while admitted < problem.gpus
                && let Some(small) = self.smalls.pop_front()
            {
                starts.extend(self.hold(problem, small, id, false));
                admitted += 1;
            }
            self.nodes[id].phase = Phase::Wave { large: next, admitted };
        }
    }

    fn goes_on(&self, problem: &Problem, id: usize, next: usize) -> bool {
        let others = || self.nodes.iter().enumerate().filter(|&(other, _)| other != id);
        if !self.changes.node_credit && others().any(|(_, node)| node.phase == Phase::Open) {
            return true;
        }
        if self.changes.one_wave && others().any(|(_, node)| node.gate().is_some()) {
            return true;
        }
        let Some(turn) = self.nodes[id].turn else { return false };
        match self.changes.follow {
            Follow::One => false,
            Follow::Larges(most) => turn.larges < most,
            Follow::WithinMs(budget) => {
                self.now_ms + problem.jobs[next].estimate_ms <= turn.since_ms + budget
            }
            Follow::OldestMs(wait) => self
                .smalls
                .front()
                .is_some_and(|&small| self.now_ms - problem.jobs[small].arrival_ms < wait),
        }
    }

    fn place_larges(&mut self, problem: &Problem, starts: &mut Vec<Start>) {
        while let Some(&large) = self.larges.front() {
            let empty = self.nodes.iter().enumerate().filter(|(_, node)| node.holders.is_empty());
            let best = empty.min_by_key(|&(id, node)| {
                (node.gate().map_or(2, |gate| u8::from(gate != large)), id)
            });
            let Some((id, _)) = best else { return };
            self.larges.pop_front();
            starts.extend(self.hold(problem, large, id, false));
            let node = &mut self.nodes[id];
            node.phase = Phase::Exclusive(large);
            let turn = node.turn.get_or_insert(Turn { since_ms: self.now_ms, larges: 0 });
            turn.larges += 1;
        }
    }

    /// Says whether a gate opened.
    fn assign_gates(&mut self) -> bool {
        if self.changes.drain == Drain::Moving {
            self.move_gates();
        }
        loop {
            let (mut spare, mut used) = self.share_gates();
            if self.spare_the_latest(&mut spare, &mut used) {
                continue;
            }
            for &id in &spare {
                self.open_gate(id);
            }
            return !spare.is_empty();
        }
    }

    fn move_gates(&mut self) {
        for id in 0..self.nodes.len() {
            let Phase::Draining(large) = self.nodes[id].phase else { continue };
            if let Some(other) = self.node_to_drain()
                && self.empty_by_ms(other) < self.empty_by_ms(id)
            {
                self.open_gate(id);
                self.close_gate(other, large);
            }
        }
    }

    /// The gates that are left over, and those that are used and by whom.
    fn share_gates(&mut self) -> (Vec<usize>, Vec<(usize, usize)>) {
        let gated = |&id: &usize| self.nodes[id].gate().is_some();
        let mut spare: Vec<usize> = (0..self.nodes.len()).filter(gated).collect();
        let mut used = Vec::new();
        let (mut in_use, most) = (0, self.changes.drains);
        for at in 0..self.larges.len() {
            let (head, large) = (at == 0, self.larges[at]);
            let kept = self.changes.waves_free && !spare.is_empty();
            if !(head || in_use < most || kept) {
                break;
            }
            let of_another = |id: usize| self.nodes[id].gate() != Some(large);
            let best = spare.iter().map(|&id| (of_another(id), self.empty_by_ms(id), id)).min();
            if let Some((_, _, id)) = best {
                spare.retain(|&other| other != id);
                used.push((large, id));
                self.retarget(id, large);
            } else if (head || spare.len() + in_use < most)
                && let Some(id) = self.node_to_drain()
            {
                self.close_gate(id, large);
            } else {
                break;
            }
            in_use += 1;
        }
        (spare, used)
    }

    fn spare_the_latest(&mut self, spare: &mut [usize], used: &mut [(usize, usize)]) -> bool {
        let mut exchanged = false;
        for spared in spare {
            let sooner = self.empty_by_ms(*spared);
            let later = used.iter_mut().filter(|(_, id)| self.empty_by_ms(*id) > sooner);
            if let Some((large, id)) = later.max_by_key(|(_, id)| (self.empty_by_ms(*id), *id)) {
                std::mem::swap(id, spared);
                let (id, large) = (*id, *large);
                self.retarget(id, large);
                exchanged = true;
            }
        }
        exchanged
    }

    fn empty_by_ms(&self, id: usize) -> u64 {
        self.nodes[id].empty_by_ms(self.now_ms)
    }

    fn node_to_drain(&self) -> Option<usize> {
        let open = self.nodes.iter().enumerate();
        let open = open.filter(|(_, n)| n.phase == Phase::Open && !n.holders.is_empty());
        let key = |node: &Node| {
            let (by_ms, count) = (node.empty_by_ms(self.now_ms), node.holders.len());
            match self.changes.drain {
                Drain::Soonest | Drain::Moving => (by_ms, count),
                Drain::Fewest => (0, count),
                Drain::Oracle => {
                    let really = node.holders.iter().map(|holder| holder.ends_really_ms).max();
                    (really.unwrap_or(self.now_ms), count)
                }
                Drain::Last => (u64::MAX - by_ms, count),
            }
        };
        open.min_by_key(|&(id, node)| (key(node), id)).map(|(id, _)| id)
    }

    fn close_gate(&mut self, id: usize, large: usize) {
        self.nodes[id].phase = Phase::Draining(large);
        self.nodes[id].turn = None;
    }

    fn retarget(&mut self, id: usize, to: usize) {
        if let Phase::Draining(large) | Phase::Wave { large, .. } = &mut self.nodes[id].phase {
            *large = to;
        }
    }

    fn open_gate(&mut self, id: usize) {
        let now_ms = self.now_ms;
        let node = &mut self.nodes[id];
        if node.holders.iter().any(|holder| holder.backfilled) {
            node.given_up_ms = Some(now_ms);
        }
        node.phase = Phase::Open;
    }

    fn place_smalls(&mut self, problem: &Problem, starts: &mut Vec<Start>) {
        while let Some(&small) = self.smalls.front() {
            let end_ms = self.now_ms.saturating_add(problem.jobs[small].estimate_ms);
            let open = self.nodes.iter().enumerate();
            let open = open.filter(|(_, n)| n.phase == Phase::Open && !n.free.is_empty());
            let best = open.min_by_key(|&(id, node)| {
                let moves = end_ms.saturating_sub(node.empty_by_ms(self.now_ms));
                (self.changes.place.key(moves, node.free.count()), id)
            });
            let Some((id, _)) = best else { return };
            self.smalls.pop_front();
            starts.extend(self.hold(problem, small, id, false));
            self.nodes[id].turn = None;
        }
    }

    fn join_waves(&mut self, problem: &Problem, starts: &mut Vec<Start>) {
        for id in 0..self.nodes.len() {
            while let Phase::Wave { large, admitted } = self.nodes[id].phase
                && admitted < problem.gpus
                && !self.nodes[id].free.is_empty()
                && let Some(small) = self.smalls.pop_front()
            {
                starts.extend(self.hold(problem, small, id, false));
                self.nodes[id].phase = Phase::Wave { large, admitted: admitted + 1 };
            }
        }
    }

    /// Says whether somebody was placed.
    fn backfill(&mut self, problem: &Problem, starts: &mut Vec<Start>) -> bool {
        let before = starts.len();
        let given_up = self.nodes.iter().filter_map(|node| node.given_up_ms).max();
        let given_up = given_up.filter(|_| !self.changes.pass_given_up);
        for id in 0..self.nodes.len() {
            if self.nodes[id].gate().is_none() {
                continue;
            }
            let drained_ms = self.empty_by_ms(id);
            let mut at = 0;
            for _ in 0..BACKFILL_DEPTH {
                let Some(&small) = self.smalls.get(at) else { break };
                if self.nodes[id].free.is_empty() {
                    break;
                }
                let facts = &problem.jobs[small];
                if self.now_ms.saturating_add(facts.estimate_ms) <= drained_ms {
                    self.smalls.remove(at);
                    starts.extend(self.hold(problem, small, id, true));
                } else if given_up.is_some_and(|since| facts.arrival_ms <= since) {
                    break;
                } else {
                    at += 1;
                }
            }
        }
        starts.len() > before
    }
}

impl Policy for Variant {
    fn decide(&mut self, moment: Moment<'_>) -> Vec<Start> {
        self.take_in(&moment);
        let (problem, mut starts) = (moment.problem, Vec::new());
        self.settle(problem, &mut starts);
        self.place_larges(problem, &mut starts);
        while self.assign_gates() {
            self.place_larges(problem, &mut starts);
        }
        self.place_smalls(problem, &mut starts);
        if self.changes.join {
            self.join_waves(problem, &mut starts);
        }
        while self.changes.backfill && self.backfill(problem, &mut starts) {}
        starts
    }

    fn keeps(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(|node| node.gate().is_some())
    }
}
