//! One scenario: a namespace and a folder of its own, pods by name, facts by pod, and the checks
//! that follow.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use anyhow::{Context as _, Result, anyhow, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde_json::json;
use sluice::api::names::ANNOTATION_SEQUENCE;
use sluice::api::{GpuNodeStatus, GpuPoolStatus, NodePhase};

use super::pods::{self, Draft};
use super::records::{Reader, Record};
use super::world::{History, State};
use super::{Case, Cluster, GPUS, LIMIT, NODE, check, now_ms};

/// Below it each scenario has its folder. On the cluster's own tmpfs: it goes with the cluster.
const FOLDERS: &str = "/run/sluice-e2e";
/// Label of the namespaces.
pub(crate) const NAMESPACE_LABEL: &str = "sluice-e2e";

/// One scenario.
pub(crate) struct Scenario {
    /// What it shares with the others.
    pub(crate) cluster: Arc<Cluster>,
    /// Its namespace.
    pub(crate) namespace: String,
    /// Its folder on the node.
    pub(crate) folder: PathBuf,
    /// What was so before it began.
    pub(crate) before: check::Before,
    new_counters: AtomicBool,
    _reader: Reader,
}

/// Opens a scenario, plays it, cleans up, and checks what has to hold after each.
pub(super) async fn run(cluster: Arc<Cluster>, case: Case) -> Result<()> {
    let scenario = Arc::new(Scenario::open(cluster, case.name).await?);
    // In a task of its own, so that a failed assertion does not end the cleaning up.
    let played = tokio::spawn((case.body)(scenario.clone())).await;
    let played = match played {
        Ok(result) => result,
        Err(panic) => Err(anyhow!(panic_text(panic))),
    };
    let closed = scenario.close().await;
    // The first failure explains the second.
    played.and(closed)
}

fn panic_text(error: tokio::task::JoinError) -> String {
    let Ok(payload) = error.try_into_panic() else { return "cancelled".to_owned() };
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("panicked").to_owned()
}

impl Scenario {
    async fn open(cluster: Arc<Cluster>, name: &str) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let words: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let words = &words.replace("--", "-")[..words.replace("--", "-").len().min(40)];
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let namespace =
            format!("{}-{}-{number}", words.trim_end_matches('-'), now_ms() / 1000 % 100_000);
        let folder = Path::new(FOLDERS).join(&namespace);
        for part in ["records", "release"] {
            std::fs::create_dir_all(folder.join(part)).context("making the scenario's folder")?;
        }
        check::idle(&cluster, "before the scenario").await?;
        let before = check::Before::take(&cluster)?;
        let reader = Reader::start(&folder.join("records"), cluster.world.sink())?;
        let object: Namespace = serde_json::from_value(json!({
            "metadata": {"name": namespace, "labels": {NAMESPACE_LABEL: "scenario"}},
        }))?;
        let api: Api<Namespace> = Api::all(cluster.client.clone());
        api.create(&PostParams::default(), &object).await?;
        Ok(Self {
            cluster,
            namespace,
            folder,
            before,
            new_counters: AtomicBool::new(false),
            _reader: reader,
        })
    }

    async fn close(&self) -> Result<()> {
        let api: Api<Namespace> = Api::all(self.client());
        api.delete(&self.namespace, &DeleteParams::default()).await?;
        self.until("every pod of the scenario is gone", |view| {
            view.histories().all(|pod| pod.gone_ms.is_some()).then_some(())
        })
        .await?;
        check::after(self).await
    }

    /// Client of the API server, as admin.
    pub(crate) fn client(&self) -> Client {
        self.cluster.client.clone()
    }

    /// Objects of this scenario's namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client(), &self.namespace)
    }

    /// The scenario takes the pool itself away, so that its counters cannot be compared.
    pub(crate) fn counters_start_anew(&self) {
        self.new_counters.store(true, Ordering::Relaxed);
    }

    /// Whether the pool's counters go on from where they were before.
    pub(crate) fn counters_go_on(&self) -> bool {
        !self.new_counters.load(Ordering::Relaxed)
    }

    /// Creates a pod; gives its UID.
    pub(crate) async fn create(&self, draft: Draft) -> Result<String> {
        let folder = self.folder.to_str().context("the folder's name is text")?;
        let pod: Pod = serde_json::from_value(draft.template(folder))?;
        let name = &draft.name;
        let made = self.api::<Pod>().create(&PostParams::default(), &pod).await;
        made.with_context(|| format!("creating pod {name}"))?.uid().context("a pod has a UID")
    }

    /// Creates pods in that order.
    pub(crate) async fn create_all(&self, drafts: Vec<Draft>) -> Result<()> {
        for draft in drafts {
            self.create(draft).await?;
        }
        Ok(())
    }

    /// Lets the container of a pod end by itself.
    pub(crate) fn release(&self, name: &str) -> Result<()> {
        std::fs::write(self.folder.join("release").join(name), "")
            .with_context(|| format!("releasing {name}"))
    }

    /// Lets these end, and waits until the API server says that they have.
    pub(crate) async fn finish(&self, names: &[&str]) -> Result<()> {
        for name in names {
            self.release(name)?;
        }
        self.until(&format!("{names:?} have ended"), |view| {
            names.iter().all(|name| view.pod(name).is_some_and(pods::terminal)).then_some(())
        })
        .await
    }

    /// Deletes a pod, as `kubectl delete` does.
    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        self.api::<Pod>().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// What was seen up to now.
    pub(crate) fn look<T>(&self, read: impl FnOnce(&View<'_>) -> T) -> T {
        read(&self.view(&self.cluster.world.now()))
    }

    /// Waits for something in what is seen.
    pub(crate) async fn until<T>(
        &self,
        what: &str,
        mut find: impl FnMut(&View<'_>) -> Option<T>,
    ) -> Result<T> {
        self.cluster.world.until(what, LIMIT, |state| find(&self.view(state))).await
    }

    /// Waits until the containers of these pods have started.
    pub(crate) async fn running(&self, names: &[&str]) -> Result<()> {
        self.until(&format!("{names:?} run"), |view| {
            names.iter().all(|name| view.started(name).is_some()).then_some(())
        })
        .await
    }

    /// Waits until these pods wait, each with a reason and a place in the queue that Sluice wrote.
    pub(crate) async fn waiting(&self, waiting: &[&str]) -> Result<()> {
        self.until(&format!("{waiting:?} wait, with a reason"), |view| {
            let waits = |name: &&str| {
                let pod = view.pod(name)?;
                pod.annotations().get(ANNOTATION_SEQUENCE)?;
                pods::waits_because(pod)
            };
            waiting.iter().all(|name| waits(name).is_some()).then_some(())
        })
        .await
    }

    /// These smalls run, the large `big` waits for them to end, and the small `late` for `big`.
    pub(crate) async fn drains_for_big(&self, smalls: &[&str]) -> Result<()> {
        self.create_all(smalls.iter().map(|&name| pods::small(name)).collect()).await?;
        self.running(smalls).await?;
        self.create(pods::large("big")).await?;
        self.phase(NodePhase::Draining).await?;
        self.create(pods::small("late")).await?;
        self.waiting(&["big", "late"]).await
    }

    /// Waits until the real node is in that phase.
    pub(crate) async fn phase(&self, phase: NodePhase) -> Result<()> {
        self.until(&format!("{NODE} is in phase {phase:?}"), |view| {
            (view.ledger(NODE)?.phase == phase).then_some(())
        })
        .await
    }

    fn view<'a>(&'a self, state: &'a State) -> View<'a> {
        View { state, namespace: &self.namespace }
    }
}

/// What was seen of one scenario.
pub(crate) struct View<'a> {
    /// All that was seen.
    pub(crate) state: &'a State,
    namespace: &'a str,
}

