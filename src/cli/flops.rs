//! Useful work of a node: what masks and lengths leave, so that a plan gains nothing by computing masked pairs.

use frostgraph::engines::sdpa::lengths::Lengths;
use frostgraph::engines::sdpa::Direction;
use frostgraph::engines::{Facts, Uid};
use frostgraph::graph::FrozenGraph;
use frostgraph::sample::HostTensors;
use std::collections::BTreeMap;

/// Floating-point operations of all nodes: two per multiply-add of the two (forward) or five (backward) matrix products.
pub fn of_graph(graph: &FrozenGraph, inputs: &HostTensors) -> f64 {
    let view = inputs.view();
    graph.order().iter().map(|&n| of_node(&frostgraph::analyze::analyze(graph, n), &view)).sum()
}

fn of_node(facts: &Facts, inputs: &BTreeMap<Uid, &[u8]>) -> f64 {
    let f = match facts {
        Facts::Sdpa(f) => f,
        // Rows past the last expert count as well: which those are is device data.
        Facts::GroupedGemm(f) => return 2.0 * f.m as f64 * f.n as f64 * f.k as f64,
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
