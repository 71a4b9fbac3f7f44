//! The standalone backward against the graph that it stands for.

use crate::support::data::{Data, Rng};
use crate::support::{backward, lengths, Shape};
use frostgraph::exec::{HostWorkspace, Stream, Workspace};
use frostgraph::graph::{Alignment, AttnScale, Mask, Tensor};
use frostgraph::standalone::{scratch_workspace_bytes, sdpa_backward, Operand, SdpaBackwardCall};
use frostgraph::{DType, Device, ErrorCode};

const S: Shape = Shape { b: 2, hq: 4, hkv: 2, sq: 16, skv: 16, dqk: 16, dv: 16, io: DType::F32 };

fn floats(n: i64, seed: u64) -> Vec<f32> {
    let mut rng = Rng(seed);
    (0..n).map(|_| rng.unit()).collect()
}

struct Inputs {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    o: Vec<f32>,
    d_o: Vec<f32>,
    stats: Vec<f32>,
    sink: Vec<f32>,
    bias: Vec<f32>,
    len_q: Vec<i32>,
    len_kv: Vec<i32>,
}

fn inputs() -> Inputs {
    let (nq, nk) = (S.b * S.hq * S.sq * S.dqk, S.b * S.hkv * S.skv * S.dqk);
    Inputs {
        q: floats(nq, 1),
        k: floats(nk, 2),
        v: floats(nk, 3),
        o: floats(nq, 4),
        d_o: floats(nq, 5),
        stats: floats(S.b * S.hq * S.sq, 6).iter().map(|x| 2.5 + 0.2 * x).collect(),
        sink: floats(S.hq, 7),
        bias: floats(S.hq * S.sq * S.skv, 8),
        len_q: vec![13, 7],
        len_kv: vec![9, 16],
    }
}

const DQ: [i64; 4] = [2, 4, 16, 16];
const DK: [i64; 4] = [2, 2, 16, 16];

fn call(x: &Inputs) -> SdpaBackwardCall<'_> {
    let (q, k) = (|d| Operand::read(d, DQ), |d| Operand::read(d, DK));
    SdpaBackwardCall::new(q(&x.q), k(&x.k), k(&x.v), q(&x.o), q(&x.d_o), Operand::read(&x.stats, [2, 4, 16, 1]))
}

#[test]
fn gives_the_gradients_of_the_graph_it_stands_for() {
    let x = inputs();
    let [mut dq, mut dk, mut dv] = [x.q.len(), x.k.len(), x.v.len()].map(|n| vec![f32::NAN; n]);
    let (mut dsink, mut dbias) = (vec![f32::NAN; 4], vec![f32::NAN; x.bias.len()]);
    let mut c = call(&x);
    c.dq = Operand::write(&mut dq, DQ);
    c.dk = Operand::write(&mut dk, DK);
    c.dv = Operand::write(&mut dv, DK);
    (c.causal, c.causal_bottom_right, c.window_size_left, c.window_size_right) = (true, false, Some(5), Some(1));
    c.deterministic = true;
    c.seq_len_q = Operand::read(&x.len_q, [2, 1, 1, 1]);
    c.seq_len_kv = Operand::read(&x.len_kv, [2, 1, 1, 1]);
    c.sink = Operand::read(&x.sink, [1, 4, 1, 1]);
    c.dsink = Operand::write(&mut dsink, [1, 4, 1, 1]);
    c.bias = Operand::read(&x.bias, [1, 4, 16, 16]);
    c.dbias = Operand::write(&mut dbias, [1, 4, 16, 16]);
    let mut w = HostWorkspace::new(scratch_workspace_bytes(&Device::cpu(), &c).unwrap()).unwrap();
    w.bytes_mut().fill(0xFF);
    sdpa_backward(&Device::cpu(), &Stream::cpu(), c, &mut w.workspace()).unwrap();

    let g = backward(S, |g, t, s, o| {
        for id in [t.q, t.k, t.v, s.o, s.d_o] {
            g.get_mut(id).unwrap().stride = Vec::new();
        }
        // W = 5 is a length of 6; 1/sqrt(16) is the default scale.
        o.mask = Mask { left_bound: Some(6), right_bound: Some(1), alignment: Alignment::TopLeft, ..Mask::none() }.padded();
        o.attn_scale = Some(AttnScale::Value(0.25));
        (o.seq_len_q, o.seq_len_kv) = lengths(g, 2);
        o.sink = Some(g.tensor(Tensor::new("sink", [1, 4, 1, 1])));
        o.bias = Some(g.tensor(Tensor::new("bias", [1, 4, 16, 16])));
        (o.dsink, o.dbias, o.deterministic) = (true, true, true);
    });
    let built = g.build(&Device::cpu()).unwrap();
    let exe = built.best().unwrap().compile().unwrap();
    let mut data = Data::new(&exe, 0);
    let at = |n: &str| built.uid_by_name(n).unwrap();
    let named = [
        ("q", &x.q),
        ("k", &x.k),
        ("v", &x.v),
        ("o", &x.o),
        ("dO", &x.d_o),
        ("stats", &x.stats),
        ("sink", &x.sink),
        ("bias", &x.bias),
    ];
    for (n, v) in named {
        data.set(at(n), bytemuck::cast_slice(v));
    }
    data.set(at("seq_len_q"), bytemuck::cast_slice(&x.len_q));
    data.set(at("seq_len_kv"), bytemuck::cast_slice(&x.len_kv));
    data.run(&exe).unwrap();
    let outputs = [("bwd::dQ", &dq), ("bwd::dK", &dk), ("bwd::dV", &dv), ("bwd::DSINK_TOKEN", &dsink), ("bwd::dBias", &dbias)];
    for (n, v) in outputs {
        let want: &[f32] = bytemuck::cast_slice(data.bytes(at(n)));
        assert!(want == v.as_slice(), "{n}");
        assert!(v.iter().all(|x| x.is_finite()) && v.iter().any(|x| *x != 0.0), "{n} is finite and not all zero");
    }
}

