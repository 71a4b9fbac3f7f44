//! Operands beside those of the matrix products: lengths and offsets, Stats, bias, sink, scale; and what every operand spans.

use crate::sdpa::layout::distinct_ok;
use crate::sdpa::{thd_stats_packing, Direction, SdpaFacts, StatsPacking};
use crate::{DType, Decline, DeclineCode as Code, Feature, Port, Row, SdpaCaps};

/// First operand besides those of the matrix products that is declared ragged where nothing is packed that way.
fn foreign_offsets(f: &SdpaFacts) -> Option<&'static str> {
    let dense = !f.features.has(Feature::Thd);
    let mut all = f.ports.others().chain(f.ports.row_values().filter(|_| dense));
    all.find(|(_, port)| port.ragged.is_some()).map(|(label, _)| label)
}

pub(super) fn lengths(row: &Row, caps: &SdpaCaps, f: &SdpaFacts) -> Option<Decline> {
    for (side, a, b) in
        [("query", &f.ports.seq_len_q, &f.ports.cu_seq_len_q), ("key", &f.ports.seq_len_kv, &f.ports.cu_seq_len_kv)]
    {
        if a.is_some() && b.is_some() {
            let reason = format!("the {side} side has lengths and cumulative lengths; this row serves one form a side");
            return Some(row.decline(Code::Lengths, format!("{side}_lengths=both"), reason));
        }
    }
    if let Some(label) = foreign_offsets(f) {
        let reason = format!("{label} has ragged offsets; this row serves it dense here");
        return Some(row.decline(Code::Lengths, format!("{label}.ragged=true"), reason));
    }
    if !f.features.has(Feature::Thd) {
        let ragged = f.ports.operands(f.direction).find(|(_, p, _)| p.ragged.is_some());
        return ragged.map(|(label, _, _)| {
            let reason = format!("{label} is packed and Q is dense; this row serves all operands packed or all dense");
            row.decline(Code::Lengths, format!("{label}.ragged=true"), reason)
        });
    }
    let paged = f.features.has(Feature::PagedKv);
    for (label, p, _) in f.ports.operands(f.direction) {
        let Some(r) = p.ragged else {
            if paged && matches!(label, "K" | "V") {
                continue;
            }
            let reason = format!("{label} is dense and Q is packed; this row serves all operands packed or all dense");
            return Some(row.decline(Code::Lengths, format!("{label}.ragged=false"), reason));
        };
        if !matches!(r.dtype, DType::I32 | DType::I64) || r.multiplier < 1 {
            let reason = format!(
                "{label} has ragged offsets of {} times {}; this row serves i32 or i64 times at least 1",
                r.dtype, r.multiplier
            );
            return Some(row.decline(Code::Lengths, format!("{label}.ragged={}x{}", r.dtype, r.multiplier), reason));
        }
    }
    for (side, total) in [("q", f.max_total_seq_len_q), ("kv", f.max_total_seq_len_kv)] {
        let name = format!("max_total_seq_len_{side}");
        match total {
            Some(t) if t < 1 => {
                return Some(row.decline(
                    Code::Lengths,
                    format!("{name}={t}"),
                    format!("{name} is {t}; this row serves positive totals"),
                ));
            }
            None if caps.thd_needs_totals => {
                let reason = format!("{name} is not declared; this row sizes its workspace by it");
                return Some(row.decline(Code::Lengths, format!("{name}=unset"), reason));
            }
            Some(_) | None => {}
        }
    }
    None
}

/// Stats, and the row maximum and sum next to them: one f32 a query row, laid out by the same rules.
pub(super) fn stats(row: &Row, caps: &SdpaCaps, f: &SdpaFacts) -> Option<Decline> {
    let used = f.direction == Direction::Backward || f.wants_stats;
    f.ports.row_values().filter(|(label, _)| used || *label != "Stats").find_map(|(label, p)| row_values(row, caps, f, label, p))
}

fn row_values(row: &Row, caps: &SdpaCaps, f: &SdpaFacts, label: &str, p: &Port) -> Option<Decline> {
    if p.dtype != DType::F32 {
        return Some(row.decline(
            Code::Stats,
            format!("{label}.dtype={}", p.dtype),
            format!("{label} is {}; this row serves f32", p.dtype),
        ));
    }
    let want = [f.b, f.h_q, f.s_q, 1];
    if p.dim != want {
        let reason = format!("{label} has extents {:?}; this row serves {want:?}", p.dim);
        return Some(row.decline(Code::Stats, format!("{label}.dim={:?}", p.dim), reason));
    }
    let strides = |serves: &str| {
        let reason = format!("{label} has strides {:?} over {:?}; this row serves {serves}", p.stride, p.dim);
        Some(row.decline(Code::Stats, format!("{label}.stride={:?}", p.stride), reason))
    };
    if !f.features.has(Feature::Thd) {
        // Broadcast Stats would be one row's sum for many; as an output it would be a race.
        return if distinct_ok(p) { None } else { strides("strides of distinct rows") };
    }
    if p.ragged.is_none() {
        // Per-batch Stats next to packed operands: only rows with the feature get this far.
        return if caps.features.has(Feature::ThdPaddedStats) && distinct_ok(p) {
            None
        } else {
            strides("packed Stats with ragged offsets (rule S1)")
        };
    }
    match thd_stats_packing(p.stride[1], p.stride[2], f.h_q) {
        Some(StatsPacking::TokenMajor) => None,
        Some(StatsPacking::HeadMajor) => {
            let rows = f.b.saturating_mul(f.s_q);
            let need = f.max_total_seq_len_q.map_or(rows, |t| t.min(rows));
            if f.h_q == 1 || p.stride[1] >= need {
                None
            } else {
                strides(&format!("head-major Stats with a head stride of at least {need}"))
            }
        }
        None => strides(&format!(
            "token-major (head stride 1, token stride {}) or head-major (token stride 1) Stats (rule S1)",
            f.h_q
        )),
    }
}

