//! The tables: what is asked of the API server, and what must come back.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::server::{By, Server};
use crate::stage::eventually;

/// One case of a table. What a table's cases may hold is told at its top.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    #[serde(rename = "case")]
    pub(crate) name: String,
    pod: Option<Value>,
    pool: Option<Value>,
    #[serde(default)]
    expect: Value,
    #[serde(default)]
    absent: Vec<String>,
    message: Option<String>,
    then: Option<Then>,
    patch: Option<Value>,
    #[serde(default)]
    by: By,
}

/// A change of a pool, in force as soon as a certain pod is refused.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Then {
    pool: String,
    patch: Value,
    until_refused: Value,
}

impl Then {
    fn path(&self) -> String {
        format!("{POOLS}/{}", self.pool)
    }

    /// Makes the change and gives the pool as it was.
    fn make(&self, server: &Server) -> Result<Value, String> {
        let before = server.send(By::Admin, "GET", &self.path(), &Value::Null)?;
        server.send(By::Admin, "PATCH", &self.path(), &self.patch)?;
        let pod = complete(&self.until_refused, "probe");
        let path = format!("{}{DRY}", pods(&pod));
        eventually("the change of the pool in force", || {
            server.send(By::Admin, "POST", &path, &pod).is_err()
        })?;
        Ok(before)
    }

    fn undo(&self, server: &Server, before: &Value) -> Result<(), String> {
        let mut pool = server.send(By::Admin, "GET", &self.path(), &Value::Null)?;
        pool["spec"] = before["spec"].clone();
        server.send(By::Admin, "PUT", &self.path(), &pool).map(drop)
    }
}

/// Reads a table.
pub(crate) fn read(path: &Path) -> Vec<Case> {
    let text = std::fs::read_to_string(path).unwrap();
    let cases: Vec<Case> =
        serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert!(!cases.is_empty(), "{} is empty", path.display());
    cases
}

const POOLS: &str = "/apis/sluice.dev/v1alpha1/gpupools";
const DRY: &str = "?dryRun=All&fieldValidation=Strict";

impl Case {
    /// Asks, and compares.
    pub(crate) fn judge(&self, server: &Server) -> Result<(), String> {
        let reply = match (&self.pod, &self.pool, &self.patch) {
            (Some(pod), None, None) => {
                let pod = complete(pod, "x");
                server.send(self.by, "POST", &format!("{}{DRY}", pods(&pod)), &pod)
            }
            (None, Some(pool), None) => {
                let mut pool = pool.clone();
                pool["apiVersion"] = json!("sluice.dev/v1alpha1");
                pool["kind"] = json!("GpuPool");
                server.send(self.by, "POST", &format!("{POOLS}{DRY}"), &pool)
            }
            (Some(pod), None, Some(patch)) => self.change(server, pod, patch)?,
            _ => return Err("a case has a pod, a pod and a patch, or a pool".to_owned()),
        };
        match (&self.message, reply) {
            (Some(wanted), Err(message)) if words(&message).contains(&words(wanted)) => Ok(()),
            (Some(wanted), Err(message)) => Err(format!("told: {message}\nnot: {wanted}")),
            (Some(_), Ok(reply)) => Err(format!("it was not refused: {reply}")),
            (None, Err(message)) => Err(format!("it was refused: {message}")),
            (None, Ok(reply)) => self.compare(&reply),
        }
    }

    fn change(
        &self,
        server: &Server,
        pod: &Value,
        change: &Value,
    ) -> Result<Result<Value, String>, String> {
        let pod = complete(pod, "changed");
        let path = format!("{}/changed", pods(&pod));
        server.send(By::Admin, "POST", &pods(&pod), &pod)?;
        let before = self.then.as_ref().map(|then| then.make(server)).transpose()?;
        let reply = server.send(self.by, "PATCH", &format!("{path}{DRY}"), change);
        if let (Some(then), Some(before)) = (&self.then, before) {
            then.undo(server, &before)?;
        }
        // It has never been bound, so it is gone at once.
        server.send(By::Admin, "DELETE", &path, &json!({"gracePeriodSeconds": 0}))?;
        Ok(reply)
    }

    fn compare(&self, reply: &Value) -> Result<(), String> {
        if let Some(difference) = differs("", &self.expect, reply) {
            return Err(difference);
        }
        for path in &self.absent {
            let found = path.split('.').try_fold(reply, |value, key| value.get(key));
            if let Some(found) = found {
                return Err(format!("{path} is there: {found}"));
            }
        }
        Ok(())
    }
}

/// A pod as the tables shorten it, made whole.
fn complete(pod: &Value, name: &str) -> Value {
    let mut pod = pod.clone();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    let metadata = object(&mut pod["metadata"]);
    metadata.entry("name").or_insert(json!(name));
    metadata.entry("namespace").or_insert(json!("default"));
    for kind in ["initContainers", "containers"] {
        let containers = pod["spec"][kind].as_array_mut().into_iter().flatten();
        for (index, container) in containers.enumerate() {
            let container = object(container);
            container.entry("name").or_insert(json!(format!("{}{index}", &kind[..1])));
            container.entry("image").or_insert(json!("none"));
            if let Some(gpus) = container.remove("gpus") {
                let limits = json!({"limits": {"nvidia.com/gpu": gpus}});
                assert!(container.insert("resources".into(), limits).is_none(), "{pod}");
            }
        }
        if pod["spec"][kind].is_null() {
            object(&mut pod["spec"]).remove(kind);
        }
    }
    pod
}

fn object(value: &mut Value) -> &mut Map<String, Value> {
    if value.is_null() {
        *value = json!({});
    }
    value.as_object_mut().unwrap()
}

fn pods(pod: &Value) -> String {
    format!("/api/v1/namespaces/{}/pods", pod["metadata"]["namespace"].as_str().unwrap())
}

/// Line breaks are YAML's.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Where `found` lacks something of `wanted`. Lists must be equal in length.
fn differs(path: &str, wanted: &Value, found: &Value) -> Option<String> {
    match (wanted, found) {
        (Value::Null, _) => None,
        (Value::Object(wanted), _) => wanted.iter().find_map(|(key, value)| {
            let path = format!("{path}.{key}");
            match found.get(key) {
                None => Some(format!("{path} is absent, not {value}")),
                Some(found) => differs(&path, value, found),
            }
        }),
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => {
            let pairs = wanted.iter().zip(found).enumerate();
            pairs.into_iter().find_map(|(i, (w, f))| differs(&format!("{path}[{i}]"), w, f))
        }
        _ if wanted == found => None,
        _ => Some(format!("{path} is {found}, not {wanted}")),
    }
}
