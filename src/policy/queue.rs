//! Pure: the jobs that wait, in order, and which of them may be admitted now.
//!
//! Jobs of one tenant, of the same width and with the same nodes are held back alike. A decision therefore looks at
//! the first of each such class and leaves a class once its first is held back: it costs what it
//! admits and how many classes there are, not how many jobs wait.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use super::{Fits, Job, JobId, Millis, Node, Pool, QueueKey, Shape, TenantId, Waiting};

/// The waiting jobs of one queue: the smalls, wide ones among them, or the larges.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    /// All of them in order, so that a place is found by bisection.
    order: VecDeque<QueueKey>,
    /// Those that do not stand back, by class.
    ready: BTreeMap<Class, BTreeMap<Fits, BTreeSet<QueueKey>>>,
    /// The wide ones among them, and how many GPUs each asks for.
    wide: BTreeMap<QueueKey, u32>,
    /// All of them by limit, those without one last.
    by_limit: BTreeSet<(bool, Millis, JobId)>,
}

/// Whose they are and what they ask for.
type Class = (TenantId, Shape);

/// What a tenant's jobs may ask for in one queue, from the first to the last in order.
const SHAPES: (Shape, Shape) = (Shape::Small, Shape::Large);

fn class(job: &Job) -> Class {
    (job.tenant, job.shape)
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
        if let Shape::Wide(gpus) = job.shape {
            self.wide.insert(job.queue_key(), gpus);
        }
    }

    fn remove(&mut self, job: &Job) {
        if let Ok(place) = self.order.binary_search(&job.queue_key()) {
            self.order.remove(place);
        }
        self.by_limit.remove(&limit_key(job));
        self.wide.remove(&job.queue_key());
        let Some(classes) = self.ready.get_mut(&class(job)) else { return };
        let Some(keys) = classes.get_mut(&job.fits) else { return };
        keys.remove(&job.queue_key());
        if keys.is_empty() {
            classes.remove(&job.fits);
        }
        if classes.is_empty() {
            self.ready.remove(&class(job));
        }
    }

    fn make_ready(&mut self, job: &Job) {
        let classes = self.ready.entry(class(job)).or_default();
        if let Some(keys) = classes.get_mut(&job.fits) {
            keys.insert(job.queue_key());
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
    fn ready_before(
        &self,
        tenant: TenantId,
        key: QueueKey,
    ) -> impl Iterator<Item = (Shape, QueueKey)> {
        self.classes_of(tenant)
            .flat_map(move |(shape, keys)| keys.range(..key).map(move |&key| (shape, key)))
    }

    /// What a tenant's ready jobs ask for together, on nodes of so many GPUs.
    fn asked_by(&self, tenant: TenantId, gpus_per_node: u32) -> u32 {
        let asked = |(shape, keys): (Shape, &BTreeSet<QueueKey>)| {
            let jobs = u32::try_from(keys.len()).unwrap_or(u32::MAX);
            jobs.saturating_mul(shape.gpus(gpus_per_node))
        };
        self.classes_of(tenant).map(asked).fold(0, u32::saturating_add)
    }

    fn classes_of(&self, tenant: TenantId) -> impl Iterator<Item = (Shape, &BTreeSet<QueueKey>)> {
        let classes = self.ready.range((tenant, SHAPES.0)..=(tenant, SHAPES.1));
        classes.flat_map(|(&(_, shape), by_fits)| by_fits.values().map(move |keys| (shape, keys)))
    }

    /// The wide ones that stand before this job, with the GPUs that each asks for.
    pub(super) fn wide_before(&self, job: &Job) -> impl Iterator<Item = u32> {
        self.wide.range(..job.queue_key()).map(|(_, &gpus)| gpus)
    }

    /// The next of the same class.
    fn after(&self, job: &Job) -> Option<QueueKey> {
        let keys = self.ready.get(&class(job))?.get(&job.fits)?;
        keys.range((std::ops::Bound::Excluded(job.queue_key()), std::ops::Bound::Unbounded))
            .next()
            .copied()
    }

    /// The least limit of all.
    pub(super) fn shortest(&self) -> Option<Millis> {
        self.by_limit.first().filter(|&&(unlimited, _, _)| !unlimited).map(|&(_, limit, _)| limit)
    }

    /// Those whose limit is greater than `most` or that have none, the greatest first.
    pub(super) fn longer_than(&self, most: Millis) -> impl Iterator<Item = JobId> {
        let longer =
            move |&&(unlimited, limit, _): &&(bool, Millis, JobId)| unlimited || limit > most;
        self.by_limit.iter().rev().take_while(longer).map(|&(_, _, job)| job)
    }
}

impl Pool {
    /// The jobs that wait in the queue of a shape, in the order in which they are served: with
    /// [`Shape::Small`] the wide ones too.
    pub fn queue(&self, shape: Shape) -> impl Iterator<Item = &Waiting> {
        self.queue_of(shape).order.iter().filter_map(|&(_, _, id)| self.waiting.get(&id))
    }

    /// Jobs of the same queue that are served before it.
    pub fn ahead(&self, job: JobId) -> Option<u32> {
        let job = &self.waiting.get(&job)?.job;
        Some(u32::try_from(self.queue_of(job.shape).before(job)).unwrap_or(u32::MAX))
    }

    pub(super) fn queue_of(&self, shape: Shape) -> &Queue {
        match shape {
            Shape::Small | Shape::Wide(_) => &self.smalls,
            Shape::Large => &self.larges,
        }
    }

    fn queue_of_mut(&mut self, shape: Shape) -> &mut Queue {
        match shape {
            Shape::Small | Shape::Wide(_) => &mut self.smalls,
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

    /// The first job of a queue that some node could take and that `wanted` holds for, where that
    /// holds for none of a class if not for its first.
    pub(super) fn first(&self, shape: Shape, wanted: impl Fn(&Job) -> bool) -> Option<&Job> {
        self.heads(shape, wanted).first().and_then(|&key| self.at(key))
    }

    /// Jobs of a queue that do not stand back and that some node could take, in order.
    pub(super) fn runnable(&self, shape: Shape) -> impl Iterator<Item = &Job> {
        // Each class is walked once, from its first on; the heap tells whose next is due.
        let mut classes = Vec::new();
        let mut due = BinaryHeap::new();
        for keys in self.queue_of(shape).ready.values().flat_map(BTreeMap::values) {
            let mut keys = keys.iter();
            let Some(&first) = keys.next() else { continue };
            if self.at(first).is_some_and(|job| self.could_fit(job)) {
                due.push(Reverse((first, classes.len())));
                classes.push(keys);
            }
        }
        std::iter::from_fn(move || {
            let mut top = due.peek_mut()?;
            let Reverse((key, class)) = *top;
            if let Some(&next) = classes[class].next() {
                *top = Reverse((next, class));
            } else {
                PeekMut::pop(top);
            }
            self.at(key)
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
        self.nodes.iter().any(|(&id, node)| job.fits.on(id) && self.takes(node, job.shape))
    }

    fn takes(&self, node: &Node, shape: Shape) -> bool {
        match shape {
            Shape::Small | Shape::Wide(_) => node.takes_smalls(self.asked(shape)),
            Shape::Large => node.takes_larges(self.config.gpus_per_node),
        }
    }

    /// GPUs that a job of a shape holds.
    pub(super) fn asked(&self, shape: Shape) -> u32 {
        shape.gpus(self.config.gpus_per_node)
    }

    /// Whether a job's tenant may have its GPUs too.
    ///
    /// Where not everything that a tenant waits for fits in its quota, its own jobs go in order
    /// whatever they ask for and wherever they fit: else its smalls would use up the quota for ever
    /// before a large of it, as they would use up a node without a gate, or its larges before a
    /// small, or either before a wide one; and whoever passes one of its own shape, behind a gate or
    /// on a node that the other does not fit, would take what a gate was closed for.
    pub(super) fn within_quota(&self, job: &Job) -> bool {
        let Some(&most) = self.config.quotas.get(&job.tenant) else { return true };
        let asked = self.asked(job.shape);
        let held = self.tenant_gpus(job.tenant).saturating_add(asked);
        let Some(left) = most.checked_sub(held) else { return false };
        // As many as do not fit any more are enough to know.
        self.before_in_quota(job, most)
            .map(|earlier| self.asked(earlier.shape))
            .try_fold(left, u32::checked_sub)
            .is_some()
    }

    /// Jobs of the same tenant that go before it. One that the quota can never hold keeps nothing
    /// from the others.
    pub(super) fn before_in_quota(&self, job: &Job, most: u32) -> impl Iterator<Item = &Job> {
        [Shape::Small, Shape::Large]
            .into_iter()
            .flat_map(|queue| self.queue_of(queue).ready_before(job.tenant, job.queue_key()))
            .filter(move |&(shape, _)| self.asked(shape) <= most)
            .filter_map(|(_, key)| self.at(key))
            .filter(|earlier| self.could_fit(earlier))
    }

    /// How many wait in the queue of this shape.
    pub(super) fn waiting_beside(&self, shape: Shape) -> u32 {
        u32::try_from(self.queue_of(shape).order.len()).unwrap_or(u32::MAX)
    }

    /// Whether a tenant waits for more than it may have, so that its quota may hold a job back.
    pub(super) fn quota_may_bind(&self, tenant: TenantId) -> bool {
        self.config.quotas.get(&tenant).is_some_and(|&most| {
            let waits = |shape| self.queue_of(shape).asked_by(tenant, self.config.gpus_per_node);
            let wanted = waits(Shape::Small).saturating_add(waits(Shape::Large));
            self.tenant_gpus(tenant).saturating_add(wanted) > most
        })
    }
}
