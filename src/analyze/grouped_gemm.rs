//! The grouped product: operands as they are and the features they amount to. Its rules were checked when the graph was frozen.

use crate::graph::rules::grouped_gemm::{n_major, payload};
use crate::graph::{BMajor, FrozenGraph, GroupedGemmDsreluAttrs, InPort, Node, OutPort, Tensor};
use frostgraph_engines::grouped_gemm::{Formula, GemmPort, GroupedGemmFacts, GroupedGemmPorts, Weights};
use frostgraph_engines::{DType, Feature, FeatureSet};

pub(super) fn facts(graph: &FrozenGraph, node: &Node, a: &GroupedGemmDsreluAttrs) -> GroupedGemmFacts {
    let input = |port: InPort| node.inputs.get(&port).map(|&id| graph.tensor(id));
    let output = |port: OutPort| node.outputs.get(&port).map(|&id| graph.tensor(id));
    let extent = |port: InPort, axis: usize| input(port).and_then(|t| t.dim.get(axis)).copied().unwrap_or(0);
    let dtype = |t: Option<&Tensor>| t.and_then(|t| t.dtype).unwrap_or(DType::F32);
    let weights = match (input(InPort::B).is_some(), input(InPort::BPtrs).is_some()) {
        (_, false) => Weights::Dense,
        (true, true) => Weights::Pool,
        (false, true) => Weights::Addresses,
    };
    let pointers = weights != Weights::Dense;
    let ab = input(InPort::A).map_or(DType::F32, payload);
    let packed = if dtype(input(InPort::A)) == DType::U8 { 2 } else { 1 };
    let d = dtype(output(OutPort::DRow));
    let quantised = d.is_fp8();
    let b_n_major = if pointers { a.b_major == BMajor::N } else { input(InPort::B).is_some_and(n_major) };
    let double = node.compute_dtype.or(graph.options().compute) == Some(DType::F64);
    let mut features = FeatureSet::EMPTY;
    for (feature, used) in [
        (Feature::Deterministic, a.deterministic),
        (Feature::DBias, output(OutPort::DBias).is_some()),
        (Feature::OutputScales, quantised),
        (Feature::DiscreteColSfd, quantised && a.discrete_col_sfd),
        (Feature::Amax, output(OutPort::Amax).is_some()),
        (Feature::DSrelu, output(OutPort::DSrelu).is_some()),
        (Feature::TanhClamp, a.tanh_clamp_scale.is_some()),
        (Feature::PreactivationC, a.formula == Formula::PreactivationC),
        (Feature::PooledWeights, weights == Weights::Pool),
        (Feature::WeightAddresses, weights == Weights::Addresses),
        (Feature::NMajorB, b_n_major),
        (Feature::F64Accumulate, double),
        (Feature::StatusWord, output(OutPort::Status).is_some()),
    ] {
        features.set_if(feature, used);
    }
    let read = |p| input(p).map(port);
    let written = |p| output(p).map(port);
    GroupedGemmFacts {
        m: extent(InPort::A, 0),
        n: if pointers { a.n.unwrap_or(0) } else { extent(InPort::B, 0) },
        k: extent(InPort::A, 1) * packed,
        experts: extent(InPort::PaddedOffsets, 0),
        ab,
        sf: dtype(input(InPort::Sfa)),
        sf_vec: a.sf_vec_size,
        c: dtype(input(InPort::C)),
        d,
        weights,
        b_n_major,
        formula: a.formula,
        tanh_clamp_scale: a.tanh_clamp_scale,
        discrete_col_sfd: quantised && a.discrete_col_sfd,
        quantised,
        deterministic: a.deterministic,
        features,
        ports: GroupedGemmPorts {
            a: read(InPort::A),
            b: read(InPort::B),
            c: read(InPort::C),
            sfa: read(InPort::Sfa),
            sfb: read(InPort::Sfb),
            b_ptrs: read(InPort::BPtrs),
            sfb_ptrs: read(InPort::SfbPtrs),
            padded_offsets: read(InPort::PaddedOffsets),
            alpha: read(InPort::Alpha),
            prob: read(InPort::Prob),
            norm_const: read(InPort::NormConst),
            d_row: written(OutPort::DRow),
            d_col: written(OutPort::DCol),
            d_srelu: written(OutPort::DSrelu),
            dprob: written(OutPort::DProb),
            dbias: written(OutPort::DBias),
            amax: written(OutPort::Amax),
            sfd_row: written(OutPort::SfdRow),
            sfd_col: written(OutPort::SfdCol),
            sfd_col_d_srelu: written(OutPort::SfdColDSrelu),
            status: written(OutPort::Status),
        },
    }
}

pub(super) fn port(t: &Tensor) -> GemmPort {
    GemmPort {
        uid: t.uid.unwrap_or_default(),
        name: t.name.clone(),
        dtype: t.dtype.unwrap_or(DType::F32),
        dim: t.dim.clone(),
        stride: t.stride.clone(),
        alignment: t.alignment,
        is_virtual: t.is_virtual,
    }
}
