//! Cluster side: the wire contracts in `proto/` are kubelet's, to the last field.
//!
//! Upstream's files come from the kubelet module that the test cluster pins, so the comparison
//! follows every update of the pin.

#![cfg(feature = "cluster")]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Folder of the pinned kubelet module, fetched if it is not there.
fn kubelet_module() -> PathBuf {
    let output = Command::new("go")
        .args(["mod", "download", "-json", "k8s.io/kubelet"])
        .current_dir(root().join("tests/cluster/tools"))
        .output()
        .expect("this test needs Go, as the test cluster does");
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "go mod download: {text}{error}");
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    PathBuf::from(found["Dir"].as_str().unwrap_or_else(|| panic!("no folder in {text}")))
}

/// Everything in a file that is on the wire, by name. Comments, options and order are not.
type Contract = BTreeMap<String, String>;

fn contract(file: &Path) -> Contract {
    let folder = file.parent().unwrap();
    let set =
        protox::compile([file], [folder]).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let file = set.file.into_iter().last().unwrap();
    let mut found = Contract::new();
    found.insert("package".to_owned(), file.package().to_owned());
    found.insert("syntax".to_owned(), file.syntax().to_owned());
    services(&file, &mut found);
    for message in &file.message_type {
        describe(message, "", &mut found);
    }
    assert!(file.enum_type.is_empty() && file.extension.is_empty(), "not compared yet");
    found
}

fn services(file: &FileDescriptorProto, found: &mut Contract) {
    for service in &file.service {
        for method in &service.method {
            let streams = |on| if on { "stream " } else { "" };
            found.insert(
                format!("service {}.{}", service.name(), method.name()),
                format!(
                    "({}{}) returns ({}{})",
                    streams(method.client_streaming()),
                    method.input_type(),
                    streams(method.server_streaming()),
                    method.output_type(),
                ),
            );
        }
    }
}

fn describe(message: &DescriptorProto, outer: &str, found: &mut Contract) {
    let name = format!("{outer}{}", message.name());
    let map = message.options.as_ref().is_some_and(prost_types::MessageOptions::map_entry);
    found.insert(format!("message {name}"), if map { "map entry" } else { "message" }.to_owned());
    for field in &message.field {
        found.insert(format!("field {name}.{}", field.name()), field_text(field, message));
    }
    for nested in &message.nested_type {
        describe(nested, &format!("{name}."), found);
    }
    assert!(message.enum_type.is_empty() && message.extension.is_empty(), "not compared yet");
}

fn field_text(field: &FieldDescriptorProto, message: &DescriptorProto) -> String {
    let oneof = field.oneof_index.map(|index| {
        let index = usize::try_from(index).unwrap();
        message.oneof_decl[index].name().to_owned()
    });
    let (number, type_name) = (field.number(), field.type_name());
    let (label, kind) = (field.label(), field.r#type());
    let (json, optional) = (field.json_name(), field.proto3_optional());
    format!("{number} {label:?} {kind:?} {type_name} {json} oneof={oneof:?} optional={optional}")
}

fn compare(ours: &str, upstream: &str, services: &[&str], fields_min: usize) {
    let ours = contract(&root().join("proto").join(ours));
    let upstream = contract(&kubelet_module().join("pkg/apis").join(upstream));
    for service in services {
        assert!(upstream.contains_key(*service), "{service} in {upstream:#?}");
    }
    let fields = upstream.keys().filter(|key| key.starts_with("field ")).count();
    assert!(fields >= fields_min, "only {fields} fields were read");
    let differences: Vec<String> = ours
        .keys()
        .chain(upstream.keys())
        .filter(|key| ours.get(*key) != upstream.get(*key))
        .map(|key| format!("{key}: ours {:?}, kubelet's {:?}", ours.get(key), upstream.get(key)))
        .collect();
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn the_device_plugin_contract_is_kubelets() {
    let path = "deviceplugin/v1beta1/api.proto";
    compare(
        path,
        path,
        &["service DevicePlugin.ListAndWatch", "service Registration.Register"],
        34,
    );
}

#[test]
fn the_pod_resources_contract_is_kubelets() {
    let path = "podresources/v1/api.proto";
    compare(path, path, &["service PodResourcesLister.List"], 34);
}

#[test]
fn the_comparison_sees_what_matters_on_the_wire() {
    let folder = tempfile::tempdir().unwrap();
    let contract_of = |text: &str| {
        let path = folder.path().join("api.proto");
        std::fs::write(&path, text).unwrap();
        contract(&path)
    };
    let before = "syntax = \"proto3\"; package v1; message A { string x = 1; }
        service S { rpc Do(A) returns (A) {} }";
    let base = contract_of(before);
    assert_eq!(base, contract_of(&format!("// words\n{before}")));
    for (from, to) in [
        ("package v1", "package v2"),
        ("string x", "bytes x"),
        ("string x", "repeated string x"),
        ("string x", "optional string x"),
        ("x = 1", "x = 2"),
        ("x = 1", "y = 1"),
        ("returns (A)", "returns (stream A)"),
        ("rpc Do", "rpc Does"),
        ("string x = 1;", "string x = 1; string z = 9;"),
    ] {
        assert_ne!(base, contract_of(&before.replace(from, to)), "{from} -> {to}");
    }
}
