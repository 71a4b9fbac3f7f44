//! The example graphs are what the builder makes of these functions; the quickstart runs and is the README's first block.

use frostgraph::graph::{Alignment, AttnScale, GemmWeights, GroupedGemmDsrelu, GroupedGemmDsreluAttrs};
use frostgraph::graph::{
    Graph, GraphOptions, Mask, MoeGroupedMatmul, MoeMode, MoeScales, Nvfp4Qat, Nvfp4QatBackward, Sdpa, SdpaBackward, Tensor,
    TensorId,
};
use frostgraph::{DType, Device, Result};
use std::path::PathBuf;

#[path = "../examples/quickstart.rs"]
mod quickstart;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Batch, sequence, head, dim in memory: what training frameworks hand over.
fn bshd(g: &mut Graph, name: &str, [b, h, s, d]: [i64; 4]) -> TensorId {
    g.tensor(Tensor::new(name, [b, h, s, d]).strides([s * h * d, d, h * d, 1]))
}

fn options(name: &str, io: DType) -> GraphOptions {
    GraphOptions { name: name.into(), io, ..GraphOptions::default() }
}

fn scale(d: i64) -> Option<AttnScale> {
    Some(AttnScale::Value(1.0 / (d as f32).sqrt()))
}

fn forward() -> Result<Graph> {
    let mut g = Graph::new(options("causal forward", DType::BF16));
    let q = bshd(&mut g, "Q", [2, 8, 256, 64]);
    let [k, v] = ["K", "V"].map(|n| bshd(&mut g, n, [2, 2, 256, 64]));
    let sdpa =
        Sdpa { name: "attn".into(), mask: Mask::causal(), attn_scale: scale(64), generate_stats: Some(true), ..Sdpa::default() };
    let out = g.sdpa(q, k, v, sdpa)?;
    g.output(out.o)?;
    g.output(out.stats.expect("requested"))?;
    Ok(g)
}

fn backward() -> Result<Graph> {
    let mut g = Graph::new(options("deterministic causal backward, 4 query heads a key head", DType::BF16));
    let q = bshd(&mut g, "Q", [2, 8, 256, 64]);
    let [k, v] = ["K", "V"].map(|n| bshd(&mut g, n, [2, 2, 256, 64]));
    let [o, d_o] = ["O", "dO"].map(|n| bshd(&mut g, n, [2, 8, 256, 64]));
    let stats = g.tensor(Tensor::new("Stats", [2, 8, 256, 1]).dtype(DType::F32));
    let sdpa = SdpaBackward {
        name: "attn_backward".into(),
        mask: Mask::causal(),
        attn_scale: scale(64),
        deterministic: true,
        ..SdpaBackward::default()
    };
    let grads = g.sdpa_backward(q, k, v, o, d_o, stats, sdpa)?;
    for id in [grads.dq, grads.dk, grads.dv] {
        g.output(id)?;
    }
    Ok(g)
}

/// Packed batches of up to 160 tokens: Q, K, V and O are (tokens, heads, dim), Stats (tokens, heads).
fn thd() -> Result<Graph> {
    let (b, h, h_kv, s, d) = (3, 4, 2, 160, 64);
    let mut g = Graph::new(options("packed forward with bottom-right causal mask", DType::F16));
    let ints = |n: &str, count: i64| Tensor::new(n, [count, 1, 1, 1]).dtype(DType::I32);
    let [len_q, len_kv] = ["seq_len_q", "seq_len_kv"].map(|n| ints(n, b)).map(|t| g.tensor(t));
    let [off_q, off_kv] = ["offset_q", "offset_kv"].map(|n| ints(n, b + 1)).map(|t| g.tensor(t));
    let q = bshd(&mut g, "Q", [b, h, s, d]);
    let [k, v] = ["K", "V"].map(|n| bshd(&mut g, n, [b, h_kv, s, d]));
    g.ragged(q, off_q, h * d)?;
    g.ragged(k, off_kv, h_kv * d)?;
    g.ragged(v, off_kv, h_kv * d)?;
    let mask = Mask { right_bound: Some(0), alignment: Alignment::BottomRight, ..Mask::none().padded() };
    let sdpa = Sdpa {
        name: "attn".into(),
        mask,
        attn_scale: scale(d),
        generate_stats: Some(true),
        seq_len_q: Some(len_q),
        seq_len_kv: Some(len_kv),
        ..Sdpa::default()
    };
    let out = g.sdpa(q, k, v, sdpa)?;
    let stats = out.stats.expect("requested");
    for (id, multiplier) in [(out.o, h * d), (stats, h)] {
        g.output(id)?;
        g.ragged(id, off_q, multiplier)?;
    }
    let t = g.get_mut(stats)?;
    (t.dim, t.stride) = (vec![b, h, s, 1], vec![s * h, 1, h, 1]);
    Ok(g)
}

