//! Every output against the f64 oracle.
//!
//! An error of G is measured against the sum of the magnitudes it is the sum of (`size`): products are exact and the tensor core's fp32 accumulation
//! drops bits relative to the largest summand. What the results are then rounded to comes on top.

use crate::cases::Case;
use frostgraph::engines::codec::{e4m3, e5m2, e8m0};
use frostgraph::engines::grouped_gemm::oracle::{element, Oracle};
use frostgraph::engines::grouped_gemm::scales::{ColumnScales, ScaleMatrix};
use frostgraph::engines::grouped_gemm::{Formula, GroupedGemmFacts};
use frostgraph::engines::{DType, Uid};
use half::bf16;
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
    d_error: Vec<f64>,
    /// `[M][N]`: what an error of D is relative to: |D|, or what |D| would be without the factor of a saturated clamp that takes its digits.
    d_size: Vec<f64>,
    /// `[M]`: bound on the error of dprob.
    dprob_error: Vec<f64>,
}

fn float(bytes: &[u8], i: usize) -> f64 {
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
        let mut dprob_error = vec![0.0; m];
        for (expert, rows) in oracle.groups.iter().enumerate().filter(|g| !g.1.is_empty()) {
            let weights: Vec<f64> = (0..n * k)
                .into_par_iter()
                .map(|i| {
                    (element(f.ab, b, expert * n * k + i)
                        * element(f.sf, sfb, expert * at_b.bytes() + at_b.index(i / k, i % k / vec)))
                    .abs()
                })
                .collect();
            let scale = float(alpha, expert).abs();
            let lines = d_error[rows.start * n..rows.end * n].par_chunks_mut(n).zip(&mut dprob_error[rows.clone()]);
            lines.enumerate().for_each(|(r, (d_error, dprob_error))| {
                let row = rows.start + r;
                let x: Vec<f64> = (0..k)
                    .map(|i| (element(f.ab, a, row * k + i) * element(f.sf, sfa, at_a.index(row, i / vec))).abs())
                    .collect();
                let p2 = 2.0 * float(prob, row);
                for col in 0..n {
                    let size = scale * x.iter().zip(&weights[col * k..]).map(|(x, w)| x * w).sum::<f64>();
                    let g_error = ACCUMULATION * size;
                    let c = element(f.c, c, row * n + col);
                    let d = oracle.d[row * n + col].abs();
                    // |G| <= size; the activation and its slope grow no faster than x.
                    let (by_d, by_p) = match f.formula {
                        Formula::PreactivationG => (c.abs(), c.abs() * 2.0 * size),
                        Formula::PreactivationC => (c.max(0.0), c.max(0.0) * c.max(0.0)),
                    };
                    d_error[col] = p2 * by_d * g_error + ARITHMETIC * d;
                    *dprob_error += by_p * g_error;
                }
                *dprob_error += ARITHMETIC * oracle.dprob_size[row];
            });
        }
        Want { oracle, d_error, d_size, dprob_error }
    }
}

fn decode(d: DType, bytes: &[u8], i: usize) -> f64 {
    match d {
        DType::F8E4M3 => e4m3::decode(bytes[i]).into(),
        DType::F8E5M2 => e5m2::decode(bytes[i]).into(),
        _ => element(d, bytes, i),
    }
}

/// Largest rounding error of `x` in a type: half a unit of the last place, and of the smallest subnormal.
fn rounding(d: DType, x: f64) -> f64 {
    let (bits, least) = match d {
        DType::F8E4M3 => (4, -10),
        DType::F8E5M2 => (3, -17),
        DType::BF16 => (8, -134),
        DType::F16 => (11, -25),
        _ => (24, -150),
    };
    (x.abs() * 2f64.powi(-bits)).max(2f64.powi(least)) * 1.0001
}

