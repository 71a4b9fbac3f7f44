//! Weights found through lists (`B_ptrs`, `SFB_ptrs`): what an entry must be, and the slices of a pool that entries lead to.

use super::groups::{listed_groups, Status};
use std::ops::Range;

/// Multiple of bytes that every entry must be: device rows copy weights by TMA, and a list means the same to every row.
pub const ENTRY_ALIGN: i64 = 16;

/// Lists and the pools that their byte offsets lead into; index 0 is the payload of B, 1 its scales.
#[derive(Debug, Clone, Copy)]
pub struct PoolLists<'a> {
    /// Entries as native 64-bit integers.
    pub lists: [&'a [u8]; 2],
    /// Pools.
    pub pools: [&'a [u8]; 2],
    /// Bytes of one expert.
    pub sizes: [usize; 2],
}

impl<'a> PoolLists<'a> {
    /// Slice `which` of an expert; `None` where its entry is missing, misaligned or leads outside the pool.
    pub fn slice(&self, which: usize, expert: usize) -> Option<&'a [u8]> {
        let entry = self.entry(which, expert).filter(|at| at % ENTRY_ALIGN == 0)?;
        let start = usize::try_from(entry).ok()?;
        self.pools[which].get(start..start.checked_add(self.sizes[which])?)
    }

    /// An entry as it stands.
    pub fn entry(&self, which: usize, expert: usize) -> Option<i64> {
        let bytes = self.lists[which].get(expert * 8..expert * 8 + 8)?;
        Some(i64::from_ne_bytes(bytes.try_into().ok()?))
    }

    /// Rows of every expert and the verdict on ends and entries.
    pub fn groups(&self, ends: &[i32], m: i64) -> (Vec<Range<usize>>, Status) {
        listed_groups(ends, m, |expert| (0..2).all(|which| self.slice(which, expert).is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_lead_to_aligned_slices_inside_the_pool() {
        let lists: Vec<u8> = [32i64, 0, 8, -16, 48, i64::MAX - 15].iter().flat_map(|x| x.to_ne_bytes()).collect();
        let pool: Vec<u8> = (0..64).collect();
        let p = PoolLists { lists: [&lists, &lists], pools: [&pool, &pool], sizes: [32, 16] };
        assert_eq!(p.slice(0, 0), Some(&pool[32..64]));
        assert_eq!(p.slice(1, 1), Some(&pool[..16]));
        assert_eq!(p.slice(1, 4), Some(&pool[48..]), "up to the pool's last byte");
        for (which, expert) in [(0, 2), (0, 3), (0, 4), (0, 5), (0, 6)] {
            assert_eq!(p.slice(which, expert), None, "expert {expert}");
        }
        let (groups, status) = p.groups(&[256, 512, 768], 768);
        assert_eq!((groups, status.0), (vec![0..256, 256..512, 512..512], Status::WEIGHTS | 3));
    }
}
