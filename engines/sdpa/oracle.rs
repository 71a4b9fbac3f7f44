//! The plain f64 evaluation of attention, forward and backward: the definition written down, one row at a time.
//!
//! Nothing here is shared with the engines' masks, blocking or softmax (a kernel and its checker that share a wrong mask agree:
//! field report 50). Masked pairs are never evaluated, so garbage in masked or padded places cannot reach a result.

use super::access::{bytes_of, need, scale, Inputs, Rows};
use super::dense::{dense_shape, read_input};
use super::lengths::Lengths;
use crate::{HostError, Port, SdpaFacts};
use rayon::prelude::*;

/// One attention problem in dense f64 arrays, `[B][H][S][D]` row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// Batch.
    pub b: usize,
    /// Query heads.
    pub h_q: usize,
    /// Key/value heads.
    pub h_kv: usize,
    /// Query rows.
    pub s_q: usize,
    /// Key rows.
    pub s_kv: usize,
    /// Head dim of Q and K.
    pub d_qk: usize,
    /// Head dim of V and O.
    pub d_v: usize,
    /// Actual lengths.
    pub lens: Lengths,
    /// W: keys further left than this are masked.
    pub left: Option<i64>,
    /// R: keys further right than this are masked.
    pub right: Option<i64>,
    /// Bounds are anchored at the bottom-right corner of the actual lengths.
    pub bottom_right: bool,
    /// Softmax scale.
    pub scale: f64,
    /// `[B][H_q][S_q][d_qk]`.
    pub q: Vec<f64>,
    /// `[B][H_kv][S_kv][d_qk]`.
    pub k: Vec<f64>,
    /// `[B][H_kv][S_kv][d_v]`.
    pub v: Vec<f64>,
    /// Additive bias with its (batch, head) extents, each 1 or full; `[1|B][1|H_q][S_q][S_kv]`.
    pub bias: Option<(Vec<f64>, [usize; 2])>,
    /// Sink logit of each query head.
    pub sink: Option<Vec<f64>>,
}

/// Results of a forward; rows past a sequence's length have O = 0 and Stats = -inf.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OracleForward {
    /// `[B][H_q][S_q][d_v]`.
    pub o: Vec<f64>,
    /// Natural-log sum of exponentials, the sink included, `[B][H_q][S_q]`.
    pub stats: Vec<f64>,
    /// Row maximum of the scaled, biased, unmasked scores without the sink, `[B][H_q][S_q]`; -inf for an empty row.
    pub score_max: Vec<f64>,
    /// Row sum of exp(score - maximum) without the sink, `[B][H_q][S_q]`; 0 for an empty row.
    pub score_sum_exp: Vec<f64>,
}

impl OracleForward {
    /// Stats in log base 2, for graphs that ask for it.
    pub fn stats_log2(&self) -> Vec<f64> {
        self.stats.iter().map(|x| x * std::f64::consts::LOG2_E).collect()
    }
}

/// Gradients of a backward; 0 where nothing contributes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OracleBackward {
    /// `[B][H_q][S_q][d_qk]`.
    pub dq: Vec<f64>,
    /// `[B][H_kv][S_kv][d_qk]`.
    pub dk: Vec<f64>,
    /// `[B][H_kv][S_kv][d_v]`.
    pub dv: Vec<f64>,
    /// As the bias: `[1|B][1|H_q][S_q][S_kv]`, summed over broadcast axes; empty without a bias.
    pub dbias: Vec<f64>,
    /// `[H_q]`; empty without a sink.
    pub dsink: Vec<f64>,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn add_scaled(to: &mut [f64], from: &[f64], by: f64) {
    for (t, f) in to.iter_mut().zip(from) {
        *t += by * f;
    }
}

