//! How the wgmma backward cuts its work into blocks, and in which order they run. Measured on an H200 (`kernels/PERFORMANCE.md` section 12).

use crate::sdpa::arith::{ceil_div, divisors};
use crate::{Feature, SdpaFacts};

/// L2 bytes that Q, dO and the dQ accumulator of a section's heads may take under a causal mask: a block that ends early goes on to its next head, so
/// all of them are in use at once. What does not fit comes from memory for every key tile.
const L2_SECTION: i64 = 32 << 20;
/// The same of the heads in turn of the relay without such a mask, of which there are at least so many.
const L2_RELAY: i64 = 16 << 20;
const RELAY_TURNS: i64 = 4;
/// Half blocks that every multiprocessor should get under a causal mask, where they are unequal: eight sections nearly a block each.
const CAUSAL_HALVES: i64 = 15;

/// Shares and turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grid {
    /// Query heads that one block sums dK and dV over.
    pub heads_item: i64,
    /// Head groups that take turns in the grid: a section of it.
    pub interleave: i64,
    /// Sections that `dot` prepares, and how many sections ahead the blocks of main prepare; 0: `dot` prepares everything.
    pub ahead: i64,
}

/// A causal mask without a left bound: key tiles meet unequal numbers of query tiles.
pub(super) fn triangle(f: &SdpaFacts) -> bool {
    f.mask.right.is_some() && f.mask.left.is_none()
}

/// What the grid is made of. `q_tile`, `kv_tile`: rows and keys of a tile; `row`: bytes of Q, dO and dQ that a query row of a head takes.
pub(super) fn grid(f: &SdpaFacts, (q_tile, kv_tile): (i64, i64), row: i64, sm_count: i64, idle_warps: bool) -> Grid {
    let triangle = triangle(f);
    let relay = f.features.has(Feature::Deterministic);
    let tiles = ceil_div(f.s_kv, kv_tile).max(1);
    let group = f.h_q / f.h_kv;
    let blocks = |heads: i64| f.b.saturating_mul(f.h_q / heads).saturating_mul(tiles);
    let bytes = |heads: i64| row.saturating_mul(f.s_q).saturating_mul(heads);
    // A section of about a block for each multiprocessor: the longest blocks of the next one begin while the short ones of this end. So the blocks of a
    // head begin as many query tiles apart as a key tile has; in the relay, where a turn takes about a query tile, that should be two.
    let devices = if relay { ceil_div(2 * q_tile, kv_tile) } else { 1 };
    let turns = ((sm_count + tiles / 2) / tiles).max(1) * devices;
    let enough = |heads: &i64| {
        let n = blocks(*heads);
        if triangle {
            2 * n >= CAUSAL_HALVES * sm_count && bytes(turns * heads) <= L2_SECTION
        } else {
            10 * n >= 9 * sm_count * ceil_div(n, sm_count)
        }
    };
    let heads_item = divisors(group).into_iter().find(enough).unwrap_or(1);
    let groups = f.b.saturating_mul(f.h_q / heads_item);
    let interleave = if relay && triangle {
        // Sections of one size, and at least two: they walk upwards and downwards in turn (`turns.cuh`).
        let sections = (groups / turns + i64::from(2 * (groups % turns) > turns)).max(2);
        ceil_div(groups, sections).max(1)
    } else if relay {
        // Blocks of one head begin together and from then on are a turn apart, which a long walk does not notice; short ones want few blocks of a head.
        // More groups than there are would be the same grid, but main multiplies them by key tiles in 32 bits.
        (L2_RELAY / bytes(heads_item).max(1)).max(RELAY_TURNS).min(groups)
    } else if triangle {
        // Sections of one size.
        ceil_div(groups, ceil_div(groups, turns))
    } else {
        1
    };
    let ahead = if idle_warps { ahead(f, groups, (interleave, heads_item), tiles, triangle, sm_count) } else { 0 };
    Grid { heads_item, interleave, ahead }
}

/// How far ahead blocks prepare: what they prepare must be done before it is wanted. Blocks of equal length all run at once, so a device full of them
/// is too near; of unequal ones the first half of a section prepares, in about the time of a section.
fn ahead(f: &SdpaFacts, groups: i64, (interleave, heads_item): (i64, i64), tiles: i64, triangle: bool, sm_count: i64) -> i64 {
    let near = if triangle { 15 * sm_count / 8 } else { 6 * sm_count / 5 };
    let least = ceil_div(near, interleave.saturating_mul(tiles).max(1)).max(1);
    // `dot` is launched over whole batches or over the first heads of one.
    let whole = |sections: &i64| {
        let heads = sections.saturating_mul(interleave).saturating_mul(heads_item);
        heads <= f.h_q || heads % f.h_q == 0
    };
    let sections = (least..least.saturating_add(f.h_q)).take_while(|s| s.saturating_mul(interleave) < groups).find(whole);
    sections.unwrap_or(0)
}
