//! Presence: operands that must be there, that come together, and that the operation does not have.

use super::view::{named, View};
use super::Fault;
use crate::graph::{GroupedGemmDsreluAttrs, InPort, Node, OutPort, Tensor};
use crate::{Error, ErrorCode, Result};

/// Presence of what inference needs; before it, so that open outputs pass.
pub(in crate::graph) fn operands(node: &Node, a: &GroupedGemmDsreluAttrs, tensors: &[Tensor]) -> Result<()> {
    let v = View { node, a, tensors };
    let missing = |port: &str, expected: &str| Err(Error::new(ErrorCode::MissingPort, format!("no {port}"), expected));
    for port in [InPort::A, InPort::C, InPort::Sfa, InPort::PaddedOffsets, InPort::Alpha, InPort::Prob] {
        if v.input(port).is_none() {
            return missing(port.json(), "A, C, SFA, Padded_offsets, Alpha, Prob and the weights");
        }
    }
    for port in [OutPort::DRow, OutPort::DCol, OutPort::DProb] {
        if v.output(port).is_none() {
            return missing(port.json(), "outputs D_row, D_col and dProb");
        }
    }
    let has = |port| v.input(port).is_some();
    for (one, other) in [(InPort::B, InPort::Sfb), (InPort::BPtrs, InPort::SfbPtrs)] {
        if has(one) != has(other) {
            let absent = if has(one) { other } else { one };
            return missing(absent.json(), "payload and scales of B in the same form");
        }
    }
    if !has(InPort::B) && !has(InPort::BPtrs) {
        return missing("B", "B and SFB, or B_ptrs and SFB_ptrs, or all four");
    }
    if has(InPort::BPtrs) && a.n.is_none_or(|n| n < 1) {
        let given = a.n.map_or("no n".into(), |n| format!("n {n}"));
        return Err(Error::new(
            ErrorCode::GemmShape,
            given,
            "the columns of B, which pointers do not tell (rule 3 of facts §9.2)",
        ));
    }
    let ports = node.inputs.values().chain(node.outputs.values());
    if let Some(t) = ports.map(|id| &tensors[id.0 as usize]).find(|t| t.ragged.is_some()) {
        let given = format!("ragged tensor '{}'", t.name);
        return Err(Error::new(ErrorCode::BadTensor, given, "dense operands; experts are told apart by Padded_offsets"));
    }
    Ok(())
}

/// Operands that the operation does not have.
pub(in crate::graph) fn foreign_ports(node: &Node) -> Result<()> {
    use {InPort as I, OutPort as O};
    let input = node.inputs.keys().find(|p| {
        !matches!(
            p,
            I::A | I::B | I::C | I::Sfa | I::Sfb | I::BPtrs | I::SfbPtrs | I::PaddedOffsets | I::Alpha | I::Prob | I::NormConst
        )
    });
    let output = node.outputs.keys().find(|p| {
        !matches!(
            p,
            O::DRow | O::DCol | O::DSrelu | O::DProb | O::DBias | O::Amax | O::SfdRow | O::SfdCol | O::SfdColDSrelu | O::Status
        )
    });
    match input.map(|p| p.json()).or(output.map(|p| p.json())) {
        None => Ok(()),
        Some(port) => {
            let given = format!("{port} on {}", node.op.tag());
            Err(Error::new(ErrorCode::BadAttribute, given, "operands of the operation only"))
        }
    }
}

pub(super) fn scale_group(v: &View<'_>) -> Fault {
    let has = [v.output(OutPort::SfdRow).is_some(), v.output(OutPort::SfdCol).is_some(), v.input(InPort::NormConst).is_some()];
    let names = ["SFD_row", "SFD_col", "Norm_const"];
    let absent = names.iter().zip(has).find(|(_, h)| !h)?.0;
    let present = names.iter().zip(has).find(|(_, h)| *h)?.0;
    Some((format!("{present} without {absent}"), "SFD_row, SFD_col and Norm_const together, or none".into()))
}

pub(super) fn missing_scales(v: &View<'_>) -> Fault {
    let found = v.quantised() && v.output(OutPort::SfdRow).is_none();
    found.then(|| ("FP8 results without generated scales".into(), "SFD_row, SFD_col and Norm_const".into()))
}

pub(super) fn idle_outputs(v: &View<'_>) -> Fault {
    if v.quantised() {
        return None;
    }
    let sfd = v.output(OutPort::SfdRow).or(v.output(OutPort::SfdColDSrelu))?;
    Some((format!("{} beside results that are not FP8", named("scales", sfd)), "generated scales with FP8 results only".into()))
}

pub(super) fn srelu_scales(v: &View<'_>) -> Fault {
    let (d, sf) = (v.output(OutPort::DSrelu).is_some(), v.output(OutPort::SfdColDSrelu).is_some());
    (v.quantised() && d != sf).then(|| {
        let given = if d { "D_srelu without SFD_col_D_srelu" } else { "SFD_col_D_srelu without D_srelu" };
        (given.into(), "both with FP8 results, or neither".into())
    })
}
