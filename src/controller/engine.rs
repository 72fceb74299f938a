//! Cluster side: the loop of the leader, which looks, decides and writes.
//!
//! ```text
//! stores ─► View ─► World ─► diff ─► policy step ─► plan ─► writer ─► API server
//!    ▲                                                         │
//!    └──────────── watch ◄──────── answers ◄───────────────────┘
//! ```
//!
//! One task owns the policy's state. A round is a pure computation over the newest objects known;
//! calls run beside it, one at a time to each object, and their answers start the next round. What
//! the policy has decided and the ledger does not show yet is the assumed state; nothing acts on
//! it before the ledger's write has come through.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::calls::{Call, Calls};
use super::catch_up::catch_up;
use super::debug::Ask;
use super::pools::PoolState;
use super::publish::Publisher;
use super::view::View;
use super::writer::{Answer, Writer};
use super::{Context, Error};
use crate::api::GpuPoolStatus;
use crate::metrics::QueueLabel;
use crate::policy::Millis;
use crate::translate::ledger::owned;
use crate::translate::members::Members;
use crate::translate::plan::{Action, Target};
use crate::translate::status::never_readable;
use crate::translate::strays::{All, Strays};

/// Changes that come within this time are looked at together.
const GATHER: Duration = Duration::from_millis(3);
/// Everything is looked at anew after this long, whether something changed or not.
const AUDIT: Duration = Duration::from_secs(1);
const RECORDS: QueueLabel = QueueLabel { queue: "records" };

/// Leads whenever this replica holds the lease, until `stop` is cancelled.
pub(super) async fn run(context: Context, stop: CancellationToken) -> Result<(), Error> {
    let (publisher, events) = Publisher::new(context.client.clone(), context.metrics.clone());
    let mut background = JoinSet::new();
    background.spawn(events);
    let lead = async {
        let mut leadership = context.leadership.clone();
        while let Ok(term) = leadership.acquired().await {
            let mut lost = context.leadership.clone();
            tokio::select! {
                () = Engine::lead(&context, &publisher, term.number) => {}
                () = lost.lost(term.number) => info!("no longer leading, decisions stop"),
            }
            context.metrics.forget_pools();
        }
    };
    // The end of the campaign is reported by the campaign.
    stop.run_until_cancelled(Box::pin(lead)).await;
    stop.cancelled().await;
    Ok(())
}

struct Engine<'a> {
    context: &'a Context,
    /// The term of the lease in which it leads.
    term: i32,
    publisher: &'a Publisher,
    writer: Writer,
    view: View,
    pools: BTreeMap<String, PoolState>,
    strays: Strays,
    calls: Calls,
    /// What pools that could never be read were told.
    told_unreadable: BTreeMap<String, String>,
}

/// Why the engine starts over.
struct StartOver(String);

impl<'a> Engine<'a> {
    /// Leads until it is dropped. Each life begins with what the API server says.
    async fn lead(context: &'a Context, publisher: &'a Publisher, term: i32) {
        while let Err(error) = context.stores.wait_synced(Duration::from_secs(60)).await {
            warn!(%error, "leading must wait");
        }
        loop {
            catch_up(context).await;
            context.metrics.rebuilds.inc();
            let mut engine = Self::new(context, publisher, term);
            info!("state is rebuilt from the ledgers");
            let StartOver(why) = engine.rounds().await;
            warn!(why, "starting over from the ledgers");
            // Writes under way end first, so that what is read next includes them.
            while engine.calls.next().await.is_some() {}
        }
    }

    fn new(context: &'a Context, publisher: &'a Publisher, term: i32) -> Self {
        let writer = Writer::new(context.client.clone(), context.metrics.clone());
        Self {
            context,
            term,
            publisher,
            writer,
            view: View::default(),
            pools: BTreeMap::new(),
            strays: Strays::default(),
            calls: Calls::default(),
            told_unreadable: BTreeMap::new(),
        }
    }

