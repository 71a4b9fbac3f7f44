//! The operation as JSON: cudnn-frontend's own file, block scales as dequantisations, strictness.

use crate::support::{build, mxfp8, served, Case};
use frostgraph::graph::{Graph, InPort, MoeMode, Op, Tensor};
use frostgraph::json::{from_str, Strictness};
use frostgraph::{DType, ErrorCode};
use serde_json::{json, Value};

const MOE: &str = include_str!("../graphs/cudnn/json_moe.json");

#[test]
fn the_file_of_cudnn_frontend_loads_and_round_trips() {
    let loaded = from_str(MOE, Strictness::Strict).unwrap();
    assert!(loaded.warnings.is_empty());
    let Op::MoeGroupedMatmul(a) = &loaded.graph.nodes()[0].op else { panic!("a plain grouped product") };
    assert_eq!((a.mode, a.top_k, a.sf_vec_size), (MoeMode::None, 0, 0));
    let frozen = loaded.graph.freeze().unwrap();
    let output = frozen.tensors().find(|(_, t)| t.uid == Some(4)).unwrap().1;
    assert_eq!((&output.dim[..], output.dtype), (&[1, 256, 128][..], Some(DType::BF16)));
    // Everything but what is informational stands as cudnn-frontend wrote it.
    let mut wrote: Value = serde_json::from_str(&loaded.graph.to_json().unwrap()).unwrap();
    let read: Value = serde_json::from_str(MOE).unwrap();
    wrote["gid"] = read["gid"].clone();
    assert_eq!(wrote, read);
}

#[test]
fn every_form_survives_writing_and_reading() {
    for (name, case) in served() {
        let (g, _) = build(&case).unwrap();
        let frozen_text = g.freeze().unwrap().to_json().unwrap();
        for text in [g.to_json().unwrap(), frozen_text] {
            let loaded = from_str(&text, Strictness::Strict).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
            assert!(loaded.warnings.is_empty(), "{name}");
            let (wrote, read) = (g.freeze().unwrap(), loaded.graph.freeze().unwrap());
            let mut node = read.nodes()[0].clone();
            let Op::MoeGroupedMatmul(attrs) = &mut node.op else { panic!("a plain grouped product") };
            assert_eq!(attrs.dequantized.len(), if case.scales.is_some() { 2 } else { 0 }, "{name}");
            attrs.dequantized.clear();
            assert_eq!(wrote.nodes()[0], node, "{name}");
            assert_eq!(loaded.graph.to_json().unwrap(), text, "{name}");
            assert_eq!(wrote.to_json().unwrap(), read.to_json().unwrap(), "{name}");
        }
    }
}

/// Scales become dequantisations, with the block sizes of cudnn-frontend's graphs, and nothing of ours is left at the product.
#[test]
fn scales_are_written_as_dequantisations() {
    let (g, _) = build(&mxfp8()).unwrap();
    let v: Value = serde_json::from_str(&g.to_json().unwrap()).unwrap();
    let nodes = v["nodes"].as_array().unwrap();
    let tags: Vec<&str> = nodes.iter().map(|n| n["tag"].as_str().unwrap()).collect();
    assert_eq!(tags, ["BLOCK_SCALE_DEQUANTIZE", "BLOCK_SCALE_DEQUANTIZE", "MOE_GROUPED_MATMUL"]);
    assert_eq!((&nodes[0]["block_size"], &nodes[1]["block_size"]), (&json!([1, 32]), &json!([32, 1])));
    assert_eq!(nodes[2]["inputs"]["Token"], nodes[0]["outputs"]["Y"]);
    assert_eq!(nodes[2]["inputs"]["Weight"], nodes[1]["outputs"]["Y"]);
    assert_eq!(nodes[2]["inputs"].as_object().unwrap().len(), 3);
    let y = v["tensors"].as_array().unwrap().iter().find(|t| t["uid"] == nodes[0]["outputs"]["Y"]).unwrap();
    assert_eq!((&y["is_virtual"], &y["data_type"]), (&json!(true), &Value::Null));
}

