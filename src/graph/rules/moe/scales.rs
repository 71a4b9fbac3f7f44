//! Block scales.

use super::view::{dtype, named, View};
use super::Fault;
use crate::graph::infer::compact;
use crate::graph::{InPort, Reordering};
use crate::DType;

pub(super) fn scales(v: &View<'_>) -> Fault {
    let d = v.input(InPort::Token).map(dtype)?;
    let (sa, sb) = match (v.input(InPort::Sfa), v.input(InPort::Sfb)) {
        (None, None) if d == DType::F4E2M1 => {
            return Some(("FP4 values without scales".into(), "scales of both operands".into()))
        }
        (None, None) => return None,
        (Some(sa), Some(sb)) => (sa, sb),
        (Some(_), None) | (None, Some(_)) => {
            return Some(("scales of one operand only".into(), "scales of both operands, or of none".into()));
        }
    };
    if d != DType::F4E2M1 && !d.is_fp8() {
        return Some((format!("block scales of {} operands", d.json()), "scales of FP8 or FP4 operands".into()));
    }
    let sf = dtype(sa);
    if !matches!(sf, DType::F8E8M0 | DType::F8E4M3) || dtype(sb) != sf {
        let given = format!("scales of types {} and {}", sf.json(), dtype(sb).json());
        return Some((given, "FP8_E8M0 of both, or FP8_E4M3 of both".into()));
    }
    let expected = match (v.a.sf_vec_size, sf, d) {
        (32, DType::F8E4M3, _) => "16 values a scale with FP8_E4M3 scales",
        (16, _, DType::F4E2M1) | (32, _, _) => return None,
        (16, _, _) => "32 values a scale with FP8 operands",
        _ => "16 or 32 values a scale",
    };
    Some((format!("{} values a scale", v.a.sf_vec_size), expected.into()))
}

pub(super) fn scale_shapes(v: &View<'_>) -> Fault {
    let vec = v.a.sf_vec_size.max(1);
    let up = |x: i64, by: i64| (x.max(0) as u64).div_ceil(by as u64).saturating_mul(by as u64) as i64;
    let blocks = up(v.k(), vec) / vec;
    for (port, rows) in [(InPort::Sfa, v.tokens()), (InPort::Sfb, v.n())] {
        let Some(t) = v.input(port) else { continue };
        let what = if port == InPort::Sfa { "scales of the token" } else { "scales of the weights" };
        let atoms = t.reordering == Reordering::F8_128x4;
        let (rows, blocks) = if atoms { (up(rows, 128), up(blocks, 4)) } else { (rows, blocks) };
        let (want, order) =
            if port == InPort::Sfa { ([1, rows, blocks], [0, 1, 2]) } else { ([v.experts(), blocks, rows], [0, 2, 1]) };
        if t.dim != want {
            let given = format!("{} with extents {:?}", named(what, t), t.dim);
            let kind = if atoms { ": whole atoms of 128 by 4" } else { "" };
            return Some((given, format!("extents {want:?}{kind}")));
        }
        let compact = compact(&t.dim, &order).ok();
        let same = |a: usize| t.dim[a] == 1 || compact.as_ref().is_some_and(|c| c[a] == t.stride[a]);
        if atoms && !(0..3).all(same) {
            let given = format!("{} with strides {:?} over {:?}", named(what, t), t.stride, t.dim);
            return Some((given, "compact strides with the blocks innermost: atoms are contiguous".into()));
        }
    }
    None
}
