//! Pure: a set of GPUs of one node.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A set of GPUs of one node, by index, as a bit mask. A node has at most [`GpuSet::MAX`]. Written
/// as the list of its indexes: a mask of 64 bits is more than many readers of JSON can hold.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[serde(into = "Vec<u32>", try_from = "Vec<u32>")]
pub struct GpuSet(pub u64);

impl GpuSet {
    /// The most GPUs that a node can have.
    pub const MAX: u32 = 64;
    /// No GPU.
    pub const EMPTY: Self = Self(0);

    /// GPUs `0` to `count - 1`. Counts above [`GpuSet::MAX`] are cut to it.
    pub const fn first(count: u32) -> Self {
        if count >= Self::MAX { Self(u64::MAX) } else { Self((1 << count) - 1) }
    }

    /// The GPU with this index alone; empty for an index that no node can have.
    pub const fn single(index: u32) -> Self {
        if index >= Self::MAX { Self::EMPTY } else { Self(1 << index) }
    }

    /// How many GPUs.
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those in either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those in both.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those in `self` and not in `other`.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether the sets share a GPU.
    pub const fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether every GPU of `self` is in `other`.
    pub const fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// The `count` lowest GPUs, or `None` if there are fewer.
    pub fn lowest(self, count: u32) -> Option<Self> {
        (self.count() >= count).then(|| self.iter().take(count as usize).collect())
    }

    /// The `count` highest GPUs, or `None` if there are fewer.
    pub fn highest(self, count: u32) -> Option<Self> {
        let skip = self.count().checked_sub(count)?;
        Some(self.iter().skip(skip as usize).collect())
    }

    /// The indexes, ascending.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            (rest != 0).then(|| {
                let index = rest.trailing_zeros();
                rest &= rest - 1;
                index
            })
        })
    }
}

impl From<GpuSet> for Vec<u32> {
    fn from(set: GpuSet) -> Self {
        set.iter().collect()
    }
}

/// A GPU index that no node can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no GPU {0}: a node's GPUs have the indexes 0 to {max}", max = GpuSet::MAX - 1)]
pub struct NoSuchGpu(u32);

impl TryFrom<Vec<u32>> for GpuSet {
    type Error = NoSuchGpu;

    fn try_from(indexes: Vec<u32>) -> Result<Self, NoSuchGpu> {
        match indexes.iter().find(|&&index| index >= Self::MAX) {
            Some(&index) => Err(NoSuchGpu(index)),
            None => Ok(indexes.into_iter().collect()),
        }
    }
}

impl FromIterator<u32> for GpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(indexes: I) -> Self {
        indexes.into_iter().fold(Self::EMPTY, |set, index| set.union(Self::single(index)))
    }
}

impl fmt::Debug for GpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
