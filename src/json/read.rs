//! From a JSON value to a graph.

use super::check::{brief, child, float, Checker, Obj};
use super::dequantize::{self, Scaled};
use super::tables::{self, CONTEXT, ENVELOPE, OPERATIONS, TENSOR, TENSOR_V1};
use super::{Loaded, Strictness};
use crate::graph::{
    Alignment, BMajor, DsreluFormula, Graph, GraphOptions, GroupedGemmDsreluAttrs, Implementation, InPort, Mask,
    MoeGroupedMatmulAttrs, MoeMode, Node, Op, OutPort, QatAttrs, RaggedOffset, Reordering, ScalarValue, SdpaAttrs,
    SdpaBackwardAttrs, Tensor, TensorId,
};
use crate::{Error, ErrorCode, Result};
use serde_json::Value;
use std::collections::BTreeMap;

pub(super) fn read(value: &Value, strictness: Strictness) -> Result<Loaded> {
    let doc = Obj::of(value, String::new())?;
    let v1 = version(&doc)?;
    let mut c = Checker { strictness, v1, warnings: Vec::new() };
    c.object(&doc, &[ENVELOPE])?;

    let nodes = nodes(&doc)?;
    let folded = dequantize::foldable(&nodes);
    served(&nodes, &folded)?;
    let options = options(&mut c, &doc)?;
    let mut tensors = Tensors::default();
    for (key, obj) in tensor_objects(&doc, v1)? {
        tensors.add(&mut c, key, &obj)?;
    }
    tensors.resolve_ragged()?;

    let mut graph = Graph::new(options);
    let mut scaled = Scaled::default();
    for (obj, _) in nodes.iter().zip(&folded).filter(|(_, fold)| **fold) {
        scaled.add(&mut c, &tensors, obj)?;
    }
    for (obj, _) in nodes.iter().zip(&folded).filter(|(_, fold)| !**fold) {
        let mut node = node(&mut c, &tensors, obj)?;
        scaled.fold(&mut node, obj)?;
        graph.node(node);
    }
    for tensor in tensors.list {
        graph.tensor(tensor);
    }
    scaled.drop_results(&mut graph);
    Ok(Loaded { graph, warnings: c.warnings })
}

/// Whether this is version 1.0. Checked first: the other keys mean nothing in a version that is not known.
fn version(doc: &Obj<'_>) -> Result<bool> {
    let expected = "json_version \"1.0\" or \"2.0\"";
    match doc.map.get("json_version") {
        Some(Value::String(s)) if tables::VERSIONS.contains(&s.as_str()) => Ok(s == "1.0"),
        Some(v) => Err(Error::new(ErrorCode::JsonVersion, brief(v), expected).at("/json_version")),
        None => Err(Error::new(ErrorCode::JsonVersion, "no key \"json_version\"", expected).at("the document")),
    }
}

fn nodes<'a>(doc: &Obj<'a>) -> Result<Vec<Obj<'a>>> {
    let list = array(doc, "nodes")?;
    list.iter().enumerate().map(|(i, n)| Obj::of(n, format!("/nodes/{i}"))).collect()
}

fn array<'a>(doc: &Obj<'a>, key: &str) -> Result<&'a Vec<Value>> {
    let v = doc.map.get(key).unwrap_or(&Value::Null);
    v.as_array().ok_or_else(|| Error::new(ErrorCode::JsonValue, brief(v), "an array").at(child("", key)))
}

/// Refuses the first node that is not served and lists the others.
fn served(nodes: &[Obj<'_>], folded: &[bool]) -> Result<()> {
    let mut first: Option<Error> = None;
    let mut others = Vec::new();
    for (obj, &fold) in nodes.iter().zip(folded) {
        let tag = match obj.map.get("tag") {
            Some(Value::String(tag)) => tag.as_str(),
            Some(v) => return Err(Error::new(ErrorCode::JsonValue, brief(v), "a node tag").at(obj.child("tag"))),
            None => return Err(Error::new(ErrorCode::JsonMissingKey, "no key \"tag\"", "the node's operation").at(&obj.pointer)),
        };
        if fold || OPERATIONS.iter().any(|o| o.tag == tag) {
            continue;
        }
        let name = obj.text("name").unwrap_or("");
        if first.is_some() {
            others.push(format!("{}: node '{name}' has tag {tag}", obj.child("tag")));
            continue;
        }
        let help = if tables::UNSERVED_TAGS.contains(&tag) {
            "cudnn-frontend defines this operation, but frostgraph does not serve it"
        } else {
            "No operation of cudnn-frontend has this tag"
        };
        let error = Error::new(ErrorCode::JsonTag, format!("node '{name}' has tag {tag}"), served_tags());
        first = Some(error.at(obj.child("tag")).help(help));
    }
    first.map_or(Ok(()), |e| Err(e.details(others)))
}

/// `A, B or C`.
fn served_tags() -> String {
    let tags: Vec<&str> = OPERATIONS.iter().map(|o| o.tag).collect();
    match tags.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => tags.concat(),
    }
}

