//! Pure: what must happen before a job starts.
//!
//! **What the list promises.** Let exactly the listed jobs end, each when its limit says (those
//! without a limit after the others), let nothing arrive, fail or change: then the job starts, with
//! the last of them. Where a choice is given ([`Enough::Any`]), any choice does. And none can be
//! left out: where one of the listed never ends, and of a choice one fewer than asked, it does not
//! start by then.
//!
//! It is one way to a start, and not the only one: another node may be empty sooner, and whoever
//! ends before its limit may let another go first. What is known of that is in [`Change`].
//!
//! Two things are summed up rather than named: what follows after the first rounds
//! ([`Need::Rounds`]), and of many the names. Where there are too many to try each, more may be
//! listed than is needed; where others would do as well, but not in each choice, or where there are
//! too many choices to try each, they are not listed. Then it says so.
//!
//! [`Change`]: super::Change

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::course::{Course, Play, Start};
use super::{Job, JobId, Millis, NAMED_MAX, NodeId, Pool, Shape, Wait, Waiting};
use crate::policy::{Credit, GpuSet, Holding, Kind, Node, Stage};

/// Rounds that are told one by one; of more the first, and the rest is counted.
const ROUNDS_MAX: usize = 6;
/// Nodes whose holders are told node by node.
const NODES_TOLD: usize = 2;
/// Of more rounds than that, so many are told.
const ROUNDS_TOLD: usize = 4;

/// Something that must happen before a job can start.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Need {
    /// The pool must be resumed. What follows is what must happen then.
    Resume,
    /// The settings must change: nothing else helps.
    Setting,
    /// A time must come.
    Time {
        /// Which.
        until: Millis,
    },
    /// A node must become one that the job fits.
    Fit {
        /// What is wrong with each that there is.
        nodes: Vec<(NodeId, Unfit)>,
        /// How many more there are.
        more: u32,
    },
    /// Jobs that hold GPUs now must give them back.
    Ends {
        /// The node, where it is everybody who holds GPUs of it.
        node: Option<NodeId>,
        /// Which.
        holders: Holders,
        /// How many of them are enough.
        enough: Enough,
    },
    /// Jobs that wait now must start and end.
    Runs {
        /// Which, the next one first: one large, or smalls with no large between them.
        jobs: Vec<JobId>,
        /// How many more there are.
        more: u32,
        /// How many of them are enough.
        enough: Enough,
        /// The longest that one takes, if something limits each.
        limit: Option<Millis>,
        /// Whether they are waves.
        wave: bool,
        /// Why it follows the large before it, if smalls that wait had to let it.
        credit: Option<Credit>,
    },
    /// These start before it, with GPUs that the others give back.
    Starts {
        /// Which, the next one first.
        jobs: Vec<JobId>,
        /// How many more there are.
        more: u32,
    },
    /// After the rounds that are told, so many more jobs must start and end; or at least start, where
    /// they could not be counted to the end.
    Rounds {
        /// Larges.
        larges: u32,
        /// Smalls.
        smalls: u32,
        /// The first of them.
        first: JobId,
        /// Whether there are more than could be counted.
        at_least: bool,
    },
}

/// How many of some jobs must end.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Enough {
    /// Every one.
    All,
    /// So many, whichever.
    Any(u32),
}

/// Jobs that hold GPUs.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct Holders {
    /// Those that end soonest first, those without an end last.
    pub named: Vec<Holder>,
    /// How many more there are.
    pub more: u32,
}

/// A job that holds GPUs which another waits for.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Which.
    pub job: JobId,
    /// Where.
    pub node: NodeId,
    /// Its GPUs.
    pub gpus: GpuSet,
    /// How far it has come.
    pub stage: Stage,
    /// When it ends at the latest, if something enforces it.
    pub latest_end: Option<Millis>,
}

/// What is wrong with a node for a job.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unfit {
    /// It does not match the job's selectors, affinity and tolerations.
    NotMatched,
    /// It takes no new work.
    Unschedulable,
    /// It has so many GPUs, and the job needs another number.
    Size(u32),
    /// These GPUs are not healthy.
    Unhealthy(GpuSet),
}

