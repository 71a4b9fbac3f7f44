//! What was read from 2.0 and written again is equal key for key, `gid` aside.

use super::{case, edited, without_gid, SDPA_CASES};
use frostgraph::graph::{Alignment, Graph, GraphOptions, Implementation, InPort, Mask, Node, Op, OutPort, Tensor};
use frostgraph::graph::{Reordering, ScalarValue, SdpaAttrs, SdpaBackwardAttrs};
use frostgraph::json::{from_str, to_value, Strictness};
use frostgraph::DType;
use serde_json::{json, Value};
use std::collections::BTreeMap;

#[test]
fn cudnn_files_come_back_equal() {
    for name in SDPA_CASES {
        let text = case(name);
        let loaded = from_str(&text, Strictness::Strict).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(loaded.warnings, [], "{name}");
        let written = loaded.graph.to_json().unwrap();
        assert_eq!(without_gid(&written), without_gid(&text), "{name}");
    }
}

/// Stronger than asked: the layout of the text is kept as well, so that a diff shows only what changed.
#[test]
fn cudnn_files_come_back_byte_for_byte() {
    for name in SDPA_CASES {
        let text = case(name);
        let gid = text.lines().find(|l| l.starts_with(" \"gid\"")).expect("a gid line");
        let written = Graph::from_json(&text).unwrap().to_json().unwrap();
        assert_eq!(written, text.trim_end().replacen(gid, " \"gid\": 0,", 1), "{name}");
    }
}

#[test]
fn forward_sample_holds_what_the_file_says() {
    let g = Graph::from_json(&case("json_sdpa_fwd.json")).unwrap();
    assert_eq!(g.options().io, DType::BF16);
    assert_eq!(g.options().backend_version, "9.27.0");
    assert_eq!(g.options().frontend_version, 13200);
    let node = &g.nodes()[0];
    let Op::Sdpa(a) = &node.op else { panic!("a forward") };
    assert_eq!(a.attn_scale, Some(0.125), "T3: 3E000000");
    assert_eq!(a.generate_stats, Some(true));
    assert_eq!(a.implementation, Implementation::Unified);
    // Facts §1.3: causal arrives as right bound 0, a window of length 65 as the left bound (T5).
    let mask = Mask { left_bound: Some(65), right_bound: Some(0), alignment: Alignment::TopLeft, ..Mask::none() };
    assert_eq!(a.mask, mask);
    let q = g.get(node.inputs[&InPort::Q]).unwrap();
    assert_eq!((q.name.as_str(), q.uid, q.alignment), ("q", Some(1), 16));
    assert_eq!((q.dim.as_slice(), q.stride.as_slice()), ([2, 4, 128, 64].as_slice(), [32768, 64, 256, 1].as_slice()));
    let o = g.get(node.outputs[&OutPort::O]).unwrap();
    assert_eq!((o.dtype, o.is_virtual), (None, false), "a null type stays unset until freeze");
}

#[test]
fn thd_sample_holds_its_ragged_offsets() {
    let g = Graph::from_json(&case("json_sdpa_fwd_thd.json")).unwrap();
    let node = &g.nodes()[0];
    let q = g.get(node.inputs[&InPort::Q]).unwrap();
    let ragged = q.ragged.expect("packed");
    assert_eq!(ragged.multiplier, 64);
    assert_eq!(g.get(ragged.offset).unwrap().uid, Some(10));
    let o = g.get(node.outputs[&OutPort::O]).unwrap().ragged.expect("packed");
    assert_eq!(o.multiplier, 1, "absent means 1");
    let Op::Sdpa(a) = &node.op else { panic!("a forward") };
    assert_eq!((a.max_total_seq_len_q, a.attn_scale), (Some(200), None));
    assert_eq!((a.mask.padding, a.mask.alignment), (true, Alignment::BottomRight));
}

/// Field report 46: alignment was lost, so a rebuilt graph picked a too strict kernel. Every tensor attribute is checked with it.
#[test]
fn report_46_every_tensor_attribute_survives() {
    let text = edited("json_sdpa_fwd.json", |v| {
        let t = v["tensors"][0].as_object_mut().unwrap();
        t.insert("alignment".into(), 4.into());
        t.insert("reordering_type".into(), "F8_128x4".into());
        v["tensors"][4]["is_virtual"] = true.into();
        v["context"]["name"] = "layer 3".into();
        v["context"]["sm_count"] = 12.into();
        v["context"]["is_dynamic_shape_enabled"] = true.into();
        v["context"]["io_data_type"] = Value::Null;
        v["nodes"][0]["rescale_threshold"] = "41000000".into();
        v["nodes"][0]["compute_data_type"] = "FLOAT".into();
        v["nodes"][0]["implementation"] = "AUTO".into();
    });
    let g = Graph::from_json(&text).unwrap();
    let q = g.tensors().next().unwrap().1;
    assert_eq!((q.alignment, q.reordering), (4, Reordering::F8_128x4));
    assert!(g.tensors().nth(4).unwrap().1.is_virtual);
    assert!(!g.options().io_set);
    let e = g.freeze().unwrap_err();
    assert_eq!((e.code.code(), e.at.as_str()), ("FG1107", "tensor 'sdpa::O'"), "no type of its own and none of the graph: {e}");
    assert_eq!(without_gid(&g.to_json().unwrap()), without_gid(&text));
}

