//! The model: so many nodes, these pods in this order, and this much trouble.

use std::sync::Arc;

use serde_json::{from_value, json};
use sluice::api::GpuPool;
use sluice::policy::TenantId;
use sluice::translate::plan::Action;
use sluice::translate::pool;

use super::mutants::Mutant;
use super::properties;
use super::replica::Settings;
use super::server::{GPUS, START, Wanted, node};
use super::state::{State, Troubles};

/// What is explored.
pub(crate) struct Protocol {
    pub(crate) settings: Settings,
    pub(crate) pods: Vec<Wanted>,
    troubles: Troubles,
    /// Whether pods bear their numbers from the start, as all but the newest do.
    pub(crate) numbered: bool,
    /// Whether states count as different by what happened before.
    pub(crate) marked: bool,
    pub(crate) wanted: Vec<properties::Wanted>,
    pub(crate) mutant: Option<Mutant>,
}

impl Protocol {
    /// `pods` has a letter for each pod, in order of creation: `s` for a small, `L` for a large,
    /// `r` for a small that takes over the name of the one before it, once that is gone.
    pub(crate) fn new(nodes: usize, pods: &str, troubles: Troubles) -> Self {
        let spec = from_value(json!({"gpusPerNode": GPUS})).unwrap();
        let mut object = GpuPool::new("default", spec);
        object.metadata.generation = Some(1);
        let config = pool::config(&object.spec, |_| TenantId(0)).unwrap();
        let nodes = (0..nodes).map(|index| format!("n{index}"));
        let nodes = nodes.map(|name| (name.clone(), Arc::new(node(&name)))).collect();
        let mut wanted: Vec<Wanted> = Vec::new();
        for (shape, index) in pods.chars().zip(0..) {
            let name = format!("{}{index}", shape.to_ascii_lowercase());
            let before = wanted.last().filter(|_| shape == 'r');
            let after = before.map(|before| before.uid.clone());
            let name = before.map_or(name, |before| before.name.clone());
            let uid = before.map_or_else(|| name.clone(), |before| format!("{}-again", before.uid));
            wanted.push(Wanted { name, uid, large: shape == 'L', after });
        }
        let settings =
            Settings { pool: Arc::new(object), config, nodes, all_writes: false, mutant: None };
        Self {
            settings,
            pods: wanted,
            troubles,
            numbered: true,
            marked: false,
            wanted: Vec::new(),
            mutant: None,
        }
    }

    /// Pods get their numbers from whoever sees them first.
    pub(crate) fn unnumbered(mut self) -> Self {
        self.numbered = false;
        self
    }

    /// Every write of a ledger counts, also those for which nothing waits.
    pub(crate) fn with_all_writes(mut self) -> Self {
        self.settings.all_writes = true;
        self
    }

    /// These must be reached; what happened before counts.
    pub(crate) fn reaching(mut self, wanted: &[properties::Wanted]) -> Self {
        self.marked = true;
        self.wanted = wanted.to_vec();
        self
    }

    pub(crate) fn spoilt(mut self, mutant: Mutant) -> Self {
        self.mutant = Some(mutant);
        self.settings.mutant = Some(mutant);
        self
    }

    /// The first leader has its ledgers in order before the first pod comes.
    pub(crate) fn first_state(&self) -> State {
        let names: Vec<String> = self.settings.nodes.keys().cloned().collect();
        let mut state = State::new(&names, self.troubles);
        state.replicas[0].lead(&state.server, &self.settings, START);
        state.replicas[0].round(&self.settings, START);
        for sent in std::mem::take(&mut state.replicas[0].sent) {
            if let Action::WriteLedger { object, .. } = &*sent.action {
                state.write_ledger(object).unwrap();
            }
        }
        state.replicas[0].lead(&state.server, &self.settings, START);
        state.replicas[0].round(&self.settings, START);
        assert!(state.replicas[0].sent.is_empty(), "the ledgers are in order");
        state.lease = Some(0);
        state.seal(self.marked);
        state
    }
}