fn options(c: &mut Checker, doc: &Obj<'_>) -> Result<GraphOptions> {
    let context = Obj::of(doc.map.get("context").unwrap_or(&Value::Null), "/context".into())?;
    c.object(&context, &[CONTEXT])?;
    let unset = GraphOptions::default();
    Ok(GraphOptions {
        name: context.text("name").unwrap_or("").into(),
        io: context.dtype("io_data_type").unwrap_or(unset.io),
        io_set: context.get("io_data_type").is_some(),
        intermediate: context.dtype("intermediate_data_type"),
        compute: context.dtype("compute_data_type"),
        sm_count: context.int("sm_count").unwrap_or(-1),
        dynamic_shape: context.flag("is_dynamic_shape_enabled"),
        compat: unset.compat,
        override_shape: context.flag("is_override_shape_enabled"),
        frontend_version: doc.int("cudnn_frontend_version").unwrap_or(unset.frontend_version),
        backend_version: doc.text("cudnn_backend_version").map_or(unset.backend_version, str::to_string),
    })
}

/// Tensor objects with the key that ports may use in version 1.0.
fn tensor_objects<'a>(doc: &Obj<'a>, v1: bool) -> Result<Vec<(Option<&'a str>, Obj<'a>)>> {
    if !v1 {
        let list = array(doc, "tensors")?;
        return list.iter().enumerate().map(|(i, t)| Ok((None, Obj::of(t, format!("/tensors/{i}"))?))).collect();
    }
    let map = match doc.map.get("tensors") {
        // An empty std::map that was never assigned is written as null.
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(v) => Obj::of(v, "/tensors".into())?.map,
    };
    map.iter().map(|(k, t)| Ok((Some(k.as_str()), Obj::of(t, child("/tensors", k))?))).collect()
}

/// Tensors in file order, with the ways a port may refer to them.
#[derive(Default)]
pub(super) struct Tensors {
    pub list: Vec<Tensor>,
    pointers: Vec<String>,
    by_uid: BTreeMap<i64, TensorId>,
    by_key: BTreeMap<String, TensorId>,
    /// Tensor index, reference to its offset tensor, multiplier.
    ragged: Vec<(usize, Value, i64)>,
}

impl Tensors {
    fn add(&mut self, c: &mut Checker, key: Option<&str>, obj: &Obj<'_>) -> Result<()> {
        let id = TensorId(self.list.len() as u32);
        // Version 1.0 writes uid 0 for a tensor that has none yet.
        let unassigned = c.v1 && obj.map.get("uid_assigned") == Some(&Value::Bool(false));
        if unassigned {
            let mut without = obj.map.clone();
            without.insert("uid".into(), Value::from(1));
            c.object(&Obj { map: &without, pointer: obj.pointer.clone() }, &[TENSOR, TENSOR_V1])?;
        } else {
            c.object(obj, if c.v1 { &[TENSOR, TENSOR_V1] } else { &[TENSOR] })?;
            let uid = obj.int("uid").unwrap_or_default();
            if let Some(other) = self.by_uid.insert(uid, id) {
                let first = &self.pointers[other.0 as usize];
                return Err(Error::new(
                    ErrorCode::JsonUid,
                    format!("uid {uid} again"),
                    format!("a uid that {first} does not have"),
                )
                .at(obj.child("uid")));
            }
        }
        if let Some(key) = key {
            self.by_key.insert(key.to_string(), id);
        }
        let multiplier = obj.int("ragged_offset_multiplier").unwrap_or(1);
        let offset = obj.get("ragged_offset_uid").or_else(|| obj.get("ragged_offset_name").filter(|_| c.v1));
        match offset {
            Some(reference) => self.ragged.push((self.list.len(), reference.clone(), multiplier)),
            None => {
                if let Some(key) = ["ragged_offset_multiplier", "ragged_offset_name"].into_iter().find(|k| obj.get(k).is_some()) {
                    return Err(Error::new(
                        ErrorCode::JsonMissingKey,
                        format!("\"{key}\" alone"),
                        "\"ragged_offset_uid\" beside it",
                    )
                    .at(obj.child(key)));
                }
            }
        }
        self.pointers.push(obj.pointer.clone());
        self.list.push(Tensor {
            name: obj.text("name").unwrap_or("").into(),
            dim: obj.ints("dim"),
            stride: obj.ints("stride"),
            dtype: obj.dtype("data_type"),
            uid: if unassigned { None } else { obj.int("uid") },
            is_virtual: obj.flag("is_virtual"),
            pass_by_value: obj.flag("is_pass_by_value"),
            value: obj.get("pass_by_value").map(|v| scalar(v, obj.child("pass_by_value"))).transpose()?,
            ragged: None,
            alignment: obj.int("alignment").unwrap_or(16),
            reordering: obj.text("reordering_type").and_then(tables::reordering).unwrap_or(Reordering::None),
        });
        Ok(())
    }

