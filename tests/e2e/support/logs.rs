//! Sluice's own logs, read where kubelet keeps them, so that those of a container which was killed
//! count too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const FOLDER: &str = "/var/log/pods";

/// How far each log had come at some moment.
#[derive(Default)]
pub(crate) struct Marks(BTreeMap<PathBuf, usize>);

impl Marks {
    /// As the logs stand now.
    pub(crate) fn now(namespace: &str) -> Self {
        Self(paths(namespace).map(|path| (path.clone(), read(&path).len())).collect())
    }

    /// Lines at level ERROR that Sluice's own containers wrote since.
    pub(crate) fn errors_since(&self, namespace: &str) -> Vec<String> {
        let mut errors = Vec::new();
        for path in paths(namespace).filter(|path| is_ours(path)) {
            let text = read(&path);
            let from = self.0.get(&path).copied().unwrap_or(0);
            let new = text.get(from..).unwrap_or(&text);
            errors.extend(new.lines().filter(|line| is_error(line)).map(str::to_owned));
        }
        errors
    }
}

/// Every log of a namespace, by a name that a person understands.
pub(crate) fn texts(namespace: &str) -> Vec<(String, String)> {
    paths(namespace)
        .map(|path| {
            let name = path.strip_prefix(FOLDER).unwrap_or(&path).display().to_string();
            (name, read(&path))
        })
        .collect()
}

/// `<namespace>_<pod>_<uid>/<container>/<restarts>.log`
fn paths(namespace: &str) -> impl Iterator<Item = PathBuf> {
    let prefix = format!("{namespace}_");
    let mut paths: Vec<PathBuf> = entries(Path::new(FOLDER))
        .into_iter()
        .filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&prefix)))
        .flat_map(|pod| entries(&pod))
        .flat_map(|container| entries(&container))
        .collect();
    paths.sort();
    paths.into_iter()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    // A pod may be gone by the time that its folder is read.
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// kube-scheduler's lines have levels of their own, and say E for things that pass.
fn is_ours(path: &Path) -> bool {
    let container = path.parent().and_then(Path::file_name);
    container.is_some_and(|name| name == "controller" || name == "agent")
}

fn is_error(line: &str) -> bool {
    line.contains(" ERROR ") || line.contains(r#""level":"ERROR""#)
}
