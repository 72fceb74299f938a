//! Pure: pods of which the policy knows nothing, and why that is so.

use serde_json::{Value, json};

use crate::policy::Outcome;

/// Why the policy knows nothing of a pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outside {
    /// Its pool does not exist.
    NoSuchPool {
        /// The pool that its labels name.
        pool: String,
    },
    /// Its label and its request disagree.
    ShapeMismatch {
        /// The label's value.
        label: String,
        /// GPUs that the label stands for.
        expected: String,
        /// GPUs that the pod requests.
        requested: u32,
        /// The resource that stands for one GPU.
        resource: String,
        /// The pool.
        pool: String,
    },
    /// It asks for no GPUs of Sluice.
    NotOurs {
        /// Whether it is left to our scheduler.
        our_scheduler: bool,
        /// The value of the shape label, if there is one.
        label: Option<String>,
    },
    /// It is over.
    Ended(Outcome),
    /// It was deleted before it had GPUs.
    Deleting,
    /// It is bound to a node that is in no pool.
    Elsewhere {
        /// The node.
        node: String,
    },
    /// Nothing of this is the case: the controller has not seen it yet.
    NotSeen,
}

impl Outside {
    /// A reason for programs and a sentence for people.
    pub fn said(&self) -> (&'static str, String) {
        match self {
            Self::NoSuchPool { pool } => {
                let message =
                    format!("There is no GpuPool {pool}; the pod waits until there is one.");
                ("NoSuchPool", message)
            }
            Self::ShapeMismatch { label, expected, requested, resource, pool } => {
                let message = format!(
                    "The pod's label says {label}, which is {expected} of {resource} in pool \
                     {pool}, and it requests {requested}. It is not admitted as it is: create it \
                     anew with label and request in agreement."
                );
                ("ShapeMismatch", message)
            }
            Self::NotOurs { our_scheduler: false, .. } => {
                let message = "The pod is left to another scheduler than sluice, which Sluice \
                               does not hold up.";
                ("NotOurs", message.to_owned())
            }
            Self::NotOurs { label: None, .. } => {
                let message = "The pod has no label sluice.dev/shape; create it anew with \
                               small, wide-small or whole-node-large.";
                ("NotOurs", message.to_owned())
            }
            Self::NotOurs { label: Some(label), .. } => {
                let message = format!(
                    "The pod's label sluice.dev/shape says {label}, which is no shape; create it \
                     anew with small, wide-small or whole-node-large."
                );
                ("NotOurs", message)
            }
            Self::Ended(outcome) => {
                let how = match outcome {
                    Outcome::Completed => "completed",
                    Outcome::Failed => "failed",
                    Outcome::Cancelled => "was deleted",
                };
                ("Ended", format!("The pod {how}, and its GPUs are free again."))
            }
            Self::Deleting => {
                let message = "The pod was deleted before it had GPUs, and never starts.";
                ("Deleting", message.to_owned())
            }
            Self::Elsewhere { node } => {
                ("Elsewhere", format!("The pod is bound to node {node}, which is in no pool."))
            }
            Self::NotSeen => {
                ("NotSeen", "The pod is new: the controller has not seen it yet.".to_owned())
            }
        }
    }

    /// The page about a pod.
    pub fn text(&self, pod: &str) -> String {
        let (reason, message) = self.said();
        format!("{pod}: {reason}.\n{message}\n")
    }

    /// The same for programs.
    pub fn json(&self, pod: &str) -> Value {
        let (reason, message) = self.said();
        json!({"version": super::json::VERSION, "pod": pod, "reason": reason, "message": message})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_a_sentence() {
        let label = |label: Option<&str>, our_scheduler| Outside::NotOurs {
            our_scheduler,
            label: label.map(str::to_owned),
        };
        let mismatch = Outside::ShapeMismatch {
            label: "small".to_owned(),
            expected: "1".to_owned(),
            requested: 2,
            resource: "nvidia.com/gpu".to_owned(),
            pool: "default".to_owned(),
        };
        let cases = [
            (
                Outside::NoSuchPool { pool: "red".to_owned() },
                "There is no GpuPool red; the pod waits until there is one.",
            ),
            (
                mismatch,
                "The pod's label says small, which is 1 of nvidia.com/gpu in pool default, and it \
                 requests 2. It is not admitted as it is: create it anew with label and request \
                 in agreement.",
            ),
            (
                label(None, true),
                "The pod has no label sluice.dev/shape; create it anew with small, wide-small or \
                 whole-node-large.",
            ),
            (
                label(Some("big"), true),
                "The pod's label sluice.dev/shape says big, which is no shape; create it anew \
                 with small, wide-small or whole-node-large.",
            ),
            (
                label(Some("small"), false),
                "The pod is left to another scheduler than sluice, which Sluice does not hold up.",
            ),
            (Outside::Ended(Outcome::Failed), "The pod failed, and its GPUs are free again."),
            (Outside::Deleting, "The pod was deleted before it had GPUs, and never starts."),
            (
                Outside::Elsewhere { node: "n9".to_owned() },
                "The pod is bound to node n9, which is in no pool.",
            ),
            (Outside::NotSeen, "The pod is new: the controller has not seen it yet."),
        ];
        for (outside, sentence) in cases {
            assert_eq!(outside.said().1, sentence);
            assert_eq!(outside.json("team/a")["message"], *sentence);
            assert!(outside.text("team/a").starts_with("team/a: "));
        }
    }
}
