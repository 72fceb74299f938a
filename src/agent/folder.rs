//! Cluster side: notices changes in kubelet's plugin folder.
//!
//! Events are a help and not the truth: who waits for them compares what lies in the folder, at
//! every event and twice a second besides. So a missed event, a folder that was replaced, or a node
//! without a free inotify instance costs half a second and nothing else.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use inotify::{Inotify, WatchMask};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;

/// How often the folder is compared where no event comes.
pub(super) const POLL_EVERY: Duration = Duration::from_millis(500);
/// How often an inotify instance is asked for again where none was free.
const RETRY_EVERY: Duration = Duration::from_secs(60);

/// What tells one file from another under the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
    /// The inode number of a removed file may be given to the next one.
    changed: (i64, i64),
}

/// The file at this path now, if there is one.
pub(super) fn file_id(path: &Path) -> Option<FileId> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some(FileId {
        device: meta.dev(),
        inode: meta.ino(),
        changed: (meta.ctime(), meta.ctime_nsec()),
    })
}

/// Wakes `changed` whenever something changes in a folder.
#[derive(Debug)]
pub(super) struct FolderEvents {
    /// The folder.
    pub folder: PathBuf,
    /// What is woken.
    pub changed: Arc<Notify>,
    /// Counters.
    pub metrics: Metrics,
    /// Makes an inotify instance.
    pub open: fn() -> io::Result<Inotify>,
}

/// Stands in for an inotify instance where events are not wanted.
pub(super) fn poll_only() -> io::Result<Inotify> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "switched off"))
}

impl FolderEvents {
    /// Runs until shutdown.
    pub(super) async fn run(self, shutdown: CancellationToken) {
        let mut said = false;
        while !shutdown.is_cancelled() {
            let wait = match self.follow(&shutdown, &mut said).await {
                // The folder is not there, or was replaced.
                Ok(()) => POLL_EVERY,
                Err(error) => {
                    if !said {
                        tracing::warn!(
                            folder = %self.folder.display(),
                            %error,
                            "no inotify: comparing the folder twice a second instead",
                        );
                    }
                    said = true;
                    self.metrics.inotify_fallback(true);
                    RETRY_EVERY
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Follows the folder that is there now, until it is another one.
    async fn follow(&self, shutdown: &CancellationToken, said: &mut bool) -> io::Result<()> {
        let inotify = (self.open)()?;
        self.metrics.inotify_fallback(false);
        if std::mem::take(said) {
            tracing::info!(folder = %self.folder.display(), "inotify works again");
        }
        let Some(watched) = identity(&self.folder) else { return Ok(()) };
        let mask = WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::ATTRIB
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        match inotify.watches().add(&self.folder, mask) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
        let mut events = inotify.into_event_stream([0_u8; 4096])?;
        self.changed.notify_one();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                event = events.next() => match event {
                    Some(event) => { event?; }
                    None => return Ok(()),
                },
                () = tokio::time::sleep(POLL_EVERY) => {}
            }
            self.changed.notify_one();
            if identity(&self.folder) != Some(watched) {
                return Ok(());
            }
        }
    }
}

/// The folder itself; its change time moves with every file and says nothing.
fn identity(folder: &Path) -> Option<(u64, u64)> {
    file_id(folder).map(|id| (id.device, id.inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(folder: &Path, open: fn() -> io::Result<Inotify>) -> FolderEvents {
        FolderEvents {
            folder: folder.to_owned(),
            changed: Arc::new(Notify::new()),
            metrics: Metrics::default(),
            open,
        }
    }

    async fn woken(changed: &Notify) {
        tokio::time::timeout(Duration::from_secs(5), changed.notified()).await.expect("an event");
    }

    #[tokio::test]
    async fn changes_wake_also_after_the_folder_was_replaced() {
        let parent = tempfile::tempdir().expect("temp folder");
        let folder = parent.path().join("plugins");
        let watch = events(&folder, Inotify::init);
        let changed = watch.changed.clone();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(watch.run(shutdown.clone()));
        for _ in 0..2 {
            std::fs::create_dir(&folder).expect("make");
            woken(&changed).await;
            std::fs::write(folder.join("a"), "").expect("write");
            woken(&changed).await;
            std::fs::remove_dir_all(&folder).expect("remove");
            woken(&changed).await;
        }
        shutdown.cancel();
        task.await.expect("ends");
    }

    #[tokio::test]
    async fn without_inotify_the_gauge_says_so_and_the_task_lives_on() {
        let parent = tempfile::tempdir().expect("temp folder");
        let exhausted = || Err(io::Error::from_raw_os_error(24));
        let watch = events(parent.path(), exhausted);
        let metrics = watch.metrics.clone();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(watch.run(shutdown.clone()));
        let gauge = async {
            while !metrics.text().contains("sluice_agent_inotify_fallback 1") {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), gauge).await.expect("the gauge is set");
        assert!(!task.is_finished());
        shutdown.cancel();
        task.await.expect("ends");
    }

    #[test]
    fn a_file_that_takes_the_place_of_another_is_another() {
        let parent = tempfile::tempdir().expect("temp folder");
        let path = parent.path().join("kubelet.sock");
        assert_eq!(file_id(&path), None);
        std::fs::write(&path, "").expect("write");
        let first = file_id(&path).expect("there");
        assert_eq!(file_id(&path), Some(first));
        std::fs::write(parent.path().join("next"), "").expect("write");
        std::fs::rename(parent.path().join("next"), &path).expect("rename");
        assert_ne!(file_id(&path), Some(first));
    }
}
