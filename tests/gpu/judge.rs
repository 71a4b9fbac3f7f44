//! Compares an output with the oracle.

use crate::build::{DK, DQ, HIGH, O};
use crate::cases::{Case, Logits};
use crate::problem::{borrow, host, port_of, Prepared};
use crate::values::{FAR_KV, FAR_Q};
use frostgraph::engines::sdpa::access::Rows;
use frostgraph::engines::sdpa::dense::{dense_shape, read_dense};
use frostgraph::{DType, Error, ErrorCode, Result};

/// Worst distance of one output: relative Frobenius norm, and largest difference over the largest value.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Distance {
    pub frobenius: f64,
    pub peak: f64,
}

/// Inputs are of unit size, and so are gradients unless they cancel (a single key has dQ = 0 exactly): below this size what is left is
/// fp32 noise, and errors count absolutely.
const FLOOR: f64 = 1e-3;
/// Where the true value is exactly zero because dP and delta cancel (one visible key), a chain that adds the 256 unit-size products of
/// each in fp32 leaves about 256^(1/2) * 16 * 2^-24 = 1.5e-5 of dS at worst; measured on an H200: 1.3e-6 in dQ. Differences up to this
/// size count as none.
const NOISE: f64 = 4e-6;

/// [`NOISE`] of one output of a case. Where operands are far from unit size, what is left of dS has the size of V (dO has unit size), dQ
/// that of V times K, dK that of V times Q.
fn noise(case: &Case, uid: i64) -> f64 {
    let far = case.fwd.logits == Logits::FarScales;
    NOISE
        * match uid {
            DQ if far => FAR_KV * FAR_KV,
            DK if far => FAR_KV * FAR_Q,
            _ => 1.0,
        }
}

pub fn distance(got: &[f64], want: &[f64], noise: f64) -> Distance {
    let (mut diff, mut norm, mut peak, mut top) = (0.0f64, got.len() as f64 * FLOOR * FLOOR, 0.0f64, FLOOR);
    for (&g, &w) in got.iter().zip(want) {
        // Stats and maxima of rows without keys are -inf on both sides.
        if g == w || (g - w).abs() <= noise {
            norm += if w.is_finite() { w.powi(2) } else { 0.0 };
            top = if w.is_finite() { top.max(w.abs()) } else { top };
            continue;
        }
        if !g.is_finite() || !w.is_finite() {
            return Distance { frobenius: f64::INFINITY, peak: f64::INFINITY };
        }
        diff += (g - w).powi(2);
        norm += w.powi(2);
        peak = peak.max((g - w).abs());
        top = top.max(w.abs());
    }
    Distance { frobenius: (diff / norm).sqrt(), peak: peak / top }
}

/// Compares one output with the oracle: at most twice what io rounding costs, and never above 1e-2 (bf16) or 2e-3 (f16).
///
/// The peak may always be one unit of the last place; with a few elements both errors are luck, so there the norm may be half of one.
/// Rows past a length must be exactly zero.
pub fn judge(case: &Case, p: &Prepared, uid: i64, bytes: &[u8]) -> Result<Distance> {
    let (port, rows) = port_of(&p.facts, uid)?;
    let got = read_dense(&p.facts, port, rows, &borrow(&p.tensors), bytes).map_err(host)?;
    let (want, rounded) = (&p.expected[&uid], &p.rounded[&uid]);
    // Within its reach an element is exact; beyond, what lies beyond counts.
    let judged: Vec<f64> = match p.reach.get(&uid) {
        Some(reach) => got.iter().zip(want).zip(reach).map(|((&g, &w), &r)| w + (g - w) - (g - w).clamp(-r, r)).collect(),
        None => got.clone(),
    };
    let noise = noise(case, uid);
    let (is, yard) = (distance(&judged, want, noise), distance(rounded, want, noise));
    let (cap, unit) = if case.dtype == DType::BF16 { (1e-2, 1.0 / 256.0) } else { (2e-3, 1.0 / 2048.0) };
    let ulp: f64 = unit;
    let unit: f64 = if got.len() <= 64 { unit } else { 0.0 };
    // An fp32 output (Stats, dBias, dSink) is never rounded to the io type: there the yardstick is fp32 arithmetic and its exponential.
    let unit = if port.dtype == DType::F32 { unit.max(1e-4) } else { unit };
    let frobenius = (2.0 * yard.frobenius).max(unit).min(cap);
    // The largest error of one tensor is a single draw: one unit of the last place is always allowed there, half of it the last rounding.
    let peak = (2.0 * yard.peak).max(2.0 * ulp.max(unit)).min(2.0 * cap);
    let [_, h, s, d] = dense_shape(&p.facts, port, rows);
    let lens = case.lens.both().map(|(q, kv)| if rows == Rows::Query { q } else { kv }).filter(|_| rows != Rows::Declared);
    let empty = p.empty_rows.as_ref().filter(|_| case.is_forward() && (uid == O || uid == HIGH));
    for i in 0..got.len() {
        let past = lens.is_some_and(|lens| (i / d % s) as i64 >= lens[i / (h * s * d)]);
        // O of a row that sees no key, and everything past a length, is written and not computed (reports 10 and 75).
        let exact = if past { Some(want[i]) } else { empty.and_then(|e| e[i / d].then_some(0.0)) };
        if exact.is_some_and(|x| got[i] != x) {
            let given =
                format!("{} is {} at dense index {i}, in a row without keys or past its sequence's length", port.name, got[i]);
            return Err(Error::new(ErrorCode::CheckFailed, given, format!("exactly {}", want[i])));
        }
    }
    if is.frobenius <= frobenius && is.peak <= peak {
        return Ok(is);
    }
    let worst = got.iter().zip(want).enumerate().max_by(|(_, (a, b)), (_, (c, d))| {
        let gap = |x: &f64, y: &f64| if x.is_finite() { (x - y).abs() } else { f64::INFINITY };
        gap(a, b).total_cmp(&gap(c, d))
    });
    Err(Error::new(
        ErrorCode::CheckFailed,
        format!("{} is off by {:.2e} (peak {:.2e})", port.name, is.frobenius, is.peak),
        format!("at most {frobenius:.2e} (peak {peak:.2e})"),
    )
    .details(
        worst.map(|(i, (g, w))| {
            format!("worst at dense index {i} of {:?}: {g} instead of {w}", dense_shape(&p.facts, port, rows))
        }),
    ))
}