/// `Err` names the first value that is out of bounds.
fn near(what: &str, at: usize, got: f64, want: f64, tolerance: f64, largest: f64) -> Result<(), String> {
    let fine = if want.is_nan() || tolerance.is_nan() {
        want.is_nan() == got.is_nan() || tolerance.is_nan()
    } else {
        (got - want).abs() <= tolerance
            || (want.abs() + tolerance >= largest && got.abs() >= largest && got.signum() == want.signum())
    };
    if fine {
        Ok(())
    } else {
        Err(format!("{what}[{at}] is {got:e}, expected {want:e} within {tolerance:e}"))
    }
}

fn largest(d: DType) -> f64 {
    match d {
        DType::F16 => 65504.0,
        DType::BF16 => 3.38e38,
        _ => 3.4e38,
    }
}

/// Checks one block of 32 quantised values: the scale's code, then every value under that scale. Adds squared error and size.
fn block(case: &Case, w: &Want, norm: f64, code: u8, at: &[usize], got: &[u8], sums: &mut [f64; 2]) -> Result<(), String> {
    let rcp = if case.d == DType::F8E5M2 { 1.0 / 128.0 } else { 1.0 / 448.0f32 as f64 };
    let finite = || at.iter().map(|&i| (w.oracle.d[i].abs(), w.d_error[i])).filter(|x| !x.0.is_nan());
    let high = finite().fold(0.0, |a: f64, (d, e)| a.max(d + e)) * (1.0 + 1e-6);
    let low = finite().fold(0.0, |a: f64, (d, e)| a.max(d - e)) * (1.0 - 1e-6);
    let codes = [low, high].map(|x| e8m0::encode_up((x * rcp * norm).min(3.4e38) as f32));
    if !(codes[0]..=codes[1]).contains(&code) && high.is_finite() {
        return Err(format!("scale of the block at {} is {code}, expected {} to {}", at[0], codes[0], codes[1]));
    }
    let by = (norm * f64::from(e8m0::reciprocal(code))).min(f64::from(f32::MAX));
    let top = if case.d == DType::F8E5M2 { 57344.0 } else { 448.0 };
    for &i in at {
        let (d, want) = (w.oracle.d[i], w.oracle.d[i] * by);
        let q = decode(case.d, got, i);
        near("a quantised D", i, q, want, rounding(case.d, want) + w.d_error[i] * by * 1.1, top)?;
        if d.is_finite() && by > 0.0 {
            sums[0] += (q / by - d).powi(2);
            sums[1] += w.d_size[i].powi(2);
        }
    }
    Ok(())
}

/// Compares every output; the relative error of D.
pub fn judge(case: &Case, f: &GroupedGemmFacts, w: &Want, out: &BTreeMap<Uid, Vec<u8>>) -> Result<f64, String> {
    let (m, n) = (f.m as usize, f.n as usize);
    let mut sums = [0.0; 2];
    for rows in w.oracle.groups.iter() {
        if case.quantised() {
            quantised(case, f, w, rows, out, &mut sums)?;
        } else {
            for i in rows.start * n..rows.end * n {
                for uid in [21, 22] {
                    let (got, want) = (decode(f.d, &out[&uid], i), w.oracle.d[i]);
                    near("D", i, got, want, w.d_error[i] + rounding(f.d, want), largest(f.d))?;
                    if want.is_finite() && got.is_finite() {
                        sums[0] += (got - want).powi(2);
                        sums[1] += w.d_size[i].powi(2);
                    }
                }
            }
        }
    }
    for i in 0..m {
        near("dprob", i, float(&out[&24], i), w.oracle.dprob[i], w.dprob_error[i] + 1e-37, 3.4e38)?;
    }
    for (expert, rows) in w.oracle.groups.iter().enumerate() {
        if case.dbias {
            for col in 0..n {
                let sum: f64 = rows.clone().map(|r| w.d_error[r * n + col] + 2e-6 * w.oracle.d[r * n + col].abs()).sum();
                let want = w.oracle.dbias[expert * n + col];
                let got: f64 =
                    bf16::from_ne_bytes([out[&25][2 * (expert * n + col)], out[&25][2 * (expert * n + col) + 1]]).into();
                near("dbias", expert * n + col, got, want, sum + rounding(DType::BF16, want), 3.38e38)?;
            }
        }
        if case.amax {
            let (got, want) = (float(&out[&26], expert), w.oracle.amax[expert]);
            let any_nan = rows.clone().any(|r| w.oracle.d[r * n..r * n + n].iter().any(|x| x.is_nan()));
            let error = rows.clone().flat_map(|r| &w.d_error[r * n..r * n + n]).fold(0.0, |a: f64, e| a.max(*e));
            let fine = if any_nan {
                got.is_nan()
            } else {
                got == want || (got - want).abs() <= error + 1e-6 * want.abs() || want > 3.3e38
            };
            if !fine {
                return Err(format!("amax[{expert}] is {got:e}, expected {want:e}"));
            }
        }
    }
    if let Some(status) = out.get(&30) {
        let got = i32::from_ne_bytes([status[0], status[1], status[2], status[3]]);
        if got != w.oracle.status {
            return Err(format!("status is {got:#x}, expected {:#x}", w.oracle.status));
        }
    }
    Ok((sums[0] / sums[1].max(f64::MIN_POSITIVE)).sqrt())
}

