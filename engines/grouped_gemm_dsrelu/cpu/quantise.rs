//! Block-scaled results of one tile, and the place of column scales in the output.

use super::inputs::Inputs;
use super::BLOCK;
use crate::grouped_gemm::epilogue::{block_scale, encode_fp8};
use crate::grouped_gemm::scales::{in_atom, ColumnScales, ScaleMatrix, ATOM_BYTES};
use crate::grouped_gemm_dsrelu::cpu_tile::TILE;
use crate::DType;

/// Quantises one 128-column tile of results.
pub(super) struct Quantiser {
    pub d: DType,
    pub norm: f32,
    pub rcp: f32,
    pub n: usize,
    pub col0: usize,
    pub cols: usize,
}

impl Quantiser {
    /// One scale for each row and 32 consecutive columns; a last block of fewer columns has the largest of those.
    pub fn rows(&self, tile: &[f32], out: &mut [u8], scales: &mut [u8]) {
        let matrix = ScaleMatrix::of(TILE, self.n, BLOCK);
        for r in 0..TILE {
            for c0 in (0..self.cols).step_by(BLOCK) {
                let values = &tile[r * TILE + c0..r * TILE + self.cols.min(c0 + BLOCK)];
                let (code, by) = block_scale(values.iter().fold(0.0, |a: f32, v| a.max(v.abs())), self.rcp, self.norm);
                scales[matrix.index(r, (self.col0 + c0) / BLOCK)] = code;
                for (i, v) in values.iter().enumerate() {
                    out[r * self.n + self.col0 + c0 + i] = encode_fp8(self.d, v * by);
                }
            }
        }
    }

    /// One scale for each column and 32 consecutive rows, into one atom: its rows are columns of D.
    pub fn columns(&self, tile: &[f32], out: &mut [u8], atom: &mut [u8]) {
        for c in 0..self.cols {
            for r0 in (0..TILE).step_by(BLOCK) {
                let values = || (r0..r0 + BLOCK).map(|r| (r, tile[r * TILE + c]));
                let (code, by) = block_scale(values().fold(0.0, |a: f32, (_, v)| a.max(v.abs())), self.rcp, self.norm);
                atom[in_atom(c, r0 / BLOCK)] = code;
                for (r, v) in values() {
                    out[r * self.n + self.col0 + c] = encode_fp8(self.d, v * by);
                }
            }
        }
    }
}

/// Copies the atoms of column scales from row-block order to their place in the output.
pub(super) fn place_columns(x: &Inputs<'_>, from: &[u8], out: &mut [u8]) {
    if out.is_empty() {
        return;
    }
    let n = x.f.n as usize;
    let layout = ColumnScales { m: x.f.m as usize, n, discrete: x.f.discrete_col_sfd };
    for (block, owner) in x.owner.iter().enumerate() {
        let Some(expert) = owner else { continue };
        for (atom, bytes) in
            from[block * n.div_ceil(TILE) * ATOM_BYTES..].chunks_exact(ATOM_BYTES).take(n.div_ceil(TILE)).enumerate()
        {
            let at = layout.atom(atom, block * TILE, &x.groups[*expert]);
            out[at..at + ATOM_BYTES].copy_from_slice(bytes);
        }
    }
}
