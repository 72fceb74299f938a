//! Cluster side: one pool as the leader runs it: the policy's state and what goes with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, error, warn};

use super::Context;
use super::publish::seconds;
use super::records::Records;
use super::view::View;
use crate::api::{GpuPool, GpuPoolStatus};
use crate::clock::instant;
use crate::journal::{Recorder, Snapshot};
use crate::metrics::{GpuLabel, Metrics, PhaseLabel, PoolLabel, ShapeLabel, ShapeValue};
use crate::policy::{Config, Decision, Millis, NodeId, Pool, Shape, Stepped};
use crate::translate::members::Members;
use crate::translate::plan::{self, Action, Memory, Plan, Target};
use crate::translate::record;
use crate::translate::restore::restore;
use crate::translate::status::{self, Troubles};
use crate::translate::text::Words;
use crate::translate::time::millis;
use crate::translate::{Known, PodFacts, World, agents, diff, pool as settings};

/// Time between two writes of a pool's status.
const STATUS_EVERY: Duration = Duration::from_millis(500);
/// After how long a status that was written and is not shown is written again.
const STATUS_AGAIN: Duration = Duration::from_secs(5);

/// One pool.
#[derive(Default)]
pub(super) struct PoolState {
    /// The policy's state, once there is one.
    run: Option<Run>,
    /// Decisions that are not published yet.
    pub(super) records: Records,
    /// Nodes whose ledger does not show the policy's state yet.
    pub(super) dirty: BTreeSet<String>,
    memory: Memory,
    /// Nodes whose agent was last said to be ready, or not.
    agents_told: BTreeMap<NodeId, bool>,
    troubles: Troubles,
    stepped_at: Option<Millis>,
    /// GPU time behind closed gates that is not yet in the figures.
    idle_gpu_ms: u64,
    status_at: Option<Instant>,
    status_sent: Option<GpuPoolStatus>,
}

struct Run {
    pool: Pool,
    known: Known,
    recorder: Recorder,
}

impl PoolState {
    /// What concerns the pool now. Nothing, while its settings have never been usable.
    pub(super) fn look(
        &mut self,
        view: &View,
        name: &str,
        members: &Members,
        context: &Context,
        now: Millis,
    ) -> Option<World> {
        let object = view.pools.get(name)?;
        let unreadable = view.unreadable_pools.get(name);
        let config = self.settings(object, unreadable);
        let mut world = view.world(name, members, config?, now)?;
        if unreadable.is_some() && self.status_sent.is_some() {
            // What stands in for the object shows none of what was written since.
            let mut object = GpuPool::clone(&world.pool);
            object.status.clone_from(&self.status_sent);
            world.pool = Arc::new(object);
        }
        self.troubles.claimed_elsewhere.clone_from(&members.claimed_elsewhere);
        if self.run.is_none() {
            match restore(&world) {
                Ok((pool, known)) => {
                    let recorder = Recorder::new(name, context.record_bytes);
                    self.run = Some(Run { pool, known, recorder });
                }
                Err(error) => {
                    let text = error.to_string();
                    if self.troubles.not_restored.as_ref() != Some(&text) {
                        error!(pool = name, error = text, "cannot restore the pool");
                        self.troubles.not_restored = Some(text);
                    }
                    return None;
                }
            }
            self.troubles.not_restored = None;
        }
        let run = self.run.as_ref()?;
        for job in run.pool.nodes().values().flat_map(|node| node.holdings.keys()) {
            let Some(who) = run.known.ids.pod(*job) else { continue };
            if !world.pods.contains_key(&who.uid)
                && let Some(pod) = context.stores.last_words(&who.uid)
            {
                world.last_words.insert(who.uid.clone(), Arc::new(PodFacts::read(&pod)));
            }
        }
        Some(world)
    }

