//! Attention: ports, geometry, masks, features and the reasons a graph is malformed.

mod features;
mod invalid;
mod mask;
mod ports;
#[cfg(test)]
mod tests;

use crate::graph::{FrozenGraph, Node, QatAttrs, SdpaAttrs, SdpaBackwardAttrs};
use frostgraph_engines::sdpa::layout::{aligned_16_ok, bshd_layout_ok, dense_layout_ok, packed_layout_ok};
use frostgraph_engines::sdpa::{thd_stats_packing, Direction, Recipe, Scale, SdpaFacts, SdpaPorts};
use frostgraph_engines::{DType, FeatureSet, Port};
use mask::Spelling;
use ports::Operands;

/// What the attributes of the operations have in common, in one shape for the analyzer.
pub(super) struct Request<'a> {
    pub direction: Direction,
    pub recipe: Recipe,
    /// Attributes that only a plain forward has.
    pub forward: Option<&'a SdpaAttrs>,
    pub mask: &'a crate::graph::Mask,
    pub attn_scale: Option<f32>,
    pub dropout_probability: Option<f32>,
    pub deterministic: bool,
    pub score_mod: bool,
    pub wants_stats: bool,
    pub max_total_seq_len_q: Option<i64>,
    pub max_total_seq_len_kv: Option<i64>,
}

/// Facts of a forward.
pub(super) fn forward(graph: &FrozenGraph, node: &Node, a: &SdpaAttrs) -> SdpaFacts {
    let stats_port = node.outputs.contains_key(&crate::graph::OutPort::Stats);
    facts(
        graph,
        node,
        &Request {
            direction: Direction::Forward,
            recipe: Recipe::Plain,
            forward: Some(a),
            mask: &a.mask,
            attn_scale: a.attn_scale,
            dropout_probability: a.dropout_probability,
            deterministic: false,
            score_mod: a.score_mod,
            // A declared Stats output without either attribute is a request: every declared output is written (I6).
            wants_stats: a.wants_stats().unwrap_or(stats_port),
            max_total_seq_len_q: a.max_total_seq_len_q,
            max_total_seq_len_kv: a.max_total_seq_len_kv,
        },
    )
}

/// Facts of a backward.
pub(super) fn backward(graph: &FrozenGraph, node: &Node, a: &SdpaBackwardAttrs) -> SdpaFacts {
    facts(
        graph,
        node,
        &Request {
            direction: Direction::Backward,
            recipe: Recipe::Plain,
            forward: None,
            mask: &a.mask,
            attn_scale: a.attn_scale,
            dropout_probability: a.dropout_probability,
            deterministic: a.deterministic,
            score_mod: a.score_mod,
            wants_stats: true,
            max_total_seq_len_q: a.max_total_seq_len_q,
            max_total_seq_len_kv: a.max_total_seq_len_kv,
        },
    )
}

/// Facts of an NVFP4 QAT node: those of attention with another recipe.
pub(super) fn qat(graph: &FrozenGraph, node: &Node, a: &QatAttrs, direction: Direction) -> SdpaFacts {
    facts(
        graph,
        node,
        &Request {
            direction,
            recipe: Recipe::Nvfp4Qat,
            forward: None,
            mask: &a.mask,
            attn_scale: a.attn_scale,
            dropout_probability: None,
            deterministic: a.deterministic,
            score_mod: false,
            wants_stats: true,
            max_total_seq_len_q: None,
            max_total_seq_len_kv: None,
        },
    )
}

fn facts(graph: &FrozenGraph, node: &Node, request: &Request) -> SdpaFacts {
    let operands = Operands { graph, node };
    let ports = operands.ports(request);
    let spelling = Spelling::new(request.mask, request.direction);
    let invalid = invalid::reason(&operands, request, &spelling);
    let dim = |p: &Option<Port>, axis: usize| p.as_ref().map_or(0, |p| p.dim[axis]);
    let main: Vec<Port> = ports.operands(request.direction).map(|(_, p, _)| p.clone()).collect();
    let all = |rule: fn(&Port) -> bool| main.iter().all(rule);
    let dtype = ports.q.as_ref().map_or(DType::F32, |q| q.dtype);
    let written = match request.direction {
        Direction::Forward => &ports.o,
        Direction::Backward => &ports.dq,
    };
    let mut facts = SdpaFacts {
        direction: request.direction,
        recipe: request.recipe,
        invalid,
        b: dim(&ports.q, 0),
        h_q: dim(&ports.q, 1),
        h_kv: dim(&ports.k, 1),
        s_q: dim(&ports.q, 2),
        s_kv: operands.s_kv(),
        d_qk: dim(&ports.q, 3),
        d_v: dim(&ports.v, 3),
        page_size: operands.paged().then(|| dim(&ports.k, 2)),
        dtype,
        uniform_dtype: main.iter().all(|p| p.dtype == dtype),
        dtype_o: written.as_ref().map_or(dtype, |p| p.dtype),
        bshd_layout: all(bshd_layout_ok),
        packed_layout: all(packed_layout_ok),
        dense_layout: all(dense_layout_ok),
        aligned_16: all(aligned_16_ok),
        mask: spelling.resolve(),
        scale: scale(request, &ports),
        features: FeatureSet::EMPTY,
        wants_stats: request.wants_stats,
        stats_packing: packing(&ports),
        max_total_seq_len_q: request.max_total_seq_len_q,
        max_total_seq_len_kv: request.max_total_seq_len_kv,
        ports,
    };
    facts.features = features::features(&operands, request, &facts);
    facts
}

/// T6: omitted means 1.0 in a graph. A prefolded scale leaves nothing to multiply by.
fn scale(request: &Request, ports: &SdpaPorts) -> Scale {
    match &ports.attn_scale {
        Some(p) => Scale::Dynamic(p.uid),
        None => Scale::Static(request.attn_scale.unwrap_or(1.0)),
    }
}

/// Rule S1: packed Stats are classified by their strides, never by a flag; `None` on dense graphs and for per-batch Stats.
fn packing(ports: &SdpaPorts) -> Option<frostgraph_engines::sdpa::StatsPacking> {
    let (q, stats) = (ports.q.as_ref()?, ports.stats.as_ref()?);
    q.ragged?;
    stats.ragged?;
    thd_stats_packing(stats.stride[1], stats.stride[2], q.dim[1])
}
