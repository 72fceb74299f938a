//! What the specification decides, once per instant.

use sluice::policy::{GpuSet, Kind, Shape, Stage};

use super::{Deed, Grip, Model, ModelJob, ModelPhase, Place};

impl Model {
    pub(crate) fn decide(&mut self) -> Vec<Deed> {
        let expired: Vec<u64> = self
            .nodes
            .iter()
            .flat_map(|node| self.grips(node.id))
            .filter(|(_, g)| g.stage == Stage::Reserved && g.expires.is_some_and(|e| e <= self.now))
            .map(|(job, _)| job)
            .collect();
        for job in expired {
            self.take_back(job, true);
        }
        for id in self.ids() {
            self.settle(id);
        }
        if !self.config.paused {
            loop {
                self.place_larges();
                let gated = self.ids().into_iter().filter(|&id| self.gate(id).is_some());
                let before: Vec<u32> = gated.collect();
                self.assign_gates();
                // One that opens may let another close.
                if before.iter().all(|&id| self.gate(id).is_some()) {
                    break;
                }
            }
            loop {
                self.place_smalls();
                let before = self.deeds.len();
                if self.config.backfill {
                    while self.backfill() {}
                }
                // Who was backfilled needs nothing kept any more.
                if self.deeds.len() == before {
                    break;
                }
            }
        }
        self.overdue();
        std::mem::take(&mut self.deeds)
    }

    pub(super) fn ids(&self) -> Vec<u32> {
        self.nodes.iter().map(|node| node.id).collect()
    }

    fn admit(&mut self, id: u64, node: u32, gpus: GpuSet, kind: Kind) {
        let (now, timeout) = (self.now, self.config.reservation_timeout.0);
        let job = self.job_mut(id);
        let Place::Waits { attempts, .. } = job.place else { panic!("{job:?} does not wait") };
        job.place = Place::Holds(Grip {
            node,
            gpus,
            kind,
            stage: Stage::Reserved,
            since: now,
            expires: Some(now + timeout),
            end: job.limit.map(|limit| now + limit),
            evicting: false,
            attempts,
        });
        self.deeds.push(Deed::Admitted { job: id, node, gpus, kind });
    }

    /// A large has ended: a wave is owed if larges and smalls wait that this node could serve, no
    /// other nodes are open for all of these smalls, and the larges' turn is over.
    fn settle(&mut self, id: u32) {
        let ModelPhase::Exclusive(large) = self.node(id).unwrap().phase else { return };
        if self.grips(id).iter().any(|&(job, _)| job == large) {
            return;
        }
        let next = self.next_large(id);
        self.node_mut(id).phase = ModelPhase::Open;
        let fit = self.takes_larges(self.node(id).unwrap()) && !self.config.paused;
        let (true, Some(large)) = (fit, next) else {
            self.node_mut(id).turn = None;
            return;
        };
        let smalls = self.runnable(Shape::Small).into_iter();
        let smalls: Vec<ModelJob> =
            smalls.filter(|job| Self::fits(job, id) && self.within_quota(job)).collect();
        let open = |small: &ModelJob| self.served_elsewhere(small, id);
        // Or one that soon takes a large, where one wave at a time is enough.
        let next = |small: &ModelJob| self.config.one_wave && self.next_elsewhere(small, id);
        if smalls.iter().all(|small| open(small) || next(small)) || self.turn_goes_on(id, &large) {
            return;
        }
        self.node_mut(id).turn = None;
        let mut wave = 0;
        for small in self.runnable(Shape::Small) {
            let free = self.free(id).lowest(self.asked(small.shape.unwrap()));
            if let Some(gpu) = free
                && wave < self.config.wave_size
                && Self::fits(&small, id)
                && self.within_quota(&small)
            {
                self.admit(small.id, id, gpu, Kind::Wave);
                wave += 1;
            }
        }
        if wave > 0 {
            let (job, since) = (large.id, self.now);
            self.node_mut(id).phase =
                ModelPhase::Wave { admitted: wave, job, since, overdue: false };
        }
    }

