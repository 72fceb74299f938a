//! Cluster side, pure: which GPUs kubelet had better give to a container.
//!
//! Kubelet asks with the free ids and a number; it does not say for which pod. Reservations of the
//! same size are interchangeable, so the answer is the earliest reservation that kubelet can still
//! serve. One that has been handed out already is never chosen, because its ids are not free.

use std::collections::{BTreeMap, BTreeSet};

use super::gpu::{Gpu, GpuList};

/// GPUs promised to one pod, in the order in which promises are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Promise {
    /// The GPUs, by id.
    pub gpus: BTreeSet<String>,
}

/// What kubelet asks for one container.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Ids that kubelet counts as free, and those that the pod's init containers have.
    pub available: BTreeSet<String>,
    /// Ids that the answer has to contain.
    pub must_include: BTreeSet<String>,
    /// How many ids the answer has to have.
    pub size: usize,
}

/// A question that has no answer.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ChooseError {
    /// More GPUs are asked for than there are.
    #[error("{size} GPUs are asked for and {available} are available")]
    TooFew {
        /// How many are asked for.
        size: usize,
        /// How many there are.
        available: usize,
    },
    /// The ids that have to be in the answer do not fit in it, or are not available.
    #[error("the GPUs that must be included are not among the available ones or exceed {size}")]
    MustInclude {
        /// How many are asked for.
        size: usize,
    },
}

/// Chooses `request.size` ids, in the order of the GPU list. The same question has the same answer.
///
/// `avoid` are GPUs on which the containers of an earlier pod still live.
pub fn prefer(
    request: &Request,
    promises: &[Promise],
    gpus: &GpuList,
    avoid: &BTreeSet<String>,
) -> Result<Vec<String>, ChooseError> {
    let Request { available, must_include, size } = request;
    if available.len() < *size {
        return Err(ChooseError::TooFew { size: *size, available: available.len() });
    }
    if must_include.len() > *size || !must_include.is_subset(available) {
        return Err(ChooseError::MustInclude { size: *size });
    }
    let chosen = promised(request, promises, gpus)
        .unwrap_or_else(|| unpromised(request, promises, gpus, avoid));
    debug_assert_eq!(chosen.len(), *size);
    debug_assert!(chosen.is_subset(available) && must_include.is_subset(&chosen));
    Ok(in_order(chosen, gpus))
}

/// The first promise of exactly this size; else a part of a larger promise, for a pod whose
/// containers share its GPUs.
fn promised(request: &Request, promises: &[Promise], gpus: &GpuList) -> Option<BTreeSet<String>> {
    let exact = promises.iter().find(|promise| {
        promise.gpus.len() == request.size
            && promise.gpus.is_subset(&request.available)
            && request.must_include.is_subset(&promise.gpus)
    });
    if let Some(promise) = exact {
        return Some(promise.gpus.clone());
    }
    promises.iter().find_map(|promise| {
        let usable: BTreeSet<String> =
            promise.gpus.intersection(&request.available).cloned().collect();
        let serves = promise.gpus.len() > request.size
            && usable.len() >= request.size
            && request.must_include.is_subset(&usable);
        serves.then(|| fill(request, in_order(usable, gpus)))
    })
}

/// GPUs that nobody was promised, on one NUMA node if they fit there; promised ones and those whose
/// last containers still live come last.
fn unpromised(
    request: &Request,
    promises: &[Promise],
    gpus: &GpuList,
    avoid: &BTreeSet<String>,
) -> BTreeSet<String> {
    let is_promised = |id: &str| promises.iter().any(|promise| promise.gpus.contains(id));
    let numa_rank = numa_ranks(request, gpus, |gpu| {
        gpu.healthy() && !avoid.contains(&gpu.info.id) && !is_promised(&gpu.info.id)
    });
    let positions = gpus.positions();
    let mut ranked: Vec<&String> = request.available.iter().collect();
    ranked.sort_by_key(|id| {
        let gpu = gpus.get(id);
        let numa = gpu.and_then(|gpu| gpu.info.numa_node);
        (
            avoid.contains(*id),
            gpu.is_none_or(|gpu| !gpu.healthy()),
            is_promised(id),
            numa_rank.get(&numa).copied().unwrap_or(usize::MAX),
            positions.get(id.as_str()).copied().unwrap_or(usize::MAX),
            (*id).clone(),
        )
    });
    fill(request, ranked.into_iter().cloned().collect())
}