#[test]
fn scalars_survive_in_every_type() {
    // Facts §1.2: 0 int64, 1 int32, 2 half, 3 float, 4 double, 5 bf16; the narrow floats travel as single-precision bits.
    let cases = [
        (json!({"index": 0, "value": i64::MIN}), ScalarValue::I64(i64::MIN)),
        (json!({"index": 1, "value": -7}), ScalarValue::I32(-7)),
        (json!({"index": 2, "value": "3F800000"}), ScalarValue::F16(0x3C00)),
        (json!({"index": 3, "value": "3DCCCCCD"}), ScalarValue::F32(0.1)),
        (json!({"index": 4, "value": 0.1}), ScalarValue::F64(0.1)),
        (json!({"index": 5, "value": "3FC00000"}), ScalarValue::BF16(0x3FC0)),
    ];
    for (wire, value) in cases {
        let text = edited("json_sdpa_fwd_thd.json", |v| v["tensors"][8]["pass_by_value"] = wire.clone());
        let g = Graph::from_json(&text).unwrap();
        assert_eq!(g.tensors().nth(8).unwrap().1.value, Some(value), "{wire}");
        assert_eq!(without_gid(&g.to_json().unwrap()), without_gid(&text), "{wire}");
    }
}

/// A hexadecimal float is its bits: infinities and NaN of a scalar, negative zero and denormals come back as they were.
#[test]
fn float_bits_survive() {
    for bits in ["80000000", "00000001", "7F800000", "FFC00001", "7F7FFFFF"] {
        let text = edited("json_sdpa_fwd_thd.json", |v| v["tensors"][8]["pass_by_value"] = json!({"index": 3, "value": bits}));
        let written = Graph::from_json(&text).unwrap().to_json().unwrap();
        assert_eq!(without_gid(&written)["tensors"][8]["pass_by_value"]["value"], bits);
    }
    // Written by hand: lower case, or the number itself.
    for scale in [json!("3e000000"), json!(0.125)] {
        let text = edited("json_sdpa_fwd.json", |v| v["nodes"][0]["attn_scale_value"] = scale);
        let written = Graph::from_json(&text).unwrap().to_json().unwrap();
        assert_eq!(without_gid(&written)["nodes"][0]["attn_scale_value"], "3E000000");
    }
}

fn forward_with(mask: Mask) -> Graph {
    let mut g = Graph::new(GraphOptions::default());
    let ids: Vec<_> = ["Q", "K", "V", "O"].iter().map(|n| g.tensor(Tensor::new(*n, [1, 1, 8, 8]))).collect();
    g.node(Node {
        name: "attn".into(),
        op: Op::Sdpa(SdpaAttrs { mask, ..Default::default() }),
        inputs: BTreeMap::from([(InPort::Q, ids[0]), (InPort::K, ids[1]), (InPort::V, ids[2])]),
        outputs: BTreeMap::from([(OutPort::O, ids[3])]),
        compute_dtype: None,
    });
    g
}

/// Facts §1.3: flags are desugared when written.
#[test]
fn masks_are_written_desugared() {
    let cases = [
        (Mask::none(), Value::Null, Value::Null, "TOP_LEFT"),
        (Mask::causal(), Value::Null, 0.into(), "TOP_LEFT"),
        (Mask::causal_bottom_right(), Value::Null, 0.into(), "BOTTOM_RIGHT"),
        (Mask::causal().window(65), 65.into(), 0.into(), "TOP_LEFT"),
        (Mask { right_bound: Some(3), alignment: Alignment::BottomRight, ..Mask::none() }, Value::Null, 3.into(), "BOTTOM_RIGHT"),
    ];
    for (mask, left, right, corner) in cases {
        let v = to_value(&forward_with(mask.clone())).unwrap();
        let n = &v["nodes"][0];
        assert_eq!((&n["left_bound"], &n["right_bound"]), (&left, &right), "{mask:?}");
        assert_eq!(n["diagonal_alignment"], corner, "{mask:?}");
    }
}

#[test]
fn contradicting_masks_have_no_json_form() {
    let both = Mask { causal: true, causal_bottom_right: true, ..Mask::none() };
    let pinned = Mask { right_bound: Some(1), ..Mask::causal() };
    let windows = Mask { left_bound: Some(2), ..Mask::none().window(3) };
    for mask in [both, pinned, windows] {
        let e = to_value(&forward_with(mask)).unwrap_err();
        assert_eq!(e.code.code(), "FG1108", "{e}");
    }
}

