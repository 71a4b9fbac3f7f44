//! The CPU row against the f64 oracle and by hand: modes, forms of offsets, types, scales, layouts, faults.

use super::oracle::evaluate;
use super::routing::Status;
use super::testing::Case;
use super::{MoeMode, ScalePlace, FAMILY};
use crate::grouped_gemm::oracle::element;
use crate::{row_by_name, DType, DeclineCode, Knobs, Target, Uid};
use std::collections::BTreeMap;

type Buffers = BTreeMap<Uid, Vec<u8>>;

/// Every element within rounding of the oracle, everything that no routed row leads to untouched.
fn check(case: &Case, inputs: &Buffers, results: &Buffers) -> usize {
    let f = case.moe();
    let o = evaluate(&f, &inputs.iter().map(|(u, b)| (*u, &b[..])).collect()).expect("an oracle");
    let (n, row) = (case.n as usize, (case.n + case.gap) as usize);
    let out = &results[&21];
    let bytes = case.output.bytes().expect("whole bytes") as usize;
    let poison =
        |from: usize, to: usize| out[(from * bytes).min(out.len())..(to * bytes).min(out.len())].iter().all(|b| *b == 0xa5);
    let rounding = match case.output {
        DType::BF16 => 2f64.powi(-8),
        DType::F16 => 2f64.powi(-11),
        _ => 2f64.powi(-23),
    };
    let mut written = 0;
    for (r, want) in o.rows.iter().enumerate() {
        assert!(poison(r * row + n, (r + 1) * row), "the gap behind row {r} was written");
        let Some(want) = want else {
            assert!(poison(r * row, r * row + n), "row {r} belongs to nobody and was written: {case:?}");
            continue;
        };
        written += 1;
        for (c, &want) in want.iter().enumerate() {
            let got = element(case.output, out, r * row + c);
            // Single-precision sums: every term is rounded at most once a step.
            let slack = rounding * want.abs() + if case.double { 1e-12 } else { 3e-6 } * o.sizes[r][c] + 1e-30;
            assert!((got - want).abs() <= slack, "({r}, {c}): {got} and not {want}, {case:?}");
        }
    }
    if let Some(status) = results.get(&22) {
        assert_eq!(*status, o.status.to_ne_bytes());
    }
    written
}

fn run(case: &Case, seed: u64) -> usize {
    let inputs = case.inputs(seed);
    let results = case.run(&inputs).expect("a run");
    check(case, &inputs, &results)
}

#[test]
fn every_mode_and_form_of_offsets() {
    for mode in MoeMode::ALL {
        for (offsets, explicit_end, rows) in [
            (vec![0, 141, 141], false, 300),
            (vec![0, 141, 141, 280], true, 280),
            (vec![0, 0, 0], false, 300),
            (vec![0, 300, 300, 300], true, 300),
            (vec![0, 1, 2, 3], true, 3),
            (vec![7, 9, 200, 201], true, 194),
            // Two batches of three experts: group g has the weights of expert g % 3.
            (vec![0, 10, 20, 150, 150, 290], false, 300),
            (vec![0, 10, 20, 150, 150, 290, 299], true, 299),
        ] {
            for wide_offsets in [false, true] {
                let case = Case { mode, offsets: offsets.clone(), explicit_end, wide_offsets, ..Case::default() };
                assert_eq!(run(&case, 1), rows, "{case:?}");
            }
        }
    }
    // More or fewer tokens than routed rows, as gathering from (S, K) has them.
    for tokens in [1, 75, 600] {
        assert_eq!(run(&Case { mode: MoeMode::Gather, tokens, ..Case::default() }, 2), 300);
    }
    for top_k in [1, 3, 300] {
        assert_eq!(run(&Case { mode: MoeMode::Scatter, top_k, ..Case::default() }, 3), 300);
    }
    assert_eq!(run(&Case { experts: 1, offsets: vec![0], ..Case::default() }, 3), 300);
}

#[test]
fn every_type_of_operands_and_output() {
    for input in [DType::BF16, DType::F16, DType::F32, DType::F8E4M3, DType::F8E5M2] {
        for output in [DType::BF16, DType::F16, DType::F32] {
            run(&Case { input, output, ..Case::default() }, 4);
        }
    }
}

