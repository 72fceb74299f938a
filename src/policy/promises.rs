//! Pure: what each waiting job was told, and why it was told a later time since.
//!
//! [`Pool::bound`] says when a job starts at the latest as things stand *now*; asked again later it
//! counts again from then. [`Promises`] keeps the earliest that was told and that still holds: a
//! later time is told only where something happened that no proof covers, and then together with
//! what that was. It keeps beside the pool and not in it: it decides nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::bound::{Before, ByPlace, Figure, Terms};
use super::{
    Basis, Bound, Config, Decision, Explanation, Fits, GpuSet, Input, Job, JobId, Kind, Millis,
    Node, NodeId, NodeSpec, Pool, QueueKey, Shape, Stage, Standing, TenantId, UnreserveReason,
    Waiting,
};

/// A waiting job is told a later time than before, or none any more.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct BoundMoved {
    /// The job.
    pub job: JobId,
    /// What it was told before.
    pub from: Millis,
    /// What it is told now; `None`: no time can be given.
    pub to: Option<Millis>,
    /// What happened.
    pub cause: Cause,
}

/// What moves a latest start: nothing else does.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// This job came later and is served first: by priority, or by its creation time.
    ServedFirst(JobId),
    /// This job, the told one or one served before it, had GPUs reserved and was not bound.
    CameBack(JobId, UnreserveReason),
    /// The node is gone.
    NodeGone(NodeId),
    /// The node lost a GPU, or takes no new work.
    NodeUnfit(NodeId),
    /// This large, which is served first and fits some nodes only, was held back or fitted others,
    /// and a node is emptied for it now: that which was emptied for another may be given up.
    ServableAgain(JobId),
    /// The node takes new work again, or is new, and others wait for it: where there is one wave at
    /// a time.
    NodeBack(NodeId),
    /// This job went round the rule and holds GPUs.
    Foreign(JobId),
    /// This job holds GPUs beyond its limit.
    Overran(JobId),
    /// This job runs, or waits and is served first, without an enforced limit.
    Unlimited(JobId),
    /// This job may hold GPUs for longer than the pool allows.
    Longer(JobId),
    /// The quota of the job's tenant may hold it back.
    Quota(TenantId),
    /// What is known of the job itself changed.
    Changed,
    /// Whoever decides began anew from what is recorded, and counts from then.
    Restarted,
    /// The settings changed, or the pool is paused.
    Settings,
}

/// The latest starts that waiting jobs were told.
#[derive(Clone, Debug, Default)]
pub struct Promises {
    told: BTreeMap<JobId, Promise>,
    seen: Option<Seen>,
}

/// [`Promises`] as a record keeps them: what they rest on besides is in the pool's state.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Told {
    /// When jobs were told last; `None` where nobody has been told anything yet.
    pub at: Option<Millis>,
    /// What each was told.
    pub jobs: BTreeMap<JobId, Promise>,
}

/// What one job was told.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Promise {
    /// The time, and what it rests on.
    bound: Bound,
    /// Where the job stood in its queue.
    key: QueueKey,
    /// How the time grows with the place, where it rests on that.
    by_place: Option<ByPlace>,
    /// How many that came later have been served first since, in what `by_place` counts.
    more: u64,
}

/// What came of one step of a pool, and of what its waiting jobs were told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stepped {
    /// What the pool decided.
    pub decisions: Vec<Decision>,
    /// Who was told a later time than before.
    pub moved: Vec<BoundMoved>,
    /// Whether jobs were told anything: not where nothing happened.
    pub noted: bool,
}

/// One who is served before others that were told a time sooner.
#[derive(Clone, Copy, Debug)]
struct Came {
    key: QueueKey,
    cause: Cause,
    /// Whether its share is more than that of a place, so that all is to be counted again.
    anew: bool,
}

