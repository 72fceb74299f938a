//! Cluster side: whether anything of a pod is left on the node, by its cgroup.
//!
//! Kubelet names a pod's cgroup after its UID, in both cgroup versions and with both drivers:
//! `kubepods/<class>/pod<uid>` or `kubepods-<class>-pod<uid>.slice`, where the slice name has
//! underscores for the hyphens of the UID. With `cgroupRoot` set, kubelet puts a prefix before
//! `kubepods`, so the folder is searched for, to a bounded depth.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;
use std::{fs, io};

/// What a pod's cgroup shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Containers {
    /// A process lives in it.
    Alive,
    /// It exists and no process lives in it.
    Empty,
    /// It does not exist.
    Gone,
    /// No kubelet cgroup is found under the root at all, or it cannot be read: proves nothing.
    Unknown,
}

/// How deep below the root `kubepods` is searched: one level for the controller of cgroup v1, two
/// for a prefix.
const SEARCH_DEPTH: usize = 4;
/// Controllers of cgroup v1, the one to look at first: kubelet makes every pod's cgroup in each.
const V1_CONTROLLERS: [&str; 5] = ["pids", "memory", "cpu", "cpu,cpuacct", "systemd"];
/// Kubelet's classes of pods below `kubepods`; guaranteed pods are directly in it.
const CLASSES: [&str; 2] = ["burstable", "besteffort"];
/// How often the search for `kubepods` is done again at most when a pod is not found. Less than
/// the settle time, so that no pod counts as gone for want of a search.
const SEARCH_EVERY: Duration = Duration::from_secs(1);

/// Finds the cgroups of pods below a root.
#[derive(Debug)]
pub struct Cgroups {
    root: PathBuf,
    search: Mutex<Search>,
}

#[derive(Debug, Default)]
struct Search {
    bases: Vec<PathBuf>,
    done_at: Option<Duration>,
}

impl Cgroups {
    /// Looks below `root`, usually `/sys/fs/cgroup`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), search: Mutex::new(Search::default()) }
    }

    /// What is left of the pod whose cgroup is named after `uid`.
    pub fn look(&self, uid: &str, now: Duration) -> Containers {
        if uid.is_empty() || uid.contains('/') {
            return Containers::Unknown;
        }
        let mut search = self.search.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(found) = look_in(&search.bases, uid) {
            return found;
        }
        let fresh = search.done_at.is_some_and(|at| now.saturating_sub(at) < SEARCH_EVERY);
        if !fresh || search.bases.is_empty() {
            *search = Search { bases: find_bases(&self.root), done_at: Some(now) };
            if let Some(found) = look_in(&search.bases, uid) {
                return found;
            }
        }
        if search.bases.is_empty() { Containers::Unknown } else { Containers::Gone }
    }
}

/// What the first cgroup of the pod shows; `None` if there is none.
fn look_in(bases: &[PathBuf], uid: &str) -> Option<Containers> {
    bases.iter().flat_map(|base| candidates(base, uid)).find_map(|path| match fs::metadata(&path) {
        Ok(meta) if meta.is_dir() => Some(processes(&path)),
        Ok(_) => None,
        Err(error) if is_absent(&error) => None,
        Err(_) => Some(Containers::Unknown),
    })
}

/// Where kubelet puts the cgroup of a pod, below one `kubepods`.
fn candidates(base: &Path, uid: &str) -> Vec<PathBuf> {
    let name = base.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if let Some(prefix) = name.strip_suffix(".slice") {
        let pod = format!("pod{}.slice", uid.replace('-', "_"));
        let classes = CLASSES.iter().map(|class| {
            base.join(format!("{prefix}-{class}.slice")).join(format!("{prefix}-{class}-{pod}"))
        });
        std::iter::once(base.join(format!("{prefix}-{pod}"))).chain(classes).collect()
    } else {
        let pod = format!("pod{uid}");
        let classes = CLASSES.iter().map(|class| base.join(class).join(&pod));
        std::iter::once(base.join(&pod)).chain(classes).collect()
    }
}

/// Every `kubepods` below the root; with cgroup v1 those of one controller.
fn find_bases(root: &Path) -> Vec<PathBuf> {
    let controllers = V1_CONTROLLERS.iter().map(|controller| root.join(controller));
    for start in controllers.filter(|path| path.is_dir()) {
        let mut bases = Vec::new();
        collect_bases(&start, SEARCH_DEPTH - 1, &mut bases);
        if !bases.is_empty() {
            return bases;
        }
    }
    let mut bases = Vec::new();
    collect_bases(root, SEARCH_DEPTH, &mut bases);
    bases
}

fn collect_bases(dir: &Path, depth: usize, bases: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name == "kubepods" || name == "kubepods.slice" || name.ends_with("-kubepods.slice") {
            bases.push(entry.path());
        } else if depth > 1 {
            collect_bases(&entry.path(), depth - 1, bases);
        }
    }
    bases.sort();
}

