//! From a graph to outputs on the CPU: every listed plan, every check, several nodes, two threads.

use crate::support::catalogue::{all, forward_backward};
use crate::support::data::Data;
use crate::support::{backward, forward, lengths, Shape, SMALL};
use frostgraph::exec::{Bindings, Executable, HostWorkspace, Stream, Workspace};
use frostgraph::graph::{Graph, Mask, Sdpa, SdpaBackward, Tensor};
use frostgraph::plan::BuildOptions;
use frostgraph::{Device, ErrorCode};
use std::time::Duration;

fn build(g: &Graph) -> frostgraph::plan::Built {
    g.build_with(&Device::cpu(), &BuildOptions::all_engines()).unwrap()
}

fn best(g: &Graph) -> Executable {
    build(g).best().unwrap().compile().unwrap()
}

fn uid(exe: &Executable, name: &str) -> i64 {
    exe.operands().iter().find(|o| o.name == name).unwrap_or_else(|| panic!("no operand {name}")).uid
}

#[test]
fn every_plan_in_the_list_executes_field_report_120() {
    let mut plans = 0;
    for (name, g) in all() {
        if name == "bwd_many_batches" {
            continue; // planning only: its data would take minutes
        }
        let Ok(built) = g.build_with(&Device::cpu(), &BuildOptions::all_engines()) else { continue };
        for outcome in built.build_all() {
            let exe = outcome.result.unwrap_or_else(|e| panic!("{name}: {e}"));
            let mut data = Data::new(&exe, 7);
            data.run(&exe).unwrap_or_else(|e| panic!("{name} plan {}: {e}", outcome.plan));
            plans += 1;
        }
    }
    assert!(plans >= 30, "{plans} plans ran");
}

/// What a library keeps: the record of the fastest plan, timed on the caller's own buffers.
#[test]
fn tuning_gives_a_record_that_replays() {
    let built = build(&forward_backward(SMALL, false));
    let exe = built.best().unwrap().compile().unwrap();
    let (mut want, mut data) = (Data::new(&exe, 7), Data::new(&exe, 7));
    want.run(&exe).unwrap();
    let need = built.tune_workspace_bytes();
    assert_eq!(need, built.plans().map(|p| p.workspace_bytes().unwrap()).max().unwrap());
    let mut scratch = HostWorkspace::new(need).unwrap();
    let mut bindings = data.bindings();
    let tuned = built.tune(&Stream::cpu(), &mut bindings, &mut scratch.workspace(), Duration::ZERO).unwrap();
    drop(bindings);
    assert!(exe.operands().iter().all(|o| data.bytes(o.uid) == want.bytes(o.uid)), "outputs are results");
    assert!(tuned.failed.is_empty());
    assert_eq!(tuned.timings.len(), built.plan_count());
    assert!(tuned.timings.windows(2).all(|w| w[0].median() <= w[1].median()));
    for t in &tuned.timings {
        assert!(t.times.len() == 3 && t.times.is_sorted(), "three when there is no time for more");
        assert!(t.fastest() == t.times[0] && t.median() == t.times[1]);
        assert_eq!(t.workspace_bytes, t.plan.workspace_bytes().unwrap());
    }
    assert_eq!(built.replay(&tuned.best().records()).unwrap().to_string(), tuned.best().to_string());
    // A list of which nothing runs ends in the first plan's fault, an empty one in the declines.
    let e = built.tune(&Stream::cpu(), &mut data.bindings(), &mut Workspace::none(), Duration::ZERO).unwrap_err();
    assert_eq!(e.code, ErrorCode::Workspace);
    let none = BuildOptions { disable: Some(vec!["sdpa_fwd_cpu".into()]), allow_empty: true, ..BuildOptions::all_engines() };
    let built = forward(SMALL, |_, _, _| {}).build_with(&Device::cpu(), &none).unwrap();
    assert_eq!(built.tune_workspace_bytes(), 0);
    let e = built.tune(&Stream::cpu(), &mut Bindings::new(), &mut Workspace::none(), Duration::ZERO).unwrap_err();
    assert!(e.code == ErrorCode::NoPlan && !e.details.is_empty(), "{e}");
}