/// What must happen before a job starts.
#[derive(Default)]
pub(super) struct Needs {
    pub(super) first: Vec<Need>,
    /// Whether not all was tried, so that fewer ends may be enough, or others.
    pub(super) rough: bool,
    /// When it starts then.
    pub(super) foreseen: Option<Millis>,
}

/// Jobs that end in a play, told together.
enum Group {
    /// They hold GPUs from the first: of one node, or, where it is many, wherever.
    There(Option<NodeId>, Vec<JobId>),
    /// They start on the way: one large, or smalls with no large between them.
    Then(Vec<Start>),
}

impl Group {
    fn jobs(&self) -> Vec<JobId> {
        match self {
            Self::There(_, jobs) => jobs.clone(),
            Self::Then(starts) => starts.iter().map(|start| start.job).collect(),
        }
    }
}

impl Pool {
    /// What must happen before a job starts.
    pub(super) fn needs(&self, waiting: &Waiting, wait: &Wait, now: Millis) -> Needs {
        let job = &waiting.job;
        let mut needs = Vec::new();
        if self.config.paused {
            needs.push(Need::Resume);
        }
        if !self.could_fit(job) {
            needs.push(self.needs_fit(job));
            return Needs { first: needs, ..Needs::default() };
        }
        if waiting.retry_at > now {
            needs.push(Need::Time { until: waiting.retry_at });
        }
        let mut course = Course::new(self, job.id, now);
        let play = self.course_of(&mut course, wait);
        if !play.starts && !play.cut {
            needs.push(self.stuck(job));
            return Needs { first: needs, ..Needs::default() };
        }
        let groups = self.groups(&play);
        let mut rough = false;
        if play.cut || groups.len() > ROUNDS_MAX {
            needs.extend(groups.iter().take(ROUNDS_TOLD).map(|group| self.all_of(group)));
            needs.extend(self.rounds(job, &groups[ROUNDS_TOLD.min(groups.len())..], &play));
        } else {
            let (told, others) = self.told_in_full(&mut course, job, &play, &groups);
            needs.extend(told);
            rough |= others;
        }
        let foreseen = (play.starts && !play.unlimited && !self.config.paused).then_some(play.at);
        rough |= course.is_rough() && !self.is_plain(job, &play);
        Needs { first: needs, rough, foreseen }
    }

    /// The play that is told: with a gate of its own, a large waits for that node.
    fn course_of(&self, course: &mut Course, wait: &Wait) -> Play {
        let own = match *wait {
            Wait::Draining { node, .. } | Wait::Wave { node, .. } => self.nodes.get(&node),
            _ => None,
        };
        let own = own.map(|node| course.with(&node.holdings.keys().copied().collect()));
        let play = own.filter(|play| play.starts).unwrap_or_else(|| course.all());
        if play.starts { course.without_idle_ends(play) } else { play }
    }

    /// What helps a job that would not start if all ended.
    fn stuck(&self, job: &Job) -> Need {
        let usable = |(&id, node): (&NodeId, &Node)| self.unfit(job, id, node).is_none();
        if self.nodes.iter().any(usable) { Need::Setting } else { self.needs_fit(job) }
    }

    fn groups(&self, play: &Play) -> Vec<Group> {
        let set = play.set();
        let mut there: Vec<(NodeId, Vec<JobId>)> = Vec::new();
        for &job in play.ended.iter().filter(|&&job| play.start_of(job).is_none()) {
            let Some(node) = self.node_of(job) else { continue };
            match there.iter_mut().find(|(other, _)| *other == node) {
                Some((_, jobs)) => jobs.push(job),
                None => there.push((node, vec![job])),
            }
        }
        let mut then: Vec<Vec<Start>> = Vec::new();
        for start in play.started.iter().filter(|start| set.contains(&start.job)) {
            let smalls = |start: &Start| start.shape.is_small();
            match then.last_mut() {
                Some(last) if smalls(start) && last.iter().all(smalls) => last.push(*start),
                _ => then.push(vec![*start]),
            }
        }
        let there: Vec<Group> = if there.len() > NODES_TOLD {
            let jobs = there.into_iter().flat_map(|(_, jobs)| jobs).collect();
            vec![Group::There(None, jobs)]
        } else {
            there.into_iter().map(|(node, jobs)| Group::There(Some(node), jobs)).collect()
        };
        there.into_iter().chain(then.into_iter().map(Group::Then)).collect()
    }

