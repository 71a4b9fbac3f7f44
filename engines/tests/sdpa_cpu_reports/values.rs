//! Reports about values: closed forms, extremes, features.

use crate::support::uid::*;
use crate::support::*;
use crate::{causal, column, uniform};
use frostgraph_engines::sdpa::Mask;
use frostgraph_engines::DType;

/// 50, 51, 53: the mean and the count of kept keys in closed form, for every mask kind, alignment and length.
#[test]
fn uniform_attention_has_the_closed_form_mean() {
    for mask in masks() {
        for (sq, skv) in [(16, 16), (5, 2), (200, 3), (129, 128), (128, 1), (3, 128), (70, 200)] {
            for lens in [None, Some((vec![sq as i32 - 1, sq as i32], vec![skv as i32, skv as i32 / 2]))] {
                let case = uniform(Spec { mask, lens, scale: 1.0, ..Spec::new(2, 1, 1, sq, skv, 8) });
                let got = case.forward().unwrap();
                let read = |u: i64| case.spots[&u].read(got[&u].bytes(), sq);
                let (o, stats) = (read(O), read(STATS));
                for b in 0..2 {
                    let (len_q, len_kv) = (case.problem.lens.q[b], case.problem.lens.kv[b]);
                    for i in 0..sq as i64 {
                        let diag = i + if mask.bottom_right { len_kv - len_q } else { 0 };
                        let first = mask.left.map_or(0, |w| diag - w).max(0);
                        let last = mask.right.map_or(len_kv - 1, |r| diag + r).min(len_kv - 1);
                        let row = b * sq + i as usize;
                        if i >= len_q || first > last {
                            assert_eq!((o[row * 8], stats[row]), (0.0, f64::NEG_INFINITY), "row {i} {:?}", case.spec);
                        } else {
                            let (mean, count) = ((first + last) as f64 / 2.0, (last - first + 1) as f64);
                            assert!(
                                (o[row * 8] - mean).abs() <= 1e-5 * (1.0 + mean),
                                "row {i}: {} not {mean} {:?}",
                                o[row * 8],
                                case.spec
                            );
                            assert!((stats[row] - count.ln()).abs() < 1e-5, "row {i} {:?}", case.spec);
                        }
                    }
                }
            }
        }
    }
}

/// 53: a window *length* L is W = L - 1.
#[test]
fn report_53_window_lengths() {
    let rows =
        |left: i64| column(&uniform(Spec { mask: Mask { left: Some(left), ..causal(false) }, ..Spec::new(1, 1, 1, 16, 16, 8) }));
    assert_eq!(rows(3)[10..13], [8.5, 9.5, 10.5]);
    assert_eq!(rows(4)[10..13], [8.0, 9.0, 10.0]);
    assert_eq!(rows(0), (0..16).map(|i| i as f64).collect::<Vec<_>>());
    for huge in [16, i32::MAX as i64, i64::MAX] {
        let got = rows(huge);
        assert!(got.iter().enumerate().all(|(i, &x)| x == i as f64 / 2.0), "W = {huge}: {got:?}");
    }
}

