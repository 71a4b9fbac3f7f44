//! Rules about sequence lengths, padding and packed operands.

use super::{fault, Fault, View};
use crate::graph::{InPort, Op};

fn sides(v: &View) -> &'static str {
    match (v.len_q, v.len_kv) {
        (true, true) => "lengths on both sides",
        (true, false) => "query lengths only",
        (false, true) => "key lengths only",
        (false, false) => "no lengths",
    }
}

/// Key lengths without query lengths: the lifted case of V10 and V12. Packed queries cannot do without.
pub(super) fn only_kv(v: &View) -> bool {
    v.len_kv && !v.len_q && !v.ragged && !v.paged
}

pub(super) fn v9(v: &View) -> Option<Fault> {
    let both = |a, b| v.input(a).is_some() && v.input(b).is_some();
    let q = both(InPort::SeqLenQ, InPort::CuSeqLenQ);
    let kv = both(InPort::SeqLenKv, InPort::CuSeqLenKv);
    fault(q || kv, "lengths or cumulative lengths, one form per side", || {
        let side = if q { "q" } else { "kv" };
        format!("seq_len_{side} and cu_seq_len_{side}")
    })
}

pub(super) fn v10(v: &View) -> Option<Fault> {
    let found = v.mask.padding && !(v.len_q && v.len_kv);
    fault(found, "lengths on both sides with a padding mask", || format!("a padding mask and {}", sides(v)))
}

pub(super) fn v11(v: &View) -> Option<Fault> {
    let found = (v.len_q || v.len_kv) && !v.mask.padding && !v.score_mod;
    let mut f = fault(found, "a padding mask where lengths are given", || format!("{} without a padding mask", sides(v)))?;
    f.help = "Set use_padding_mask, or drop the lengths";
    Some(f)
}

pub(super) fn v12(v: &View) -> Option<Fault> {
    fault(v.len_q != v.len_kv, "lengths on both sides", || sides(v).into())
}

pub(super) fn v13(v: &View) -> Option<Fault> {
    let (q, kv) = match &v.node.op {
        Op::Sdpa(a) => (a.max_total_seq_len_q, a.max_total_seq_len_kv),
        Op::SdpaBackward(a) => (a.max_total_seq_len_q, a.max_total_seq_len_kv),
        Op::Nvfp4Qat(_) | Op::Nvfp4QatBackward(_) | Op::GroupedGemmDsrelu(_) | Op::MoeGroupedMatmul(_) => (None, None),
    };
    let found = !v.ragged && (q.is_some() || kv.is_some());
    fault(found, "ragged offsets where token totals are declared", || {
        let show = |n: Option<i64>| n.map_or("none".to_string(), |n| n.to_string());
        format!("max_total_seq_len q {} and kv {} on dense operands", show(q), show(kv))
    })
}

pub(super) fn v22(v: &View) -> Option<Fault> {
    fault(v.ragged && !v.mask.padding && !v.score_mod, "a padding mask with lengths where operands are ragged", || {
        "ragged operands without a padding mask".into()
    })
}
