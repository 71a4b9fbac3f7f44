//! Reports about where values lie and what lies between them: packing, padding, strides, leftovers, threads, addresses.

use crate::causal;
use crate::support::uid::*;
use crate::support::*;
use frostgraph_engines::sdpa::{Direction, Mask};
use frostgraph_engines::{DType, Facts, Knobs, Target};

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
