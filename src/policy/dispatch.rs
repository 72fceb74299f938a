//! Pure: the decision, once per step, after the facts of one instant are in.

use super::{Decision, Job, JobId, Kind, Millis, NodeId, Phase, Pool, Shape, Turn, Waiting};

/// How many waiting smalls are looked at for one gap behind a gate: bounds the cost of a step.
pub(super) const BACKFILL_DEPTH: usize = 300;

impl Pool {
    /// Decides until nothing more can be decided.
    pub(super) fn dispatch(&mut self, now: Millis, out: &mut Vec<Decision>) {
        self.expire_reservations(now, out);
        self.end_back_offs(now);
        self.charge_all();
        self.settle_ended_larges(now, out);
        if !self.config.paused {
            self.place_larges(now, out);
            // A gate that opens may be the one too many, or the open node, that lets another close.
            while self.assign_gates(now, out) {
                self.place_larges(now, out);
            }
            loop {
                let kept = self.place_smalls(now, out);
                if !self.config.backfill {
                    break;
                }
                // Who is served behind one gate may have been what kept others from the next.
                while self.backfill(now, out) {}
                // A node that was kept for somebody who was backfilled is kept no longer.
                if kept.is_none() || kept == self.kept(now) {
                    break;
                }
            }
        }
        self.report_overdue(now, out);
    }

    /// An empty node takes the first large that fits it, whichever gate was closed for it.
    fn place_larges(&mut self, now: Millis, out: &mut Vec<Decision>) {
        if !self.nodes.keys().any(|&id| self.empty_for_larges(id, 0)) {
            return;
        }
        let mut heads = self.heads(Shape::Large, |_| true);
        // Nodes that must stay open so that one may close for an earlier large.
        let mut kept = 0;
        while let Some(job) = heads.pop_first().and_then(|key| self.at(key)) {
            if !self.within_quota(job) {
                continue;
            }
            let Some(id) = self.empty_node_for(job, kept) else {
                kept = kept.max(u32::from(self.needs_an_open_node(job)));
                continue;
            };
            let (large, next) = (job.id, self.after(job));
            let Some(gpus) = self.nodes.get(&id).map(|node| node.spec.gpus) else { continue };
            if !self.reserve(large, id, gpus, Kind::Direct, now, out) {
                continue;
            }
            heads.extend(next);
            if let Some(node) = self.nodes.get_mut(&id) {
                node.enter(Phase::Exclusive(large), now);
                node.turn.get_or_insert(Turn {
                    since: now,
                    early_failures: 0,
                    failed_early: false,
                });
            }
        }
    }

    /// A drained node first, its own before another's: an empty open one still serves smalls.
    fn empty_node_for(&self, large: &Job, kept: u32) -> Option<NodeId> {
        self.nodes
            .iter()
            .filter(|&(&id, _)| large.fits.on(id) && self.empty_for_larges(id, kept))
            .min_by_key(|&(&id, node)| {
                (node.gate().map_or(2, |gate| u8::from(gate.job != large.id)), id)
            })
            .map(|(&id, _)| id)
    }

    fn empty_for_larges(&self, id: NodeId, kept: u32) -> bool {
        let Some(node) = self.nodes.get(&id) else { return false };
        node.holdings.is_empty()
            && node.takes_larges(self.config.gpus_per_node)
            && !matches!(node.phase, Phase::Exclusive(_))
            && (!node.is_open() || self.may_close(id, kept))
    }

    /// Smalls in order, each to the open node whose latest end it moves least, else the fullest,
    /// so that whole nodes come free. Behind the first wide one for which no open node has enough
    /// free GPUs, nothing goes to the node that is kept for it, which is returned.
    fn place_smalls(&mut self, now: Millis, out: &mut Vec<Decision>) -> Option<(NodeId, JobId)> {
        let mut room = self.open_room();
        if room == 0 {
            return None;
        }
        let mut heads = self.heads(Shape::Small, |_| true);
        let mut kept = None;
        while room > 0 {
            let Some(job) = heads.pop_first().and_then(|key| self.at(key)) else { break };
            // What holds back the first of a class holds back all of it.
            let closed = kept.map(|(node, _)| node);
            let Some(id) = self.best_open_node(job, closed, now) else {
                kept = kept.or_else(|| Some((self.node_to_keep(job, now)?, job.id)));
                continue;
            };
            if !self.within_quota(job) {
                continue;
            }
            let (small, next) = (job.id, self.after(job));
            let asked = self.asked(job.shape);
            if !self.reserve_small(small, id, Kind::Direct, now, out) {
                continue;
            }
            heads.extend(next);
            room = room.saturating_sub(asked);
            if let Some(node) = self.nodes.get_mut(&id) {
                // Unrestricted service consumes what the last large's turn left.
                node.turn = None;
            }
        }
        kept
    }

