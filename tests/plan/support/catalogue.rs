//! The graphs of the golden tests: what is served, and what is declined with a reason.

use super::{backward, bshd, forward, graph, ints, lengths, Shape, SMALL};
use frostgraph::graph::{AttnScale, Dropout, Graph, Mask, ScalarValue, Sdpa, SdpaBackward, Tensor, TensorId};
use frostgraph::DType;

const LARGE: Shape = Shape { b: 2, hq: 8, hkv: 2, sq: 256, skv: 256, dqk: 64, dv: 64, io: DType::BF16 };

fn typed(io: DType) -> Shape {
    Shape { io, ..SMALL }
}

fn dims(dqk: i64, dv: i64) -> Shape {
    Shape { dqk, dv, ..SMALL }
}

/// Packs a (B, H, S, D) tensor: batch b begins at token `offset[b]`.
fn pack(g: &mut Graph, id: TensorId, offset: TensorId) {
    let t = g.get(id).unwrap();
    let tokens = t.dim[1] * t.dim[3];
    g.ragged(id, offset, tokens).unwrap();
}

fn thd_forward(stats: bool) -> Graph {
    let s = SMALL;
    let mut g = graph(s.io);
    let off = ints(&mut g, "offset_q", s.b + 1);
    let (h, d) = (s.hq * s.dqk, s.dqk);
    let q = g.tensor(bshd("q", s.b, s.hq, s.sq, s.dqk).ragged(off, h));
    let k = g.tensor(bshd("k", s.b, s.hkv, s.skv, s.dqk).ragged(off, h));
    let v = g.tensor(bshd("v", s.b, s.hkv, s.skv, s.dv).ragged(off, h));
    let (seq_len_q, seq_len_kv) = lengths(&mut g, s.b);
    let mask = Mask::causal().padded();
    let options = Sdpa { name: "fwd".into(), mask, seq_len_q, seq_len_kv, generate_stats: Some(stats), ..Sdpa::default() };
    let out = g.sdpa(q, k, v, options).unwrap();
    let o = g.get_mut(out.o).unwrap();
    (o.dim, o.stride) = (vec![s.b, s.hq, s.sq, d], vec![s.sq * h, d, h, 1]);
    g.ragged(out.o, off, h).unwrap();
    g.output(out.o).unwrap();
    if let Some(st) = out.stats {
        let t = g.get_mut(st).unwrap();
        (t.dim, t.stride, t.dtype) = (vec![s.b, s.hq, s.sq, 1], vec![s.sq * s.hq, 1, s.hq, 1], Some(DType::F32));
        g.ragged(st, off, s.hq).unwrap();
        g.output(st).unwrap();
    }
    g
}

fn thd_backward(dense_stats: bool) -> Graph {
    let s = SMALL;
    let mut g = graph(s.io);
    let off = ints(&mut g, "offset_q", s.b + 1);
    let h = s.hq * s.dqk;
    let [q, k, v, o, d_o] = ["q", "k", "v", "o", "dO"].map(|n| g.tensor(bshd(n, s.b, s.hq, s.sq, s.dqk).ragged(off, h)));
    let mut stats = Tensor::new("stats", [s.b, s.hq, s.sq, 1]).dtype(DType::F32);
    if !dense_stats {
        stats = stats.strides([s.sq * s.hq, 1, s.hq, 1]).ragged(off, s.hq);
    }
    let stats = g.tensor(stats);
    let (seq_len_q, seq_len_kv) = lengths(&mut g, s.b);
    let options =
        SdpaBackward { name: "bwd".into(), mask: Mask::none().padded(), seq_len_q, seq_len_kv, ..SdpaBackward::default() };
    let out = g.sdpa_backward(q, k, v, o, d_o, stats, options).unwrap();
    for id in [out.dq, out.dk, out.dv] {
        let t = g.get_mut(id).unwrap();
        (t.dim, t.stride) = (vec![s.b, s.hq, s.sq, s.dqk], vec![s.sq * h, s.dqk, h, 1]);
        pack(&mut g, id, off);
        g.output(id).unwrap();
    }
    g
}

fn paged_forward() -> Graph {
    let s = SMALL;
    let mut g = graph(s.io);
    let q = g.tensor(bshd("q", s.b, s.hq, 1, s.dqk));
    let k = g.tensor(bshd("k", 8, s.hkv, 4, s.dqk));
    let v = g.tensor(bshd("v", 8, s.hkv, 4, s.dv));
    let [tk, tv] = ["page_table_k", "page_table_v"].map(|n| g.tensor(Tensor::new(n, [s.b, 1, 4, 1]).dtype(DType::I32)));
    let (_, seq_len_kv) = (0, Some(ints(&mut g, "seq_len_kv", s.b)));
    let seq_len_q = Some(g.tensor(Tensor::new("ones", [s.b, 1, 1, 1]).dtype(DType::I32)));
    let out = g
        .sdpa(
            q,
            k,
            v,
            Sdpa {
                name: "fwd".into(),
                mask: Mask::none().padded(),
                seq_len_q,
                seq_len_kv,
                page_table_k: Some(tk),
                page_table_v: Some(tv),
                max_seq_len_kv: Some(16),
                ..Sdpa::default()
            },
        )
        .unwrap();
    g.output(out.o).unwrap();
    g
}

