//! The plain grouped product of bf16, as PyTorch has it: a mode of the grouped suite, where a row serves it.

use frostgraph::exec::Operand;
use frostgraph::graph::{Graph, GraphOptions, MoeGroupedMatmul, Tensor};
use frostgraph::plan::{BuildOptions, Plan};
use frostgraph::{DType, Device, ErrorCode, Result};

/// The mode's name.
pub const MODE: &str = "plain_bf16";

/// (1, M, K) by (E, K, N) with k contiguous, groups between boundaries.
fn graph([m, n, k, experts]: [i64; 4]) -> Result<Graph> {
    let mut g = Graph::new(GraphOptions { io: DType::BF16, ..GraphOptions::default() });
    let token = g.tensor(Tensor::new("Token", [1, m, k]));
    let weight = g.tensor(Tensor::new("Weight", [experts, k, n]).strides([k * n, 1, k]));
    let boundaries = g.tensor(Tensor::new("Boundaries", [experts + 1, 1, 1]).dtype(DType::I32));
    let out = g.moe_grouped_matmul(token, weight, boundaries, MoeGroupedMatmul::default())?;
    g.output(out.output)?;
    Ok(g)
}

/// The best plan, or none where no row serves it on this device.
pub fn plan(device: &Device, extents: [i64; 4]) -> Result<Option<Plan>> {
    match graph(extents)?.build_with(device, &BuildOptions::all_engines()) {
        Ok(built) => Ok(built.plans().next()),
        Err(e) if e.code == ErrorCode::NoPlan => Ok(None),
        Err(e) => Err(e),
    }
}

/// Boundaries from the groups' ends.
pub fn given(ends: Vec<i64>) -> impl Fn(&Operand) -> Option<Vec<u8>> {
    move |o| {
        let all = std::iter::once(0).chain(ends.iter().copied());
        (o.name == "Boundaries").then(|| all.flat_map(|e| (e as i32).to_ne_bytes()).collect())
    }
}