/// Which bytes of an output's buffer the graph declares: the lattice of a dense tensor, the 14 packed tokens of a ragged one.
fn declared(t: &Tensor, len: usize) -> Vec<bool> {
    let width = t.dtype.unwrap().bytes().unwrap() as usize;
    let mut mask = vec![false; len];
    if let Some(r) = t.ragged {
        mask[..14 * r.multiplier as usize * width].fill(true);
        return mask;
    }
    let mut at = vec![0i64];
    for (&d, &s) in t.dim.iter().zip(&t.stride) {
        at = at.iter().flat_map(|x| (0..d).map(move |i| x + i * s)).collect();
    }
    for x in at {
        mask[x as usize * width..][..width].fill(true);
    }
    mask
}

#[test]
fn outputs_are_written_whole_and_nothing_else_is_i6_s5() {
    let mut gaps = 0;
    for (name, g) in all() {
        if name == "bwd_many_batches" {
            continue;
        }
        let Ok(built) = g.build_with(&Device::cpu(), &BuildOptions::all_engines()) else { continue };
        let exe = built.best().unwrap().compile().unwrap();
        // Two runs whose outputs and workspace arrive poisoned differently: what was written is equal, what was not keeps its poison.
        let run = |poison: u8| -> Data {
            let mut data = Data::new(&exe, 3);
            for o in exe.operands().iter().filter(|o| o.written) {
                data.set(o.uid, &vec![poison; o.declared_bytes as usize]);
            }
            let mut w = HostWorkspace::new(exe.workspace_bytes()).unwrap();
            w.bytes_mut().fill(poison);
            exe.execute(&Stream::cpu(), &mut data.bindings(), &mut w.workspace()).unwrap();
            data
        };
        let (ones, fives) = (run(0xFF), run(0x55));
        for o in exe.operands().iter().filter(|o| o.written) {
            let t = built.graph().tensors().find(|(_, t)| t.uid == Some(o.uid)).unwrap().1;
            let (a, b) = (ones.bytes(o.uid), fives.bytes(o.uid));
            for (i, inside) in declared(t, a.len()).into_iter().enumerate() {
                let ok = if inside { a[i] == b[i] } else { (a[i], b[i]) == (0xFF, 0x55) };
                assert!(ok, "{name}: byte {i} of {} is {:#x} and {:#x}, declared: {inside}", o.label(), a[i], b[i]);
                gaps += usize::from(!inside);
            }
        }
    }
    assert!(gaps > 1000, "strided and packed outputs are among them");
}

#[test]
fn packed_buffers_that_are_too_short_are_an_error_and_empty_ones_are_fine() {
    let (_, g) = all().into_iter().find(|(n, _)| *n == "fwd_thd_stats").unwrap();
    let exe = best(&g);
    let run = |edit: &dyn Fn(&mut Bindings<'_>)| {
        let mut data = Data::new(&exe, 1);
        let mut b = data.bindings();
        edit(&mut b);
        let mut w = HostWorkspace::new(exe.workspace_bytes()).unwrap();
        exe.execute(&Stream::cpu(), &mut b, &mut w.workspace())
    };
    let token = 2 * 16;
    let exact = vec![0u16; 14 * token];
    run(&|b| {
        b.read(uid(&exe, "k"), Box::leak(exact.clone().into_boxed_slice()));
    })
    .unwrap();
    for name in ["q", "k", "v", "fwd::O"] {
        let e = run(&|b| {
            let short: &'static mut [u16] = Box::leak(vec![0u16; 14 * token - 1].into_boxed_slice());
            if name == "fwd::O" {
                b.write(uid(&exe, name), short);
            } else {
                b.read(uid(&exe, name), &*short);
            }
        })
        .unwrap_err();
        assert_eq!(e.code, ErrorCode::BadData, "{name} one element short: {e}");
    }
    // Field reports 15 and 18: all sequences empty, and no token to point at.
    run(&|b| {
        static ZERO: [i32; 3] = [0; 3];
        static NONE: [u16; 0] = [];
        for n in ["seq_len_q", "seq_len_kv"] {
            b.read(uid(&exe, n), &ZERO[..2]);
        }
        b.read(uid(&exe, "offset_q"), &ZERO);
        for n in ["q", "k", "v"] {
            b.read(uid(&exe, n), &NONE);
        }
        b.write::<u16>(uid(&exe, "fwd::O"), &mut []);
        b.write::<f32>(uid(&exe, "fwd::Stats"), &mut []);
    })
    .unwrap();
}