impl<'a> View<'a> {
    /// Every pod that the scenario's namespace ever had.
    pub(crate) fn histories(&self) -> impl Iterator<Item = &'a History<Pod>> {
        let namespace = self.namespace.to_owned();
        self.state
            .pods
            .values()
            .filter(move |pod| pod.last().namespace().is_some_and(|name| name == namespace))
    }

    /// All versions of the pod of that name; of its latest incarnation if there were several.
    pub(crate) fn history(&self, name: &str) -> Option<&'a History<Pod>> {
        let pods = self.histories().filter(|pod| pod.last().name_any() == name);
        pods.max_by_key(|pod| pod.versions.first().map(|seen| seen.version))
    }

    /// The newest version of that pod.
    pub(crate) fn pod(&self, name: &str) -> Option<&'a Pod> {
        self.history(name).map(History::last)
    }

    /// When that pod's container started, and which GPUs it saw, in its own words.
    pub(crate) fn started(&self, name: &str) -> Option<(u64, &'a [String])> {
        let uid = self.pod(name)?.uid()?;
        self.state.records.iter().find_map(|record| match record {
            Record::Start { time_ms, uid: of, gpus, .. } if *of == uid => {
                Some((*time_ms, gpus.as_slice()))
            }
            _ => None,
        })
    }

    /// When that pod's container ended, in its own words.
    pub(crate) fn ended(&self, name: &str) -> Option<u64> {
        let uid = self.pod(name)?.uid()?;
        self.state.records.iter().find_map(|record| match record {
            Record::End { time_ms, uid: of, .. } if *of == uid => Some(*time_ms),
            _ => None,
        })
    }

    /// The version of that pod in which something holds for the first time: its place in the
    /// order of all writes.
    pub(crate) fn order(&self, name: &str, holds: impl Fn(&Pod) -> bool) -> Option<u64> {
        Some(self.history(name)?.first(holds)?.version)
    }

    /// The ledger of a node.
    pub(crate) fn ledger(&self, node: &str) -> Option<&'a GpuNodeStatus> {
        self.state.ledger(node)?.last().status.as_ref()
    }

    /// Status of the default pool.
    pub(crate) fn pool(&self) -> Option<&'a GpuPoolStatus> {
        self.state.pool()?.last().status.as_ref()
    }
}

/// Whether these containers saw GPUs that no other of them saw.
pub(crate) fn distinct<'a>(gpus: impl IntoIterator<Item = &'a String>) -> Result<usize> {
    let mut seen: Vec<&String> = gpus.into_iter().collect();
    let number = seen.len();
    seen.sort();
    seen.dedup();
    ensure!(seen.len() == number, "a GPU was seen twice: {seen:?} are all of {number}");
    Ok(number)
}

/// So many names with a common beginning: `s-1` and up.
pub(crate) fn names(prefix: &str, count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("{prefix}-{number}")).collect()
}

/// The names as the functions above take them.
pub(crate) fn refs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// Every GPU of the real node is seen by one container.
pub(crate) fn sees_all(gpus: &[String]) -> Result<()> {
    ensure!(distinct(gpus)? == GPUS, "saw {} of {GPUS} GPUs: {gpus:?}", gpus.len());
    Ok(())
}
