//! The rule as a specification: slow, without indexes or incremental state, and written from the
//! texts that describe it. Every question is answered by looking through the whole list of jobs.

mod decide;

use sluice::policy::{Config, GpuSet, Kind, Outcome, Shape, Stage};

/// Where a job is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Place {
    Waits { attempts: u32, retry_at: u64 },
    Holds(Grip),
    Gone,
}

/// GPUs in a job's hands.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Grip {
    pub(crate) node: u32,
    pub(crate) gpus: GpuSet,
    pub(crate) kind: Kind,
    pub(crate) stage: Stage,
    since: u64,
    expires: Option<u64>,
    pub(crate) end: Option<u64>,
    evicting: bool,
    attempts: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct ModelJob {
    pub(crate) id: u64,
    /// `None`: it went round the rule.
    pub(crate) shape: Option<Shape>,
    pub(crate) priority: i32,
    pub(crate) created: u64,
    pub(crate) limit: Option<u64>,
    pub(crate) tenant: u32,
    /// `None`: any node.
    pub(crate) on: Option<Vec<u32>>,
    pub(crate) place: Place,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum ModelPhase {
    Open,
    Draining { job: u64, since: u64, overdue: bool },
    Exclusive(u64),
    Wave { admitted: u32, job: u64, since: u64, overdue: bool },
}

#[derive(Clone, Debug)]
pub(crate) struct ModelNode {
    pub(crate) id: u32,
    pub(crate) gpus: GpuSet,
    pub(crate) healthy: GpuSet,
    pub(crate) schedulable: bool,
    pub(crate) phase: ModelPhase,
    /// Since when the larges' turn counts, failures at once in it, whether the last was one.
    turn: Option<(u64, u32, bool)>,
    /// When a gate last opened here without its large while smalls admitted behind it ran.
    given_up: Option<u64>,
}

/// What a step did, as far as a test can see it from outside.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Deed {
    Admitted { job: u64, node: u32, gpus: GpuSet, kind: Kind },
    TakenBack { job: u64, retry_at: u64 },
    Evicted { job: u64 },
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) config: Config,
    pub(crate) jobs: Vec<ModelJob>,
    pub(crate) nodes: Vec<ModelNode>,
    now: u64,
    deeds: Vec<Deed>,
}

impl Model {
    pub(crate) fn new(config: Config) -> Self {
        Self { config, jobs: Vec::new(), nodes: Vec::new(), now: 0, deeds: Vec::new() }
    }

    // What is asked of the lists.

    pub(crate) fn job(&self, id: u64) -> Option<&ModelJob> {
        self.jobs.iter().find(|job| job.id == id)
    }

    fn job_mut(&mut self, id: u64) -> &mut ModelJob {
        self.jobs.iter_mut().find(|job| job.id == id).unwrap()
    }

    pub(crate) fn node(&self, id: u32) -> Option<&ModelNode> {
        self.nodes.iter().find(|node| node.id == id)
    }

    fn node_mut(&mut self, id: u32) -> &mut ModelNode {
        self.nodes.iter_mut().find(|node| node.id == id).unwrap()
    }

    pub(crate) fn grips(&self, node: u32) -> Vec<(u64, Grip)> {
        let grip = |job: &ModelJob| match job.place {
            Place::Holds(grip) if grip.node == node => Some((job.id, grip)),
            _ => None,
        };
        let mut grips: Vec<_> = self.jobs.iter().filter_map(grip).collect();
        grips.sort_by_key(|&(id, _)| id);
        grips
    }

    pub(crate) fn free(&self, id: u32) -> GpuSet {
        let node = self.node(id).unwrap();
        let healthy = node.gpus.intersection(node.healthy);
        self.grips(id).iter().fold(healthy, |free, (_, grip)| free.minus(grip.gpus))
    }

    fn empty(&self, node: u32) -> bool {
        self.grips(node).is_empty()
    }

    /// When the last holder ends, at the earliest now; `None` if one has no end.
    fn end(&self, node: u32) -> Option<u64> {
        let ends: Option<Vec<u64>> = self.grips(node).iter().map(|(_, grip)| grip.end).collect();
        ends.map(|ends| ends.into_iter().fold(self.now, u64::max))
    }

    fn end_or_never(&self, node: u32) -> u64 {
        self.end(node).unwrap_or(u64::MAX)
    }

    fn takes_larges(&self, node: &ModelNode) -> bool {
        let size = node.gpus.count() == self.config.gpus_per_node;
        size && node.schedulable && node.gpus.is_within(node.healthy)
    }

    fn fits(job: &ModelJob, node: u32) -> bool {
        job.on.as_ref().is_none_or(|on| on.contains(&node))
    }

    fn could_fit(&self, job: &ModelJob) -> bool {
        self.nodes.iter().any(|node| {
            let takes = match job.shape {
                Some(Shape::Large) => self.takes_larges(node),
                Some(Shape::Wide(wants)) => {
                    node.schedulable && node.gpus.intersection(node.healthy).count() >= wants
                }
                _ => node.schedulable,
            };
            Self::fits(job, node.id) && takes
        })
    }

