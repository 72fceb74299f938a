//! Pure: whose ends would do as well as those that are needed.

use std::collections::{BTreeMap, BTreeSet};

use super::course::{Course, Play};
use super::needs::count;
use super::{Job, JobId, Millis, NodeId, Pool, Shape};
use crate::policy::Fits;

/// Jobs of which it is tried whether their end would do as well.
const TRIED_MAX: usize = 64;
/// Of the needed ones, for how many each of those is tried.
const ALIKE_MAX: usize = 8;
/// Jobs of which every choice may be tried.
const CHOSEN_MAX: usize = 20;
/// Plays in which that is done.
const PLAYS_MAX: usize = 500;

/// Those whose ends would do as well as others.
pub(super) struct Choice {
    pub(super) tried: Vec<JobId>,
    /// How many more are taken to be like those.
    pub(super) alike: u32,
    /// Who starts on the way whatever is chosen.
    pub(super) always: BTreeSet<JobId>,
    /// Whether others would do as well, or may, but not each choice of them was found to.
    pub(super) more: bool,
}

impl Pool {
    /// Whose ends would do as well as those of `jobs`, the last that are needed in a play, so that
    /// any as many of them all are enough.
    pub(super) fn choice(
        &self,
        course: &mut Course,
        target: &Job,
        play: &Play,
        jobs: &[JobId],
    ) -> Choice {
        let set = play.set();
        let mut others = self.comparable(target, play, jobs, &set);
        let beyond = others.split_off(others.len().min(TRIED_MAX));
        let one = |job: &JobId| self.gpus_in(play, *job) == Some(1);
        let even = jobs.len() == 1 || (self.is_even(target) && jobs.iter().all(one));
        let mut more = !even && jobs.len() >= CHOSEN_MAX && !others.is_empty();
        if more {
            others.clear();
        }
        let alike = self.two_of_each(play, jobs);
        // Of one that is needed it is tried whether the rest is needed beside each other; of more
        // each choice is, or each is like any other.
        let rest: Vec<JobId> =
            if jobs.len() == 1 { set.iter().copied().collect() } else { alike.clone() };
        let mut always: BTreeSet<JobId> = play.started.iter().map(|start| start.job).collect();
        let mut tried = others.clone();
        // Of those that would not do for each, a few are looked at.
        let mut looks = ALIKE_MAX;
        tried.retain(|&other| {
            let does = course.does_as_well(&set, (&alike, &rest), other, &mut always);
            if !does && !more && looks > 0 {
                looks -= 1;
                more = course.does_for_one(&set, &alike, other);
            }
            does
        });
        let even = even && (jobs.len() == 1 || tried.iter().all(one));
        if !tried.is_empty() && !even && !course.any_choice_does(&set, jobs, &tried, &mut always) {
            more = true;
            tried.clear();
        }
        // Of a large pool only those that end soonest are tried; the others are taken to be like
        // those on nodes in the same phase, if they all do.
        let phase = |job: &JobId| {
            let node = self.nodes.get(&self.node_of(*job)?)?;
            Some((std::mem::discriminant(&node.phase), node.spec.schedulable))
        };
        let does = |job: &JobId| tried.contains(job);
        let like = |other: &JobId| {
            let mut same = others.iter().filter(|tried| phase(tried) == phase(other));
            phase(other).is_some() && same.clone().next().is_some() && same.all(does)
        };
        let alike = beyond.iter().filter(|other| course.has_time() && like(other)).count();
        Choice { alike: count(alike), tried, always, more }
    }

    /// Whoever holds GPUs in the play's end as the needed ones did and is not needed, those that
    /// end soonest first.
    fn comparable(
        &self,
        target: &Job,
        play: &Play,
        jobs: &[JobId],
        set: &BTreeSet<JobId>,
    ) -> Vec<JobId> {
        let started = jobs.first().and_then(|first| play.start_of(*first));
        let Some(first) = started else {
            let held = self.nodes.values().flat_map(|node| &node.holdings);
            let mut held: Vec<(Millis, JobId)> = held
                .filter(|(job, _)| !set.contains(job) && !jobs.is_empty())
                .map(|(&job, holding)| (holding.latest_end.unwrap_or(Millis(u64::MAX)), job))
                .collect();
            held.sort_unstable();
            return held.into_iter().map(|(_, job)| job).collect();
        };
        let after = play.started.iter().skip_while(|start| start.job != first.job);
        let beside = after.take_while(|start| start.shape.is_small()).map(|start| start.job);
        beside.filter(|job| !set.contains(job) && *job != target.id).collect()
    }

    /// Of those with as many GPUs of one node two stand for all, of nodes a few.
    fn two_of_each(&self, play: &Play, jobs: &[JobId]) -> Vec<JobId> {
        let mut alike: BTreeMap<(NodeId, u32), Vec<JobId>> = BTreeMap::new();
        for &job in jobs {
            let node = play.start_of(job).map(|start| start.node).or_else(|| self.node_of(job));
            if let Some(class) = node.zip(self.gpus_in(play, job)) {
                alike.entry(class).or_default().push(job);
            }
        }
        alike.into_values().flat_map(|jobs| jobs.into_iter().take(2)).take(ALIKE_MAX).collect()
    }

