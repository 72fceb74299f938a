//! Pure: what the end of a large gives the smalls: one wave, or nothing.

use super::{
    Credit, Decision, Gate, Holding, Job, JobId, Kind, Millis, Node, NodeId, Phase, Pool, Shape,
};

impl Pool {
    /// Credit exists only at the instant of a large's end: it becomes a wave now or is gone.
    pub(super) fn settle_ended_larges(&mut self, now: Millis, out: &mut Vec<Decision>) {
        let ended: Vec<NodeId> = self
            .nodes
            .iter()
            .filter(|(_, node)| {
                matches!(node.phase, Phase::Exclusive(job) if !node.holdings.contains_key(&job))
            })
            .map(|(&id, _)| id)
            .collect();
        for id in ended {
            let (credit, next) = self.credit(id, now);
            if let Some(node) = self.nodes.get_mut(&id) {
                node.enter(Phase::Open, now);
                match credit {
                    // The turn goes on: whoever is placed next decides what becomes of it.
                    Credit::TurnContinues
                    | Credit::OtherNodeOpen
                    | Credit::OtherNodeNext
                    | Credit::NoSmallWaits => {}
                    Credit::Wave | Credit::NoLargeWaits | Credit::NodeUnfit => node.turn = None,
                }
            }
            out.push(Decision::CreditSettled { node: id, credit });
            if let (Credit::Wave, Some(next)) = (credit, next) {
                self.start_wave(id, next, now, out);
            }
        }
    }

    /// What a large's end on a node gives the smalls, and the large that is next there.
    fn credit(&self, id: NodeId, now: Millis) -> (Credit, Option<JobId>) {
        let Some(node) = self.nodes.get(&id) else { return (Credit::NodeUnfit, None) };
        if !node.takes_larges(self.config.gpus_per_node) || self.config.paused {
            return (Credit::NodeUnfit, None);
        }
        let served = |job: &Job| job.fits.on(id) && self.within_quota(job);
        let Some(next) = self.first(Shape::Large, served) else {
            return (Credit::NoLargeWaits, None);
        };
        let awaits = |job: &Job| self.within_quota(job) && self.awaits_an_open_node(job);
        let awaiting = self.first(Shape::Large, awaits);
        if awaiting.is_some_and(|job| job.queue_key() < next.queue_key()) {
            // An earlier large waits for a node to open, so none may have this one.
            return (Credit::NoLargeWaits, None);
        }
        // One of each class. A small that fits this node only has nothing of what other nodes give
        // to those before it, whoever comes to be before it.
        let smalls = self.heads(Shape::Small, served);
        let smalls = || smalls.iter().filter_map(|&key| self.at(key));
        let by_others = |small: &Job| self.others_serve(small, id);
        let credit = if smalls().next().is_none() {
            Credit::NoSmallWaits
        } else if smalls().all(by_others) {
            Credit::OtherNodeOpen
        } else if self.config.one_wave
            && smalls().all(|small| by_others(small) || self.another_is_next(small, id, now))
        {
            Credit::OtherNodeNext
        } else if self.turn_continues(node, next, now) {
            Credit::TurnContinues
        } else {
            Credit::Wave
        };
        (credit, Some(next.id))
    }

    /// Whether smalls are served on other nodes meanwhile as well as by a wave: as many GPUs are on
    /// open nodes that this small may use, and enough on one for it. Those in the hands of others
    /// without an end, and unhealthy ones, are there in name only.
    fn others_serve(&self, small: &Job, than: NodeId) -> bool {
        let others = self.nodes.iter().filter(|&(&id, node)| {
            id != than && node.is_open() && node.spec.schedulable && small.fits.on(id)
        });
        let (most, sum) = others
            .map(|(_, node)| node.ever_free().count())
            .fold((0, 0), |(most, sum), gpus| (gpus.max(most), gpus.saturating_add(sum)));
        most >= self.asked(small.shape) && sum >= self.config.wave_size
    }

    /// Whether another node that this small may use is in a wave or drains, and will be empty in
    /// time. It takes the next large, and is then no reason to go on without a wave any more.
    fn another_is_next(&self, small: &Job, than: NodeId, now: Millis) -> bool {
        self.nodes.iter().any(|(&id, node)| {
            let gated = node.gate().is_some() && node.spec.schedulable && small.fits.on(id);
            let ends = |holding: &Holding| holding.latest_end.is_some_and(|end| end >= now);
            id != than && gated && node.holdings.values().all(ends)
        })
    }

    fn turn_continues(&self, node: &Node, next: &Job, now: Millis) -> bool {
        let Some(turn) = &node.turn else { return false };
        let in_time = match (self.config.turn, next.limit) {
            (Some(budget), Some(limit)) => now + limit <= turn.since + budget,
            _ => false,
        };
        // A turn in which every large failed at once has not begun.
        in_time || (turn.failed_early && turn.since >= now)
    }

    fn start_wave(&mut self, id: NodeId, next: JobId, now: Millis, out: &mut Vec<Decision>) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let gate = Gate { job: next, since: now, overdue: false };
        node.enter(Phase::Wave { admitted: 0, gate }, now);
        let mut heads = self.heads(Shape::Small, |job| job.fits.on(id));
        let mut admitted = 0;
        while admitted < self.config.wave_size {
            let Some(small) = heads.pop_first().and_then(|key| self.at(key)) else { break };
            // What does not fit any more is first in the next wave; narrower ones end with this one.
            let room = self.nodes.get(&id).map_or(0, |node| node.free().count());
            if !self.within_quota(small) || room < self.asked(small.shape) {
                continue;
            }
            heads.extend(self.after(small));
            if !self.reserve_small(small.id, id, Kind::Wave, now, out) {
                break;
            }
            admitted += 1;
        }
        if admitted > 0 {
            out.push(Decision::WaveStarted { node: id, admitted, next });
        } else if let Some(node) = self.nodes.get_mut(&id) {
            node.enter(Phase::Open, now);
        }
    }
}
