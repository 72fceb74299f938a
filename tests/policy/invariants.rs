//! The checks before each commit find every fault that they are there for. The rule itself never
//! commits one, so no timeline shows that they would: here the faults are made by hand.

use sluice::policy::invariants::{Violation, check_commit, check_node};
use sluice::policy::{
    Config, Gate, GpuSet, Holding, JobId, Kind, Millis, Node, NodeSpec, Phase, Shape, Stage,
};

const NOW: Millis = Millis(1_000);
const OTHER: JobId = JobId(1);
const JOB: JobId = JobId(2);
const LARGE: JobId = JobId(9);

fn set(gpus: &[u32]) -> GpuSet {
    gpus.iter().copied().collect()
}

fn node(phase: Phase) -> Node {
    let gpus = GpuSet::first(4);
    Node { phase, ..Node::new(NodeSpec { gpus, healthy: gpus, schedulable: true }, Millis(0)) }
}

fn holding(shape: Shape, kind: Kind, gpus: &[u32]) -> Holding {
    Holding {
        shape: Some(shape),
        kind,
        stage: Stage::Reserved,
        gpus: set(gpus),
        since: NOW,
        expires: None,
        latest_end: None,
        evicting: false,
    }
}

/// With another job that holds GPU 3.
fn beside(mut node: Node, other: Holding) -> Node {
    node.holdings.insert(OTHER, other);
    node
}

fn commit(config: &Config, node: &Node, holding: &Holding) -> Result<(), Violation> {
    check_commit(config, node, JOB, holding, NOW)
}

fn config() -> Config {
    Config { gpus_per_node: 4, wave_size: 2, ..Config::default() }
}

fn gate() -> Gate {
    Gate { job: LARGE, since: Millis(0), overdue: false }
}

fn wave(admitted: u32) -> Node {
    node(Phase::Wave { admitted, gate: gate() })
}

#[test]
fn nobody_is_given_a_gpu_that_is_not_free() {
    let mut sick = node(Phase::Open);
    sick.spec.healthy = set(&[0, 1]);
    let small = |gpu: u32| holding(Shape::Small, Kind::Direct, &[gpu]);
    assert_eq!(commit(&config(), &sick, &small(1)), Ok(()));
    assert_eq!(commit(&config(), &sick, &small(2)), Err(Violation::NotFree(set(&[2]))));
    let node = beside(node(Phase::Open), small(3));
    assert_eq!(commit(&config(), &node, &small(3)), Err(Violation::NotFree(set(&[3]))));
    assert_eq!(commit(&config(), &node, &small(4)), Err(Violation::NotFree(set(&[4]))));
    // Of several only those that are not free are named.
    let wide = holding(Shape::Wide(2), Kind::Direct, &[2, 3]);
    assert_eq!(commit(&config(), &node, &wide), Err(Violation::NotFree(set(&[3]))));
}

#[test]
fn who_holds_gpus_already_is_given_no_others() {
    let mut node = node(Phase::Open);
    node.holdings.insert(JOB, holding(Shape::Small, Kind::Direct, &[3]));
    let again = holding(Shape::Small, Kind::Direct, &[0]);
    assert_eq!(commit(&config(), &node, &again), Err(Violation::HeldTwice(JOB)));
}

#[test]
fn a_small_is_given_one_gpu_and_a_wide_one_what_it_asks_for() {
    let open = node(Phase::Open);
    let small = |gpus: &[u32]| commit(&config(), &open, &holding(Shape::Small, Kind::Direct, gpus));
    assert_eq!(small(&[0]), Ok(()));
    assert_eq!(small(&[]), Err(Violation::SmallNotOne(JOB)));
    assert_eq!(small(&[0, 1]), Err(Violation::SmallNotOne(JOB)));
    let wide =
        |gpus: &[u32]| commit(&config(), &open, &holding(Shape::Wide(2), Kind::Direct, gpus));
    assert_eq!(wide(&[0, 1]), Ok(()));
    assert_eq!(wide(&[0]), Err(Violation::WideNotItsCount(JOB)));
    assert_eq!(wide(&[0, 1, 2]), Err(Violation::WideNotItsCount(JOB)));
}

#[test]
fn a_large_is_given_every_gpu_of_an_empty_node() {
    let all = holding(Shape::Large, Kind::Direct, &[0, 1, 2, 3]);
    assert_eq!(commit(&config(), &node(Phase::Open), &all), Ok(()));
    let some = holding(Shape::Large, Kind::Direct, &[0, 1, 2]);
    assert_eq!(commit(&config(), &node(Phase::Open), &some), Err(Violation::LargeNotAll(JOB)));
    // Somebody is on the node of whom it is not known which GPUs it has.
    let other = beside(node(Phase::Open), holding(Shape::Small, Kind::Direct, &[]));
    assert_eq!(commit(&config(), &other, &all), Err(Violation::NotExclusive(JOB)));
}

#[test]
fn a_foreign_pod_is_only_recorded() {
    let foreign = Holding { shape: None, ..holding(Shape::Small, Kind::Foreign, &[0, 1]) };
    assert_eq!(commit(&config(), &node(Phase::Draining(gate())), &foreign), Ok(()));
}

