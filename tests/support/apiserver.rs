//! An API server in memory, as a service for `kube::Client`: objects with resource versions and
//! UIDs, the rules of the calls that Sluice makes, and faults at the places where they hurt.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::body::Body as Answered;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tower::service_fn;

use super::collections::{self, Change};
use super::patch;

/// The server. Clones are the same server.
#[derive(Clone, Default)]
pub struct ApiServer(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<String, Value>,
    calls: Vec<String>,
    faults: VecDeque<(String, Fault)>,
    history: Vec<Change>,
    moved: watch::Sender<usize>,
    after_write: Option<AfterWrite>,
    writes_left: Option<usize>,
    forbidden: BTreeSet<String>,
}

/// Looks at what is there after each write: all objects, and the path of the one written.
type AfterWrite = Box<dyn FnMut(&BTreeMap<String, Value>, &str) + Send>;

/// What goes wrong with one call.
pub enum Fault {
    /// It is refused with this status, and takes no effect.
    Refuse(u16, &'static str, &'static str),
    /// It takes effect, and the answer is lost with the connection.
    LoseReply,
    /// The connection breaks before it arrives.
    LoseCall,
    /// It takes effect if true, and there is never an answer.
    Hang(bool),
    /// It is held up until this is sent to.
    Hold(oneshot::Receiver<()>),
    /// Somebody else does something just before it.
    Before(Box<dyn FnOnce(&ApiServer) + Send>),
}

/// An answer of the server.
type Answer = (StatusCode, Value);

impl ApiServer {
    /// A client of this server.
    pub fn client(&self) -> Client {
        let server = self.clone();
        let service = service_fn(move |request| server.clone().serve(request));
        Client::new(service, "default")
    }

    /// Lets the next call of this kind go wrong: `PUT /path/of/the/object`, as in [`Self::calls`].
    pub fn fault(&self, call: &str, fault: Fault) {
        self.state().faults.push_back((call.to_owned(), fault));
    }

    /// Refuses every call of this kind from now on.
    pub fn forbid(&self, call: &str) {
        self.state().forbidden.insert(call.to_owned());
    }

    /// Every call so far, in order.
    pub fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// Forgets the calls so far.
    pub fn forget_calls(&self) {
        self.state().calls.clear();
    }

    /// How often a call was made.
    pub fn count(&self, call: &str) -> usize {
        self.state().calls.iter().filter(|made| *made == call).count()
    }

    /// Puts an object there, as its creator would; gives it a UID if it has none.
    pub fn put(&self, path: &str, object: impl serde::Serialize) -> Value {
        self.state().store(path, serde_json::to_value(object).expect("an object"))
    }

    /// The object, if it is there.
    pub fn get(&self, path: &str) -> Option<Value> {
        self.state().objects.get(path).cloned()
    }

