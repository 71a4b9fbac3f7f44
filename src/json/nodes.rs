//! Node objects of a file: operands by port, attributes by operation.

use super::check::{child, Checker, Obj};
use super::spelling;
use super::tables::OPERATIONS;
use super::tensors::Tensors;
use crate::graph::{
    Alignment, BMajor, DsreluFormula, GroupedGemmDsreluAttrs, Implementation, InPort, Mask, MoeGroupedMatmulAttrs, MoeMode, Node,
    Op, OutPort, QatAttrs, SdpaAttrs, SdpaBackwardAttrs, TensorId,
};
use crate::Result;
use serde_json::Value;
use std::collections::BTreeMap;

pub(super) fn node(c: &mut Checker, tensors: &Tensors, obj: &Obj<'_>) -> Result<Node> {
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
        alignment: obj.text("diagonal_alignment").and_then(spelling::alignment).unwrap_or(Alignment::TopLeft),
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
        implementation: obj.text("implementation").and_then(spelling::implementation).unwrap_or(Implementation::Auto),
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
