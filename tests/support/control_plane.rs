//! A cluster in memory around the real controller and the real extender: kube-scheduler and
//! kubelet are played, the API server is [`ApiServer`].

use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use serde_json::{Value, json};
use sluice::api::{GpuNode, GpuNodeStatus, NodePhase};
use sluice::clock::Clock;
use sluice::controller::debug::{self, Desk};
use sluice::controller::lease::{self, Params};
use sluice::controller::stores::Stores;
use sluice::controller::{Context, decide};
use sluice::extender::{Extender, Limits};
use sluice::metrics::Metrics;
use sluice::policy::Millis;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::apiserver::ApiServer;
use super::ledger::{START, ledger_path};

/// How long a test waits for something that should come.
const PATIENCE: Duration = Duration::from_secs(20);
const RESOURCE: &str = "nvidia.com/gpu";

/// The cluster.
pub struct ControlPlane {
    pub server: ApiServer,
    pub clock: Clock,
    pub metrics: Metrics,
    gpus: usize,
    life: Option<Life>,
}

/// One process of the controller, with the extender that it serves.
struct Life {
    tasks: JoinSet<()>,
    router: Router,
}

impl ControlPlane {
    /// A pool of one node with so many GPUs, and a controller at work.
    pub fn start(gpus: usize) -> Self {
        Self::with(gpus, json!({}))
    }