/// Labels and uids of what lies between are free, the order of nodes too, and two products may share a dequantised token.
#[test]
fn dequantisations_as_others_write_them() {
    let (g, _) = build(&mxfp8()).unwrap();
    let mut v: Value = serde_json::from_str(&g.to_json().unwrap()).unwrap();
    let (x, y) = (v["nodes"][0]["outputs"]["Y"].as_i64().unwrap(), v["nodes"][1]["outputs"]["Y"].as_i64().unwrap());
    // The dequantised token in front of all other tensors of the file, and described in full.
    let tensors = v["tensors"].as_array_mut().unwrap();
    let at = tensors.iter().position(|t| t["uid"] == x).unwrap();
    let mut virtual_token = tensors.remove(at);
    virtual_token["dim"] = json!([1, 96, 64]);
    virtual_token["stride"] = json!([6144, 64, 1]);
    virtual_token["data_type"] = "FLOAT".into();
    tensors.insert(0, virtual_token);
    let mut second = v["nodes"][2].clone();
    second["name"] = "second".into();
    let mut out = v["tensors"].as_array().unwrap().iter().find(|t| t["uid"] == second["outputs"]["Output"]).unwrap().clone();
    out["uid"] = 999.into();
    second["outputs"]["Output"] = 999.into();
    v["tensors"].as_array_mut().unwrap().push(out);
    let nodes = v["nodes"].as_array_mut().unwrap();
    nodes.push(second);
    nodes.rotate_left(2);
    let graph = from_str(&v.to_string(), Strictness::Strict).unwrap().graph;
    assert_eq!(graph.nodes().len(), 2);
    assert!(graph.tensors().all(|(_, t)| t.uid != Some(x) && t.uid != Some(y)));
    for node in graph.nodes() {
        let name = |p| graph.get(node.inputs[&p]).unwrap().name.clone();
        assert_eq!(
            [InPort::Token, InPort::Sfa, InPort::Weight, InPort::Sfb].map(name),
            ["token", "token_scale", "weight", "weight_scale"].map(String::from)
        );
    }
    graph.freeze().unwrap();
}