/// Attributes that cudnn-frontend's format lacks are kept under their own keys, so that a saved graph plans as the graph did.
#[test]
fn own_attributes_survive() {
    let mut g = forward_with(Mask::none());
    g.node(Node {
        name: "grad".into(),
        op: Op::SdpaBackward(SdpaBackwardAttrs { score_mod: true, deterministic: true, ..Default::default() }),
        inputs: BTreeMap::new(),
        outputs: BTreeMap::new(),
        compute_dtype: Some(DType::F32),
    });
    let mut v = to_value(&g).unwrap();
    assert_eq!(v["nodes"][1]["score_mod"], true);
    let n = v["nodes"][0].as_object_mut().unwrap();
    assert!(!n.contains_key("score_mod") && !n.contains_key("softmax_precision") && !n.contains_key("attn_scale_prefolded"));
    n.insert("score_mod".into(), true.into());
    n.insert("softmax_precision".into(), "HALF".into());
    n.insert("attn_scale_prefolded".into(), true.into());
    let loaded = from_str(&v.to_string(), Strictness::Strict).unwrap();
    assert_eq!(to_value(&loaded.graph).unwrap(), v);
}

/// Facts §1.2: an automatic uid is the smallest unused one.
#[test]
fn missing_uids_are_the_smallest_unused() {
    let mut g = Graph::new(GraphOptions::default());
    for (name, uid) in [("a", None), ("b", Some(1)), ("c", None), ("d", Some(3))] {
        let t = Tensor::new(name, [1]);
        g.tensor(match uid {
            Some(u) => t.uid(u),
            None => t,
        });
    }
    let v = to_value(&g).unwrap();
    let order: Vec<(&str, i64)> =
        v["tensors"].as_array().unwrap().iter().map(|t| (t["name"].as_str().unwrap(), t["uid"].as_i64().unwrap())).collect();
    assert_eq!(order, [("b", 1), ("a", 2), ("d", 3), ("c", 4)]);
}

/// Every sample that loads also passes validation, and the frozen graph writes the types that cudnn-frontend leaves open.
#[test]
fn samples_freeze_and_frozen_graphs_are_written() {
    for name in SDPA_CASES {
        let frozen = Graph::from_json(&case(name)).unwrap().freeze().unwrap_or_else(|e| panic!("{name}: {e}"));
        let written = without_gid(&frozen.to_json().unwrap());
        let mut expected = without_gid(&case(name));
        for t in expected["tensors"].as_array_mut().unwrap().iter_mut().filter(|t| t["data_type"].is_null()) {
            t["data_type"] = "BFLOAT16".into();
        }
        assert_eq!(written, expected, "{name}");
    }
}

/// The NVFP4 QAT nodes: frostgraph's own tags in the same style, every attribute and port there and back.
#[test]
fn nvfp4_qat_nodes_come_back_equal() {
    use frostgraph::graph::{Nvfp4Qat, Nvfp4QatBackward};
    let dim = [2, 4, 40, 64];
    let mut g = Graph::new(GraphOptions::default());
    let [q, k, v, d_o] = ["q", "k", "v", "dO"].map(|n| g.tensor(Tensor::new(n, dim)));
    let [len_q, len_kv] = ["len_q", "len_kv"].map(|n| g.tensor(Tensor::new(n, [2, 1, 1, 1]).dtype(DType::I32)));
    let mask = Mask { left_bound: Some(9), right_bound: Some(0), alignment: Alignment::BottomRight, ..Mask::none() }.padded();
    let (seq_len_q, seq_len_kv, attn_scale) = (Some(len_q), Some(len_kv), Some(0.125));
    let forward = Nvfp4Qat { mask: mask.clone(), attn_scale, seq_len_q, seq_len_kv, ..Default::default() };
    let out = g.nvfp4_attention_qat_forward(q, k, v, forward).unwrap();
    let backward = Nvfp4QatBackward { mask, attn_scale, seq_len_q, seq_len_kv, deterministic: true, ..Default::default() };
    g.nvfp4_attention_qat_backward(d_o, q, k, v, out.high_precision_o, out.lse, backward).unwrap();
    let text = g.to_json().unwrap();
    let read = from_str(&text, Strictness::Strict).unwrap().graph;
    assert_eq!(to_value(&read).unwrap(), to_value(&g).unwrap());
    assert_eq!(
        read.nodes().iter().map(|n| n.op.clone()).collect::<Vec<_>>(),
        g.nodes().iter().map(|n| n.op.clone()).collect::<Vec<_>>()
    );
    let v: Value = serde_json::from_str(&text).unwrap();
    let (f, b) = (&v["nodes"][0], &v["nodes"][1]);
    assert_eq!((f["tag"].as_str(), b["tag"].as_str()), (Some("NVFP4_ATTENTION_QAT"), Some("NVFP4_ATTENTION_QAT_BWD")));
    assert_eq!(f["outputs"]["High_precision_O"], b["inputs"]["High_precision_O"], "the forward feeds the backward");
    assert_eq!(f["outputs"]["Stats"], b["inputs"]["Stats"]);
    assert_eq!((b["is_deterministic_algorithm"].clone(), f["attn_scale_value"].clone()), (json!(true), json!("3E000000")));
    let refused = text.replace("\"High_precision_O\"", "\"O_hp\"");
    assert!(from_str(&refused, Strictness::Lenient).unwrap_err().to_string().contains("unknown port \"O_hp\""));
}
