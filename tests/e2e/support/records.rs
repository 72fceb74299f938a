//! What containers themselves say: the lines that the workload writes to a folder of the node.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use inotify::{Inotify, WatchMask};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::world::State;

/// One line.
#[derive(Deserialize, Clone, PartialEq, Debug)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(crate) enum Record {
    /// A container began, and saw these GPUs.
    Start {
        /// When.
        time_ms: u64,
        /// Identity of the pod.
        uid: String,
        /// The node on which it runs.
        node: String,
        /// The GPUs that it saw.
        gpus: Vec<String>,
    },
    /// A container ended.
    End {
        /// When.
        time_ms: u64,
        /// Identity of the pod.
        uid: String,
        /// Exit code, if it knew.
        exit: Option<i32>,
    },
}

/// Reads a folder anew whenever something in it changes, for as long as it lives.
pub(crate) struct Reader {
    task: JoinHandle<()>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Reader {
    /// Starts with a folder that exists.
    pub(crate) fn start(folder: &Path, sink: watch::Sender<State>) -> Result<Self> {
        let inotify = Inotify::init().context("inotify")?;
        inotify.watches().add(
            folder,
            WatchMask::CREATE | WatchMask::MODIFY | WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO,
        )?;
        let mut changes = inotify.into_event_stream(vec![0; 16 * 1024])?;
        let folder = folder.to_owned();
        sink.send_modify(|state| state.records.clear());
        let task = tokio::spawn(async move {
            while changes.next().await.is_some() {
                let records = read(&folder);
                sink.send_if_modified(|state| {
                    let news = state.records != records;
                    state.records = records;
                    news
                });
            }
        });
        Ok(Self { task })
    }
}

/// The files of a folder that hold records, by name.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    files.sort();
    files
}

fn read(folder: &Path) -> Vec<Record> {
    let mut records = Vec::new();
    for file in files(folder) {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            // A line of another kind is the timeline's business.
            records.extend(serde_json::from_str::<Record>(line));
        }
    }
    records
}