/// Forward and backward in one graph; O and Stats stay inside when `keep` is false.
pub fn forward_backward(s: Shape, keep: bool) -> Graph {
    let mut g = graph(s.io);
    let q = g.tensor(bshd("q", s.b, s.hq, s.sq, s.dqk));
    let k = g.tensor(bshd("k", s.b, s.hkv, s.skv, s.dqk));
    let v = g.tensor(bshd("v", s.b, s.hkv, s.skv, s.dv));
    let d_o = g.tensor(bshd("dO", s.b, s.hq, s.sq, s.dv));
    let scale = Some(AttnScale::Value(0.25));
    let fwd = Sdpa { name: "fwd".into(), mask: Mask::causal(), attn_scale: scale, generate_stats: Some(true), ..Sdpa::default() };
    let out = g.sdpa(q, k, v, fwd).unwrap();
    g.get_mut(out.o).unwrap().dtype = Some(s.io);
    let bwd = SdpaBackward { name: "bwd".into(), mask: Mask::causal(), attn_scale: scale, ..SdpaBackward::default() };
    let grads = g.sdpa_backward(q, k, v, out.o, d_o, out.stats.unwrap(), bwd).unwrap();
    for id in [grads.dq, grads.dk, grads.dv] {
        g.output(id).unwrap();
    }
    if keep {
        g.output(out.o).unwrap();
        g.output(out.stats.unwrap()).unwrap();
    }
    g
}

fn bias(g: &mut Graph, dim: [i64; 4], dtype: DType) -> Option<TensorId> {
    Some(g.tensor(Tensor::new("bias", dim).dtype(dtype)))
}

/// Declares strides of an operation's output, which otherwise takes those of its input.
fn own_strides(g: &mut Graph, name: &str, stride: [i64; 4]) {
    let id = g.tensors().find(|(_, t)| t.name == name).unwrap().0;
    let t = g.get_mut(id).unwrap();
    (t.dim, t.stride) = (vec![2, 2, 16, 16], stride.to_vec());
}

