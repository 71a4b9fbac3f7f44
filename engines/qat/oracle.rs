//! The plain f64 evaluation of NVFP4 QAT attention, with a quantiser of its own.
//!
//! Quantised Q, K and V go through the oracle of plain attention, which gives the high-precision O, LSE, dQ and dK; O and dV, where the
//! quantised P enters, are computed here. The quantiser is a search in tables, so it shares nothing with [`crate::codec`].
//!
//! # Comparing through a discontinuous quantiser
//! Fake quantisation is a step function: two engines whose P differ in the last bits agree on all of P~ except where P / scale lies within
//! that difference of an E2M1 tie, or amax / 6 of an E4M3 tie, and there they differ by a whole step. No tolerance covers that honestly, so
//! every element of O and dV comes with a **reach**: the most it moves when every P moves within the error bound of single-precision
//! arithmetic. A result is compared with the interval `value ± reach`; what lies beyond is an error. The bound of the exponent
//! `x = scale S - LSE`, so of the relative error of P = exp(x), is the sum of
//! - `scale d 2^-23 |q| |k|`: the products are exact in f32, a sum of d terms in any order errs by at most (d - 1) 2^-24 of the sum of
//!   magnitudes, which is at most |q| |k|; twice that for tensor cores that truncate where they align;
//! - `2^-22 (|scale S| + |LSE|)`: scaling, conversion to base 2 and subtraction, four roundings at most;
//! - `2^-21`: the exponential, two units in the last place with the rounding of P;
//! - in a forward, where LSE is the engine's own: `S_kv 2^-24 + 2^-20 + 2^-22 |LSE|`, a sum of S_kv positive terms in any order, its
//!   terms, its logarithm and its rounding to f32. A backward takes LSE as given.
//!
//! Both divisions of the quantiser are compared with midpoints, not rounded first: m·s has at most 7 significant bits and P has 24, so a
//! P on one side of a midpoint has its single-precision quotient on the same side or on the midpoint of equality only.

mod tables;
#[cfg(test)]
mod tests;

use self::tables::Tables;
use crate::sdpa::access::{need, Inputs, Rows};
use crate::sdpa::dense::read_input;
use crate::sdpa::oracle::{OracleBackward, OracleForward, Problem};
use crate::{HostError, SdpaFacts};
use rayon::prelude::*;

/// Values of a block.
const BLOCK: usize = 16;

/// Results of a forward; rows without keys have O = 0 and Stats = -inf.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct QatForward {
    /// P~ V^, `[B][H_q][S_q][d_v]`.
    pub o: Vec<f64>,
    /// How far each element of `o` may be off through steps of the quantiser.
    pub o_reach: Vec<f64>,
    /// Attention over the quantised operands: its O is the high-precision one, its Stats are the LSE.
    pub plain: OracleForward,
}

/// Gradients of a backward; 0 where nothing contributes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct QatBackward {
    /// P~ᵀ dO, `[B][H_kv][S_kv][d_v]`.
    pub dv: Vec<f64>,
    /// How far each element of `dv` may be off through steps of the quantiser.
    pub dv_reach: Vec<f64>,
    /// Gradients over the quantised operands: dQ and dK as they are; its dV is what dV would be without the quantisation of P.
    pub plain: OracleBackward,
}

/// One element of P~ and how far it may be off.
#[derive(Clone, Copy)]
struct Step {
    key: usize,
    value: f64,
    reach: f64,
}

/// One probability and the relative error that single precision may give it.
#[derive(Clone, Copy)]
struct Probability {
    key: usize,
    p: f64,
    error: f64,
}

/// One NVFP4 QAT problem.
pub struct Qat {
    /// The problem over Q^, K^ and V^.
    pub problem: Problem,
    tables: Tables,
    q_norm: Vec<f64>,
    k_norm: Vec<f64>,
}

