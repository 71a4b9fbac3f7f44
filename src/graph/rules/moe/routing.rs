//! Offsets, indices and how many rows they lead to.

use super::{Fault, View};
use crate::graph::{InPort, MoeMode};
use frostgraph_engines::moe_grouped_matmul::routing::MAX_GROUPS;

pub(super) fn routing(v: &View<'_>) -> Fault {
    let idle: &[InPort] = match v.a.mode {
        MoeMode::None => &[InPort::TokenIndex, InPort::TokenKs],
        MoeMode::Gather => &[InPort::TokenKs],
        MoeMode::Scatter => &[],
    };
    let port = idle.iter().find(|p| v.input(**p).is_some())?;
    Some((format!("{} in mode {}", port.json(), v.a.mode.json()), "only what the mode reads".into()))
}

pub(super) fn offsets(v: &View<'_>) -> Fault {
    let (list, experts) = (v.extent(InPort::FirstTokenOffset, 0), v.experts());
    let Some((groups, _)) = v.groups() else {
        let given = format!("{list} offsets for {experts} experts");
        return Some((given, "as many as there are groups, a multiple of the experts, or one more".into()));
    };
    (groups > MAX_GROUPS).then(|| (format!("{groups} groups"), format!("at most {MAX_GROUPS}")))
}

pub(super) fn top_k(v: &View<'_>) -> Fault {
    if v.a.mode != MoeMode::Scatter {
        return None;
    }
    let (k, rows) = (v.a.top_k, v.routed());
    let bad = k < 1 || rows % k != 0 || k > i64::from(i32::MAX);
    bad.then(|| (format!("top_k {k} with {rows} routed rows"), "at least 1, with as many rows for every token".into()))
}
