//! Extents and limits: rules 2, 3, 19 to 21.

use super::layout::n_major;
use super::view::{dtype, named, packing, View};
use super::Fault;
use crate::graph::{BMajor, InPort, OutPort, Tensor};
use crate::DType;
use frostgraph_engines::grouped_gemm::{scales, MAX_EXPERTS, ROW_ALIGN};

pub(super) fn contraction(v: &View<'_>) -> Fault {
    let b = v.input(InPort::B).filter(|b| !v.ptrs() && b.dim.len() == 3)?;
    let k = b.dim[1].saturating_mul(packing(Some(b)));
    (k != v.k()).then(|| (format!("K {k} of B and {} of A", v.k()), "one K".into()))
}

pub(super) fn shapes(v: &View<'_>) -> Fault {
    let (m, n, k, l, vec) = (v.m(), v.n(), v.k(), v.experts(), v.a.sf_vec_size);
    let a_k = v.extent(InPort::A, 1);
    let plain: [(&str, Option<&Tensor>, &[i64]); 15] = [
        ("A", v.input(InPort::A), &[m, a_k, 1]),
        ("B", v.input(InPort::B).filter(|_| !v.ptrs()), &[n, a_k, l]),
        ("C", v.input(InPort::C), &[m, n, 1]),
        ("Padded_offsets", v.input(InPort::PaddedOffsets), &[l]),
        ("B_ptrs", v.input(InPort::BPtrs), &[l]),
        ("SFB_ptrs", v.input(InPort::SfbPtrs), &[l]),
        ("Alpha", v.input(InPort::Alpha), &[l]),
        ("Prob", v.input(InPort::Prob), &[m, 1, 1]),
        ("Norm_const", v.input(InPort::NormConst), &[1]),
        ("D_row", v.output(OutPort::DRow), &[m, n, 1]),
        ("D_col", v.output(OutPort::DCol), &[m, n, 1]),
        ("D_srelu", v.output(OutPort::DSrelu), &[m, n, 1]),
        ("dProb", v.output(OutPort::DProb), &[m, 1, 1]),
        ("dBias", v.output(OutPort::DBias), &[l, n, 1]),
        ("Amax", v.output(OutPort::Amax), &[l, 1]),
    ];
    for (port, t, want) in plain {
        if let Some(t) = t.filter(|t| t.dim != want) {
            return Some((format!("{} with extents {:?}", named(port, t), t.dim), format!("extents {want:?}")));
        }
    }
    if let Some(t) = v.output(OutPort::Status).filter(|t| t.dim != [1]) {
        return Some((format!("{} with extents {:?}", named("Status", t), t.dim), "extents [1]".into()));
    }
    let atoms = [
        ("SFA", v.input(InPort::Sfa), scales::extents(m, k, vec, 1)),
        ("SFB", v.input(InPort::Sfb).filter(|_| !v.ptrs()), scales::extents(n, k, vec, l)),
        ("SFD_row", v.output(OutPort::SfdRow), scales::extents(m, n, 32, 1)),
        ("SFD_col", v.output(OutPort::SfdCol), scales::extents(n, m, 32, 1)),
        ("SFD_col_D_srelu", v.output(OutPort::SfdColDSrelu), scales::extents(n, m, 32, 1)),
    ];
    for (port, t, want) in atoms {
        let (Some(t), Some(view)) = (t, want) else { continue };
        let physical = scales::physical(&view);
        if t.dim != view && t.dim != physical {
            let given = format!("{} with extents {:?}", named(port, t), t.dim);
            return Some((given, format!("extents {view:?} or, in memory order, {physical:?}")));
        }
    }
    None
}

pub(super) fn row_align(v: &View<'_>) -> Fault {
    (v.a.m_aligned != ROW_ALIGN).then(|| (format!("m_aligned {}", v.a.m_aligned), ROW_ALIGN.to_string()))
}

pub(super) fn extent_bytes(v: &View<'_>) -> Fault {
    let bits = |d: DType| i64::from(d.bits());
    let n_major = if v.ptrs() { v.a.b_major == BMajor::N } else { v.input(InPort::B).is_some_and(n_major) };
    let d = v.output(OutPort::DRow).map_or(DType::F32, dtype);
    let contiguous = [
        ("K of A", v.k(), v.ab()),
        (if n_major { "N of B" } else { "K of B" }, if n_major { v.n() } else { v.k() }, v.ab()),
        ("N of D", v.n(), d),
    ];
    let (what, extent, d) = contiguous.into_iter().find(|(_, extent, d)| extent.saturating_mul(bits(*d)) % 128 != 0)?;
    Some((format!("{what} {extent} of {d}"), format!("multiples of {} elements: 16 bytes", 128 / bits(d))))
}

pub(super) fn experts(v: &View<'_>) -> Fault {
    (v.experts() > MAX_EXPERTS).then(|| (format!("{} experts", v.experts()), format!("at most {MAX_EXPERTS}")))
}
