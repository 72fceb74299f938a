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
//! ([`Need::Rounds`]), and of many the names. In a pool so large that there is no time to look at
//! each, more may be listed than is needed, and fewer to choose from.
//!
//! [`Change`]: super::Change

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::course::{Course, Play, Start};
use super::{Job, JobId, Millis, NAMED_MAX, NodeId, Pool, Shape, Wait, Waiting};
use crate::policy::{Credit, GpuSet, Holding, Kind, Node, Stage};

/// Rounds that are told one by one; of more the first, and the rest is counted.
const ROUNDS_MAX: usize = 6;
/// Of more rounds than that, so many are told.
const ROUNDS_TOLD: usize = 4;
/// Jobs of which it is tried whether their end would do as well.
const TRIED_MAX: usize = 64;

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
    /// After the rounds that are told, so many more jobs must start and end.
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

/// Jobs that end in a play, told together.
enum Group {
    /// They hold GPUs of one node from the first.
    There(NodeId, Vec<JobId>),
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
    /// What must happen before a job starts, and when it starts then.
    pub(super) fn needs(
        &self,
        waiting: &Waiting,
        wait: &Wait,
        now: Millis,
    ) -> (Vec<Need>, Option<Millis>) {
        let job = &waiting.job;
        let mut needs = Vec::new();
        if self.config.paused {
            needs.push(Need::Resume);
        }
        if !self.could_fit(job) {
            needs.push(self.needs_fit(job));
            return (needs, None);
        }
        if waiting.retry_at > now {
            needs.push(Need::Time { until: waiting.retry_at });
        }
        let mut course = Course::new(self, job.id, now);
        let play = self.course_of(&mut course, wait);
        if !play.starts && !play.cut {
            needs.push(self.stuck(job));
            return (needs, None);
        }
        let groups = self.groups(&play);
        if play.cut || groups.len() > ROUNDS_MAX {
            needs.extend(groups.iter().take(ROUNDS_TOLD).map(|group| self.all_of(group, &play)));
            needs.extend(rounds(&groups[ROUNDS_TOLD.min(groups.len())..], &play));
        } else {
            needs.extend(self.told_in_full(&mut course, job, &play, &groups));
        }
        let foreseen = (play.starts && !play.unlimited && !self.config.paused).then_some(play.at);
        (needs, foreseen)
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
        let there = there.into_iter().map(|(node, jobs)| Group::There(node, jobs));
        there.chain(then.into_iter().map(Group::Then)).collect()
    }

    /// Every group, the last one with whoever would do as well, and who starts on the way.
    fn told_in_full(
        &self,
        course: &mut Course,
        job: &Job,
        play: &Play,
        groups: &[Group],
    ) -> Vec<Need> {
        let only_there = groups.iter().all(|group| matches!(group, Group::There(..)));
        let one_of_them = |from: usize| {
            let jobs: Vec<JobId> = groups[from..].iter().flat_map(Group::jobs).collect();
            (jobs, from)
        };
        let (jobs, from) = one_of_them(if only_there { 0 } else { groups.len() - 1 });
        let choice = self.choice(course, play, &jobs, groups.last());
        let mut needs: Vec<Need> =
            groups[..from].iter().map(|group| self.all_of(group, play)).collect();
        let enough = Enough::Any(count(jobs.len()));
        let named: BTreeSet<JobId> = play.ended.iter().chain(&choice.tried).copied().collect();
        needs.extend(self.starts_before(job, play, &named));
        match (groups.last(), choice.tried.is_empty()) {
            (None, _) => {}
            (Some(_), true) => {
                needs.extend(groups[from..].iter().map(|group| self.all_of(group, play)));
            }
            (Some(Group::There(..)), false) => {
                let all = jobs.iter().chain(&choice.tried);
                let held = all.filter_map(|&job| Some((job, self.node_of(job)?)));
                let mut holders = self.holders(held);
                holders.more += choice.alike;
                needs.push(Need::Ends { node: None, holders, enough });
            }
            (Some(Group::Then(_)), false) => {
                let all: BTreeSet<JobId> = jobs.iter().chain(&choice.tried).copied().collect();
                let starts = play.started.iter().filter(|start| all.contains(&start.job));
                needs.push(runs(&starts.copied().collect::<Vec<_>>(), enough));
            }
        }
        needs
    }

    fn all_of(&self, group: &Group, play: &Play) -> Need {
        match group {
            Group::Then(starts) => runs(starts, Enough::All),
            Group::There(node, jobs) => {
                let everybody = self
                    .nodes
                    .get(node)
                    .is_some_and(|state| state.holdings.keys().all(|job| play.ended.contains(job)));
                let holders = self.holders(jobs.iter().map(|&job| (job, *node)));
                Need::Ends { node: everybody.then_some(*node), holders, enough: Enough::All }
            }
        }
    }

