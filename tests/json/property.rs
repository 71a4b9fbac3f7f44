//! Random graphs survive writing and reading.

use frostgraph::graph::{
    Alignment, BMajor, DsreluFormula, Graph, GraphOptions, GroupedGemmDsreluAttrs, Implementation, InPort, Mask,
    MoeGroupedMatmulAttrs, MoeMode, Node, Op, OutPort, RaggedOffset, Reordering,
};
use frostgraph::graph::{QatAttrs, ScalarValue, SdpaAttrs, SdpaBackwardAttrs, Tensor, TensorId};
use frostgraph::json::{from_str, to_value, Strictness};
use frostgraph::DType;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn dtype() -> impl Strategy<Value = DType> {
    proptest::sample::select(DType::ALL)
}

fn finite() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |x| x.is_finite())
}

fn name() -> impl Strategy<Value = String> {
    proptest::sample::select(vec!["", "q", "Q", "sdpa::O", "naïve \"name\"\n", "a/b~c", "\u{1F600}"]).prop_map(String::from)
}

fn scalar() -> impl Strategy<Value = ScalarValue> {
    let f16 = any::<u16>().prop_filter("a number", |b| !half::f16::from_bits(*b).is_nan());
    let bf16 = any::<u16>().prop_filter("a number", |b| !half::bf16::from_bits(*b).is_nan());
    prop_oneof![
        any::<i64>().prop_map(ScalarValue::I64),
        any::<i32>().prop_map(ScalarValue::I32),
        f16.prop_map(ScalarValue::F16),
        finite().prop_map(ScalarValue::F32),
        any::<u64>().prop_map(f64::from_bits).prop_filter("finite", |x| x.is_finite()).prop_map(ScalarValue::F64),
        bf16.prop_map(ScalarValue::BF16),
    ]
}

fn tensor() -> impl Strategy<Value = Tensor> {
    let reorder = proptest::sample::select(vec![Reordering::None, Reordering::Int8x32, Reordering::F16x16, Reordering::F8_128x4]);
    let flags = (any::<bool>(), any::<bool>(), prop_oneof![Just(16), 1i64..4096]);
    (name(), vec(any::<i64>(), 0..6), vec(any::<i64>(), 0..6), of(dtype()), of(scalar()), reorder, flags).prop_map(
        |(name, dim, stride, dtype, value, reordering, (is_virtual, pass_by_value, alignment))| Tensor {
            dtype,
            is_virtual,
            pass_by_value,
            value,
            alignment,
            reordering,
            ..Tensor::new(name, dim).strides(stride)
        },
    )
}

fn mask() -> impl Strategy<Value = Mask> {
    (of(any::<i64>()), of(any::<i64>()), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(left_bound, right_bound, br, padding, alibi)| Mask {
            left_bound,
            right_bound,
            alignment: if br { Alignment::BottomRight } else { Alignment::TopLeft },
            padding,
            alibi,
            ..Mask::none()
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let totals = (of(0..i64::MAX), of(0..i64::MAX), of(0..i64::MAX));
    let implementation = proptest::sample::select(vec![Implementation::Auto, Implementation::Composite, Implementation::Unified]);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), of(any::<bool>()));
    let numbers = (of(finite()), of(finite()), of(finite()), of(dtype()), 0..6);
    (mask(), numbers, totals, implementation, flags).prop_map(
        |(
            mask,
            (attn_scale, dropout_probability, rescale_threshold, softmax_precision, kind),
            (max_total_seq_len_q, max_total_seq_len_kv, max_seq_len_kv),
            implementation,
            (stats_use_log2, unfuse_fma, score_mod, attn_scale_prefolded, generate_stats),
        )| {
            if kind == 4 {
                return Op::GroupedGemmDsrelu(GroupedGemmDsreluAttrs {
                    formula: if unfuse_fma { DsreluFormula::PreactivationC } else { DsreluFormula::PreactivationG },
                    sf_vec_size: if score_mod { 16 } else { 32 },
                    tanh_clamp_scale: attn_scale,
                    discrete_col_sfd: stats_use_log2,
                    deterministic: attn_scale_prefolded,
                    m_aligned: 256,
                    n: max_seq_len_kv.filter(|n| *n > 0),
                    b_dtype: softmax_precision,
                    b_major: if score_mod { BMajor::N } else { BMajor::K },
                    d_dtype: softmax_precision.unwrap_or(DType::BF16),
                });
            }
            if kind == 5 {
                let mode = if unfuse_fma {
                    MoeMode::Scatter
                } else if score_mod {
                    MoeMode::Gather
                } else {
                    MoeMode::None
                };
                let top_k = max_seq_len_kv.unwrap_or(0);
                return Op::MoeGroupedMatmul(MoeGroupedMatmulAttrs { mode, top_k, ..MoeGroupedMatmulAttrs::default() });
            }
            if kind > 1 {
                let attrs = QatAttrs { mask, attn_scale, deterministic: kind == 3 && unfuse_fma };
                return if kind == 2 { Op::Nvfp4Qat(attrs) } else { Op::Nvfp4QatBackward(attrs) };
            }
            if kind == 1 {
                return Op::SdpaBackward(SdpaBackwardAttrs {
                    mask,
                    attn_scale,
                    dropout_probability,
                    deterministic: unfuse_fma,
                    max_total_seq_len_q,
                    max_total_seq_len_kv,
                    score_mod,
                });
            }
            Op::Sdpa(SdpaAttrs {
                mask,
                attn_scale,
                dropout_probability,
                generate_stats,
                is_inference: None,
                stats_use_log2,
                unfuse_fma,
                implementation,
                max_seq_len_kv,
                max_total_seq_len_q,
                max_total_seq_len_kv,
                score_mod,
                softmax_precision,
                attn_scale_prefolded,
                rescale_threshold,
                mma_core_mode: Some(DType::F16),
            })
        },
    )
}