#[test]
fn block_scales_in_atoms_and_in_rows() {
    let kinds = [
        (DType::F8E4M3, DType::F8E8M0, 32),
        (DType::F8E5M2, DType::F8E8M0, 32),
        (DType::F4E2M1, DType::F8E4M3, 16),
        (DType::F4E2M1, DType::F8E8M0, 16),
        (DType::F4E2M1, DType::F8E8M0, 32),
    ];
    for (input, sf, vec) in kinds {
        for place in [ScalePlace::Atoms, ScalePlace::Strided] {
            for mode in MoeMode::ALL {
                run(&Case { input, scales: Some((sf, vec)), place, mode, output: DType::F32, ..Case::default() }, 5);
            }
        }
        // K of several atoms and a last block that ends early.
        run(&Case { input, scales: Some((sf, vec)), k: 200, n: 130, ..Case::default() }, 6);
    }
}

#[test]
fn strides_gaps_and_double_sums() {
    for gap in [0, 8] {
        for n_major in [false, true] {
            run(&Case { gap, n_major, ..Case::default() }, 7);
        }
    }
    run(&Case { double: true, output: DType::F32, input: DType::F32, ..Case::default() }, 8);
    run(&Case { double: true, output: DType::F32, ..Case::mxfp8() }, 8);
}

/// What a large term hides in single precision and double precision keeps.
#[test]
fn double_accumulation_keeps_what_single_loses() {
    let base = Case {
        tokens: 1,
        routed: 1,
        n: 1,
        k: 3,
        experts: 1,
        offsets: vec![0],
        input: DType::F32,
        output: DType::F32,
        ..Case::default()
    };
    let mut inputs = base.inputs(1);
    inputs.insert(1, [2f32.powi(26), 1.0, -(2f32.powi(26))].iter().flat_map(|x| x.to_ne_bytes()).collect());
    inputs.insert(2, [1f32; 3].iter().flat_map(|x| x.to_ne_bytes()).collect());
    let of = |double: bool| {
        let out = Case { double, ..base.clone() }.run(&inputs).expect("a run");
        element(DType::F32, &out[&21], 0)
    };
    assert_eq!([of(true), of(false)], [1.0, 0.0]);
}

/// Two tokens, two experts, by hand: token 0 is (1, 2), token 1 is (3, 4); expert 0 doubles the first, expert 1 the second coordinate.
#[test]
fn routing_by_hand() {
    let base = Case {
        tokens: 2,
        routed: 4,
        n: 1,
        k: 2,
        experts: 2,
        offsets: vec![0, 1, 4],
        explicit_end: true,
        mode: MoeMode::Gather,
        input: DType::F32,
        output: DType::F32,
        ..Case::default()
    };
    let floats = |v: &[f32]| v.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
    let ints = |v: &[i32]| v.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
    let mut inputs = base.inputs(1);
    inputs.insert(1, floats(&[1.0, 2.0, 3.0, 4.0]));
    inputs.insert(2, floats(&[2.0, 0.0, 0.0, 2.0]));
    inputs.insert(6, ints(&[1, 0, 1, 0]));
    let out = base.run(&inputs).expect("a run");
    assert_eq!(out[&21], floats(&[6.0, 4.0, 8.0, 4.0]), "row 0 is token 1 under expert 0");
    // Scatter: row r goes to token_index * 2 + token_ks.
    let scatter = Case { mode: MoeMode::Scatter, tokens: 4, ..base };
    let mut inputs = scatter.inputs(1);
    inputs.insert(1, floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]));
    inputs.insert(2, floats(&[2.0, 0.0, 0.0, 2.0]));
    inputs.insert(6, ints(&[1, 0, 1, 0]));
    inputs.insert(7, ints(&[1, 1, 0, 0]));
    let out = scatter.run(&inputs).expect("a run");
    assert_eq!(out[&21], floats(&[16.0, 8.0, 12.0, 2.0]));
}

