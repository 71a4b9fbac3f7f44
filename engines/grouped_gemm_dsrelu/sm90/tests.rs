//! The Hopper lowering: against its kernels' text, as golden plans, and what it refuses.

use super::form::Form;
use crate::grouped_gemm::testing::Case;
use crate::grouped_gemm::Weights;
use crate::grouped_gemm_dsrelu::{rows::ROWS, FAMILY};
use crate::sdpa::{abi, goldens};
use crate::{Arg, DType, DeclineCode, Knob, Knobs, Launch, Row, Step, Target};

fn row() -> &'static Row {
    &ROWS[0]
}

fn hopper() -> Target {
    Target::describe(90).expect("a known device")
}

/// Name and problem.
fn cases() -> Vec<(&'static str, Case)> {
    let plain = Case { dbias: false, ..Case::default() };
    vec![
        ("mxfp8", Case::mxfp8_uneven()),
        ("mxfp8_everything", Case::mxfp8_everything()),
        ("nvfp4_amax", Case { dbias: false, ..Case::nvfp4() }),
        (
            "mxfp4_16_dbias",
            Case { sf: DType::F8E8M0, c: DType::F8E4M3, d: DType::F32, dbias: true, amax: false, ..Case::nvfp4() },
        ),
        (
            "mxfp4_32_f16",
            Case {
                sf: DType::F8E8M0,
                sf_vec: 32,
                c: DType::F16,
                d: DType::F16,
                dbias: false,
                deterministic: true,
                ..Case::nvfp4()
            },
        ),
        (
            "mxfp8_pool_n_major_srelu",
            Case { n: 176, weights: Weights::Pool, b_n_major: true, d_srelu: true, amax: true, status: true, ..plain },
        ),
        ("nvfp4_addresses_srelu", Case { n: 136, weights: Weights::Addresses, d_srelu: true, dbias: false, ..Case::nvfp4() }),
    ]
}

/// The knobs of every form that serves a problem, and their suffix in names.
fn forms(case: &Case) -> Vec<(&'static str, Knobs)> {
    let served = Form::ALL.into_iter().filter(|form| form.serves(case.facts().expect_grouped_gemm()));
    let name = |form| match form {
        Form::Single => "",
        Form::Pair => "_pair",
    };
    served.map(|form| (name(form), Knobs::new(&[(Knob::TileCgaM, form.cluster())]))).collect()
}

fn launches(case: &Case, knobs: &Knobs) -> Vec<Launch> {
    let plan = (row().lower)(&case.facts(), knobs, &hopper()).expect("an accepted problem lowers");
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
    let all: Vec<Launch> =
        cases().iter().flat_map(|(_, c)| forms(c).into_iter().flat_map(|(_, k)| launches(c, &k)).collect::<Vec<_>>()).collect();
    abi::check_parameters(&all, super::SOURCES);
    abi::check_switches(&all);
}

/// Pointers that main writes or reads in every configuration.
#[test]
fn what_every_configuration_uses_is_never_null() {
    for ((name, case), (form, knobs)) in cases().into_iter().flat_map(|c| forms(&c.1).into_iter().map(move |f| (c.clone(), f))) {
        for l in launches(&case, &knobs) {
            for (arg_name, arg) in l.names.iter().zip(&l.args) {
                let (listed, pool) = (case.weights != Weights::Dense, case.weights == Weights::Pool);
                let optional = match *arg_name {
                    "norm_const" | "sfd_row" | "sfd_col" => !case.quantised(),
                    "amax" => !case.amax,
                    "status" => !case.status,
                    "d_srelu" => !case.d_srelu,
                    "sfd_col_d_srelu" => !case.d_srelu || !case.quantised(),
                    "dbias" | "partial" => !case.dbias,
                    "part_count" => form.is_empty(),
                    "slots" => !case.deterministic,
                    "dprob" => (l.name == "prep" && case.deterministic) || (l.name == "finish" && !case.deterministic),
                    "b" => !pool,
                    "b_ptrs" | "sfb_ptrs" | "maps" | "sfb_at" => !listed,
                    // prep copies a map where there are lists and reads the scales of either kind; main has lists or tensors.
                    "map_b" => listed != (l.name == "prep"),
                    "sfb" => {
                        if l.name == "prep" {
                            listed && !pool
                        } else {
                            listed
                        }
                    }
                    _ => false,
                };
                assert_eq!(matches!(arg, Arg::Null | Arg::NoMap), optional, "{name}{form} {}: {arg_name}", l.name);
            }
        }
    }
}

#[test]
fn plans_are_the_goldens() {
    let all = cases().into_iter().flat_map(|c| forms(&c.1).into_iter().map(move |f| (c.clone(), f)));
    goldens::check_texts(all.map(|((name, case), (form, knobs))| {
        assert_eq!((FAMILY.mismatch)(row(), &case.facts(), &knobs, &hopper()), None, "{name}{form}");
        let plan = (row().lower)(&case.facts(), &knobs, &hopper()).expect("a plan");
        (format!("grouped_gemm_dsrelu_{name}{form}.launch"), format!("{} {} on sm_90\n{plan}", row().id, row().name))
    }));
}

/// What the kernels cannot do is a decline with its fact; the CPU row serves it.
#[test]
fn refusals_by_fact() {
    let plain = Case { dbias: false, ..Case::default() };
    let refused = [
        (Case { n: 168, ..plain.clone() }, DeclineCode::Geometry, "N=168"),
        (Case { n: 40, c: DType::F8E4M3, ..Case::nvfp4() }, DeclineCode::Geometry, "N=40"),
        (Case { k: 80, ..Case { dbias: false, ..Case::nvfp4() } }, DeclineCode::Geometry, "K=80"),
        (Case { double: true, ..plain.clone() }, DeclineCode::Feature, "feature=f64 accumulation"),
    ];
    for (case, code, fact) in refused {
        let decline = (FAMILY.mismatch)(row(), &case.facts(), &Knobs::NONE, &hopper()).expect("a decline");
        assert_eq!((decline.code, decline.fact.as_str()), (code, fact), "{decline}");
    }
    for case in [plain.clone(), Case { d_srelu: true, dbias: false, ..Case::nvfp4() }] {
        let pair = Knobs::new(&[(Knob::TileCgaM, 2)]);
        let decline = (FAMILY.mismatch)(row(), &case.facts(), &pair, &hopper()).expect("a decline");
        assert_eq!((decline.code, decline.fact.as_str()), (DeclineCode::Knob, "TILE_CGA_M=2"), "{decline}");
        assert_eq!((FAMILY.mismatch)(row(), &case.facts(), &Knobs::NONE, &hopper()), None, "single CTAs take it");
    }
    let elsewhere = Target::describe(100).expect("a known device");
    let decline = (FAMILY.mismatch)(row(), &plain.facts(), &Knobs::NONE, &elsewhere).expect("a decline");
    assert_eq!(decline.code, DeclineCode::Arch);
}