    /// Whether other nodes are open for a small: as well as by a wave, and on one if it is wide.
    fn served_elsewhere(&self, small: &ModelJob, id: u32) -> bool {
        let elsewhere: Vec<u32> = self
            .open_ids()
            .into_iter()
            .map(|other| {
                let unending =
                    |(_, grip): &(u64, Grip)| grip.kind == Kind::Foreign && grip.end.is_none();
                let node = self.node(other).unwrap();
                let healthy = node.gpus.intersection(node.healthy);
                let grips = self.grips(other);
                let kept = grips.iter().filter(|&grip| unending(grip));
                let ever_free = kept.fold(healthy, |set, (_, grip)| set.minus(grip.gpus));
                if other != id && Self::fits(small, other) { ever_free.count() } else { 0 }
            })
            .collect();
        elsewhere.iter().sum::<u32>() >= self.config.wave_size
            && elsewhere.iter().any(|&gpus| gpus >= self.asked(small.shape.unwrap()))
    }

    /// Whether another node that a small may use is in a wave or drains, and is empty in time.
    fn next_elsewhere(&self, small: &ModelJob, id: u32) -> bool {
        self.nodes.iter().any(|other| {
            let usable = other.id != id && other.schedulable && Self::fits(small, other.id);
            let in_time = |grip: &Grip| grip.end.is_some_and(|end| end >= self.now);
            usable
                && self.gate(other.id).is_some()
                && self.grips(other.id).iter().all(|(_, grip)| in_time(grip))
        })
    }

    fn first(&self, shape: Shape, node: u32) -> Option<ModelJob> {
        let mut jobs = self.runnable(shape).into_iter();
        jobs.find(|job| Self::fits(job, node) && self.within_quota(job))
    }

    /// The large that is next on a node that a large has left: none if an earlier one waits for a
    /// node to open.
    fn next_large(&self, node: u32) -> Option<ModelJob> {
        let next = self.first(Shape::Large, node)?;
        let larges = self.runnable(Shape::Large).into_iter();
        let mut earlier = larges.filter(|job| Self::order(job) < Self::order(&next));
        let awaited = earlier.any(|job| self.within_quota(&job) && self.awaits_an_open_node(&job));
        (!awaited).then_some(next)
    }

    fn turn_goes_on(&self, id: u32, next: &ModelJob) -> bool {
        let Some((since, _, failed_at_once)) = self.node(id).unwrap().turn else { return false };
        let fits_in_time = match (self.config.turn, next.limit) {
            (Some(budget), Some(limit)) => self.now + limit <= since + budget.0,
            _ => false,
        };
        fits_in_time || (failed_at_once && since >= self.now)
    }

    /// In order, each large to an empty node: the one drained for it, else one drained for
    /// another, else an open one if that may close and no earlier large needs it open.
    fn place_larges(&mut self) {
        let kept = self.config.keep_open as usize;
        let mut open_is_needed = false;
        for large in self.runnable(Shape::Large) {
            if !self.within_quota(&large) {
                continue;
            }
            let mut empty: Vec<(u8, u32)> = Vec::new();
            for id in self.ids() {
                let node = self.node(id).unwrap();
                let usable = Self::fits(&large, id) && self.takes_larges(node) && self.empty(id);
                let rank = match (node.phase, self.gate(id)) {
                    (ModelPhase::Exclusive(_), _) => continue,
                    (_, Some(job)) => u8::from(job != large.id),
                    (_, None) if !self.may_close(id) => continue,
                    // One of those that stay open is to close for an earlier large.
                    (_, None) if open_is_needed && self.open_beside(id) <= kept => continue,
                    (_, None) => 2,
                };
                if usable {
                    empty.push((rank, id));
                }
            }
            if let Some(&(_, id)) = empty.iter().min() {
                let (gpus, now) = (self.node(id).unwrap().gpus, self.now);
                self.admit(large.id, id, gpus, Kind::Direct);
                let node = self.node_mut(id);
                node.phase = ModelPhase::Exclusive(large.id);
                node.turn = node.turn.or(Some((now, 0, false)));
            } else {
                let fitting: Vec<u32> =
                    self.ids().into_iter().filter(|&id| Self::fits(&large, id)).collect();
                let none_drains = fitting.iter().all(|&id| self.gate(id).is_none());
                let could_close =
                    |&id: &u32| self.is_open(id) && self.takes_larges(self.node(id).unwrap());
                open_is_needed |= kept > 0 && none_drains && fitting.iter().any(could_close);
            }
        }
    }

    /// In order, each large keeps its gate, else has the spare one that is empty soonest, else
    /// closes one. All but the first only while fewer larges have one than the setting says, and
    /// close one only while fewer are closed. Spare gates open, those whose nodes are empty last.
    fn assign_gates(&mut self) {
        for id in self.ids() {
            if self.gate(id).is_some() && !self.takes_larges(self.node(id).unwrap()) {
                self.open(id);
            }
        }
        self.share_gates();
    }