#[test]
fn a_handle_of_a_larger_graph_is_an_error() {
    let large = forward_backward(SMALL, false);
    let last = large.tensors().last().unwrap().0;
    let built = build(&forward(SMALL, |_, _, _| {}));
    assert_eq!(built.uid(last).unwrap_err().code, ErrorCode::BadTensor);
}

#[test]
fn forward_and_backward_in_one_graph_equal_separate_runs_bitwise() {
    for s in [SMALL, Shape { b: 1, hq: 4, hkv: 2, sq: 33, skv: 33, dqk: 24, dv: 8, ..SMALL }] {
        let both = best(&forward_backward(s, false));
        let visible = best(&forward_backward(s, true));
        assert!(both.workspace_bytes() > visible.workspace_bytes(), "O and Stats live in the workspace");
        let mut one = Data::new(&both, 11);
        one.run(&both).unwrap();

        let scale = Some(frostgraph::graph::AttnScale::Value(0.25));
        let fwd = best(&forward(s, |_, _, o: &mut Sdpa| {
            (o.mask, o.generate_stats, o.attn_scale) = (Mask::causal(), Some(true), scale);
        }));
        let bwd = best(&backward(s, |_, _, _, o: &mut SdpaBackward| (o.mask, o.attn_scale) = (Mask::causal(), scale)));
        let (mut f, mut b) = (Data::new(&fwd, 0), Data::new(&bwd, 0));
        for n in ["q", "k", "v"] {
            let bytes = one.bytes(uid(&both, n)).to_vec();
            f.set(uid(&fwd, n), &bytes);
            b.set(uid(&bwd, n), &bytes);
        }
        f.run(&fwd).unwrap();
        b.set(uid(&bwd, "dO"), one.bytes(uid(&both, "dO")));
        b.set(uid(&bwd, "o"), f.bytes(uid(&fwd, "fwd::O")));
        b.set(uid(&bwd, "stats"), f.bytes(uid(&fwd, "fwd::Stats")));
        b.run(&bwd).unwrap();
        for n in ["bwd::dQ", "bwd::dK", "bwd::dV"] {
            assert!(one.bytes(uid(&both, n)) == b.bytes(uid(&bwd, n)), "{n} differs");
            assert!(one.bytes(uid(&both, n)).iter().any(|x| *x != 0), "{n} is all zero");
        }
        let mut shown = Data::new(&visible, 11);
        shown.run(&visible).unwrap();
        assert!(
            shown.bytes(uid(&visible, "bwd::dQ")) == one.bytes(uid(&both, "bwd::dQ")),
            "a visible O is read back by the backward"
        );
    }
}

#[test]
fn workspace_sizes_follow_field_report_125() {
    let exe = best(&forward_backward(SMALL, false));
    let need = exe.workspace_bytes();
    assert!(need > 0);
    let run = |w: &mut Workspace<'_>| {
        let mut data = Data::new(&exe, 1);
        let r = exe.execute(&Stream::cpu(), &mut data.bindings(), w);
        r.map_err(|e| e.code)
    };
    let mut large = HostWorkspace::new(need + 4096).unwrap();
    let bytes = large.bytes_mut();
    bytes.fill(0xA5);
    assert_eq!(run(&mut Workspace::host(&mut bytes[1024..1024 + need as usize])), Ok(()), "exactly the size");
    assert!(bytes[..1024].iter().chain(&bytes[1024 + need as usize..]).all(|b| *b == 0xA5), "guards on both sides");
    let bytes = large.bytes_mut();
    assert_eq!(run(&mut Workspace::host(&mut bytes[..need as usize - 1])), Err(ErrorCode::Workspace), "one byte less");
    assert_eq!(run(&mut Workspace::host(&mut bytes[1..1 + need as usize])), Err(ErrorCode::Workspace), "misaligned by one");
    assert_eq!(run(&mut Workspace::none()), Err(ErrorCode::Workspace));
    assert_eq!(run(&mut Workspace::device(4096, need)), Err(ErrorCode::BindingDevice));
    for (name, g) in all() {
        if name == "bwd_many_batches" {
            continue;
        }
        let Ok(built) = g.build_with(&Device::cpu(), &BuildOptions::all_engines()) else { continue };
        let exe = built.best().unwrap().compile().unwrap();
        if exe.workspace_bytes() == 0 {
            let mut data = Data::new(&exe, 1);
            exe.execute(&Stream::cpu(), &mut data.bindings(), &mut Workspace::none()).unwrap();
        }
    }
}