    async fn rounds(&mut self) -> StartOver {
        let mut changed = self.context.stores.changed();
        loop {
            changed.borrow_and_update();
            let wake = match self.round() {
                Ok(wake) => wake,
                Err(start_over) => return start_over,
            };
            tokio::select! {
                result = changed.changed() => {
                    if result.is_err() {
                        return StartOver("the stores ended".to_owned());
                    }
                    tokio::time::sleep(GATHER).await;
                }
                Some(done) = self.calls.next() => {
                    if let Err(start_over) = self.answered(done) {
                        return start_over;
                    }
                }
                Some(ask) = self.context.desk.next() => self.hand_over(ask),
                () = tokio::time::sleep(wake) => {}
            }
            while let Some(done) = self.calls.try_next() {
                if let Err(start_over) = self.answered(done) {
                    return start_over;
                }
            }
        }
    }

    /// Answers whoever wants to see the pools' records.
    fn hand_over(&mut self, ask: Ask) {
        let now = self.context.clock.now();
        let snapshots = self.pools.values_mut().filter_map(|pool| pool.snapshot(now)).collect();
        if ask.send(snapshots).is_err() {
            debug!("nobody waits for the snapshot any more");
        }
    }

    /// Looks at everything once. Returns after how long to look again at the latest.
    fn round(&mut self) -> Result<Duration, StartOver> {
        let now = self.context.clock.now();
        self.view.refresh(&self.context.stores, &self.context.namespace, now);
        // Only after what is known was looked at: where the term still runs then, nobody else has
        // written any of it, and whatever another leader writes from now on has another version.
        if self.context.leadership.term().is_none_or(|term| term.number != self.term) {
            return Ok(AUDIT);
        }
        let members = self.view.members();
        let before = self.pools.len();
        self.pools.retain(|name, _| members.contains_key(name));
        if self.pools.len() < before {
            // Those that are left write theirs again soon.
            self.context.metrics.forget_pools();
        }
        let off_limits = self.calls.off_limits(now);
        let mut wake = now + Millis(u64::try_from(AUDIT.as_millis()).unwrap_or(u64::MAX));
        for (name, members) in &members {
            let state = self.pools.entry(name.clone()).or_default();
            let Some(world) = state.look(&self.view, name, members, self.context, now) else {
                let object = self.view.pools.get(name);
                let status = object.and_then(|object| state.unusable(object, now));
                self.write_status(name, status);
                continue;
            };
            let start = crate::clock::instant();
            let untold = state.step(&world);
            self.context.metrics.outbox_dropped.get_or_create_owned(&RECORDS).inc_by(untold);
            self.context.metrics.step_duration.observe(start.elapsed().as_secs_f64());
            let plan = state.plan(&world, &off_limits);
            if let Some(why) = plan.rebuild {
                return Err(StartOver(why));
            }
            wake = wake.min(state.next_wakeup(now).unwrap_or(wake));
            self.start(name, plan.actions, now);
            if self.calls.may_start(&Target::Pool(name.clone()), false, now) {
                let state = self.pools.get_mut(name);
                let status = state.and_then(|s| s.status_due(&world, &self.context.metrics));
                self.write_status(name, status);
            }
            self.publish(name);
        }
        self.tell_unreadable(now);
        self.tidy_strays(&members, now);
        wake = self.calls.tidy(now).map_or(wake, |until| wake.min(until));
        Ok(Duration::from_millis(wake.since(now).0.max(1)))
    }

    /// Says so in pools of which nothing is known but that they cannot be read.
    fn tell_unreadable(&mut self, now: Millis) {
        let view = &self.view;
        self.told_unreadable.retain(|name, _| view.unreadable_pools.contains_key(name));
        for (name, error) in &view.unreadable_pools {
            let told = self.told_unreadable.get(name) == Some(error);
            let target = Target::Pool(name.clone());
            if told || view.pools.contains_key(name) || !self.calls.may_start(&target, false, now) {
                continue;
            }
            self.told_unreadable.insert(name.clone(), error.clone());
            let (writer, pool) = (self.writer.clone(), name.clone());
            let ready = never_readable(error, now);
            let call = async move { writer.tell_unreadable(&pool, &ready).await };
            self.calls.start(name, target, false, call);
        }
    }