    /// Changes an object, as another writer would.
    pub fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
        let mut state = self.state();
        let mut object = state.objects.get(path).cloned().expect("the object");
        change(&mut object);
        state.store(path, object);
    }

    /// Removes an object.
    pub fn remove(&self, path: &str) {
        self.state().remove(path);
    }

    /// The paths of the objects of a collection, such as `/api/v1/pods`.
    pub fn paths(&self, collection: &str) -> Vec<String> {
        let state = self.state();
        let paths = state.objects.keys();
        paths.filter(|path| collections::of(path) == collection).cloned().collect()
    }

    /// Calls this after each write from now on.
    pub fn after_write(&self, look: impl FnMut(&BTreeMap<String, Value>, &str) + Send + 'static) {
        self.state().after_write = Some(Box::new(look));
    }

    /// Lets so many more writes through from clients; each after that is lost with its answer, as
    /// if the caller had died. `None` lets all through.
    pub fn allow_writes(&self, count: Option<usize>) {
        self.state().writes_left = count;
    }

    /// Whether a write was lost since [`Self::allow_writes`].
    pub fn used_up(&self) -> bool {
        self.state().writes_left == Some(0)
    }

    /// How many writes are left, if they are counted.
    pub fn writes_left(&self) -> Option<usize> {
        self.state().writes_left
    }

    /// Waits until the objects are so. Looks after each write.
    pub async fn until(&self, mut so: impl FnMut(&Self) -> bool) {
        let mut moved = self.state().moved.subscribe();
        loop {
            moved.borrow_and_update();
            if so(self) {
                return;
            }
            moved.changed().await.expect("the server");
        }
    }

    /// Changes of a collection after a position in the history, and the position after them.
    pub(super) fn changes(&self, collection: &str, from: usize) -> (Vec<Value>, usize) {
        let state = self.state();
        let changes = state.history[from..].iter();
        let events = changes.filter(|change| change.collection == collection);
        (events.map(Change::event).collect(), state.history.len())
    }

    /// The position in the history after this version.
    pub(super) fn position(&self, version: u64) -> usize {
        let state = self.state();
        state.history.partition_point(|change| change.version <= version)
    }

    pub(super) fn moved(&self) -> watch::Receiver<usize> {
        self.state().moved.subscribe()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic under the lock")
    }

    fn serve(
        self,
        request: Request<Body>,
    ) -> BoxFuture<'static, std::io::Result<Response<Answered>>> {
        async move {
            let (head, body) = request.into_parts();
            let bytes = body.collect_bytes().await.map_err(std::io::Error::other)?;
            let mut body =
                if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes)? };
            let path = head.uri.path().to_owned();
            let query = head.uri.query().unwrap_or_default();
            if head.method == Method::GET && query.contains("watch=true") {
                return Ok(Response::new(collections::stream(self, path, query)));
            }
            if head.method == Method::PATCH {
                let kind = head.headers.get("content-type").and_then(|kind| kind.to_str().ok());
                body = patch::wrap(kind.unwrap_or_default(), &body);
            }
            let fault = self.arrive(&head.method, &path);
            let lost = || std::io::Error::other("connection reset");
            // Leases and Events come by the clock; what is counted is what decisions bring about.
            let counted = !path.contains("/leases") && !path.contains("/events");
            if counted && head.method != Method::GET && !self.state().may_write() {
                return pending().await;
            }
            let (code, answer) = match fault {
                None => self.state().act(&head.method, &path, body),
                Some(Fault::Refuse(code, reason, message)) => failure(code, reason, message),
                Some(Fault::LoseCall) => return Err(lost()),
                Some(Fault::LoseReply) => {
                    self.state().act(&head.method, &path, body);
                    return Err(lost());
                }
                Some(Fault::Hang(effect)) => {
                    if effect {
                        self.state().act(&head.method, &path, body);
                    }
                    pending().await
                }
                Some(Fault::Hold(until)) => {
                    until.await.map_err(std::io::Error::other)?;
                    self.state().act(&head.method, &path, body)
                }
                Some(Fault::Before(other)) => {
                    other(&self);
                    self.state().act(&head.method, &path, body)
                }
            };
            let body = Answered::from(serde_json::to_vec(&answer)?);
            Ok(Response::builder().status(code).body(body).expect("a response"))
        }
        .boxed()
    }

    fn arrive(&self, method: &Method, path: &str) -> Option<Fault> {
        let mut state = self.state();
        let call = format!("{method} {path}");
        if state.forbidden.contains(&call) {
            state.calls.push(call);
            return Some(Fault::Refuse(403, "Forbidden", "not allowed here"));
        }
        let place = state.faults.iter().position(|(of, _)| *of == call);
        state.calls.push(call);
        place.and_then(|place| state.faults.remove(place)).map(|(_, fault)| fault)
    }
}

