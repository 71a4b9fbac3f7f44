//! From a graph to JSON 2.0.

use super::dequantize::Unfold;
use super::spelling;
use crate::graph::{Alignment, BMajor, DsreluFormula, FrozenGraph, Graph, Mask, Node, Op, ScalarValue, Tensor};
use crate::{DType, Error, ErrorCode, Result};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Writes a graph as JSON 2.0 text, laid out as cudnn-frontend lays it out (alphabetical keys, one space a level).
pub fn to_string(graph: &Graph) -> Result<String> {
    let mut out = Vec::new();
    let mut ser = serde_json::Serializer::with_formatter(&mut out, serde_json::ser::PrettyFormatter::with_indent(b" "));
    let value = to_value(graph)?;
    let bad = |e: String| Error::new(ErrorCode::JsonValue, e, "a graph that JSON can hold");
    serde::Serialize::serialize(&value, &mut ser).map_err(|e| bad(e.to_string()))?;
    String::from_utf8(out).map_err(|e| bad(e.to_string()))
}

/// Writes a graph as a JSON 2.0 value. Tensors without uid get the smallest unused ones in creation order, as at freeze.
///
/// `gid` is 0. FG1108: mask spellings that contradict each other, and a double scalar that is not finite, have no JSON form.
pub fn to_value(graph: &Graph) -> Result<Value> {
    let options = graph.options();
    let mut context = BTreeMap::from([
        ("compute_data_type", dtype(options.compute)),
        ("intermediate_data_type", dtype(options.intermediate)),
        ("io_data_type", dtype(options.io_set.then_some(options.io))),
        ("is_dynamic_shape_enabled", options.dynamic_shape.into()),
        ("is_override_shape_enabled", options.override_shape.into()),
        ("sm_count", options.sm_count.into()),
    ]);
    if !options.name.is_empty() {
        context.insert("name", options.name.clone().into());
    }
    let uids = uids(graph);
    let mut tensors = Vec::new();
    for (id, tensor) in graph.tensors() {
        tensors.push((uids[id.0 as usize], tensor_value(graph, tensor, uids[id.0 as usize], &uids)?));
    }
    let mut nodes: Vec<Value> = Vec::with_capacity(graph.nodes().len());
    let mut unfold = Unfold::new(graph, &uids);
    for node in graph.nodes() {
        let mut value = node_value(node, &uids)?;
        for (tensor, dequantize) in unfold.operands(node, &mut value)? {
            tensors.push(tensor);
            nodes.push(dequantize);
        }
        nodes.push(value);
    }
    tensors.sort_by_key(|(uid, _)| *uid);
    Ok(object(BTreeMap::from([
        ("context", object(context)),
        ("cudnn_backend_version", options.backend_version.clone().into()),
        ("cudnn_frontend_version", options.frontend_version.into()),
        ("gid", 0.into()),
        ("json_version", "2.0".into()),
        ("nodes", nodes.into()),
        ("tensors", tensors.into_iter().map(|(_, t)| t).collect::<Vec<_>>().into()),
    ])))
}

impl FrozenGraph {
    /// Writes the frozen graph as JSON 2.0; see [`to_string`].
    pub fn to_json(&self) -> Result<String> {
        let mut graph = Graph::new(self.options().clone());
        graph.tensors = self.tensors.clone();
        graph.nodes = self.nodes.clone();
        to_string(&graph)
    }
}

fn object(keys: BTreeMap<&'static str, Value>) -> Value {
    Value::Object(keys.into_iter().map(|(k, v)| (k.to_string(), v)).collect::<Map<_, _>>())
}

fn uids(graph: &Graph) -> Vec<i64> {
    let taken: BTreeSet<i64> = graph.tensors().filter_map(|(_, t)| t.uid).collect();
    let mut free = (1i64..).filter(|u| !taken.contains(u));
    graph.tensors().map(|(_, t)| t.uid.or_else(|| free.next()).unwrap_or_default()).collect()
}

pub(super) fn dtype(d: Option<DType>) -> Value {
    d.map_or(Value::Null, |d| d.json().into())
}

fn hex(x: f32) -> Value {
    format!("{:08X}", x.to_bits()).into()
}

fn or_null<T>(v: Option<T>, f: impl Fn(T) -> Value) -> Value {
    v.map_or(Value::Null, f)
}