/// Multi-head latent attention after up-projection: keys of 128 + 64 rotary columns, values of 128.
fn mla() -> Result<Graph> {
    let mut g = Graph::new(options("causal forward with head dims 192 and 128", DType::BF16));
    let [q, k] = ["Q", "K"].map(|n| bshd(&mut g, n, [1, 4, 192, 192]));
    let v = bshd(&mut g, "V", [1, 4, 192, 128]);
    let sdpa = Sdpa { name: "attn".into(), mask: Mask::causal(), attn_scale: scale(192), ..Sdpa::default() };
    let out = g.sdpa(q, k, v, sdpa)?;
    g.output(out.o)?;
    Ok(g)
}

/// What the NVFP4 QAT nodes of the examples read: (batch, heads, sequence, dim) in memory as the specification has it, a ragged tail.
const QAT: [i64; 4] = [1, 4, 250, 128];

fn qat_forward() -> Result<Graph> {
    let mut g = Graph::new(options("NVFP4 QAT forward with the auxiliaries of its backward", DType::BF16));
    let [q, k, v] = ["Q", "K", "V"].map(|n| g.tensor(Tensor::new(n, QAT)));
    let attn_scale = Some((QAT[3] as f32).sqrt().recip());
    let qat = Nvfp4Qat { name: "attn".into(), mask: Mask::causal(), attn_scale, ..Nvfp4Qat::default() };
    let out = g.nvfp4_attention_qat_forward(q, k, v, qat)?;
    for id in [out.o, out.high_precision_o, out.lse] {
        g.output(id)?;
    }
    Ok(g)
}

fn qat_backward() -> Result<Graph> {
    let mut g = Graph::new(options("NVFP4 QAT backward", DType::BF16));
    let [q, k, v, o, d_o] = ["Q", "K", "V", "high_precision_o", "dO"].map(|n| g.tensor(Tensor::new(n, QAT)));
    let lse = g.tensor(Tensor::new("lse", [QAT[0], QAT[1], QAT[2], 1]).dtype(DType::F32));
    let attn_scale = Some((QAT[3] as f32).sqrt().recip());
    let qat = Nvfp4QatBackward { name: "attn_backward".into(), mask: Mask::causal(), attn_scale, ..Nvfp4QatBackward::default() };
    let grads = g.nvfp4_attention_qat_backward(d_o, q, k, v, o, lse, qat)?;
    for id in [grads.dq, grads.dk, grads.dv] {
        g.output(id)?;
    }
    Ok(g)
}

/// Four experts of a mixture, one of the formats of the grouped product: MXFP8 in and FP8 out with row and column scales, or NVFP4 in and
/// bf16 out with the largest magnitude of every expert.
fn grouped_gemm(fp8: bool) -> Result<Graph> {
    let (m, n, k, experts) = (1024, 256, 256, 4);
    let name = if fp8 { "MXFP8 grouped product, dsReLU backward" } else { "NVFP4 grouped product, dsReLU backward" };
    let mut g = Graph::new(options(name, DType::BF16));
    let (ab, sf, vec) = if fp8 { (DType::F8E4M3, DType::F8E8M0, 32) } else { (DType::F4E2M1, DType::F8E4M3, 16) };
    let a = g.tensor(Tensor::new("A", [m, k, 1]).dtype(ab));
    let b = g.tensor(Tensor::new("B", [n, k, experts]).strides([k, 1, n * k]).dtype(ab));
    let sfa = g.tensor(Tensor::scale_atoms("SFA", sf, [m, k], vec, 1)?);
    let sfb = g.tensor(Tensor::scale_atoms("SFB", sf, [n, k], vec, experts)?);
    let c = g.tensor(Tensor::new("C", [m, n, 1]));
    let offsets = g.tensor(Tensor::new("padded_offsets", [experts]).dtype(DType::I32));
    let alpha = g.tensor(Tensor::new("alpha", [experts]).dtype(DType::F32));
    let prob = g.tensor(Tensor::new("prob", [m, 1, 1]).dtype(DType::F32));
    let norm_const = fp8.then(|| g.tensor(Tensor::new("norm_const", [1]).dtype(DType::F32)));
    let d_dtype = if fp8 { DType::F8E4M3 } else { DType::BF16 };
    let attrs =
        GroupedGemmDsreluAttrs { sf_vec_size: vec, d_dtype, discrete_col_sfd: fp8, deterministic: true, ..Default::default() };
    let options =
        GroupedGemmDsrelu { name: "experts".into(), attrs, norm_const, dbias: true, amax: !fp8, ..GroupedGemmDsrelu::default() };
    let out = g.grouped_gemm_dsrelu(a, GemmWeights::Dense { b, sfb }, c, sfa, offsets, alpha, prob, options)?;
    let all = [Some(out.d_row), Some(out.d_col), Some(out.dprob), out.dbias, out.amax, out.sfd_row, out.sfd_col];
    all.into_iter().flatten().try_for_each(|id| g.output(id))?;
    Ok(g)
}

