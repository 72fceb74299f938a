//! Pure: the rule, played forward from a state in which nothing arrives any more.
//!
//! In a play so many jobs, those that hold GPUs and those that come to hold them, end when their
//! limits say, one after the other; those without a limit end after all others; whoever is not
//! among them never ends. Whoever has GPUs reserved is bound. So a play is told by the set of jobs
//! that end in it, and what a job waits for by the smallest set in whose play it starts.

use std::collections::{BTreeMap, BTreeSet};

use super::{JobId, Millis, NodeId, Pool, Shape};
use crate::policy::{Credit, Decision, Input, Kind, Outcome, Stage};

/// Steps after which a play is broken off.
const STEPS_MAX: usize = 2_000;
/// More ends than these are not looked at one by one.
const SINGLES_MAX: usize = 64;
/// Nodes looked at, in all plays of one question: a few tenths of a second.
const WORK_MAX: usize = 1_500_000;

/// A job that came to hold GPUs in a play.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub(super) job: JobId,
    pub(super) shape: Shape,
    pub(super) node: NodeId,
    pub(super) kind: Kind,
    /// The step of the play.
    pub(super) step: usize,
    /// How long it holds them at most.
    pub(super) limit: Option<Millis>,
    /// What the end of the large before it on the node gave the smalls in that step.
    pub(super) credit: Option<Credit>,
}

/// What happened in a play.
#[derive(Clone, Debug, Default)]
pub(super) struct Play {
    /// Who ended, in order.
    pub(super) ended: Vec<JobId>,
    /// Who started, in order; the job that is asked about is the last one if it did.
    pub(super) started: Vec<Start>,
    /// When it was over.
    pub(super) at: Millis,
    /// Whether the job that is asked about started.
    pub(super) starts: bool,
    /// Whether the play was broken off.
    pub(super) cut: bool,
    /// Whether somebody ended of whom nobody knows when: without a limit, or beyond it.
    pub(super) unlimited: bool,
}

impl Play {
    /// Those who ended.
    pub(super) fn set(&self) -> BTreeSet<JobId> {
        self.ended.iter().copied().collect()
    }

    /// How a job came to hold GPUs, unless it held them from the first.
    pub(super) fn start_of(&self, job: JobId) -> Option<&Start> {
        self.started.iter().find(|start| start.job == job)
    }
}

/// Plays of one question: when a job starts.
pub(super) struct Course {
    base: Pool,
    target: JobId,
    now: Millis,
    work: usize,
    /// Whether more ended in a play than were looked at one by one.
    many: bool,
}

impl Course {
    pub(super) fn new(pool: &Pool, target: JobId, now: Millis) -> Self {
        let mut base = pool.clone();
        base.config.paused = false;
        let reserved = pool.nodes.values().flat_map(|node| &node.holdings);
        let reserved = reserved.filter(|(_, holding)| holding.stage == Stage::Reserved);
        for (&job, _) in reserved {
            base.apply(Input::Bound { job }, now, &mut Vec::new());
        }
        Self { base, target, now, work: 0, many: false }
    }

    /// Whether there is time for further plays.
    pub(super) fn has_time(&self) -> bool {
        self.work < WORK_MAX
    }

    /// Whether not all was tried, so that fewer ends may be enough than are found.
    pub(super) fn is_rough(&self) -> bool {
        self.many || !self.has_time()
    }

    /// The play in which everybody ends.
    pub(super) fn all(&mut self) -> Play {
        self.play(None)
    }

    /// The play in which these end.
    pub(super) fn with(&mut self, ends: &BTreeSet<JobId>) -> Play {
        self.play(Some(ends))
    }

