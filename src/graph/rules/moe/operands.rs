//! Which operands there are, and their extents and layouts.

use super::view::{dtype, named, View};
use super::Fault;
use crate::graph::{InPort, MoeGroupedMatmulAttrs, MoeMode, Node, OutPort, Tensor};
use crate::{DType, Error, ErrorCode, Result};

/// Presence of what inference needs; before it, so that open outputs pass.
pub(in crate::graph) fn operands(node: &Node, a: &MoeGroupedMatmulAttrs, tensors: &[Tensor]) -> Result<()> {
    let v = View { node, a, tensors };
    let needed: &[InPort] = match a.mode {
        MoeMode::None => &[InPort::Token, InPort::Weight, InPort::FirstTokenOffset],
        MoeMode::Gather => &[InPort::Token, InPort::Weight, InPort::FirstTokenOffset, InPort::TokenIndex],
        MoeMode::Scatter => &[InPort::Token, InPort::Weight, InPort::FirstTokenOffset, InPort::TokenIndex, InPort::TokenKs],
    };
    let list = || needed.iter().map(|p| p.json()).collect::<Vec<_>>().join(", ");
    if let Some(port) = needed.iter().find(|p| v.input(**p).is_none()) {
        let expected = format!("{} in mode {}", list(), a.mode.json());
        return Err(Error::new(ErrorCode::MissingPort, format!("no {}", port.json()), expected));
    }
    if v.output(OutPort::Output).is_none() {
        return Err(Error::new(ErrorCode::MissingPort, "no Output", "an output"));
    }
    for &port in &[InPort::Token, InPort::Weight, InPort::FirstTokenOffset] {
        if let Some(t) = v.input(port).filter(|t| t.dim.len() != 3) {
            let given = format!("{} with extents {:?}", named(port.json(), t), t.dim);
            return Err(Error::new(ErrorCode::MoeShape, given, "3 extents (rule 1 of the plain grouped product)"));
        }
    }
    let ports = node.inputs.values().chain(node.outputs.values());
    if let Some(t) = ports.map(|id| &tensors[id.0 as usize]).find(|t| t.ragged.is_some()) {
        let given = format!("ragged tensor '{}'", t.name);
        return Err(Error::new(ErrorCode::BadTensor, given, "dense operands; groups are told apart by FirstTokenOffset"));
    }
    Ok(())
}

/// Operands that the operation does not have.
pub(in crate::graph) fn foreign_ports(node: &Node) -> Result<()> {
    use InPort as I;
    let own = |p: &&I| matches!(p, I::Token | I::Weight | I::FirstTokenOffset | I::TokenIndex | I::TokenKs | I::Sfa | I::Sfb);
    let input = node.inputs.keys().find(|p| !own(p));
    let output = node.outputs.keys().find(|p| !matches!(p, OutPort::Output | OutPort::Status));
    match input.map(|p| p.json()).or(output.map(|p| p.json())) {
        None => Ok(()),
        Some(port) => {
            let given = format!("{port} on {}", node.op.tag());
            Err(Error::new(ErrorCode::BadAttribute, given, "operands of the operation only"))
        }
    }
}

pub(super) fn shapes(v: &View<'_>) -> Fault {
    let (t, r, n, k, e) = (v.tokens(), v.routed(), v.n(), v.k(), v.experts());
    let offsets = v.extent(InPort::FirstTokenOffset, 0);
    let weight_k = v.extent(InPort::Weight, 1);
    let all: [(&str, Option<&Tensor>, Vec<i64>); 7] = [
        ("Token", v.input(InPort::Token), vec![1, t, k]),
        ("Weight", v.input(InPort::Weight), vec![e, weight_k, n]),
        ("FirstTokenOffset", v.input(InPort::FirstTokenOffset), vec![offsets, 1, 1]),
        ("TokenIndex", v.input(InPort::TokenIndex), vec![1, r, 1]),
        ("TokenKs", v.input(InPort::TokenKs), vec![1, r, 1]),
        ("Output", v.output(OutPort::Output), vec![1, r, n]),
        ("Status", v.output(OutPort::Status), vec![1]),
    ];
    let (port, t, want) = all.into_iter().find_map(|(p, t, want)| Some((p, t.filter(|t| t.dim != want)?, want)))?;
    Some((format!("{} with extents {:?}", named(port, t), t.dim), format!("extents {want:?}")))
}

pub(super) fn contraction(v: &View<'_>) -> Fault {
    let of_weight = v.extent(InPort::Weight, 1);
    (of_weight != v.k()).then(|| (format!("K {of_weight} of the weights and {} of the token", v.k()), "one K".into()))
}

pub(super) fn layouts(v: &View<'_>) -> Fault {
    for (port, axis) in [(InPort::Token, 2), (InPort::Weight, 1)] {
        let Some(t) = v.input(port).filter(|t| dtype(t) == DType::F4E2M1) else { continue };
        let outer = (0..3).filter(|&a| a != axis && t.dim[a] > 1);
        if t.stride[axis] != 1 || t.dim[axis] % 2 != 0 || outer.into_iter().any(|a| t.stride[a] % 2 != 0) {
            let given = format!("{} with strides {:?} over {:?}", named(port.json(), t), t.stride, t.dim);
            return Some((given, "K contiguous and even, and rows that begin with a whole byte".into()));
        }
    }
    None
}