    /// Offsets may stand after the tensors that use them.
    fn resolve_ragged(&mut self) -> Result<()> {
        for (index, reference, multiplier) in std::mem::take(&mut self.ragged) {
            let key = if reference.is_string() { "ragged_offset_name" } else { "ragged_offset_uid" };
            let offset = self.find(&reference, || child(&self.pointers[index], key))?;
            self.list[index].ragged = Some(RaggedOffset { offset, multiplier });
        }
        Ok(())
    }

    pub fn find(&self, reference: &Value, pointer: impl Fn() -> String) -> Result<TensorId> {
        let found = match (reference.as_i64(), reference.as_str()) {
            (Some(uid), _) => self.by_uid.get(&uid),
            (None, Some(key)) => self.by_key.get(key),
            (None, None) => None,
        };
        found.copied().ok_or_else(|| {
            let given = match reference.as_str() {
                Some(key) => format!("tensor key \"{key}\""),
                None => format!("uid {reference}"),
            };
            Error::new(ErrorCode::JsonUid, given, "a tensor of \"tensors\"").at(pointer())
        })
    }
}

/// `{"index": i, "value": v}`; the index says which C++ type the value has.
fn scalar(v: &Value, pointer: String) -> Result<ScalarValue> {
    let obj = Obj::of(v, pointer)?;
    let value = obj.map.get("value").unwrap_or(&Value::Null);
    let at = obj.child("value");
    let fail = |expected: &str| Error::new(ErrorCode::JsonValue, brief(value), expected).at(&at);
    // The narrow floats travel as the bits of the single-precision float with the same value.
    let narrow = |to_bits: fn(f32) -> u16, to_f32: fn(u16) -> f32, name: &str| {
        let wide = float(value, &at)?;
        let bits = to_bits(wide);
        let back = to_f32(bits);
        if back == wide || (back.is_nan() && wide.is_nan()) {
            Ok(bits)
        } else {
            Err(fail(&format!("a value that {name} can hold")))
        }
    };
    match obj.int("index") {
        Some(0) => value.as_i64().map(ScalarValue::I64).ok_or_else(|| fail("a 64-bit integer")),
        Some(1) => {
            value.as_i64().and_then(|i| i32::try_from(i).ok()).map(ScalarValue::I32).ok_or_else(|| fail("a 32-bit integer"))
        }
        Some(2) => narrow(|x| half::f16::from_f32(x).to_bits(), |b| half::f16::from_bits(b).to_f32(), "half precision")
            .map(ScalarValue::F16),
        Some(3) => float(value, &at).map(ScalarValue::F32),
        Some(4) => value.as_f64().map(ScalarValue::F64).ok_or_else(|| fail("a number")),
        Some(5) => narrow(|x| half::bf16::from_f32(x).to_bits(), |b| half::bf16::from_bits(b).to_f32(), "bfloat16")
            .map(ScalarValue::BF16),
        Some(_) | None => Err(Error::new(
            ErrorCode::JsonValue,
            brief(obj.map.get("index").unwrap_or(&Value::Null)),
            "index 0 int64, 1 int32, 2 half, 3 float, 4 double or 5 bfloat16",
        )
        .at(obj.child("index"))),
    }
}

fn node(c: &mut Checker, tensors: &Tensors, obj: &Obj<'_>) -> Result<Node> {
    let tag = obj.text("tag").unwrap_or_default();
    // `served` has made sure that the tag is one of the table.
    let keys = OPERATIONS.iter().find(|o| o.tag == tag).map_or(&[][..], |o| o.keys);
    c.object(obj, &[keys])?;
    let op = match tag {
        "SDPA_BWD" => Op::SdpaBackward(backward_attrs(obj)?),
        "NVFP4_ATTENTION_QAT" => Op::Nvfp4Qat(qat_attrs(obj)?),
        "NVFP4_ATTENTION_QAT_BWD" => Op::Nvfp4QatBackward(qat_attrs(obj)?),
        "GROUPED_GEMM_DSRELU" => Op::GroupedGemmDsrelu(grouped_attrs(obj)?),
        "MOE_GROUPED_MATMUL" => Op::MoeGroupedMatmul(moe_attrs(obj)),
        _ => Op::Sdpa(forward_attrs(obj)?),
    };
    let inputs = ports(tensors, obj, "inputs", InPort::from_json)?;
    let outputs = ports(tensors, obj, "outputs", OutPort::from_json)?;
    let name = obj.text("name").unwrap_or("").into();
    Ok(Node { name, op, inputs, outputs, compute_dtype: obj.dtype("compute_data_type") })
}

