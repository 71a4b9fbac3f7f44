//! The graph of a backward case.

use super::{output, place, Parts, DBIAS, DK, DQ, DSINK, DV, D_O, K, O, Q, SEQ_KV, SEQ_Q, STATS, V};
use crate::cases::{Case, Lens};
use frostgraph::graph::{Graph, SdpaBackward, Tensor};
use frostgraph::{DType, Result};

pub fn graph(c: &Case) -> Result<Graph> {
    let mut p = Parts::new(c);
    let q_dim = [c.b, c.h_q, c.s_q, c.d_qk];
    let o_dim = [c.b, c.h_q, c.s_q, c.d_v];
    let (k_dim, v_dim) = ([c.b, c.h_kv, c.s_kv, c.d_qk], [c.b, c.h_kv, c.s_kv, c.d_v]);
    let q = p.input("Q", Q, q_dim, true);
    let k = p.input("K", K, k_dim, false);
    let v = p.input("V", V, v_dim, false);
    let o = p.input("O", O, o_dim, true);
    let d_o = p.input("dO", D_O, o_dim, true);
    let (stride, multiplier) = p.row_values();
    let mut stats = Tensor::new("Stats", [c.b, c.h_q, c.s_q, 1]).strides(stride).dtype(DType::F32).uid(STATS);
    if let Some(offset) = p.side(true) {
        stats = stats.ragged(offset, multiplier);
    }
    let stats = p.g.tensor(stats);
    let (max_total_seq_len_q, max_total_seq_len_kv) = p.totals();
    let mut options = SdpaBackward {
        mask: p.mask(),
        attn_scale: p.scale(),
        deterministic: c.deterministic,
        dbias: c.dbias.is_some(),
        dsink: c.sink,
        max_total_seq_len_q,
        max_total_seq_len_kv,
        ..SdpaBackward::default()
    };
    if c.lens != Lens::Full {
        options.seq_len_q = Some(p.ints("seq_len_q", SEQ_Q, c.b, DType::I32));
        options.seq_len_kv = Some(p.ints("seq_len_kv", SEQ_KV, c.b, DType::I32));
    }
    options.bias = p.bias();
    options.sink = p.sink();
    let grads = p.g.sdpa_backward(q, k, v, o, d_o, stats, options)?;
    for (id, uid, dim, query) in [(grads.dq, DQ, q_dim, true), (grads.dk, DK, k_dim, false), (grads.dv, DV, v_dim, false)] {
        output(&mut p.g, id, uid, c.dtype)?;
        place(&mut p, id, dim, query)?;
    }
    if let (Some(id), Some(dtype)) = (grads.dbias, c.dbias) {
        output(&mut p.g, id, DBIAS, dtype)?;
    }
    if let Some(id) = grads.dsink {
        output(&mut p.g, id, DSINK, DType::F32)?;
    }
    Ok(p.g)
}
