//! Faults reported against systems of this kind, as far as a CPU engine can have them. Numbers are those of the field reports.

mod support;

use frostgraph_engines::sdpa::{Direction, Mask};
use frostgraph_engines::{DType, Facts, Knobs, Target};
use support::uid::*;
use support::*;

fn causal(bottom_right: bool) -> Mask {
    Mask { right: Some(0), bottom_right, ..Mask::default() }
}

/// Q = 0 and V[j] = j: every row of O is the mean index of the keys it keeps.
fn uniform(spec: Spec) -> Case {
    let s = spec.clone();
    let mut case = Case::new(spec);
    case.set(Q, vec![0.0; s.b * s.hq * s.sq * s.dqk]);
    case.set(V, (0..s.b * s.hkv * s.skv * s.dv).map(|i| (i / s.dv % s.skv) as f64).collect());
    case
}

/// O of head 0 of batch 0, first column.
fn column(case: &Case) -> Vec<f64> {
    let got = case.forward().unwrap();
    let o = case.spots[&O].read(got[&O].bytes(), case.spec.sq);
    o.chunks(case.spec.dv).take(case.spec.sq).map(|r| r[0]).collect()
}

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

/// 5: packed causal with one to three keys for many queries, both alignments, one key set empty.
#[test]
fn report_5_many_queries_few_keys() {
    for keys in [vec![1, 1, 1], vec![0, 1, 1]] {
        for (bottom_right, dtype) in [(false, DType::F16), (true, DType::F16), (false, DType::BF16), (true, DType::BF16)] {
            let lens = Some((vec![76, 34, 146], keys.clone()));
            let spec = Spec {
                lens,
                packed: Some(PACKED),
                mask: causal(bottom_right),
                dtype,
                size: 3.0,
                ..Spec::new(3, 1, 1, 146, 3, 32)
            };
            let mut case = Case::new(spec);
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

/// 8, 10, 18, 56, 111: NaN and infinities wherever no kept pair looks leave every result bitwise unchanged, forward and backward.
#[test]
fn report_8_garbage_in_masked_and_padded_places() {
    let shapes =
        [(None, None), (Some((vec![70, 0, 3], vec![64, 9, 0])), None), (Some((vec![66, 5, 1], vec![1, 0, 80])), Some(PACKED))];
    for (lens, packed) in shapes {
        for mask in masks() {
            for (sq, skv) in [(70, 80), (80, 70)] {
                let lens = lens.clone();
                let (sq, skv) = if lens.is_some() { (70, 80) } else { (sq, skv) };
                let spec = Spec {
                    lens,
                    packed,
                    mask,
                    bias: if sq == 80 { Some((1, 1, DType::F32)) } else { None },
                    ..Spec::new(3, 2, 1, sq, skv, 8)
                };
                let run = |value: f64, fill: u8| {
                    let mut case = Case::filled(spec.clone(), fill);
                    case.spoil(value);
                    let forward = element_bits(&case, &case.forward().unwrap());
                    case.bind_forward();
                    case.spoil(value);
                    (forward, element_bits(&case, &case.run_backward().unwrap()))
                };
                let clean = run(0.0, 0);
                assert!(clean.0.iter().flat_map(|x| &x.1).all(|x| !f64::from_bits(*x).is_nan()), "{spec:?}");
                assert!(clean == run(f64::NAN, 0xff), "NaN: {spec:?}");
                assert!(clean == run(f64::INFINITY, 0xff), "inf: {spec:?}");
            }
        }
    }
}

/// 8, the other side: a NaN that a kept pair does see goes exactly where the formula takes it.
#[test]
fn visible_nans_reach_what_they_touch_and_nothing_else() {
    for mask in [causal(false), causal(true), Mask { left: Some(9), right: Some(2), bottom_right: false }] {
        for (n, uid) in [Q, K, V, DO].into_iter().enumerate() {
            for bad in [f64::NAN, f64::INFINITY] {
                let mut case = Case::new(Spec { mask, seed: n as u64, ..Spec::new(1, 2, 1, 70, 80, 8) });
                case.bind_forward();
                let mut x = case.spots[&uid].read(case.inputs[&uid].bytes(), case.rows_of(uid));
                x[37 * 8 + 3] = bad;
                case.set(uid, x);
                let (f, b) = (case.forward().unwrap(), case.run_backward().unwrap());
                let (wf, wb) = (case.problem.forward(), case.expect_backward());
                for (out, uid, want) in
                    [(&f, O, &wf.o), (&f, STATS, &wf.stats), (&b, DQ, &wb.dq), (&b, DK, &wb.dk), (&b, DV, &wb.dv)]
                {
                    let got = case.spots[&uid].read(out[&uid].bytes(), case.rows_of(uid));
                    for (i, (g, w)) in got.iter().zip(want).enumerate() {
                        assert_eq!(g.is_finite(), w.is_finite(), "uid {uid} at {i}: {g} but {w}; {bad} in uid {n} {mask:?}");
                        assert!(!g.is_finite() || (g - w).abs() < 1e-4 * (1.0 + w.abs()), "uid {uid} at {i}: {g} but {w}");
                    }
                }
            }
        }
    }
}

/// 10, 51: a tile without keys is written as zeros, not multiplied.
#[test]
fn report_10_tiles_without_keys() {
    let lens = Some((vec![256, 256], vec![64, 0]));
    let mut case = Case::new(Spec { lens, mask: causal(true), ..Spec::new(2, 2, 2, 256, 64, 64) });
    let got = case.check_forward();
    let o = case.spots[&O].read(got[&O].bytes(), 256);
    assert!(o.chunks(64).enumerate().all(|(r, row)| (r < 512 && r % 256 >= 192) || row.iter().all(|&x| x == 0.0)));
    case.check_backward();
}

/// 15, 16: sequences with queries but no keys and keys but no queries; the keys' gradients are exactly zero.
#[test]
fn report_15_zero_lengths_in_a_pack() {
    for (dqk, dv) in [(64, 64), (192, 128), (256, 256)] {
        let lens = Some((vec![0, 38, 26, 0, 20], vec![79, 54, 0, 40, 26]));
        let mut case = Case::new(Spec { lens, packed: Some(PACKED), dv, dtype: DType::BF16, ..Spec::new(5, 4, 1, 38, 79, dqk) });
        case.check_forward();
        let got = case.check_backward();
        for uid in [DK, DV] {
            for (i, at) in case.spots[&uid].elements(79) {
                let b = i / (79 * case.spots[&uid].port.dim[3] as usize);
                if b == 0 || b == 3 {
                    let two = &got[&uid].bytes()[at * 2..at * 2 + 2];
                    assert_eq!(two, [0, 0], "uid {uid} batch {b}");
                }
            }
        }
    }
}

/// 21: one-token sequences at either end of a pack equal the same sequences alone.
#[test]
fn report_21_one_token_sequences() {
    for lens in [vec![255, 1], vec![1, 255], vec![1; 64]] {
        let longest = *lens.iter().max().unwrap() as usize;
        let spec = Spec {
            lens: Some((lens.clone(), lens.clone())),
            packed: Some(PACKED),
            mask: causal(false),
            ..Spec::new(lens.len(), 2, 2, longest, longest, 16)
        };
        let mut case = Case::new(spec);
        case.check_forward();
        case.check_backward();
    }
}

/// 35: K and V broadcast over the batch by a zero stride equal their repetition; a broadcast dK is declined.
#[test]
fn report_35_zero_strides() {
    let repeated = |mut case: Case| {
        let n = 2 * 9 * 8;
        for uid in [K, V] {
            let x = case.spots[&uid].read(case.inputs[&uid].bytes(), 9);
            case.set(uid, x[..n].repeat(4));
        }
        case
    };
    let mut case = repeated(Case::new(Spec::new(4, 4, 2, 5, 9, 8)));
    let (f, b) = (case.check_forward(), case.check_backward());
    let mut facts = [case.facts(Direction::Forward), case.facts(Direction::Backward)];
    for facts in &mut facts {
        for port in [&mut facts.ports.k, &mut facts.ports.v] {
            port.as_mut().unwrap().stride[0] = 0;
        }
    }
    let [forward, backward] = facts;
    assert_eq!(bits(&case.execute(forward, &[O, STATS, MAX, SUM]).unwrap()), bits(&f));
    assert_eq!(bits(&case.execute(backward.clone(), &[DQ, DK, DV, DBIAS, DSINK]).unwrap()), bits(&b));

    let mut broadcast = backward;
    broadcast.ports.dk.as_mut().unwrap().stride[0] = 0;
    let facts = Facts::Sdpa(Box::new(broadcast));
    let decline = frostgraph_engines::sdpa_bwd::cpu::lower(&facts, &Knobs::NONE, &Target::Cpu).unwrap_err();
    assert_eq!(decline.code.code(), "D08-layout");
    assert!(decline.reason.contains("dK"), "{decline}");
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

/// 70, 111: results do not depend on declared maxima, capacity or batch neighbours.
#[test]
fn report_70_results_do_not_depend_on_hints() {
    let rows = |capacity: usize, neighbours: usize, packed: Option<Packed>| {
        let mut lens = (vec![67], vec![100]);
        for i in 0..neighbours {
            lens.0.push(i as i32 * 13 % 60);
            lens.1.push(i as i32 * 29 % 90);
        }
        let spec = Spec {
            lens: Some(lens),
            packed,
            mask: causal(true),
            dtype: DType::BF16,
            ..Spec::new(1 + neighbours, 2, 1, capacity, capacity, 16)
        };
        let mut case = Case::new(spec);
        // Element values must not depend on the extents either.
        for (uid, heads, len) in [(Q, 2, 67), (K, 1, 100), (V, 1, 100)] {
            let mut x = case.spots[&uid].read(case.inputs[&uid].bytes(), capacity);
            for (i, x) in x.iter_mut().enumerate().take(heads * capacity * 16) {
                let (h, s, d) = (i / (capacity * 16), i / 16 % capacity, i % 16);
                *x = if s < len { round(((h * 7 + s * 3 + d * 5) % 17) as f64 / 8.0 - 1.0, DType::BF16) } else { f64::NAN };
            }
            case.set(uid, x);
        }
        let got = case.forward().unwrap();
        let o = case.spots[&O].read(got[&O].bytes(), capacity);
        (0..2).flat_map(|h| o[h * capacity * 16..][..67 * 16].to_vec()).collect::<Vec<f64>>()
    };
    let want = rows(100, 0, None);
    for capacity in [101, 200, 400] {
        for neighbours in [0, 5] {
            for packed in [None, Some(PACKED)] {
                assert!(rows(capacity, neighbours, packed) == want, "capacity {capacity}, {neighbours} neighbours, {packed:?}");
            }
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

/// Invariant I6 and report 61: outputs and workspace full of 0xFF or of zeros give the same bits, head dims off the vector width too.
#[test]
fn report_61_results_do_not_depend_on_what_buffers_held() {
    for d in [8, 24, 40, 72, 104, 136] {
        let spec = Spec {
            bias: Some((1, 2, DType::F32)),
            sink: Some(vec![0.5, -0.5]),
            mask: causal(true),
            out_layout: Layout::Padded,
            dtype: DType::BF16,
            lens: Some((vec![70, 9], vec![66, 80])),
            ..Spec::new(2, 2, 1, 70, 80, d)
        };
        let run = |fill: u8| {
            let mut case = Case::filled(spec.clone(), fill);
            let f = element_bits(&case, &case.forward().unwrap());
            let b = case.backward().unwrap();
            (f, element_bits(&case, &b))
        };
        assert!(run(0xff) == run(0x00), "d {d}");
    }
}

/// 65: the bits of every output are the same for any number of threads.
#[test]
fn report_65_bits_do_not_depend_on_threads() {
    let dense = Spec { bias: Some((1, 1, DType::F32)), sink: Some(vec![0.5; 4]), ..Spec::new(2, 4, 2, 300, 290, 24) };
    let packed =
        Spec { packed: Some(PACKED), lens: Some((vec![300, 7, 0], vec![290, 60, 5])), ..Spec::new(3, 4, 1, 300, 290, 24) };
    for spec in [dense, packed] {
        let mut case = Case::new(Spec { mask: causal(true), dtype: DType::BF16, ..spec });
        case.bind_forward();
        let mut first = None;
        for threads in [1, 2, 3, 7] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let got = pool.install(|| (bits(&case.forward().unwrap()), bits(&case.run_backward().unwrap())));
            assert!(*first.get_or_insert_with(|| got.clone()) == got, "{threads} threads: {:?}", case.spec);
        }
    }
}

/// 28: batches beyond 65,535.
#[test]
fn report_28_large_batch() {
    let mut case = Case::new(Spec::new(65_537, 1, 1, 1, 2, 8));
    case.check_forward();
    case.check_backward();
}

/// 45: operands at any byte address.
#[test]
fn report_45_unaligned_operands() {
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        let case = Case::new(Spec { dtype, mask: causal(true), ..Spec::new(2, 2, 1, 9, 70, 24) });
        let want = case.forward().unwrap();
        let facts = Facts::Sdpa(Box::new(case.facts(Direction::Forward)));
        let plan = plan(&facts);
        let shifted: Vec<(i64, Vec<u8>)> = case.inputs.iter().map(|(u, b)| (*u, [&[0; 1], b.bytes()].concat())).collect();
        let mut outputs: Vec<(i64, Vec<u8>)> = want.iter().map(|(u, b)| (*u, vec![0; b.bytes().len() + 1])).collect();
        let mut workspace = Buffer::filled(plan.workspace_bytes as usize, 0xff);
        let mut buffers = frostgraph_engines::HostBuffers {
            inputs: shifted.iter().map(|(u, b)| (*u, &b[1..])).collect(),
            outputs: outputs.iter_mut().map(|(u, b)| (*u, &mut b[1..])).collect(),
            workspace: workspace.bytes_mut(),
        };
        frostgraph_engines::sdpa_fwd::cpu::run(&facts, &Knobs::NONE, &mut buffers).unwrap();
        for (uid, bytes) in &outputs {
            assert_eq!(&bytes[1..], want[uid].bytes(), "{dtype} uid {uid}");
        }
    }
}
