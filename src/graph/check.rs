//! Checks that hold for any tensor and attribute, whatever the operation.

use super::infer::overflow;
use super::{rules, InPort, Node, Op, OutPort, ScalarValue, Tensor};
use crate::{Error, ErrorCode, Result};

/// Every tensor: extents, strides, 64-bit sizes, and whether it can be what it says it is.
pub(super) fn tensors(tensors: &[Tensor], producer: &[Option<u32>], packed_stats: &[bool]) -> Result<()> {
    for (i, t) in tensors.iter().enumerate() {
        let written = producer[i].is_some();
        tensor(t, written, packed_stats[i])
            .map_err(|e| e.at(format!("tensor '{}' (uid {})", t.name, t.uid.unwrap_or_default())))?;
        if let Some(r) = t.ragged {
            if tensors[r.offset.0 as usize].ragged.is_some() {
                let given = format!("a ragged tensor as ragged offset of '{}'", t.name);
                return Err(Error::new(ErrorCode::BadTensor, given, "a dense tensor of B + 1 offsets"));
            }
        }
    }
    Ok(())
}

fn tensor(t: &Tensor, written: bool, packed_stats: bool) -> Result<()> {
    let bad = |given: String, expected: &str| Err(Error::new(ErrorCode::BadTensor, given, expected));
    if t.is_virtual && t.pass_by_value {
        return bad("virtual and passed by value".into(), "one of the two: a value comes from the caller");
    }
    if written && t.pass_by_value {
        return bad("passed by value and an output of a node".into(), "an output in device memory");
    }
    if t.alignment < 1 {
        return bad(format!("alignment {}", t.alignment), "at least 1 byte");
    }
    if let Some(r) = t.ragged {
        if r.multiplier < 1 {
            return bad(format!("ragged offset multiplier {}", r.multiplier), "at least 1");
        }
    }
    sizes(t)?;
    if written {
        distinct(t, packed_stats)?;
    }
    Ok(())
}

/// Extents positive, strides not negative, element and byte counts within 63 bits.
fn sizes(t: &Tensor) -> Result<()> {
    if t.dim.is_empty() {
        return Err(Error::new(ErrorCode::BadDims, "no extents", "extents of at least 1; they could not be inferred"));
    }
    if t.dim.iter().any(|&d| d <= 0) {
        return Err(Error::new(ErrorCode::BadDims, format!("extents {:?}", t.dim), "extents of at least 1"));
    }
    if t.stride.len() != t.dim.len() {
        let given = format!("{} strides {:?} for {} extents {:?}", t.stride.len(), t.stride, t.dim.len(), t.dim);
        return Err(Error::new(ErrorCode::BadStrides, given, "one stride per extent"));
    }
    if t.stride.iter().any(|&s| s < 0) {
        return Err(Error::new(ErrorCode::BadStrides, format!("strides {:?}", t.stride), "strides of at least 0"));
    }
    let bits = t.dtype.map_or(8, |d| i64::from(d.bits()));
    let count = t.dim.iter().try_fold(1i64, |n, &d| n.checked_mul(d));
    if count.and_then(|n| n.checked_mul(bits)).is_none() {
        return Err(overflow(&t.dim));
    }
    let last = t.dim.iter().zip(&t.stride).try_fold(1i64, |n, (&d, &s)| n.checked_add((d - 1).checked_mul(s)?));
    if last.and_then(|n| n.checked_mul(bits)).is_none() {
        let given = format!("strides {:?} with extents {:?}", t.stride, t.dim);
        return Err(Error::new(ErrorCode::BadStrides, given, "a span that fits in 63 bits"));
    }
    Ok(())
}