    fn open_room(&self) -> u32 {
        let open = self.nodes.values().filter(|node| node.is_open() && node.spec.schedulable);
        open.map(|node| node.free().count()).sum()
    }

    /// The open node whose free GPUs are kept for a wide small that waits for more of them, and
    /// that small; see `docs/wide.md` for why it waits for a bounded time only.
    pub fn kept(&self, now: Millis) -> Option<(NodeId, JobId)> {
        let heads = self.heads(Shape::Small, |job| matches!(job.shape, Shape::Wide(_)));
        heads.into_iter().filter_map(|key| self.at(key)).find_map(|job| {
            let waits = self.best_open_node(job, None, now).is_none();
            waits.then(|| Some((self.node_to_keep(job, now)?, job.id)))?
        })
    }

    /// The open node on which as many GPUs as a wide small asks for are free soonest, then the one
    /// that lacks the fewest. Each GPU that comes free there brings that nearer, and it moves only
    /// to where it is nearer still, so nobody is put off for ever.
    fn node_to_keep(&self, job: &Job, now: Millis) -> Option<NodeId> {
        let Shape::Wide(asked) = job.shape else { return None };
        let candidates = self.nodes.iter().filter(|&(&id, node)| {
            let open = node.is_open() && node.spec.schedulable && job.fits.on(id);
            open && node.ever_free().count() >= asked
        });
        let soonest = candidates.min_by_key(|&(&id, node)| {
            let free_by = node.free_by(asked, now).unwrap_or(Millis(u64::MAX));
            (free_by, std::cmp::Reverse(node.free().count()), id)
        });
        soonest.map(|(&id, _)| id).filter(|_| self.within_quota(job))
    }

    fn best_open_node(&self, job: &Job, kept: Option<NodeId>, now: Millis) -> Option<NodeId> {
        let asked = self.asked(job.shape);
        self.nodes
            .iter()
            .filter(|&(&id, node)| {
                let open = node.is_open() && node.spec.schedulable && job.fits.on(id);
                open && node.free().count() >= asked && kept != Some(id)
            })
            .min_by_key(|&(&id, node)| {
                // A node that has no known end, or a job that has none, moves nothing.
                let moves = match (node.latest_end(now), job.limit) {
                    (Some(end), Some(limit)) => (now + limit).since(end),
                    _ => Millis::default(),
                };
                (moves, std::cmp::Reverse(node.held().count()), id)
            })
            .map(|(&id, _)| id)
    }

    /// Smalls whose limit ends no later than the drain behind whose gate they start.
    ///
    /// A gate that opens without its large leaves them running on an open node, where they keep
    /// GPUs from those in front of them. Once that costs those in front a window; if it could
    /// happen again and again, they would get one GPU where the bound counts on all. So whoever
    /// waited at such a moment is passed by nobody any more.
    fn backfill(&mut self, now: Millis, out: &mut Vec<Decision>) -> bool {
        let mut placed = false;
        let gated: Vec<NodeId> = self
            .nodes
            .iter()
            .filter(|(_, n)| n.gate().is_some() && n.spec.schedulable && !n.free().is_empty())
            .map(|(&id, _)| id)
            .collect();
        let Some(shortest) = self.queue_of(Shape::Small).shortest() else { return false };
        let given_up = self.nodes.values().filter_map(|node| node.given_up).max();
        for id in gated {
            let Some(drained) = self.nodes.get(&id).and_then(|node| node.latest_end(now)) else {
                continue;
            };
            if now + shortest > drained {
                continue;
            }
            let candidates: Vec<JobId> = self
                .runnable(Shape::Small)
                .take(BACKFILL_DEPTH)
                .filter(|job| job.fits.on(id))
                .map(|job| job.id)
                .collect();
            for small in candidates {
                let Some(Waiting { job, .. }) = self.waiting.get(&small) else { continue };
                let free = self.nodes.get(&id).map_or(0, |node| node.free().count());
                let in_time = job.limit.is_some_and(|limit| now + limit <= drained);
                if free == 0 {
                    break;
                }
                if !self.within_quota(job) {
                    continue;
                }
                if in_time {
                    if free >= self.asked(job.shape) {
                        placed |= self.reserve_small(small, id, Kind::Backfill, now, out);
                    }
                } else if given_up.is_some_and(|at| job.created <= at) {
                    break;
                }
            }
        }
        placed
    }
}