    fn play(&mut self, ends: Option<&BTreeSet<JobId>>) -> Play {
        let mut pool = self.base.clone();
        let mut play = Play { at: self.now, ..Play::default() };
        let may_end = |job: JobId| ends.is_none_or(|ends| ends.contains(&job));
        let holdings = pool.nodes.values().flat_map(|node| &node.holdings);
        let mut agenda: BTreeSet<(Millis, JobId)> = holdings
            .filter(|(job, _)| may_end(**job))
            .map(|(&job, holding)| (holding.latest_end.unwrap_or(NEVER), job))
            .collect();
        let mut inputs = Vec::new();
        for step in 0..STEPS_MAX {
            let decided = pool.step(std::mem::take(&mut inputs), play.at);
            for job in play.note(&mut pool, &decided, step, self.target) {
                let end = pool.holding(job).and_then(|holding| holding.latest_end);
                if may_end(job) {
                    agenda.insert((end.unwrap_or(NEVER), job));
                }
            }
            self.work += pool.nodes.len() + 8;
            if play.starts {
                return play;
            }
            let wakeup = pool.next_wakeup(play.at);
            let Some(&(end, job)) =
                agenda.first().filter(|(end, _)| wakeup.is_none_or(|w| *end < w))
            else {
                let Some(wakeup) = wakeup else { return play };
                play.at = wakeup;
                continue;
            };
            agenda.pop_first();
            play.unlimited |= end == NEVER || end < self.now;
            play.at = if end == NEVER { play.at } else { play.at.max(end) };
            play.ended.push(job);
            inputs.push(Input::Released { job, outcome: Outcome::Completed });
        }
        play.cut = true;
        play
    }

    /// The smallest play that is found in which the job still starts, and no later than in `play`,
    /// where nobody ends who did not end there. If there is time, none of those can be left out.
    pub(super) fn without_idle_ends(&mut self, mut play: Play) -> Play {
        let full = play.clone();
        let home = play.started.last().map(|start| start.node);
        let mut nodes: BTreeMap<NodeId, BTreeSet<JobId>> = BTreeMap::new();
        for &job in &play.ended {
            let node = play.start_of(job).map(|start| start.node);
            if let Some(node) = node.or_else(|| self.base.node_of(job)) {
                nodes.entry(node).or_default().insert(job);
            }
        }
        // Most of what ends elsewhere does not matter: all of it first, then node by node.
        if let Some(own) = home.and_then(|home| nodes.get(&home)) {
            self.shrink(&mut play, &full, |set| set.retain(|job| own.contains(job)));
        }
        for (_, jobs) in nodes.into_iter().filter(|&(node, _)| Some(node) != home) {
            if jobs.iter().any(|job| play.ended.contains(job)) {
                self.shrink(&mut play, &full, |set| set.retain(|job| !jobs.contains(job)));
            }
        }
        self.many = play.ended.len() > SINGLES_MAX;
        while !self.many {
            let mut fewer = false;
            for job in play.ended.clone().into_iter().rev() {
                let there = play.ended.contains(&job);
                fewer |= there && self.shrink(&mut play, &full, |set| _ = set.remove(&job));
            }
            if !fewer {
                break;
            }
        }
        play
    }

    fn shrink(
        &mut self,
        play: &mut Play,
        full: &Play,
        leave_out: impl FnOnce(&mut BTreeSet<JobId>),
    ) -> bool {
        let mut set = play.set();
        let all = set.len();
        leave_out(&mut set);
        if set.len() == all || !self.has_time() {
            return false;
        }
        let smaller = self.with(&set);
        let as_soon = (smaller.unlimited, smaller.at) <= (full.unlimited, full.at);
        let good = smaller.starts && as_soon;
        if good {
            *play = smaller;
        }
        good
    }
}

impl Play {
    /// Takes down what was decided, and binds whom GPUs were reserved for, who are returned.
    fn note(
        &mut self,
        pool: &mut Pool,
        decided: &[Decision],
        step: usize,
        target: JobId,
    ) -> Vec<JobId> {
        let mut credits: BTreeMap<NodeId, Credit> = BTreeMap::new();
        let mut started = Vec::new();
        for decision in decided {
            match *decision {
                Decision::CreditSettled { node, credit } => _ = credits.insert(node, credit),
                Decision::Reserved { job, node, kind, .. } => {
                    let Some(known) = pool.job(job) else { continue };
                    let (shape, limit) = (known.shape, known.limit);
                    let credit = credits.get(&node).copied();
                    self.started.push(Start { job, shape, node, kind, step, limit, credit });
                    started.push(job);
                }
                _ => {}
            }
        }
        for &job in &started {
            pool.apply(Input::Bound { job }, self.at, &mut Vec::new());
        }
        // Whoever starts in the same step is no part of what is asked about.
        if let Some(own) = self.started.iter().position(|start| start.job == target) {
            let own = self.started.remove(own);
            self.started.push(own);
            self.starts = true;
        }
        started
    }
}

/// When whoever has no limit ends: after all others.
const NEVER: Millis = Millis(u64::MAX);
