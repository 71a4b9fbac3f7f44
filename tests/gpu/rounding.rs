//! What rounding to the io type alone costs: forward and backward in f64 with P, dS, the per-head partials and the results rounded where a
//! tensor-core chain must round them. The yardstick of the error bound.

use frostgraph::engines::sdpa::oracle::{OracleBackward, OracleForward, Problem};
use frostgraph::DType;
use rayon::prelude::*;

/// `x` as the type stores it.
pub fn rounded(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => f64::from(half::bf16::from_f64(x).to_f32()),
        DType::F16 => f64::from(half::f16::from_f64(x).to_f32()),
        _ => f64::from(x as f32),
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn add(to: &mut [f64], from: &[f64], by: f64) {
    to.iter_mut().zip(from).for_each(|(t, f)| *t += by * f);
}

fn bias(p: &Problem, b: usize, h: usize, i: usize, j: usize) -> f64 {
    p.bias.as_ref().map_or(0.0, |(x, dims)| {
        x[(((if dims[0] == 1 { 0 } else { b }) * dims[1] + if dims[1] == 1 { 0 } else { h }) * p.s_q + i) * p.s_kv + j]
    })
}

/// One query head of one batch entry: its dQ, its share of dK and dV, its dS.
struct Head {
    dq: Vec<f64>,
    dk: Vec<f64>,
    dv: Vec<f64>,
    ds: Vec<f64>,
    dsink: f64,
}

fn head(p: &Problem, o: &[f64], stats: &[f64], d_o: &[f64], dtype: DType, b: usize, h: usize) -> Head {
    let (sq, skv, dq, dv) = (p.s_q, p.s_kv, p.d_qk, p.d_v);
    let hk = h / (p.h_q / p.h_kv);
    let (qh, kh) = ((b * p.h_q + h) * sq, (b * p.h_kv + hk) * skv);
    let mut out = Head { dq: vec![0.0; sq * dq], dk: vec![0.0; skv * dq], dv: vec![0.0; skv * dv], ds: Vec::new(), dsink: 0.0 };
    if p.bias.is_some() {
        out.ds = vec![0.0; sq * skv];
    }
    for i in 0..sq {
        let r = qh + i;
        if i as i64 >= p.lens.q[b] || !stats[r].is_finite() {
            continue;
        }
        let (q, go) = (&p.q[r * dq..][..dq], &d_o[r * dv..][..dv]);
        let delta = dot(&o[r * dv..][..dv], go);
        if let Some(sink) = &p.sink {
            out.dsink -= (sink[h] - stats[r]).exp() * delta;
        }
        for j in (0..skv).filter(|&j| p.keeps(b, i, j)) {
            let (k, v) = (&p.k[(kh + j) * dq..][..dq], &p.v[(kh + j) * dv..][..dv]);
            let prob = (p.scale * dot(q, k) + bias(p, b, h, i, j) - stats[r]).exp();
            let ds = prob * (dot(go, v) - delta);
            if p.bias.is_some() {
                out.ds[i * skv + j] = ds;
            }
            let (prob, ds) = (rounded(prob, dtype), rounded(ds, dtype));
            add(&mut out.dv[j * dv..][..dv], go, prob);
            add(&mut out.dk[j * dq..][..dq], q, ds * p.scale);
            add(&mut out.dq[i * dq..][..dq], k, ds * p.scale);
        }
    }
    out
}

/// The rounded backward; dBias and dSink keep their f32.
pub fn backward(p: &Problem, o: &[f64], stats: &[f64], d_o: &[f64], dtype: DType, dbias: DType) -> OracleBackward {
    let group = p.h_q / p.h_kv;
    let heads: Vec<Head> =
        (0..p.b * p.h_q).into_par_iter().map(|u| head(p, o, stats, d_o, dtype, u / p.h_q, u % p.h_q)).collect();
    let mut out = OracleBackward {
        dk: vec![0.0; p.k.len()],
        dv: vec![0.0; p.v.len()],
        dbias: p.bias.as_ref().map_or_else(Vec::new, |(x, _)| vec![0.0; x.len()]),
        dsink: p.sink.as_ref().map_or_else(Vec::new, |s| vec![0.0; s.len()]),
        ..OracleBackward::default()
    };
    for (u, x) in heads.into_iter().enumerate() {
        let (b, h) = (u / p.h_q, u % p.h_q);
        out.dq.extend(x.dq.iter().map(|&v| rounded(v, dtype)));
        let at = b * p.h_kv + h / group;
        // A group's partials are stored in the io type before they are summed.
        let partial = |v: f64| if group > 1 { rounded(v, dtype) } else { v };
        out.dk[at * x.dk.len()..][..x.dk.len()].iter_mut().zip(&x.dk).for_each(|(t, &v)| *t += partial(v));
        out.dv[at * x.dv.len()..][..x.dv.len()].iter_mut().zip(&x.dv).for_each(|(t, &v)| *t += partial(v));
        if let Some((_, dims)) = &p.bias {
            let slot = (if dims[0] == 1 { 0 } else { b }) * dims[1] + if dims[1] == 1 { 0 } else { h };
            add(&mut out.dbias[slot * x.ds.len()..][..x.ds.len()], &x.ds, 1.0);
        }
        if p.sink.is_some() {
            out.dsink[h] += x.dsink;
        }
    }
    for v in out.dk.iter_mut().chain(&mut out.dv) {
        *v = rounded(*v, dtype);
    }
    out.dbias.iter_mut().for_each(|v| *v = rounded(*v, dbias));
    out.dsink.iter_mut().for_each(|v| *v = rounded(*v, DType::F32));
    out
}

/// The forward with P rounded to the io type before it meets V, and O rounded at the end. P is relative to the row's maximum, as an
/// online softmax holds it; the sum is of unrounded values. Stats, maximum and sum keep fp32.
pub fn forward(p: &Problem, exact: &OracleForward, dtype: DType) -> OracleForward {
    let row = |r: usize| -> Vec<f64> {
        let (b, h, i) = (r / (p.h_q * p.s_q), r / p.s_q % p.h_q, r % p.s_q);
        let (max, lse, mut o) = (exact.score_max[r], exact.stats[r], vec![0.0; p.d_v]);
        if !max.is_finite() || !lse.is_finite() {
            return o;
        }
        let kh = (b * p.h_kv + h / (p.h_q / p.h_kv)) * p.s_kv;
        for j in (0..p.s_kv).filter(|&j| p.keeps(b, i, j)) {
            let score = p.scale * dot(&p.q[r * p.d_qk..][..p.d_qk], &p.k[(kh + j) * p.d_qk..][..p.d_qk]) + bias(p, b, h, i, j);
            add(&mut o, &p.v[(kh + j) * p.d_v..][..p.d_v], rounded((score - max).exp(), dtype));
        }
        // exp(lse - max) is the sum, the sink's share included.
        let total = (lse - max).exp();
        o.iter().map(|&v| rounded(v / total, dtype)).collect()
    };
    let o = (0..exact.stats.len()).into_par_iter().flat_map_iter(row).collect();
    let f32s = |x: &[f64]| x.iter().map(|&v| rounded(v, DType::F32)).collect();
    OracleForward { o, stats: f32s(&exact.stats), score_max: f32s(&exact.score_max), score_sum_exp: f32s(&exact.score_sum_exp) }
}
