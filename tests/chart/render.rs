//! What helm makes of the chart, by kind and name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use serde_json::Value;

pub(crate) const SERVED: &str = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy";

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) static HELM: LazyLock<PathBuf> = LazyLock::new(|| {
    if let Some(helm) = std::env::var_os("SLUICE_HELM") {
        return helm.into();
    }
    let script = root().join("tests/cluster/build-tools.sh");
    let built = Command::new(&script).stderr(std::process::Stdio::inherit()).output().unwrap();
    assert!(built.status.success(), "{}: {}", script.display(), built.status);
    Path::new(String::from_utf8(built.stdout).unwrap().trim()).join("helm")
});

pub(crate) fn helm(args: &[&str]) -> Output {
    // Its own settings, caches and kubeconfig are no part of the test.
    let home = tempfile::tempdir().unwrap();
    Command::new(&*HELM)
        .args(args)
        .current_dir(root())
        .env("HOME", home.path())
        .env("KUBECONFIG", home.path().join("none"))
        .output()
        .unwrap()
}

pub(crate) fn template(args: &[&str]) -> Output {
    let base = ["template", "sluice", "charts/sluice", "--namespace", "sluice-system"];
    helm(&[&base[..], args].concat())
}

/// Everything that is rendered, by kind and name.
pub(crate) struct Rendered(pub(crate) BTreeMap<(String, String), Value>);

impl Rendered {
    pub(crate) fn with(args: &[&str]) -> Self {
        let output = template(args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let mut objects = BTreeMap::new();
        for object in documents.into_iter().filter(|document| !document.is_null()) {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let key = (text(&object["kind"]), text(&object["metadata"]["name"]));
            assert!(objects.insert(key.clone(), object).is_none(), "{key:?} is rendered twice");
        }
        Self(objects)
    }

    pub(crate) fn get(&self, kind: &str, name: &str) -> &Value {
        let key = (kind.to_owned(), name.to_owned());
        self.0.get(&key).unwrap_or_else(|| panic!("no {kind} {name}: {:?}", self.0.keys()))
    }

    pub(crate) fn has(&self, kind: &str) -> bool {
        self.0.keys().any(|(other, _)| other == kind)
    }

    pub(crate) fn controller(&self) -> &Value {
        &self.get("Deployment", "sluice-controller")["spec"]["template"]["spec"]
    }

    pub(crate) fn unmark(&self) -> &Value {
        &self.get("Job", "sluice-unmark")["spec"]["template"]["spec"]
    }

    pub(crate) fn agent(&self) -> &Value {
        &self.get("DaemonSet", "sluice-agent")["spec"]["template"]["spec"]
    }

    pub(crate) fn scheduler(&self) -> Value {
        let config = self.get("ConfigMap", "sluice-config");
        serde_saphyr::from_str(config["data"]["scheduler.yaml"].as_str().unwrap()).unwrap()
    }

    pub(crate) fn pool(&self) -> Value {
        let config = self.get("ConfigMap", "sluice-config");
        serde_saphyr::from_str(config["data"]["pool.yaml"].as_str().unwrap()).unwrap()
    }
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    ["initContainers", "containers"]
        .iter()
        .flat_map(|kind| list(&pod[*kind]))
        .find(|container| container["name"] == name)
        .unwrap_or_else(|| panic!("no container {name}"))
}

pub(crate) fn strings(value: &Value) -> Vec<String> {
    list(value).iter().map(|item| item.as_str().unwrap().to_owned()).collect()
}