/// No two elements of an output share an address; a second writer would race (report #35).
///
/// Axes that step over another's elements are found exactly when one stride divides the other, which covers every layout of the field.
/// The batch axis of a ragged tensor is never read; packed Stats may name a head stride below the extent of S, because it covers the
/// packed tokens and not the extents (rule S1).
fn distinct(t: &Tensor, packed_stats: bool) -> Result<()> {
    let first = usize::from(t.ragged.is_some());
    if first < t.dim.len() && (first..t.dim.len()).any(|a| t.dim[a] > 1 && t.stride[a] == 0) {
        let given = format!("strides {:?} with extents {:?} on an output", t.stride, t.dim);
        return Err(Error::new(ErrorCode::BadStrides, given, "strides of at least 1 where the extent is above 1")
            .help("Elements would share an address; declare the output's own strides"));
    }
    if packed_stats {
        return Ok(());
    }
    for a in first..t.dim.len() {
        for b in first..t.dim.len() {
            let (small, large) = (t.stride[a], t.stride[b]);
            let both = a != b && t.dim[a] > 1 && t.dim[b] > 1;
            if both && small <= large && large % small == 0 && large / small < t.dim[a] {
                let given = format!("strides {:?} with extents {:?} on an output", t.stride, t.dim);
                return Err(Error::new(ErrorCode::BadStrides, given, "an address of its own for every element")
                    .help(format!("Axes {a} and {b} overlap; declare the output's own strides")));
            }
        }
    }
    Ok(())
}

/// Operands that the operation would neither read nor write: an output left unwritten would break invariant I6, an input would be
/// ignored in silence. Inputs that become facts pass, so that rows decline them by name.
pub(super) fn foreign_ports(node: &Node) -> Result<()> {
    let backward = node.op.is_backward();
    let qat = match node.op {
        Op::Sdpa(_) | Op::SdpaBackward(_) => false,
        Op::Nvfp4Qat(_) | Op::Nvfp4QatBackward(_) => true,
        Op::GroupedGemmDsrelu(_) => return rules::grouped_gemm::foreign_ports(node),
        Op::MoeGroupedMatmul(_) => return rules::moe::foreign_ports(node),
    };
    let input = node.inputs.keys().find(|&p| match p {
        InPort::Q | InPort::K | InPort::V | InPort::SeqLenQ | InPort::SeqLenKv => false,
        InPort::DO | InPort::Stats => !backward,
        InPort::O => !backward || qat,
        InPort::HighPrecisionO => !backward || !qat,
        InPort::AttnScale
        | InPort::Bias
        | InPort::CuSeqLenQ
        | InPort::CuSeqLenKv
        | InPort::Seed
        | InPort::Offset
        | InPort::DropoutMask
        | InPort::DropoutScale
        | InPort::DropoutScaleInv
        | InPort::PageTableK
        | InPort::PageTableV
        | InPort::BlockMask
        | InPort::Sink
        | InPort::KvMask => qat,
        InPort::A
        | InPort::B
        | InPort::C
        | InPort::Sfa
        | InPort::Sfb
        | InPort::BPtrs
        | InPort::SfbPtrs
        | InPort::PaddedOffsets
        | InPort::Alpha
        | InPort::Prob
        | InPort::NormConst
        | InPort::Token
        | InPort::Weight
        | InPort::FirstTokenOffset
        | InPort::TokenIndex
        | InPort::TokenKs => true,
    });
    let output = node.outputs.keys().find(|&p| match p {
        OutPort::O | OutPort::Stats => backward,
        OutPort::HighPrecisionO => backward || !qat,
        OutPort::Max | OutPort::SumExp => backward || qat,
        OutPort::DQ | OutPort::DK | OutPort::DV => !backward,
        OutPort::DBias | OutPort::DSink => !backward || qat,
        OutPort::RngDump => qat,
        OutPort::DRow
        | OutPort::DCol
        | OutPort::DSrelu
        | OutPort::DProb
        | OutPort::Amax
        | OutPort::SfdRow
        | OutPort::SfdCol
        | OutPort::SfdColDSrelu
        | OutPort::Status
        | OutPort::Output => true,
    });
    let (kind, port) = match (input, output) {
        (Some(p), _) => ("input", p.json()),
        (None, Some(p)) => ("output", p.json()),
        (None, None) => return Ok(()),
    };
    let given = format!("{kind} {port} on {}", node.op.tag());
    Err(Error::new(ErrorCode::BadAttribute, given, "operands of the operation only"))
}

