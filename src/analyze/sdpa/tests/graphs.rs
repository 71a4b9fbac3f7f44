//! Graphs that every reason is looked for in, and how they are edited.

use crate::graph::{FrozenGraph, Graph, GraphOptions, InPort, Mask, Op, OutPort, Sdpa, SdpaBackward, Tensor};
use crate::DType;

pub const B: i64 = 2;
pub const HQ: i64 = 4;
pub const HKV: i64 = 2;
pub const SQ: i64 = 16;
pub const SKV: i64 = 24;
pub const DQK: i64 = 32;
pub const DV: i64 = 16;

/// Everything a forward can be asked for without contradiction.
pub fn forward() -> FrozenGraph {
    let mut g = Graph::new(GraphOptions::default());
    let q = g.tensor(Tensor::new("Q", [B, HQ, SQ, DQK]));
    let k = g.tensor(Tensor::new("K", [B, HKV, SKV, DQK]));
    let v = g.tensor(Tensor::new("V", [B, HKV, SKV, DV]));
    let int = |g: &mut Graph, n| g.tensor(Tensor::new(n, [B, 1, 1, 1]).dtype(DType::I32));
    let options = Sdpa {
        mask: Mask::none().padded(),
        bias: Some(g.tensor(Tensor::new("bias", [1, HQ, SQ, SKV]))),
        kv_mask: Some(g.tensor(Tensor::new("kv_mask", [B, 1, 1, SKV]))),
        sink: Some(g.tensor(Tensor::new("sink", [1, HQ, 1, 1]).dtype(DType::F32))),
        seq_len_q: Some(int(&mut g, "len_q")),
        seq_len_kv: Some(int(&mut g, "len_kv")),
        generate_stats: Some(true),
        score_max: true,
        ..Sdpa::default()
    };
    g.sdpa(q, k, v, options).unwrap();
    g.freeze().unwrap()
}

pub fn paged() -> FrozenGraph {
    let mut g = Graph::new(GraphOptions::default());
    let q = g.tensor(Tensor::new("Q", [B, HQ, SQ, DQK]));
    let k = g.tensor(Tensor::new("K", [7, HKV, 8, DQK]));
    let v = g.tensor(Tensor::new("V", [7, HKV, 8, DV]));
    let int = |g: &mut Graph, n, pages| g.tensor(Tensor::new(n, [B, 1, pages, 1]).dtype(DType::I32));
    let options = Sdpa {
        mask: Mask::none().padded(),
        seq_len_q: Some(int(&mut g, "len_q", 1)),
        seq_len_kv: Some(int(&mut g, "len_kv", 1)),
        page_table_k: Some(int(&mut g, "table_k", 3)),
        page_table_v: Some(int(&mut g, "table_v", 3)),
        max_seq_len_kv: Some(20),
        ..Sdpa::default()
    };
    g.sdpa(q, k, v, options).unwrap();
    g.freeze().unwrap()
}

pub fn backward() -> FrozenGraph {
    let mut g = Graph::new(GraphOptions::default());
    let q = g.tensor(Tensor::new("Q", [B, HQ, SQ, DQK]));
    let k = g.tensor(Tensor::new("K", [B, HKV, SKV, DQK]));
    let v = g.tensor(Tensor::new("V", [B, HKV, SKV, DV]));
    let [o, d_o] = ["O", "dO"].map(|n| g.tensor(Tensor::new(n, [B, HQ, SQ, DV])));
    let stats = g.tensor(Tensor::new("Stats", [B, HQ, SQ, 1]).dtype(DType::F32));
    let options = SdpaBackward {
        bias: Some(g.tensor(Tensor::new("bias", [1, HQ, SQ, SKV]))),
        dbias: true,
        sink: Some(g.tensor(Tensor::new("sink", [1, HQ, 1, 1]).dtype(DType::F32))),
        dsink: true,
        ..SdpaBackward::default()
    };
    g.sdpa_backward(q, k, v, o, d_o, stats, options).unwrap();
    g.freeze().unwrap()
}

pub fn thd() -> FrozenGraph {
    let mut g = Graph::new(GraphOptions::default());
    let off = g.tensor(Tensor::new("off", [B + 1, 1, 1, 1]).dtype(DType::I32));
    let q = g.tensor(Tensor::new("Q", [B, HQ, SQ, DQK]).ragged(off, 1));
    let k = g.tensor(Tensor::new("K", [B, HKV, SKV, DQK]).ragged(off, 1));
    let v = g.tensor(Tensor::new("V", [B, HKV, SKV, DV]).ragged(off, 1));
    let int = |g: &mut Graph, n| g.tensor(Tensor::new(n, [B, 1, 1, 1]).dtype(DType::I32));
    let (seq_len_q, seq_len_kv) = (Some(int(&mut g, "len_q")), Some(int(&mut g, "len_kv")));
    let options = Sdpa { mask: Mask::none().padded(), seq_len_q, seq_len_kv, generate_stats: Some(true), ..Sdpa::default() };
    let out = g.sdpa(q, k, v, options).unwrap();
    g.ragged(out.o, off, 1).unwrap();
    g.ragged(out.stats.unwrap(), off, 1).unwrap();
    g.freeze().unwrap()
}

pub fn input(f: &mut FrozenGraph, port: InPort) -> &mut Tensor {
    let id = f.nodes[0].inputs[&port];
    &mut f.tensors[id.0 as usize]
}

pub fn output(f: &mut FrozenGraph, port: OutPort) -> &mut Tensor {
    let id = f.nodes[0].outputs[&port];
    &mut f.tensors[id.0 as usize]
}

pub fn remove_input(f: &mut FrozenGraph, port: InPort) {
    assert!(f.nodes[0].inputs.remove(&port).is_some());
}

pub fn remove_output(f: &mut FrozenGraph, port: OutPort) {
    assert!(f.nodes[0].outputs.remove(&port).is_some());
}

pub fn mask(f: &mut FrozenGraph) -> &mut Mask {
    match &mut f.nodes[0].op {
        Op::Sdpa(a) => &mut a.mask,
        Op::SdpaBackward(a) => &mut a.mask,
        Op::Nvfp4Qat(a) | Op::Nvfp4QatBackward(a) => &mut a.mask,
        Op::GroupedGemmDsrelu(_) | Op::MoeGroupedMatmul(_) => panic!("attention"),
    }
}