/// What a file calls its dequantisations is no part of the product and yet comes back: labels, uids, recorded types and extents, and that
/// two products share one.
#[test]
fn labels_of_dequantisations_survive() {
    let (g, _) = build(&mxfp8()).unwrap();
    let mut v: Value = serde_json::from_str(&g.to_json().unwrap()).unwrap();
    let y = v["nodes"][0]["outputs"]["Y"].as_i64().unwrap();
    v["nodes"][0]["name"] = "widen the token".into();
    v["nodes"][0]["compute_data_type"] = "FLOAT".into();
    v["nodes"][1]["name"] = "".into();
    for t in v["tensors"].as_array_mut().unwrap().iter_mut().filter(|t| t["uid"] == y) {
        (t["name"], t["data_type"]) = ("x wide".into(), "HALF".into());
        (t["dim"], t["stride"], t["uid"]) = (json!([1, 96, 64]), json!([6144, 64, 1]), 4711.into());
    }
    v["nodes"][0]["outputs"]["Y"] = 4711.into();
    v["nodes"][2]["inputs"]["Token"] = 4711.into();
    // A second product on the same dequantised operands.
    let mut second = v["nodes"][2].clone();
    let mut out = v["tensors"].as_array().unwrap().iter().find(|t| t["uid"] == second["outputs"]["Output"]).unwrap().clone();
    (out["uid"], second["outputs"]["Output"], second["name"]) = (999.into(), 999.into(), "second".into());
    v["tensors"].as_array_mut().unwrap().push(out);
    v["nodes"].as_array_mut().unwrap().push(second);
    v["tensors"].as_array_mut().unwrap().sort_by_key(|t| t["uid"].as_i64());
    let read = from_str(&v.to_string(), Strictness::Strict).unwrap().graph;
    let wrote: Value = serde_json::from_str(&read.to_json().unwrap()).unwrap();
    assert_eq!(wrote, v);
    // Frozen, everything but the inferred extents is still as it was.
    let frozen: Value = serde_json::from_str(&read.freeze().unwrap().to_json().unwrap()).unwrap();
    assert_eq!(frozen["nodes"], v["nodes"]);
    // A uid that a tensor of the graph has taken since is not given twice.
    let mut read = read;
    read.tensor(Tensor::new("late", [1, 1, 1]).uid(4711));
    let wrote: Value = serde_json::from_str(&read.to_json().unwrap()).unwrap();
    let y = |n: &Value| n["outputs"]["Y"].as_i64();
    let fresh = y(&wrote["nodes"][0]).unwrap();
    assert!(fresh > 4711 && wrote["nodes"][0]["name"] == "widen the token", "{fresh}");
    assert!(wrote["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|n| n["tag"] == "MOE_GROUPED_MATMUL")
        .all(|n| n["inputs"]["Token"] != 4711));
    assert_eq!(wrote["tensors"].as_array().unwrap().iter().filter(|t| t["uid"] == 4711).count(), 1);
}

#[test]
fn wrong_values_name_their_place() {
    let (g, _) = build(&Case { mode: MoeMode::Scatter, top_k: 2, ..mxfp8() }).unwrap();
    let value: Value = serde_json::from_str(&g.to_json().unwrap()).unwrap();
    let refused = |pointer: &str, bad: Value| {
        let mut value = value.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        value.pointer_mut(parent).unwrap()[key] = bad;
        from_str(&value.to_string(), Strictness::Strict).expect_err(pointer)
    };
    let text = |pointer: &str, bad: Value| refused(pointer, bad).to_string();
    let combine = text("/nodes/2/mode", "COMBINE".into());
    assert!(combine.contains("FG2004 at /nodes/2/mode") && combine.contains("one of NONE GATHER SCATTER"), "{combine}");
    assert!(text("/nodes/2/top_k", (-1).into()).contains("FG2004 at /nodes/2/top_k"));
    assert!(text("/nodes/2/inputs/SFA", 1.into()).contains("unknown port \"SFA\""));
    assert!(text("/nodes/2/padding_mask", false.into()).contains("FG2007 at /nodes/2/padding_mask"));
    assert!(text("/nodes/0/axis", 1.into()).contains("FG2007 at /nodes/0/axis"));
    assert!(text("/nodes/0/block_size", json!([32, 1]))
        .contains("FG2004 at /nodes/0/block_size: [32, 1] of Token; expected [1, 16] or [1, 32]"));
    assert!(text("/nodes/1/block_size", json!([1, 32])).contains("FG2004 at /nodes/1/block_size"));
    assert!(text("/nodes/1/block_size", json!([16, 1])).contains("blocks of 32 and of 16"));
    assert!(text("/nodes/0/is_negative_scale", true.into()).contains("FG2004 at /nodes/0/is_negative_scale"));
    assert_eq!(refused("/nodes/0/inputs/scale", Value::Null).code, ErrorCode::JsonMissingKey);
    assert_eq!(refused("/nodes/0/inputs/X", 77.into()).code, ErrorCode::JsonUid);
    let y = value["nodes"][0]["outputs"]["Y"].clone();
    assert_eq!(refused("/nodes/1/outputs/Y", y.clone()).code, ErrorCode::JsonUid, "one result of two dequantisations");
    let at = value["tensors"].as_array().unwrap().iter().position(|t| t["uid"] == y).unwrap();
    assert!(text(&format!("/tensors/{at}/is_virtual"), false.into()).contains("a virtual tensor"));
    assert!(text(&format!("/tensors/{at}/dim"), json!([1, 2, 3])).contains("those of X"));
    // Without a key nothing is guessed.
    let mut bare = value.clone();
    bare["nodes"][2].as_object_mut().unwrap().remove("mode");
    assert_eq!(from_str(&bare.to_string(), Strictness::Lenient).expect_err("no mode").code, ErrorCode::JsonMissingKey);
}

/// A dequantisation that anybody else reads stays what it is: an operation that nobody serves.
#[test]
fn a_dequantisation_alone_is_refused_by_tag() {
    let (g, _) = build(&mxfp8()).unwrap();
    let mut v: Value = serde_json::from_str(&g.to_json().unwrap()).unwrap();
    v["nodes"][2]["inputs"]["TokenIndex"] = v["nodes"][0]["outputs"]["Y"].clone();
    let e = from_str(&v.to_string(), Strictness::Lenient).expect_err("refused");
    assert!(e.code == ErrorCode::JsonTag && e.to_string().contains("tag BLOCK_SCALE_DEQUANTIZE"), "{e}");
    v["nodes"].as_array_mut().unwrap().truncate(1);
    assert_eq!(Graph::from_json(&v.to_string()).expect_err("refused").code, ErrorCode::JsonTag);
}
