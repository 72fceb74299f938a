//! Values that the rule is told in: sets of GPUs, times, names.

use sluice::policy::{GpuSet, JobId, Millis, NodeId};

#[test]
fn sets_are_what_their_indexes_say() {
    let set: GpuSet = [5, 0, 3].into_iter().collect();
    assert_eq!(set.count(), 3);
    assert_eq!(set.iter().collect::<Vec<_>>(), [0, 3, 5]);
    assert_eq!(format!("{set:?}"), "{0, 3, 5}");
    assert_eq!(set.lowest(2), Some([0, 3].into_iter().collect()));
    assert_eq!(set.highest(2), Some([3, 5].into_iter().collect()));
    assert_eq!(set.lowest(4), None);
    assert_eq!(set.highest(4), None);
    assert!(set.is_within(GpuSet::first(6)) && !set.is_within(GpuSet::first(5)));
    assert!(set.overlaps(GpuSet::single(3)) && !set.overlaps(GpuSet::single(4)));
    assert_eq!(set.minus(GpuSet::single(3)).union(GpuSet::single(3)), set);
}

#[test]
fn it_is_written_as_its_indexes() {
    let set: GpuSet = [63, 0, 3].into_iter().collect();
    assert_eq!(serde_json::to_string(&set).unwrap(), "[0,3,63]");
    assert_eq!(serde_json::from_str::<GpuSet>("[63,3,0]").unwrap(), set);
    let error = serde_json::from_str::<GpuSet>("[64]").unwrap_err().to_string();
    assert!(error.starts_with("there is no GPU 64"), "{error}");
}

#[test]
fn the_largest_node_has_sixty_four() {
    assert_eq!(GpuSet::first(64).count(), 64);
    assert_eq!(GpuSet::first(65).count(), 64);
    assert_eq!(GpuSet::single(64), GpuSet::EMPTY);
    assert_eq!(GpuSet::first(0), GpuSet::EMPTY);
}

#[test]
fn a_set_is_within_another_that_has_each_of_its_gpus() {
    let set = |indexes: &[u32]| -> GpuSet { indexes.iter().copied().collect() };
    assert!(GpuSet::EMPTY.is_within(GpuSet::EMPTY) && GpuSet::EMPTY.is_within(set(&[1])));
    assert!(set(&[1]).is_within(set(&[1])) && set(&[1]).is_within(set(&[0, 1])));
    assert!(!set(&[0, 1]).is_within(set(&[1])) && !set(&[0]).is_within(set(&[1])));
    assert!(!set(&[0, 1]).overlaps(set(&[2])) && set(&[0, 1]).overlaps(set(&[1, 2])));
    assert!(!GpuSet::EMPTY.overlaps(set(&[1])) && !set(&[1]).overlaps(GpuSet::EMPTY));
}

#[test]
fn what_two_sets_have_in_common_apart_and_together() {
    let set = |indexes: &[u32]| -> GpuSet { indexes.iter().copied().collect() };
    let (one, other) = (set(&[0, 1]), set(&[1, 2]));
    assert_eq!(one.union(other), set(&[0, 1, 2]));
    assert_eq!(one.intersection(other), set(&[1]));
    assert_eq!(one.minus(other), set(&[0]));
    assert!(one.minus(one).is_empty() && !one.is_empty());
}

#[test]
fn times_saturate_at_both_ends() {
    let for_ever = Millis(u64::MAX);
    assert_eq!(Millis::from_secs(3), Millis(3_000));
    assert_eq!(Millis::from_secs(u64::MAX), for_ever);
    assert_eq!(for_ever + Millis(1), for_ever);
    assert_eq!((Millis(5).since(Millis(3)), Millis(3).since(Millis(5))), (Millis(2), Millis(0)));
}

#[test]
fn times_and_names_are_written_as_a_person_reads_them() {
    assert_eq!(Millis(61_005).to_string(), "61.005 s");
    assert_eq!((JobId(7).to_string(), NodeId(3).to_string()), ("job 7".into(), "node 3".into()));
}
