//! The slots of deterministic reductions: who writes what, and the fixed-order sums that follow. A device row keeps slots in the executable's
//! workspace and reduces them there; these are the same shapes and sums for callers who hold slots themselves, and the oracle of the kernels.

use super::groups::groups;
use half::bf16;

/// Rows of a slot of dbias: those of one CTA's tile in every supported configuration.
pub const DBIAS_SLOT_ROWS: i64 = 128;

/// Extents (M, slots, 1) of dprob's slots, f32: one for each N tile that the scheduler can emit, which counts whole clusters.
pub const fn dprob_workspace_shape(m: i64, n: i64, tile_n: i64, cluster_n: i64) -> [i64; 3] {
    let wide = tile_n * cluster_n;
    [m, (n + wide - 1) / wide * cluster_n, 1]
}

/// Extents (blocks, N, 1) of dbias's slots, bf16: one for each block of 128 rows and column. No block belongs to two experts.
pub const fn dbias_workspace_shape(m: i64, n: i64) -> [i64; 3] {
    [(m + DBIAS_SLOT_ROWS - 1) / DBIAS_SLOT_ROWS, n, 1]
}

/// dprob of every row: its slots added in order. `slots` is `[M][n_slots]`, `out` `[M]`.
pub fn reduce_dprob_workspace(slots: &[f32], n_slots: usize, out: &mut [f32]) {
    for (out, slots) in out.iter_mut().zip(slots.chunks_exact(n_slots.max(1))) {
        *out = slots.iter().sum();
    }
}

/// dbias of every expert: the slots of its own blocks, added in f32 in order and rounded once. A plain sum over all slots would mix experts.
///
/// `slots` is `[blocks][n]`, `ends` the experts' cumulative ends, `out` `[L][n]`. Ends that cannot be count as in
/// [`groups`]: those experts have no rows and get 0.
pub fn reduce_dbias_workspace(slots: &[bf16], n: usize, ends: &[i32], out: &mut [bf16]) {
    let rows = slots.len() / n.max(1) * DBIAS_SLOT_ROWS as usize;
    let (groups, _) = groups(ends, rows as i64);
    for (rows, out) in groups.iter().zip(out.chunks_exact_mut(n.max(1))) {
        let blocks = rows.start / DBIAS_SLOT_ROWS as usize..rows.end / DBIAS_SLOT_ROWS as usize;
        for (col, out) in out.iter_mut().enumerate() {
            *out = bf16::from_f32(blocks.clone().map(|b| slots[b * n + col].to_f32()).sum());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The specification's examples: ceil(n, 256 · cn) · cn slots, and 2 MiB of dbias slots at 64k rows and 2048 columns.
    #[test]
    fn shapes_of_the_specification() {
        assert_eq!(dprob_workspace_shape(1000, 512, 256, 1), [1000, 2, 1]);
        assert_eq!(dprob_workspace_shape(1000, 513, 256, 1), [1000, 3, 1]);
        assert_eq!(dprob_workspace_shape(1000, 512, 256, 4), [1000, 4, 1], "whole clusters: not ceil(512, 256)");
        assert_eq!(dprob_workspace_shape(1000, 512, 128, 2), [1000, 4, 1]);
        assert_eq!(dbias_workspace_shape(65_536, 2048), [512, 2048, 1]);
        assert_eq!(512 * 2048 * 2, 2 << 20);
    }

    #[test]
    fn reductions_keep_experts_apart() {
        let slots: Vec<bf16> = (0..8).map(|i| bf16::from_f32([1.0, 10.0, 2.0, 20.0, 4.0, 40.0, 8.0, 80.0][i])).collect();
        let mut out = [bf16::NAN; 6];
        reduce_dbias_workspace(&slots, 2, &[256, 256, 512], &mut out);
        assert_eq!(out.map(f32::from), [3.0, 30.0, 0.0, 0.0, 12.0, 120.0]);
        let mut dprob = [f32::NAN; 2];
        reduce_dprob_workspace(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3, &mut dprob);
        assert_eq!(dprob, [6.0, 15.0]);
    }
}