    /// The settings that the pool is run by: those of its spec, or the last usable ones.
    fn settings(&mut self, object: &GpuPool, unreadable: Option<&String>) -> Option<Config> {
        let mut fresh = Known::default();
        let known = self.run.as_mut().map_or(&mut fresh, |run| &mut run.known);
        let config = settings::config(&object.spec, |namespace| known.ids.tenant(namespace));
        let wrong = match (unreadable, &config) {
            (Some(error), _) => Some(status::unreadable(error)),
            (None, Err(error)) => Some(error.to_string()),
            (None, Ok(_)) => None,
        };
        if wrong.is_some() && self.troubles.bad_spec != wrong {
            let pool = object.metadata.name.as_deref().unwrap_or_default();
            warn!(pool, error = wrong, "spec is not followed");
        }
        self.troubles.bad_spec = wrong;
        config.ok().or_else(|| self.run.as_ref().map(|run| run.pool.config().clone()))
    }

    /// Tells the policy what is new and takes its decisions. Returns how many of them will never
    /// be published, for want of room.
    pub(super) fn step(&mut self, world: &World) -> u64 {
        let Some(Run { pool, known, recorder }) = &mut self.run else { return 0 };
        known.learn(world, pool);
        let inputs = diff(world, pool, known);
        if !inputs.is_empty() && tracing::enabled!(tracing::Level::DEBUG) {
            let text = serde_json::to_string(&inputs).unwrap_or_default();
            debug!(pool = world.name, now = world.now.0, inputs = text, "step");
        }
        let words = Words { pool, known, world };
        let mut untold = 0;
        for record in inputs.iter().filter_map(|input| record::observed(input, &words)) {
            untold += self.records.add(record);
        }
        known.note(&inputs, world, pool);
        let gates: BTreeMap<_, _> =
            pool.nodes().iter().filter_map(|(&id, node)| Some((id, *node.gate()?))).collect();
        let since = self.stepped_at.replace(world.now).unwrap_or(world.now);
        self.idle_gpu_ms += idle_behind_gates(pool, world.now.since(since));
        let Stepped { decisions, moved, .. } =
            recorder.step(pool, &mut known.promises, inputs, world.now, &known.ids);
        for decision in &decisions {
            if let Decision::Refused { .. } = decision {
                self.troubles.refused_commits += 1;
            }
            let words = Words { pool, known, world };
            untold += self.records.add(record::decided(decision, &words, &gates));
        }
        for moved in &moved {
            untold += self.records.add(record::moved(moved, &Words { pool, known, world }));
        }
        known.tidy(world, pool);
        untold + self.agents_changed(world)
    }

    /// Says which agents can no longer be relied upon, and which can again.
    fn agents_changed(&mut self, world: &World) -> u64 {
        let Some(Run { pool, known, .. }) = &self.run else { return 0 };
        let mut untold = 0;
        self.agents_told.retain(|id, _| known.agents.contains_key(id));
        for (&id, word) in &known.agents {
            let ledger = known.ids.node_name(id).and_then(|name| world.nodes.get(name));
            let shown = ledger.and_then(|facts| agents::told(world.ledger(facts)?));
            let told = self.agents_told.insert(id, word.ready).or(shown).unwrap_or(true);
            if told != word.ready {
                untold += self.records.add(record::agent(id, word, &Words { pool, known, world }));
            }
        }
        untold
    }

    /// What is to be written now.
    pub(super) fn plan(&mut self, world: &World, off_limits: &BTreeSet<Target>) -> Plan {
        let Some(Run { pool, known, .. }) = &self.run else { return Plan::default() };
        let plan = plan::plan(world, pool, known, off_limits, &mut self.memory);
        self.dirty = plan
            .actions
            .iter()
            .filter(|action| matches!(action, Action::WriteLedger { .. }))
            .filter_map(|action| match action.target() {
                Target::Ledger(name) => Some(name),
                Target::Pod(_) | Target::Eviction(_) | Target::Node(_) | Target::Pool(_) => None,
            })
            .collect();
        plan
    }

    /// What was told and decided last, and the state now.
    pub(super) fn snapshot(&mut self, now: Millis) -> Option<Snapshot> {
        let Run { pool, known, recorder } = self.run.as_mut()?;
        Some(recorder.snapshot(pool, &known.promises, now, &known.ids))
    }

