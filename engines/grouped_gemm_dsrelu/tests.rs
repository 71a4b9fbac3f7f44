//! The CPU row against the f64 oracle, and its behaviour at the edges.

mod judge;

use crate::codec::e8m0;
use crate::grouped_gemm::groups::Status;
use crate::grouped_gemm::scales::ScaleMatrix;
use crate::grouped_gemm::testing::Case;
use crate::grouped_gemm::{Formula, Weights};
use crate::{row_by_name, DType, DeclineCode, Knob, Knobs, Target};
use judge::{check, float};

fn run(case: &Case, seed: u64) {
    let inputs = case.inputs(seed);
    let results = case.run(&inputs).expect("a run");
    check(case, &inputs, &results);
}

#[test]
fn fp8_with_generated_scales() {
    for (i, ab) in [DType::F8E4M3, DType::F8E5M2].into_iter().enumerate() {
        for d in [DType::F8E4M3, DType::F8E5M2] {
            for discrete_col_sfd in [false, true] {
                run(&Case { ab, d, discrete_col_sfd, d_srelu: discrete_col_sfd, ..Case::default() }, i as u64);
            }
        }
    }
}

#[test]
fn nvfp4_and_mxfp4_with_every_result_type() {
    for (i, (sf, sf_vec)) in [(DType::F8E4M3, 16), (DType::F8E8M0, 16), (DType::F8E8M0, 32)].into_iter().enumerate() {
        for d in [DType::F32, DType::F16, DType::BF16] {
            run(&Case { sf, sf_vec, d, d_srelu: true, ..Case::nvfp4() }, i as u64);
        }
    }
}

#[test]
fn every_type_of_c() {
    for c in [DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2] {
        run(&Case { c, ..Case::nvfp4() }, 3);
    }
}

#[test]
fn both_readings_and_the_clamp() {
    for formula in [Formula::PreactivationG, Formula::PreactivationC] {
        for clamp in [None, Some(0.75), Some(40.0)] {
            run(&Case { formula, clamp, d: DType::F32, d_srelu: true, ..Case::nvfp4() }, 4);
        }
    }
}

#[test]
fn weights_in_a_pool_and_with_n_contiguous() {
    for weights in [Weights::Dense, Weights::Pool] {
        for b_n_major in [false, true] {
            run(&Case { weights, b_n_major, ..Case::default() }, 5);
        }
        run(&Case { weights, ..Case::nvfp4() }, 5);
    }
}

#[test]
fn experts_empty_alone_all_in_one_and_ending_early() {
    for (m, ends) in [
        (512, vec![512]),
        (512, vec![0, 0, 512]),
        (512, vec![512, 512, 512, 512]),
        (768, vec![0, 256, 256]),
        (700, vec![256, 512]),
        (1024, vec![256, 256, 512, 1024]),
        (100, vec![0, 0]),
    ] {
        run(&Case { m, ends: ends.clone(), discrete_col_sfd: true, ..Case::default() }, 6);
        run(&Case { m, ends, ..Case::nvfp4() }, 6);
    }
}

/// The most experts that there may be, nearly all without rows.
#[test]
fn a_thousand_and_twenty_four_experts() {
    let ends = (0..1024).map(|e| if e < 300 { 0 } else { 256 * (1 + i32::from(e >= 1000)) }).collect();
    run(&Case { n: 32, k: 32, ends, discrete_col_sfd: true, ..Case::default() }, 15);
}

/// The same weights give the same bits wherever they lie: the pool's offsets point at the dense tensor's slices.
#[test]
fn pooled_and_dense_weights_give_equal_bits() {
    for base in [Case::default(), Case::nvfp4()] {
        let (dense, pool) = (base.clone(), Case { weights: Weights::Pool, ..base });
        let mut inputs = pool.inputs(16);
        for uid in [6, 7] {
            // Tests' pools list the experts backwards; here forwards.
            let list = inputs.get_mut(&uid).expect("offsets");
            let mut forward: Vec<[u8; 8]> = list.chunks_exact(8).map(|c| c.try_into().expect("eight bytes")).collect();
            forward.reverse();
            *list = forward.concat();
        }
        assert_eq!(pool.run(&inputs).expect("a run"), dense.run(&inputs).expect("a run"));
    }
}

/// K and N that end inside a scale block, a scale atom and a tile.
#[test]
fn ragged_edges_of_k_and_n() {
    for (n, k) in [(16, 16), (48, 80), (144, 272), (128, 32), (272, 112)] {
        run(&Case { n, k, ..Case::default() }, 7);
        let even = (n.max(32) / 32 * 32, k.max(32) / 32 * 32);
        run(&Case { n: even.0, k: even.1, ..Case::nvfp4() }, 7);
    }
}

