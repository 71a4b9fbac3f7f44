//! Layouts: rules 4 and 14.

use super::view::{named, View};
use super::Fault;
use crate::graph::{BMajor, InPort, OutPort, Tensor};
use crate::DType;

/// Whether strides are those of a compact tensor with these axes from outermost to innermost.
fn compact_in(t: &Tensor, order: &[usize]) -> bool {
    let mut span: i64 = 1;
    order.iter().rev().all(|&axis| {
        let ok = t.dim[axis] == 1 || t.stride[axis] == span;
        span = span.saturating_mul(t.dim[axis]);
        ok
    })
}

/// Whether B is n-major; of a dense B of three extents.
pub(crate) fn n_major(b: &Tensor) -> bool {
    !compact_in(b, &[2, 0, 1]) && compact_in(b, &[2, 1, 0])
}

pub(super) fn layouts(v: &View<'_>) -> Fault {
    let wrong = |port: &str, t: &Tensor, want: &str| {
        Some((format!("{} with strides {:?} over {:?}", named(port, t), t.stride, t.dim), want.to_string()))
    };
    let a = v.input(InPort::A)?;
    if !compact_in(a, &[2, 0, 1]) {
        return wrong("A", a, "strides (K, 1, M·K): k-major");
    }
    if let Some(b) = v.input(InPort::B).filter(|_| !v.ptrs()) {
        if !compact_in(b, &[2, 0, 1]) && !compact_in(b, &[2, 1, 0]) {
            return wrong("B", b, "strides (K, 1, N·K), or (1, N, N·K) for FP8");
        }
    }
    let wide = [
        ("C", v.input(InPort::C)),
        ("D_row", v.output(OutPort::DRow)),
        ("D_col", v.output(OutPort::DCol)),
        ("D_srelu", v.output(OutPort::DSrelu)),
    ];
    for (port, t) in wide {
        if let Some(t) = t.filter(|t| !compact_in(t, &[2, 0, 1])) {
            return wrong(port, t, "strides (N, 1, M·N): n-major");
        }
    }
    let inputs = [InPort::Sfa, InPort::Sfb, InPort::PaddedOffsets, InPort::BPtrs, InPort::SfbPtrs, InPort::Alpha, InPort::Prob];
    let outputs =
        [OutPort::SfdRow, OutPort::SfdCol, OutPort::SfdColDSrelu, OutPort::DProb, OutPort::DBias, OutPort::Amax, OutPort::Status];
    let rest = inputs.iter().map(|&p| (p.json(), v.input(p))).chain(outputs.iter().map(|&p| (p.json(), v.output(p))));
    for (port, t) in rest {
        let Some(t) = t.filter(|_| !(v.ptrs() && port == "SFB")) else { continue };
        let view = t.dim.len() == 6 && t.dim[..2] == [32, 4] && t.dim[3] == 4;
        let axes: Vec<usize> = (0..t.dim.len()).collect();
        let ok = if view { compact_in(t, &[5, 2, 4, 0, 1, 3]) } else { compact_in(t, &axes) };
        if !ok {
            return wrong(port, t, if view { "the strides of scale atoms" } else { "row-major strides" });
        }
    }
    // A pool is a range of bytes.
    let pools = [("B", v.input(InPort::B)), ("SFB", v.input(InPort::Sfb))];
    for (port, t) in pools {
        let Some(t) = t.filter(|_| v.ptrs()) else { continue };
        let axes: Vec<usize> = (0..t.dim.len()).collect();
        if !compact_in(t, &axes) {
            return wrong(port, t, "row-major strides: a pool is a range of bytes");
        }
    }
    None
}

pub(super) fn b_major(v: &View<'_>) -> Fault {
    let by_stride = v.input(InPort::B).is_some_and(|b| !v.ptrs() && n_major(b));
    let by_attribute = v.ptrs() && v.a.b_major == BMajor::N;
    (v.ab() == DType::F4E2M1 && (by_stride || by_attribute)).then(|| ("FP4 with n-major B".into(), "k-major B with FP4".into()))
}
