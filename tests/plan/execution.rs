//! From a graph to outputs on the CPU: every listed plan, tuning, several nodes, two threads.

use crate::support::catalogue::{all, forward_backward};
use crate::support::data::Data;
use crate::support::{backward, best, build, forward, uid, Shape, SMALL};
use frostgraph::exec::{Bindings, HostWorkspace, Stream, Workspace};
use frostgraph::graph::{Graph, Mask, Sdpa, SdpaBackward, Tensor};
use frostgraph::plan::BuildOptions;
use frostgraph::{Device, ErrorCode};
use std::time::Duration;

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
