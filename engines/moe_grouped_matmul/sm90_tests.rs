//! The Hopper lowering: against its kernels' text, as golden plans, and what it refuses.

use super::rows::ROWS;
use super::testing::Case;
use super::{MoeMode, ScalePlace, FAMILY};
use crate::sdpa::{abi, goldens};
use crate::{Arg, DType, DeclineCode, Knobs, Launch, Row, Step, Target};

fn row() -> &'static Row {
    &ROWS[0]
}

fn hopper() -> Target {
    Target::describe(90).expect("a known device")
}

/// Name and problem.
fn cases() -> Vec<(&'static str, Case)> {
    let scaled = Case { mode: MoeMode::Gather, tokens: 100, ..Case::mxfp8() };
    let large = Case { tokens: 4096, routed: 4096, n: 1024, k: 512, ..Case::default() };
    vec![
        ("none_bf16", large.clone()),
        ("gather_mxfp8", scaled.clone()),
        ("none_nvfp4_rows", Case { place: ScalePlace::Strided, ..Case::nvfp4() }),
        (
            "gather_f16_status",
            Case {
                mode: MoeMode::Gather,
                input: DType::F16,
                output: DType::F16,
                tokens: 300,
                routed: 600,
                wide_offsets: true,
                status: true,
                ..Case::default()
            },
        ),
        (
            "scatter_bf16_f32",
            Case {
                mode: MoeMode::Scatter,
                output: DType::F32,
                offsets: vec![0, 141, 141, 280],
                explicit_end: true,
                status: true,
                gap: 8,
                n_major: true,
                ..Case::default()
            },
        ),
    ]
}

fn launches(case: &Case) -> Vec<Launch> {
    let plan = (row().lower)(&case.facts(), &Knobs::NONE, &hopper()).expect("an accepted problem lowers");
    let steps = plan.steps.into_iter();
    steps
        .map(|s| match s {
            Step::Kernel(l) => l,
            Step::Host(_) => panic!("a CUDA plan"),
        })
        .collect()
}

#[test]
fn parameters_and_switches_are_those_of_the_kernels() {
    let all: Vec<Launch> = cases().iter().flat_map(|(_, c)| launches(c)).collect();
    abi::check_parameters(&all, super::sm90::SOURCES);
    abi::check_switches(&all);
}

/// Pointers that a configuration reads or writes are there.
#[test]
fn what_a_configuration_uses_is_never_null() {
    for (name, case) in cases() {
        for l in launches(&case) {
            for (arg_name, arg) in l.names.iter().zip(&l.args) {
                let unused = match *arg_name {
                    "map_a" => case.mode == MoeMode::Gather,
                    "token" => case.mode != MoeMode::Gather,
                    "index" => case.mode == MoeMode::None,
                    "ks" => case.mode != MoeMode::Scatter,
                    "scales" => case.scales.is_none(),
                    _ => false,
                };
                assert_eq!(matches!(arg, Arg::Null | Arg::NoMap), unused, "{name} {}: {arg_name}", l.name);
            }
        }
    }
}

#[test]
fn plans_are_the_goldens() {
    goldens::check_texts(cases().into_iter().map(|(name, case)| {
        assert_eq!((FAMILY.mismatch)(row(), &case.facts(), &Knobs::NONE, &hopper()), None, "{name}");
        let plan = (row().lower)(&case.facts(), &Knobs::NONE, &hopper()).expect("a plan");
        (format!("moe_grouped_matmul_{name}.launch"), format!("{} {} on sm_90\n{plan}", row().id, row().name))
    }));
}

/// What the kernels cannot do is a decline with its fact; the CPU row serves it.
#[test]
fn refusals_by_fact() {
    let d = Case::default;
    let refused = [
        (Case { n: 132, ..d() }, DeclineCode::Geometry, "N=132"),
        (Case { k: 68, ..d() }, DeclineCode::Geometry, "K=68"),
        (Case { gap: 4, ..d() }, DeclineCode::Layout, "layout=token"),
        (Case { double: true, ..d() }, DeclineCode::Feature, "feature=f64 accumulation"),
        (Case { input: DType::F32, ..d() }, DeclineCode::DType, "inputs=f32"),
        (Case { n_major: true, ..Case::mxfp8() }, DeclineCode::Layout, "layout=weight"),
        (Case { tokens: 1 << 28, k: 1 << 12, ..Case::mxfp8() }, DeclineCode::Resources, "workspace=beyond the device"),
        (Case { tokens: 1 << 31, routed: 1 << 31, ..d() }, DeclineCode::Geometry, "tokens=2147483648"),
    ];
    for (case, code, fact) in refused {
        let decline = (FAMILY.mismatch)(row(), &case.facts(), &Knobs::NONE, &hopper()).expect("a decline");
        assert_eq!((decline.code, decline.fact.as_str()), (code, fact), "{decline}");
    }
    let elsewhere = Target::describe(100).expect("a known device");
    assert_eq!((FAMILY.mismatch)(row(), &d().facts(), &Knobs::NONE, &elsewhere).expect("a decline").code, DeclineCode::Arch);
}
