//! Element types.

use super::view::{dtype, named, View};
use super::Fault;
use crate::graph::{InPort, OutPort};
use crate::DType;

pub(super) fn input_types(v: &View<'_>) -> Fault {
    let (token, weight) = (v.input(InPort::Token)?, v.input(InPort::Weight)?);
    let d = dtype(token);
    if !matches!(d, DType::F32 | DType::F16 | DType::BF16 | DType::F4E2M1) && !d.is_fp8() {
        let given = format!("{} of type {}", named("Token", token), d.json());
        return Some((given, "FLOAT, HALF, BFLOAT16, FP8_E4M3, FP8_E5M2 or FP4_E2M1".into()));
    }
    (dtype(weight) != d).then(|| {
        let given = format!("{} of type {} and Token of type {}", named("Weight", weight), dtype(weight).json(), d.json());
        (given, "one type of token and weights".into())
    })
}

pub(super) fn fixed_types(v: &View<'_>) -> Fault {
    if let Some(d) = v.node.compute_dtype.filter(|d| !matches!(d, DType::F32 | DType::F64)) {
        return Some((format!("compute type {}", d.json()), "FLOAT, or DOUBLE for the CPU".into()));
    }
    let offsets = v.input(InPort::FirstTokenOffset)?;
    if !matches!(dtype(offsets), DType::I32 | DType::I64) {
        let given = format!("{} of type {}", named("FirstTokenOffset", offsets), dtype(offsets).json());
        return Some((given, "INT32 or INT64".into()));
    }
    let all = [
        ("TokenIndex", v.input(InPort::TokenIndex)),
        ("TokenKs", v.input(InPort::TokenKs)),
        ("Status", v.output(OutPort::Status)),
    ];
    let (port, t) = all.into_iter().find_map(|(p, t)| Some((p, t.filter(|t| dtype(t) != DType::I32)?)))?;
    Some((format!("{} of type {}", named(port, t), dtype(t).json()), "INT32".into()))
}

pub(super) fn output_type(v: &View<'_>) -> Fault {
    let t = v.output(OutPort::Output)?;
    (!matches!(dtype(t), DType::F32 | DType::F16 | DType::BF16))
        .then(|| (format!("{} of type {}", named("Output", t), dtype(t).json()), "FLOAT, HALF or BFLOAT16".into()))
}
