//! NVFP4 QAT graphs for the NVRTC sweep: every head-dim flavour of a row in its default plan, and the busiest switches on some devices.

use super::forward::launches_of;
use frostgraph::engines::{Launch, Row};
use frostgraph::graph::{Graph, GraphOptions, Mask, Nvfp4Qat, Nvfp4QatBackward, Tensor, TensorId};
use frostgraph::DType;

const HEADS: i64 = 8;
const ROWS: i64 = 512;

struct Shape {
    d_qk: i64,
    d_v: i64,
    heads_kv: i64,
    /// Mask with every switch.
    rich: bool,
}

fn operand(g: &mut Graph, name: &str, heads: i64, d: i64) -> TensorId {
    g.tensor(Tensor::new(name, [1, heads, ROWS, d]).strides([ROWS * heads * d, d, heads * d, 1]))
}

fn lengths(g: &mut Graph, rich: bool, name: &str) -> Option<TensorId> {
    rich.then(|| g.tensor(Tensor::new(name, [1, 1, 1, 1]).dtype(DType::I32)))
}

fn graph(s: &Shape, backward: bool) -> Graph {
    let mut g = Graph::new(GraphOptions { io: DType::BF16, ..GraphOptions::default() });
    let q = operand(&mut g, "q", HEADS, s.d_qk);
    let k = operand(&mut g, "k", s.heads_kv, s.d_qk);
    let v = operand(&mut g, "v", s.heads_kv, s.d_v);
    let mask = if s.rich { Mask::causal_bottom_right().window(34).padded() } else { Mask::causal() };
    let attn_scale = Some(0.125);
    let (seq_len_q, seq_len_kv) = (lengths(&mut g, s.rich, "seq_len_q"), lengths(&mut g, s.rich, "seq_len_kv"));
    let outputs = if backward {
        let d_o = operand(&mut g, "d_o", HEADS, s.d_v);
        let o = operand(&mut g, "high_precision_o", HEADS, s.d_v);
        let lse = g.tensor(Tensor::new("lse", [1, HEADS, ROWS, 1]).dtype(DType::F32));
        let options = Nvfp4QatBackward { mask, attn_scale, seq_len_q, seq_len_kv, ..Nvfp4QatBackward::default() };
        let out = g.nvfp4_attention_qat_backward(d_o, q, k, v, o, lse, options).unwrap();
        [out.dq, out.dk, out.dv]
    } else {
        let options = Nvfp4Qat { mask, attn_scale, seq_len_q, seq_len_kv, ..Nvfp4Qat::default() };
        let out = g.nvfp4_attention_qat_forward(q, k, v, options).unwrap();
        [out.o, out.high_precision_o, out.lse]
    };
    for id in outputs {
        g.output(id).unwrap();
    }
    g
}

/// What the sweep compiles of a QAT row for one head-dim flavour on one architecture. The plain forward's kernels, which the QAT forward
/// launches as they are, belong to the sweep of the plain forward.
pub fn work(row: &Row, (d_qk, d_v): (i64, i64), cc: u32) -> Vec<Launch> {
    let backward = row.name.starts_with("nvfp4_qat_bwd");
    let mut shapes = vec![Shape { d_qk, d_v, heads_kv: HEADS, rich: false }];
    if cc == 90 || cc == 120 {
        shapes.push(Shape { d_qk, d_v, heads_kv: 2, rich: true });
    }
    let all = shapes.iter().flat_map(|s| launches_of(row, &graph(s, backward), cc));
    all.filter(|l| !l.kernel.entry.starts_with("fg_sdpa_fwd")).collect()
}