pub(super) fn tensor_value(graph: &Graph, t: &Tensor, uid: i64, uids: &[i64]) -> Result<Value> {
    let mut keys = BTreeMap::from([
        ("data_type", dtype(t.dtype)),
        ("dim", t.dim.clone().into()),
        ("is_pass_by_value", t.pass_by_value.into()),
        ("is_virtual", t.is_virtual.into()),
        ("pass_by_value", t.value.map(|v| scalar(v, t, uid)).transpose()?.unwrap_or(Value::Null)),
        ("reordering_type", spelling::reordering_name(t.reordering).into()),
        ("stride", t.stride.clone().into()),
        ("uid", uid.into()),
    ]);
    if !t.name.is_empty() {
        keys.insert("name", t.name.clone().into());
    }
    if t.alignment != 16 {
        keys.insert("alignment", t.alignment.into());
    }
    if let Some(ragged) = t.ragged {
        let offset = graph.get(ragged.offset)?;
        keys.insert("ragged_offset_uid", uids[ragged.offset.0 as usize].into());
        keys.insert("ragged_offset_name", offset.name.clone().into());
        if ragged.multiplier != 1 {
            keys.insert("ragged_offset_multiplier", ragged.multiplier.into());
        }
    }
    Ok(object(keys))
}

fn scalar(v: ScalarValue, t: &Tensor, uid: i64) -> Result<Value> {
    let (index, value) = match v {
        ScalarValue::I64(i) => (0, i.into()),
        ScalarValue::I32(i) => (1, i.into()),
        ScalarValue::F16(bits) => (2, hex(half::f16::from_bits(bits).to_f32())),
        ScalarValue::F32(x) => (3, hex(x)),
        ScalarValue::F64(x) if x.is_finite() => (4, x.into()),
        ScalarValue::F64(x) => {
            let at = format!("tensor '{}' (uid {uid})", t.name);
            return Err(Error::new(
                ErrorCode::BadAttribute,
                format!("double scalar {x}"),
                "a finite number, which JSON can hold",
            )
            .at(at));
        }
        ScalarValue::BF16(bits) => (5, hex(half::bf16::from_bits(bits).to_f32())),
    };
    Ok(object(BTreeMap::from([("index", index.into()), ("value", value)])))
}