    fn share_gates(&mut self) {
        let mut spare: Vec<u32> =
            self.ids().into_iter().filter(|&id| self.gate(id).is_some()).collect();
        let mut closed = spare.len();
        let mut having = 0;
        let mut used: Vec<(ModelJob, u32)> = Vec::new();
        let larges = self.runnable(Shape::Large);
        let larges: Vec<_> = larges.into_iter().filter(|job| self.within_quota(job)).collect();
        let mut awaited = false;
        for (index, large) in larges.iter().enumerate() {
            if index > 0 && having >= self.config.max_drains {
                break;
            }
            let own = |id: &u32| self.gate(*id) != Some(large.id);
            let gates = spare.iter().copied().filter(|&id| Self::fits(large, id));
            let gates = gates.filter(|_| !awaited);
            let gate = gates.min_by_key(|id| (own(id), self.end_or_never(*id), *id));
            if let Some(id) = gate {
                spare.retain(|&other| other != id);
                used.push((large.clone(), id));
                self.turn_gate(id, large.id);
                having += 1;
            } else if index == 0 || closed < self.config.max_drains as usize {
                let nodes = self.open_ids().into_iter().filter(|&id| {
                    let takes = self.takes_larges(self.node(id).unwrap());
                    Self::fits(large, id) && takes && !self.empty(id) && self.may_close(id)
                });
                let soonest =
                    nodes.min_by_key(|&id| (self.end_or_never(id), self.grips(id).len(), id));
                if let Some(id) = soonest {
                    let (job, since) = (large.id, self.now);
                    let node = self.node_mut(id);
                    node.phase = ModelPhase::Draining { job, since, overdue: false };
                    node.turn = None;
                    closed += 1;
                    having += 1;
                } else {
                    awaited |= self.awaits_an_open_node(large);
                }
            } else {
                awaited |= self.awaits_an_open_node(large);
            }
        }
        let mut exchanged = false;
        for open in &mut spare {
            let sooner = self.end_or_never(*open);
            let later = used
                .iter_mut()
                .filter(|(large, id)| Self::fits(large, *open) && self.end_or_never(*id) > sooner);
            if let Some((large, id)) = later.max_by_key(|(_, id)| (self.end_or_never(*id), *id)) {
                std::mem::swap(id, open);
                let (id, large) = (*id, large.id);
                self.turn_gate(id, large);
                exchanged = true;
            }
        }
        // What one gives back for a node that is empty sooner may serve a later one.
        if exchanged {
            return self.share_gates();
        }
        for id in spare {
            self.open(id);
        }
    }

    /// A gate opens without its large.
    fn open(&mut self, id: u32) {
        let filled = self.grips(id).iter().any(|(_, grip)| grip.kind == Kind::Backfill);
        let now = self.now;
        let node = self.node_mut(id);
        node.phase = ModelPhase::Open;
        if filled {
            node.given_up = Some(now);
        }
    }

    fn turn_gate(&mut self, id: u32, to: u64) {
        if let ModelPhase::Draining { job, .. } | ModelPhase::Wave { job, .. } =
            &mut self.node_mut(id).phase
        {
            *job = to;
        }
    }

    /// In order, each small to the open node whose end it moves least, else the fullest. The first
    /// wide one that has none closes the node on which it will soonest have one to all after it.
    fn place_smalls(&mut self) {
        let mut closed_to_those_behind = None;
        for small in self.runnable(Shape::Small) {
            if !self.within_quota(&small) {
                continue;
            }
            let wants = self.asked(small.shape.unwrap());
            let room = self.open_ids().into_iter().filter(|&id| {
                let behind_a_wide_one = closed_to_those_behind == Some(id);
                Self::fits(&small, id) && self.free(id).count() >= wants && !behind_a_wide_one
            });
            let best = room.min_by_key(|&id| {
                let moves = match (self.end(id), small.limit) {
                    (Some(end), Some(limit)) => (self.now + limit).saturating_sub(end),
                    _ => 0,
                };
                let grips = self.grips(id);
                let held = grips.iter().fold(GpuSet::EMPTY, |set, (_, g)| set.union(g.gpus));
                (moves, GpuSet::MAX - held.count(), id)
            });
            if let Some(id) = best {
                let gpus = self.free(id).lowest(wants).unwrap();
                self.admit(small.id, id, gpus, Kind::Direct);
                self.node_mut(id).turn = None;
            } else if wants > 1 && closed_to_those_behind.is_none() {
                let may_have = self
                    .open_ids()
                    .into_iter()
                    .filter(|&id| Self::fits(&small, id) && self.free_in_the_end(id) >= wants);
                closed_to_those_behind = may_have.min_by_key(|&id| {
                    let lacks = GpuSet::MAX - self.free(id).count();
                    (self.time_of_so_many_free(id, wants), lacks, id)
                });
            }
        }
    }