/// Every graph by name. Names become file names.
pub fn all() -> Vec<(&'static str, Graph)> {
    let mut list: Vec<(&'static str, Graph)> = Vec::new();
    let mut add = |name: &'static str, g: Graph| list.push((name, g));

    add("fwd_plain_bf16", forward(SMALL, |_, _, _| {}));
    add("fwd_stats_f16", forward(typed(DType::F16), |_, _, o| o.generate_stats = Some(true)));
    add("fwd_f32", forward(typed(DType::F32), |_, _, o| o.is_inference = Some(false)));
    add("fwd_causal_gqa", forward(LARGE, |_, _, o| (o.mask, o.generate_stats) = (Mask::causal(), Some(true))));
    add("fwd_causal_bottom_right", forward(Shape { sq: 8, ..SMALL }, |_, _, o| o.mask = Mask::causal_bottom_right()));
    add("fwd_window", forward(SMALL, |_, _, o| o.mask = Mask::causal().window(4)));
    add("fwd_right_band", forward(SMALL, |_, _, o| o.mask.right_bound = Some(2)));
    add(
        "fwd_padding",
        forward(SMALL, |g, _, o| {
            o.mask = Mask::none().padded();
            (o.seq_len_q, o.seq_len_kv) = lengths(g, SMALL.b);
            o.generate_stats = Some(true);
        }),
    );
    add(
        "fwd_cu_seq_len",
        forward(SMALL, |g, _, o| {
            o.mask = Mask::none().padded();
            (o.cu_seq_len_q, o.cu_seq_len_kv) = (Some(ints(g, "cu_seq_len_q", 3)), Some(ints(g, "cu_seq_len_kv", 3)));
        }),
    );
    add("fwd_thd", thd_forward(false));
    add("fwd_thd_stats", thd_forward(true));
    let mut g = thd_forward(true);
    let stats = g.tensors().find(|(_, t)| t.name == "fwd::Stats").unwrap().0;
    let t = g.get_mut(stats).unwrap();
    (t.ragged, t.stride) = (None, vec![32, 16, 1, 1]);
    add("fwd_thd_dense_stats", g);
    add("fwd_paged_decode", paged_forward());
    add("fwd_mla_192_128", forward(dims(192, 128), |_, _, o| o.mask = Mask::causal()));
    add("fwd_bias_broadcast", forward(SMALL, |g, _, o| o.bias = bias(g, [1, 2, 16, 16], DType::F32)));
    add(
        "fwd_sink_log2",
        forward(SMALL, |g, _, o| {
            o.sink = Some(g.tensor(Tensor::new("sink", [1, 2, 1, 1]).dtype(DType::F32)));
            (o.generate_stats, o.stats_use_log2) = (Some(true), true);
        }),
    );
    add("fwd_zero_scale", forward(SMALL, |_, _, o| o.attn_scale = Some(AttnScale::Value(0.0))));
    add(
        "fwd_dropout",
        forward(SMALL, |g, _, o| {
            let seed = Some(g.scalar("seed", ScalarValue::I64(1)));
            let offset = Some(g.scalar("offset", ScalarValue::I64(0)));
            o.dropout = Dropout { probability: Some(0.1), seed, offset, ..Dropout::default() };
        }),
    );
    add("fwd_alibi", forward(SMALL, |_, _, o| (o.mask.alibi, o.mask.causal) = (true, true)));
    add(
        "fwd_block_mask",
        forward(SMALL, |g, _, o| {
            o.block_mask = Some(g.tensor(Tensor::new("block_mask", [2, 2, 1, 1]).dtype(DType::U8)));
        }),
    );
    add("fwd_score_mod", forward(SMALL, |_, _, o| o.score_mod = true));
    add("fwd_score_max_sum", forward(SMALL, |_, _, o| (o.score_max, o.score_sum_exp) = (true, true)));
    add("fwd_kv_mask", forward(SMALL, |g, _, o| o.kv_mask = Some(g.tensor(Tensor::new("kv_mask", [2, 1, 1, 16])))));
    add(
        "fwd_rng_dump",
        forward(SMALL, |g, _, o| {
            let seed = Some(g.scalar("seed", ScalarValue::I64(1)));
            let offset = Some(g.scalar("offset", ScalarValue::I64(0)));
            o.dropout = Dropout { probability: Some(0.1), seed, offset, ..Dropout::default() };
            o.rng_dump = true;
        }),
    );
    add(
        "fwd_tensor_scale",
        forward(SMALL, |g, _, o| {
            o.attn_scale = Some(AttnScale::Tensor(g.scalar("scale", ScalarValue::F32(0.5))));
        }),
    );
    add("fwd_prefolded", forward(SMALL, |_, _, o| o.attn_scale_prefolded = true));
    add("fwd_unfuse_fma", forward(SMALL, |_, _, o| o.unfuse_fma = true));
    add("fwd_softmax_half", forward(SMALL, |_, _, o| o.softmax_precision = Some(DType::F16)));
    add("fwd_i8", forward(typed(DType::I8), |_, _, _| {}));
    add("fwd_e5m2", forward(typed(DType::F8E5M2), |_, _, _| {}));
    add(
        "fwd_dropout_mask",
        forward(SMALL, |g, _, o| {
            let mask = Some(g.tensor(Tensor::new("dropout_mask", [2, 2, 16, 16])));
            let scale = Some(g.scalar("dropout_scale", ScalarValue::F32(1.25)));
            o.dropout = Dropout { mask, scale, ..Dropout::default() };
        }),
    );
    add("bwd_i8", backward(typed(DType::I8), |_, _, _, _| {}));
    add("bwd_e5m2", backward(typed(DType::F8E5M2), |_, _, _, _| {}));
    add("bwd_f64", backward(typed(DType::F64), |_, _, _, _| {}));
    add(
        "bwd_dropout",
        backward(SMALL, |g, _, _, o| {
            let seed = Some(g.scalar("seed", ScalarValue::I64(1)));
            let offset = Some(g.scalar("offset", ScalarValue::I64(0)));
            o.dropout = Dropout { probability: Some(0.1), seed, offset, ..Dropout::default() };
        }),
    );
    add(
        "bwd_rng_dump",
        backward(SMALL, |g, _, _, o| {
            let seed = Some(g.scalar("seed", ScalarValue::I64(1)));
            let offset = Some(g.scalar("offset", ScalarValue::I64(0)));
            o.dropout = Dropout { probability: Some(0.1), seed, offset, ..Dropout::default() };
            o.rng_dump = true;
        }),
    );
    add("fwd_fp8", forward(typed(DType::F8E4M3), |_, _, _| {}));
    add("fwd_f64", forward(typed(DType::F64), |_, _, _| {}));
    add("fwd_mixed_dtypes", forward(SMALL, |g, t, _| g.get_mut(t.v).unwrap().dtype = Some(DType::F16)));

    add("bwd_plain_bf16", backward(SMALL, |_, _, _, _| {}));
    add("bwd_f32", backward(typed(DType::F32), |_, _, _, _| {}));
    add("bwd_deterministic_causal_gqa", backward(LARGE, |_, _, _, o| (o.mask, o.deterministic) = (Mask::causal(), true)));
    add("bwd_deterministic_d128", backward(dims(128, 128), |_, _, _, o| o.deterministic = true));
    add("bwd_d256", backward(dims(256, 256), |_, _, _, _| {}));
    add("bwd_d40", backward(dims(40, 40), |_, _, _, _| {}));
    add("bwd_d512", backward(dims(512, 512), |_, _, _, _| {}));
    add("bwd_mla_192_128", backward(dims(192, 128), |_, _, _, o| o.mask = Mask::causal()));
    add("bwd_dv_above_dqk", backward(dims(64, 128), |_, _, _, _| {}));
    add(
        "bwd_window_bottom_right",
        backward(Shape { sq: 8, ..SMALL }, |_, _, _, o| o.mask = Mask::causal_bottom_right().window(5)),
    );
    add(
        "bwd_padding",
        backward(SMALL, |g, _, _, o| {
            o.mask = Mask::causal().padded();
            (o.seq_len_q, o.seq_len_kv) = lengths(g, SMALL.b);
        }),
    );
    add("bwd_thd", thd_backward(false));
    add("bwd_thd_dense_stats", thd_backward(true));
    add("bwd_bias_dbias", backward(SMALL, |g, _, _, o| (o.bias, o.dbias) = (bias(g, [2, 2, 16, 16], DType::BF16), true)));
    add(
        "bwd_deterministic_broadcast_dbias",
        backward(SMALL, |g, _, _, o| {
            (o.bias, o.dbias, o.deterministic) = (bias(g, [1, 2, 16, 16], DType::F32), true, true);
        }),
    );
    add(
        "bwd_sink_dsink",
        backward(SMALL, |g, _, _, o| {
            o.sink = Some(g.tensor(Tensor::new("sink", [1, 2, 1, 1]).dtype(DType::F32)));
            o.dsink = true;
        }),
    );
    add("bwd_strided_stats", backward(SMALL, |g, _, s, _| g.get_mut(s.stats).unwrap().stride = vec![32, 1, 2, 1]));
    add("bwd_strided_head_dim", backward(SMALL, |g, t, _, _| g.get_mut(t.q).unwrap().stride = vec![1024, 512, 2, 32]));
    add("bwd_stride_not_16_bytes", backward(SMALL, |g, t, _, _| g.get_mut(t.k).unwrap().stride = vec![1024, 20, 40, 1]));
    add("bwd_alignment_4", backward(SMALL, |g, t, _, _| g.get_mut(t.q).unwrap().alignment = 4));
    let mut g = backward(SMALL, |g, t, _, _| g.get_mut(t.v).unwrap().stride = vec![512, 0, 16, 1]);
    own_strides(&mut g, "bwd::dV", [512, 256, 16, 1]);
    add("bwd_broadcast_v", g);
    add("bwd_alibi", backward(SMALL, |_, _, _, o| (o.mask.alibi, o.mask.causal) = (true, true)));
    add("bwd_score_mod", backward(SMALL, |_, _, _, o| o.score_mod = true));
    add(
        "bwd_dropout_mask",
        backward(SMALL, |g, _, _, o| {
            let mask = Some(g.tensor(Tensor::new("dropout_mask", [2, 2, 16, 16])));
            let scale = Some(g.scalar("dropout_scale", ScalarValue::F32(1.25)));
            o.dropout = Dropout { mask, scale, ..Dropout::default() };
        }),
    );
    add(
        "bwd_tensor_scale",
        backward(SMALL, |g, _, _, o| {
            o.attn_scale = Some(AttnScale::Tensor(g.scalar("scale", ScalarValue::F32(0.5))));
        }),
    );
    add("bwd_zero_scale", backward(SMALL, |_, _, _, o| o.attn_scale = Some(AttnScale::Value(0.0))));
    add("bwd_fp8", backward(typed(DType::F8E4M3), |_, _, _, _| {}));
    add("bwd_mixed_dtypes", backward(SMALL, |g, _, s, _| g.get_mut(s.d_o).unwrap().dtype = Some(DType::F32)));
    add("bwd_many_batches", backward(Shape { b: 65537, sq: 2, skv: 2, dqk: 8, dv: 8, ..SMALL }, |_, _, _, _| {}));

    add("fwd_bwd", forward_backward(SMALL, false));
    add("fwd_bwd_visible", forward_backward(SMALL, true));
    list
}