/// Ranks NUMA nodes: first those that hold the whole request, the fullest first, so that the
/// emptier ones stay whole; then the others, the emptiest first, so that few are needed.
fn numa_ranks(
    request: &Request,
    gpus: &GpuList,
    usable: impl Fn(&Gpu) -> bool,
) -> BTreeMap<Option<u32>, usize> {
    let mut free: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    for gpu in gpus.iter().filter(|gpu| request.available.contains(&gpu.info.id) && usable(gpu)) {
        *free.entry(gpu.info.numa_node).or_default() += 1;
    }
    let mut nodes: Vec<(Option<u32>, usize)> = free.into_iter().collect();
    nodes.sort_by_key(|&(numa, count)| {
        let fits = count >= request.size;
        (!fits, if fits { count } else { usize::MAX - count }, numa)
    });
    nodes.into_iter().enumerate().map(|(rank, (numa, _))| (numa, rank)).collect()
}

/// The ids that must be included, then candidates in their order, until there are enough.
fn fill(request: &Request, candidates: Vec<String>) -> BTreeSet<String> {
    let mut chosen = request.must_include.clone();
    for id in candidates {
        if chosen.len() == request.size {
            break;
        }
        chosen.insert(id);
    }
    chosen
}

fn in_order(ids: BTreeSet<String>, gpus: &GpuList) -> Vec<String> {
    let positions = gpus.positions();
    let mut ids: Vec<String> = ids.into_iter().collect();
    ids.sort_by_key(|id| positions.get(id.as_str()).copied().unwrap_or(usize::MAX));
    ids
}

#[cfg(test)]
mod tests {
    use super::super::gpu::GpuInfo;
    use super::*;

    fn node() -> GpuList {
        GpuList::new(
            (0..8)
                .map(|index| Gpu {
                    info: GpuInfo {
                        index,
                        id: format!("g{index}"),
                        numa_node: Some(index / 4),
                        device_files: vec![],
                    },
                    fault: None,
                })
                .collect(),
        )
    }

    fn ids(indexes: &[u32]) -> BTreeSet<String> {
        indexes.iter().map(|index| format!("g{index}")).collect()
    }

    fn promise(indexes: &[u32]) -> Promise {
        Promise { gpus: ids(indexes) }
    }

    fn ask(available: &[u32], must: &[u32], size: usize) -> Request {
        Request { available: ids(available), must_include: ids(must), size }
    }

    fn choose(request: &Request, promises: &[Promise]) -> Vec<String> {
        prefer(request, promises, &node(), &BTreeSet::new()).expect("an answer")
    }

    const ALL: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

    #[test]
    fn smalls_get_their_reservations_one_after_the_other() {
        let promises = [promise(&[6]), promise(&[2])];
        assert_eq!(choose(&ask(&ALL, &[], 1), &promises), ["g6"]);
        assert_eq!(choose(&ask(&[0, 1, 2, 3, 4, 5, 7], &[], 1), &promises), ["g2"]);
        assert_eq!(choose(&ask(&[0, 1, 3, 4, 5, 7], &[], 1), &promises), ["g0"]);
    }

    #[test]
    fn a_wide_small_gets_its_own_reservation_beside_smalls_and_wider_ones() {
        let promises = [promise(&[5]), promise(&[0, 2, 4, 6]), promise(&[3, 7]), promise(&[1])];
        assert_eq!(choose(&ask(&ALL, &[], 2), &promises), ["g3", "g7"]);
        assert_eq!(choose(&ask(&ALL, &[], 4), &promises), ["g0", "g2", "g4", "g6"]);
        assert_eq!(choose(&ask(&[0, 1, 2, 3, 4, 6, 7], &[], 1), &promises), ["g1"]);
    }