impl Problem {
    /// Reads the operands of a node.
    ///
    /// # Errors
    /// [`HostError`] when lengths, offsets, block tables or a buffer contradict the graph.
    pub fn gather(facts: &SdpaFacts, inputs: &Inputs<'_>) -> Result<Problem, HostError> {
        let p = &facts.ports;
        let bias = match &p.bias {
            Some(port) => {
                let shape = dense_shape(facts, port, Rows::Declared);
                Some((declared(port, inputs)?, [shape[0], shape[1]]))
            }
            None => None,
        };
        Ok(Problem {
            b: facts.b as usize,
            h_q: facts.h_q as usize,
            h_kv: facts.h_kv as usize,
            s_q: facts.s_q as usize,
            s_kv: facts.s_kv as usize,
            d_qk: facts.d_qk as usize,
            d_v: facts.d_v as usize,
            lens: Lengths::resolve(facts, inputs)?,
            left: facts.mask.left,
            right: facts.mask.right,
            bottom_right: facts.mask.bottom_right,
            scale: scale(facts, inputs)? as f64,
            q: read_input(facts, &p.q, "Q", Rows::Query, inputs)?,
            k: read_input(facts, &p.k, "K", Rows::Key, inputs)?,
            v: read_input(facts, &p.v, "V", Rows::Key, inputs)?,
            bias,
            sink: p.sink.as_ref().map(|port| declared(port, inputs)).transpose()?,
        })
    }

    /// Whether query `i` keeps key `j` in sequence `b`, both within their lengths: `i + diag - W <= j <= i + diag + R`.
    pub fn keeps(&self, b: usize, i: usize, j: usize) -> bool {
        let (len_q, len_kv, i, j) = (self.lens.q[b] as i128, self.lens.kv[b] as i128, i as i128, j as i128);
        let diag = if self.bottom_right { len_kv - len_q } else { 0 };
        i < len_q
            && j < len_kv
            && self.left.is_none_or(|w| j >= i + diag - w as i128)
            && self.right.is_none_or(|r| j <= i + diag + r as i128)
    }

    fn bias_index(&self, dims: [usize; 2], b: usize, h: usize, i: usize, j: usize) -> usize {
        let (b, h) = (if dims[0] == 1 { 0 } else { b }, if dims[1] == 1 { 0 } else { h });
        ((b * dims[1] + h) * self.s_q + i) * self.s_kv + j
    }