    /// GPUs that a job holds, or comes to hold in a play.
    fn gpus_in(&self, play: &Play, job: JobId) -> Option<u32> {
        let start = play.start_of(job).map(|start| self.asked(start.shape));
        start.or_else(|| Some(self.holding(job)?.gpus.count()))
    }

    /// Whether a job starts with as many ends as there are in a play, and with no fewer, whoever
    /// they are: each lets one of the queue start.
    pub(super) fn is_plain(&self, target: &Job, play: &Play) -> bool {
        let one = |job: &JobId| self.gpus_in(play, *job) == Some(1);
        self.is_even(target) && play.ended.iter().all(one)
    }

    /// Whether each GPU that comes free starts the next of the queue, up to a job of it: no large
    /// waits, and they all ask for one GPU of any node, and no quota holds them back.
    fn is_even(&self, target: &Job) -> bool {
        let quotas = &self.config.quotas;
        let any = |job: &Job| {
            let free = !quotas.contains_key(&job.tenant);
            job.shape == Shape::Small && job.fits == Fits::Any && free
        };
        let mut ahead = self.queue(target.shape).map(|waiting| &waiting.job);
        let even = ahead.by_ref().take_while(|job| job.id != target.id).all(any) && any(target);
        even && self.queue(Shape::Large).next().is_none()
    }
}

impl Course {
    /// Whether the end of `other` may stand for that of any of `jobs`, no more and no less: where one
    /// of `rest` is left out too it does not.
    fn does_as_well(
        &mut self,
        set: &BTreeSet<JobId>,
        (jobs, rest): (&[JobId], &[JobId]),
        other: JobId,
        always: &mut BTreeSet<JobId>,
    ) -> bool {
        let instead = |out: &[JobId]| {
            let mut set = set.clone();
            set.retain(|job| !out.contains(job));
            set.insert(other);
            set
        };
        let enough = jobs.iter().all(|&job| self.is_enough(&instead(&[job]), always));
        enough
            && jobs.iter().all(|&job| {
                rest.iter()
                    .filter(|&&left_out| left_out != job)
                    .all(|&left_out| self.is_too_few(&instead(&[job, left_out])))
            })
    }

    /// Whether the end of `other` may stand for that of one of `jobs`.
    fn does_for_one(&mut self, set: &BTreeSet<JobId>, jobs: &[JobId], other: JobId) -> bool {
        jobs.iter().any(|&job| {
            let mut instead = set.clone();
            instead.remove(&job);
            instead.insert(other);
            self.has_time() && self.with(&instead).starts
        })
    }

    /// Whether that holds of every choice of as many as `jobs` among them and the others.
    fn any_choice_does(
        &mut self,
        set: &BTreeSet<JobId>,
        jobs: &[JobId],
        others: &[JobId],
        always: &mut BTreeSet<JobId>,
    ) -> bool {
        let among: Vec<JobId> = jobs.iter().chain(others).copied().collect();
        let rest: BTreeSet<JobId> = set.iter().copied().filter(|job| !jobs.contains(job)).collect();
        if among.len() > CHOSEN_MAX {
            return false;
        }
        let choices = |size: usize| {
            (0_u32..1 << among.len()).filter(move |mask| mask.count_ones() as usize == size)
        };
        let plays = choices(jobs.len()).count() * (1 + rest.len());
        if plays + choices(jobs.len() - 1).count() > PLAYS_MAX {
            return false;
        }
        let chosen = |mask: u32, but: Option<JobId>| -> BTreeSet<JobId> {
            let picked = among.iter().enumerate().filter(move |(at, _)| mask & (1 << at) != 0);
            let rest = rest.iter().copied().filter(|&job| Some(job) != but);
            rest.chain(picked.map(|(_, &job)| job)).collect()
        };
        choices(jobs.len() - 1).all(|mask| self.is_too_few(&chosen(mask, None)))
            && choices(jobs.len()).all(|mask| {
                self.is_enough(&chosen(mask, None), always)
                    && rest.iter().all(|&but| self.is_too_few(&chosen(mask, Some(but))))
            })
    }

    /// Whether the job starts where these end, and who always does before it.
    fn is_enough(&mut self, ends: &BTreeSet<JobId>, always: &mut BTreeSet<JobId>) -> bool {
        let play = self.has_time().then(|| self.with(ends)).filter(|play| play.starts);
        if let Some(play) = &play {
            always.retain(|&job| play.start_of(job).is_some());
        }
        play.is_some()
    }

    /// Whether it does not.
    fn is_too_few(&mut self, ends: &BTreeSet<JobId>) -> bool {
        self.has_time() && !self.with(ends).starts
    }
}
