//! Useful work of a node: what masks and lengths leave, so that a plan gains nothing by computing masked pairs.

use frostgraph::engines::moe_grouped_matmul::routing::groups;
use frostgraph::engines::sdpa::lengths::Lengths;
use frostgraph::engines::sdpa::Direction;
use frostgraph::engines::{DType, Facts, GroupedGemmFacts, MoeFacts, Uid};
use frostgraph::graph::FrozenGraph;
use frostgraph::sample::HostTensors;
use std::collections::BTreeMap;

/// Floating-point operations of all nodes: two per multiply-add of the two (forward) or five (backward) matrix products.
pub fn of_graph(graph: &FrozenGraph, inputs: &HostTensors) -> f64 {
    let view = inputs.view();
    graph.order().iter().map(|&n| of_node(&frostgraph::analyze::analyze(graph, n), &view)).sum()
}

/// Rows up to the last expert's end.
fn rows_of_experts(f: &GroupedGemmFacts, inputs: &BTreeMap<Uid, &[u8]>) -> f64 {
    let ends = f.ports.padded_offsets.as_ref().and_then(|p| inputs.get(&p.uid)).and_then(|b| b.last_chunk::<4>());
    ends.map_or(f.m as f64, |end| f64::from(i32::from_ne_bytes(*end)).clamp(0.0, f.m as f64))
}

/// Routed rows of all groups.
fn rows_of_groups(f: &MoeFacts, inputs: &BTreeMap<Uid, &[u8]>) -> f64 {
    let port = f.ports.first_token_offset.as_ref();
    let Some((port, bytes)) = port.and_then(|p| Some((p, inputs.get(&p.uid)?))) else { return f.routed as f64 };
    let offsets: Vec<i64> = if port.dtype == DType::I64 {
        bytes.chunks_exact(8).map(|b| b.try_into().map_or(0, i64::from_ne_bytes)).collect()
    } else {
        bytes.chunks_exact(4).map(|b| b.try_into().map_or(0, i32::from_ne_bytes).into()).collect()
    };
    groups(&offsets, f.explicit_end, f.routed).0.iter().map(|g| g.len() as f64).sum()
}

fn of_node(facts: &Facts, inputs: &BTreeMap<Uid, &[u8]>) -> f64 {
    let f = match facts {
        Facts::Sdpa(f) => f,
        Facts::GroupedGemm(f) => return 2.0 * rows_of_experts(f, inputs) * f.n as f64 * f.k as f64,
        Facts::Moe(f) => return 2.0 * rows_of_groups(f, inputs) * f.n as f64 * f.k as f64,
    };
    let Ok(lens) = Lengths::resolve(f, inputs) else { return 0.0 };
    let pairs: f64 = lens
        .q
        .iter()
        .zip(&lens.kv)
        .map(|(&len_q, &len_kv)| {
            (0..len_q)
                .map(|q| {
                    let (lo, hi) = f.mask.kept(q, len_q, len_kv);
                    (hi - lo) as f64
                })
                .sum::<f64>()
        })
        .sum();
    let (qk, v) = (f.d_qk as f64, f.d_v as f64);
    let columns = match f.direction {
        Direction::Forward => qk + v,
        Direction::Backward => 3.0 * qk + 2.0 * v,
    };
    2.0 * pairs * f.h_q as f64 * columns
}
