//! Cluster side, pure: tests of who holds what, on invented sightings.

use super::*;

/// A node on which a test lists pods, gives them cgroups and lets time pass.
#[derive(Default)]
struct Node {
    holders: Holders,
    listed: Vec<ListedPod>,
    pods: PodIndex,
    releasing: BTreeMap<String, Option<PodName>>,
    cgroups: BTreeMap<String, Containers>,
    now: Duration,
}

fn name(pod: &str) -> PodName {
    PodName { namespace: "ns".to_owned(), name: pod.to_owned() }
}

impl Node {
    /// The API server shows the pod; its UID is `uid`.
    fn bound(&mut self, pod: &str, uid: &str) -> &mut Self {
        let facts = PodFacts { uid: uid.to_owned(), cgroup_uid: uid.to_owned(), finished: false };
        self.pods.insert(name(pod), facts);
        self
    }

    fn finished(&mut self, pod: &str) -> &mut Self {
        self.pods.get_mut(&name(pod)).expect("bound").finished = true;
        self
    }

    fn gone_from_api(&mut self, pod: &str) -> &mut Self {
        self.pods.remove(&name(pod));
        self
    }

    fn listed(&mut self, pod: &str, gpus: &[&str]) -> &mut Self {
        self.unlisted(pod);
        let gpus = gpus.iter().map(|&gpu| gpu.to_owned()).collect();
        self.listed.push(ListedPod { pod: name(pod), gpus });
        self
    }

    fn unlisted(&mut self, pod: &str) -> &mut Self {
        self.listed.retain(|listed| listed.pod != name(pod));
        self
    }

    fn cgroup(&mut self, uid: &str, containers: Containers) -> &mut Self {
        self.cgroups.insert(uid.to_owned(), containers);
        self
    }

    fn asked(&mut self, uid: &str) -> &mut Self {
        self.releasing.insert(uid.to_owned(), None);
        self
    }

    fn after_ms(&mut self, ms: u64) -> Open {
        self.now += Duration::from_millis(ms);
        let cgroups = &self.cgroups;
        self.holders.observe(
            Sighting {
                listed: &self.listed,
                pods: &self.pods,
                releasing: &self.releasing,
                now: self.now,
            },
            &mut |uid| cgroups.get(uid).copied().unwrap_or(Containers::Gone),
        )
    }

    fn holder(&self, gpu: &str) -> Option<&str> {
        self.holders.by_gpu().get(gpu).map(|holder| holder.pod.uid.as_str())
    }

    fn is_released(&self, uid: &str) -> bool {
        self.holders.released().contains(uid)
    }
}

fn running() -> Node {
    let mut node = Node::default();
    node.bound("a", "u1").listed("a", &["g0"]);
    let open = node.after_ms(0);
    assert_eq!(open, Open::default());
    assert_eq!(node.holder("g0"), Some("u1"));
    node.cgroup("u1", Containers::Alive).after_ms(100);
    node
}

#[test]
fn a_pod_that_ends_by_itself_frees_its_gpu_at_once() {
    let mut node = running();
    node.finished("a").unlisted("a").cgroup("u1", Containers::Empty).after_ms(1);
    assert_eq!(node.holder("g0"), None);
}

#[test]
fn an_older_kubelet_still_lists_a_pod_that_has_ended() {
    let mut node = running();
    node.finished("a").cgroup("u1", Containers::Empty).after_ms(1);
    assert_eq!(node.holder("g0"), None);
}

#[test]
fn a_pod_deleted_by_force_holds_its_gpu_until_its_containers_are_gone() {
    let mut node = running();
    node.gone_from_api("a").unlisted("a").asked("u1");
    for _ in 0..50 {
        let open = node.after_ms(100);
        assert!(open.lingering);
        assert_eq!(node.holder("g0"), Some("u1"));
        assert!(!node.is_released("u1"));
    }
    node.cgroup("u1", Containers::Gone).after_ms(1);
    assert_eq!(node.holder("g0"), None);
    assert!(node.is_released("u1"), "seen alive, then the cgroup was removed: proof");
    node.releasing.clear();
    node.after_ms(1);
    assert!(!node.is_released("u1"));
}

#[test]
fn an_empty_cgroup_settles_before_it_counts() {
    let mut node = running();
    node.gone_from_api("a").unlisted("a").asked("u1").cgroup("u1", Containers::Empty);
    node.after_ms(0);
    node.after_ms(1999);
    assert_eq!(node.holder("g0"), Some("u1"));
    assert!(!node.is_released("u1"));
    node.after_ms(1);
    assert_eq!(node.holder("g0"), None);
    assert!(node.is_released("u1"));
}

