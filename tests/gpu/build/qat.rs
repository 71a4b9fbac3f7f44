//! The graphs of NVFP4 QAT cases.

use super::{output, place, Parts, DK, DQ, DV, D_O, HIGH, K, O, Q, SEQ_KV, SEQ_Q, STATS, V};
use crate::cases::{Case, Lens};
use frostgraph::graph::{Graph, Nvfp4Qat, Nvfp4QatBackward, Tensor, TensorId};
use frostgraph::{DType, Result};

/// Q, K, V and the lengths.
struct Common {
    q: TensorId,
    k: TensorId,
    v: TensorId,
    seq_len_q: Option<TensorId>,
    seq_len_kv: Option<TensorId>,
}

fn common(p: &mut Parts<'_>) -> Common {
    let c = p.c;
    let q = p.input("Q", Q, [c.b, c.h_q, c.s_q, c.d_qk], true);
    let k = p.input("K", K, [c.b, c.h_kv, c.s_kv, c.d_qk], false);
    let v = p.input("V", V, [c.b, c.h_kv, c.s_kv, c.d_v], false);
    let padded = c.lens != Lens::Full;
    let seq_len_q = padded.then(|| p.ints("seq_len_q", SEQ_Q, c.b, DType::I32));
    let seq_len_kv = padded.then(|| p.ints("seq_len_kv", SEQ_KV, c.b, DType::I32));
    Common { q, k, v, seq_len_q, seq_len_kv }
}

pub fn forward(c: &Case) -> Result<Graph> {
    let mut p = Parts::new(c);
    let Common { q, k, v, seq_len_q, seq_len_kv } = common(&mut p);
    let options = Nvfp4Qat { mask: p.mask(), attn_scale: Some(c.scale()), seq_len_q, seq_len_kv, ..Nvfp4Qat::default() };
    let out = p.g.nvfp4_attention_qat_forward(q, k, v, options)?;
    for (id, uid) in [(out.o, O), (out.high_precision_o, HIGH)] {
        output(&mut p.g, id, uid, c.dtype)?;
        place(&mut p, id, [c.b, c.h_q, c.s_q, c.d_v], true)?;
    }
    output(&mut p.g, out.lse, STATS, DType::F32)?;
    let (stride, _) = p.row_values();
    let t = p.g.get_mut(out.lse)?;
    (t.dim, t.stride) = (vec![c.b, c.h_q, c.s_q, 1], stride.to_vec());
    Ok(p.g)
}

pub fn backward(c: &Case) -> Result<Graph> {
    let mut p = Parts::new(c);
    let Common { q, k, v, seq_len_q, seq_len_kv } = common(&mut p);
    let o_dim = [c.b, c.h_q, c.s_q, c.d_v];
    let o = p.input("high_precision_o", O, o_dim, true);
    let d_o = p.input("dO", D_O, o_dim, true);
    let (stride, _) = p.row_values();
    let lse = p.g.tensor(Tensor::new("lse", [c.b, c.h_q, c.s_q, 1]).strides(stride).dtype(DType::F32).uid(STATS));
    let options = Nvfp4QatBackward {
        mask: p.mask(),
        attn_scale: Some(c.scale()),
        seq_len_q,
        seq_len_kv,
        deterministic: c.deterministic,
        ..Nvfp4QatBackward::default()
    };
    let grads = p.g.nvfp4_attention_qat_backward(d_o, q, k, v, o, lse, options)?;
    let (q_dim, k_dim, v_dim) = ([c.b, c.h_q, c.s_q, c.d_qk], [c.b, c.h_kv, c.s_kv, c.d_qk], [c.b, c.h_kv, c.s_kv, c.d_v]);
    for (id, uid, dim, query) in [(grads.dq, DQ, q_dim, true), (grads.dk, DK, k_dim, false), (grads.dv, DV, v_dim, false)] {
        output(&mut p.g, id, uid, c.dtype)?;
        place(&mut p, id, dim, query)?;
    }
    Ok(p.g)
}