    /// Row of a query-side array with `d` columns.
    pub(crate) fn q_row<'a>(&self, x: &'a [f64], d: usize, b: usize, h: usize, i: usize) -> &'a [f64] {
        let at = ((b * self.h_q + h) * self.s_q + i) * d;
        &x[at..at + d]
    }

    /// Row of a key-side array with `d` columns, for the key head that query head `h` reads.
    pub(crate) fn kv_row<'a>(&self, x: &'a [f64], d: usize, b: usize, h: usize, j: usize) -> &'a [f64] {
        let at = ((b * self.h_kv + h / (self.h_q / self.h_kv)) * self.s_kv + j) * d;
        &x[at..at + d]
    }

    /// Score of one kept pair, scaled and biased.
    pub(crate) fn score(&self, b: usize, h: usize, i: usize, j: usize) -> f64 {
        let q = self.q_row(&self.q, self.d_qk, b, h, i);
        let k = self.kv_row(&self.k, self.d_qk, b, h, j);
        let bias = self.bias.as_ref().map_or(0.0, |(x, dims)| x[self.bias_index(*dims, b, h, i, j)]);
        self.scale * dot(q, k) + bias
    }

    /// O, Stats, score maximum and sum of exponentials.
    pub fn forward(&self) -> OracleForward {
        let mut out = OracleForward::default();
        type Unit = (Vec<f64>, Vec<[f64; 3]>);
        let units: Vec<Unit> =
            (0..self.b * self.h_q).into_par_iter().map(|u| self.forward_head(u / self.h_q, u % self.h_q)).collect();
        for (o, rows) in units {
            out.o.extend(o);
            out.stats.extend(rows.iter().map(|r| r[0]));
            out.score_max.extend(rows.iter().map(|r| r[1]));
            out.score_sum_exp.extend(rows.iter().map(|r| r[2]));
        }
        out
    }

    fn forward_head(&self, b: usize, h: usize) -> (Vec<f64>, Vec<[f64; 3]>) {
        let mut o = vec![0.0; self.s_q * self.d_v];
        let mut rows = Vec::with_capacity(self.s_q);
        for i in 0..self.s_q {
            let kept: Vec<(usize, f64)> =
                (0..self.s_kv).filter(|&j| self.keeps(b, i, j)).map(|j| (j, self.score(b, h, i, j))).collect();
            if i as i64 >= self.lens.q[b] {
                rows.push([f64::NEG_INFINITY, f64::NEG_INFINITY, 0.0]);
                continue;
            }
            let max = kept.iter().fold(f64::NEG_INFINITY, |m, &(_, s)| if s > m || s.is_nan() { s } else { m });
            let sum: f64 = if max == f64::NEG_INFINITY { 0.0 } else { kept.iter().map(|&(_, s)| (s - max).exp()).sum() };
            let sink = self.sink.as_ref().map_or(f64::NEG_INFINITY, |s| s[h]);
            // The sink takes part in the denominator only; an infinite one takes all the weight. A score of +inf has no softmax.
            let top = if max == f64::INFINITY {
                f64::NAN
            } else if max.is_nan() {
                max
            } else {
                max.max(sink)
            };
            let (total, lse) = if top.is_infinite() {
                (f64::INFINITY, top)
            } else {
                let total = sum * (max - top).exp() + (sink - top).exp();
                (total, top + total.ln())
            };
            if sum > 0.0 || sum.is_nan() {
                for &(j, s) in &kept {
                    // Not exp(s - lse): beside a bias of the lowest f32 the logarithm of the sum is lost even in f64.
                    let p = if total.is_infinite() { 0.0 } else { (s - top).exp() / total };
                    add_scaled(&mut o[i * self.d_v..(i + 1) * self.d_v], self.kv_row(&self.v, self.d_v, b, h, j), p);
                }
            }
            rows.push([lse, max, sum]);
        }
        (o, rows)
    }

    /// Gradients for `d_o` given the forward's `o` (`[B][H_q][S_q][d_v]`) and natural-log `stats` (`[B][H_q][S_q]`).
    pub fn backward(&self, o: &[f64], stats: &[f64], d_o: &[f64]) -> OracleBackward {
        let group = self.h_q / self.h_kv;
        let mut out = OracleBackward {
            dq: vec![0.0; self.b * self.h_q * self.s_q * self.d_qk],
            dk: Vec::with_capacity(self.k.len()),
            dv: Vec::with_capacity(self.v.len()),
            dbias: self.bias.as_ref().map_or_else(Vec::new, |(x, _)| vec![0.0; x.len()]),
            dsink: self.sink.as_ref().map_or_else(Vec::new, |s| vec![0.0; s.len()]),
        };
        let delta: Vec<f64> =
            (0..stats.len()).map(|r| dot(&o[r * self.d_v..(r + 1) * self.d_v], &d_o[r * self.d_v..(r + 1) * self.d_v])).collect();
        // One batch entry and key head at a time; their query heads are summed inside, in ascending order.
        let units: Vec<[Vec<f64>; 4]> = (0..self.b * self.h_kv)
            .into_par_iter()
            .map(|u| {
                let (b, hk) = (u / self.h_kv, u % self.h_kv);
                let mut dq = vec![0.0; group * self.s_q * self.d_qk];
                let (mut dk, mut dv) = (vec![0.0; self.s_kv * self.d_qk], vec![0.0; self.s_kv * self.d_v]);
                let mut ds_all = vec![0.0; if self.bias.is_some() { group * self.s_q * self.s_kv } else { 0 }];
                for (g, i, j) in (0..group).flat_map(|g| (0..self.s_q).flat_map(move |i| (0..self.s_kv).map(move |j| (g, i, j))))
                {
                    let h = hk * group + g;
                    let r = (b * self.h_q + h) * self.s_q + i;
                    if !self.keeps(b, i, j) || stats[r].is_infinite() {
                        continue;
                    }
                    let p = (self.score(b, h, i, j) - stats[r]).exp();
                    let dout = self.q_row(d_o, self.d_v, b, h, i);
                    let dp = dot(dout, self.kv_row(&self.v, self.d_v, b, h, j));
                    let ds = p * (dp - delta[r]);
                    add_scaled(&mut dv[j * self.d_v..(j + 1) * self.d_v], dout, p);
                    let q = self.q_row(&self.q, self.d_qk, b, h, i);
                    add_scaled(&mut dk[j * self.d_qk..(j + 1) * self.d_qk], q, ds * self.scale);
                    let k = self.kv_row(&self.k, self.d_qk, b, h, j);
                    let at = (g * self.s_q + i) * self.d_qk;
                    add_scaled(&mut dq[at..at + self.d_qk], k, ds * self.scale);
                    if self.bias.is_some() {
                        ds_all[(g * self.s_q + i) * self.s_kv + j] = ds;
                    }
                }
                [dq, dk, dv, ds_all]
            })
            .collect();
        for (u, [dq, dk, dv, ds]) in units.into_iter().enumerate() {
            let at = u * group * self.s_q * self.d_qk;
            out.dq[at..at + dq.len()].copy_from_slice(&dq);
            out.dk.extend(dk);
            out.dv.extend(dv);
            if let Some((_, dims)) = &self.bias {
                for (n, x) in ds.into_iter().enumerate() {
                    let (g, i, j) = (n / (self.s_q * self.s_kv), n / self.s_kv % self.s_q, n % self.s_kv);
                    out.dbias[self.bias_index(*dims, u / self.h_kv, u % self.h_kv * group + g, i, j)] += x;
                }
            }
        }
        if let Some(sink) = &self.sink {
            for (r, &lse) in stats.iter().enumerate() {
                let (b, h, i) = (r / (self.h_q * self.s_q), r / self.s_q % self.h_q, r % self.s_q);
                if (i as i64) < self.lens.q[b] && lse.is_finite() {
                    out.dsink[h] -= (sink[h] - lse).exp() * delta[r];
                }
            }
        }
        out
    }
}