/// Attribute values that no rule of facts §2.3 names.
pub(super) fn attributes(node: &Node, tensors: &[Tensor]) -> Result<()> {
    let bad = |given: String, expected: &str| Err(Error::new(ErrorCode::BadAttribute, given, expected));
    let (scale, probability) = match &node.op {
        Op::Sdpa(a) => (a.attn_scale, a.dropout_probability),
        Op::SdpaBackward(a) => (a.attn_scale, a.dropout_probability),
        Op::Nvfp4Qat(a) | Op::Nvfp4QatBackward(a) => (a.attn_scale, None),
        // Their attributes are judged with their rules.
        Op::GroupedGemmDsrelu(_) | Op::MoeGroupedMatmul(_) => return Ok(()),
    };
    if let Some(s) = scale {
        if !s.is_finite() {
            return bad(format!("attn_scale {s}"), "a finite number");
        }
        if node.inputs.contains_key(&InPort::AttnScale) {
            return bad(format!("attn_scale {s} and an Attn_scale tensor"), "one of the two");
        }
    }
    let known = node.inputs.get(&InPort::AttnScale).and_then(|id| tensors[id.0 as usize].value);
    if let Some(s) = known.map(as_f64).filter(|s| !s.is_finite()) {
        return bad(format!("attn_scale {s} as a tensor of known value"), "a finite number");
    }
    if let Some(p) = probability {
        if !(0.0..=1.0).contains(&p) {
            return bad(format!("dropout probability {p}"), "a probability of at least 0 and below 1");
        }
    }
    let totals = match &node.op {
        Op::Sdpa(a) => [a.max_total_seq_len_q, a.max_total_seq_len_kv, a.max_seq_len_kv],
        Op::SdpaBackward(a) => [a.max_total_seq_len_q, a.max_total_seq_len_kv, None],
        Op::Nvfp4Qat(_) | Op::Nvfp4QatBackward(_) | Op::GroupedGemmDsrelu(_) | Op::MoeGroupedMatmul(_) => [None; 3],
    };
    if let Some(n) = totals.into_iter().flatten().find(|&n| n < 1) {
        return bad(format!("a declared length maximum of {n}"), "at least 1");
    }
    match &node.op {
        Op::Sdpa(a) if a.wants_stats() == Some(false) && node.outputs.contains_key(&OutPort::Stats) => {
            bad("a Stats output on a node that does not generate Stats".into(), "generate_stats, or no Stats output")
        }
        // A scale of 0 or below is legal attention, but no QAT recipe: the reference refuses it (facts §8.2).
        Op::Nvfp4Qat(a) | Op::Nvfp4QatBackward(a) if a.attn_scale.is_some_and(|s| s <= 0.0) => {
            bad(format!("attn_scale {}", a.attn_scale.unwrap_or_default()), "a finite number above 0")
        }
        Op::Nvfp4Qat(a) if a.deterministic => bad("deterministic on a forward".into(), "the attribute on a backward only"),
        Op::Sdpa(_)
        | Op::SdpaBackward(_)
        | Op::Nvfp4Qat(_)
        | Op::Nvfp4QatBackward(_)
        | Op::GroupedGemmDsrelu(_)
        | Op::MoeGroupedMatmul(_) => Ok(()),
    }
}

fn as_f64(v: ScalarValue) -> f64 {
    match v {
        ScalarValue::I64(v) => v as f64,
        ScalarValue::I32(v) => v.into(),
        ScalarValue::F16(bits) => half::f16::from_bits(bits).to_f64(),
        ScalarValue::F32(v) => v.into(),
        ScalarValue::F64(v) => v,
        ScalarValue::BF16(bits) => half::bf16::from_bits(bits).to_f64(),
    }
}
