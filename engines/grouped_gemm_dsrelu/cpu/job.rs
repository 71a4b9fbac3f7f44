//! One job: 128 rows of one expert, all columns in order.

use super::inputs::{floats, Inputs};
use super::quantise::Quantiser;
use crate::grouped_gemm::epilogue::{element, rcp_max};
use crate::grouped_gemm::scales::{ScaleMatrix, ATOM_BYTES};
use crate::grouped_gemm_dsrelu::cpu_tile::{payload, read, scale, write, Panel, Product, TILE};
use crate::Feature;

/// Where one job writes: 128 rows of every output. Absent outputs are empty.
#[derive(Default)]
pub(super) struct Part<'a> {
    pub block: usize,
    pub d_row: &'a mut [u8],
    pub d_col: &'a mut [u8],
    pub d_srelu: &'a mut [u8],
    pub dprob: &'a mut [u8],
    pub sfd_row: &'a mut [u8],
    pub cols: &'a mut [u8],
    pub cols_srelu: &'a mut [u8],
    pub sums: &'a mut [f32],
    pub amax: f32,
}

/// Scratch of a thread.
#[derive(Default)]
pub(super) struct Scratch {
    pub a: Panel,
    pub b: Panel,
    pub g: Vec<f32>,
    pub d: Vec<f32>,
    pub srelu: Vec<f32>,
}

/// The larger magnitude by its bits, as an integer maximum on the device has it: a NaN is larger than everything.
pub(super) fn larger(a: f32, b: f32) -> f32 {
    if a.is_nan() || (!b.is_nan() && a >= b) {
        a
    } else {
        b
    }
}

/// 128 rows of one expert, all columns.
pub(super) fn job(x: &Inputs<'_>, scratch: &mut Scratch, part: &mut Part<'_>) {
    let f = x.f;
    let row0 = part.block * TILE;
    let Some(expert) = x.owner[part.block] else {
        // Only dprob is defined where no expert is.
        part.dprob.fill(0);
        return;
    };
    let (n, k, vec) = (f.n as usize, f.k as usize, f.sf_vec as usize);
    let blocks = k.div_ceil(vec);
    let (sa, sb) = (ScaleMatrix::of(f.m as usize, k, vec), ScaleMatrix::of(n, k, vec));
    let Scratch { a, b, g, d, srelu } = scratch;
    a.fill(TILE, [k, blocks], |r, i| payload(f.ab, x.a, (row0 + r) * k + i), |r, i| scale(f.sf, x.sfa[sa.index(row0 + r, i)]));
    for buffer in [&mut *g, &mut *d, &mut *srelu] {
        buffer.resize(TILE * TILE, 0.0);
    }
    let [weights, weight_scales] = x.b[expert];
    let alpha = floats(x.alpha, expert);
    let double = f.features.has(Feature::F64Accumulate);
    let mut dprob = [0.0f64; TILE];
    part.amax = f32::NEG_INFINITY;
    part.sfd_row.fill(0);
    part.cols.fill(0);
    part.cols_srelu.fill(0);
    for col0 in (0..n).step_by(TILE) {
        let cols = TILE.min(n - col0);
        let at = |c: usize, i: usize| if f.b_n_major { i * n + col0 + c } else { (col0 + c) * k + i };
        b.fill(
            cols,
            [k, blocks],
            |c, i| payload(f.ab, weights, at(c, i)),
            |c, i| scale(f.sf, weight_scales[sb.index(col0 + c, i)]),
        );
        Product { a, b, k, vec, double, out: g }.run();
        for r in 0..TILE {
            let prob = floats(x.prob, row0 + r);
            for c in 0..cols {
                let value = alpha * g[r * TILE + c];
                let e = element(f.formula, f.tanh_clamp_scale, value, read(f.c, x.c, (row0 + r) * n + col0 + c), prob);
                d[r * TILE + c] = e.d;
                srelu[r * TILE + c] = e.srelu;
                dprob[r] += f64::from(e.dprob);
                part.amax = larger(part.amax, e.d.abs());
            }
        }
        if let Some(sums) = part.sums.get_mut(col0..col0 + cols) {
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = (0..TILE).map(|r| f64::from(d[r * TILE + c])).sum::<f64>() as f32;
            }
        }
        if f.quantised {
            let q = Quantiser { d: f.d, norm: x.norm, rcp: rcp_max(f.d), n, col0, cols };
            let atom = col0 / TILE * ATOM_BYTES;
            q.rows(d, part.d_row, part.sfd_row);
            q.columns(d, part.d_col, &mut part.cols[atom..atom + ATOM_BYTES]);
            if let Some(atom) = part.cols_srelu.get_mut(atom..atom + ATOM_BYTES) {
                q.columns(srelu, part.d_srelu, atom);
            }
        } else {
            for (values, out) in [(&*d, &mut *part.d_row), (&*d, &mut *part.d_col), (&*srelu, &mut *part.d_srelu)] {
                if out.is_empty() {
                    continue;
                }
                for r in 0..TILE {
                    (0..cols).for_each(|c| write(f.d, out, r * n + col0 + c, values[r * TILE + c]));
                }
            }
        }
    }
    for (slot, sum) in part.dprob.chunks_exact_mut(4).zip(dprob) {
        slot.copy_from_slice(&(sum as f32).to_ne_bytes());
    }
}
