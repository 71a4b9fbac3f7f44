//! Element types: rules 5 to 10.

use super::view::{dtype, named, payload, View};
use super::Fault;
use crate::graph::{InPort, OutPort};
use crate::DType;

pub(super) fn input_types(v: &View<'_>) -> Fault {
    let a = v.input(InPort::A)?;
    if !matches!(v.ab(), DType::F4E2M1 | DType::F8E4M3 | DType::F8E5M2) {
        return Some((
            format!("{} of type {}", named("A", a), dtype(a).json()),
            "FP4_E2M1, UINT8 (packed), FP8_E4M3 or FP8_E5M2".into(),
        ));
    }
    let declared = v.input(InPort::B).map(payload).filter(|_| !v.ptrs());
    // A pool's own type is free: it is a range of bytes.
    let b = declared.or(v.a.b_dtype.map(|d| if d == DType::U8 { DType::F4E2M1 } else { d }))?;
    (b != v.ab()).then(|| (format!("B of type {} and A of type {}", b.json(), v.ab().json()), "one type of A and B".into()))
}

pub(super) fn scale_types(v: &View<'_>) -> Fault {
    let sfa = v.input(InPort::Sfa)?;
    if !matches!(dtype(sfa), DType::F8E8M0 | DType::F8E4M3) {
        return Some((format!("{} of type {}", named("SFA", sfa), dtype(sfa).json()), "FP8_E8M0 or FP8_E4M3".into()));
    }
    let others = [
        ("SFB", v.input(InPort::Sfb).filter(|_| !v.ptrs())),
        ("SFD_row", v.output(OutPort::SfdRow)),
        ("SFD_col", v.output(OutPort::SfdCol)),
        ("SFD_col_D_srelu", v.output(OutPort::SfdColDSrelu)),
    ];
    let (port, t) = others.into_iter().find_map(|(port, t)| Some((port, t.filter(|t| dtype(t) != dtype(sfa))?)))?;
    Some((format!("{} of type {}", named(port, t), dtype(t).json()), format!("SFA's type, {}", dtype(sfa).json())))
}

pub(super) fn scale_blocks(v: &View<'_>) -> Fault {
    let (vec, sf) = (v.a.sf_vec_size, v.input(InPort::Sfa).map(dtype)?);
    match vec {
        32 if sf == DType::F8E4M3 => Some(("sf_vec_size 32 with E4M3 scales".into(), "16 with E4M3 scales".into())),
        16 if v.ab() != DType::F4E2M1 => Some((format!("sf_vec_size 16 with {} inputs", v.ab()), "32 with FP8 inputs".into())),
        16 | 32 => None,
        _ => Some((format!("sf_vec_size {vec}"), "16 or 32".into())),
    }
}

pub(super) fn fixed_types(v: &View<'_>) -> Fault {
    if let Some(d) = v.node.compute_dtype.filter(|d| !matches!(d, DType::F32 | DType::F64)) {
        return Some((format!("compute type {}", d.json()), "FLOAT, or DOUBLE for the CPU".into()));
    }
    let inputs = [
        (InPort::PaddedOffsets, DType::I32),
        (InPort::BPtrs, DType::I64),
        (InPort::SfbPtrs, DType::I64),
        (InPort::Alpha, DType::F32),
        (InPort::Prob, DType::F32),
        (InPort::NormConst, DType::F32),
    ];
    let outputs =
        [(OutPort::DProb, DType::F32), (OutPort::DBias, DType::BF16), (OutPort::Amax, DType::F32), (OutPort::Status, DType::I32)];
    let all =
        inputs.iter().map(|(p, d)| (p.json(), v.input(*p), *d)).chain(outputs.iter().map(|(p, d)| (p.json(), v.output(*p), *d)));
    let (port, t, want) = all.into_iter().find_map(|(p, t, d)| Some((p, t.filter(|t| dtype(t) != d)?, d)))?;
    Some((format!("{} of type {}", named(port, t), dtype(t).json()), want.json().into()))
}

pub(super) fn c_type(v: &View<'_>) -> Fault {
    let c = v.input(InPort::C)?;
    let ok = matches!(dtype(c), DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2);
    (!ok)
        .then(|| (format!("{} of type {}", named("C", c), dtype(c).json()), "FLOAT, HALF, BFLOAT16, FP8_E4M3 or FP8_E5M2".into()))
}

pub(super) fn result_types(v: &View<'_>) -> Fault {
    let row = v.output(OutPort::DRow)?;
    let fp4 = v.ab() == DType::F4E2M1;
    let ok = if fp4 { matches!(dtype(row), DType::F16 | DType::BF16 | DType::F32) } else { dtype(row).is_fp8() };
    if !ok {
        let want = if fp4 { "HALF, BFLOAT16 or FLOAT with FP4 inputs" } else { "FP8_E4M3 or FP8_E5M2 with FP8 inputs" };
        return Some((format!("{} of type {}", named("D_row", row), dtype(row).json()), want.into()));
    }
    let others = [("D_col", v.output(OutPort::DCol)), ("D_srelu", v.output(OutPort::DSrelu))];
    let (port, t) = others.into_iter().find_map(|(p, t)| Some((p, t.filter(|t| dtype(t) != dtype(row))?)))?;
    Some((format!("{} of type {}", named(port, t), dtype(t).json()), format!("D_row's type, {}", dtype(row).json())))
}