#[test]
fn bindings_are_checked_before_anything_runs() {
    let exe = best(&backward(SMALL, |_, _, _, _| {}));
    let mut w = HostWorkspace::new(exe.workspace_bytes()).unwrap();
    let mut fails = |edit: &dyn Fn(&mut Bindings<'_>)| {
        let mut data = Data::new(&exe, 1);
        let mut b = data.bindings();
        edit(&mut b);
        exe.execute(&Stream::cpu(), &mut b, &mut w.workspace()).unwrap_err()
    };
    let (q, dq) = (uid(&exe, "q"), uid(&exe, "bwd::dQ"));
    static DATA: [u16; 2048] = [0; 2048];

    let e = fails(&|b| *b = Bindings::new());
    assert_eq!((e.code, e.at.as_str()), (ErrorCode::MissingBinding, exe.operands()[0].label().as_str()));
    let e = fails(&|b| {
        b.read(q, &DATA[..1023]);
    });
    assert_eq!(
        e.to_string(),
        format!("FG4002 at uid {q} 'q': 2046 bytes; expected at least 2048 bytes, from the first to the last addressed element")
    );
    let bytes: &[u8] = bytemuck::cast_slice(&DATA);
    let odd: &'static [u8] = Box::leak(vec![0u8; 4096].into_boxed_slice());
    let odd = &odd[1 - odd.as_ptr() as usize % 2..];
    let e = fails(&|b| {
        b.read(q, &odd[..2050]);
    });
    assert_eq!(e.code, ErrorCode::BufferAlignment, "{e}");
    assert!(bytes.len() >= 2048);
    let e = fails(&|b| {
        b.read(dq, &DATA[..1024]);
    });
    assert_eq!((e.code, e.given.as_str()), (ErrorCode::MissingBinding, "a buffer that is bound for reading"));
    let e = fails(&|b| {
        b.device(q, 4096, 1 << 20);
    });
    assert_eq!(e.code, ErrorCode::BindingDevice);
    let e = fails(&|b| {
        b.write(999, Box::leak(vec![0u8; 4].into_boxed_slice()));
    });
    assert_eq!(e.code, ErrorCode::MissingBinding, "an output that the graph does not have: {e}");
    let mut data = Data::new(&exe, 1);
    let e = exe.execute(&Stream::cuda(0), &mut data.bindings(), &mut w.workspace()).unwrap_err();
    assert_eq!(e.code, ErrorCode::BindingDevice, "a CUDA stream for a CPU plan");
}

#[test]
fn a_virtual_output_cannot_be_bound() {
    let g = forward_backward(SMALL, false);
    let built = build(&g);
    let exe = built.best().unwrap().compile().unwrap();
    let o = built.uid_by_name("fwd::O").unwrap();
    let mut data = Data::new(&exe, 1);
    let mut out = vec![0u16; 1024];
    let mut b = data.bindings();
    b.write(o, &mut out);
    let mut w = HostWorkspace::new(exe.workspace_bytes()).unwrap();
    let e = exe.execute(&Stream::cpu(), &mut b, &mut w.workspace()).unwrap_err();
    assert!(e.code == ErrorCode::MissingBinding && e.to_string().contains("Graph::output"), "{e}");
}