impl Qat {
    /// Reads the operands of a node and quantises Q, K and V.
    ///
    /// # Errors
    /// [`HostError`] when lengths, offsets or a buffer contradict the graph.
    pub fn gather(facts: &SdpaFacts, inputs: &Inputs<'_>) -> Result<Qat, HostError> {
        let mut problem = Problem::gather(facts, inputs)?;
        let tables = Tables::new();
        problem.q.par_chunks_mut(problem.d_qk).for_each(|row| tables.row(row));
        problem.k.par_chunks_mut(problem.d_qk).for_each(|row| tables.row(row));
        problem.v.par_chunks_mut(problem.d_v).for_each(|row| tables.row(row));
        let norms = |x: &[f64]| x.chunks(problem.d_qk).map(|r| r.iter().map(|x| x * x).sum::<f64>().sqrt()).collect();
        let (q_norm, k_norm) = (norms(&problem.q), norms(&problem.k));
        Ok(Qat { problem, tables, q_norm, k_norm })
    }

    /// P~ of the kept keys of one row, in ascending key order. `lse_error` bounds the absolute error of the engine's LSE.
    fn steps(&self, b: usize, h: usize, i: usize, lse: f64, lse_error: f64) -> Vec<Step> {
        let p = &self.problem;
        let h_kv = h / (p.h_q / p.h_kv);
        let q_norm = self.q_norm[(b * p.h_q + h) * p.s_q + i];
        let mut out = Vec::new();
        let mut block: Vec<Probability> = Vec::with_capacity(BLOCK);
        for start in (0..p.s_kv).step_by(BLOCK) {
            block.clear();
            for key in (start..p.s_kv.min(start + BLOCK)).filter(|&j| p.keeps(b, i, j)) {
                let score = p.score(b, h, i, key);
                let k_norm = self.k_norm[(b * p.h_kv + h_kv) * p.s_kv + key];
                let dot = p.scale * p.d_qk as f64 * 2f64.powi(-23) * q_norm * k_norm;
                let exponent = dot + 2f64.powi(-22) * (score.abs() + lse.abs()) + 2f64.powi(-21) + lse_error;
                block.push(Probability { key, p: (score - lse).exp(), error: exponent.exp_m1() });
            }
            self.block(&block, &mut out);
        }
        out
    }

    /// One row of the high-precision O and of the user-visible one, from its natural-log LSE.
    pub(super) fn rows(&self, b: usize, h: usize, i: usize, lse: f64) -> [Vec<f64>; 2] {
        let p = &self.problem;
        let mut out = [vec![0.0; p.d_v], vec![0.0; p.d_v]];
        for step in self.steps(b, h, i, lse, 0.0) {
            let v = p.kv_row(&p.v, p.d_v, b, h, step.key);
            let weights = [(p.score(b, h, i, step.key) - lse).exp(), step.value];
            for (row, weight) in out.iter_mut().zip(weights) {
                row.iter_mut().zip(v).for_each(|(o, v)| *o += weight * v);
            }
        }
        out
    }

    /// Quantises the kept lanes of one block; masked lanes are 0 and take no part.
    fn block(&self, block: &[Probability], out: &mut Vec<Step>) {
        let amax = |of: &dyn Fn(&Probability) -> f64| block.iter().map(of).fold(0.0, f64::max);
        let below = |x: &Probability| (x.p * (1.0 - x.error)).max(0.0);
        let above = |x: &Probability| x.p * (1.0 + x.error);
        let scale = self.tables.scales[self.tables.scale(amax(&|x| x.p))];
        let candidates = self.tables.scale(amax(&below))..=self.tables.scale(amax(&above));
        for x in block {
            let value = self.tables.value(x.p, scale);
            let (mut low, mut high) = (value, value);
            for &s in &self.tables.scales[candidates.clone()] {
                low = low.min(self.tables.value(below(x), s));
                high = high.max(self.tables.value(above(x), s));
            }
            out.push(Step { key: x.key, value, reach: (value - low).max(high - value) });
        }
    }

