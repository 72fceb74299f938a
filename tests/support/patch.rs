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
        "application/json-patch+json" => operations(&mut next, patch)?,
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
            conditions(fields.entry(key).or_insert_with(|| json!([])), change);
        } else {
            merge(fields.entry(key).or_insert(Value::Null), change, strategic);
        }
    }
}

/// A pod's conditions are merged by their type.
fn conditions(list: &mut Value, changes: &Value) {
    let (Value::Array(list), Value::Array(changes)) = (list, changes) else { return };
    for change in changes {
        match list.iter_mut().find(|one| one["type"] == change["type"]) {
            Some(one) => merge(one, change, false),
            None => list.push(change.clone()),
        }
    }
}

fn operations(object: &mut Value, patch: &Value) -> Result<(), String> {
    for operation in patch.as_array().into_iter().flatten() {
        let place = operation["path"].as_str().unwrap_or_default();
        match operation["op"].as_str().unwrap_or_default() {
            "test" if object.pointer(place) == Some(&operation["value"]) => {}
            "test" => return Err(format!("testing path {place} failed")),
            "remove" => {
                let (parent, index) = place.rsplit_once('/').unwrap_or_default();
                let list = object.pointer_mut(parent).and_then(Value::as_array_mut);
                let index: usize = index.parse().map_err(|_| format!("no index in {place}"))?;
                list.filter(|list| index < list.len())
                    .map(|list| list.remove(index))
                    .ok_or_else(|| format!("nothing at {place}"))?;
            }
            other => return Err(format!("this server does not know {other}")),
        }
    }
    Ok(())
}