#[test]
fn bindings_survive_an_execution_and_an_error() {
    let exe = best(&forward(SMALL, |_, _, _| {}));
    let mut data = Data::new(&exe, 1);
    let mut b = data.bindings();
    let before: Vec<i64> = b.uids().collect();
    let mut w = HostWorkspace::new(exe.workspace_bytes()).unwrap();
    for _ in 0..2 {
        exe.execute(&Stream::cpu(), &mut b, &mut w.workspace()).unwrap();
        assert_eq!(b.uids().collect::<Vec<_>>(), before);
    }
    let padded = best(&forward(SMALL, |g, _, o| {
        o.mask = Mask::none().padded();
        (o.seq_len_q, o.seq_len_kv) = lengths(g, SMALL.b);
    }));
    let mut data = Data::new(&padded, 1);
    data.set(uid(&padded, "seq_len_kv"), bytemuck::cast_slice(&[17i32, 3]));
    let mut b = data.bindings();
    let before: Vec<i64> = b.uids().collect();
    let mut w = HostWorkspace::new(padded.workspace_bytes()).unwrap();
    let e = padded.execute(&Stream::cpu(), &mut b, &mut w.workspace()).unwrap_err();
    assert_eq!(e.code, ErrorCode::BadData, "a length of 17 with S_kv 16");
    assert!(e.to_string().contains("17") && e.to_string().contains("16"), "{e}");
    assert_eq!(b.uids().collect::<Vec<_>>(), before, "put back after the error");
}

#[test]
fn two_threads_execute_one_executable_with_different_buffers_i5() {
    let exe = best(&forward_backward(Shape { sq: 48, skv: 48, ..SMALL }, false));
    let alone: Vec<Data> = (0..4)
        .map(|seed| {
            let mut d = Data::new(&exe, seed);
            d.run(&exe).unwrap();
            d
        })
        .collect();
    for _ in 0..5 {
        let together: Vec<Data> = std::thread::scope(|s| {
            let hands: Vec<_> = (0..4)
                .map(|seed| {
                    let exe = &exe;
                    s.spawn(move || {
                        let mut d = Data::new(exe, seed);
                        d.run(exe).unwrap();
                        d
                    })
                })
                .collect();
            hands.into_iter().map(|h| h.join().unwrap()).collect()
        });
        for (a, b) in alone.iter().zip(&together) {
            for o in exe.operands() {
                assert!(a.bytes(o.uid) == b.bytes(o.uid), "{}", o.label());
            }
        }
    }
}

#[test]
fn a_chain_of_nodes_runs_each_once_and_in_order() {
    // dQ of one backward is the dO of the next: 20 nodes against 20 runs by hand.
    let s = Shape { b: 1, hq: 1, hkv: 1, sq: 8, skv: 8, dqk: 8, dv: 8, io: frostgraph::DType::F32 };
    let mut g = crate::support::graph(s.io);
    let io = |g: &mut Graph, n: &str| g.tensor(crate::support::bshd(n, 1, 1, 8, 8));
    let [q, k, v, o] = ["q", "k", "v", "o"].map(|n| io(&mut g, n));
    let stats = g.tensor(frostgraph::graph::Tensor::new("stats", [1, 1, 8, 1]));
    let mut d_o = io(&mut g, "dO");
    for i in 0..20 {
        let grads = g.sdpa_backward(q, k, v, o, d_o, stats, SdpaBackward::default()).unwrap();
        if i < 19 {
            // dK and dV of the inner nodes stay virtual.
            d_o = grads.dq;
        } else {
            for id in [grads.dq, grads.dk, grads.dv] {
                g.output(id).unwrap();
            }
            g.get_mut(grads.dq).unwrap().name = "last_dq".into();
        }
    }
    let exe = best(&g);
    let mut whole = Data::new(&exe, 5);
    whole.run(&exe).unwrap();

    let one = best(&backward(s, |_, _, _, _| {}));
    let mut step = Data::new(&one, 0);
    for n in ["q", "k", "v", "o", "dO", "stats"] {
        step.set(uid(&one, n), whole.bytes(uid(&exe, n)));
    }
    for i in 0..20 {
        step.run(&one).unwrap();
        if i < 19 {
            let next = step.bytes(uid(&one, "bwd::dQ")).to_vec();
            step.set(uid(&one, "dO"), &next);
        }
    }
    assert!(whole.bytes(uid(&exe, "last_dq")) == step.bytes(uid(&one, "bwd::dQ")));
}
