//! Graphs of one plain grouped product from a few numbers.

use frostgraph::graph::{Graph, GraphOptions, MoeGroupedMatmul, MoeGroupedMatmulOutputs, MoeMode, MoeScales, Tensor, TensorId};
use frostgraph::{DType, Result};

#[derive(Debug, Clone)]
pub struct Case {
    pub tokens: i64,
    /// Routed rows of gather; the others have as many as tokens.
    pub routed: i64,
    pub n: i64,
    pub k: i64,
    pub experts: i64,
    pub offsets: i64,
    pub mode: MoeMode,
    pub top_k: i64,
    pub input: DType,
    pub output: DType,
    pub scales: Option<(DType, i64)>,
    pub atoms: bool,
    pub n_major: bool,
    pub status: bool,
    pub compute: Option<DType>,
}

impl Default for Case {
    fn default() -> Case {
        Case {
            tokens: 96,
            routed: 96,
            n: 40,
            k: 64,
            experts: 3,
            offsets: 4,
            mode: MoeMode::None,
            top_k: 0,
            input: DType::BF16,
            output: DType::BF16,
            scales: None,
            atoms: true,
            n_major: false,
            status: false,
            compute: None,
        }
    }
}

pub fn mxfp8() -> Case {
    Case { input: DType::F8E4M3, scales: Some((DType::F8E8M0, 32)), ..Case::default() }
}

pub fn nvfp4() -> Case {
    Case { input: DType::F4E2M1, scales: Some((DType::F8E4M3, 16)), ..Case::default() }
}

/// Handles of a case's graph.
pub struct Handles {
    pub token: TensorId,
    pub weight: TensorId,
    pub offsets: TensorId,
    pub token_index: Option<TensorId>,
    pub scales: Option<MoeScales>,
    pub out: MoeGroupedMatmulOutputs,
}

pub fn build(case: &Case) -> Result<(Graph, Handles)> {
    let Case { tokens, n, k, experts, .. } = *case;
    let routed = if case.mode == MoeMode::Gather { case.routed } else { tokens };
    let mut g = Graph::new(GraphOptions::default());
    let token = g.tensor(Tensor::new("token", [1, tokens, k]).dtype(case.input));
    let stride = if case.n_major { [n * k, n, 1] } else { [n * k, 1, k] };
    let weight = g.tensor(Tensor::new("weight", [experts, k, n]).strides(stride).dtype(case.input));
    let offsets = g.tensor(Tensor::new("first_token_offset", [case.offsets, 1, 1]).dtype(DType::I32));
    let index = |g: &mut Graph, name: &str| g.tensor(Tensor::new(name, [1, routed, 1]).dtype(DType::I32));
    let token_index = (case.mode != MoeMode::None).then(|| index(&mut g, "token_index"));
    let token_ks = (case.mode == MoeMode::Scatter).then(|| index(&mut g, "token_ks"));
    let scales = case.scales.map(|(sf, vec)| {
        let (a, b) = if case.atoms {
            (
                Tensor::moe_scales("token_scale", sf, [tokens, k], vec, None),
                Tensor::moe_scales("weight_scale", sf, [n, k], vec, Some(experts)),
            )
        } else {
            let blocks = (k + vec - 1) / vec;
            let b = Tensor::new("weight_scale", [experts, blocks, n]).dtype(sf);
            (Tensor::new("token_scale", [1, tokens, blocks]).dtype(sf), b)
        };
        MoeScales { token: g.tensor(a), weight: g.tensor(b), vec }
    });
    let options = MoeGroupedMatmul {
        name: "moe".into(),
        mode: case.mode,
        token_index,
        token_ks,
        top_k: case.top_k,
        scales,
        status: case.status,
        compute_dtype: case.compute,
    };
    let out = g.moe_grouped_matmul(token, weight, offsets, options)?;
    g.get_mut(out.output)?.dtype = Some(case.output);
    for id in [Some(out.output), out.status].into_iter().flatten() {
        g.output(id)?;
    }
    Ok((g, Handles { token, weight, offsets, token_index, scales, out }))
}

/// Every form that the CPU row serves, a case each.
pub fn served() -> Vec<(&'static str, Case)> {
    let d = Case::default;
    vec![
        ("bf16", d()),
        ("bf16, starts only", Case { offsets: 3, ..d() }),
        ("f16, two batches of experts", Case { input: DType::F16, output: DType::F16, offsets: 6, ..d() }),
        ("f32 by f64 sums", Case { input: DType::F32, output: DType::F32, compute: Some(DType::F64), ..d() }),
        ("one expert", Case { experts: 1, offsets: 1, ..d() }),
        ("n-major weights", Case { n_major: true, ..d() }),
        ("gather", Case { mode: MoeMode::Gather, tokens: 48, ..d() }),
        ("gather, top_k recorded", Case { mode: MoeMode::Gather, tokens: 48, top_k: 2, status: true, ..d() }),
        ("scatter", Case { mode: MoeMode::Scatter, top_k: 2, status: true, ..d() }),
        ("fp8 without scales", Case { input: DType::F8E5M2, output: DType::F32, ..d() }),
        ("mxfp8", mxfp8()),
        ("mxfp8 in rows, gather", Case { mode: MoeMode::Gather, tokens: 48, atoms: false, ..mxfp8() }),
        ("mxfp8, scatter", Case { mode: MoeMode::Scatter, top_k: 3, ..mxfp8() }),
        ("nvfp4", nvfp4()),
        ("nvfp4 in rows, f32 out", Case { atoms: false, output: DType::F32, status: true, ..nvfp4() }),
        ("mxfp4", Case { scales: Some((DType::F8E8M0, 32)), ..nvfp4() }),
    ]
}
