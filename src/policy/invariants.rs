//! Pure: the safety invariants, checked before each commit, in release builds too.
//!
//! A commit that would break one is refused and reported, never carried out. The same checks run
//! over whole pools in tests, in the model checker and on the live objects.

use serde::{Deserialize, Serialize};

use super::{Config, GpuSet, Holding, JobId, Kind, Millis, Node, Phase, Shape};

/// An invariant that would be, or is, broken.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// GPUs are not free: held by another, unhealthy, or not of this node.
    NotFree(GpuSet),
    /// Two jobs hold the same GPU.
    Overlap(JobId, JobId),
    /// A small has another number of GPUs than one.
    SmallNotOne(JobId),
    /// A wide small has another number of GPUs than it asked for.
    WideNotItsCount(JobId),
    /// A large has not every GPU of its node.
    LargeNotAll(JobId),
    /// Something else holds a GPU beside a large.
    NotExclusive(JobId),
    /// A small was to be admitted behind a closed gate.
    GateClosed(JobId),
    /// A wave was to admit more than its size.
    WaveTooLarge(u32),
    /// A small was to be admitted behind the gate although it may outlast the drain.
    OutlastsDrain(JobId),
    /// A job was to be admitted that holds GPUs already.
    HeldTwice(JobId),
    /// The GPUs of a job were released twice.
    ReleasedTwice(JobId),
    /// The phase says that a large holds the node, and none does.
    PhaseWithoutLarge(JobId),
}

/// Whether `holding` may be added to `node` for `job`.
pub fn check_commit(
    config: &Config,
    node: &Node,
    job: JobId,
    holding: &Holding,
    now: Millis,
) -> Result<(), Violation> {
    if node.holdings.contains_key(&job) {
        return Err(Violation::HeldTwice(job));
    }
    if !holding.gpus.is_within(node.free()) {
        return Err(Violation::NotFree(holding.gpus.minus(node.free())));
    }
    match holding.shape {
        Some(shape @ (Shape::Small | Shape::Wide(_))) => {
            check_count(shape, job, holding)?;
            check_small(config, node, job, holding, now)
        }
        Some(Shape::Large) if holding.gpus != node.spec.gpus => Err(Violation::LargeNotAll(job)),
        Some(Shape::Large) if !node.holdings.is_empty() => Err(Violation::NotExclusive(job)),
        Some(Shape::Large) | None => Ok(()),
    }
}

/// A small holds exactly one GPU, a wide one exactly as many as it asks for.
fn check_count(shape: Shape, job: JobId, holding: &Holding) -> Result<(), Violation> {
    match shape {
        Shape::Small if holding.gpus.count() != 1 => Err(Violation::SmallNotOne(job)),
        Shape::Wide(asked) if holding.gpus.count() != asked => Err(Violation::WideNotItsCount(job)),
        Shape::Small | Shape::Wide(_) | Shape::Large => Ok(()),
    }
}

fn check_small(
    config: &Config,
    node: &Node,
    job: JobId,
    holding: &Holding,
    now: Millis,
) -> Result<(), Violation> {
    match (node.phase, holding.kind) {
        (Phase::Open, Kind::Direct) => Ok(()),
        (Phase::Wave { admitted, .. }, Kind::Wave) if admitted < config.wave_size => Ok(()),
        (Phase::Wave { admitted, .. }, Kind::Wave) => Err(Violation::WaveTooLarge(admitted + 1)),
        (Phase::Draining(_) | Phase::Wave { .. }, Kind::Backfill) if config.backfill => {
            match (holding.latest_end, node.latest_end(now)) {
                (Some(end), Some(drained)) if end <= drained => Ok(()),
                _ => Err(Violation::OutlastsDrain(job)),
            }
        }
        (Phase::Exclusive(large), _) => Err(Violation::NotExclusive(large)),
        _ => Err(Violation::GateClosed(job)),
    }
}

/// Every invariant that can be seen in the state of one node.
pub fn check_node(config: &Config, node: &Node) -> Vec<Violation> {
    let mut broken = Vec::new();
    let mut seen: Vec<(JobId, GpuSet)> = Vec::new();
    for (&job, holding) in &node.holdings {
        for &(other, gpus) in &seen {
            if gpus.overlaps(holding.gpus) {
                broken.push(Violation::Overlap(other, job));
            }
        }
        seen.push((job, holding.gpus));
        match holding.shape {
            Some(shape @ (Shape::Small | Shape::Wide(_))) => {
                broken.extend(check_count(shape, job, holding).err());
            }
            Some(Shape::Large) => {
                if holding.gpus != node.spec.gpus {
                    broken.push(Violation::LargeNotAll(job));
                }
                if node.holdings.len() > 1 {
                    broken.push(Violation::NotExclusive(job));
                }
            }
            None => {}
        }
    }
    match node.phase {
        Phase::Exclusive(job) if !node.holdings.contains_key(&job) => {
            broken.push(Violation::PhaseWithoutLarge(job));
        }
        Phase::Wave { admitted, .. } if admitted > config.wave_size => {
            broken.push(Violation::WaveTooLarge(admitted));
        }
        Phase::Open | Phase::Draining(_) | Phase::Exclusive(_) | Phase::Wave { .. } => {}
    }
    broken
}