    /// O with its reach, and everything of the plain forward.
    pub fn forward(&self) -> QatForward {
        let p = &self.problem;
        let plain = p.forward();
        let rows: Vec<(Vec<f64>, Vec<f64>)> = (0..p.b * p.h_q * p.s_q)
            .into_par_iter()
            .map(|r| {
                let (b, h, i) = (r / (p.h_q * p.s_q), r / p.s_q % p.h_q, r % p.s_q);
                let (mut o, mut reach) = (vec![0.0; p.d_v], vec![0.0; p.d_v]);
                let lse = plain.stats[r];
                if lse == f64::NEG_INFINITY {
                    return (o, reach);
                }
                let lse_error = p.s_kv as f64 * 2f64.powi(-24) + 2f64.powi(-20) + 2f64.powi(-22) * lse.abs();
                for step in self.steps(b, h, i, lse, lse_error) {
                    let v = p.kv_row(&p.v, p.d_v, b, h, step.key);
                    for ((o, reach), v) in o.iter_mut().zip(&mut reach).zip(v) {
                        *o += step.value * v;
                        *reach += step.reach * v.abs();
                    }
                }
                (o, reach)
            })
            .collect();
        let (o, o_reach): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        QatForward { o: o.concat(), o_reach: o_reach.concat(), plain }
    }

    /// Gradients for `d_o` given the forward's high-precision O (`[B][H_q][S_q][d_v]`) and natural-log LSE (`[B][H_q][S_q]`).
    pub fn backward(&self, high_precision_o: &[f64], stats: &[f64], d_o: &[f64]) -> QatBackward {
        let p = &self.problem;
        let plain = p.backward(high_precision_o, stats, d_o);
        let group = p.h_q / p.h_kv;
        let heads: Vec<(Vec<f64>, Vec<f64>)> = (0..p.b * p.h_kv)
            .into_par_iter()
            .map(|u| {
                let (b, h_kv) = (u / p.h_kv, u % p.h_kv);
                let (mut dv, mut reach) = (vec![0.0; p.s_kv * p.d_v], vec![0.0; p.s_kv * p.d_v]);
                for (h, i) in (h_kv * group..(h_kv + 1) * group).flat_map(|h| (0..p.s_q).map(move |i| (h, i))) {
                    let lse = stats[(b * p.h_q + h) * p.s_q + i];
                    if lse.is_infinite() || i as i64 >= p.lens.q[b] {
                        continue;
                    }
                    let d_o = p.q_row(d_o, p.d_v, b, h, i);
                    for step in self.steps(b, h, i, lse, 0.0) {
                        let at = step.key * p.d_v;
                        for ((dv, reach), d_o) in dv[at..].iter_mut().zip(&mut reach[at..]).zip(d_o) {
                            *dv += step.value * d_o;
                            *reach += step.reach * d_o.abs();
                        }
                    }
                }
                (dv, reach)
            })
            .collect();
        let (dv, dv_reach): (Vec<_>, Vec<_>) = heads.into_iter().unzip();
        QatBackward { dv: dv.concat(), dv_reach: dv_reach.concat(), plain }
    }
}

/// Forward of a node from its bound inputs, in f64 on the values as stored.
///
/// # Errors
/// [`HostError`] when lengths, offsets or a buffer contradict the graph.
pub fn forward(facts: &SdpaFacts, inputs: &Inputs<'_>) -> Result<QatForward, HostError> {
    Ok(Qat::gather(facts, inputs)?.forward())
}

/// What a backward of these facts takes from its forward: O is the high-precision one, Stats the natural-log LSE. Quicker than
/// [`forward`], which computes the user-visible O as well.
///
/// # Errors
/// As [`forward`].
pub fn auxiliaries(facts: &SdpaFacts, inputs: &Inputs<'_>) -> Result<OracleForward, HostError> {
    Ok(Qat::gather(facts, inputs)?.problem.forward())
}

/// Gradients of a backward node from its bound inputs; the high-precision O, dO and the natural-log LSE are taken as given.
///
/// # Errors
/// As [`forward`].
pub fn backward(facts: &SdpaFacts, inputs: &Inputs<'_>) -> Result<QatBackward, HostError> {
    let qat = Qat::gather(facts, inputs)?;
    let o = read_input(facts, &facts.ports.o, "high-precision O", Rows::Query, inputs)?;
    let d_o = read_input(facts, &facts.ports.d_o, "dO", Rows::Query, inputs)?;
    need(&facts.ports.stats, "Stats")?;
    let stats = read_input(facts, &facts.ports.stats, "Stats", Rows::Query, inputs)?;
    Ok(qat.backward(&o, &stats, &d_o))
}