#[test]
fn the_scale_defaults_to_one_over_the_root_of_the_head_dim() {
    let x = inputs();
    let run = |scale: Option<f32>| {
        let [mut dq, mut dk, mut dv] = [x.q.len(), x.k.len(), x.v.len()].map(|n| vec![f32::NAN; n]);
        let mut c = call(&x);
        (c.dq, c.dk, c.dv) = (Operand::write(&mut dq, DQ), Operand::write(&mut dk, DK), Operand::write(&mut dv, DK));
        c.scale = scale;
        let mut w = HostWorkspace::new(scratch_workspace_bytes(&Device::cpu(), &c).unwrap()).unwrap();
        sdpa_backward(&Device::cpu(), &Stream::cpu(), c, &mut w.workspace()).unwrap();
        (dq, dk, dv)
    };
    let default = run(None);
    assert!(default == run(Some(0.25)), "1/sqrt(16)");
    assert!(default != run(Some(1.0)), "the scale matters, and is part of the cache's key");
    assert!(default == run(None), "the first executable again");
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let x = inputs();
    type Edit = fn(&mut SdpaBackwardCall<'_>);
    let cases: [(Edit, ErrorCode); 8] = [
        (|c| c.causal_bottom_right = true, ErrorCode::BadAttribute),
        (|c| c.window_size_right = Some(1), ErrorCode::BadAttribute),
        (|c| c.window_size_left = Some(-1), ErrorCode::BadAttribute),
        (|c| c.seq_len_q = Operand::shape(DType::I32, [2, 1, 1, 1]), ErrorCode::BadAttribute),
        (|c| c.dsink = Operand::shape(DType::F32, [1, 4, 1, 1]), ErrorCode::BadAttribute),
        (|c| c.dbias = Operand::shape(DType::F32, [1, 4, 16, 16]), ErrorCode::BadAttribute),
        (|c| c.o = Operand::default(), ErrorCode::BadAttribute),
        (|c| c.scale = Some(f32::NAN), ErrorCode::BadAttribute),
    ];
    for (i, (edit, code)) in cases.into_iter().enumerate() {
        let mut c = call(&x);
        edit(&mut c);
        let e = scratch_workspace_bytes(&Device::cpu(), &c).unwrap_err();
        assert_eq!(e.code, code, "case {i}: {e}");
    }
    let e = sdpa_backward(&Device::cpu(), &Stream::cpu(), call(&x), &mut Workspace::none()).unwrap_err();
    assert_eq!(e.code, ErrorCode::MissingBinding, "gradients have nowhere to go: {e}");
    assert!(e.to_string().contains("'dq'"), "{e}");
}

#[test]
fn workspace_of_the_cuda_chain_equals_the_hand_computed_vectors_of_facts_6_2() {
    let bytes = |dim: [i64; 4], dim_kv: [i64; 4], deterministic: bool| {
        let at = |d| Operand::shape(DType::BF16, d);
        let stats = Operand::shape(DType::F32, [dim[0], dim[1], dim[2], 1]);
        let mut c = SdpaBackwardCall::new(at(dim), at(dim_kv), at(dim_kv), at(dim), at(dim), stats);
        c.deterministic = deterministic;
        scratch_workspace_bytes(&Device::describe("sm_120").unwrap(), &c).unwrap()
    };
    assert_eq!(bytes([2, 8, 200, 128], [2, 2, 300, 128], false), 4_571_648);
    assert_eq!(bytes([1, 4, 128, 64], [1, 4, 128, 64], false), 133_248);
}
