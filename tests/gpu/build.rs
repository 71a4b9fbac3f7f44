//! From a case to a graph; uids are fixed so that buffers and messages are the same everywhere.

use crate::cases::{Case, Layout, Lens, MaskKind};
use frostgraph::graph::{AttnScale, Graph, GraphOptions, Mask, SdpaBackward, Tensor, TensorId};
use frostgraph::{DType, Result};

pub const Q: i64 = 1;
pub const K: i64 = 2;
pub const V: i64 = 3;
pub const O: i64 = 4;
pub const D_O: i64 = 5;
pub const STATS: i64 = 6;
pub const BIAS: i64 = 7;
pub const SINK: i64 = 8;
pub const SEQ_Q: i64 = 9;
pub const SEQ_KV: i64 = 10;
/// Packed token offsets of the query side and of the key side.
pub const RAG_Q: i64 = 11;
pub const RAG_KV: i64 = 12;
pub const DQ: i64 = 21;
pub const DK: i64 = 22;
pub const DV: i64 = 23;
pub const DBIAS: i64 = 24;
pub const DSINK: i64 = 25;

/// Elements that a packed side leaves free before each sequence: token offsets need not be dense.
const GAP: i64 = 3;

/// Token offsets of a packed side: B + 1 of them.
pub fn offsets(lens: &[i64]) -> Vec<i64> {
    let mut at = vec![GAP];
    for len in lens {
        at.push(at[at.len() - 1] + len + GAP);
    }
    at
}

/// Tokens that a packed buffer holds.
pub fn tokens(lens: &[i64]) -> i64 {
    *offsets(lens).last().unwrap_or(&0)
}

pub fn strides(layout: Layout, [b, h, s, d]: [i64; 4]) -> [i64; 4] {
    match layout {
        Layout::Bshd => [s * h * d, d, h * d, 1],
        Layout::Bhsd => [h * s * d, s * d, d, 1],
        Layout::Sbhd => [h * d, d, b * h * d, 1],
        Layout::Gapped => {
            let row = h * (d + 8) + 16;
            [(s + 3) * row, d + 8, row, 1]
        }
    }
}

fn mask(kind: MaskKind) -> Mask {
    match kind {
        MaskKind::None => Mask::none(),
        MaskKind::Causal => Mask::causal(),
        MaskKind::CausalBottomRight => Mask::causal_bottom_right(),
        MaskKind::Band(r) => Mask { right_bound: Some(r), ..Mask::default() },
        MaskKind::Window(w) => Mask { left_bound: Some(w + 1), ..Mask::default() },
        MaskKind::CausalWindow(w) => Mask::causal().window(w + 1),
        MaskKind::BottomRightWindow(w) => Mask::causal_bottom_right().window(w + 1),
        MaskKind::TwoSided(w, r) => Mask { left_bound: Some(w + 1), right_bound: Some(r), ..Mask::default() },
    }
}