/// What figures rested on when they were told.
#[derive(Clone, Debug)]
struct Seen {
    at: Millis,
    config: Config,
    nodes: BTreeMap<NodeId, NodeSpec>,
    foreign: BTreeMap<JobId, (GpuSet, Option<Millis>)>,
    /// The next end of a limit that a holder may outlast.
    limits_kept: Option<(Millis, JobId)>,
    terms: Terms,
    /// Larges that fit some nodes only, and for which one may be emptied.
    servable: BTreeSet<JobId>,
}

impl Promises {
    /// What a waiting job is told: when it starts at the latest, and what that rests on.
    pub fn bound(&self, job: JobId) -> Option<Bound> {
        self.told.get(&job).map(|told| told.bound)
    }

    /// Where a job stands, with the latest start that it was told; `None` if it neither waits nor
    /// holds GPUs.
    pub fn explain(&self, pool: &Pool, job: JobId, now: Millis) -> Option<Explanation> {
        Some(self.as_told(pool.explain(job, now)?))
    }

    /// The same of what [`Pool::glance`] says.
    pub fn glance(&self, pool: &Pool, job: JobId, now: Millis) -> Option<Explanation> {
        Some(self.as_told(pool.glance(job, now)?))
    }

    fn as_told(&self, mut explanation: Explanation) -> Explanation {
        if let Standing::Waits(waits) = &mut explanation.standing
            && let Some(told) = self.bound(explanation.job)
        {
            waits.promised(told);
        }
        explanation
    }

    /// What a job was told last by whoever decided before, if nobody has been told anything since:
    /// whether that still holds is not known, and a later time is told as one.
    pub fn recall(&mut self, job: &Job, latest_start: Millis) {
        if self.seen.is_none() {
            // What it rested on is not known either, and does not matter to what is counted anew.
            let bound = Bound { latest_start: Some(latest_start), basis: Basis::HeldBack };
            let told = Promise { bound, key: job.queue_key(), by_place: None, more: 0 };
            self.told.insert(job.id, told);
        }
    }

    /// As a record keeps them.
    pub fn told(&self) -> Told {
        Told { at: self.seen.as_ref().map(|seen| seen.at), jobs: self.told.clone() }
    }

    /// Those that a record kept beside this state of the pool.
    pub fn from_told(told: Told, pool: &Pool) -> Self {
        // Where nothing was told or decided since, the pool is as it was then.
        Self { told: told.jobs, seen: told.at.map(|at| Seen::of(pool, at)) }
    }

    /// One step of the pool, and what its waiting jobs are told then.
    pub fn step(&mut self, pool: &mut Pool, inputs: &[Input], now: Millis) -> Stepped {
        let decisions = pool.step(inputs.to_vec(), now);
        let noted = self.is_due(inputs, &decisions, now);
        let moved = self.note(pool, inputs, &decisions, now);
        Stepped { decisions, moved, noted }
    }

    /// Whether there is anything to tell. Where nothing happened there is not: times stay, and
    /// records need not say how often the pool was looked at.
    fn is_due(&self, inputs: &[Input], decisions: &[Decision], now: Millis) -> bool {
        let outlasted = |seen: &Seen| seen.limits_kept.is_some_and(|(end, _)| end < now);
        !inputs.is_empty() || !decisions.is_empty() || self.seen.as_ref().is_none_or(outlasted)
    }

    /// When a holder has outlasted its limit, if nothing happens before: those who wait are to be
    /// told then, by a step without inputs and a note of it.
    pub fn next_wakeup(&self, now: Millis) -> Option<Millis> {
        let (end, _) = self.seen.as_ref()?.limits_kept?;
        (end >= now && !self.told.is_empty()).then(|| end + Millis(1))
    }