impl State {
    fn store(&mut self, path: &str, mut object: Value) -> Value {
        let known = self.objects.get(path);
        if let Some(known) = known {
            object["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"].clone();
            // Where the tests' clock stands still, so does a lease's time of renewal.
            if *known == object && !path.contains("/leases/") {
                return object;
            }
        }
        let event = if known.is_some() { "MODIFIED" } else { "ADDED" };
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{}", self.version));
        }
        self.objects.insert(path.to_owned(), object.clone());
        self.record(event, path, object.clone());
        object
    }

    fn remove(&mut self, path: &str) -> Option<Value> {
        let mut object = self.objects.remove(path)?;
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.record("DELETED", path, object.clone());
        Some(object)
    }

    fn record(&mut self, event: &'static str, path: &str, object: Value) {
        let (version, collection) = (self.version, collections::of(path));
        self.history.push(Change { version, event, collection, object });
        if let Some(look) = &mut self.after_write {
            look(&self.objects, path);
        }
        self.moved.send_replace(self.history.len());
    }

    fn may_write(&mut self) -> bool {
        match &mut self.writes_left {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    fn act(&mut self, method: &Method, path: &str, body: Value) -> Answer {
        if let Some(pod) = path.strip_suffix("/binding") {
            return self.bind(pod, &body);
        }
        let (object, status_only) = match path.strip_suffix("/status") {
            Some(object) => (object, true),
            None => (path, false),
        };
        if let Some(pod) = path.strip_suffix("/eviction") {
            return self.evict(pod);
        }
        match *method {
            Method::GET if collections::is_one(path) => {
                (StatusCode::OK, collections::list(&self.objects, path, self.version))
            }
            Method::GET => self.objects.get(object).map_or_else(
                || failure(404, "NotFound", &format!("{object} not found")),
                |found| (StatusCode::OK, found.clone()),
            ),
            Method::POST => self.create(object, body),
            Method::PUT => self.replace(object, &body, status_only),
            Method::PATCH => self.patch(object, &body, status_only),
            Method::DELETE => match self.remove(object) {
                Some(removed) => (StatusCode::OK, removed),
                None => failure(404, "NotFound", &format!("{object} not found")),
            },
            _ => failure(405, "MethodNotAllowed", "this server does not know how"),
        }
    }

    fn create(&mut self, collection: &str, body: Value) -> Answer {
        let name = body["metadata"]["name"].as_str().expect("a name");
        let path = format!("{collection}/{name}");
        if self.objects.contains_key(&path) {
            return failure(409, "AlreadyExists", &format!("{path} already exists"));
        }
        (StatusCode::CREATED, self.store(&path, body))
    }

    fn replace(&mut self, path: &str, body: &Value, status_only: bool) -> Answer {
        let Some(current) = self.objects.get(path).cloned() else {
            return failure(404, "NotFound", &format!("{path} not found"));
        };
        let wanted = &body["metadata"]["resourceVersion"];
        if !wanted.is_null() && *wanted != current["metadata"]["resourceVersion"] {
            return failure(409, "Conflict", "the object has been modified");
        }
        let mut next = if status_only { current.clone() } else { body.clone() };
        next["status"] =
            if status_only { body["status"].clone() } else { current["status"].clone() };
        next["metadata"]["uid"] = current["metadata"]["uid"].clone();
        (StatusCode::OK, self.store(path, next))
    }

    fn patch(&mut self, path: &str, wrapped: &Value, status_only: bool) -> Answer {
        let Some(current) = self.objects.get(path).cloned() else {
            return failure(404, "NotFound", &format!("{path} not found"));
        };
        let next = match patch::apply(&current, wrapped) {
            Ok(next) => next,
            Err(why) => return failure(422, "Invalid", &why),
        };
        if next["metadata"]["uid"] != current["metadata"]["uid"] {
            return failure(422, "Invalid", "metadata.uid: field is immutable");
        }
        let mut merged = if status_only { current.clone() } else { next.clone() };
        merged["status"] =
            if status_only { next["status"].clone() } else { current["status"].clone() };
        (StatusCode::OK, self.store(path, merged))
    }

    /// Evicts as if the pod took its leave at once: only the wish is recorded.
    fn evict(&mut self, path: &str) -> Answer {
        let Some(mut pod) = self.objects.get(path).cloned() else {
            return failure(404, "NotFound", &format!("{path} not found"));
        };
        pod["metadata"]["deletionTimestamp"] = json!("2030-01-01T00:00:00Z");
        self.store(path, pod);
        (StatusCode::CREATED, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
    }

    /// What the API server demands of a Binding.
    fn bind(&mut self, path: &str, body: &Value) -> Answer {
        let Some(mut pod) = self.objects.get(path).cloned() else {
            return failure(404, "NotFound", &format!("{path} not found"));
        };
        let uid = &body["metadata"]["uid"];
        if !uid.is_null() && *uid != pod["metadata"]["uid"] {
            return failure(409, "Conflict", "the UID in the precondition is another");
        }
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            return failure(409, "Conflict", "the pod is being deleted, cannot be assigned");
        }
        if !pod["spec"]["nodeName"].is_null() {
            return failure(409, "Conflict", "the pod is already assigned to a node");
        }
        pod["spec"]["nodeName"] = body["target"]["name"].clone();
        self.store(path, pod);
        (StatusCode::CREATED, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
    }
}

fn failure(code: u16, reason: &str, message: &str) -> Answer {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message,
    });
    (StatusCode::from_u16(code).expect("a status code"), status)
}