    /// What belongs to no pool.
    fn tidy_strays(&mut self, members: &BTreeMap<String, Members>, now: Millis) {
        let view = &self.view;
        let actions = self.strays.plan(&All {
            now,
            members,
            pools: &view.pools,
            unreadable_pools: &view.unreadable_pools,
            pods: &view.pods,
            nodes: &view.nodes,
            ledgers: &view.ledgers,
        });
        self.start("", actions, now);
    }

    /// Starts the calls for which there is room, one at a time to each object.
    fn start(&mut self, pool: &str, actions: Vec<Action>, now: Millis) {
        let mut pressing: Vec<Action> = actions;
        pressing.sort_by_key(|action| !action.urgent());
        for action in pressing {
            let (target, urgent) = (action.target(), action.urgent());
            if self.calls.may_start(&target, urgent, now) {
                if let Target::Ledger(node) = &target
                    && let Some(state) = self.pools.get_mut(pool)
                {
                    state.records.write_starts(node);
                }
                let writer = self.writer.clone();
                let call = async move { writer.carry_out(action, now).await };
                self.calls.start(pool, target, urgent, call);
            }
        }
    }

    fn write_status(&mut self, name: &str, status: Option<GpuPoolStatus>) {
        let Some(status) = status else { return };
        let (writer, pool) = (self.writer.clone(), name.to_owned());
        let target = Target::Pool(name.to_owned());
        let call = async move { writer.write_pool(&pool, &status).await };
        self.calls.start(name, target, false, call);
    }

    /// Publishes what is decided and written.
    fn publish(&mut self, name: &str) {
        let writing: BTreeSet<String> = self
            .calls
            .busy()
            .into_iter()
            .filter_map(|target| match target {
                Target::Ledger(node) => Some(node),
                Target::Pod(_) | Target::Eviction(_) | Target::Node(_) | Target::Pool(_) => None,
            })
            .collect();
        let Some(state) = self.pools.get_mut(name) else { return };
        for record in state.records.settled(&writing, &state.dirty) {
            self.publisher.publish(&record);
        }
    }

    fn answered(
        &mut self,
        done: Result<(Call, Answer), tokio::task::JoinError>,
    ) -> Result<(), StartOver> {
        let (call, answer) = match done {
            Ok(done) => done,
            Err(error) => {
                error!(%error, "a write panicked");
                return Err(StartOver("a write panicked".to_owned()));
            }
        };
        let now = self.context.clock.now();
        self.calls.settled(&call, &answer, now);
        match answer {
            Answer::Ledger(ledger) => {
                let name = ledger.metadata.name.clone().unwrap_or_default();
                self.view.saw_ledger(*ledger, None);
                if let Some(state) = self.pools.get_mut(&call.pool) {
                    for record in state.records.written(&name) {
                        self.publisher.publish(&record);
                    }
                }
            }
            Answer::Created(ledger) => self.view.saw_ledger(*ledger, Some(now)),
            Answer::Pod(pod) => self.view.wrote_pod(&pod),
            Answer::Node(node) => self.view.wrote_node(&node),
            Answer::Gone => debug!(target = ?call.target, "object is gone"),
            Answer::Done => {}
            Answer::Failed(_) => {
                if let Target::Pool(name) = &call.target {
                    self.told_unreadable.remove(name);
                }
            }
            Answer::Overtaken { read, fresh } => {
                let mine = owned(&read);
                let theirs = owned(&fresh.status.clone().unwrap_or_default());
                let name = fresh.metadata.name.clone().unwrap_or_default();
                self.view.saw_ledger(*fresh, None);
                if mine != theirs {
                    return Err(StartOver(format!("somebody else wrote the ledger of {name}")));
                }
            }
        }
        Ok(())
    }
}