fn declared(port: &Port, inputs: &Inputs<'_>) -> Result<Vec<f64>, HostError> {
    let lens = Lengths { q: vec![0; port.dim[0] as usize], kv: vec![0; port.dim[0] as usize] };
    let bytes = bytes_of(inputs, port.uid, &port.name)?;
    let place = super::access::Place::new(port, Rows::Declared, &lens, inputs, bytes.len())?;
    let [nb, nh, ns, nd] = port.dim.map(|x| x as usize);
    let mut out = Vec::with_capacity(nb * nh * ns * nd);
    for (b, h, s, d) in (0..nb * nh * ns * nd).map(|n| (n / (nh * ns * nd), n / (ns * nd) % nh, n / nd % ns, n % nd)) {
        out.push(place.get(bytes, b, h, s, d) as f64);
    }
    Ok(out)
}

/// Forward of a node from its bound inputs, in f64 on the values as stored.
///
/// # Errors
/// [`HostError`] when lengths, offsets, block tables or a buffer contradict the graph.
pub fn forward(facts: &SdpaFacts, inputs: &Inputs<'_>) -> Result<OracleForward, HostError> {
    Ok(Problem::gather(facts, inputs)?.forward())
}

/// Gradients of a backward node from its bound inputs; O, dO and natural-log Stats are taken as given.
///
/// # Errors
/// As [`forward`].
pub fn backward(facts: &SdpaFacts, inputs: &Inputs<'_>) -> Result<OracleBackward, HostError> {
    let problem = Problem::gather(facts, inputs)?;
    let o = read_input(facts, &facts.ports.o, "O", Rows::Query, inputs)?;
    let d_o = read_input(facts, &facts.ports.d_o, "dO", Rows::Query, inputs)?;
    need(&facts.ports.stats, "Stats")?;
    let stats = read_input(facts, &facts.ports.stats, "Stats", Rows::Query, inputs)?;
    Ok(problem.backward(&o, &stats, &d_o))
}