    /// GPUs that are free once all that ends has ended.
    fn free_in_the_end(&self, id: u32) -> u32 {
        let node = self.node(id).unwrap();
        let unending = |grip: &Grip| grip.kind == Kind::Foreign && grip.end.is_none();
        let gpus = node.gpus.intersection(node.healthy).iter();
        let grips = self.grips(id);
        let kept = |gpu: u32| {
            grips.iter().any(|(_, g)| unending(g) && g.gpus.overlaps(GpuSet::single(gpu)))
        };
        u32::try_from(gpus.filter(|&gpu| !kept(gpu)).count()).unwrap()
    }

    /// The first time, now or at some end to come, by which so many GPUs must be free; the end of
    /// time if there is none.
    fn time_of_so_many_free(&self, id: u32, wants: u32) -> u64 {
        let node = self.node(id).unwrap();
        let grips = self.grips(id);
        let ends = grips.iter().filter_map(|(_, grip)| grip.end).filter(|&end| end >= self.now);
        let mut times: Vec<u64> = ends.chain([self.now]).collect();
        times.sort_unstable();
        let free_at = |time: u64| {
            let over = |grip: &Grip| grip.end.is_some_and(|end| self.now <= end && end <= time);
            let held = grips.iter().filter(|(_, grip)| !over(grip));
            let held = held.fold(GpuSet::EMPTY, |set, (_, grip)| set.union(grip.gpus));
            node.gpus.intersection(node.healthy).minus(held).count()
        };
        times.into_iter().find(|&time| free_at(time) >= wants).unwrap_or(u64::MAX)
    }

    /// In order, each small that ends no later than the drain behind whose gate it starts; nobody
    /// passes one that waited when a gate opened over smalls admitted behind it.
    fn backfill(&mut self) -> bool {
        let before = self.deeds.len();
        let given_up = self.nodes.iter().filter_map(|node| node.given_up).max();
        for id in self.ids() {
            let node = self.node(id).unwrap();
            if self.gate(id).is_none() || !node.schedulable {
                continue;
            }
            let Some(drained) = self.end(id) else { continue };
            for small in self.runnable(Shape::Small) {
                let in_time = small.limit.is_some_and(|limit| self.now + limit <= drained);
                let usable = Self::fits(&small, id) && self.within_quota(&small);
                if usable && !in_time && given_up.is_some_and(|at| small.created <= at) {
                    break;
                }
                let free = self.free(id).lowest(self.asked(small.shape.unwrap()));
                if let Some(gpu) = free
                    && in_time
                    && Self::fits(&small, id)
                    && self.within_quota(&small)
                {
                    self.admit(small.id, id, gpu, Kind::Backfill);
                }
            }
        }
        self.deeds.len() > before
    }

    fn overdue(&mut self) {
        for id in self.ids() {
            let grips = self.grips(id);
            let ends: Option<Vec<u64>> = grips.iter().map(|(_, grip)| grip.end).collect();
            let last = ends.and_then(|ends| ends.into_iter().max());
            let (limit, now) = (self.config.drain_limit, self.now);
            if let ModelPhase::Draining { since, overdue, .. }
            | ModelPhase::Wave { since, overdue, .. } = &mut self.node_mut(id).phase
            {
                let late = match limit {
                    Some(limit) => *since + limit.0 <= now,
                    None => last.is_some_and(|end| end < now),
                };
                *overdue |= late && !grips.is_empty();
                if *overdue && self.config.evict_overdue {
                    for (job, grip) in grips {
                        if !grip.evicting && grip.stage < Stage::Releasing {
                            self.evict(job);
                        }
                    }
                }
            }
        }
    }

    fn evict(&mut self, id: u64) {
        if let Place::Holds(grip) = &mut self.job_mut(id).place {
            grip.evicting = true;
        }
        self.deeds.push(Deed::Evicted { job: id });
    }
}
