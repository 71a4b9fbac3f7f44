//! Graphs and data that the planning and execution tests share.

pub mod catalogue;
pub mod data;
pub mod golden;

use frostgraph::exec::Executable;
use frostgraph::graph::{Graph, GraphOptions, Sdpa, SdpaBackward, Tensor, TensorId};
use frostgraph::plan::{BuildOptions, Built};
use frostgraph::{DType, Device};

/// Geometry of one attention node.
#[derive(Clone, Copy)]
pub struct Shape {
    pub b: i64,
    pub hq: i64,
    pub hkv: i64,
    pub sq: i64,
    pub skv: i64,
    pub dqk: i64,
    pub dv: i64,
    pub io: DType,
}

/// Two batches, two heads, 16 queries and keys, head dim 16, bf16.
pub const SMALL: Shape = Shape { b: 2, hq: 2, hkv: 2, sq: 16, skv: 16, dqk: 16, dv: 16, io: DType::BF16 };

/// Operands that both directions have.
pub struct Qkv {
    pub q: TensorId,
    pub k: TensorId,
    pub v: TensorId,
}

/// (B, H, S, D) extents stored as (B, S, H, D).
pub fn bshd(name: &str, b: i64, h: i64, s: i64, d: i64) -> Tensor {
    Tensor::new(name, [b, h, s, d]).strides([s * h * d, d, h * d, 1])
}

pub fn graph(io: DType) -> Graph {
    Graph::new(GraphOptions { io, ..GraphOptions::default() })
}

fn qkv(g: &mut Graph, s: Shape) -> Qkv {
    Qkv {
        q: g.tensor(bshd("q", s.b, s.hq, s.sq, s.dqk)),
        k: g.tensor(bshd("k", s.b, s.hkv, s.skv, s.dqk)),
        v: g.tensor(bshd("v", s.b, s.hkv, s.skv, s.dv)),
    }
}

/// A forward graph with all its outputs visible; `edit` adds operands and options.
pub fn forward(s: Shape, edit: impl FnOnce(&mut Graph, &Qkv, &mut Sdpa)) -> Graph {
    let mut g = graph(s.io);
    let t = qkv(&mut g, s);
    let mut options = Sdpa { name: "fwd".into(), ..Sdpa::default() };
    edit(&mut g, &t, &mut options);
    let out = g.sdpa(t.q, t.k, t.v, options).unwrap();
    for id in [Some(out.o), out.stats, out.score_max, out.score_sum_exp, out.rng_dump].into_iter().flatten() {
        g.output(id).unwrap();
    }
    g
}

/// Operands of a backward besides Q, K and V.
pub struct Saved {
    pub o: TensorId,
    pub d_o: TensorId,
    pub stats: TensorId,
}

/// A backward graph with all its outputs visible; `edit` adds operands and options.
pub fn backward(s: Shape, edit: impl FnOnce(&mut Graph, &Qkv, &Saved, &mut SdpaBackward)) -> Graph {
    let mut g = graph(s.io);
    let t = qkv(&mut g, s);
    let saved = Saved {
        o: g.tensor(bshd("o", s.b, s.hq, s.sq, s.dv)),
        d_o: g.tensor(bshd("dO", s.b, s.hq, s.sq, s.dv)),
        stats: g.tensor(Tensor::new("stats", [s.b, s.hq, s.sq, 1]).dtype(DType::F32)),
    };
    let mut options = SdpaBackward { name: "bwd".into(), ..SdpaBackward::default() };
    edit(&mut g, &t, &saved, &mut options);
    let out = g.sdpa_backward(t.q, t.k, t.v, saved.o, saved.d_o, saved.stats, options).unwrap();
    for id in [Some(out.dq), Some(out.dk), Some(out.dv), out.dbias, out.dsink, out.rng_dump].into_iter().flatten() {
        g.output(id).unwrap();
    }
    g
}

/// An i32 tensor of `n` values.
pub fn ints(g: &mut Graph, name: &str, n: i64) -> TensorId {
    g.tensor(Tensor::new(name, [n, 1, 1, 1]).dtype(DType::I32))
}

/// Both length tensors, named `seq_len_q` and `seq_len_kv`.
pub fn lengths(g: &mut Graph, b: i64) -> (Option<TensorId>, Option<TensorId>) {
    (Some(ints(g, "seq_len_q", b)), Some(ints(g, "seq_len_kv", b)))
}

/// Built for the CPU with every engine.
pub fn build(g: &Graph) -> Built {
    g.build_with(&Device::cpu(), &BuildOptions::all_engines()).unwrap()
}

pub fn best(g: &Graph) -> Executable {
    build(g).best().unwrap().compile().unwrap()
}

pub fn uid(exe: &Executable, name: &str) -> i64 {
    exe.operands().iter().find(|o| o.name == name).unwrap_or_else(|| panic!("no operand {name}")).uid
}