#[test]
fn a_pod_that_never_started_settles_and_a_late_start_begins_the_wait_again() {
    let mut node = Node::default();
    node.asked("u1").after_ms(0);
    node.after_ms(1500);
    assert!(!node.is_released("u1"));
    node.cgroup("u1", Containers::Alive).after_ms(100);
    node.after_ms(1000);
    assert!(!node.is_released("u1"), "it started after all");
    node.cgroup("u1", Containers::Empty).after_ms(100);
    node.after_ms(1900);
    assert!(!node.is_released("u1"));
    node.after_ms(100);
    assert!(node.is_released("u1"));
}

#[test]
fn nothing_is_released_while_kubelet_lists_it_or_a_pod_that_is_not_known() {
    let mut node = running();
    node.asked("u1").cgroup("u1", Containers::Gone);
    node.after_ms(0);
    node.after_ms(5000);
    assert!(!node.is_released("u1"), "kubelet lists it");

    let mut node = Node::default();
    node.asked("u1").listed("stranger", &["g1"]);
    node.after_ms(0);
    node.after_ms(1900);
    assert!(!node.is_released("u1"), "the stranger could be it");
    node.releasing.insert("u1".to_owned(), Some(name("a")));
    node.after_ms(0);
    node.after_ms(2000);
    assert!(node.is_released("u1"), "the stranger has another name");

    let mut node = Node::default();
    node.releasing.insert("u1".to_owned(), Some(name("a")));
    node.listed("a", &[]);
    node.after_ms(0);
    node.after_ms(5000);
    assert!(!node.is_released("u1"), "kubelet has not heard of the deletion yet");
    node.unlisted("a").after_ms(0);
    node.after_ms(2000);
    assert!(node.is_released("u1"));
}

#[test]
fn without_cgroups_nothing_is_ever_said_to_be_gone() {
    let mut node = running();
    node.gone_from_api("a").unlisted("a").asked("u1").cgroup("u1", Containers::Unknown);
    node.after_ms(0);
    node.after_ms(60_000);
    assert_eq!(node.holder("g0"), Some("u1"));
    assert!(!node.is_released("u1"));
}

#[test]
fn a_restarted_agent_remembers_holders_and_checks_them() {
    let status = |uid: &str, gpu: &str| GpuStatus {
        id: gpu.to_owned(),
        holder: Some(PodRef {
            namespace: "ns".to_owned(),
            name: uid.to_owned(),
            uid: uid.to_owned(),
        }),
        ..GpuStatus::default()
    };
    let mut node = Node::default();
    node.cgroup("u1", Containers::Alive);
    node.holders.restore(&[status("u1", "g0"), status("u2", "g1")], &[]);
    node.after_ms(0);
    assert_eq!((node.holder("g0"), node.holder("g1")), (Some("u1"), Some("u2")));
    node.after_ms(2000);
    assert_eq!((node.holder("g0"), node.holder("g1")), (Some("u1"), None));
}

#[test]
fn a_released_answer_survives_a_restart_of_the_agent() {
    let mut node = Node::default();
    node.asked("u1").holders.restore(&[], &["u1".to_owned(), "u0".to_owned()]);
    node.after_ms(0);
    assert!(node.is_released("u1"), "no second wait for the same answer");
    assert!(!node.is_released("u0"), "not asked about any more");
}

#[test]
fn kubelets_word_about_a_listed_pod_is_the_whole_word() {
    let mut node = running();
    // The same name again: a read that mixed the old list with the new UID is put right.
    node.bound("a", "u2").after_ms(1);
    assert_eq!(node.holder("g0"), Some("u2"));
    node.listed("a", &["g5"]).cgroup("u2", Containers::Alive).after_ms(100);
    assert_eq!((node.holder("g0"), node.holder("g5")), (None, Some("u2")));
}

#[test]
fn a_second_pod_on_a_gpu_with_live_containers_is_reported() {
    let mut node = running();
    node.bound("b", "u2").unlisted("a").listed("b", &["g0"]);
    let open = node.after_ms(1);
    assert_eq!(open.overlaps.len(), 1);
    assert_eq!(open.overlaps[0].before.uid, "u1");
    assert_eq!(node.holder("g0"), Some("u2"));
}

#[test]
fn a_pod_unknown_to_the_api_server_holds_its_gpu_all_the_same() {
    let mut node = Node::default();
    node.listed("static", &["g3"]);
    assert!(node.after_ms(0).unresolved);
    assert_eq!(node.holder("g3"), None, "the API server may be a moment late");
    assert!(node.after_ms(2000).unresolved);
    assert_eq!(node.holder("g3"), Some(""));
    node.bound("static", "u9");
    assert!(!node.after_ms(100).unresolved);
    assert_eq!(node.holder("g3"), Some("u9"));
    node.unlisted("static").after_ms(100);
    node.after_ms(2000);
    assert_eq!(node.holder("g3"), None);
}

#[test]
fn a_pod_that_left_the_api_server_first_keeps_its_uid_while_kubelet_lists_it() {
    let mut node = running();
    node.gone_from_api("a");
    assert!(!node.after_ms(100).unresolved);
    assert_eq!(node.holder("g0"), Some("u1"));
}