/// Scales whose product leaves f32 on both sides while the result does not.
#[test]
fn adversarial_exponents() {
    let case = Case { d: DType::F32, sf: DType::F8E8M0, sf_vec: 32, ends: vec![256], m: 256, ..Case::nvfp4() };
    let mut inputs = case.inputs(9);
    for (i, (a, b)) in [(254, 0), (0, 254), (120, 136), (10, 244)].into_iter().enumerate() {
        inputs.get_mut(&4).expect("SFA").iter_mut().skip(i).step_by(4).for_each(|s| *s = a);
        inputs.get_mut(&5).expect("SFB").iter_mut().skip(i).step_by(4).for_each(|s| *s = b);
    }
    for double in [false, true] {
        let case = Case { double, ..case.clone() };
        check(&case, &inputs, &case.run(&inputs).expect("a run"));
    }
    // A zero payload under the largest scales is zero, not a NaN.
    inputs.get_mut(&1).expect("A").fill(0);
    inputs.get_mut(&4).expect("SFA").fill(254);
    inputs.get_mut(&5).expect("SFB").fill(254);
    let results = case.run(&inputs).expect("a run");
    assert!(results[&21].iter().all(|b| *b == 0 || *b == 0x80));
}

/// NaN scales, saturating payloads and infinities give the documented result.
#[test]
fn nan_and_saturation() {
    let case = Case { m: 256, ends: vec![256], ..Case::default() };
    let mut inputs = case.inputs(10);
    let sfa = ScaleMatrix::of(256, 96, 32);
    inputs.get_mut(&4).expect("SFA")[sfa.index(5, 1)] = e8m0::NAN;
    // C of row 7 is infinite: D is ±Inf or, where G is not positive, NaN.
    inputs
        .get_mut(&3)
        .expect("C")
        .chunks_exact_mut(2)
        .skip(7 * 160)
        .take(160)
        .for_each(|c| c.copy_from_slice(&0x7f80u16.to_ne_bytes()));
    let results = case.run(&inputs).expect("a run");
    let d = |row: usize, col: usize| results[&21][row * 160 + col];
    assert!((0..160).all(|c| d(5, c) == 0x7f), "a NaN scale of A makes its whole row NaN");
    assert!((0..160).all(|c| d(7, c) == 0x7e || d(7, c) == 0x7f), "Inf saturates at 448, 0 * Inf is NaN");
    assert!((0..160).any(|c| d(7, c) == 0x7e));
    let rows = ScaleMatrix::of(256, 160, 32);
    assert_eq!(results[&27][rows.index(7, 0)], 254, "an infinite block has the largest scale");
    assert_eq!(results[&27][rows.index(5, 0)], 0, "NaN does not count towards the largest magnitude");
    assert!(float(&results[&24], 5).is_nan() && !float(&results[&24], 6).is_nan());

    let case = Case { m: 512, ends: vec![256, 512], dbias: false, ..Case::nvfp4() };
    let mut inputs = case.inputs(11);
    inputs.get_mut(&4).expect("SFA")[ScaleMatrix::of(512, 96, 16).index(5, 1)] = 0x7f;
    let results = case.run(&inputs).expect("a run");
    assert!(float(&results[&26], 0).is_nan() && float(&results[&26], 1) > 0.0, "amax of an expert with a NaN is NaN");
    let mut zero = case.inputs(11);
    zero.get_mut(&1).expect("A").fill(0);
    assert_eq!(float(&case.run(&zero).expect("a run")[&26], 0), 0.0, "all zero");
}

#[test]
fn faulty_ends_are_reported_and_nothing_of_theirs_is_written() {
    for (ends, kinds, expert) in [
        (vec![256, 128, 512], Status::DECREASING | Status::UNALIGNED, 1),
        (vec![256, 300, 512], Status::UNALIGNED, 1),
        (vec![256, 1024, 1024], Status::BEYOND, 1),
        (vec![-256, 256, 512], Status::DECREASING, 0),
    ] {
        let silent = Case { ends: ends.clone(), ..Case::default() };
        let error = silent.run(&silent.inputs(12)).expect_err("no word to write to");
        assert!(error.tensor == "padded_offsets" && error.given.contains(&format!("expert {expert}")), "{error}");
        let case = Case { status: true, ..silent };
        let inputs = case.inputs(12);
        let results = case.run(&inputs).expect("a run");
        assert_eq!(results[&30], (kinds | (expert + 1)).to_ne_bytes());
        check(&case, &inputs, &results);
    }
    let case = Case { status: true, ..Case::default() };
    assert_eq!(case.run(&case.inputs(12)).expect("a run")[&30], [0; 4]);
}

