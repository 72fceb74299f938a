//! Pure: the jobs that wait, in order, and which of them may be admitted now.
//!
//! Jobs of one tenant and with the same nodes are held back alike. A decision therefore looks at
//! the first of each such class and leaves a class once its first is held back: it costs what it
//! admits and how many classes there are, not how many jobs wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Fits, Job, JobId, Millis, Pool, QueueKey, Shape, TenantId, Waiting};

/// The waiting jobs of one shape.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    /// All of them in order, so that a place is found by bisection.
    order: VecDeque<QueueKey>,
    /// Those that do not stand back, by class.
    ready: BTreeMap<TenantId, BTreeMap<Fits, BTreeSet<QueueKey>>>,
    /// All of them by limit, those without one last.
    by_limit: BTreeSet<(bool, Millis, JobId)>,
}

fn limit_key(job: &Job) -> (bool, Millis, JobId) {
    (job.limit.is_none(), job.limit.unwrap_or_default(), job.id)
}

impl Queue {
    fn insert(&mut self, job: &Job) {
        if let Err(place) = self.order.binary_search(&job.queue_key()) {
            self.order.insert(place, job.queue_key());
        }
        self.by_limit.insert(limit_key(job));
    }

    fn remove(&mut self, job: &Job) {
        if let Ok(place) = self.order.binary_search(&job.queue_key()) {
            self.order.remove(place);
        }
        self.by_limit.remove(&limit_key(job));
        let Some(classes) = self.ready.get_mut(&job.tenant) else { return };
        let Some(class) = classes.get_mut(&job.fits) else { return };
        class.remove(&job.queue_key());
        if class.is_empty() {
            classes.remove(&job.fits);
        }
        if classes.is_empty() {
            self.ready.remove(&job.tenant);
        }
    }

    fn make_ready(&mut self, job: &Job) {
        let classes = self.ready.entry(job.tenant).or_default();
        if let Some(class) = classes.get_mut(&job.fits) {
            class.insert(job.queue_key());
        } else {
            classes.insert(job.fits.clone(), BTreeSet::from([job.queue_key()]));
        }
    }

    /// How many stand before this one.
    fn before(&self, job: &Job) -> usize {
        match self.order.binary_search(&job.queue_key()) {
            Ok(place) | Err(place) => place,
        }
    }

    fn heads(&self) -> impl Iterator<Item = QueueKey> {
        self.ready.values().flat_map(BTreeMap::values).filter_map(|class| class.first().copied())
    }

    /// Ready jobs of a tenant that stand before `key`.
    fn ready_before(&self, tenant: TenantId, key: QueueKey) -> impl Iterator<Item = QueueKey> {
        let classes = self.ready.get(&tenant).into_iter().flat_map(BTreeMap::values);
        classes.flat_map(move |class| class.range(..key).copied())
    }

    fn count_of(&self, tenant: TenantId) -> usize {
        let classes = self.ready.get(&tenant).into_iter().flat_map(BTreeMap::values);
        classes.map(BTreeSet::len).sum()
    }

    /// The next of the same class.
    fn after(&self, job: &Job) -> Option<QueueKey> {
        let class = self.ready.get(&job.tenant)?.get(&job.fits)?;
        class
            .range((std::ops::Bound::Excluded(job.queue_key()), std::ops::Bound::Unbounded))
            .next()
            .copied()
    }

    /// Those whose limit is greater than `most` or that have none, the greatest first.
    pub(super) fn longer_than(&self, most: Millis) -> impl Iterator<Item = JobId> {
        let longer =
            move |&&(unlimited, limit, _): &&(bool, Millis, JobId)| unlimited || limit > most;
        self.by_limit.iter().rev().take_while(longer).map(|&(_, _, job)| job)
    }
}

impl Pool {
    /// The jobs of a shape that wait, in the order in which they are served.
    pub fn queue(&self, shape: Shape) -> impl Iterator<Item = &Waiting> {
        self.queue_of(shape).order.iter().filter_map(|&(_, _, id)| self.waiting.get(&id))
    }

    /// Jobs of the same shape that are served before it.
    pub fn ahead(&self, job: JobId) -> Option<u32> {
        let job = &self.waiting.get(&job)?.job;
        Some(u32::try_from(self.queue_of(job.shape).before(job)).unwrap_or(u32::MAX))
    }

    pub(super) fn queue_of(&self, shape: Shape) -> &Queue {
        match shape {
            Shape::Small => &self.smalls,
            Shape::Large => &self.larges,
        }
    }

    fn queue_of_mut(&mut self, shape: Shape) -> &mut Queue {
        match shape {
            Shape::Small => &mut self.smalls,
            Shape::Large => &mut self.larges,
        }
    }

