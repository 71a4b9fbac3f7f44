//! The CPU row against the f64 oracle, and its behaviour at the edges.

use crate::codec::e8m0;
use crate::grouped_gemm::groups::Status;
use crate::grouped_gemm::oracle::{element, evaluate, Oracle};
use crate::grouped_gemm::scales::{ColumnScales, ScaleMatrix};
use crate::grouped_gemm::testing::Case;
use crate::grouped_gemm::{Formula, Weights};
use crate::{row_by_name, DType, DeclineCode, Knob, Knobs, Target, Uid};
use std::collections::BTreeMap;

type Buffers = BTreeMap<Uid, Vec<u8>>;

fn oracle(case: &Case, inputs: &Buffers) -> Oracle {
    let view = inputs.iter().map(|(u, b)| (*u, &b[..])).collect();
    evaluate(&case.grouped(), &view).expect("an oracle")
}

fn float(bytes: &[u8], i: usize) -> f64 {
    element(DType::F32, bytes, i)
}

/// Checks every output of a run; element by element, with the error that its last rounding allows.
fn check(case: &Case, inputs: &Buffers, results: &Buffers) {
    let f = case.grouped();
    let o = oracle(case, inputs);
    let (m, n) = (f.m as usize, f.n as usize);
    let poison = |uid: Uid, at: usize, size: usize| results[&uid][at..at + size].iter().all(|b| *b == 0xa5);
    // Accumulation in single precision over K, relative to the largest D of the row.
    let rounding = match case.d {
        DType::F8E4M3 => 1.0 / 16.0,
        DType::F8E5M2 => 1.0 / 8.0,
        DType::F16 => 1.0 / 2048.0,
        DType::BF16 => 1.0 / 256.0,
        _ => 0.0,
    };
    let rows_sf = ScaleMatrix::of(m, n, 32);
    let cols_sf = ColumnScales { m, n, discrete: f.discrete_col_sfd };
    let owner = |row: usize| o.groups.iter().find(|g| g.contains(&row));
    for row in 0..m {
        let owner = owner(row);
        let top = (0..n).fold(0.0, |a: f64, c| a.max(o.d[row * n + c].abs()));
        for col in 0..n {
            let i = row * n + col;
            let outputs = [(21, &o.d, Some((27, true))), (22, &o.d, Some((28, false))), (23, &o.d_srelu, Some((29, false)))];
            for (uid, want, scale) in outputs.into_iter().filter(|(uid, _, _)| results.contains_key(uid)) {
                let size = case.d.bytes().expect("whole bytes") as usize;
                let Some(rows) = owner else {
                    assert!(poison(uid, i * size, size), "row {row} of {uid} belongs to no expert and was written");
                    continue;
                };
                let mut got = element(case.d, &results[&uid], i);
                let mut step = rounding * want[i].abs();
                if let (true, Some((sf, by_row))) = (f.quantised, scale) {
                    let at = if by_row { rows_sf.index(row, col / 32) } else { cols_sf.index(col, row, rows) };
                    let s = f64::from(e8m0::decode(results[&sf][at]));
                    got *= s / o.norm;
                    // A subnormal FP8 step is absolute.
                    step += s / o.norm * if case.d == DType::F8E4M3 { 2f64.powi(-10) } else { 2f64.powi(-17) };
                }
                if case.d == DType::F16 && want[i].abs() > 65_504.0 {
                    assert!(got.is_infinite() || got.abs() == 65_504.0, "f16 does not saturate");
                    continue;
                }
                let slack = step + 1e-5 * top.max(want[i].abs()) + 1e-30;
                assert!((got - want[i]).abs() <= slack, "({row}, {col}) of {uid}: {got} and not {}, {case:?}", want[i]);
            }
        }
        let dprob = float(&results[&24], row);
        assert!((dprob - o.dprob[row]).abs() <= 1e-5 * o.dprob_size[row], "dprob of row {row}: {dprob} and not {}", o.dprob[row]);
    }
    if f.quantised {
        check_scales(case, &o, results);
    }
    for (e, rows) in o.groups.iter().enumerate() {
        if let Some(amax) = results.get(&26) {
            let got = float(amax, e);
            assert!(
                got == o.amax[e] || (got - o.amax[e]).abs() <= 1e-5 * o.amax[e].abs(),
                "amax of {e}: {got} and not {}",
                o.amax[e]
            );
            assert_eq!(rows.is_empty(), got == f64::NEG_INFINITY);
        }
        if let Some(dbias) = results.get(&25) {
            for col in 0..n {
                let (got, want) = (element(DType::BF16, dbias, e * n + col), o.dbias[e * n + col]);
                assert!((got - want).abs() <= want.abs() / 256.0 + 1e-4, "dbias ({e}, {col}): {got} and not {want}");
            }
        }
    }
}

/// Scales are the powers of two just above amax / 448 * norm, and the padding of their atoms is 0.
fn check_scales(case: &Case, o: &Oracle, results: &Buffers) {
    let f = case.grouped();
    let (m, n) = (f.m as usize, f.n as usize);
    let max = if case.d == DType::F8E5M2 { 128.0 } else { 448.0 };
    let near = |code: u8, amax: f64| {
        let want = amax / max * o.norm;
        let s = 2f64.powi(i32::from(code) - 127);
        code == 0 && want < 2f64.powi(-126) || want <= s * (1.0 + 1e-5) && want > s / 2.0 * (1.0 - 1e-5)
    };
    let (rows_sf, cols_sf) = (ScaleMatrix::of(m, n, 32), ColumnScales { m, n, discrete: f.discrete_col_sfd });
    let mut written = [vec![false; results[&27].len()], vec![false; results[&28].len()]];
    for rows in &o.groups {
        for row in rows.clone() {
            for block in 0..n.div_ceil(32) {
                let amax = (block * 32..n.min(block * 32 + 32)).fold(0.0, |a: f64, c| a.max(o.d[row * n + c].abs()));
                let at = rows_sf.index(row, block);
                assert!(near(results[&27][at], amax), "SFD_row ({row}, {block})");
                written[0][at] = true;
            }
            for col in (0..n).filter(|_| row % 32 == 0) {
                let amax = (row..row + 32).fold(0.0, |a: f64, r| a.max(o.d[r * n + col].abs()));
                let at = cols_sf.index(col, row, rows);
                assert!(near(results[&28][at], amax), "SFD_col ({col}, {row})");
                written[1][at] = true;
            }
        }
    }
    let owned: usize = o.groups.iter().map(|g| g.len()).sum();
    for (uid, written) in [27, 28].into_iter().zip(&written) {
        let zero = results[&uid].iter().zip(written).filter(|(b, w)| !**w && **b == 0).count();
        let poison = results[&uid].iter().zip(written).filter(|(b, w)| !**w && **b == 0xa5).count();
        let used = written.iter().filter(|w| **w).count();
        assert_eq!(used + zero + poison, written.len(), "nothing else in {uid}");
        let padded = m.next_multiple_of(128);
        assert_eq!(poison * padded, (padded - owned) * written.len(), "atoms of {uid} past the last expert are untouched");
    }
}

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