    fn asked(&self, shape: Shape) -> u32 {
        match shape {
            Shape::Small => 1,
            Shape::Wide(wants) => wants,
            Shape::Large => self.config.gpus_per_node,
        }
    }

    fn order(job: &ModelJob) -> (i64, u64, u64) {
        (-i64::from(job.priority), job.created, job.id)
    }

    /// Those of the larges' or, with any other shape, of the smalls' queue that may be admitted now,
    /// in order: neither standing back nor without a node.
    fn runnable(&self, shape: Shape) -> Vec<ModelJob> {
        let waits = |job: &&ModelJob| matches!(job.place, Place::Waits { retry_at, .. } if retry_at <= self.now);
        let large = shape == Shape::Large;
        let queue = |job: &&ModelJob| job.shape.is_some_and(|own| large == (own == Shape::Large));
        let of_shape = self.jobs.iter().filter(queue).filter(waits);
        let mut jobs: Vec<_> = of_shape.filter(|job| self.could_fit(job)).cloned().collect();
        jobs.sort_by_key(Self::order);
        jobs
    }

    fn within_quota(&self, job: &ModelJob) -> bool {
        let tenant = sluice::policy::TenantId(job.tenant);
        let Some(&most) = self.config.quotas.get(&tenant) else { return true };
        let held: u32 = self
            .jobs
            .iter()
            .filter(|other| other.shape.is_some() && other.tenant == job.tenant)
            .map(|other| match other.place {
                Place::Holds(grip) => grip.gpus.count(),
                _ => 0,
            })
            .sum();
        let waits = self.runnable(Shape::Small).into_iter().chain(self.runnable(Shape::Large));
        let earlier = waits.filter(|candidate| {
            candidate.tenant == job.tenant && Self::order(candidate) < Self::order(job)
        });
        let asks = earlier.filter_map(|job| job.shape).map(|shape| self.asked(shape));
        let kept: u32 = asks.filter(|&asks| asks <= most).sum();
        held + self.asked(job.shape.unwrap()) + kept <= most
    }

    fn is_open(&self, node: u32) -> bool {
        self.node(node).unwrap().phase == ModelPhase::Open
    }

    fn open_ids(&self) -> Vec<u32> {
        let open = |node: &&ModelNode| node.phase == ModelPhase::Open && node.schedulable;
        self.nodes.iter().filter(open).map(|node| node.id).collect()
    }

    fn open_beside(&self, node: u32) -> usize {
        self.open_ids().iter().filter(|&&other| other != node).count()
    }

    fn may_close(&self, node: u32) -> bool {
        self.open_beside(node) >= self.config.keep_open as usize
    }

    /// Whether a large would drain a node, and only the setting that keeps it open is against it.
    fn awaits_an_open_node(&self, large: &ModelJob) -> bool {
        let ids = || self.ids().into_iter().filter(|&id| Self::fits(large, id));
        let takes = |&id: &u32| self.is_open(id) && self.takes_larges(self.node(id).unwrap());
        self.config.keep_open > 0
            && ids().all(|id| self.gate(id).is_none())
            && ids().any(|id| takes(&id))
            && ids().filter(takes).all(|id| !self.may_close(id))
    }

    fn gate(&self, node: u32) -> Option<u64> {
        match self.node(node).unwrap().phase {
            ModelPhase::Draining { job, .. } | ModelPhase::Wave { job, .. } => Some(job),
            _ => None,
        }
    }

    // Facts.

    pub(crate) fn at(&mut self, now: u64) {
        self.now = now;
        self.deeds.clear();
    }

    pub(crate) fn release(&mut self, id: u64, outcome: Outcome) {
        let job = self.job_mut(id);
        let Place::Holds(grip) = job.place else { return };
        job.place = Place::Gone;
        if job.shape == Some(Shape::Large) {
            let lasted = self.now.saturating_sub(grip.since);
            let vain = match grip.stage {
                Stage::Reserved => outcome != Outcome::Completed,
                _ => outcome == Outcome::Failed && lasted < 60_000,
            };
            self.end_in_turn(grip.node, vain, lasted);
        }
    }

    fn end_in_turn(&mut self, node: u32, vain: bool, lasted: u64) {
        if let Some((since, failures, last)) = &mut self.node_mut(node).turn {
            *last = vain && *failures < 3;
            *failures += u32::from(vain);
            *since += if *last { lasted } else { 0 };
        }
    }

    pub(crate) fn withdraw(&mut self, id: u64) {
        let job = self.job_mut(id);
        if matches!(job.place, Place::Waits { .. }) {
            job.place = Place::Gone;
        }
    }

    pub(crate) fn arrive(&mut self, job: ModelJob) {
        self.jobs.push(job);
    }

