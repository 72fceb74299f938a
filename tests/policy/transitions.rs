//! What may happen in a random history, and the settings under which it does.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::Index;
use sluice::policy::{Config, Millis, TenantId};

/// What happens. Indexes pick among what there is at that time, so that a history stays a history
/// while it shrinks.
#[derive(Clone, Debug)]
pub(crate) enum Transition {
    Arrive(Arrival),
    Complete(Index),
    Fail(Index),
    Cancel(Index),
    Bind(Index),
    Start(Index),
    Refuse(Index),
    Vanish(Index),
    Move(Index, Index),
    Swap(Index, Index),
    Foreign { node: Index, gpus: u64, counted: bool, end: Option<u64> },
    Gpu { node: Index, gpu: Index, healthy: bool },
    Cordon { node: Index, cordoned: bool },
    LoseNode(Index),
    AddNode { id: u32, small: bool },
    Pause(bool),
    Restart,
}

#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) large: bool,
    /// Of one that is not large: how many GPUs it asks for, if that is more than one.
    pub(crate) wide: Option<u32>,
    pub(crate) priority: i32,
    pub(crate) age: u64,
    pub(crate) limit: Option<u64>,
    pub(crate) tenant: u32,
    pub(crate) on: Option<BTreeSet<u32>>,
}

fn arrival(widest: u32) -> impl Strategy<Value = Arrival> {
    let on = prop_oneof![
        4 => Just(None),
        1 => proptest::collection::btree_set(0..4_u32, 1..3).prop_map(Some),
    ];
    let limit = prop_oneof![1 => Just(None), 4 => (1..40_u64).prop_map(Some)];
    let priority = prop_oneof![4 => Just(0), 1 => 1..3_i32];
    let wide = prop_oneof![1 => Just(None), 1 => (2..=widest.max(2)).prop_map(Some)];
    let wide = wide.prop_map(move |wide| wide.filter(|_| widest > 1));
    let kind = (prop::bool::weighted(0.3), wide);
    (kind, priority, 0..3_u64, limit, 0..3_u32, on).prop_map(
        |((large, wide), priority, age, limit, tenant, on)| Arrival {
            large,
            wide,
            priority,
            age,
            limit,
            tenant,
            on,
        },
    )
}

fn transition(widest: u32) -> impl Strategy<Value = Transition> {
    let index = any::<Index>;
    let end = prop_oneof![1 => Just(None), 2 => (0..60_u64).prop_map(Some)];
    prop_oneof![
        12 => arrival(widest).prop_map(Transition::Arrive),
        10 => index().prop_map(Transition::Complete),
        2 => index().prop_map(Transition::Fail),
        3 => index().prop_map(Transition::Cancel),
        8 => index().prop_map(Transition::Bind),
        5 => index().prop_map(Transition::Start),
        2 => index().prop_map(Transition::Refuse),
        1 => index().prop_map(Transition::Vanish),
        1 => (index(), index()).prop_map(|(job, gpu)| Transition::Move(job, gpu)),
        1 => (index(), index()).prop_map(|(one, other)| Transition::Swap(one, other)),
        1 => (index(), 1..16_u64, any::<bool>(), end).prop_map(|(node, gpus, counted, end)| {
            Transition::Foreign { node, gpus, counted, end }
        }),
        2 => (index(), index(), any::<bool>()).prop_map(|(node, gpu, healthy)| {
            Transition::Gpu { node, gpu, healthy }
        }),
        1 => (index(), any::<bool>())
            .prop_map(|(node, cordoned)| Transition::Cordon { node, cordoned }),
        1 => index().prop_map(Transition::LoseNode),
        1 => (0..4_u32, prop::bool::weighted(0.1))
            .prop_map(|(id, small)| Transition::AddNode { id, small }),
        1 => prop::bool::weighted(0.3).prop_map(Transition::Pause),
        1 => Just(Transition::Restart),
    ]
}

/// Steps of a history: how many seconds pass before, and what happens then. Smalls ask for up to
/// `widest` GPUs.
pub(crate) fn history(
    longest: usize,
    widest: u32,
) -> impl Strategy<Value = Vec<(u64, Vec<Transition>)>> {
    let pause = prop_oneof![4 => 0..4_u64, 1 => 4..70_u64];
    let step = (pause, proptest::collection::vec(transition(widest), 0..4));
    proptest::collection::vec(step, 1..longest)
}

pub(crate) fn config() -> impl Strategy<Value = Config> {
    let seconds = |range: std::ops::Range<u64>| {
        prop_oneof![Just(None), range.prop_map(|s| Some(Millis::from_secs(s)))]
    };
    let quota = prop_oneof![3 => Just(None), 1 => (0..7_u32).prop_map(Some)];
    let waves = (any::<bool>(), any::<bool>());
    let options = (waves, seconds(1..120), 0..2_u32, seconds(1..50), any::<bool>());
    (1..=4_u32, 1..=4_u32, 1..=3_u32, quota, options).prop_map(
        |(gpus, wave, max_drains, quota, (waves, turn, keep_open, drain_limit, evict))| Config {
            gpus_per_node: gpus,
            wave_size: wave.min(gpus),
            max_drains,
            quotas: quota.map(|most| (TenantId(1), most)).into_iter().collect(),
            backfill: waves.0,
            one_wave: waves.1,
            turn,
            keep_open,
            drain_limit,
            evict_overdue: evict && drain_limit.is_some(),
            ..Config::default()
        },
    )
}