    /// Of the job's queue, those before it that start on the way without having to end.
    fn starts_before(&self, job: &Job, play: &Play, named: &BTreeSet<JobId>) -> Option<Need> {
        let own = play.started.last().map_or(0, |start| start.step);
        let before = |start: &&Start| {
            let key = self.waiting.get(&start.job).map(|waiting| waiting.job.queue_key());
            let ahead = key.is_some_and(|key| key < job.queue_key());
            let beside = start.shape.is_small() == job.shape.is_small();
            start.step < own && ahead && beside && !named.contains(&start.job)
        };
        let jobs: Vec<JobId> = play.started.iter().filter(before).map(|start| start.job).collect();
        let more = count(jobs.len().saturating_sub(NAMED_MAX));
        let jobs: Vec<JobId> = jobs.into_iter().take(NAMED_MAX).collect();
        (!jobs.is_empty()).then_some(Need::Starts { jobs, more })
    }

    /// Whose ends would do as well as those of `jobs`, so that any as many of them are enough.
    fn choice(
        &self,
        course: &mut Course,
        play: &Play,
        jobs: &[JobId],
        last: Option<&Group>,
    ) -> Choice {
        let set = play.set();
        let mut others: Vec<JobId> = match last {
            Some(Group::There(..)) => {
                let held = self.nodes.values().flat_map(|node| &node.holdings);
                let mut held: Vec<(Millis, JobId)> = held
                    .filter(|(job, _)| !set.contains(job))
                    .map(|(&job, holding)| (holding.latest_end.unwrap_or(Millis(u64::MAX)), job))
                    .collect();
                held.sort_unstable();
                held.into_iter().map(|(_, job)| job).collect()
            }
            Some(Group::Then(starts)) if starts.iter().all(|start| start.shape.is_small()) => {
                let from = play.started.iter().position(|start| start.job == jobs[0]);
                let after = play.started.iter().skip(from.unwrap_or(0));
                let beside = after.take_while(|start| start.shape.is_small());
                beside.map(|start| start.job).filter(|job| !set.contains(job)).collect()
            }
            _ => Vec::new(),
        };
        // Of those with as many GPUs of one node two stand for all.
        let mut alike: BTreeMap<(NodeId, u32), Vec<JobId>> = BTreeMap::new();
        for &job in jobs {
            let start = play.start_of(job).map(|start| (start.node, self.asked(start.shape)));
            let held = || Some((self.node_of(job)?, self.holding(job)?.gpus.count()));
            if let Some(class) = start.or_else(held) {
                alike.entry(class).or_default().push(job);
            }
        }
        let alike: Vec<JobId> =
            alike.into_values().flat_map(|jobs| jobs.into_iter().take(2)).collect();
        let own = play.started.last().map(|start| start.job);
        others.retain(|&job| Some(job) != own);
        let beyond = others.split_off(others.len().min(TRIED_MAX));
        let tried: Vec<JobId> = others
            .iter()
            .copied()
            .filter(|&other| course.does_as_well(&set, &alike, other))
            .collect();
        // Of a large pool only those that end soonest are tried; the others are taken to be like
        // them if they all do.
        let all = course.has_time() && tried.len() == others.len();
        let alike = if all { count(beyond.len()) } else { 0 };
        Choice { tried, alike }
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
        self.holders(holdings.into_iter().flatten().map(|&job| (job, node)))
    }

    fn holders(&self, jobs: impl Iterator<Item = (JobId, NodeId)>) -> Holders {
        let holder = |(job, node): (JobId, NodeId)| {
            let holding = self.nodes.get(&node)?.holdings.get(&job)?;
            let Holding { gpus, stage, latest_end, .. } = *holding;
            Some(Holder { job, node, gpus, stage, latest_end })
        };
        let mut named: Vec<Holder> = jobs.filter_map(holder).collect();
        named.sort_unstable_by_key(|h| (h.latest_end.unwrap_or(Millis(u64::MAX)), h.job));
        let more = count(named.len().saturating_sub(NAMED_MAX));
        named.truncate(NAMED_MAX);
        Holders { named, more }
    }
}

/// Whose end would do as well as another's.
struct Choice {
    tried: Vec<JobId>,
    /// How many more are taken to be like those.
    alike: u32,
}

impl Course {
    /// Whether the end of `other` may stand for that of any of `jobs`, no more and no less, where
    /// `alike` are so many of them that the others are as one of these.
    fn does_as_well(&mut self, set: &BTreeSet<JobId>, alike: &[JobId], other: JobId) -> bool {
        let instead = |out: &[JobId]| {
            let mut set = set.clone();
            set.retain(|job| !out.contains(job));
            set.insert(other);
            set
        };
        let enough = alike.iter().all(|&job| self.has_time() && self.with(&instead(&[job])).starts);
        // With one fewer of any that are listed it must not be enough.
        enough
            && alike.iter().all(|&job| {
                set.iter().filter(|&&left_out| left_out != job).all(|&left_out| {
                    self.has_time() && !self.with(&instead(&[job, left_out])).starts
                })
            })
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

fn rounds(groups: &[Group], play: &Play) -> Option<Need> {
    let starts = groups.iter().flat_map(|group| match group {
        Group::Then(starts) => &starts[..],
        Group::There(..) => &[],
    });
    let all = starts.clone().count();
    let larges = starts.clone().filter(|start| start.shape == Shape::Large).count();
    let first = starts.clone().next()?.job;
    let (larges, smalls) = (count(larges), count(all - larges));
    Some(Need::Rounds { larges, smalls, first, at_least: play.cut })
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
