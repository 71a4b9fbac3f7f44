//! The plain f64 evaluation: the definition written down, one element at a time. Nothing here is shared with the engines' tiles or routing;
//! only the tables of the formats and the index of a scale are.

use super::{MoeFacts, MoeMode, ScalePlace};
use crate::grouped_gemm::oracle::element;
use crate::grouped_gemm::scales::ScaleMatrix;
use crate::grouped_gemm::GemmPort;
use crate::sdpa::access::{bytes_of, fault, Inputs};
use crate::{DType, HostError};
use rayon::prelude::*;

/// Results in f64, before any rounding.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Oracle {
    /// By row of the output: its columns, or `None` where no routed row leads.
    pub rows: Vec<Option<Vec<f64>>>,
    /// By row of the output: for every column the sum of the magnitudes that the element is the sum of; empty where `rows` has none.
    pub sizes: Vec<Vec<f64>>,
    /// The status word.
    pub status: i32,
}

/// Element `i` of a 32-bit or 64-bit integer tensor.
fn int(port: &GemmPort, bytes: &[u8], i: usize) -> i64 {
    let at = i * port.stride.iter().zip(&port.dim).find(|(_, d)| **d > 1).map_or(1, |(s, _)| *s) as usize;
    if port.dtype == DType::I64 {
        let b = &bytes[8 * at..8 * at + 8];
        i64::from_ne_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
    } else {
        i32::from_ne_bytes([bytes[4 * at], bytes[4 * at + 1], bytes[4 * at + 2], bytes[4 * at + 3]]).into()
    }
}

/// Evaluates the node on the inputs as they are stored.
///
/// # Errors
/// [`HostError`] for operands that are missing.
pub fn evaluate(f: &MoeFacts, inputs: &Inputs<'_>) -> Result<Oracle, HostError> {
    let p = &f.ports;
    let get = |port: &Option<GemmPort>, what: &str| {
        let port = port.as_ref().ok_or_else(|| fault(what, "no such operand", "it to be present"))?;
        Ok::<_, HostError>((port.clone(), bytes_of(inputs, port.uid, &port.name)?))
    };
    let (offsets, offset_bytes) = get(&p.first_token_offset, "FirstTokenOffset")?;
    let boundary = |i: i64| {
        let stored = f.groups + i64::from(f.explicit_end);
        if i < stored {
            int(&offsets, offset_bytes, i as usize)
        } else {
            f.routed
        }
    };
    let mut out = Oracle { rows: vec![None; f.routed as usize], sizes: vec![Vec::new(); f.routed as usize], status: 0 };
    // The groups: each stops everything when one of its two boundaries cannot be.
    let mut work: Vec<(usize, i64)> = Vec::new();
    for g in 0..f.groups {
        let (from, to) = (boundary(g), boundary(g + 1));
        let before = if g == 0 { 0 } else { from };
        let own = |at: i64, before: i64| i32::from(at < before) << 16 | i32::from(at > f.routed) << 17;
        let found = match own(from, before) {
            0 => own(to, from),
            first => first,
        };
        if found != 0 {
            out.status = found | (g as i32 + 1);
            break;
        }
        work.extend((from..to).map(|r| ((g % f.experts) as usize, r)));
    }
    let column = |port: &Option<GemmPort>, what: &str, r: i64| {
        let (port, bytes) = get(port, what)?;
        Ok::<_, HostError>(int(&port, bytes, r as usize))
    };
    let mut jobs: Vec<(usize, usize, usize)> = Vec::new();
    for (expert, r) in work {
        let (from, to) = match f.mode {
            MoeMode::None => (r, r),
            MoeMode::Gather => (column(&p.token_index, "TokenIndex", r)?, r),
            MoeMode::Scatter => {
                let (token, slot) = (column(&p.token_index, "TokenIndex", r)?, column(&p.token_ks, "TokenKs", r)?);
                let inside = token >= 0 && token < f.routed / f.top_k && slot >= 0 && slot < f.top_k;
                (r, if inside { token * f.top_k + slot } else { -1 })
            }
        };
        if from < 0 || from >= f.tokens || to < 0 || to >= f.routed {
            out.status |= 1 << 18;
            continue;
        }
        jobs.push((expert, from as usize, to as usize));
    }
    let ((x, x_bytes), (w, w_bytes)) = (get(&p.token, "Token")?, get(&p.weight, "Weight")?);
    let (n, k) = (f.n as usize, f.k as usize);
    let (scale, vec) = match f.scales {
        None => (None, k),
        Some(s) => {
            let (xs, ws) = (get(&p.token_scale, "token scale")?, get(&p.weight_scale, "weight scale")?);
            (Some((s, xs, ws)), s.vec as usize)
        }
    };
    let at = |port: &GemmPort, i: [usize; 3]| i.iter().zip(&port.stride).map(|(i, s)| i * *s as usize).sum::<usize>();
    let x_value = |row: usize, i: usize| {
        let v = element(f.input, x_bytes, at(&x, [0, row, i]));
        let Some((s, (port, bytes), _)) = &scale else { return v };
        let place = match s.token {
            ScalePlace::Atoms => ScaleMatrix::of(f.tokens as usize, k, vec).index(row, i / vec),
            ScalePlace::Strided => at(port, [0, row, i / vec]),
        };
        v * element(s.dtype, bytes, place)
    };
    let w_value = |expert: usize, i: usize, col: usize| {
        let v = element(f.input, w_bytes, at(&w, [expert, i, col]));
        let Some((s, _, (port, bytes))) = &scale else { return v };
        let place = match s.weight {
            ScalePlace::Atoms => {
                let matrix = ScaleMatrix::of(n, k, vec);
                expert * matrix.bytes() + matrix.index(col, i / vec)
            }
            ScalePlace::Strided => at(port, [expert, i / vec, col]),
        };
        v * element(s.dtype, bytes, place)
    };
    // One expert's weights at a time, decoded once.
    for expert in 0..f.experts as usize {
        let own: Vec<(usize, usize)> = jobs.iter().filter(|j| j.0 == expert).map(|j| (j.1, j.2)).collect();
        if own.is_empty() {
            continue;
        }
        let mut weights = vec![0.0f64; n * k];
        weights.par_chunks_mut(k).enumerate().for_each(|(col, out)| (0..k).for_each(|i| out[i] = w_value(expert, i, col)));
        let lines: Vec<(usize, Vec<f64>, Vec<f64>)> = own
            .par_iter()
            .map(|&(from, to)| {
                let row: Vec<f64> = (0..k).map(|i| x_value(from, i)).collect();
                let sums = |col: usize| {
                    let terms = row.iter().zip(&weights[col * k..]).map(|(x, w)| x * w);
                    terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()))
                };
                let (values, sizes) = (0..n).map(sums).unzip();
                (to, values, sizes)
            })
            .collect();
        for (to, values, sizes) in lines {
            (out.rows[to], out.sizes[to]) = (Some(values), sizes);
        }
    }
    Ok(out)
}
