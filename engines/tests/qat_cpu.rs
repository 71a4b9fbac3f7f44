//! The CPU engines of NVFP4 QAT against the f64 oracle, and the properties that make forward and backward a pair.

mod support;

use frostgraph_engines::qat::{check, oracle};
use frostgraph_engines::sdpa::{Direction, Mask, Recipe};
use frostgraph_engines::DType;
use support::*;

fn spec(b: usize, hq: usize, hkv: usize, sq: usize, skv: usize, d: usize) -> Spec {
    Spec { recipe: Recipe::Nvfp4Qat, dtype: DType::BF16, ..Spec::new(b, hq, hkv, sq, skv, d) }
}

/// Forward and backward against the oracle; how far an engine that forgets to quantise P would be off at least.
fn both(spec: Spec) -> f64 {
    let mut case = Case::new(spec);
    let forward = case.check_qat_forward().1;
    case.check_qat_backward().1.min(forward)
}

/// Reports 50, 51, 55 on the quantised path: every mask, extents around blocks of 16 and tiles of 64, grouped heads, both head dims.
/// The comparison allows steps of the quantiser near its ties, and still tells an engine that does not quantise P, in every case.
#[test]
fn masks_over_extents() {
    for (n, (sq, skv)) in [(3, 128), (128, 3), (64, 64), (65, 130), (1, 70), (100, 1), (33, 47)].into_iter().enumerate() {
        for (i, mask) in masks().into_iter().enumerate() {
            let (hq, hkv) = [(2, 2), (4, 2), (3, 1)][(i + n) % 3];
            let forgotten = both(Spec { mask, ..spec(1, hq, hkv, sq, skv, [64, 128][(i + n) % 2]) });
            assert!(forgotten > 0.02, "{forgotten:.2e} for {sq} x {skv} under {mask:?}");
        }
    }
}

/// Any layout, any head dims of whole blocks, and lengths down to 0.
#[test]
fn layouts_head_dims_and_lengths() {
    use Layout::*;
    for (i, layout) in [Bhsd, Bshd, Sbhd, Padded, SpreadD, Bhds].into_iter().enumerate() {
        let lens = Some((vec![70, 0, 1, 64, 33], vec![75, 20, 0, 64, 70]));
        both(Spec { lens, layout, out_layout: layout, mask: masks()[i], ..spec(5, 4, 2, 70, 75, 16) });
    }
    for (dqk, dv) in [(64, 128), (128, 64), (192, 128), (48, 80), (256, 256)] {
        both(Spec { dv, ..spec(1, 2, 1, 67, 66, dqk) });
    }
}

/// Logits that are nearly one-hot, nearly uniform and in between: block scales from the floor to 1/6.
#[test]
fn magnitudes_of_the_logits() {
    for (i, size) in [0.0, 1e-20, 0.01, 0.3, 2.0, 3.0].into_iter().enumerate() {
        both(Spec { size, mask: masks()[i], ..spec(1, 2, 1, 80, 150, 64) });
    }
}

/// Report 6 and its quantised form: one key has P = 1, so the high-precision O is V^ and dP = delta, exactly. P~ is 1.03125: the scale
/// nearest to 1/6 is 0.171875, and 1/0.171875 goes to 6.
#[test]
fn a_single_key_is_exact() {
    let mut case =
        Case::new(Spec { mask: Mask { left: Some(0), right: Some(0), bottom_right: false }, ..spec(1, 2, 2, 40, 40, 64) });
    let (got, _) = case.check_qat_forward();
    let want = oracle::forward(&case.facts(Direction::Forward), &case.view()).unwrap();
    let read = |case: &Case, u, from: &std::collections::BTreeMap<_, Buffer>| case.spots[&u].read(from[&u].bytes(), 40);
    let times = |by: f64, x: &[f64]| -> Vec<f64> { x.iter().map(|x| round(x * by, DType::BF16)).collect() };
    assert!(read(&case, uid::HIGH, &got) == want.plain.o, "V^ has few bits");
    assert!(read(&case, uid::O, &got) == times(1.03125, &want.plain.o));
    let (grads, _) = case.check_qat_backward();
    for u in [uid::DQ, uid::DK] {
        assert!(read(&case, u, &grads).iter().all(|&x| x == 0.0));
    }
    assert!(read(&case, uid::DV, &grads) == times(1.03125, &case.d_o));
}

/// A block of zeros stays zero (its scale is the floor, so nothing is divided by 0), and huge and infinite values saturate at 2688.
#[test]
fn zero_blocks_and_saturation() {
    let mut case = Case::new(spec(1, 1, 1, 20, 40, 64));
    let mut q = case.problem.q.clone();
    q[..16].fill(0.0);
    q[70..80].fill(-0.0);
    case.set(uid::Q, q);
    let mut v = case.problem.v.clone();
    (v[3], v[17], v[64]) = (3e38, f64::INFINITY, f64::NEG_INFINITY);
    v[32..48].fill(0.0);
    case.set(uid::V, v);
    case.check_qat_forward();
    case.check_qat_backward();
}