/// Mask keys: causal flags become a right bound of 0 and an alignment, a window length becomes the left bound.
fn mask_keys(mask: &Mask, node: &str) -> Result<[(&'static str, Value); 5]> {
    let causal = mask.causal || mask.causal_bottom_right;
    let clash = [
        (mask.causal && mask.causal_bottom_right, "both causal flags"),
        (causal && mask.right_bound.is_some(), "a causal flag and a right bound"),
        (mask.sliding_window.is_some() && mask.left_bound.is_some(), "a sliding window and a left bound"),
    ];
    if let Some((_, what)) = clash.iter().find(|(yes, _)| *yes) {
        return Err(Error::new(
            ErrorCode::BadAttribute,
            *what,
            "one spelling of each mask bound; JSON holds only the resolved bound",
        )
        .at(format!("node '{node}'")));
    }
    let alignment = match (mask.causal, mask.causal_bottom_right) {
        (true, _) => Alignment::TopLeft,
        (false, true) => Alignment::BottomRight,
        (false, false) => mask.alignment,
    };
    let right = if causal { Some(0) } else { mask.right_bound };
    Ok([
        ("alibi_mask", mask.alibi.into()),
        ("diagonal_alignment", spelling::alignment_name(alignment).into()),
        ("left_bound", or_null(mask.left_bound.or(mask.sliding_window), Value::from)),
        ("padding_mask", mask.padding.into()),
        ("right_bound", or_null(right, Value::from)),
    ])
}

fn node_value(node: &Node, uids: &[i64]) -> Result<Value> {
    let mut keys = BTreeMap::new();
    if let Some(mask) = node.op.mask() {
        keys.extend(mask_keys(mask, &node.name)?);
    }
    keys.extend([
        ("name", node.name.clone().into()),
        ("tag", node.op.tag().into()),
        ("inputs", ports(node.inputs.iter().map(|(p, t)| (p.json(), t.0)), uids, node)?),
        ("outputs", ports(node.outputs.iter().map(|(p, t)| (p.json(), t.0)), uids, node)?),
    ]);
    match &node.op {
        Op::Sdpa(a) => {
            let stats = a.generate_stats.or(a.is_inference.map(|i| !i));
            keys.extend([
                ("attn_scale_value", or_null(a.attn_scale, hex)),
                ("compute_data_type", dtype(node.compute_dtype)),
                ("dropout_probability", or_null(a.dropout_probability, hex)),
                ("generate_stats", or_null(stats, Value::from)),
                ("implementation", spelling::implementation_name(a.implementation).into()),
                ("is_mxfp8", false.into()),
                ("max_seq_len_kv", or_null(a.max_seq_len_kv, Value::from)),
                ("max_total_seq_len_kv", or_null(a.max_total_seq_len_kv, Value::from)),
                ("max_total_seq_len_q", or_null(a.max_total_seq_len_q, Value::from)),
                ("mma_core_mode", a.mma_core_mode.unwrap_or(DType::F16).json().into()),
                ("stats_use_log2", a.stats_use_log2.into()),
                ("unfuse_fma", a.unfuse_fma.into()),
            ]);
            let rare = [
                ("attn_scale_prefolded", a.attn_scale_prefolded.then_some(Value::Bool(true))),
                ("rescale_threshold", a.rescale_threshold.map(hex)),
                ("score_mod", a.score_mod.then_some(Value::Bool(true))),
                ("softmax_precision", a.softmax_precision.map(|d| d.json().into())),
            ];
            keys.extend(rare.into_iter().filter_map(|(k, v)| Some((k, v?))));
        }
        Op::SdpaBackward(a) => {
            keys.extend([
                ("attn_scale_value", or_null(a.attn_scale, hex)),
                ("dropout_probability", or_null(a.dropout_probability, hex)),
                ("is_deterministic_algorithm", a.deterministic.into()),
                ("max_total_seq_len_kv", or_null(a.max_total_seq_len_kv, Value::from)),
                ("max_total_seq_len_q", or_null(a.max_total_seq_len_q, Value::from)),
            ]);
            let rare = [
                ("compute_data_type", node.compute_dtype.map(|d| Value::from(d.json()))),
                ("score_mod", a.score_mod.then_some(Value::Bool(true))),
            ];
            keys.extend(rare.into_iter().filter_map(|(k, v)| Some((k, v?))));
        }
        Op::Nvfp4Qat(a) | Op::Nvfp4QatBackward(a) => {
            keys.extend([("attn_scale_value", or_null(a.attn_scale, hex))]);
            if node.op.is_backward() {
                keys.extend([("is_deterministic_algorithm", a.deterministic.into())]);
            }
            keys.extend(node.compute_dtype.map(|d| ("compute_data_type", Value::from(d.json()))));
        }
        Op::GroupedGemmDsrelu(a) => {
            let formula = match a.formula {
                DsreluFormula::PreactivationG => "PREACTIVATION_G",
                DsreluFormula::PreactivationC => "PREACTIVATION_C",
            };
            let major = match a.b_major {
                BMajor::K => "K",
                BMajor::N => "N",
            };
            keys.extend([
                ("b_data_type", dtype(a.b_dtype)),
                ("b_major", major.into()),
                ("d_data_type", a.d_dtype.json().into()),
                ("discrete_col_sfd", a.discrete_col_sfd.into()),
                ("formula", formula.into()),
                ("is_deterministic_algorithm", a.deterministic.into()),
                ("m_aligned", a.m_aligned.into()),
                ("n", or_null(a.n, Value::from)),
                ("sf_vec_size", a.sf_vec_size.into()),
                ("tanh_clamp_scale", or_null(a.tanh_clamp_scale, hex)),
            ]);
            keys.extend(node.compute_dtype.map(|d| ("compute_data_type", Value::from(d.json()))));
        }
        Op::MoeGroupedMatmul(a) => {
            keys.extend([("mode", a.mode.json().into()), ("top_k", a.top_k.into())]);
            keys.extend(node.compute_dtype.map(|d| ("compute_data_type", Value::from(d.json()))));
        }
    }
    Ok(object(keys))
}

fn ports(list: impl Iterator<Item = (&'static str, u32)>, uids: &[i64], node: &Node) -> Result<Value> {
    let mut keys = BTreeMap::new();
    for (port, index) in list {
        let uid = uids.get(index as usize).ok_or_else(|| {
            Error::new(ErrorCode::BadTensor, format!("handle {index} at port {port}"), "a tensor of this graph")
                .at(format!("node '{}'", node.name))
        })?;
        keys.insert(port, (*uid).into());
    }
    Ok(object(keys))
}
