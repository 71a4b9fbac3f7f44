//! How work is cut: tiles of rows, and waves of batch entries whose tiles fit the planned workspace.
//!
//! Workspace sizes are functions of the graph alone. Short sequences share a wave, so a packed batch of many short sequences under a
//! large declared maximum neither needs the product of the two nor loses its parallelism.

use crate::sdpa::Lengths;
use std::ops::Range;

/// A block of rows of one (batch, head).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TileId {
    /// Batch entry.
    pub b: usize,
    /// Head.
    pub h: usize,
    /// First row.
    pub start: usize,
    /// Rows, at least 1.
    pub rows: usize,
}

/// One side (query or key) of a wave: its tiles in (batch, head, row) order.
#[derive(Debug, Clone)]
pub struct Side {
    /// The tiles; a tile's position is its slot in the workspace.
    pub tiles: Vec<TileId>,
    first: Vec<usize>,
    batch: usize,
    heads: usize,
    block: usize,
}

impl Side {
    fn new(lens: &[i64], batches: &Range<usize>, heads: usize, block: usize) -> Side {
        let (mut tiles, mut first) = (Vec::new(), Vec::new());
        for b in batches.clone() {
            first.push(tiles.len());
            let len = lens[b] as usize;
            for h in 0..heads {
                tiles.extend((0..len).step_by(block).map(|start| TileId { b, h, start, rows: block.min(len - start) }));
            }
        }
        first.push(tiles.len());
        Side { tiles, first, batch: batches.start, heads, block }
    }

    /// Slot of the tile that holds `row` of a (batch, head) of this wave.
    pub fn slot(&self, b: usize, h: usize, row: usize) -> usize {
        self.first[b - self.batch] + h * self.blocks(b) + row / self.block
    }

    /// Tiles of one head of a batch entry.
    pub fn blocks(&self, b: usize) -> usize {
        (self.first[b - self.batch + 1] - self.first[b - self.batch]) / self.heads
    }
}

/// Batch entries computed together.
#[derive(Debug, Clone)]
pub struct Wave {
    /// The entries.
    pub batches: Range<usize>,
    /// Query tiles.
    pub q: Side,
    /// Key tiles.
    pub kv: Side,
}

/// Tiles that a wave may hold on one side: at least one whole batch entry, at most `budget` bytes beyond that, never more than exist.
///
/// `None` when the count does not fit 64 bits, and for tiles without bytes.
pub fn capacity(batch: i64, heads: i64, extent: i64, block: usize, tile_bytes: u64, budget: u64) -> Option<u64> {
    let one = u64::try_from(heads).ok()?.checked_mul(u64::try_from(extent).ok()?.div_ceil(block as u64))?;
    let all = one.checked_mul(u64::try_from(batch).ok()?)?;
    Some(all.min(one.max(budget.checked_div(tile_bytes)?)))
}

/// Cuts the batch into waves that fit `cap_q` query tiles and `cap_kv` key tiles; each holds at least one entry.
pub fn waves(lens: &Lengths, heads: [usize; 2], block: [usize; 2], cap_q: u64, cap_kv: u64) -> Vec<Wave> {
    let mut out = Vec::new();
    let (mut start, mut used) = (0, [0u64; 2]);
    let count = |len: i64, side: usize| (len as u64).div_ceil(block[side] as u64) * heads[side] as u64;
    for b in 0..=lens.q.len() {
        let next = if b < lens.q.len() { [count(lens.q[b], 0), count(lens.kv[b], 1)] } else { [u64::MAX / 2; 2] };
        if b > start && (used[0] + next[0] > cap_q || used[1] + next[1] > cap_kv) {
            let q = Side::new(&lens.q, &(start..b), heads[0], block[0]);
            let kv = Side::new(&lens.kv, &(start..b), heads[1], block[1]);
            out.push(Wave { batches: start..b, q, kv });
            (start, used) = (b, [0; 2]);
        }
        used = [used[0] + next[0], used[1] + next[1]];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waves_cover_every_tile_once_and_fit() {
        let lens = Lengths { q: vec![0, 100, 64, 65, 1, 200], kv: vec![10, 0, 64, 1, 0, 130] };
        let waves = waves(&lens, [4, 2], [64, 64], 16, 8);
        let mut next = 0;
        for w in &waves {
            assert_eq!(w.batches.start, next);
            next = w.batches.end;
            assert!(w.q.tiles.len() <= 16 && w.kv.tiles.len() <= 8, "{w:?}");
            for (i, t) in w.q.tiles.iter().enumerate() {
                assert_eq!(w.q.slot(t.b, t.h, t.start + t.rows - 1), i);
            }
            for b in w.batches.clone() {
                let rows: usize = w.kv.tiles.iter().filter(|t| t.b == b && t.h == 1).map(|t| t.rows).sum();
                assert_eq!(rows as i64, lens.kv[b]);
            }
        }
        assert_eq!(next, 6);
        assert_eq!(waves.len(), 3);
    }

    #[test]
    fn capacity_follows_the_declared_maximum_of_one_entry_only() {
        // 4096 packed sequences under a declared maximum of 8192 rows: one entry's 8 * 128 tiles, not 4096 times as many.
        assert_eq!(capacity(4096, 8, 8192, 64, 16_384, 1 << 20), Some(1024));
        assert_eq!(capacity(2, 8, 64, 64, 16_384, 1 << 30), Some(16));
        assert_eq!(capacity(i64::MAX, i64::MAX, 64, 64, 1, 1), None);
    }
}