    /// Every group, the last one with whoever would do as well, and who starts on the way; and
    /// whether others may do as well who are not listed.
    fn told_in_full(
        &self,
        course: &mut Course,
        job: &Job,
        play: &Play,
        groups: &[Group],
    ) -> (Vec<Need>, bool) {
        let only_there = groups.iter().all(|group| matches!(group, Group::There(..)));
        let one_of_them = |from: usize| {
            let jobs: Vec<JobId> = groups[from..].iter().flat_map(Group::jobs).collect();
            (jobs, from)
        };
        let (jobs, from) = one_of_them(if only_there { 0 } else { groups.len() - 1 });
        let choice = self.choice(course, job, play, &jobs);
        let mut needs: Vec<Need> = groups[..from].iter().map(|group| self.all_of(group)).collect();
        let enough = Enough::Any(count(jobs.len()));
        let named: BTreeSet<JobId> = play.ended.iter().chain(&choice.tried).copied().collect();
        needs.extend(self.starts_before(job, play, &named, &choice.always));
        match (groups.last(), choice.tried.is_empty()) {
            (None, _) => {}
            (Some(_), true) => {
                needs.extend(groups[from..].iter().map(|group| self.all_of(group)));
            }
            (Some(Group::There(..)), false) => {
                let mut holders = self.holders(jobs.iter().chain(&choice.tried));
                holders.more += choice.alike;
                needs.push(Need::Ends { node: None, holders, enough });
            }
            (Some(Group::Then(_)), false) => {
                let all: BTreeSet<JobId> = jobs.iter().chain(&choice.tried).copied().collect();
                let starts = play.started.iter().filter(|start| all.contains(&start.job));
                needs.push(runs(&starts.copied().collect::<Vec<_>>(), enough));
            }
        }
        (needs, choice.more)
    }

    fn all_of(&self, group: &Group) -> Need {
        match group {
            Group::Then(starts) => runs(starts, Enough::All),
            Group::There(node, jobs) => {
                let everybody = |node: &NodeId| {
                    self.nodes.get(node).is_some_and(|state| state.holdings.len() == jobs.len())
                };
                let node = node.filter(everybody);
                Need::Ends { node, holders: self.holders(jobs), enough: Enough::All }
            }
        }
    }

    /// Of the job's queue, those before it that start on the way without having to end.
    fn starts_before(
        &self,
        job: &Job,
        play: &Play,
        named: &BTreeSet<JobId>,
        always: &BTreeSet<JobId>,
    ) -> Option<Need> {
        let own = play.started.last().map_or(0, |start| start.step);
        let before = |start: &&Start| {
            let key = self.waiting.get(&start.job).map(|waiting| waiting.job.queue_key());
            let ahead = key.is_some_and(|key| key < job.queue_key());
            let beside = start.shape.is_small() == job.shape.is_small();
            let told = !named.contains(&start.job) && always.contains(&start.job);
            start.step < own && ahead && beside && told
        };
        let jobs: Vec<JobId> = play.started.iter().filter(before).map(|start| start.job).collect();
        let more = count(jobs.len().saturating_sub(NAMED_MAX));
        let jobs: Vec<JobId> = jobs.into_iter().take(NAMED_MAX).collect();
        (!jobs.is_empty()).then_some(Need::Starts { jobs, more })
    }

