//! The plain f64 evaluation of the grouped product and its epilogue: the definition written down, one element at a time.
//!
//! Nothing here is shared with the engines' tiles, epilogue or quantiser; only the tables of the formats and the index of a scale are.

use super::groups::listed_groups;
use super::scales::ScaleMatrix;
use super::{Formula, GemmPort, GroupedGemmFacts, Weights};
use crate::codec::{e2m1, e4m3, e5m2, e8m0};
use crate::sdpa::access::{bytes_of, fault, Inputs};
use crate::{DType, HostError};
use rayon::prelude::*;
use std::ops::Range;

/// Results in f64, before any rounding.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Oracle {
    /// `[M][N]`; 0 past the last expert.
    pub d: Vec<f64>,
    /// `[M][N]`: the forward activation times prob.
    pub d_srelu: Vec<f64>,
    /// `[M]`.
    pub dprob: Vec<f64>,
    /// `[M]`: sum of the magnitudes that dprob is the sum of; what an error of dprob is relative to.
    pub dprob_size: Vec<f64>,
    /// `[L][N]`.
    pub dbias: Vec<f64>,
    /// `[L]`; -inf for an expert without rows.
    pub amax: Vec<f64>,
    /// Rows of every expert.
    pub groups: Vec<Range<usize>>,
    /// The status word.
    pub status: i32,
    /// norm_const, 1 where there is none.
    pub norm: f64,
}

fn bytes<'a>(inputs: &Inputs<'a>, port: &Option<GemmPort>, what: &str) -> Result<&'a [u8], HostError> {
    let port = port.as_ref().ok_or_else(|| fault(what, "no such operand", "it to be present"))?;
    bytes_of(inputs, port.uid, &port.name)
}

fn float(bytes: &[u8], i: usize) -> f64 {
    f32::from_ne_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]).into()
}

/// Element `i` of an array of this type.
pub fn element(dtype: DType, bytes: &[u8], i: usize) -> f64 {
    let half = || [bytes[2 * i], bytes[2 * i + 1]];
    match dtype {
        DType::F4E2M1 => e2m1::decode(bytes[i / 2] >> (i % 2 * 4)).into(),
        DType::F8E4M3 => e4m3::decode(bytes[i]).into(),
        DType::F8E5M2 => e5m2::decode(bytes[i]).into(),
        DType::F8E8M0 => e8m0::decode(bytes[i]).into(),
        DType::F16 => half::f16::from_ne_bytes(half()).into(),
        DType::BF16 => half::bf16::from_ne_bytes(half()).into(),
        _ => float(bytes, i),
    }
}