    /// Tells every waiting job after a step of the pool with these inputs and decisions. Returns
    /// who was told a later time than before, with what moved it.
    pub fn note(
        &mut self,
        pool: &Pool,
        inputs: &[Input],
        decisions: &[Decision],
        now: Millis,
    ) -> Vec<BoundMoved> {
        if !self.is_due(inputs, decisions, now) {
            return Vec::new();
        }
        let seen = Seen::of(pool, now);
        let everywhere = self.seen.as_ref().and_then(|before| before.moved(&seen));
        let restarted = self.seen.is_none().then_some(Cause::Restarted);
        let changed: BTreeSet<JobId> = inputs.iter().filter_map(told_again).collect();
        let back = came_back(decisions);
        let mut moved = Vec::new();
        for shape in [Shape::Small, Shape::Large] {
            let came = self.came(pool, shape, decisions, &back, now);
            let mut ahead = Before::default();
            let mut behind = None;
            for waiting in pool.queue(shape) {
                let job = waiting.job.id;
                let fresh = Promise::new(waiting, pool.figure(seen.terms, waiting, ahead, now));
                ahead.add(&waiting.job);
                let Some(before) = self.told.insert(job, fresh) else { continue };
                let again = changed.contains(&job) && self.seen.is_some();
                let own = again.then_some(Cause::Changed);
                let anew = own.or(everywhere).or(culprit(pool, fresh.bound));
                let anew = anew.or(restarted).or(behind);
                let ahead = &came[..came.partition_point(|came| came.key <= fresh.key)];
                let (told, cause) = before.renewed(fresh, anew, ahead);
                let (from, to) = (before.bound.latest_start, told.bound.latest_start);
                if let (Some(from), Some(cause)) = (from, cause) {
                    moved.push(BoundMoved { job, from, to, cause });
                }
                self.told.insert(job, told);
                let held = self.seen.as_ref().is_some_and(|seen| !seen.servable.contains(&job));
                if seen.servable.contains(&job) && (again || held) {
                    behind = behind.or(Some(Cause::ServableAgain(job)));
                }
            }
        }
        moved.extend(self.placed_late(pool, &back, now));
        // Whoever has GPUs keeps what it was told until they are bound: it may come back.
        self.told.retain(|&job, _| pool.waiting(job).is_some() || may_come_back(pool, job));
        self.seen = Some(seen);
        moved
    }

    /// Whoever came back and was placed elsewhere at once, later than it was told.
    fn placed_late(
        &mut self,
        pool: &Pool,
        back: &BTreeMap<JobId, UnreserveReason>,
        now: Millis,
    ) -> Vec<BoundMoved> {
        let mut moved = Vec::new();
        for (&job, &reason) in back.iter().filter(|(job, _)| pool.node_of(**job).is_some()) {
            let Some(told) = self.told.get_mut(&job) else { continue };
            if let Some(from) = told.bound.latest_start.filter(|&from| from < now) {
                let (to, cause) = (Some(now), Cause::CameBack(job, reason));
                told.bound.latest_start = to;
                moved.push(BoundMoved { job, from, to, cause });
            }
        }
        moved
    }

    /// Jobs of a shape that are served before others which were told a time sooner: they arrived,
    /// or came back, or arrived and were served at once.
    fn came(
        &self,
        pool: &Pool,
        shape: Shape,
        decisions: &[Decision],
        back: &BTreeMap<JobId, UnreserveReason>,
        now: Millis,
    ) -> Vec<Came> {
        let at_once = decisions.iter().filter_map(|decision| match decision {
            // Whoever fills a gap behind a gate takes nothing from those in front.
            Decision::Reserved { job, kind, .. } if *kind != Kind::Backfill => pool.job(*job),
            _ => None,
        });
        let at_once = at_once.filter(|job| {
            // Others only had their GPUs exchanged.
            let placed = pool.holding(job.id).is_some_and(|holding| holding.since == now);
            let placed = placed && may_come_back(pool, job.id);
            let new = !self.told.contains_key(&job.id) || back.contains_key(&job.id);
            job.shape.is_small() == shape.is_small() && placed && new
        });
        let waiting = pool.queue(shape).map(|waiting| &waiting.job);
        let new = waiting.filter(|job| match self.told.get(&job.id) {
            Some(told) => told.key != job.queue_key() || back.contains_key(&job.id),
            None => true,
        });
        let mut came: Vec<Came> = at_once
            .chain(new)
            .map(|job| {
                let cause = match back.get(&job.id) {
                    Some(&reason) => Cause::CameBack(job.id, reason),
                    None => Cause::ServedFirst(job.id),
                };
                let wide = matches!(job.shape, Shape::Wide(_));
                // It takes no node that is emptied already, but has another one emptied.
                let choosy = job.shape == Shape::Large && job.fits != Fits::Any;
                Came { key: job.queue_key(), cause, anew: wide || choosy }
            })
            .collect();
        came.sort_unstable_by_key(|came| came.key);
        came
    }
}