/// The graph of a case.
pub fn graph(c: &Case) -> Result<Graph> {
    let mut g = Graph::new(GraphOptions { io: c.dtype, ..GraphOptions::default() });
    let thd = matches!(c.lens, Lens::Thd { .. });
    let ints = |g: &mut Graph, name: &str, uid, n, dtype| g.tensor(Tensor::new(name, [n, 1, 1, 1]).dtype(dtype).uid(uid));
    let rag = match c.lens {
        Lens::Thd { wide, .. } => {
            let dtype = if wide { DType::I64 } else { DType::I32 };
            Some((ints(&mut g, "rag_q", RAG_Q, c.b + 1, dtype), ints(&mut g, "rag_kv", RAG_KV, c.b + 1, dtype)))
        }
        Lens::Full | Lens::Padded { .. } => None,
    };
    let side = |query: bool| rag.map(|(q, kv)| if query { q } else { kv });
    let strides_of = |layout, dim: [i64; 4]| strides(if thd { Layout::Bshd } else { layout }, dim);
    let input = |g: &mut Graph, name: &str, uid, dim: [i64; 4], query| {
        let mut t = Tensor::new(name, dim).strides(strides_of(c.layout, dim)).uid(uid);
        if let Some(offset) = side(query) {
            t = t.ragged(offset, dim[1] * dim[3]);
        }
        g.tensor(t)
    };
    let q_dim = [c.b, c.h_q, c.s_q, c.d_qk];
    let o_dim = [c.b, c.h_q, c.s_q, c.d_v];
    let (k_dim, v_dim) = ([c.b, c.h_kv, c.s_kv, c.d_qk], [c.b, c.h_kv, c.s_kv, c.d_v]);
    let q = input(&mut g, "Q", Q, q_dim, true);
    let k = input(&mut g, "K", K, k_dim, false);
    let v = input(&mut g, "V", V, v_dim, false);
    let o = input(&mut g, "O", O, o_dim, true);
    let d_o = input(&mut g, "dO", D_O, o_dim, true);
    let stats_dim = [c.b, c.h_q, c.s_q, 1];
    let stats_stride = match &c.lens {
        Lens::Thd { q, head_major: true, .. } => [1, tokens(q), 1, 1],
        Lens::Thd { .. } => [c.s_q * c.h_q, 1, c.h_q, 1],
        Lens::Full | Lens::Padded { .. } if c.strided_stats => [c.s_q * c.h_q * 3 + 5, 3, c.h_q * 3, 1],
        Lens::Full | Lens::Padded { .. } => [c.h_q * c.s_q, c.s_q, 1, 1],
    };
    let mut stats = Tensor::new("Stats", stats_dim).strides(stats_stride).dtype(DType::F32).uid(STATS);
    if let (Some(offset), Lens::Thd { head_major, .. }) = (side(true), &c.lens) {
        stats = stats.ragged(offset, if *head_major { 1 } else { c.h_q });
    }
    let stats = g.tensor(stats);
    let mut options = SdpaBackward {
        mask: mask(c.mask),
        attn_scale: Some(AttnScale::Value((c.d_qk as f32).sqrt().recip())),
        deterministic: c.deterministic,
        dbias: c.dbias.is_some(),
        dsink: c.sink,
        ..SdpaBackward::default()
    };
    if c.lens != Lens::Full {
        options.mask.padding = true;
        options.seq_len_q = Some(ints(&mut g, "seq_len_q", SEQ_Q, c.b, DType::I32));
        options.seq_len_kv = Some(ints(&mut g, "seq_len_kv", SEQ_KV, c.b, DType::I32));
    }
    if let Lens::Thd { q, kv, head_major: true, .. } = &c.lens {
        // Without a declared total the planner must assume B·S packed tokens, and this head stride is shorter.
        options.max_total_seq_len_q = Some(tokens(q));
        options.max_total_seq_len_kv = Some(tokens(kv));
    }
    if let Some((dtype, broadcast)) = c.bias {
        let dim = [if broadcast { 1 } else { c.b }, c.h_q, c.s_q, c.s_kv];
        options.bias = Some(g.tensor(Tensor::new("bias", dim).dtype(dtype).uid(BIAS)));
    }
    if c.sink {
        options.sink = Some(g.tensor(Tensor::new("sink", [1, c.h_q, 1, 1]).dtype(DType::F32).uid(SINK)));
    }
    let grads = g.sdpa_backward(q, k, v, o, d_o, stats, options)?;
    // Gradients lie in another order than the operands where the layout is about that.
    let out_layout = if c.layout == Layout::Gapped { Layout::Bhsd } else { c.layout };
    for (id, uid, dim, query) in [(grads.dq, DQ, q_dim, true), (grads.dk, DK, k_dim, false), (grads.dv, DV, v_dim, false)] {
        output(&mut g, id, uid, c.dtype)?;
        g.get_mut(id)?.dim = dim.to_vec();
        let mut stride = strides_of(out_layout, dim);
        if c.layout == Layout::Gapped && !thd {
            // A gap after each batch that no kernel may touch.
            stride[0] += 64;
        }
        g.get_mut(id)?.stride = stride.to_vec();
        if let Some(offset) = side(query) {
            g.ragged(id, offset, dim[1] * dim[3])?;
        }
    }
    if let (Some(id), Some(dtype)) = (grads.dbias, c.dbias) {
        output(&mut g, id, DBIAS, dtype)?;
    }
    if let Some(id) = grads.dsink {
        output(&mut g, id, DSINK, DType::F32)?;
    }
    Ok(g)
}

fn output(g: &mut Graph, id: TensorId, uid: i64, dtype: DType) -> Result<()> {
    g.output(id)?;
    let t = g.get_mut(id)?;
    t.uid = Some(uid);
    t.dtype = Some(dtype);
    Ok(())
}