/// Evaluates the node on the inputs as they are stored.
///
/// # Errors
/// [`HostError`] for operands that are missing.
pub fn evaluate(f: &GroupedGemmFacts, inputs: &Inputs<'_>) -> Result<Oracle, HostError> {
    let p = &f.ports;
    let ends = bytes(inputs, &p.padded_offsets, "padded_offsets")?;
    let ends: Vec<i32> =
        ends.chunks_exact(4).take(f.experts as usize).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect();
    let (a, sfa) = (bytes(inputs, &p.a, "A")?, bytes(inputs, &p.sfa, "SFA")?);
    let (b, sfb) = (bytes(inputs, &p.b, "B")?, bytes(inputs, &p.sfb, "SFB")?);
    let (c, alpha, prob) = (bytes(inputs, &p.c, "C")?, bytes(inputs, &p.alpha, "alpha")?, bytes(inputs, &p.prob, "prob")?);
    let norm = if p.norm_const.is_some() { float(bytes(inputs, &p.norm_const, "norm_const")?, 0) } else { 1.0 };
    let (m, n, k, vec) = (f.m as usize, f.n as usize, f.k as usize, f.sf_vec as usize);
    let (at_a, at_b) = (ScaleMatrix::of(m, k, vec), ScaleMatrix::of(n, k, vec));
    // Offsets of an expert in elements of B and in bytes of its scales, where they may be used.
    let lists = match f.weights {
        Weights::Dense => None,
        Weights::Pool | Weights::Addresses => {
            Some([bytes(inputs, &p.b_ptrs, "B_ptrs")?, bytes(inputs, &p.sfb_ptrs, "SFB_ptrs")?])
        }
    };
    let place = |expert: usize| -> Option<(usize, usize)> {
        let Some(lists) = lists else { return Some((expert * n * k, expert * at_b.bytes())) };
        let entry = |list: &[u8]| {
            let at = i64::from_ne_bytes(list.get(expert * 8..expert * 8 + 8)?.try_into().ok()?);
            usize::try_from(at).ok().filter(|at| at % 16 == 0)
        };
        let (at, sf) = (entry(lists[0])?, entry(lists[1])?);
        let fits = at.checked_add(n * k * f.ab.bits() as usize / 8)? <= b.len() && sf.checked_add(at_b.bytes())? <= sfb.len();
        fits.then_some((at * (8 / f.ab.bits() as usize), sf))
    };
    let (groups, status) = listed_groups(&ends, f.m, |e| place(e).is_some());
    let mut out = Oracle {
        d: vec![0.0; m * n],
        d_srelu: vec![0.0; m * n],
        dprob: vec![0.0; m],
        dprob_size: vec![0.0; m],
        dbias: vec![0.0; f.experts as usize * n],
        amax: vec![f64::NEG_INFINITY; f.experts as usize],
        status: status.0,
        norm,
        groups,
    };
    for (expert, rows) in out.groups.clone().into_iter().enumerate().filter(|(_, r)| !r.is_empty()) {
        let Some((from_b, from_sf)) = place(expert) else {
            return Err(fault("B", format!("{} bytes", b.len()), "the weights of every expert"));
        };
        let mut weights = vec![0.0f64; n * k];
        weights.par_chunks_mut(k).enumerate().for_each(|(col, out)| {
            for (i, w) in out.iter_mut().enumerate() {
                let at = from_b + if f.b_n_major { i * n + col } else { col * k + i };
                *w = element(f.ab, b, at) * element(f.sf, sfb, from_sf + at_b.index(col, i / vec));
            }
        });
        let scale = float(alpha, expert);
        let (d, srelu) = (&mut out.d[rows.start * n..rows.end * n], &mut out.d_srelu[rows.start * n..rows.end * n]);
        let lines = d
            .par_chunks_mut(n)
            .zip(srelu.par_chunks_mut(n))
            .zip(&mut out.dprob[rows.clone()])
            .zip(&mut out.dprob_size[rows.clone()]);
        lines.enumerate().for_each(|(r, (((d, srelu), dprob), size))| {
            let row = rows.start + r;
            let x: Vec<f64> =
                (0..k).map(|i| element(f.ab, a, row * k + i) * element(f.sf, sfa, at_a.index(row, i / vec))).collect();
            for col in 0..n {
                let g = scale * x.iter().zip(&weights[col * k..]).map(|(x, w)| x * w).sum::<f64>();
                let c = element(f.c, c, row * n + col);
                let (pre, up) = match f.formula {
                    Formula::PreactivationG => (g, c),
                    Formula::PreactivationC => (c, g),
                };
                let relu = if pre <= 0.0 { 0.0 } else { pre };
                let (act, slope) = match f.tanh_clamp_scale.map(f64::from) {
                    None => (relu, relu),
                    Some(s) => {
                        let t = (relu / s).tanh();
                        // 1 - t² as 1 / cosh², which keeps its digits where t is near 1.
                        (s * t, s * t / (relu / s).cosh().powi(2))
                    }
                };
                d[col] = float(prob, row) * 2.0 * up * slope;
                srelu[col] = float(prob, row) * act * act;
                *dprob += up * act * act;
                *size += (up * act * act).abs();
            }
        });
        for row in rows.clone() {
            for col in 0..n {
                let x = out.d[row * n + col];
                out.dbias[expert * n + col] += x;
                // A NaN stays, unlike with f64::max.
                let (peak, x) = (&mut out.amax[expert], x.abs());
                *peak = if peak.is_nan() || x.is_nan() { f64::NAN } else { peak.max(x) };
            }
        }
    }
    Ok(out)
}