prop_compose! {
    fn graph()(
        tensors in vec(tensor(), 1..12),
        ops in vec((op(), name(), of(dtype()), any::<u64>()), 0..4),
        first_uid in 1i64..1_000_000,
        context in (name(), dtype(), any::<bool>(), of(dtype()), of(dtype()), -1i64..200, any::<bool>(), any::<bool>()),
        ragged in any::<u16>(),
    ) -> Graph {
        let (name, io, io_set, intermediate, compute, sm_count, dynamic_shape, override_shape) = context;
        let io = if io_set { io } else { GraphOptions::default().io };
        let mut g = Graph::new(GraphOptions {
            name, io, io_set, intermediate, compute, sm_count, dynamic_shape, override_shape, ..Default::default()
        });
        let n = tensors.len();
        let ids: Vec<TensorId> = tensors
            .into_iter()
            .enumerate()
            .map(|(i, t)| g.tensor(t.uid(first_uid + 3 * i as i64)))
            .collect();
        for (i, id) in ids.iter().enumerate() {
            if ragged >> (i % 16) & 1 == 1 {
                let multiplier = 1 + i as i64 % 3;
                g.get_mut(*id).expect("own handle").ragged = Some(RaggedOffset { offset: ids[(i + 1) % n], multiplier });
            }
        }
        for (op, name, compute_dtype, bits) in ops {
            let pick = |i: usize| bits >> (i % 64) & 1 == 1;
            use {InPort as I, OutPort as O};
            let (rare, ports) = match op {
                Op::Sdpa(_) => ([I::Bias, I::Sink], [O::O, O::Stats, O::Max]),
                Op::SdpaBackward(_) => ([I::Bias, I::Sink], [O::DQ, O::DK, O::DBias]),
                Op::Nvfp4Qat(_) => ([I::SeqLenKv, I::SeqLenQ], [O::O, O::Stats, O::HighPrecisionO]),
                Op::Nvfp4QatBackward(_) => ([I::HighPrecisionO, I::DO], [O::DQ, O::DK, O::DV]),
                Op::GroupedGemmDsrelu(_) => ([I::BPtrs, I::NormConst], [O::DRow, O::Amax, O::SfdColDSrelu]),
                Op::MoeGroupedMatmul(_) => ([I::TokenIndex, I::TokenKs], [O::Output, O::Status, O::Output]),
            };
            let [one, two, three, last] = match op {
                Op::GroupedGemmDsrelu(_) => [I::A, I::B, I::Sfa, I::PaddedOffsets],
                Op::MoeGroupedMatmul(_) => [I::Token, I::Weight, I::FirstTokenOffset, I::TokenIndex],
                _ => [I::Q, I::K, I::V, I::SeqLenQ],
            };
            let inputs: BTreeMap<InPort, TensorId> = [one, two, three, rare[0], rare[1], last]
                .into_iter()
                .enumerate()
                .filter(|(i, _)| pick(*i))
                .map(|(i, p)| (p, ids[i % n]))
                .collect();
            let outputs = ports.into_iter().enumerate().filter(|(i, _)| pick(*i + 8)).map(|(i, p)| (p, ids[(i + 5) % n])).collect();
            g.node(Node { name, op, inputs, outputs, compute_dtype });
        }
        g
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_written_graph_reads_back_equal(g in graph()) {
        let text = g.to_json().unwrap();
        let loaded = from_str(&text, Strictness::Strict).unwrap();
        prop_assert_eq!(&loaded.graph, &g);
        prop_assert_eq!(to_value(&loaded.graph).unwrap(), serde_json::from_str::<serde_json::Value>(&text).unwrap());
        // The same text as one line of a log.
        let line = format!("INFO {}", serde_json::from_str::<serde_json::Value>(&text).unwrap());
        prop_assert_eq!(from_str(&line, Strictness::Strict).unwrap().graph, g);
    }
}