    /// What is counted and not told.
    fn rounds(&self, job: &Job, groups: &[Group], play: &Play) -> Option<Need> {
        let ended = groups.iter().flat_map(|group| match group {
            Group::Then(starts) => &starts[..],
            Group::There(..) => &[],
        });
        let mut jobs: Vec<(JobId, Shape)> = ended.map(|start| (start.job, start.shape)).collect();
        if play.cut {
            let started: BTreeSet<JobId> = play.started.iter().map(|start| start.job).collect();
            let ahead = self.queue(job.shape).map(|waiting| &waiting.job);
            let ahead = ahead.take_while(|other| other.id != job.id);
            let left = ahead.filter(|other| !started.contains(&other.id));
            jobs.extend(left.map(|other| (other.id, other.shape)));
        }
        let larges = jobs.iter().filter(|(_, shape)| *shape == Shape::Large).count();
        let (larges, smalls) = (count(larges), count(jobs.len() - larges));
        let first = jobs.first()?.0;
        Some(Need::Rounds { larges, smalls, first, at_least: play.cut })
    }

    fn needs_fit(&self, job: &Job) -> Need {
        let all = self.unfit_nodes(job);
        let more = count(all.len().saturating_sub(NAMED_MAX));
        Need::Fit { nodes: all.into_iter().take(NAMED_MAX).collect(), more }
    }

    /// What is wrong with each node that a job does not fit.
    pub(super) fn unfit_nodes(&self, job: &Job) -> Vec<(NodeId, Unfit)> {
        let unfit = |(&id, node): (&NodeId, &Node)| Some((id, self.unfit(job, id, node)?));
        self.nodes.iter().filter_map(unfit).collect()
    }

    fn unfit(&self, job: &Job, id: NodeId, node: &Node) -> Option<Unfit> {
        let (asked, has) = (self.asked(job.shape), node.spec.gpus.count());
        let wrong_size = if job.shape.is_small() { has < asked } else { has != asked };
        let sick = node.spec.gpus.minus(node.spec.healthy);
        let too_few = if job.shape.is_small() { has - sick.count() < asked } else { true };
        if !job.fits.on(id) {
            Some(Unfit::NotMatched)
        } else if wrong_size {
            Some(Unfit::Size(has))
        } else if !node.spec.schedulable {
            Some(Unfit::Unschedulable)
        } else {
            (too_few && !sick.is_empty()).then_some(Unfit::Unhealthy(sick))
        }
    }

    /// Everybody who holds GPUs of a node.
    pub(super) fn holders_of(&self, node: NodeId) -> Holders {
        let holdings = self.nodes.get(&node).map(|state| state.holdings.keys());
        self.holders(holdings.into_iter().flatten())
    }

    fn holders<'a>(&self, jobs: impl IntoIterator<Item = &'a JobId>) -> Holders {
        let holder = |&job: &JobId| {
            let Holding { gpus, stage, latest_end, .. } = *self.holding(job)?;
            Some(Holder { job, node: self.node_of(job)?, gpus, stage, latest_end })
        };
        let mut named: Vec<Holder> = jobs.into_iter().filter_map(holder).collect();
        named.sort_unstable_by_key(|h| (h.latest_end.unwrap_or(Millis(u64::MAX)), h.job));
        let more = count(named.len().saturating_sub(NAMED_MAX));
        named.truncate(NAMED_MAX);
        Holders { named, more }
    }
}

fn runs(starts: &[Start], enough: Enough) -> Need {
    let limit = starts
        .iter()
        .try_fold(Millis::default(), |most, start| start.limit.map(|limit| most.max(limit)));
    let owed = |credit: &Credit| matches!(credit, Credit::TurnContinues | Credit::OtherNodeNext);
    Need::Runs {
        jobs: starts.iter().take(NAMED_MAX).map(|start| start.job).collect(),
        more: count(starts.len().saturating_sub(NAMED_MAX)),
        enough,
        limit,
        wave: starts.iter().all(|start| start.kind == Kind::Wave),
        credit: match starts {
            [only] if only.shape == Shape::Large => only.credit.filter(owed),
            _ => None,
        },
    }
}

pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
