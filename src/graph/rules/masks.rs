//! Rules about masks, dropout and score modification.

use super::{fault, Fault, View};
use crate::graph::InPort;

pub(super) fn v7(v: &View) -> Option<Fault> {
    fault(v.mask.alibi && v.right != Some(0), "a causal mask (right bound 0) with ALiBi", || match v.right {
        Some(r) => format!("ALiBi with right bound {r}"),
        None => "ALiBi without a right bound".into(),
    })
}

pub(super) fn v14(v: &View) -> Option<Fault> {
    let p = v.dropout_probability?;
    fault(v.input(InPort::DropoutMask).is_some(), "a probability or a mask, not both", || {
        format!("dropout probability {p} and a dropout mask")
    })
}

pub(super) fn v15(v: &View) -> Option<Fault> {
    fault(v.dropout_probability == Some(1.0), "a dropout probability below 1", || "dropout probability 1".into())
}

pub(super) fn v16(v: &View) -> Option<Fault> {
    let (s_q, s_kv) = v.lengths();
    fault(v.bottom_right_causal() && !v.mask.padding && s_q > s_kv, "S_q of at most S_kv with bottom-right causal", || {
        format!("bottom-right causal with S_q = {s_q} and S_kv = {s_kv}")
    })
}

pub(super) fn v17(v: &View) -> Option<Fault> {
    if !v.bottom_right_causal() {
        return None;
    }
    let dropout = v.dropout_probability.is_some() || v.input(InPort::DropoutMask).is_some();
    let with = if v.input(InPort::Bias).is_some() {
        "a bias"
    } else if v.mask.alibi {
        "ALiBi"
    } else if dropout {
        "dropout"
    } else if v.ragged && !v.mask.padding {
        "ragged operands without a padding mask"
    } else {
        return None;
    };
    let expected = "bottom-right causal without bias, ALiBi or dropout, and padded when ragged";
    let mut f = fault(true, expected, || format!("bottom-right causal with {with}"))?;
    let (s_q, s_kv) = v.lengths();
    if s_q == s_kv && !v.mask.padding {
        f.help = "With S_q = S_kv, top-left causal is the same mask";
    }
    Some(f)
}

pub(super) fn v18(v: &View) -> Option<Fault> {
    let (s_q, s_kv) = v.lengths();
    let left = v.left?;
    fault(!v.mask.padding && s_q > s_kv, "S_q of at most S_kv with a left bound", || {
        format!("left bound {left} with S_q = {s_q} and S_kv = {s_kv}")
    })
}

pub(super) fn v19(v: &View) -> Option<Fault> {
    let left = v.left?;
    fault(v.ragged && !v.mask.padding, "a padding mask where a left bound meets ragged operands", || {
        format!("left bound {left} on ragged operands without a padding mask")
    })
}

pub(super) fn v20(v: &View) -> Option<Fault> {
    // The right bound as given: a causal flag beside it does not make a negative bound good.
    let right = v.mask.right_bound.filter(|&r| r < 0)?;
    fault(true, "a right bound of at least 0", || format!("right bound {right}"))
}

fn built_in_mask(v: &View, alibi: bool, right: bool, padding: bool, left: bool) -> Option<Fault> {
    let with = if alibi {
        "ALiBi"
    } else if padding {
        "a padding mask"
    } else if right {
        "a right bound"
    } else if left {
        "a left bound"
    } else {
        return None;
    };
    fault(v.score_mod, "a score modification alone", || format!("a score modification with {with}"))
}

pub(super) fn v23(v: &View) -> Option<Fault> {
    built_in_mask(v, v.mask.alibi, v.right.is_some(), v.mask.padding, v.left.is_some())
}

/// As V23; kept apart because its number and code are.
pub(super) fn v45(v: &View) -> Option<Fault> {
    v23(v)
}

pub(super) fn v46(v: &View) -> Option<Fault> {
    let left = v.left.filter(|&l| l <= 0)?;
    let mut f = fault(true, "a left bound of at least 1", || format!("left bound {left}"))?;
    f.help = "A bound of length L keeps L keys, the query's own included";
    Some(f)
}