#[test]
fn faulty_offsets_are_reported_and_nothing_of_theirs_is_written() {
    for (offsets, explicit_end, kinds, group, rows) in [
        (vec![0, 141, 100], false, Status::DECREASING, 1, 141),
        (vec![0, 141, 301], false, Status::BEYOND, 1, 141),
        (vec![-5, 141, 141], false, Status::DECREASING, 0, 0),
        (vec![0, 10, 200, 301], true, Status::BEYOND, 2, 200),
        (vec![400, 400, 400, 400], true, Status::BEYOND, 0, 0),
    ] {
        for mode in MoeMode::ALL {
            let silent = Case { offsets: offsets.clone(), explicit_end, mode, ..Case::default() };
            let error = silent.run(&silent.inputs(12)).expect_err("no word to write to");
            assert!(error.given.contains(&format!("group {group}")), "{error}");
            let case = Case { status: true, ..silent };
            let inputs = case.inputs(12);
            let results = case.run(&inputs).expect("a run");
            assert_eq!(results[&22], (kinds | (group + 1)).to_ne_bytes());
            assert_eq!(check(&case, &inputs, &results), rows);
        }
    }
    let case = Case { status: true, ..Case::default() };
    assert_eq!(case.run(&case.inputs(12)).expect("a run")[&22], [0; 4]);
}

#[test]
fn indices_out_of_range_are_reported_and_their_rows_left_alone() {
    for (mode, uid, bad) in [
        (MoeMode::Gather, 6, -1),
        (MoeMode::Gather, 6, 300),
        (MoeMode::Gather, 6, i32::MIN),
        (MoeMode::Scatter, 6, 150),
        (MoeMode::Scatter, 6, i32::MAX),
        (MoeMode::Scatter, 7, 2),
        (MoeMode::Scatter, 7, -1),
    ] {
        let silent = Case { mode, ..Case::default() };
        let mut inputs = silent.inputs(13);
        inputs.get_mut(&uid).expect("indices")[40..44].copy_from_slice(&bad.to_ne_bytes());
        assert!(silent.run(&inputs).expect_err("no word to write to").given.contains("out of range"));
        let case = Case { status: true, ..silent };
        let results = case.run(&inputs).expect("a run");
        assert_eq!(results[&22], Status::INDEX.to_ne_bytes());
        assert_eq!(check(&case, &inputs, &results), 299);
        // Of a row that belongs to no group the index is never looked at.
        let short = Case { offsets: vec![0, 3, 9, 10], explicit_end: true, ..case };
        inputs.insert(5, short.inputs(13)[&5].clone());
        let results = short.run(&inputs).expect("a run");
        assert_eq!((&results[&22][..], check(&short, &inputs, &results)), (&[0u8; 4][..], 10));
    }
}

#[test]
fn any_number_of_threads_gives_equal_bits() {
    let case = Case { mode: MoeMode::Scatter, ..Case::mxfp8() };
    let inputs = case.inputs(14);
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a pool").install(|| case.run(&inputs));
    let four = rayon::ThreadPoolBuilder::new().num_threads(4).build().expect("a pool").install(|| case.run(&inputs));
    assert_eq!(one.expect("a run"), four.expect("a run"));
}

#[test]
fn what_the_row_declines() {
    let row = row_by_name("moe_grouped_matmul_cpu").expect("a row");
    let ask = |case: &Case, knobs: &Knobs, target: &Target| {
        (FAMILY.mismatch)(row, &case.facts(), knobs, target).map(|d| (d.code, d.to_string()))
    };
    assert_eq!(ask(&Case::default(), &Knobs::NONE, &Target::Cpu), None);
    let (code, text) =
        ask(&Case { scales: Some((DType::F8E8M0, 16)), ..Case::mxfp8() }, &Knobs::NONE, &Target::Cpu).expect("a decline");
    assert_eq!(code, DeclineCode::DType);
    assert!(text.contains("token and weight are e4m3 with e8m0 scales per 16"), "{text}");
    assert_eq!(
        ask(&Case { output: DType::F8E4M3, ..Case::default() }, &Knobs::NONE, &Target::Cpu).expect("a decline").0,
        DeclineCode::DType
    );
    let h200 = Target::describe(90).expect("a device");
    assert_eq!(ask(&Case::default(), &Knobs::NONE, &h200).expect("a decline").0, DeclineCode::Arch);
    let other = crate::grouped_gemm::testing::Case::default().facts();
    assert_eq!((FAMILY.mismatch)(row, &other, &Knobs::NONE, &Target::Cpu).expect("a decline").code, DeclineCode::Operation);
    let gemm = row_by_name("grouped_gemm_dsrelu_cpu").expect("a row");
    let d = crate::grouped_gemm_dsrelu::FAMILY.mismatch;
    assert_eq!(d(gemm, &Case::default().facts(), &Knobs::NONE, &Target::Cpu).expect("a decline").code, DeclineCode::Operation);
}