    pub(crate) fn bind(&mut self, id: u64) {
        if let Place::Holds(grip) = &mut self.job_mut(id).place {
            grip.stage = grip.stage.max(Stage::Bound);
        }
    }

    pub(crate) fn start(&mut self, id: u64, end: Option<u64>) {
        if let Place::Holds(grip) = &mut self.job_mut(id).place {
            grip.stage = grip.stage.max(Stage::Running);
            grip.end = match (grip.end, end) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
    }

    pub(crate) fn vanish(&mut self, id: u64) {
        if let Place::Holds(grip) = &mut self.job_mut(id).place {
            grip.stage = Stage::Releasing;
        }
    }

    pub(crate) fn refuse(&mut self, id: u64) {
        if matches!(self.job(id).unwrap().place, Place::Holds(g) if g.stage == Stage::Reserved) {
            self.take_back(id, true);
        }
    }

    pub(crate) fn holds(&mut self, id: u64, gpus: GpuSet) {
        if let Place::Holds(grip) = &mut self.job_mut(id).place {
            grip.gpus = gpus;
        }
    }

    /// A foreign pod takes these GPUs. Promises to smalls move to other free ones, others end.
    pub(crate) fn foreign(&mut self, id: u64, node: u32, gpus: GpuSet, end: Option<u64>) {
        let grip = Grip {
            node,
            gpus,
            kind: Kind::Foreign,
            stage: Stage::Running,
            since: self.now,
            expires: None,
            end,
            evicting: false,
            attempts: 0,
        };
        self.jobs.push(ModelJob {
            id,
            shape: None,
            priority: 0,
            created: 0,
            limit: None,
            tenant: 0,
            on: None,
            place: Place::Holds(grip),
        });
        let displaced: Vec<u64> = self
            .grips(node)
            .into_iter()
            .filter(|&(other, grip)| other != id && grip.gpus.overlaps(gpus))
            .map(|(other, _)| other)
            .collect();
        for job in displaced {
            self.move_or_take_back(job);
        }
    }

    fn move_or_take_back(&mut self, id: u64) {
        let job = self.job_mut(id);
        let (shape, Place::Holds(mut grip)) = (job.shape, job.place) else { return };
        job.place = Place::Gone;
        let count = grip.gpus.count();
        let free = self.free(grip.node).lowest(count).filter(|_| shape != Some(Shape::Large));
        if let Some(gpus) = free {
            grip.gpus = gpus;
            let (node, kind) = (grip.node, grip.kind);
            self.deeds.push(Deed::Admitted { job: id, node, gpus, kind });
        }
        self.job_mut(id).place = Place::Holds(grip);
        if free.is_none() {
            self.take_back(id, false);
        }
    }

    pub(crate) fn change_node(&mut self, id: u32, gpus: GpuSet, healthy: GpuSet, ok: bool) {
        if let Some(node) = self.nodes.iter_mut().find(|node| node.id == id) {
            (node.gpus, node.healthy, node.schedulable) = (gpus, healthy, ok);
        } else {
            let phase = ModelPhase::Open;
            let (turn, given_up) = (None, None);
            let schedulable = ok;
            self.nodes.push(ModelNode { id, gpus, healthy, schedulable, phase, turn, given_up });
            self.nodes.sort_by_key(|node| node.id);
        }
        for (job, grip) in self.grips(id) {
            if grip.stage == Stage::Reserved && !ok {
                self.take_back(job, false);
            } else if grip.stage == Stage::Reserved && !grip.gpus.is_within(healthy) {
                self.move_or_take_back(job);
            }
        }
    }

    pub(crate) fn lose_node(&mut self, id: u32) {
        for (job, grip) in self.grips(id) {
            if grip.stage == Stage::Reserved {
                self.take_back(job, false);
            } else {
                self.job_mut(job).place = Place::Gone;
            }
        }
        self.nodes.retain(|node| node.id != id);
    }

    /// Back-offs are not in the ledger.
    pub(crate) fn restart(&mut self) {
        for job in &mut self.jobs {
            match &mut job.place {
                Place::Waits { attempts, retry_at } => (*attempts, *retry_at) = (0, 0),
                Place::Holds(grip) => grip.attempts = 0,
                Place::Gone => {}
            }
        }
    }

    fn take_back(&mut self, id: u64, its_own_doing: bool) {
        let now = self.now;
        let job = self.job_mut(id);
        let Place::Holds(grip) = job.place else { return };
        let attempts = grip.attempts + u32::from(its_own_doing);
        let back_off = [5, 10, 20, 40, 80, 160, 300][(attempts as usize).clamp(1, 7) - 1];
        let retry_at = if its_own_doing { now + back_off * 1_000 } else { now };
        job.place = Place::Waits { attempts, retry_at };
        if job.shape == Some(Shape::Large) {
            self.end_in_turn(grip.node, true, now.saturating_sub(grip.since));
        }
        self.deeds.push(Deed::TakenBack { job: id, retry_at });
    }
}
