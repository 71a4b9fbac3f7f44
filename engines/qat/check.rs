//! A debug check of the backward's auxiliaries: whether LSE and the high-precision O belong to these Q, K and V.
//!
//! Auxiliaries of another recipe have the right shapes and give wrong gradients. A few rows are computed again in f64 and compared; where
//! they differ, the mistakes that are made in practice are tried and named.

use super::oracle::Qat;
use crate::sdpa::access::{fault, need, Inputs, Rows};
use crate::sdpa::dense::read_input;
use crate::sdpa::oracle::Problem;
use crate::{HostError, SdpaFacts};

/// Rows that are computed again.
const ROWS: usize = 16;

/// Compares up to 16 rows of LSE and of the high-precision O, spread over batches, heads and queries, with the forward's definition.
///
/// LSE may be off by 1e-3 of its size (a bf16 score error would be more), a row of O by 2e-2 of its norm, twice what storing it in bf16 and
/// computing it from bf16 probabilities costs.
///
/// # Errors
/// [`HostError`] that names the tensor and, where it is one of them, the mistake: LSE in log base 2, LSE of unquantised attention, the
/// user-visible O in place of the high-precision one. Also when lengths or buffers contradict the graph.
pub fn auxiliaries(facts: &SdpaFacts, inputs: &Inputs<'_>) -> Result<(), HostError> {
    let qat = Qat::gather(facts, inputs)?;
    let p = &qat.problem;
    let stats = read_input(facts, &facts.ports.stats, "LSE", Rows::Query, inputs)?;
    let o = read_input(facts, &facts.ports.o, "high-precision O", Rows::Query, inputs)?;
    let (lse_name, o_name) = (&need(&facts.ports.stats, "LSE")?.name, &need(&facts.ports.o, "high-precision O")?.name);
    let rows = sampled(p);
    let unquantised = Problem::gather(facts, inputs)?;
    for &(b, h, i) in &rows {
        let r = (b * p.h_q + h) * p.s_q + i;
        let (got, want) = (stats[r], lse(p, b, h, i));
        let near = |want: f64| (got - want).abs() <= 1e-3 * (1.0 + want.abs());
        if near(want) {
            continue;
        }
        let at = format!("row {i} of head {h} of batch entry {b} is {got:.6}, and its natural-log LSE is {want:.6}");
        let why = if near(want * std::f64::consts::LOG2_E) {
            "LSE looks like log2"
        } else if near(lse(&unquantised, b, h, i)) {
            "LSE looks like that of attention without quantisation"
        } else {
            "LSE does not belong to these Q, K, mask and scale"
        };
        return Err(fault(lse_name, format!("{why}: {at}"), "the natural-log LSE of the matching NVFP4 QAT forward"));
    }
    for &(b, h, i) in &rows {
        let r = (b * p.h_q + h) * p.s_q + i;
        let got = &o[r * p.d_v..(r + 1) * p.d_v];
        let [plain, quantised] = qat.rows(b, h, i, lse(p, b, h, i));
        if close(got, &plain) {
            continue;
        }
        let at = format!("row {i} of head {h} of batch entry {b}");
        let why = if close(got, &quantised) {
            "O looks like the user-visible one, from the quantised P"
        } else {
            "O does not belong to these Q, K, V, mask and scale"
        };
        return Err(fault(o_name, format!("{why}: {at}"), "the high-precision O of the matching NVFP4 QAT forward"));
    }
    Ok(())
}

/// Rows that keep a key, spread over all.
fn sampled(p: &Problem) -> Vec<(usize, usize, usize)> {
    let all = p.b * p.h_q * p.s_q;
    let step = (all / ROWS).max(1);
    let place = |r: usize| (r / (p.h_q * p.s_q), r / p.s_q % p.h_q, r % p.s_q);
    // Every step-th row and, for a causal mask's sake, the last one, which keeps the most keys.
    let rows = (0..all).step_by(step).chain([all.saturating_sub(1)]).map(place);
    rows.filter(|&(b, _, i)| (0..p.s_kv).any(|j| p.keeps(b, i, j))).take(ROWS + 1).collect()
}

fn lse(p: &Problem, b: usize, h: usize, i: usize) -> f64 {
    let scores: Vec<f64> = (0..p.s_kv).filter(|&j| p.keeps(b, i, j)).map(|j| p.score(b, h, i, j)).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    max + scores.iter().map(|s| (s - max).exp()).sum::<f64>().ln()
}

fn close(got: &[f64], want: &[f64]) -> bool {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(want).map(|(g, w)| g - w)) <= 2e-2 * norm(&mut want.iter().copied()) + 1e-6
}
