//! The operation as JSON.

use crate::support::{build, served};
use frostgraph::graph::{Graph, Op};
use frostgraph::json::{from_str, Strictness};

#[test]
fn every_form_survives_writing_and_reading() {
    for (name, case) in served() {
        let (g, _) = build(&case).unwrap();
        let text = g.to_json().unwrap();
        let loaded = from_str(&text, Strictness::Strict).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
        assert!(loaded.warnings.is_empty(), "{name}");
        let (wrote, read) = (g.freeze().unwrap(), loaded.graph.freeze().unwrap());
        assert_eq!(wrote.nodes()[0].op, read.nodes()[0].op, "{name}");
        assert_eq!(loaded.graph.to_json().unwrap(), text, "{name}");
        assert_eq!(wrote.to_json().unwrap(), read.to_json().unwrap(), "{name}");
    }
}

#[test]
fn absent_keys_are_the_specifications_defaults() {
    let (mut g, _) = build(&crate::support::nvfp4()).unwrap();
    g.options_mut().name = "g".into();
    let mut value: serde_json::Value = serde_json::from_str(&g.to_json().unwrap()).unwrap();
    let node = value["nodes"][0].as_object_mut().unwrap();
    assert_eq!(node["tag"], "GROUPED_GEMM_DSRELU");
    assert_eq!(node["formula"], "PREACTIVATION_G");
    node.retain(|k, _| ["tag", "name", "inputs", "outputs"].contains(&k.as_str()));
    let g = Graph::from_json(&value.to_string()).unwrap();
    let Op::GroupedGemmDsrelu(a) = &g.nodes()[0].op else { panic!("a grouped product") };
    assert_eq!(*a, Default::default());
    assert_eq!((a.sf_vec_size, a.m_aligned), (16, 256));
}

#[test]
fn wrong_values_name_their_place() {
    let (g, _) = build(&crate::support::nvfp4()).unwrap();
    let value: serde_json::Value = serde_json::from_str(&g.to_json().unwrap()).unwrap();
    let refused = |key: &str, bad: serde_json::Value| {
        let mut value = value.clone();
        value["nodes"][0][key] = bad;
        from_str(&value.to_string(), Strictness::Strict).expect_err("refused").to_string()
    };
    assert!(refused("formula", "D".into()).contains("FG2004 at /nodes/0/formula"));
    assert!(refused("b_major", "M".into()).contains("one of K N"));
    assert!(refused("sf_vec_size", 0.into()).contains("/nodes/0/sf_vec_size"));
    assert!(refused("padding_mask", false.into()).contains("FG2007 at /nodes/0/padding_mask"));
    assert!(refused("inputs", serde_json::json!({ "Q": 1 })).contains("unknown port \"Q\""));
}
