//! The one matcher of attention rows: capabilities against facts, first reason wins, in the order written in [`mismatch`].
//!
//! It follows facts §5.5 and §5.11. Every decline names the value found and what the row serves, so that a user can act on it.

mod operands;

use self::operands::{bias, lengths, scale, sink, spans, stats};
use super::layout::{aligned_16_ok, bshd_layout_ok, dense_layout_ok, distinct_ok, packed_flex_ok, packed_layout_ok};
use super::{Direction, Recipe, SdpaFacts};
use crate::caps::{HeadDims, LayoutRule};
use crate::knobs::knob_values;
use crate::{Caps, Decline, DeclineCode as Code, Facts, Feature, Knobs, Port, Row, SdpaCaps, Target};

/// First reason why `row` cannot serve `facts` with these knobs on this device.
///
/// Order: malformed graph, operation (direction and recipe), architecture, knobs, element types, head dims, layout and 16-byte rule, features in [`Feature`]
/// order, lengths and packed declarations, Stats, bias, sink, scale tensor, index limits, then the row's own `extra` rules (which end with resources).
pub fn mismatch(operation: (Direction, Recipe), row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Option<Decline> {
    let (Facts::Sdpa(f), Caps::Sdpa(caps)) = (facts, &row.caps) else {
        return Some(row.decline(Code::Operation, "operation=other", "the node is no attention; this row serves attention"));
    };
    invalid(row, f)
        .or_else(|| wrong_operation(row, f, operation))
        .or_else(|| caps.arch.mismatch(row, target))
        .or_else(|| knob_values(row, knobs))
        .or_else(|| dtypes(row, caps, f))
        .or_else(|| head_dims(row, &caps.head_dims, f))
        .or_else(|| layouts(row, caps, f))
        .or_else(|| row.lacks(f.features, caps.features))
        .or_else(|| lengths(row, caps, f))
        .or_else(|| stats(row, caps, f))
        .or_else(|| bias(row, f))
        .or_else(|| sink(row, f))
        .or_else(|| scale(row, f))
        .or_else(|| spans(row, f))
        .or_else(|| (row.extra)(row, facts, knobs, target))
}

fn invalid(row: &Row, f: &SdpaFacts) -> Option<Decline> {
    let text = f.invalid.as_ref()?;
    Some(row.decline(Code::Invalid, format!("invalid={text}"), format!("the graph is malformed for every engine: {text}")))
}

fn wrong_operation(row: &Row, f: &SdpaFacts, want: (Direction, Recipe)) -> Option<Decline> {
    let name = |(direction, recipe)| {
        let direction = match direction {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        };
        match recipe {
            Recipe::Plain => direction.to_string(),
            Recipe::Nvfp4Qat => format!("NVFP4 QAT {direction}"),
        }
    };
    let found = (f.direction, f.recipe);
    (found != want).then(|| {
        row.decline(
            Code::Operation,
            format!("operation={}", name(found)),
            format!("the node is an attention {}; this row serves {}", name(found), name(want)),
        )
    })
}

fn dtypes(row: &Row, caps: &SdpaCaps, f: &SdpaFacts) -> Option<Decline> {
    if !caps.dtypes.contains(&f.dtype) {
        let names: Vec<&str> = caps.dtypes.iter().map(|d| d.short()).collect();
        let reason = format!("Q is {}; this row serves {}", f.dtype, names.join(", "));
        return Some(row.decline(Code::DType, format!("dtype={}", f.dtype), reason));
    }
    let other = f.ports.operands(f.direction).find(|(_, p, _)| p.dtype != f.dtype);
    if let Some((label, p, _)) = other {
        let reason = format!("{label} is {} and Q is {}; this row serves one element type on every operand", p.dtype, f.dtype);
        return Some(row.decline(Code::DType, format!("{label}.dtype={}", p.dtype), reason));
    }
    // The analyzer may know of operands beyond the ports, so its word counts as well.
    (!f.uniform_dtype || f.dtype_o != f.dtype).then(|| {
        let reason = format!("operands are not all {}; this row serves one element type on every operand", f.dtype);
        row.decline(Code::DType, format!("dtype_o={}", f.dtype_o), reason)
    })
}

/// How head dims are served: by a kernel of their own, or zero-padded on a larger one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadDimFit {
    /// The row takes these dims as they are.
    Native,
    /// Computed on this larger flavour.
    Envelope(i64, i64),
}

