//! Everything beyond geometry that an attention node uses.

use super::ports::Operands;
use super::Request;
use crate::graph::{InPort, OutPort};
use frostgraph_engines::sdpa::{Direction, Scale, SdpaFacts};
use frostgraph_engines::{DType, Feature, FeatureSet, Port};

pub(super) fn features(operands: &Operands, request: &Request, facts: &SdpaFacts) -> FeatureSet {
    let p = &facts.ports;
    let asked = Asked {
        operands,
        request,
        facts,
        thd: operands.thd(),
        q_lengths: p.seq_len_q.is_some() || p.cu_seq_len_q.is_some(),
        kv_lengths: p.seq_len_kv.is_some() || p.cu_seq_len_kv.is_some(),
    };
    let mut set = FeatureSet::EMPTY;
    for &f in Feature::ALL {
        set.set_if(f, uses(f, &asked));
    }
    set
}

/// A node with what several features look at. `facts` holds everything but the feature set.
struct Asked<'a> {
    operands: &'a Operands<'a>,
    request: &'a Request<'a>,
    facts: &'a SdpaFacts,
    thd: bool,
    q_lengths: bool,
    kv_lengths: bool,
}

/// Whether the node uses a feature.
fn uses(f: Feature, asked: &Asked) -> bool {
    let &Asked { operands, request, facts, thd, q_lengths, kv_lengths } = asked;
    let p = &facts.ports;
    let input = |port| operands.input(port).is_some();
    let forward = request.forward;
    match f {
        Feature::Deterministic => request.deterministic,
        Feature::DBias => p.dbias.is_some(),
        Feature::DSink => p.dsink.is_some(),
        Feature::Bias => p.bias.is_some(),
        Feature::BroadcastBias => facts.b > 1 && p.bias.as_ref().is_some_and(|b| b.dim[0] == 1),
        Feature::Dropout => {
            request.dropout_probability.is_some()
                || [InPort::Seed, InPort::Offset, InPort::DropoutMask, InPort::DropoutScale, InPort::DropoutScaleInv]
                    .into_iter()
                    .any(input)
        }
        Feature::ScoreMod => request.score_mod,
        Feature::PagedKv => operands.paged(),
        Feature::Alibi => request.mask.alibi,
        Feature::BlockMask => input(InPort::BlockMask),
        Feature::RngDump => operands.visible(OutPort::RngDump).is_some(),
        Feature::KvMask => input(InPort::KvMask),
        Feature::ScoreMax => p.score_max.is_some(),
        Feature::ScoreSumExp => p.score_sum_exp.is_some(),
        Feature::DynamicScale => matches!(facts.scale, Scale::Dynamic(_)),
        Feature::ZeroScale => facts.scale == Scale::Static(0.0),
        Feature::PrefoldedScale => forward.is_some_and(|a| a.attn_scale_prefolded),
        Feature::SoftmaxPrecision => forward.and_then(|a| a.softmax_precision).is_some_and(|d| d != DType::F32),
        Feature::UnfuseFma => forward.is_some_and(|a| a.unfuse_fma),
        Feature::StatsLog2 => forward.is_some_and(|a| a.stats_use_log2),
        Feature::SeqQTrim => !thd && q_lengths && !request.mask.padding,
        Feature::Causal => facts.mask.right == Some(0),
        Feature::RightBand => facts.mask.right.is_some_and(|r| r > 0),
        Feature::BottomRight => facts.mask.bottom_right,
        Feature::Window => facts.mask.left.is_some(),
        Feature::Padding => !thd && request.mask.padding && kv_lengths,
        Feature::CuSeqLen => p.cu_seq_len_q.is_some() || p.cu_seq_len_kv.is_some(),
        Feature::Sink => p.sink.is_some(),
        Feature::Stats => request.direction == Direction::Forward && request.wants_stats,
        Feature::Thd => thd,
        Feature::ThdPaddedStats => thd && p.stats.as_ref().is_some_and(|s| s.ragged.is_none()),
        Feature::StridedStats => p.stats.as_ref().is_some_and(|s| s.ragged.is_none() && !row_major(s)),
        Feature::Gqa => facts.h_q != facts.h_kv,
        Feature::Decode => facts.s_q == 1,
        Feature::UnequalHeadDims => facts.d_qk != facts.d_v,
        Feature::StridedHeadDim => main(facts).any(|p| p.dim[3] > 1 && p.stride[3] != 1),
        Feature::BroadcastInput => read(facts).any(broadcast),
        Feature::OutputScales
        | Feature::DiscreteColSfd
        | Feature::Amax
        | Feature::DSrelu
        | Feature::TanhClamp
        | Feature::PreactivationC
        | Feature::PooledWeights
        | Feature::WeightAddresses
        | Feature::NMajorB
        | Feature::F64Accumulate
        | Feature::StatusWord
        | Feature::GatherTokens
        | Feature::ScatterTokens => false,
    }
}

/// Strides (H·S, S, 1, 1) on every axis that has a second element (report #36).
fn row_major(p: &Port) -> bool {
    let mut span = 1i64;
    (0..4).rev().all(|a| {
        let ok = p.dim[a] == 1 || p.stride[a] == span;
        span = span.saturating_mul(p.dim[a]);
        ok
    })
}

/// The four-dimensional operands.
fn main(facts: &SdpaFacts) -> impl Iterator<Item = &Port> {
    let p = &facts.ports;
    [&p.q, &p.k, &p.v, &p.o, &p.high_precision_o, &p.d_o, &p.dq, &p.dk, &p.dv].into_iter().flatten()
}

/// Operands read through strides.
fn read(facts: &SdpaFacts) -> impl Iterator<Item = &Port> {
    let p = &facts.ports;
    let (o, stats) = match facts.direction {
        Direction::Forward => (&None, &None),
        Direction::Backward => (&p.o, &p.stats),
    };
    [&p.q, &p.k, &p.v, o, stats, &p.d_o, &p.bias, &p.sink].into_iter().flatten()
}

/// The batch stride of a packed operand is never read, so its zero says nothing.
fn broadcast(p: &Port) -> bool {
    let first = usize::from(p.ragged.is_some());
    (first..4).any(|a| p.dim[a] > 1 && p.stride[a] == 0)
}
