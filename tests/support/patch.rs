//! Patches as the API server in memory understands them: enough for those that Sluice sends.

use serde_json::{Map, Value, json};

/// A patch with its kind, on its way to [`apply`].
pub(super) fn wrap(content_type: &str, patch: &Value) -> Value {
    json!({"kind": content_type, "patch": patch})
}

/// The object after a patch.
pub(super) fn apply(object: &Value, wrapped: &Value) -> Result<Value, String> {
    let patch = &wrapped["patch"];
    let mut next = object.clone();
    match wrapped["kind"].as_str().unwrap_or_default() {
        "application/merge-patch+json" => merge(&mut next, patch, false),
        "application/strategic-merge-patch+json" => merge(&mut next, patch, true),
        // Of a field set the tests need no more than that it is taken over.
        "application/apply-patch+yaml" => next["status"] = patch["status"].clone(),
        other => return Err(format!("this server does not know {other}")),
    }
    Ok(next)
}

fn merge(object: &mut Value, patch: &Value, strategic: bool) {
    let Value::Object(changes) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let Value::Object(fields) = object else { return };
    for (key, change) in changes {
        if change.is_null() {
            fields.remove(key);
        } else if strategic && key == "conditions" {
            by_key(fields.entry(key).or_insert_with(|| json!([])), change, "type");
        } else if strategic && key == "schedulingGates" {
            by_key(fields.entry(key).or_insert_with(|| json!([])), change, "name");
        } else {
            merge(fields.entry(key).or_insert(Value::Null), change, strategic);
        }
    }
}

/// Lists whose elements are merged by a key.
fn by_key(list: &mut Value, changes: &Value, key: &str) {
    let (Value::Array(list), Value::Array(changes)) = (list, changes) else { return };
    for change in changes {
        if change["$patch"] == "delete" {
            list.retain(|one| one[key] != change[key]);
            continue;
        }
        match list.iter_mut().find(|one| one[key] == change[key]) {
            Some(one) => merge(one, change, false),
            None => list.push(change.clone()),
        }
    }
}