    pub(super) fn wait(&mut self, waiting: Waiting, now: Millis) {
        let queue = self.queue_of_mut(waiting.job.shape);
        queue.insert(&waiting.job);
        if waiting.retry_at <= now {
            queue.make_ready(&waiting.job);
        } else {
            self.standing_back.insert((waiting.retry_at, waiting.job.id));
        }
        self.waiting.insert(waiting.job.id, waiting);
    }

    pub(super) fn stop_waiting(&mut self, job: JobId) -> Option<Waiting> {
        let waiting = self.waiting.remove(&job)?;
        self.standing_back.remove(&(waiting.retry_at, job));
        self.queue_of_mut(waiting.job.shape).remove(&waiting.job);
        Some(waiting)
    }

    pub(super) fn end_back_offs(&mut self, now: Millis) {
        while let Some(&(retry_at, id)) = self.standing_back.first()
            && retry_at <= now
        {
            self.standing_back.pop_first();
            if let Some(waiting) = self.stop_waiting(id) {
                self.wait(waiting, now);
            }
        }
    }

    /// The first job of each class that some node could take and that `wanted` holds for.
    pub(super) fn heads(&self, shape: Shape, wanted: impl Fn(&Job) -> bool) -> BTreeSet<QueueKey> {
        let heads = self.queue_of(shape).heads();
        heads.filter(|&key| self.at(key).is_some_and(|j| self.could_fit(j) && wanted(j))).collect()
    }

    /// The first job of a shape that some node could take and that `wanted` holds for, where that
    /// holds for none of a class if not for its first.
    pub(super) fn first(&self, shape: Shape, wanted: impl Fn(&Job) -> bool) -> Option<&Job> {
        self.heads(shape, wanted).first().and_then(|&key| self.at(key))
    }

    /// Jobs of a shape that do not stand back and that some node could take, in order.
    pub(super) fn runnable(&self, shape: Shape) -> impl Iterator<Item = &Job> {
        let mut heads = self.heads(shape, |_| true);
        std::iter::from_fn(move || {
            let job = self.at(heads.pop_first()?)?;
            heads.extend(self.after(job));
            Some(job)
        })
    }

    pub(super) fn at(&self, key: QueueKey) -> Option<&Job> {
        self.waiting.get(&key.2).map(|waiting| &waiting.job)
    }

    /// The next job of the same class.
    pub(super) fn after(&self, job: &Job) -> Option<QueueKey> {
        self.queue_of(job.shape).after(job)
    }

    /// Whether a node of the pool takes new work, fits the job and is whole enough for its shape.
    pub(super) fn could_fit(&self, job: &Job) -> bool {
        self.nodes.iter().any(|(&id, node)| {
            job.fits.on(id)
                && match job.shape {
                    Shape::Small => node.spec.schedulable,
                    Shape::Large => node.takes_larges(self.config.gpus_per_node),
                }
        })
    }

    fn asked(&self, shape: Shape) -> u32 {
        match shape {
            Shape::Small => 1,
            Shape::Large => self.config.gpus_per_node,
        }
    }

    /// Whether a job's tenant may have its GPUs too.
    ///
    /// Where not everything that a tenant waits for fits in its quota, its own jobs go in order
    /// whatever their shape: else its smalls would use up the quota for ever before a large of it,
    /// as they would use up a node without a gate, or its larges before a small.
    pub(super) fn within_quota(&self, job: &Job) -> bool {
        let Some(&most) = self.config.quotas.get(&job.tenant) else { return true };
        let other = match job.shape {
            Shape::Small => Shape::Large,
            Shape::Large => Shape::Small,
        };
        let held = self.tenant_gpus(job.tenant) + self.asked(job.shape);
        let Some(left) = most.checked_sub(held) else { return false };
        // One that the quota can never hold keeps nothing from the others.
        let (asked, possible) = (self.asked(other), self.asked(other) <= most);
        let earlier = self
            .queue_of(other)
            .ready_before(job.tenant, job.queue_key())
            .filter(|&key| possible && self.at(key).is_some_and(|job| self.could_fit(job)));
        // As many as do not fit any more are enough to know.
        let enough = (left / asked) as usize + 1;
        earlier.take(enough).count() < enough
    }

    /// Whether a tenant waits for more than it may have, so that its quota may hold a job back.
    pub(super) fn quota_may_bind(&self, tenant: TenantId) -> bool {
        self.config.quotas.get(&tenant).is_some_and(|&most| {
            let waits = |shape: Shape| {
                let jobs = u32::try_from(self.queue_of(shape).count_of(tenant));
                jobs.unwrap_or(u32::MAX).saturating_mul(self.asked(shape))
            };
            let wanted = waits(Shape::Small).saturating_add(waits(Shape::Large));
            self.tenant_gpus(tenant).saturating_add(wanted) > most
        })
    }
}
