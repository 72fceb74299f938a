//! Lists and watches of the API server in memory.

use std::collections::BTreeMap;

use axum::body::Body;
use futures::stream;
use serde_json::{Value, json};

use super::apiserver::ApiServer;

/// One change in the server's history.
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) event: &'static str,
    pub(super) collection: String,
    pub(super) object: Value,
}

impl Change {
    pub(super) fn event(&self) -> Value {
        json!({"type": self.event, "object": self.object})
    }
}

/// The collection of an object over all namespaces: `/api/v1/pods` of
/// `/api/v1/namespaces/team/pods/a`.
pub(super) fn of(path: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    if let Some(at) = parts.iter().position(|part| *part == "namespaces")
        && parts.len() > at + 2
    {
        parts.drain(at..at + 2);
    }
    parts.join("/")
}

/// Whether a path is that of a collection.
pub(super) fn is_one(path: &str) -> bool {
    matches!(path.rsplit('/').next(), Some("pods" | "nodes" | "gpunodes" | "gpupools"))
}

/// The objects of a collection.
pub(super) fn list(objects: &BTreeMap<String, Value>, path: &str, version: u64) -> Value {
    let found = objects.iter().filter(|(object, _)| of(object) == path);
    let items: Vec<&Value> = found.map(|(_, object)| object).collect();
    json!({
        "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": version.to_string()},
        "items": items,
    })
}

/// The changes of a collection from the version that the query names, as they happen.
pub(super) fn stream(server: ApiServer, path: String, query: &str) -> Body {
    let version = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
    let from = server.position(version.and_then(|text| text.parse().ok()).unwrap_or_default());
    let moved = server.moved();
    let lines = stream::unfold((server, path, from, moved), |state| async move {
        let (server, path, mut from, mut moved) = state;
        loop {
            moved.borrow_and_update();
            let (events, next) = server.changes(&path, from);
            from = next;
            if !events.is_empty() {
                let lines: Vec<String> = events.iter().map(Value::to_string).collect();
                let lines = lines.join("\n") + "\n";
                return Some((Ok::<_, std::io::Error>(lines), (server, path, from, moved)));
            }
            moved.changed().await.ok()?;
        }
    });
    Body::from_stream(lines)
}