/// 1: one query with logits near -100 against many keys: finite gradients, whatever padding says.
#[test]
fn report_1_very_negative_scores() {
    for sq in [1, 2, 63, 65, 127] {
        for skv in [64, 128, 129, 192] {
            let lens = if skv == 128 { Some((vec![sq as i32], vec![skv as i32])) } else { None };
            let spec = Spec { lens, dtype: DType::BF16, ..Spec::new(1, 2, 2, sq, skv, 64) };
            let mut case = Case::new(spec);
            let pin = |x: &[f64], lead: f64| {
                x.iter().enumerate().map(|(i, &v)| if i % 64 == 0 { lead } else { round(v * 0.1, DType::BF16) }).collect()
            };
            let (q, k) = (pin(&case.problem.q, 1.0), pin(&case.problem.k, -800.0));
            case.set(Q, q);
            case.set(K, k);
            case.check_forward();
            let got = case.backward().unwrap();
            let want = case.expect_backward();
            assert!(case.error(DK, &got, &want.dk) < 1e-2 && case.error(DV, &got, &want.dv) < 1e-2);
            // Lane 0 of dQ is -800 times a sum that vanishes but for rounding. A score of 100 is known to 2.4e-5 in f32 (64 terms of
            // up to 800, scale 1/8), so that lane is known to 800 / 8 * sum|dS| * 2.4e-5, below 1e-2; the others must be close.
            let dq = case.spots[&DQ].read(got[&DQ].bytes(), sq);
            let lane = |lane: bool| dq.iter().zip(&want.dq).enumerate().filter(move |(i, _)| (i % 64 == 0) == lane);
            assert!(lane(true).all(|(_, (g, w))| (g - w).abs() < 1e-2 * (1.0 + w.abs())), "{:?}", case.spec);
            let (diff, norm) = lane(false).fold((0.0, 0.0), |(d, n), (_, (g, w))| (d + (g - w) * (g - w), n + w * w));
            assert!(diff <= 1e-4 * norm, "{:?}", case.spec);
        }
    }
}

/// 3: tiny sequences with one large K channel and gradients near 1e-8.
#[test]
fn report_3_tiny_sequences() {
    for s in 1..=9 {
        for d in [8, 16, 24] {
            let mut case = Case::new(Spec { dtype: DType::BF16, ..Spec::new(1, 1, 1, s, s, d) });
            let at = |x: &[f64], f: &dyn Fn(usize) -> f64| {
                x.iter().enumerate().map(|(i, &v)| if i % d == 4 { f(i / d) } else { v }).collect()
            };
            let k = at(&case.problem.k, &|j| 70.0 + 0.5 * j as f64);
            let q = at(&case.problem.q, &|i| if i % 2 == 0 { -4.25 } else { 2.484375 });
            case.set(K, k);
            case.set(Q, q);
            let d_o = case.d_o.iter().map(|x| round(x * 1e-8, DType::BF16)).collect();
            case.set(DO, d_o);
            case.check_forward();
            case.check_backward();
        }
    }
}

/// 6: with a single key P = 1 whatever the score, so dQ and dK are exactly zero and dV is the sum of dO.
#[test]
fn report_6_single_key_gives_exact_zeros() {
    for sq in [1, 7, 64, 129] {
        for d in [16, 64, 128] {
            for dtype in [DType::F16, DType::BF16, DType::F32] {
                let size = if dtype == DType::F32 { 1.0 } else { 3.0 };
                let mut case = Case::new(Spec { dtype, size, seed: 352, ..Spec::new(1, 1, 1, sq, 1, d) });
                let got = case.check_backward();
                for uid in [DQ, DK] {
                    assert!(
                        case.spots[&uid].read(got[&uid].bytes(), case.rows_of(uid)).iter().all(|&x| x == 0.0),
                        "S_q {sq} d {d} {dtype}"
                    );
                }
            }
        }
    }
}

/// 58: Stats of every head are written when there is one query.
#[test]
fn report_58_stats_of_all_heads() {
    for (hq, hkv) in [(8, 2), (8, 1), (32, 4)] {
        for sq in [1, 2, 3] {
            for head_major in [false, true] {
                let packed = Some(Packed { head_major, ..PACKED });
                let lens = Some((vec![sq], vec![300]));
                Case::new(Spec { lens, packed, dtype: DType::BF16, ..Spec::new(1, hq, hkv, sq as usize, 300, 128) })
                    .check_forward();
            }
            Case::new(Spec { dtype: DType::BF16, ..Spec::new(1, hq, hkv, sq as usize, 300, 128) }).check_forward();
        }
    }
}

