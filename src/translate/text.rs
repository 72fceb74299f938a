//! Pure: what the policy says, as a person would say it.

use super::time::spoken;
use super::{Known, World};
use crate::api::PodRef;
use crate::policy::{
    Basis, GpuSet, JobId, Millis, NoFit, NodeId, Pool, Shape, UnreserveReason, Wait,
};

/// Pods that are named one by one in a message; of more the rest is counted.
const NAMED_MAX: usize = 4;

/// `a/b`, `a/b and c/d`, or the first few and how many others.
pub fn pods(pods: &[PodRef]) -> String {
    let named: Vec<String> =
        pods.iter().take(NAMED_MAX).map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
    let rest = pods.len().saturating_sub(NAMED_MAX);
    if rest > 0 {
        return format!("{} and {rest} others", named.join(", "));
    }
    match named.split_last() {
        None => "no pod".to_owned(),
        Some((only, [])) => only.clone(),
        Some((last, first)) => format!("{} and {last}", first.join(", ")),
    }
}

/// Pods as the subject of a verb, in the form that one of them or many take.
pub fn subject(named: &[PodRef], one: &str, many: &str) -> String {
    format!("{} {}", pods(named), if named.len() == 1 { one } else { many })
}

/// Names for the numbers in a message.
pub struct Words<'a> {
    /// The pool's state.
    pub pool: &'a Pool,
    /// The names.
    pub known: &'a Known,
    /// The world.
    pub world: &'a World,
}

