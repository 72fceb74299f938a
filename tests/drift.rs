//! Cluster side: generated files in the repository equal what the sources generate.

#![cfg(feature = "cluster")]
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use sluice::cli::crd;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut names: Vec<_> =
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn definitions_in_the_repository_are_those_of_the_types() {
    let files = crd::files().unwrap();
    let mut wanted: Vec<_> = files.iter().map(|(name, _)| (*name).to_owned()).collect();
    wanted.sort();
    for dir in ["crds", "charts/sluice/files/crds"] {
        let dir: PathBuf = root().join(dir);
        assert_eq!(names_in(&dir), wanted, "{}: run `cargo run -- crd`", dir.display());
        for (name, text) in &files {
            let path = dir.join(name);
            let found = std::fs::read_to_string(&path).unwrap();
            assert!(found == *text, "{} has drifted: run `cargo run -- crd`", path.display());
        }
    }
}

#[test]
fn yaml_says_what_the_types_say() {
    for ((name, text), definition) in crd::files().unwrap().into_iter().zip(crd::definitions()) {
        let read: k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::
            CustomResourceDefinition = serde_saphyr::from_str(&text).unwrap();
        let strip = |v: &serde_json::Value| v.to_string().replace("\\n", " ");
        let (read, meant) =
            (serde_json::to_value(&read).unwrap(), serde_json::to_value(&definition).unwrap());
        // Descriptions are folded on the way out; nothing else may differ.
        assert_eq!(strip(&read).replace("  ", " "), strip(&meant).replace("  ", " "), "{name}");
    }
}

/// Walks every schema of a definition with its path.
fn walk(path: &str, schema: &serde_json::Value, see: &mut dyn FnMut(&str, &serde_json::Value)) {
    see(path, schema);
    if let Some(properties) = schema["properties"].as_object() {
        for (name, property) in properties {
            walk(&format!("{path}.{name}"), property, see);
        }
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            walk(&format!("{path}[]"), &schema[inner], see);
        }
    }
}

fn schemas(see: &mut dyn FnMut(&str, &serde_json::Value)) {
    for definition in crd::definitions() {
        let kind = definition.spec.names.kind.clone();
        let value = serde_json::to_value(&definition).unwrap();
        let versions = value["spec"]["versions"].as_array().unwrap();
        assert_eq!(versions.len(), 1);
        walk(&kind, &versions[0]["schema"]["openAPIV3Schema"], see);
    }
}

#[test]
fn schemas_are_structural() {
    const FORMATS: [&str; 4] = ["int32", "int64", "date-time", "double"];
    let mut seen = 0;
    schemas(&mut |path, schema| {
        seen += 1;
        assert!(schema["type"].is_string(), "{path} has no type: {schema}");
        for key in ["$ref", "oneOf", "anyOf", "x-kubernetes-preserve-unknown-fields"] {
            assert!(schema.get(key).is_none(), "{path} has {key}");
        }
        if let Some(format) = schema.get("format") {
            let format = format.as_str().unwrap();
            assert!(FORMATS.contains(&format), "{path}: the API server does not know {format}");
        }
        if schema["type"] == "array" {
            let list = schema["x-kubernetes-list-type"].as_str();
            let list = list.unwrap_or_else(|| panic!("{path}: say what kind of list this is"));
            let keys = schema["x-kubernetes-list-map-keys"].as_array();
            assert_eq!(list == "map", keys.is_some(), "{path}: keys go with a map list");
        }
    });
    assert!(seen > 50, "only {seen} schemas walked");
}

#[test]
fn every_field_is_explained() {
    schemas(&mut |path, schema| {
        if path.ends_with("[]") && schema["properties"].is_null() {
            return;
        }
        let text = schema["description"].as_str().unwrap_or_default();
        assert!(text.len() > 3, "{path} has no description");
        assert!(!text.contains("Auto-generated"), "{path}: {text}");
    });
}

#[test]
fn the_image_is_built_by_the_pinned_toolchain() {
    let read = |file: &str| std::fs::read_to_string(root().join(file)).unwrap();
    let toolchain = read("rust-toolchain.toml");
    let pinned = toolchain.lines().find_map(|line| line.strip_prefix("channel = ")).unwrap();
    let wanted = format!("ARG RUST_VERSION={}\n", pinned.trim_matches('"'));
    assert!(read("Dockerfile").contains(&wanted), "the Dockerfile lacks {wanted}");
}

#[test]
fn the_chart_is_of_the_package_s_version() {
    let chart = std::fs::read_to_string(root().join("charts/sluice/Chart.yaml")).unwrap();
    for key in ["version", "appVersion"] {
        let wanted = format!("\n{key}: {}\n", env!("CARGO_PKG_VERSION"));
        assert!(chart.contains(&wanted), "Chart.yaml lacks {wanted}");
    }
}