    /// The same with settings of the pool.
    pub fn with(gpus: usize, mut spec: Value) -> Self {
        let server = ApiServer::default();
        spec["gpusPerNode"] = json!(gpus);
        server.put(
            "/apis/sluice.dev/v1alpha1/gpupools/default",
            json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "GpuPool",
                   "metadata": {"name": "default", "generation": 1}, "spec": spec}),
        );
        let (clock, metrics) = (Clock::manual(START), Metrics::default());
        let mut plane = Self { server, clock, metrics, gpus, life: None };
        plane.add_node("n1");
        plane.launch();
        plane
    }

    /// Adds a node.
    pub fn add_node(&self, name: &str) {
        let gpus = json!({RESOURCE: self.gpus.to_string()});
        self.server.put(
            &format!("/api/v1/nodes/{name}"),
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {},
                   "status": {"capacity": gpus, "allocatable": gpus,
                              "conditions": [{"type": "Ready", "status": "True"}]}}),
        );
    }

    /// Starts a controller process.
    pub fn launch(&mut self) {
        let client = self.server.client();
        let mut tasks = JoinSet::new();
        let mut watches = JoinSet::new();
        let stores = Stores::start(&client, &self.metrics, &mut watches);
        tasks.spawn(async move { while watches.join_next().await.is_some() {} });
        // As a container that starts again in its pod: the lease is still its own.
        let params = Params::new("sluice".to_owned(), "leader".to_owned(), "pod-1".to_owned());
        let (campaign, leadership) = lease::campaign(client.clone(), params, self.clock.clone());
        let stop = CancellationToken::new();
        tasks.spawn(campaign.run(stop.clone()));
        let extender = Extender::new(
            client.clone(),
            stores.gpu_nodes.clone(),
            stores.nodes.clone(),
            stores.changed(),
            self.clock.clone(),
            self.metrics.clone(),
            Limits::default(),
        );
        let (clock, metrics) = (self.clock.clone(), self.metrics.clone());
        let namespace = "sluice".to_owned();
        let (desk, record_bytes) = (Desk::default(), 1 << 20);
        let snapshots = debug::router(desk.clone(), leadership.clone());
        let context =
            Context { client, namespace, stores, leadership, clock, metrics, desk, record_bytes };
        tasks.spawn(async move {
            decide(context, stop).await.expect("the engine");
        });
        self.life = Some(Life { tasks, router: extender.router().merge(snapshots) });
    }

    /// Ends the controller process as SIGKILL does.
    pub fn kill(&mut self) {
        self.life = None;
    }

    /// The node's agent reports its two GPUs, and that a pod holds the first.
    pub fn agent_finds(&self, pod: &str) {
        self.server.change(&ledger_path("n1"), |ledger| {
            ledger["status"]["agentSeen"] = json!("2026-11-30T00:00:00Z");
            let who = json!({"namespace": "team", "name": pod, "uid": pod});
            ledger["status"]["gpus"] = json!([
                {"index": 0, "id": "GPU-x", "health": "Healthy", "holder": who},
                {"index": 1, "id": "GPU-y", "health": "Healthy"}]);
        });
    }

    /// Creates a gated pod.
    pub fn create(&self, name: &str, shape: &str) {
        self.create_with(name, shape, &json!({}));
    }

    /// Creates a gated pod with further fields of its spec.
    pub fn create_with(&self, name: &str, shape: &str, spec: &Value) {
        let gpus = if shape == "small" { 1 } else { self.gpus };
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "team", "uid": name,
                "creationTimestamp": self.time(),
                "labels": {"sluice.dev/shape": shape}},
            "spec": {
                "schedulerName": "sluice", "schedulingGates": [{"name": "sluice.dev/admission"}],
                "activeDeadlineSeconds": 100, "terminationGracePeriodSeconds": 5,
                "containers": [{"name": "main", "image": "x",
                                "resources": {"limits": {RESOURCE: gpus.to_string()}}}]},
            "status": {"phase": "Pending"},
        });
        for (key, value) in spec.as_object().expect("fields") {
            pod["spec"][key] = value.clone();
        }
        self.server.put(&path(name), pod);
    }

    /// kubelet: the pod runs.
    pub fn run(&self, name: &str) {
        let now = self.time();
        self.server.change(&path(name), |pod| {
            pod["status"]["phase"] = json!("Running");
            pod["status"]["startTime"] = json!(now);
        });
    }

    /// kubelet: the pod ended.
    pub fn end(&self, name: &str, phase: &str) {
        self.server.change(&path(name), |pod| pod["status"]["phase"] = json!(phase));
    }

    /// kube-scheduler: every pod that is not gated and not bound gets one try; then kubelet takes up
    /// what is bound. Says what was not bound, and why not.
    pub async fn schedule(&self) -> Vec<(String, String)> {
        let mut refused = Vec::new();
        for path in self.server.paths("/api/v1/pods") {
            let Some(pod) = self.server.get(&path) else { continue };
            let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
            let gated = pod["spec"]["schedulingGates"].as_array().is_some_and(|g| !g.is_empty());
            let bound = pod["spec"]["nodeName"].is_string();
            if gated || bound || pod["spec"]["schedulerName"] != "sluice" {
                continue;
            }
            if let Err(why) = self.place(&pod).await {
                refused.push((name, why));
            }
        }
        self.take_up();
        refused
    }

    /// kubelet: pods that are bound run.
    fn take_up(&self) {
        for path in self.server.paths("/api/v1/pods") {
            let Some(pod) = self.server.get(&path) else { continue };
            if pod["spec"]["nodeName"].is_string() && pod["status"]["phase"] == "Pending" {
                self.run(pod["metadata"]["name"].as_str().expect("a name"));
            }
        }
    }

    async fn place(&self, pod: &Value) -> Result<(), String> {
        let nodes: Vec<String> = self
            .server
            .paths("/api/v1/nodes")
            .iter()
            .filter_map(|path| path.rsplit('/').next().map(str::to_owned))
            .collect();
        let answer = self.ask("/filter", json!({"Pod": pod, "NodeNames": nodes})).await?;
        let passed = answer["NodeNames"].as_array().cloned().unwrap_or_default();
        let Some(node) = passed.first() else { return Err(answer.to_string()) };
        let meta = &pod["metadata"];
        let bind = json!({"PodName": meta["name"], "PodNamespace": meta["namespace"],
                          "PodUID": meta["uid"], "Node": node});
        let answer = self.ask("/bind", bind).await?;
        match answer["Error"].as_str() {
            None | Some("") => Ok(()),
            Some(error) => Err(error.to_owned()),
        }
    }

    async fn ask(&self, verb: &str, body: Value) -> Result<Value, String> {
        let router = self.life.as_ref().ok_or("no controller")?.router.clone();
        let request = Request::post(verb)
            .header("content-type", "application/json")
            .body(Body::from(body.to_string()))
            .expect("a request");
        let response = router.oneshot(request).await.expect("an answer");
        let bytes = to_bytes(response.into_body(), 1 << 20).await.expect("a body");
        serde_json::from_slice(&bytes).map_err(|error| error.to_string())
    }

    /// What `/debug/snapshot` answers to a request for this host.
    pub async fn snapshot(&self, host: &str) -> (u16, String) {
        let router = self.life.as_ref().expect("a controller").router.clone();
        let request = Request::get("/debug/snapshot").header("host", host).body(Body::empty());
        let response = router.oneshot(request.expect("a request")).await.expect("an answer");
        let status = response.status().as_u16();
        let bytes = to_bytes(response.into_body(), 1 << 24).await.expect("a body");
        (status, String::from_utf8(bytes.to_vec()).expect("text"))
    }

    /// Plays kube-scheduler until the objects are so.
    pub async fn until(&self, what: &str, mut so: impl FnMut(&Self) -> bool) {
        let mut moved = self.server.moved();
        let wait = async {
            loop {
                moved.borrow_and_update();
                self.schedule().await;
                if so(self) {
                    return;
                }
                moved.changed().await.expect("the server");
            }
        };
        let came = tokio::time::timeout(PATIENCE, wait).await.is_ok();
        assert!(came, "waited in vain: {what}\n{}", self.describe());
    }

    /// Waits until these pods run and no others, and the ledger says so.
    pub async fn until_run(&self, names: &[&str]) {
        self.until(&format!("{names:?} run"), |plane| {
            let status = plane.status();
            let mut running: Vec<&str> = status
                .reservations
                .iter()
                .filter(|r| r.state == sluice::api::ReservationState::Running)
                .map(|r| r.name.as_str())
                .collect();
            running.sort_unstable();
            running == names && status.reservations.len() == names.len()
        })
        .await;
    }

    /// The ledger of node `n1`.
    pub fn ledger(&self) -> Option<GpuNode> {
        let object = self.server.get(&ledger_path("n1"))?;
        Some(serde_json::from_value(object).expect("a ledger"))
    }

    /// The status of that ledger.
    pub fn status(&self) -> GpuNodeStatus {
        self.ledger().and_then(|ledger| ledger.status).unwrap_or_default()
    }

    /// What the node does.
    pub fn phase(&self) -> NodePhase {
        self.status().phase
    }

    /// A pod's object.
    pub fn pod(&self, name: &str) -> Option<Value> {
        self.server.get(&path(name))
    }

    /// Reason of our condition on a pod.
    pub fn reason(&self, name: &str) -> Option<String> {
        let pod = self.pod(name)?;
        let conditions = pod["status"]["conditions"].as_array()?;
        let ours = conditions.iter().find(|c| c["type"] == "sluice.dev/Admitted")?;
        Some(ours["reason"].as_str()?.to_owned())
    }

    /// Whether our gate is still on a pod.
    pub fn gated(&self, name: &str) -> bool {
        let pod = self.pod(name).expect("the pod");
        pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty())
    }

    /// Time passes, and something happens, so that the controller looks at the clock.
    pub fn pass(&self, seconds: u64) {
        self.clock.advance(Millis::from_secs(seconds));
        let now = self.time();
        self.server.change("/api/v1/nodes/n1", |node| {
            node["metadata"]["annotations"]["looked-at"] = json!(now);
        });
    }

    /// Now, in whole seconds as the API writes it.
    pub fn time(&self) -> Value {
        let seconds = Millis(self.clock.now().0 / 1_000 * 1_000);
        json!(sluice::clock::to_timestamp(seconds).to_string())
    }

    fn describe(&self) -> String {
        let mut text = format!("{:#?}\n", self.status());
        for path in self.server.paths("/api/v1/pods") {
            text += &self.server.get(&path).unwrap_or_default().to_string();
            text.push('\n');
        }
        text
    }
}

/// Where a pod is.
pub fn path(name: &str) -> String {
    format!("/api/v1/namespaces/team/pods/{name}")
}