/// 78: O = n / (n + e^s) for uniform scores; a zero sink does not hide it.
#[test]
fn report_78_sink_in_closed_form() {
    for (sink, o, lse) in [(0.0, 0.8, 1.609_437_9), (4f32.ln(), 0.5, 2.079_441_5), (20.0, 8.244_614e-9, 20.0)] {
        let mut case = Case::new(Spec { sink: Some(vec![sink]), scale: 1.0, ..Spec::new(1, 1, 1, 3, 4, 8) });
        case.set(Q, vec![0.0; 24]);
        case.set(V, vec![1.0; 32]);
        let got = case.check_forward();
        let read = |u: i64| case.spots[&u].read(got[&u].bytes(), 3)[0];
        assert!((read(O) / o - 1.0).abs() < 1e-6, "sink {sink}: {}", read(O));
        assert!((read(STATS) - lse).abs() < 1e-6, "sink {sink}: {}", read(STATS));
        case.set(V, (0..32).map(|i| 1.0 + (i / 8) as f64).collect());
        let got = case.check_backward();
        let dsink = case.spots[&DSINK].read(got[&DSINK].bytes(), 1)[0];
        assert!(dsink != 0.0, "sink {sink}");
    }
}

/// 80: sinks of +-infinity and near the largest f32, with and without rows that keep no key.
#[test]
fn report_80_extreme_sinks() {
    for value in [f32::NEG_INFINITY, f32::INFINITY, 2e38, 2.4e38, f32::MAX, -3e38] {
        for mask in [Mask::default(), causal(true)] {
            let mut case = Case::new(Spec { sink: Some(vec![value, 0.5]), mask, ..Spec::new(1, 2, 1, 9, 4, 8) });
            let got = case.check_forward();
            let o = case.spots[&O].read(got[&O].bytes(), 9);
            if value > 1e38 {
                assert!(o[..72].iter().all(|&x| x == 0.0), "sink {value}");
            }
            if value < -1e38 {
                let vanilla = Case::new(Spec { mask, ..Spec::new(1, 2, 1, 9, 4, 8) });
                let v = vanilla.spots[&O].read(vanilla.forward().unwrap()[&O].bytes(), 9);
                assert_eq!(o[..72], v[..72], "sink {value}");
            }
            case.check_backward();
        }
    }
}

/// A bias of -inf, or of the lowest finite f32, used as a mask: the first hides keys, the second keeps a hidden row uniform.
#[test]
fn bias_used_as_a_mask() {
    for (low, dead) in [(f64::NEG_INFINITY, true), (f32::MIN as f64, false)] {
        let mut case = Case::new(Spec { bias: Some((1, 1, DType::F32)), ..Spec::new(1, 2, 2, 5, 70, 8) });
        let bias = (0..350).map(|i| if i / 70 == 2 || i % 70 > i / 70 { low } else { 0.25 }).collect();
        case.set(BIAS, bias);
        let got = case.check_forward();
        let (o, stats) = (case.spots[&O].read(got[&O].bytes(), 5), case.spots[&STATS].read(got[&STATS].bytes(), 5));
        assert_eq!(stats[2] == f64::NEG_INFINITY, dead);
        assert_eq!(o[2 * 8..3 * 8].iter().all(|&x| x == 0.0), dead);
        case.check_backward();
    }
}

/// 86: O in another type than the inputs holds that type's bits.
#[test]
fn report_86_output_type() {
    for (o_dtype, one) in [(DType::BF16, vec![0x80, 0x3f]), (DType::F16, vec![0x00, 0x3c]), (DType::F32, vec![0, 0, 0x80, 0x3f])]
    {
        let mut case = Case::new(Spec { o_dtype: Some(o_dtype), dtype: DType::F16, ..Spec::new(1, 1, 1, 64, 300, 8) });
        case.set(Q, vec![0.0; 64 * 8]);
        case.set(V, vec![1.0; 300 * 8]);
        let got = case.forward().unwrap();
        assert!(got[&O].bytes().chunks(one.len()).all(|x| x == one), "{o_dtype}");
    }
}