fn ports<P: Ord>(tensors: &Tensors, obj: &Obj<'_>, key: &str, parse: fn(&str) -> Option<P>) -> Result<BTreeMap<P, TensorId>> {
    let pointer = obj.child(key);
    let map = obj.map.get(key).and_then(Value::as_object);
    let mut found = BTreeMap::new();
    for (name, reference) in map.into_iter().flatten() {
        if let (Some(port), false) = (parse(name), reference.is_null()) {
            found.insert(port, tensors.find(reference, || child(&pointer, name))?);
        }
    }
    Ok(found)
}

/// Masks arrive desugared: causal flags as a right bound of 0, window lengths as the left bound (facts §1.3).
fn mask(obj: &Obj<'_>) -> Mask {
    Mask {
        left_bound: obj.int("left_bound"),
        right_bound: obj.int("right_bound"),
        alignment: obj.text("diagonal_alignment").and_then(tables::alignment).unwrap_or(Alignment::TopLeft),
        padding: obj.flag("padding_mask"),
        alibi: obj.flag("alibi_mask"),
        ..Mask::default()
    }
}

fn forward_attrs(obj: &Obj<'_>) -> Result<SdpaAttrs> {
    Ok(SdpaAttrs {
        mask: mask(obj),
        attn_scale: obj.finite("attn_scale_value")?,
        dropout_probability: obj.finite("dropout_probability")?,
        generate_stats: obj.get("generate_stats").and_then(Value::as_bool),
        is_inference: None,
        stats_use_log2: obj.flag("stats_use_log2"),
        unfuse_fma: obj.flag("unfuse_fma"),
        implementation: obj.text("implementation").and_then(tables::implementation).unwrap_or(Implementation::Auto),
        max_seq_len_kv: obj.int("max_seq_len_kv"),
        max_total_seq_len_q: obj.int("max_total_seq_len_q"),
        max_total_seq_len_kv: obj.int("max_total_seq_len_kv"),
        score_mod: obj.flag("score_mod"),
        softmax_precision: obj.dtype("softmax_precision"),
        attn_scale_prefolded: obj.flag("attn_scale_prefolded"),
        rescale_threshold: obj.finite("rescale_threshold")?,
        mma_core_mode: obj.dtype("mma_core_mode"),
    })
}

fn backward_attrs(obj: &Obj<'_>) -> Result<SdpaBackwardAttrs> {
    Ok(SdpaBackwardAttrs {
        mask: mask(obj),
        attn_scale: obj.finite("attn_scale_value")?,
        dropout_probability: obj.finite("dropout_probability")?,
        deterministic: obj.flag("is_deterministic_algorithm"),
        max_total_seq_len_q: obj.int("max_total_seq_len_q"),
        max_total_seq_len_kv: obj.int("max_total_seq_len_kv"),
        score_mod: obj.flag("score_mod"),
    })
}

fn qat_attrs(obj: &Obj<'_>) -> Result<QatAttrs> {
    Ok(QatAttrs {
        mask: mask(obj),
        attn_scale: obj.finite("attn_scale_value")?,
        deterministic: obj.flag("is_deterministic_algorithm"),
    })
}

/// Block scales are added by the dequantisation that the operand comes from.
fn moe_attrs(obj: &Obj<'_>) -> MoeGroupedMatmulAttrs {
    let mode = MoeMode::ALL.into_iter().find(|m| obj.text("mode") == Some(m.json())).unwrap_or_default();
    MoeGroupedMatmulAttrs { mode, top_k: obj.int("top_k").unwrap_or(0), ..MoeGroupedMatmulAttrs::default() }
}

/// What is absent has the specification's default.
fn grouped_attrs(obj: &Obj<'_>) -> Result<GroupedGemmDsreluAttrs> {
    let unset = GroupedGemmDsreluAttrs::default();
    Ok(GroupedGemmDsreluAttrs {
        formula: match obj.text("formula") {
            Some("PREACTIVATION_C") => DsreluFormula::PreactivationC,
            Some(_) | None => DsreluFormula::PreactivationG,
        },
        sf_vec_size: obj.int("sf_vec_size").unwrap_or(unset.sf_vec_size),
        tanh_clamp_scale: obj.finite("tanh_clamp_scale")?,
        discrete_col_sfd: obj.flag("discrete_col_sfd"),
        deterministic: obj.flag("is_deterministic_algorithm"),
        m_aligned: obj.int("m_aligned").unwrap_or(unset.m_aligned),
        n: obj.int("n"),
        b_dtype: obj.dtype("b_data_type"),
        b_major: if obj.text("b_major") == Some("N") { BMajor::N } else { BMajor::K },
        d_dtype: obj.dtype("d_data_type").unwrap_or(unset.d_dtype),
    })
}