impl Promise {
    fn new(waiting: &Waiting, figure: Figure) -> Self {
        let key = waiting.job.queue_key();
        Self { bound: figure.bound, key, by_place: figure.by_place, more: 0 }
    }

    /// What the job is told now, and, if that is later than before or no time, why: something for
    /// which all is counted anew, or these, who are served before it since. Without either, what
    /// was told stands.
    fn renewed(self, fresh: Self, anew: Option<Cause>, ahead: &[Came]) -> (Self, Option<Cause>) {
        // That no time can be given has one of these causes, or is by the settings.
        let none = fresh.bound.latest_start.is_none().then_some(Cause::Settings);
        let Some(cause) = anew.or(ahead.last().map(|came| came.cause)).or(none) else {
            return (self.unless_sooner(self.bound.latest_start, fresh), None);
        };
        let told = if anew.is_some() { fresh } else { self.after(ahead, fresh) };
        let later = |from: Millis| told.bound.latest_start.is_none_or(|to| to > from);
        (told, self.bound.latest_start.is_some_and(later).then_some(cause))
    }

    /// What is left of it where these are served first.
    fn after(self, ahead: &[Came], fresh: Self) -> Self {
        // Where itself came back all is to be counted again; so it is where the gate that was closed
        // for it is closed for another.
        let again = ahead.iter().any(|came| came.anew || came.key == self.key);
        let Some(by_place) = self.by_place.filter(|_| !again) else { return fresh };
        let more = self.more.saturating_add(ahead.len() as u64);
        Self { more, ..self }.unless_sooner(Some(by_place.latest_start(more)), fresh)
    }

    /// It, with the time that is kept, unless there is none or what stands now is no later.
    fn unless_sooner(self, kept: Option<Millis>, fresh: Self) -> Self {
        let (Some(kept), Some(now)) = (kept, fresh.bound.latest_start) else { return fresh };
        if now <= kept {
            return fresh;
        }
        let basis = if self.by_place.is_some() { fresh.bound.basis } else { self.bound.basis };
        Self { bound: Bound { latest_start: Some(kept), basis }, ..self }
    }
}

/// Who or what it is that no time can be given for.
fn culprit(pool: &Pool, bound: Bound) -> Option<Cause> {
    match bound.basis {
        Basis::Unlimited(job) | Basis::Outlasted(job) => {
            let limited = pool.holding(job).is_some_and(|holding| holding.latest_end.is_some());
            Some(if limited { Cause::Overran(job) } else { Cause::Unlimited(job) })
        }
        Basis::Quota(tenant) => Some(Cause::Quota(tenant)),
        _ => None,
    }
}

/// Whose GPUs were taken back, and why.
fn came_back(decisions: &[Decision]) -> BTreeMap<JobId, UnreserveReason> {
    let back = decisions.iter().filter_map(|decision| match decision {
        Decision::Unreserved { job, reason, .. } => Some((*job, *reason)),
        _ => None,
    });
    back.collect()
}