impl Words<'_> {
    /// A pod by its job.
    pub fn pod(&self, job: JobId) -> String {
        let who = self.known.ids.pod(job);
        who.map_or_else(|| "a pod that is gone".to_owned(), |who| pods(std::slice::from_ref(who)))
    }

    /// A node.
    pub fn node(&self, node: NodeId) -> String {
        self.known.ids.node_name(node).unwrap_or("a node that is gone").to_owned()
    }

    /// GPUs by index.
    pub fn gpus(&self, gpus: GpuSet) -> String {
        let indexes: Vec<String> = gpus.iter().map(|index| index.to_string()).collect();
        let noun = if gpus.count() == 1 { "GPU" } else { "GPUs" };
        format!("{noun} {}", indexes.join(", "))
    }

    /// The pods that hold GPUs of a node, as the subject of a verb that one or many of them take.
    pub fn holders(&self, node: NodeId, one: &str, many: &str) -> String {
        let holdings = self.pool.nodes().get(&node).map(|node| node.holdings.keys());
        let names: Vec<PodRef> = holdings
            .into_iter()
            .flatten()
            .filter_map(|&job| self.known.ids.pod(job))
            .cloned()
            .collect();
        subject(&names, one, many)
    }

    /// Why a pod waits: a reason for programs and a sentence for people.
    pub fn wait(&self, job: JobId, wait: &Wait) -> (&'static str, String) {
        let (reason, message) = match wait {
            Wait::Paused => ("Paused", "The pool is paused: it admits nothing.".to_owned()),
            Wait::BackingOff { until, attempts } => {
                ("BackingOff", self.backing_off(job, *until, *attempts))
            }
            Wait::Quota { held, most, tenant } => {
                let namespace = self.known.ids.tenant_name(*tenant).unwrap_or("of the pod");
                let message = format!(
                    "Pods of namespace {namespace} hold {held} of the {most} GPUs that they may \
                     hold in this pool; the pod waits until enough of them are free."
                );
                ("Quota", message)
            }
            Wait::NoNodeFits(why) => ("NoNodeFits", self.no_fit(job, *why)),
            Wait::Behind { ahead, first } => {
                let message = format!(
                    "{} served first; next is {}.",
                    are(*ahead, "pod of this shape is", "pods of this shape are"),
                    self.pod(*first)
                );
                ("Behind", message)
            }
            Wait::Draining { node, latest_end, .. } => {
                ("Draining", self.draining(*node, *latest_end))
            }
            Wait::Wave { node, latest_end } => {
                let holders = self.holders(*node, "runs", "run");
                let message = format!(
                    "Node {} is next for this pod, after one wave of small pods: {holders} \
                     there{}.",
                    self.node(*node),
                    until_latest(*latest_end)
                );
                ("Wave", message)
            }
            Wait::NodesHeld { exclusive } => {
                let message = format!(
                    "{} held by other whole-node pods, and no other node can be emptied now.",
                    are(*exclusive, "node is", "nodes are")
                );
                ("NodesHeld", message)
            }
            Wait::GateClosed { node, job: large, free } => {
                let message = format!(
                    "Node {} is being emptied for {}; {} idle until it has started.",
                    self.node(*node),
                    self.pod(*large),
                    are(*free, "GPU stays", "GPUs stay")
                );
                ("GateClosed", message)
            }
            Wait::Exclusive { node, job: large } => {
                let message =
                    format!("{} holds every GPU of node {}.", self.pod(*large), self.node(*node));
                ("Exclusive", message)
            }
            Wait::Gathering { node, free, asked, latest_end } => {
                ("Gathering", self.gathering(*node, *free, *asked, *latest_end))
            }
            Wait::Kept { node, job: wide, free } => ("Kept", self.kept(*node, *wide, *free)),
            Wait::Busy { ahead } => ("Busy", self.busy(job, *ahead)),
        };
        (reason, message)
    }

    fn draining(&self, node: NodeId, latest_end: Option<Millis>) -> String {
        format!(
            "Node {} is being emptied for this pod. {} GPUs there{}.",
            self.node(node),
            self.holders(node, "still holds", "still hold"),
            until_latest(latest_end)
        )
    }

    fn gathering(&self, node: NodeId, free: u32, asked: u32, latest_end: Option<Millis>) -> String {
        format!(
            "Node {} keeps its free GPUs for this pod, which needs {asked} of one node: {} now{}.",
            self.node(node),
            are(free, "is free there", "are free there"),
            enough_by(latest_end)
        )
    }

    fn kept(&self, node: NodeId, wide: JobId, free: u32) -> String {
        format!(
            "Node {} keeps {} for {}, which is served before and needs more of one node.",
            self.node(node),
            counted(free, "free GPU", "free GPUs"),
            self.pod(wide)
        )
    }

    fn busy(&self, job: JobId, ahead: u32) -> String {
        let before = are(ahead, "small pod waits before", "small pods wait before");
        match self.pool.job(job).map(|job| job.shape) {
            Some(Shape::Wide(asked)) => {
                format!("No node that the pod could use has {asked} free GPUs; {before} it.")
            }
            _ => format!("Every GPU that the pod could use is held; {before} it."),
        }
    }

    fn backing_off(&self, job: JobId, until: Millis, attempts: u32) -> String {
        let until = spoken(until);
        let Some(&(node, reason)) = self.known.taken_back.get(&job) else {
            return format!("The pod stands back until {until}; others pass meanwhile.");
        };
        let node = self.node(node);
        let what = match reason {
            UnreserveReason::Expired => {
                format!("was not bound to node {node} in time, see the scheduler's events")
            }
            UnreserveReason::BindFailed => format!("could not be bound to node {node}"),
            UnreserveReason::NodeUnfit => format!("lost its GPUs: node {node} became unfit"),
            UnreserveReason::Displaced => {
                format!("lost its GPUs on node {node} to a pod that went round Sluice")
            }
            UnreserveReason::NodeGone => format!("lost its GPUs: node {node} is gone"),
        };
        format!(
            "The pod {what}. It stands back until {until}, others pass meanwhile (attempt \
             {attempts})."
        )
    }

    fn no_fit(&self, job: JobId, why: NoFit) -> String {
        let shape = self.pool.job(job).map_or(Shape::Small, |job| job.shape);
        let asked = self.world.asked(shape);
        let pool = &self.world.name;
        match why {
            NoFit::NoNodes => format!("Pool {pool} has no nodes."),
            NoFit::NoneMatches => format!(
                "No node of pool {pool} matches the pod's node selector, affinity and tolerations."
            ),
            NoFit::Unschedulable => {
                "The nodes that the pod matches take no new work: they are cordoned, not ready, \
                 or give out no GPUs."
                    .to_owned()
            }
            NoFit::WrongSize => {
                format!("No node that the pod matches has the {asked} GPUs that it needs.")
            }
            NoFit::Unhealthy if shape.is_small() => {
                format!("No node that the pod matches has {asked} healthy GPUs.")
            }
            NoFit::Unhealthy => {
                "Each node that the pod matches has a GPU that is not healthy; it waits until one \
                 is whole again."
                    .to_owned()
            }
        }
    }

    /// When at the latest the pod starts, or why nobody can say.
    pub fn bound(&self, basis: Basis, latest_start: Option<Millis>) -> String {
        if let Some(at) = latest_start {
            return format!(" It starts by {} at the latest.", spoken(at));
        }
        match basis {
            Basis::Unlimited(job) => format!(
                " No latest start can be given: {} has no activeDeadlineSeconds.",
                self.pod(job)
            ),
            Basis::NoLimit(shape) => format!(
                " No latest start can be given: the pool sets no maxSeconds for {} pods.",
                super::pod::shape_name(shape)
            ),
            Basis::Wide => {
                " No latest start is given for a pod that needs several GPUs and not all."
                    .to_owned()
            }
            Basis::Drain | Basis::Place(_) | Basis::HeldBack => String::new(),
        }
    }

    /// What a pod is told once GPUs are reserved for it.
    pub fn reserved(&self, node: NodeId, gpus: GpuSet) -> String {
        format!("{} of node {} reserved for this pod.", self.gpus(gpus), self.node(node))
            .replace(" reserved", if gpus.count() == 1 { " is reserved" } else { " are reserved" })
    }
}

fn are(count: u32, one: &str, many: &str) -> String {
    match count {
        0 => format!("no {many}"),
        1 => format!("1 {one}"),
        _ => format!("{count} {many}"),
    }
}

fn counted(count: u32, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn enough_by(latest_end: Option<Millis>) -> String {
    match latest_end {
        Some(end) => format!(", and enough by {} at the latest if it stays open", spoken(end)),
        None => ", and nothing limits how long until there are enough".to_owned(),
    }
}

fn until_latest(latest_end: Option<Millis>) -> String {
    match latest_end {
        Some(end) => format!(", until {} at the latest", spoken(end)),
        None => ", and nothing limits how long".to_owned(),
    }
}
