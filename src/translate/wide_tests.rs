//! Wide smalls between the cluster and the policy: label and request in, ledger and words out.

use std::collections::BTreeSet;

use k8s_openapi::serde_json::{Value, json};

use super::fixture::{Scene, on, pod};
use super::plan::{Action, Memory, Target, plan};
use super::{PodFacts, restore};
use crate::policy::Shape;

const WIDE: &str = "wide-small";

/// A pod with that label and request.
fn wide(name: &str, gpus: u32, patch: Value) -> PodFacts {
    let mut spec = json!({"spec": {"containers": [
        {"name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]}});
    super::node::tests::merge(&mut spec, patch);
    pod(name, WIDE, 0, spec)
}

fn shape(scene: &Scene, name: &str) -> Option<Shape> {
    scene.pool.job(scene.job(name)).map(|job| job.shape)
}

/// What a pod is told.
fn told(scene: &Scene, name: &str) -> (String, String) {
    let mut memory = Memory::default();
    let plan = plan(&scene.world, &scene.pool, &scene.known, &BTreeSet::new(), &mut memory);
    let told = plan.actions.into_iter().find_map(|action| match action {
        Action::Tell { ref admitted, .. } if action.target() == Target::Pod(name.to_owned()) => {
            Some((admitted.reason.clone(), admitted.message.clone()))
        }
        _ => None,
    });
    told.unwrap()
}

#[test]
fn the_request_says_how_wide_and_the_ledger_lists_as_many_gpus() {
    let mut scene = Scene::new(&["n"]);
    scene.put(wide("w", 3, json!({})));
    scene.settle();
    assert_eq!(shape(&scene, "w"), Some(Shape::Wide(3)));
    let ledger = scene.ledger("n");
    assert_eq!(ledger.reservations[0].shape.as_deref(), Some(WIDE));
    assert_eq!(ledger.reservations[0].gpus, ["gpu-0", "gpu-1", "gpu-2"]);
    assert_eq!(ledger.free_of_total, "5/8");
    let (_, message) = told(&scene, "w");
    assert_eq!(message, "GPUs 0, 1, 2 of node n are reserved for this pod.");
}

#[test]
fn the_pools_status_counts_wide_smalls_among_the_smalls() {
    let mut scene = Scene::new(&["n"]);
    scene.put(wide("w", 6, json!({})));
    scene.settle();
    scene.put(wide("v", 3, json!({})));
    scene.settle();
    scene.put(wide("w", 6, on("n", Some(0))));
    scene.settle();
    let troubles = super::status::Troubles::default();
    let status = super::status::render(&scene.pool, &scene.known, &scene.world, &troubles);
    let holds = status.small.admitted + status.small.running;
    assert_eq!((status.small.queue.depth, holds), (1, 1));
    assert_eq!(status.small.counters.admitted, 1);
    assert_eq!((status.gpus.held, status.gpus.free), (6, 2));
}

#[test]
fn a_label_that_the_request_contradicts_is_told_what_it_means() {
    for gpus in [1, 8, 9] {
        let mut scene = Scene::new(&["n"]);
        scene.put(wide("w", gpus, json!({})));
        scene.settle();
        let (reason, message) = told(&scene, "w");
        assert_eq!(reason, "ShapeMismatch");
        let expected = format!(
            "The pod's label says wide-small, which is 2 to 7 of nvidia.com/gpu in pool default, \
             and it requests {gpus}. It is not admitted as it is: create it anew with label and \
             request in agreement."
        );
        assert_eq!(message, expected);
    }
}

#[test]
fn who_waits_is_told_what_the_free_gpus_are_kept_for() {
    let mut scene = Scene::new(&["n"]);
    scene.put(wide("w", 7, json!({})));
    scene.settle();
    scene.put(wide("w", 7, on("n", Some(0))));
    scene.put(wide("x", 4, json!({})));
    scene.put(wide("y", 2, json!({})));
    scene.put(pod("z", "small", 0, json!({})));
    scene.settle();
    let (reason, message) = told(&scene, "x");
    assert_eq!(reason, "Gathering");
    assert!(
        message.starts_with(
            "Node n keeps its free GPUs for this pod, which needs 4 of one node: 1 is free there \
             now, and enough by "
        ),
        "{message}"
    );
    assert!(
        message
            .ends_with(" No latest start is given for a pod that needs several GPUs and not all.")
    );
    let (reason, message) = told(&scene, "y");
    assert_eq!(reason, "Busy");
    assert!(
        message.starts_with(
            "No node that the pod could use has 2 free GPUs; 1 small pod waits before it."
        ),
        "{message}"
    );
    let (reason, message) = told(&scene, "z");
    assert_eq!(reason, "Kept");
    assert!(
        message.starts_with(
            "Node n keeps 1 free GPU for team/x, which is served before and needs more of one node."
        ),
        "{message}"
    );
}

#[test]
fn a_restart_knows_how_wide_a_holder_is_with_its_pod_and_without() {
    let mut scene = Scene::new(&["n"]);
    scene.put(wide("w", 3, json!({})));
    scene.settle();
    scene.put(wide("w", 3, on("n", Some(0))));
    scene.settle();
    for with_pod in [true, false] {
        if !with_pod {
            scene.remove("w");
        }
        let (pool, _) = restore::restore(&scene.world).unwrap();
        let holdings = pool.nodes().values().flat_map(|node| node.holdings.values());
        let held: Vec<_> = holdings.map(|h| (h.shape, h.gpus.count())).collect();
        assert_eq!(held, [(Some(Shape::Wide(3)), 3)], "with its pod: {with_pod}");
    }
}