pub(super) fn bias(row: &Row, f: &SdpaFacts) -> Option<Decline> {
    let ports = &f.ports;
    if let (Some(_), None) = (&ports.dbias, &ports.bias) {
        return Some(row.decline(Code::Bias, "bias=absent", "dBias is asked for without a bias; dBias needs one"));
    }
    for (label, p) in [("bias", &ports.bias), ("dBias", &ports.dbias)] {
        let Some(p) = p else { continue };
        if p.dtype != DType::F32 && p.dtype != f.dtype {
            let reason = format!("{label} is {}; this row serves f32 or the {} of the operands", p.dtype, f.dtype);
            return Some(row.decline(Code::Bias, format!("{label}.dtype={}", p.dtype), reason));
        }
        let fits = |have: i64, full: i64| have == 1 || have == full;
        if !fits(p.dim[0], f.b) || !fits(p.dim[1], f.h_q) || p.dim[2] != f.s_q || p.dim[3] != f.s_kv {
            let reason =
                format!("{label} has extents {:?}; this row serves (1|{}, 1|{}, {}, {})", p.dim, f.b, f.h_q, f.s_q, f.s_kv);
            return Some(row.decline(Code::Bias, format!("{label}.dim={:?}", p.dim), reason));
        }
    }
    let (Some(b), Some(d)) = (&ports.bias, &ports.dbias) else { return None };
    if b.dim != d.dim {
        let reason = format!("dBias has extents {:?} and bias {:?}; this row serves equal extents", d.dim, b.dim);
        return Some(row.decline(Code::Bias, format!("dBias.dim={:?}", d.dim), reason));
    }
    (!distinct_ok(d)).then(|| {
        let reason = format!("dBias has strides {:?} over {:?}; this row serves strides of distinct elements", d.stride, d.dim);
        row.decline(Code::Bias, format!("dBias.stride={:?}", d.stride), reason)
    })
}

pub(super) fn scale(row: &Row, f: &SdpaFacts) -> Option<Decline> {
    let p = f.ports.attn_scale.as_ref()?;
    if !matches!(p.dtype, DType::F32 | DType::F16 | DType::BF16) {
        let reason = format!("the attn_scale tensor is {}; this row serves f32, f16 and bf16", p.dtype);
        return Some(row.decline(Code::DType, format!("attn_scale.dtype={}", p.dtype), reason));
    }
    (p.dim != [1; 4]).then(|| {
        let reason = format!("the attn_scale tensor has extents {:?}; this row serves one element", p.dim);
        row.decline(Code::Geometry, format!("attn_scale.dim={:?}", p.dim), reason)
    })
}

pub(super) fn sink(row: &Row, f: &SdpaFacts) -> Option<Decline> {
    if f.ports.dsink.is_some() && f.ports.sink.is_none() {
        return Some(row.decline(Code::Sink, "sink=absent", "dSink is asked for without a sink; dSink needs one"));
    }
    let want = [1, f.h_q, 1, 1];
    for (label, p) in [("sink", &f.ports.sink), ("dSink", &f.ports.dsink)] {
        let Some(p) = p else { continue };
        if p.dtype != DType::F32 || p.dim != want {
            let reason = format!("{label} is {} with extents {:?}; this row serves f32 {want:?}", p.dtype, p.dim);
            return Some(row.decline(Code::Sink, format!("{label}={} {:?}", p.dtype, p.dim), reason));
        }
    }
    None
}

/// Every address must fit 63 bits of bytes, or no arithmetic of any engine is safe.
pub(super) fn spans(row: &Row, f: &SdpaFacts) -> Option<Decline> {
    let extra = [("Stats", &f.ports.stats), ("bias", &f.ports.bias), ("dBias", &f.ports.dbias)];
    let all = f.ports.operands(f.direction).map(|(l, p, _)| (l, p));
    all.chain(extra.into_iter().filter_map(|(l, p)| p.as_ref().map(|p| (l, p)))).find_map(|(label, p)| {
        // A packed operand's batch stride is never read; where its batches begin is data.
        let one_batch = p.ragged.map(|_| Port { dim: [1, p.dim[1], p.dim[2], p.dim[3]], ..p.clone() });
        let bytes = one_batch.as_ref().unwrap_or(p).span().and_then(|n| n.checked_mul(p.dtype.bytes().unwrap_or(1)));
        if bytes.is_some_and(|n| i64::try_from(n).is_ok()) {
            return None;
        }
        let reason = format!("{label} spans {:?} with strides {:?}; this row serves spans below 2^63 bytes", p.dim, p.stride);
        Some(row.decline(Code::Geometry, format!("{label}.stride={:?}", p.stride), reason))
    })
}
