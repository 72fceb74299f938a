//! Faults: processes killed from outside, as a crash would.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tokio::task::JoinHandle;

use super::{LIMIT, now_ms};

/// Processes of the cluster whose command line holds all of these words.
pub(crate) fn processes(words: &[&str]) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").context("/proc")? {
        let path = entry?.path();
        let Some(pid) = pid_of(&path) else { continue };
        // A process may end at any moment.
        let Ok(line) = std::fs::read(path.join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).into_owned();
        let has = |word: &&str| line.split('\0').any(|part| part.contains(*word));
        if pid.unsigned_abs() != std::process::id() && words.iter().all(has) {
            found.push(pid);
        }
    }
    Ok(found)
}

fn pid_of(path: &std::path::Path) -> Option<i32> {
    path.file_name()?.to_str()?.parse().ok()
}

/// Processes of Sluice's own containers: `controller` or `agent`.
pub(crate) fn sluice(command: &str) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for pid in processes(&["sluice"])? {
        let line = std::fs::read(PathBuf::from(format!("/proc/{pid}/cmdline"))).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        let mut parts = line.split('\0');
        let program = parts.next().unwrap_or_default();
        if program.ends_with("sluice") && parts.next() == Some(command) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// SIGKILL to every process of that command; returns when they are gone.
pub(crate) async fn kill(command: &str) -> Result<usize> {
    let pids = sluice(command)?;
    ensure!(!pids.is_empty(), "no process `sluice {command}` runs");
    let mut ends = Vec::new();
    for pid in &pids {
        ends.push(Watched::new(*pid)?);
    }
    for end in &ends {
        kill_process(end.pid, Signal::KILL).context("SIGKILL")?;
    }
    for end in ends {
        end.ended().await?;
    }
    Ok(pids.len())
}

/// A process that stands still until this is dropped.
pub(crate) struct Frozen(Pid);

impl Frozen {
    /// SIGSTOP.
    pub(crate) fn new(pid: i32) -> Result<Self> {
        let pid = Pid::from_raw(pid).context("a pid is positive")?;
        kill_process(pid, Signal::STOP).context("SIGSTOP")?;
        Ok(Self(pid))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // It may have been killed meanwhile, by kubelet for not answering.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// One process, whose end can be waited for, whoever its parent is.
pub(crate) struct Watched {
    pid: Pid,
    end: JoinHandle<Result<u64>>,
}

impl Watched {
    /// Of a process that lives.
    pub(crate) fn new(pid: i32) -> Result<Self> {
        let pid = Pid::from_raw(pid).context("a pid is positive")?;
        let descriptor = pidfd_open(pid, PidfdFlags::empty()).context("pidfd_open")?;
        let end = tokio::task::spawn_blocking(move || {
            // Readable once the process has ended.
            poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None)?;
            Ok(now_ms())
        });
        Ok(Self { pid, end })
    }

    /// Returns when it has ended, and says when that was.
    pub(crate) async fn ended(self) -> Result<u64> {
        let ended = tokio::time::timeout(LIMIT, self.end).await;
        ended.with_context(|| format!("process {:?} does not end", self.pid))??
    }
}