fn quantised(
    case: &Case,
    f: &GroupedGemmFacts,
    w: &Want,
    rows: &std::ops::Range<usize>,
    out: &BTreeMap<Uid, Vec<u8>>,
    sums: &mut [f64; 2],
) -> Result<(), String> {
    let (m, n) = (f.m as usize, f.n as usize);
    let by_row = ScaleMatrix::of(m, n, 32);
    let by_col = ColumnScales { m, n, discrete: f.discrete_col_sfd };
    for row in rows.clone() {
        for b in 0..n / 32 {
            let at: Vec<usize> = (0..32).map(|i| row * n + 32 * b + i).collect();
            block(case, w, w.oracle.norm, out[&27][by_row.index(row, b)], &at, &out[&21], sums)?;
        }
        for b in n / 32..(n / 32).next_multiple_of(4) {
            if out[&27][by_row.index(row, b)] != 0 {
                return Err(format!("the padding of row {row}'s scales is not zero"));
            }
        }
    }
    for first in rows.clone().step_by(32) {
        for col in 0..n.next_multiple_of(128) {
            let code = out[&28][by_col.index(col, first, rows)];
            if col >= n {
                if code != 0 {
                    return Err(format!("the padding of column scales at {col} is not zero"));
                }
                continue;
            }
            let at: Vec<usize> = (0..32).map(|i| (first + i) * n + col).collect();
            block(case, w, w.oracle.norm, code, &at, &out[&22], sums)?;
        }
    }
    Ok(())
}

/// Bytes of an output that an execution may write: those of rows that experts own, and all of the small ones.
pub fn owned(f: &GroupedGemmFacts, groups: &[std::ops::Range<usize>], uid: Uid, len: usize) -> Vec<bool> {
    let (m, n) = (f.m as usize, f.n as usize);
    let size = f.d.bytes().unwrap_or(1) as usize;
    let mut mask = vec![!matches!(uid, 21 | 22 | 27 | 28); len];
    let by_col = ColumnScales { m, n, discrete: f.discrete_col_sfd };
    for rows in groups.iter().filter(|r| !r.is_empty()) {
        match uid {
            21 | 22 => mask[rows.start * n * size..rows.end * n * size].fill(true),
            27 => {
                let atom_row = n.div_ceil(128) * 512;
                mask[rows.start / 128 * atom_row..rows.end / 128 * atom_row].fill(true);
            }
            28 => {
                for first in rows.clone().step_by(128) {
                    for column_atom in 0..n.div_ceil(128) {
                        let at = by_col.atom(column_atom, first, rows);
                        mask[at..at + 512].fill(true);
                    }
                }
            }
            _ => {}
        }
    }
    mask
}