/// The fit of `(d_qk, d_v)` on a row, or `None` when it does not serve them.
pub fn head_dim_fit(h: &HeadDims, d_qk: i64, d_v: i64) -> Option<HeadDimFit> {
    if h.dqk_ge_dv && d_qk < d_v {
        return None;
    }
    if h.native.is_empty() || h.native.contains(&(d_qk, d_v)) {
        return Some(HeadDimFit::Native);
    }
    if h.pad_multiple == 0 || d_qk % h.pad_multiple != 0 || d_v % h.pad_multiple != 0 {
        return None;
    }
    let covers = h.native.iter().filter(|(q, v)| *q >= d_qk && *v >= d_v);
    covers.min_by_key(|(q, v)| (*q, *v)).map(|&(q, v)| HeadDimFit::Envelope(q, v))
}

fn head_dims(row: &Row, h: &HeadDims, f: &SdpaFacts) -> Option<Decline> {
    if head_dim_fit(h, f.d_qk, f.d_v).is_some() {
        return None;
    }
    let flavours: Vec<String> = h.native.iter().map(|(q, v)| if q == v { q.to_string() } else { format!("{q}/{v}") }).collect();
    let mut serves = flavours.join(", ");
    if h.pad_multiple > 0 {
        serves = format!("multiples of {} up to {serves}", h.pad_multiple);
    }
    if h.dqk_ge_dv {
        serves.push_str(" with d_qk at least d_v");
    }
    let fact = format!("d_qk={} d_v={}", f.d_qk, f.d_v);
    Some(row.decline(Code::HeadDim, fact, format!("head dims are {}/{}; this row serves {serves}", f.d_qk, f.d_v)))
}

fn layouts(row: &Row, caps: &SdpaCaps, f: &SdpaFacts) -> Option<Decline> {
    let thd = f.features.has(Feature::Thd);
    // The rule of one port and how it reads in a message.
    let rule = |p: &Port, written: bool| -> Option<&'static str> {
        match caps.layout {
            LayoutRule::Any if written && !distinct_ok(p) => Some("outputs whose elements do not share addresses"),
            LayoutRule::Any => None,
            LayoutRule::DenseFlex if p.ragged.is_some() && !packed_flex_ok(p) => {
                Some("packed operands with head-dim stride 1 and no overlap of tokens and heads")
            }
            LayoutRule::DenseFlex if p.ragged.is_none() && !dense_layout_ok(p) => {
                Some("any order of batch, head and sequence with head-dim stride 1 and no overlap")
            }
            LayoutRule::DenseFlex => None,
            LayoutRule::Bshd => {
                let ok = if thd { packed_layout_ok(p) && packed_flex_ok(p) } else { bshd_layout_ok(p) && dense_layout_ok(p) };
                (!ok).then_some("batch, sequence, head, dim order with head-dim stride 1")
            }
        }
    };
    for (label, p, written) in f.ports.operands(f.direction) {
        let fact = || format!("{label}.stride={:?}", p.stride);
        if let Some(serves) = rule(p, written) {
            return Some(row.decline(
                Code::Layout,
                fact(),
                format!("{label} has strides {:?} over {:?}; this row serves {serves}", p.stride, p.dim),
            ));
        }
        if caps.aligned_16 && !aligned_16_ok(p) {
            let reason = format!(
                "{label} has strides {:?} of {} and base alignment {}; this row serves strides and bases that are multiples of 16 bytes",
                p.stride, p.dtype, p.alignment
            );
            return Some(row.decline(Code::Layout, format!("{} alignment={}", fact(), p.alignment), reason));
        }
    }
    None
}