    #[test]
    fn a_whole_node_is_all_of_it() {
        let promises = [promise(&[3]), promise(&ALL)];
        let expected: Vec<String> = ALL.iter().map(|index| format!("g{index}")).collect();
        assert_eq!(choose(&ask(&ALL, &[], 8), &promises), expected);
        assert_eq!(choose(&ask(&ALL, &[], 8), &[]), expected);
    }

    #[test]
    fn what_nobody_was_promised_comes_before_what_someone_was() {
        let request = ask(&ALL, &[], 2);
        assert_eq!(choose(&request, &[promise(&[0]), promise(&[1])]), ["g2", "g3"]);
        let request = ask(&[0, 1], &[], 2);
        assert_eq!(choose(&request, &[promise(&[0]), promise(&[1])]), ["g0", "g1"]);
    }

    #[test]
    fn containers_of_one_pod_share_its_reservation() {
        let promises = [promise(&[0, 2, 4, 6])];
        assert_eq!(choose(&ask(&ALL, &[], 2), &promises), ["g0", "g2"]);
        assert_eq!(choose(&ask(&[1, 3, 4, 5, 6, 7], &[], 2), &promises), ["g4", "g6"]);
    }

    #[test]
    fn must_include_is_respected_by_every_rule() {
        let promises = [promise(&[6]), promise(&[2])];
        assert_eq!(choose(&ask(&ALL, &[2], 1), &promises), ["g2"]);
        assert_eq!(choose(&ask(&ALL, &[5], 1), &promises), ["g5"]);
        let larger = [promise(&[0, 2, 4])];
        assert_eq!(choose(&ask(&ALL, &[4], 2), &larger), ["g0", "g4"]);
        assert_eq!(choose(&ask(&ALL, &[7], 2), &[]), ["g0", "g7"]);
    }

    #[test]
    fn one_numa_node_is_filled_before_a_second_is_touched() {
        assert_eq!(choose(&ask(&[0, 4, 5, 6], &[], 1), &[]), ["g0"]);
        assert_eq!(choose(&ask(&[0, 4, 5, 6], &[], 3), &[]), ["g4", "g5", "g6"]);
        assert_eq!(choose(&ask(&[0, 1, 4, 5, 6], &[], 4), &[]), ["g0", "g4", "g5", "g6"]);
    }

    #[test]
    fn sick_gpus_and_those_with_live_containers_come_last() {
        let mut gpus: Vec<Gpu> = node().iter().cloned().collect();
        gpus[0].fault = Some("xid 79".to_owned());
        let gpus = GpuList::new(gpus);
        let avoid = ids(&[1]);
        let one = prefer(&ask(&ALL, &[], 1), &[], &gpus, &avoid).expect("an answer");
        assert_eq!(one, ["g2"]);
        let seven = prefer(&ask(&ALL, &[], 7), &[], &gpus, &avoid).expect("an answer");
        assert!(seven.contains(&"g0".to_owned()) && !seven.contains(&"g1".to_owned()));
    }

    #[test]
    fn questions_without_an_answer_are_refused() {
        let too_few = prefer(&ask(&[1], &[], 2), &[], &node(), &BTreeSet::new());
        assert_eq!(too_few, Err(ChooseError::TooFew { size: 2, available: 1 }));
        let foreign = prefer(&ask(&[1], &[3], 1), &[], &node(), &BTreeSet::new());
        assert_eq!(foreign, Err(ChooseError::MustInclude { size: 1 }));
        let many = prefer(&ask(&ALL, &[1, 2], 1), &[], &node(), &BTreeSet::new());
        assert_eq!(many, Err(ChooseError::MustInclude { size: 1 }));
        assert_eq!(choose(&ask(&[], &[], 0), &[]), Vec::<String>::new());
    }
}
