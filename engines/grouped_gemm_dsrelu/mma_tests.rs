//! The portable lowering: against its kernels' text, as golden plans, by architecture, and what it refuses.

use crate::grouped_gemm::testing::Case;
use crate::grouped_gemm::Weights;
use crate::grouped_gemm_dsrelu::{rows::ROWS, FAMILY};
use crate::sdpa::{abi, goldens};
use crate::{DType, DeclineCode, Knobs, Launch, Row, Step, Target};

fn row(name: &str) -> &'static Row {
    ROWS.iter().find(|r| r.name == name).expect("a row of the family")
}

fn target(cc: u32) -> Target {
    Target::describe(cc).expect("a known device")
}

fn cases() -> Vec<(&'static str, Case)> {
    vec![
        ("mxfp8", Case::mxfp8_uneven()),
        ("mxfp8_everything", Case { weights: Weights::Pool, ..Case::mxfp8_everything() }),
        ("nvfp4_amax_addresses", Case { dbias: false, weights: Weights::Addresses, ..Case::nvfp4() }),
        ("mxfp4", Case { sf: DType::F8E8M0, sf_vec: 32, c: DType::F16, d: DType::F16, dbias: false, ..Case::nvfp4() }),
    ]
}

fn launches(name: &str, case: &Case, cc: u32) -> Vec<Launch> {
    let row = row(name);
    assert_eq!((FAMILY.mismatch)(row, &case.facts(), &Knobs::NONE, &target(cc)), None, "{name} on sm_{cc}");
    let plan = (row.lower)(&case.facts(), &Knobs::NONE, &target(cc)).expect("an accepted problem lowers");
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
    let all: Vec<Launch> = cases().iter().flat_map(|(_, c)| launches("grouped_gemm_dsrelu_mma", c, 90)).collect();
    abi::check_parameters(&all, super::SOURCES);
    abi::check_switches(&all);
}

/// The hardware row differs in one switch.
#[test]
fn one_kernel_two_ways_to_apply_scales() {
    for (name, case) in cases() {
        let [portable, hardware] = ["grouped_gemm_dsrelu_mma", "grouped_gemm_dsrelu_sm120"].map(|row| launches(row, &case, 120));
        for (p, h) in portable.iter().zip(&hardware) {
            assert_eq!((p.grid, p.block, p.smem, &p.args), (h.grid, h.block, h.smem, &h.args), "{name}");
            let switch = |l: &Launch| l.kernel.defines.iter().find(|d| d.0 == "FG_HARDWARE").map(|d| d.1);
            assert_eq!((switch(p), switch(h)), if p.name == "main" { (Some(0), Some(1)) } else { (None, None) }, "{name}");
        }
    }
}

#[test]
fn plans_are_the_goldens() {
    let row = row("grouped_gemm_dsrelu_mma");
    goldens::check_texts(cases().into_iter().map(|(name, case)| {
        let plan = (row.lower)(&case.facts(), &Knobs::NONE, &target(90)).expect("a plan");
        (format!("grouped_gemm_dsrelu_mma_{name}.launch"), format!("{} {} on sm_90\n{plan}", row.id, row.name))
    }));
}

/// What the kernel does not do is a decline with its fact.
#[test]
fn refusals_by_fact() {
    let plain = Case { dbias: false, ..Case::default() };
    let mxfp4_16 = Case { sf: DType::F8E8M0, dbias: false, amax: false, ..Case::nvfp4() };
    let refused = [
        (Case { d_srelu: true, ..plain.clone() }, 90, DeclineCode::Feature),
        (Case { n: 176, b_n_major: true, ..plain.clone() }, 90, DeclineCode::Feature),
        (Case { n: 168, ..plain.clone() }, 90, DeclineCode::Geometry),
        (mxfp4_16, 90, DeclineCode::DType),
        (plain, 89, DeclineCode::Arch),
    ];
    for (case, cc, code) in refused {
        let row = row("grouped_gemm_dsrelu_mma");
        let decline = (FAMILY.mismatch)(row, &case.facts(), &Knobs::NONE, &target(cc)).expect("a decline");
        assert_eq!(decline.code, code, "{decline}");
    }
    let decline = (FAMILY.mismatch)(row("grouped_gemm_dsrelu_sm120"), &Case::default().facts(), &Knobs::NONE, &target(90));
    assert_eq!(decline.expect("a decline").code, DeclineCode::Arch);
}

/// Never first: on Hopper the wgmma row stands before the portable one, elsewhere the portable one before the one that was never executed.
#[test]
fn the_hardware_row_is_never_first() {
    for (cc, first) in [(90, "grouped_gemm_dsrelu_sm90"), (100, "grouped_gemm_dsrelu_mma"), (120, "grouped_gemm_dsrelu_mma")] {
        let rows: Vec<&'static Row> = ROWS.iter().collect();
        let ranked = (FAMILY.recommend)(&Case::default().facts(), &target(cc), &rows, crate::Mode::A);
        assert_eq!(ranked.first().map(|c| c.id), Some(row(first).id), "sm_{cc}");
    }
}