/// Whether a process lives in a cgroup or below it.
///
/// Both files count the whole subtree, and count processes of every PID namespace. `cgroup.procs`
/// does not: under cgroup v1 it leaves out what the reader's PID namespace does not show, which
/// for an agent in a pod is every other pod.
fn processes(dir: &Path) -> Containers {
    // cgroup v2 says it until the last process has let go of its files, the GPU's among them.
    let events = read(&dir.join("cgroup.events"), |text| {
        text.lines().any(|line| line.trim() == "populated 1")
    });
    // cgroup v1, controller `pids`: until the last process is reaped.
    let count = || read(&dir.join("pids.current"), |text| text.trim() != "0");
    match events.or_else(count) {
        Some(found) => found,
        // A controller that tells nothing: the pod counts for as long as its cgroup is there.
        None if dir.exists() => Containers::Alive,
        None => Containers::Gone,
    }
}

/// What a file says, by `alive`; `None` if there is no such file.
fn read(file: &Path, alive: impl FnOnce(&str) -> bool) -> Option<Containers> {
    match fs::read_to_string(file) {
        Ok(text) if alive(&text) => Some(Containers::Alive),
        Ok(_) => Some(Containers::Empty),
        Err(error) if is_removed(&error) => Some(Containers::Gone),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(_) => Some(Containers::Unknown),
    }
}

/// The cgroup was removed between two reads: the kernel answers `ENODEV` then.
fn is_removed(error: &io::Error) -> bool {
    error.raw_os_error() == Some(19)
}

fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || is_removed(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0b1c2d3e-0000-4000-8000-00000000abcd";
    const SLICE: &str = "0b1c2d3e_0000_4000_8000_00000000abcd";

    fn at(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    /// Puts a container cgroup below `pod` and answers with a way to set its processes.
    fn container(root: &Path, pod: &str, v2: bool) -> impl Fn(&str) {
        let pod = root.join(pod);
        let container = pod.join("c1");
        fs::create_dir_all(&container).expect("make cgroup");
        move |procs: &str| {
            // What an agent in a pod is shown of another pod under cgroup v1: nothing.
            fs::write(container.join("cgroup.procs"), "").expect("write");
            let alive = u8::from(!procs.is_empty());
            let (file, text) = if v2 {
                ("cgroup.events", format!("populated {alive}\nfrozen 0\n"))
            } else {
                ("pids.current", format!("{alive}\n"))
            };
            fs::write(pod.join(file), text).expect("write");
        }
    }

    fn lifecycle(pod: &str, v2: bool) {
        let root = tempfile::tempdir().expect("temp folder");
        let cgroups = Cgroups::new(root.path());
        assert_eq!(cgroups.look(UID, at(0)), Containers::Unknown, "no kubepods yet: {pod}");
        let set = container(root.path(), pod, v2);
        set("4711\n");
        assert_eq!(cgroups.look(UID, at(1)), Containers::Alive, "{pod}");
        set("");
        assert_eq!(cgroups.look(UID, at(2)), Containers::Empty, "{pod}");
        fs::remove_dir_all(root.path().join(pod)).expect("remove");
        assert_eq!(cgroups.look(UID, at(3)), Containers::Gone, "{pod}");
        assert_eq!(cgroups.look("another-uid", at(4)), Containers::Gone, "{pod}");
    }

    #[test]
    fn every_layout_of_kubelet_is_found() {
        for class in ["", "burstable/", "besteffort/"] {
            lifecycle(&format!("kubepods/{class}pod{UID}"), true);
            lifecycle(&format!("sluice-x/kubepods/{class}pod{UID}"), true);
            lifecycle(&format!("pids/kubepods/{class}pod{UID}"), false);
            lifecycle(&format!("memory/a/b/kubepods/{class}pod{UID}"), false);
        }
        for base in ["", "memory/", "sluice.slice/"] {
            let v2 = !base.starts_with("memory");
            let top = if base.starts_with("sluice") { "sluice-kubepods" } else { "kubepods" };
            lifecycle(&format!("{base}{top}.slice/{top}-pod{SLICE}.slice"), v2);
            let class = format!("{top}-burstable");
            lifecycle(&format!("{base}{top}.slice/{class}.slice/{class}-pod{SLICE}.slice"), v2);
        }
    }

    #[test]
    fn a_second_kubepods_that_appears_later_is_found_within_the_search_interval() {
        let root = tempfile::tempdir().expect("temp folder");
        fs::create_dir_all(root.path().join("other/kubepods")).expect("make");
        let cgroups = Cgroups::new(root.path());
        assert_eq!(cgroups.look(UID, at(10)), Containers::Gone);
        container(root.path(), &format!("mine/kubepods/pod{UID}"), true)("1");
        assert_eq!(cgroups.look(UID, at(11)), Containers::Alive);
    }

    #[test]
    fn a_cgroup_that_tells_nothing_is_never_taken_for_empty() {
        let root = tempfile::tempdir().expect("temp folder");
        let pod = root.path().join(format!("memory/kubepods/pod{UID}"));
        fs::create_dir_all(pod.join("c1")).expect("make");
        fs::write(pod.join("cgroup.procs"), "").expect("write");
        let cgroups = Cgroups::new(root.path());
        assert_eq!(cgroups.look(UID, at(0)), Containers::Alive);
        // A folder in the file's place cannot be read.
        fs::create_dir(pod.join("pids.current")).expect("make");
        assert_eq!(cgroups.look(UID, at(0)), Containers::Unknown);
        fs::remove_dir_all(&pod).expect("remove");
        assert_eq!(cgroups.look(UID, at(0)), Containers::Gone);
        assert_eq!(cgroups.look("", at(0)), Containers::Unknown);
        assert_eq!(cgroups.look("../x", at(0)), Containers::Unknown);
    }
}
