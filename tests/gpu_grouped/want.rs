//! What a case must give: the f64 oracle's values and how far from them a result may be.
//!
//! An error of G is measured against the sum of the magnitudes it is the sum of (`size`): products are exact and the tensor core's fp32
//! accumulation drops bits relative to the largest summand. What the results are then rounded to comes on top.

use frostgraph::engines::grouped_gemm::oracle::{element, Oracle};
use frostgraph::engines::grouped_gemm::scales::ScaleMatrix;
use frostgraph::engines::grouped_gemm::{Formula, GroupedGemmFacts};
use frostgraph::engines::{DType, Uid};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Largest error of G, relative to `size`.
const ACCUMULATION: f64 = 4e-6;
/// Relative error of single-precision arithmetic behind G, tanh included.
const ARITHMETIC: f64 = 4e-5;

/// What `judge` compares with.
pub struct Want {
    pub oracle: Oracle,
    /// `[M][N]`: bound on the error of D.
    pub d_error: Vec<f64>,
    /// `[M][N]`: what an error of D is relative to: |D|, or what |D| would be without the factor of a saturated clamp that takes its digits.
    pub d_size: Vec<f64>,
    /// `[M][N]`: bound on the error of D_srelu.
    pub srelu_error: Vec<f64>,
    /// `[M]`: bound on the error of dprob.
    pub dprob_error: Vec<f64>,
}

/// What is not finite has no size: the value itself is then judged exactly.
pub fn finite(x: f64) -> f64 {
    if x.is_finite() {
        x
    } else {
        0.0
    }
}

/// First element of B and first byte of SFB of an expert that has rows.
fn place(f: &GroupedGemmFacts, inputs: &BTreeMap<Uid, Vec<u8>>, expert: usize) -> [usize; 2] {
    let [b, sf] = f.expert_bytes().map(|x| x as usize * expert);
    let entry = |uid: Uid| {
        let at: Option<[u8; 8]> = inputs.get(&uid).and_then(|l| l[expert * 8..expert * 8 + 8].try_into().ok());
        at.map(|x| i64::from_ne_bytes(x) as usize)
    };
    [entry(6).unwrap_or(b) * 8 / f.ab.bits() as usize, entry(7).unwrap_or(sf)]
}

pub fn float(bytes: &[u8], i: usize) -> f64 {
    element(DType::F32, bytes, i)
}

impl Want {
    /// Bounds for these facts and inputs.
    pub fn new(f: &GroupedGemmFacts, inputs: &BTreeMap<Uid, Vec<u8>>, oracle: Oracle) -> Want {
        let (m, n, k, vec) = (f.m as usize, f.n as usize, f.k as usize, f.sf_vec as usize);
        let [a, b, c, sfa, sfb, alpha, prob] = [1, 2, 3, 4, 5, 9, 10].map(|u| &inputs[&u][..]);
        let (at_a, at_b) = (ScaleMatrix::of(m, k, vec), ScaleMatrix::of(n, k, vec));
        let mut d_error = vec![0.0; m * n];
        let clamp = f.tanh_clamp_scale.map(f64::from);
        let mut d_size: Vec<f64> = oracle.d.iter().map(|d| d.abs()).collect();
        if let (Some(s), Formula::PreactivationG) = (clamp, f.formula) {
            d_size.par_iter_mut().enumerate().for_each(|(i, size)| {
                *size = size.max(2.0 * float(prob, i / n) * element(f.c, c, i).abs() * s.min(oracle.d_srelu[i].max(0.0).sqrt()))
            });
        }
        let mut srelu_error = vec![0.0; m * n];
        let mut dprob_error = vec![0.0; m];
        for (expert, rows) in oracle.groups.iter().enumerate().filter(|g| !g.1.is_empty()) {
            let [from_b, from_sf] = place(f, inputs, expert);
            let weight = |i: usize| {
                let (col, at) = (i / k, if f.b_n_major { i % k * n + i / k } else { i });
                finite((element(f.ab, b, from_b + at) * element(f.sf, sfb, from_sf + at_b.index(col, i % k / vec))).abs())
            };
            let weights: Vec<f64> = (0..n * k).into_par_iter().map(weight).collect();
            let scale = float(alpha, expert).abs();
            let own = rows.start * n..rows.end * n;
            let lines = d_error[own.clone()]
                .par_chunks_mut(n)
                .zip(srelu_error[own].par_chunks_mut(n))
                .zip(&mut dprob_error[rows.clone()]);
            lines.enumerate().for_each(|(r, ((d_error, srelu_error), dprob_error))| {
                let row = rows.start + r;
                let x: Vec<f64> = (0..k)
                    .map(|i| finite((element(f.ab, a, row * k + i) * element(f.sf, sfa, at_a.index(row, i / vec))).abs()))
                    .collect();
                let p2 = 2.0 * float(prob, row);
                for col in 0..n {
                    let size = scale * x.iter().zip(&weights[col * k..]).map(|(x, w)| x * w).sum::<f64>();
                    let g_error = ACCUMULATION * size;
                    let c = finite(element(f.c, c, row * n + col));
                    let (d, s) = (finite(oracle.d[row * n + col].abs()), finite(oracle.d_srelu[row * n + col].abs()));
                    // |G| <= size; the activation and its slope grow no faster than x.
                    let (by_d, by_p) = match f.formula {
                        Formula::PreactivationG => (c.abs(), c.abs() * 2.0 * size),
                        Formula::PreactivationC => (c.max(0.0), c.max(0.0) * c.max(0.0)),
                    };
                    d_error[col] = p2 * by_d * g_error + ARITHMETIC * d;
                    let by_s = if f.formula == Formula::PreactivationG { size } else { 0.0 };
                    srelu_error[col] = p2 * by_s * g_error + 2.0 * ARITHMETIC * s;
                    *dprob_error += by_p * g_error;
                }
                *dprob_error += ARITHMETIC * finite(oracle.dprob_size[row]);
            });
        }
        Want { oracle, d_error, d_size, srelu_error, dprob_error }
    }
}