/// NaN in places that no kept pair looks at changes no bit (reports 8 and 10).
#[test]
fn what_is_masked_does_not_matter() {
    for mask in [masks()[1], masks()[7], masks()[2]] {
        let lens = Some((vec![33, 0], vec![50, 20]));
        let make = || Case::new(Spec { lens: lens.clone(), mask, ..spec(2, 2, 1, 40, 60, 64) });
        let mut clean = make();
        let (want_o, want_g) = (clean.check_qat_forward().0, clean.check_qat_backward().0);
        let mut dirty = make();
        dirty.store(uid::O, 40, &clean.spots[&uid::O].read(clean.inputs[&uid::O].bytes(), 40));
        dirty.store(uid::STATS, 40, &clean.spots[&uid::STATS].read(clean.inputs[&uid::STATS].bytes(), 40));
        dirty.spoil(f64::NAN);
        assert_eq!(bits(&dirty.forward().unwrap()), bits(&want_o));
        assert_eq!(bits(&dirty.run_backward().unwrap()), bits(&want_g));
    }
}

/// The pair is matched: a backward fed by this forward sees the same P~, so dV is the derivative of O by V^. With dO = e_(i, d) alone
/// dV[j][d] is P~[i][j], and the sum over keys of dV[j][d] V^[j][d] is O[i][d] up to the rounding of O and dV to bf16.
#[test]
fn dv_is_the_derivative_of_o_by_quantised_v() {
    let (sq, skv, d, row, col) = (7, 90, 64, 4, 11);
    let mut case = Case::new(spec(1, 1, 1, sq, skv, d));
    let (out, _) = case.check_qat_forward();
    let read = |case: &Case, u, from: &std::collections::BTreeMap<_, Buffer>, rows| case.spots[&u].read(from[&u].bytes(), rows);
    let (o, high) = (read(&case, uid::O, &out, sq), read(&case, uid::HIGH, &out, sq));
    let stats = read(&case, uid::STATS, &out, sq);
    let mut d_o = vec![0.0; sq * d];
    d_o[row * d + col] = 1.0;
    case.set(uid::DO, d_o);
    case.store(uid::O, sq, &high);
    case.store(uid::STATS, sq, &stats);
    let grads = case.run_backward().unwrap();
    let dv = read(&case, uid::DV, &grads, skv);
    let mut v_hat: Vec<f32> = case.problem.v.iter().map(|&x| x as f32).collect();
    v_hat.chunks_mut(d).for_each(frostgraph_engines::codec::nvfp4::fake_quant_row);
    let sum: f64 = (0..skv).map(|j| dv[j * d + col] * f64::from(v_hat[j * d + col])).sum();
    let want = o[row * d + col];
    assert!((sum - want).abs() <= want.abs() / 256.0 + 1e-6, "{sum} against {want}");
    assert!((0..skv).any(|j| dv[j * d + col] == 0.0) && high != o, "P was quantised");
}

/// Bits do not depend on the number of threads, nor on what buffers held before.
#[test]
fn results_are_reproducible() {
    let make = |fill| Case::filled(Spec { mask: masks()[7], ..spec(3, 4, 2, 130, 200, 64) }, fill);
    let run = |fill| {
        let mut c = make(fill);
        let (o, _) = c.check_qat_forward();
        let (g, _) = c.check_qat_backward();
        (element_bits(&c, &o), element_bits(&c, &g))
    };
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let want = one.install(|| run(0xff));
    assert_eq!(run(0x00), want);
}

/// A debug check tells auxiliaries of this recipe from those of another, by name; rows without keys and packed rows do not disturb it.
#[test]
fn auxiliaries_of_another_recipe_are_refused_by_name() {
    for (mask, lens) in [(masks()[0], None), (masks()[1], None), (masks()[2], Some((vec![33, 0], vec![50, 20])))] {
        let mut case = Case::new(Spec { mask, lens, layout: Layout::Bshd, ..spec(2, 4, 2, 40, 60, 64) });
        let made = oracle::forward(&case.facts(Direction::Forward), &case.view()).unwrap();
        let facts = case.facts(Direction::Backward);
        let mut says = |o: &[f64], stats: &[f64]| {
            case.store(uid::O, 40, o);
            case.store(uid::STATS, 40, stats);
            check::auxiliaries(&facts, &case.view()).err().map(|e| format!("{}: {}", e.tensor, e.given))
        };
        let (o, lse) = (&made.plain.o, &made.plain.stats);
        assert_eq!(says(o, lse), None);
        let log2: Vec<f64> = lse.iter().map(|x| x * std::f64::consts::LOG2_E).collect();
        assert!(says(o, &log2).unwrap().starts_with("Stats: LSE looks like log2: row "));
        assert!(says(&made.o, lse).unwrap().starts_with("O: O looks like the user-visible one, from the quantised P: row "));
        let other: Vec<f64> = lse.iter().map(|x| x + 0.5).collect();
        assert!(says(o, &other).unwrap().starts_with("Stats: LSE does not belong to these"));
        let flipped: Vec<f64> = o.iter().map(|x| -x).collect();
        assert!(says(&flipped, lse).unwrap().starts_with("O: O does not belong to these"));
    }
    // Small values, which the quantiser moves far: the LSE of plain attention is another one.
    let mut case = Case::new(Spec { size: 6.0, ..spec(1, 1, 1, 20, 64, 64) });
    let plain = case.problem.forward();
    case.store(uid::O, 20, &plain.o);
    case.store(uid::STATS, 20, &plain.stats);
    let e = check::auxiliaries(&case.facts(Direction::Backward), &case.view()).unwrap_err();
    assert!(e.given.starts_with("LSE looks like that of attention without quantisation: row "), "{e}");
}