/// The first product of a mixture of four experts, two a token: bf16 tokens gathered by expert.
fn moe_gather() -> Result<Graph> {
    let (tokens, top_k, n, k, experts) = (192, 2, 256, 128, 4);
    let mut g = Graph::new(options("gathered grouped product", DType::BF16));
    let token = g.tensor(Tensor::new("token", [1, tokens, k]));
    let weight = g.tensor(Tensor::new("weight", [experts, k, n]).strides([k * n, 1, k]));
    let offsets = g.tensor(Tensor::new("first_token_offset", [experts + 1, 1, 1]).dtype(DType::I32));
    let index = g.tensor(Tensor::new("token_index", [1, tokens * top_k, 1]).dtype(DType::I32));
    let options =
        MoeGroupedMatmul { name: "fc1".into(), mode: MoeMode::Gather, token_index: Some(index), ..MoeGroupedMatmul::default() };
    let out = g.moe_grouped_matmul(token, weight, offsets, options)?;
    g.output(out.output)?;
    Ok(g)
}

/// The second product: MXFP8 rows of four experts, written to the slots of their tokens.
fn moe_scatter() -> Result<Graph> {
    let (tokens, top_k, n, k, experts) = (128, 2, 128, 256, 4);
    let rows = tokens * top_k;
    let mut g = Graph::new(options("scattered MXFP8 grouped product", DType::BF16));
    let token = g.tensor(Tensor::new("token", [1, rows, k]).dtype(DType::F8E4M3));
    let weight = g.tensor(Tensor::new("weight", [experts, k, n]).strides([k * n, 1, k]).dtype(DType::F8E4M3));
    let scales = MoeScales {
        token: g.tensor(Tensor::moe_scales("token_scale", DType::F8E8M0, [rows, k], 32, None)),
        weight: g.tensor(Tensor::moe_scales("weight_scale", DType::F8E8M0, [n, k], 32, Some(experts))),
        vec: 32,
    };
    let offsets = g.tensor(Tensor::new("first_token_offset", [experts + 1, 1, 1]).dtype(DType::I32));
    let [index, ks] = ["token_index", "token_ks"].map(|n| g.tensor(Tensor::new(n, [1, rows, 1]).dtype(DType::I32)));
    let options = MoeGroupedMatmul {
        name: "fc2".into(),
        mode: MoeMode::Scatter,
        token_index: Some(index),
        token_ks: Some(ks),
        top_k,
        scales: Some(scales),
        ..MoeGroupedMatmul::default()
    };
    let out = g.moe_grouped_matmul(token, weight, offsets, options)?;
    g.output(out.output)?;
    Ok(g)
}

/// Rewrites a stale file and fails once; with CI set it only fails. Files hold the frozen graph, so nothing is left to guess.
#[test]
fn example_graphs_are_current() {
    let mut stale = Vec::new();
    for (name, graph) in [
        ("sdpa_forward.json", forward()),
        ("sdpa_backward.json", backward()),
        ("sdpa_thd.json", thd()),
        ("sdpa_mla_192_128.json", mla()),
        ("nvfp4_qat_forward.json", qat_forward()),
        ("nvfp4_qat_backward.json", qat_backward()),
        ("grouped_gemm_mxfp8.json", grouped_gemm(true)),
        ("grouped_gemm_nvfp4.json", grouped_gemm(false)),
        ("moe_gather_bf16.json", moe_gather()),
        ("moe_scatter_mxfp8.json", moe_scatter()),
    ] {
        let fresh = graph.and_then(|g| g.freeze()).and_then(|g| g.to_json()).unwrap_or_else(|e| panic!("{name}: {e}")) + "\n";
        let path = root().join("examples").join(name);
        if std::fs::read_to_string(&path).unwrap_or_default() != fresh {
            if std::env::var_os("CI").is_none() {
                std::fs::write(&path, fresh).unwrap();
            }
            stale.push(name);
        }
    }
    assert!(stale.is_empty(), "stale examples {stale:?}: run `cargo test --test examples` without CI set and commit them");
}

#[test]
fn example_graphs_build_on_the_cpu() {
    for f in std::fs::read_dir(root().join("examples")).unwrap() {
        let path = f.unwrap().path();
        if path.extension().is_some_and(|e| e == "json") {
            let loaded = frostgraph::json::from_path(&path, frostgraph::json::Strictness::Strict).unwrap();
            let built = loaded.graph.build(&Device::cpu()).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert!(built.plan_count() > 0, "{}", path.display());
        }
    }
}

#[test]
fn quickstart_runs() {
    quickstart::main().unwrap();
}