    /// When the pool must be looked at again without anything new.
    pub(super) fn next_wakeup(&self, now: Millis) -> Option<Millis> {
        let run = self.run.as_ref()?;
        run.pool.next_wakeup(now).into_iter().chain(run.known.next_wakeup(now)).min()
    }

    /// The status to write, if the object shows another one and enough time has passed.
    pub(super) fn status_due(&mut self, world: &World, metrics: &Metrics) -> Option<GpuPoolStatus> {
        let Run { pool, known, .. } = self.run.as_ref()?;
        let waited = self.status_at.map_or(Duration::MAX, |at| at.elapsed());
        if waited < STATUS_EVERY {
            return None;
        }
        let status = status::render(pool, known, world, &self.troubles);
        self.figures(world, &status, metrics);
        // The watch may trail our own last write, so that is compared as well.
        let shown = world.pool.status.as_ref() == Some(&status);
        if shown || self.status_sent.as_ref() == Some(&status) && waited < STATUS_AGAIN {
            return None;
        }
        self.status_at = Some(instant());
        self.status_sent = Some(status.clone());
        Some(status)
    }

    /// The status to write of a pool that cannot be run, if the object shows another one.
    pub(super) fn unusable(&mut self, object: &GpuPool, now: Millis) -> Option<GpuPoolStatus> {
        if self.run.is_some() {
            return None;
        }
        let status = status::unusable(object, &self.troubles, now)?;
        let waited = self.status_at.map_or(Duration::MAX, |at| at.elapsed());
        let due = waited >= STATUS_EVERY && object.status.as_ref() != Some(&status);
        due.then(|| {
            self.status_at = Some(instant());
            status
        })
    }

    /// Brings the pool's figures up to date.
    fn figures(&mut self, world: &World, status: &GpuPoolStatus, metrics: &Metrics) {
        let pool = || world.name.clone();
        let gpus = &status.gpus;
        for (state, count) in [
            ("free", gpus.free),
            ("reserved", gpus.reserved),
            ("held", gpus.held),
            ("foreign", gpus.foreign),
            ("unhealthy", gpus.capacity - gpus.healthy),
        ] {
            let label = GpuLabel { pool: pool(), state };
            metrics.gpus.get_or_create_owned(&label).set(count.into());
        }
        for (phase, count) in [
            ("Open", status.nodes.open),
            ("Draining", status.nodes.draining),
            ("Exclusive", status.nodes.exclusive),
            ("Wave", status.nodes.wave),
        ] {
            let label = PhaseLabel { pool: pool(), phase };
            metrics.nodes.get_or_create_owned(&label).set(count.into());
        }
        for (shape, of) in [(Shape::Small, &status.small), (Shape::Large, &status.whole_node_large)]
        {
            let label = ShapeLabel { pool: pool(), shape: ShapeValue(shape) };
            metrics.queue_depth.get_or_create_owned(&label).set(of.queue.depth.into());
            let oldest = of.queue.oldest.as_ref().map(|at| world.now.since(millis(at)));
            let wait = metrics.queue_oldest_wait.get_or_create_owned(&label);
            wait.set(seconds(oldest.unwrap_or_default().0));
        }
        let agents = self.run.iter().flat_map(|run| run.known.agents.values());
        let away = i64::try_from(agents.clone().filter(|word| !word.ready).count());
        let owed: i64 = agents.map(|word| i64::from(word.unanswered)).sum();
        let label = PoolLabel { pool: pool() };
        metrics.agents_not_ready.get_or_create_owned(&label).set(away.unwrap_or(i64::MAX));
        metrics.releases_unanswered.get_or_create_owned(&label).set(owed);
        let idle = metrics.drain_idle_gpu.get_or_create_owned(&PoolLabel { pool: pool() });
        idle.inc_by(seconds(std::mem::take(&mut self.idle_gpu_ms)));
    }
}

/// GPU time that was idle behind closed gates in a span during which nothing changed.
fn idle_behind_gates(pool: &Pool, span: Millis) -> u64 {
    let gated = pool.nodes().values().filter(|node| node.gate().is_some());
    let idle: u32 = gated.map(|node| node.free().count()).sum();
    u64::from(idle).saturating_mul(span.0)
}