impl Pool {
    /// Whether a node may be emptied for a large now.
    pub(super) fn is_servable(&self, waiting: &Waiting, now: Millis) -> bool {
        let job = &waiting.job;
        let fits = |(&id, node): (&NodeId, &Node)| {
            let whole = node.spec.gpus.is_within(node.ever_free());
            job.fits.on(id) && node.takes_larges(self.config.gpus_per_node) && whole
        };
        waiting.retry_at <= now && self.within_quota(job) && self.nodes.iter().any(fits)
    }
}

/// Whether a job has GPUs that it is not bound to.
fn may_come_back(pool: &Pool, job: JobId) -> bool {
    pool.holding(job).is_some_and(|holding| holding.stage == Stage::Reserved)
}

fn told_again(input: &Input) -> Option<JobId> {
    match input {
        Input::Queued(job) => Some(job.id),
        _ => None,
    }
}

impl Seen {
    fn of(pool: &Pool, now: Millis) -> Self {
        let nodes = pool.nodes().iter().map(|(&id, node)| (id, node.spec)).collect();
        let holdings = || pool.nodes().values().flat_map(|node| &node.holdings);
        let ends = holdings().filter_map(|(&job, holding)| Some((holding.latest_end?, job)));
        let limits_kept = ends.filter(|&(end, _)| end >= now).min();
        let foreign = holdings().filter(|(_, holding)| holding.kind == Kind::Foreign);
        let foreign = foreign.map(|(&job, holding)| (job, (holding.gpus, holding.latest_end)));
        let (config, terms) = (pool.config().clone(), pool.terms(now));
        let choosy = pool.queue(Shape::Large).filter(|waiting| waiting.job.fits != Fits::Any);
        let servable = choosy.filter(|waiting| pool.is_servable(waiting, now));
        let servable = servable.map(|waiting| waiting.job.id).collect();
        Self { at: now, config, nodes, foreign: foreign.collect(), limits_kept, terms, servable }
    }

    /// What happened since that moves everybody's time.
    fn moved(&self, now: &Self) -> Option<Cause> {
        // Quotas count where they hold a job back; how overdue drains are treated adds nothing.
        let bare = |config: &Config| Config {
            quotas: BTreeMap::new(),
            drain_limit: None,
            evict_overdue: false,
            ..config.clone()
        };
        if bare(&self.config) != bare(&now.config) {
            return Some(Cause::Settings);
        }
        for (&id, before) in &self.nodes {
            match now.nodes.get(&id) {
                None => return Some(Cause::NodeGone(id)),
                Some(spec) => {
                    let whole = before.gpus == spec.gpus && before.healthy.is_within(spec.healthy);
                    if !whole || (before.schedulable && !spec.schedulable) {
                        return Some(Cause::NodeUnfit(id));
                    }
                }
            }
        }
        let more = |(job, (gpus, end)): (&JobId, &(GpuSet, Option<Millis>))| {
            let known = self.foreign.get(job).is_some_and(|(held, until)| {
                let longer = until.is_some_and(|until| end.is_none_or(|end| end > until));
                gpus.is_within(*held) && !longer
            });
            (!known).then_some(Cause::Foreign(*job))
        };
        // Also one that is gone meanwhile: it was longer there than anybody was told.
        if let Some((_, job)) = self.limits_kept.filter(|&(end, _)| end < now.at) {
            return Some(Cause::Overran(job));
        }
        if let Some(foreign) = now.foreign.iter().find_map(more) {
            return Some(foreign);
        }
        for ((before, _), (now, job)) in
            [(self.terms.small, now.terms.small), (self.terms.large, now.terms.large)]
        {
            if now > before {
                return Some(job.map_or(Cause::Settings, Cause::Longer));
            }
        }
        if now.config.one_wave {
            let back = |(id, spec): (&NodeId, &NodeSpec)| {
                (self.nodes.get(id) != Some(spec)).then_some(Cause::NodeBack(*id))
            };
            return now.nodes.iter().find_map(back);
        }
        None
    }
}