#[test]
fn no_small_is_admitted_behind_a_closed_gate_or_beside_a_large() {
    let direct = holding(Shape::Small, Kind::Direct, &[0]);
    assert_eq!(commit(&config(), &node(Phase::Open), &direct), Ok(()));
    let refused = |node: &Node| commit(&config(), node, &direct);
    assert_eq!(refused(&node(Phase::Draining(gate()))), Err(Violation::GateClosed(JOB)));
    assert_eq!(refused(&wave(0)), Err(Violation::GateClosed(JOB)));
    assert_eq!(refused(&node(Phase::Exclusive(LARGE))), Err(Violation::NotExclusive(LARGE)));
    // Nor is one of a wave where there is none.
    let waved = holding(Shape::Small, Kind::Wave, &[0]);
    for node in [node(Phase::Open), node(Phase::Draining(gate()))] {
        assert_eq!(commit(&config(), &node, &waved), Err(Violation::GateClosed(JOB)));
    }
    // A wide one is no other.
    let wide = holding(Shape::Wide(2), Kind::Direct, &[0, 1]);
    let drains = node(Phase::Draining(gate()));
    assert_eq!(commit(&config(), &drains, &wide), Err(Violation::GateClosed(JOB)));
}

#[test]
fn a_wave_admits_no_more_than_its_size() {
    let waved = holding(Shape::Small, Kind::Wave, &[0]);
    assert_eq!(commit(&config(), &wave(0), &waved), Ok(()));
    assert_eq!(commit(&config(), &wave(1), &waved), Ok(()));
    assert_eq!(commit(&config(), &wave(2), &waved), Err(Violation::WaveTooLarge(3)));
}

#[test]
fn a_small_behind_the_gate_ends_no_later_than_the_drain() {
    let seconds = |s| Some(Millis::from_secs(s));
    let backfill = Config { backfill: true, ..config() };
    let until = |end| Holding { latest_end: end, ..holding(Shape::Small, Kind::Direct, &[3]) };
    let small = |end| Holding { latest_end: end, ..holding(Shape::Small, Kind::Backfill, &[0]) };
    let refused = Err(Violation::OutlastsDrain(JOB));
    for phase in [Phase::Draining(gate()), Phase::Wave { admitted: 1, gate: gate() }] {
        let drains = beside(node(phase), until(seconds(20)));
        assert_eq!(commit(&backfill, &drains, &small(seconds(20))), Ok(()));
        assert_eq!(commit(&backfill, &drains, &small(seconds(21))), refused);
        assert_eq!(commit(&backfill, &drains, &small(None)), refused);
        let for_ever = beside(node(phase), until(None));
        assert_eq!(commit(&backfill, &for_ever, &small(seconds(20))), refused);
        // Where the pool does not have the option, nobody is admitted so.
        let closed = Err(Violation::GateClosed(JOB));
        assert_eq!(commit(&config(), &drains, &small(seconds(20))), closed);
    }
    let open = beside(node(Phase::Open), until(seconds(20)));
    assert_eq!(commit(&backfill, &open, &small(seconds(20))), Err(Violation::GateClosed(JOB)));
}

#[test]
fn a_node_on_which_all_is_well_is_found_so() {
    let mut open = node(Phase::Open);
    open.holdings.insert(OTHER, holding(Shape::Small, Kind::Direct, &[0]));
    open.holdings.insert(JOB, holding(Shape::Wide(2), Kind::Direct, &[1, 2]));
    assert_eq!(check_node(&config(), &open), []);
    let mut taken = node(Phase::Exclusive(JOB));
    taken.holdings.insert(JOB, holding(Shape::Large, Kind::Direct, &[0, 1, 2, 3]));
    assert_eq!(check_node(&config(), &taken), []);
    assert_eq!(check_node(&config(), &wave(2)), []);
}

#[test]
fn every_fault_of_a_node_is_found() {
    let found = |node: &Node| check_node(&config(), node);
    let mut shared = node(Phase::Open);
    shared.holdings.insert(OTHER, holding(Shape::Wide(2), Kind::Direct, &[0, 1]));
    shared.holdings.insert(JOB, holding(Shape::Small, Kind::Direct, &[1]));
    assert_eq!(found(&shared), [Violation::Overlap(OTHER, JOB)]);
    let mut counts = node(Phase::Open);
    counts.holdings.insert(OTHER, holding(Shape::Small, Kind::Direct, &[0, 1]));
    counts.holdings.insert(JOB, holding(Shape::Wide(3), Kind::Direct, &[2, 3]));
    assert_eq!(found(&counts), [Violation::SmallNotOne(OTHER), Violation::WideNotItsCount(JOB)]);
    let mut part = node(Phase::Exclusive(JOB));
    part.holdings.insert(JOB, holding(Shape::Large, Kind::Direct, &[0, 1, 2]));
    assert_eq!(found(&part), [Violation::LargeNotAll(JOB)]);
    part.holdings.insert(OTHER, holding(Shape::Small, Kind::Direct, &[3]));
    assert_eq!(found(&part), [Violation::LargeNotAll(JOB), Violation::NotExclusive(JOB)]);
    let gone = node(Phase::Exclusive(JOB));
    assert_eq!(found(&gone), [Violation::PhaseWithoutLarge(JOB)]);
    assert_eq!(found(&wave(3)), [Violation::WaveTooLarge(3)]);
}