#[test]
fn offsets_outside_the_pool_are_refused() {
    let case = Case { weights: Weights::Pool, ends: vec![256, 512], ..Case::default() };
    for (uid, value) in [(6, i64::MAX), (6, -1), (7, 1 << 40), (6, 160 * 96 + 16), (6, 8)] {
        let mut inputs = case.inputs(13);
        inputs.get_mut(&uid).expect("offsets")[..8].copy_from_slice(&value.to_ne_bytes());
        let error = case.run(&inputs).expect_err("outside");
        assert!(error.given.contains("expert 0"), "{error}");
        assert_eq!(error.tensor, if uid == 6 { "B_ptrs" } else { "SFB_ptrs" });
        // With a word to write to it is no error: the expert and those after it have no rows.
        let case = Case { status: true, ..case.clone() };
        let results = case.run(&inputs).expect("a run");
        assert_eq!(results[&30], (Status::WEIGHTS | 1).to_ne_bytes());
        check(&case, &inputs, &results);
    }
    // The offset of an expert without rows is never used.
    let case = Case { ends: vec![0, 512], ..case };
    let mut inputs = case.inputs(13);
    inputs.get_mut(&6).expect("offsets")[..8].copy_from_slice(&(-1i64).to_ne_bytes());
    case.run(&inputs).expect("a run");
}

#[test]
fn any_number_of_threads_gives_equal_bits() {
    let case = Case { d_srelu: true, ..Case::default() };
    let inputs = case.inputs(14);
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a pool").install(|| case.run(&inputs));
    let four = rayon::ThreadPoolBuilder::new().num_threads(4).build().expect("a pool").install(|| case.run(&inputs));
    assert_eq!(one.expect("a run"), four.expect("a run"));
}

#[test]
fn what_the_row_declines() {
    let row = row_by_name("grouped_gemm_dsrelu_cpu").expect("a row");
    let ask = |case: &Case, knobs: &Knobs, target: &Target| {
        (super::FAMILY.mismatch)(row, &case.facts(), knobs, target).map(|d| (d.code, d.to_string()))
    };
    assert_eq!(ask(&Case::default(), &Knobs::NONE, &Target::Cpu), None);
    let (code, text) =
        ask(&Case { weights: Weights::Addresses, ..Case::default() }, &Knobs::NONE, &Target::Cpu).expect("a decline");
    assert_eq!(code, DeclineCode::Feature);
    assert_eq!(
        text,
        "grouped_gemm_dsrelu_cpu: the graph uses weight addresses, which this row does not serve [D09-feature feature=weight addresses]"
    );
    let (code, text) = ask(&Case { sf_vec: 16, ..Case::default() }, &Knobs::NONE, &Target::Cpu).expect("a decline");
    assert_eq!(code, DeclineCode::DType);
    assert!(text.contains("A and B are e4m3 with e8m0 scales per 16"), "{text}");
    assert_eq!(ask(&Case::default(), &Knobs::new(&[(Knob::TileN, 128)]), &Target::Cpu).expect("a decline").0, DeclineCode::Knob);
    let h200 = Target::describe(90).expect("a device");
    assert_eq!(ask(&Case::default(), &Knobs::NONE, &h200).expect("a decline").0, DeclineCode::Arch);
    let attention = crate::sdpa::testing::Case::default().facts();
    assert_eq!(
        (super::FAMILY.mismatch)(row, &attention, &Knobs::NONE, &Target::Cpu).expect("a decline").code,
        DeclineCode::Operation
    );
    let bwd = row_by_name("sdpa_bwd_cpu").expect("a row");
    let d = crate::sdpa_bwd::FAMILY.mismatch;
    assert_eq!(d(bwd, &Case::default().facts(), &Knobs::NONE, &Target::Cpu).expect("a decline").code, DeclineCode::Operation);
    let mut huge = Case::default().grouped();
    (huge.m, huge.n) = (i64::MAX, i64::MAX);
    let huge = crate::Facts::GroupedGemm(Box::new(huge));
    assert_eq!(super::cpu::lower(&huge, &Knobs::NONE, &Target::Cpu).expect_err("too large").code, DeclineCode::Resources);
}
