//! Rules about paged K and V.

use super::{fault, Fault, View};
use crate::graph::{InPort, OutPort, Tensor};

fn declared_max(v: &View) -> Option<i64> {
    v.forward()?.max_seq_len_kv
}

fn width(t: &Tensor) -> Option<i64> {
    t.dim.get(3).copied()
}

pub(super) fn v25(v: &View) -> Option<Fault> {
    fault(v.paged && !(v.len_q && v.len_kv), "lengths on both sides with paged K/V", || {
        "page tables without lengths on both sides".into()
    })
}

pub(super) fn v26(v: &View) -> Option<Fault> {
    let max = declared_max(v)?;
    fault(!v.paged, "page tables where a paged maximum is declared", || {
        format!("paged_attention_max_seq_len_kv {max} without page tables")
    })
}

pub(super) fn v27(v: &View) -> Option<Fault> {
    let (max, bias) = (declared_max(v)?, v.input(InPort::Bias)?);
    fault(width(bias) != Some(max), "a bias as wide as the declared paged maximum", || {
        format!("bias '{}' {:?} with paged_attention_max_seq_len_kv {max}", bias.name, bias.dim)
    })
}

pub(super) fn v28(v: &View) -> Option<Fault> {
    let (max, dump) = (declared_max(v)?, v.output(OutPort::RngDump)?);
    fault(width(dump) != Some(max), "an rng dump as wide as the declared paged maximum", || {
        format!("rng dump '{}' {:?} with paged_attention_max_seq_len_kv {max}", dump.name, dump.dim)
    })
}
