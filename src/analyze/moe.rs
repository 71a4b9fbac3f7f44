//! The plain grouped product: operands as they are and the features they amount to. Its rules were checked when the graph was frozen.

use super::grouped_gemm::port;
use crate::graph::rules::moe::View;
use crate::graph::{FrozenGraph, InPort, MoeGroupedMatmulAttrs, MoeMode, Node, OutPort, Reordering, Tensor};
use frostgraph_engines::moe_grouped_matmul::{BlockScales, MoeFacts, MoePorts, ScalePlace};
use frostgraph_engines::{DType, Feature, FeatureSet};

pub(super) fn facts(graph: &FrozenGraph, node: &Node, a: &MoeGroupedMatmulAttrs) -> MoeFacts {
    let v = View { node, a, tensors: &graph.tensors };
    let dtype = |t: Option<&Tensor>| t.and_then(|t| t.dtype).unwrap_or(DType::F32);
    let weight = v.input(InPort::Weight);
    let n_major = weight.is_some_and(|w| w.dim.len() == 3 && w.dim[1] > 1 && w.stride[1] != 1);
    let double = node.compute_dtype.or(graph.options().compute) == Some(DType::F64);
    let mut features = FeatureSet::EMPTY;
    for (feature, used) in [
        (Feature::NMajorB, n_major),
        (Feature::F64Accumulate, double),
        (Feature::StatusWord, v.output(OutPort::Status).is_some()),
        (Feature::GatherTokens, a.mode == MoeMode::Gather),
        (Feature::ScatterTokens, a.mode == MoeMode::Scatter),
    ] {
        features.set_if(feature, used);
    }
    let place = |t: &Tensor| if t.reordering == Reordering::F8_128x4 { ScalePlace::Atoms } else { ScalePlace::Strided };
    let scales = v.input(InPort::Sfa).zip(v.input(InPort::Sfb)).map(|(sa, sb)| BlockScales {
        dtype: dtype(Some(sa)),
        vec: a.sf_vec_size,
        token: place(sa),
        weight: place(sb),
    });
    let (groups, explicit_end) = v.groups().unwrap_or((0, false));
    let read = |p| v.input(p).map(port);
    let written = |p| v.output(p).map(port);
    MoeFacts {
        tokens: v.tokens(),
        routed: v.routed(),
        n: v.n(),
        k: v.k(),
        experts: v.experts(),
        groups,
        explicit_end,
        mode: a.mode,
        top_k: a.top_k,
        input: dtype(v.input(InPort::Token)),
        scales,
        output: dtype(v.output(OutPort::Output)),
        features,
        ports: MoePorts {
            token: read(InPort::Token),
            weight: read(InPort::Weight),
            token_scale: read(InPort::Sfa),
            weight_scale: read(InPort::Sfb),
            first_token_offset: read(InPort::FirstTokenOffset),
            token_index: read(InPort::TokenIndex),
            token_ks: read(InPort::TokenKs),
            output: written(OutPort::Output),
            status: written(OutPort::Status),
        },
    }
}
