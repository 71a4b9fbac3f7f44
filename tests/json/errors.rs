//! Each fault of a file gives its code, its place, what was given and what is expected.

use super::{case, edited};
use frostgraph::graph::Graph;
use frostgraph::json::{from_path, from_str, Strictness};
use serde_json::{json, Value};

const FWD: &str = "json_sdpa_fwd.json";
const THD: &str = "json_sdpa_fwd_thd.json";

fn error(text: &str) -> String {
    Graph::from_json(text).expect_err("a bad file").to_string()
}

/// Golden messages: (edit of the forward sample, rendered error).
#[test]
fn golden_messages() {
    type Edit = fn(&mut Value);
    let cases: &[(Edit, &str)] = &[
        (
            |v| drop(v.as_object_mut().unwrap().remove("json_version")),
            "FG2002 at the document: no key \"json_version\"; expected json_version \"1.0\" or \"2.0\"",
        ),
        (
            |v| v["json_version"] = "3.0".into(),
            "FG2002 at /json_version: string \"3.0\"; expected json_version \"1.0\" or \"2.0\"",
        ),
        (
            |v| v["json_version"] = 2.into(),
            "FG2002 at /json_version: number 2; expected json_version \"1.0\" or \"2.0\"",
        ),
        (
            |v| drop(v.as_object_mut().unwrap().remove("tensors")),
            "FG2003 at the document: no key \"tensors\"; expected one (Tensors by ascending uid; in version 1.0 an object keyed by tensor)",
        ),
        (|v| v["nodes"] = json!({"a": 1}), "FG2004 at /nodes: object of 1 keys; expected an array"),
        (|v| v["nodes"][0] = 7.into(), "FG2004 at /nodes/0: number 7; expected an object"),
        (
            |v| drop(v["nodes"][0].as_object_mut().unwrap().remove("tag")),
            "FG2003 at /nodes/0: no key \"tag\"; expected the node's operation",
        ),
        (
            |v| v["nodes"][0]["tag"] = "SDPA_FWD".into(),
            "FG2005 at /nodes/0/tag: node 'sdpa' has tag SDPA_FWD; expected SDPA, SDPA_BWD, NVFP4_ATTENTION_QAT, NVFP4_ATTENTION_QAT_BWD, GROUPED_GEMM_DSRELU or MOE_GROUPED_MATMUL. No operation of cudnn-frontend has this tag",
        ),
        (
            |v| drop(v["nodes"][0].as_object_mut().unwrap().remove("inputs")),
            "FG2003 at /nodes/0: no key \"inputs\"; expected one (Operands read)",
        ),
        (
            |v| v["nodes"][0]["inputs"]["Q"] = 99.into(),
            "FG2006 at /nodes/0/inputs/Q: uid 99; expected a tensor of \"tensors\"",
        ),
        (|v| v["nodes"][0]["inputs"]["Q"] = 0.into(), "FG2004 at /nodes/0/inputs/Q: number 0; expected a uid of at least 1"),
        (
            |v| v["nodes"][0]["outputs"]["Amax_O"] = 4.into(),
            "FG2004 at /nodes/0/outputs/Amax_O: unknown port \"Amax_O\"; expected one of O Stats Max Sum_exp RNG_DUMP",
        ),
        (|v| v["nodes"][0]["padding_mask"] = "yes".into(), "FG2004 at /nodes/0/padding_mask: string \"yes\"; expected true or false"),
        (
            |v| v["nodes"][0]["right_bound"] = 1.5.into(),
            "FG2004 at /nodes/0/right_bound: number 1.5; expected a 64-bit integer",
        ),
        (
            |v| v["nodes"][0]["left_bound"] = u64::MAX.into(),
            "FG2004 at /nodes/0/left_bound: number 18446744073709551615; expected a 64-bit integer",
        ),
        (
            |v| v["nodes"][0]["max_seq_len_kv"] = (-1).into(),
            "FG2004 at /nodes/0/max_seq_len_kv: number -1; expected a 64-bit integer of at least 0",
        ),
        (
            |v| v["nodes"][0]["attn_scale_value"] = "3E0000".into(),
            "FG2004 at /nodes/0/attn_scale_value: string \"3E0000\"; expected eight hexadecimal digits of a float's bits, such as \
             \"3E000000\" for 0.125, or a number",
        ),
        (
            |v| v["nodes"][0]["attn_scale_value"] = "+3E00000".into(),
            "FG2004 at /nodes/0/attn_scale_value: string \"+3E00000\"; expected eight hexadecimal digits of a float's bits, such as \
             \"3E000000\" for 0.125, or a number",
        ),
        (
            |v| v["nodes"][0]["attn_scale_value"] = "7FC00000".into(),
            "FG1108 at /nodes/0/attn_scale_value: string \"7FC00000\" (NaN); expected a finite number",
        ),
        (
            |v| v["nodes"][0]["dropout_probability"] = "FF800000".into(),
            "FG1108 at /nodes/0/dropout_probability: string \"FF800000\" (-inf); expected a finite number",
        ),
        // cudnn-frontend would take the first entry of its table.
        (
            |v| v["nodes"][0]["diagonal_alignment"] = "TOP".into(),
            "FG2004 at /nodes/0/diagonal_alignment: string \"TOP\"; expected one of TOP_LEFT BOTTOM_RIGHT",
        ),
        (
            |v| v["nodes"][0]["is_mxfp8"] = true.into(),
            "FG2004 at /nodes/0/is_mxfp8: true; expected false; quantised attention has its own tags",
        ),
        (
            |v| drop(v["tensors"][3].as_object_mut().unwrap().remove("uid")),
            "FG2003 at /tensors/3: no key \"uid\"; expected one (Identifier, unique in the graph)",
        ),
        (|v| v["tensors"][3]["uid"] = 2.into(), "FG2006 at /tensors/3/uid: uid 2 again; expected a uid that /tensors/1 does not have"),
        (|v| v["tensors"][3]["uid"] = (-4).into(), "FG2004 at /tensors/3/uid: number -4; expected a 64-bit integer of at least 1"),
        (
            |v| v["tensors"][0]["dim"] = json!([2, 4, 128, "64"]),
            "FG2004 at /tensors/0/dim: array of 4 items; expected an array of 64-bit integers",
        ),
        (
            |v| v["tensors"][0]["stride"][0] = 1e30.into(),
            "FG2004 at /tensors/0/stride: array of 4 items; expected an array of 64-bit integers",
        ),
        (
            |v| v["tensors"][0]["reordering_type"] = "none".into(),
            "FG2004 at /tensors/0/reordering_type: string \"none\"; expected one of NONE INT8x32 F16x16 F8_128x4",
        ),
        (
            |v| v["tensors"][0]["pass_by_value"] = json!({"index": 6, "value": 1}),
            "FG2004 at /tensors/0/pass_by_value/index: number 6; expected index 0 int64, 1 int32, 2 half, 3 float, 4 double or 5 bfloat16",
        ),
        (
            |v| v["tensors"][0]["pass_by_value"] = json!({"index": 1, "value": 2147483648i64}),
            "FG2004 at /tensors/0/pass_by_value/value: number 2147483648; expected a 32-bit integer",
        ),
        (
            |v| v["tensors"][0]["pass_by_value"] = json!({"index": 2, "value": "3F800001"}),
            "FG2004 at /tensors/0/pass_by_value/value: string \"3F800001\"; expected a value that half precision can hold",
        ),
        (
            |v| v["tensors"][0]["ragged_offset_uid"] = 77.into(),
            "FG2006 at /tensors/0/ragged_offset_uid: uid 77; expected a tensor of \"tensors\"",
        ),
        (
            |v| v["tensors"][0]["ragged_offset_multiplier"] = 64.into(),
            "FG2003 at /tensors/0/ragged_offset_multiplier: \"ragged_offset_multiplier\" alone; expected \"ragged_offset_uid\" beside it",
        ),
        (|v| v["context"] = Value::Null, "FG2004 at /context: null; expected an object"),
        (|v| *v = json!([1]), "FG2004 at the document: array of 1 items; expected an object"),
    ];
    for (edit, golden) in cases {
        assert_eq!(error(&edited(FWD, edit)), *golden);
    }
}

#[test]
fn element_types_are_listed() {
    let e = error(&edited(FWD, |v| v["tensors"][0]["data_type"] = "BF16".into()));
    assert!(
        e.starts_with("FG2004 at /tensors/0/data_type: string \"BF16\"; expected an element type: one of FLOAT DOUBLE HALF"),
        "{e}"
    );
}

/// Nodes of cudnn-frontend that have no engine: the error names node, tag and place, the further lines name the rest.
#[test]
fn unserved_samples_name_node_and_tag() {
    let served = "expected SDPA, SDPA_BWD, NVFP4_ATTENTION_QAT, NVFP4_ATTENTION_QAT_BWD, GROUPED_GEMM_DSRELU or MOE_GROUPED_MATMUL. cudnn-frontend defines this operation, but frostgraph does not serve it";
    for (name, node, tag, others) in [
        ("json_sdpa_fp8_fwd.json", "sdpa_fp8", "SDPA_FP8_FWD", vec![]),
        ("json_sdpa_fp8_bwd.json", "sdpa_fp8_bwd", "SDPA_FP8_BWD", vec![]),
        ("json_sdpa_mxfp8_fwd.json", "sdpa_mxfp8", "SDPA_MXFP8_FWD", vec![]),
        ("json_sdpa_mxfp8_bwd.json", "sdpa_mxfp8_bwd", "SDPA_MXFP8_BWD", vec![]),
        ("json_matmul_relu.json", "mm", "MATMUL", vec!["\n  /nodes/1/tag: node 'r' has tag POINTWISE"]),
        (
            "json_blockscale_matmul.json",
            "dqa",
            "BLOCK_SCALE_DEQUANTIZE",
            vec![
                "\n  /nodes/1/tag: node 'dqb' has tag BLOCK_SCALE_DEQUANTIZE",
                "\n  /nodes/2/tag: node 'mm' has tag MATMUL",
                "\n  /nodes/3/tag: node 'q' has tag BLOCK_SCALE_QUANTIZE",
            ],
        ),
    ] {
        let e = error(&case(name));
        assert_eq!(e, format!("FG2005 at /nodes/0/tag: node '{node}' has tag {tag}; {served}{}", others.concat()), "{name}");
    }
}

#[test]
fn unknown_keys_are_warnings_or_errors() {
    let text = edited(THD, |v| {
        v["zeta"] = 1.into();
        v["context"]["deterministic"] = true.into();
        v["nodes"][0]["a/b~c"] = Value::Null;
        v["tensors"][2]["vectorize"] = 4.into();
    });
    let loaded = from_str(&text, Strictness::Lenient).unwrap();
    let said: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "/zeta: unknown key \"zeta\" is ignored",
            "/context/deterministic: unknown key \"deterministic\" is ignored",
            "/tensors/2/vectorize: unknown key \"vectorize\" is ignored",
            "/nodes/0/a~1b~0c: unknown key \"a/b~c\" is ignored",
        ]
    );
    assert_eq!(loaded.graph, Graph::from_json(&case(THD)).unwrap(), "they are kept out of the graph");
    let e = from_str(&edited(FWD, |v| v["tensors"][0]["vectorize"] = 4.into()), Strictness::Strict).unwrap_err().to_string();
    assert!(
        e.starts_with("FG2007 at /tensors/0/vectorize: unknown key \"vectorize\"; expected one of alignment data_type"),
        "{e}"
    );
    assert!(e.ends_with("Remove the key, or read without --strict to ignore it"), "{e}");
}

/// Truncation at every byte is an error with a line, never a panic and never a graph.
#[test]
fn truncated_files() {
    let text = case(FWD);
    let text = text.trim_end();
    for end in 0..text.len() {
        let e = Graph::from_json(&text[..end]).expect_err("truncated");
        assert_eq!(e.code.code(), "FG2001", "{end}: {e}");
        assert!(e.at.starts_with("line "), "{end}: {e}");
    }
    assert_eq!(
        error(&text[..1000]),
        "FG2001 at line 48, column 22: EOF while parsing a string; expected one JSON object holding a cudnn-frontend graph, \
         or a log line with one"
    );
}

#[test]
fn deep_nesting() {
    for open in ["[", "{\"context\":"] {
        for prefix in ["", "log "] {
            let e = error(&format!("{prefix}{}", open.repeat(100_000)));
            assert!(e.starts_with("FG2001"), "{e:.200}");
        }
        let closed = format!("{}1{}", open.repeat(5000), if open == "[" { "]" } else { "}" }.repeat(5000));
        let e = error(&closed);
        assert!(e.contains("recursion limit exceeded"), "{e:.200}");
    }
    let deep = edited(FWD, |v| {
        v["tensors"][0]["dim"] = serde_json::from_str(&format!("{}{}", "[".repeat(100), "]".repeat(100))).unwrap()
    });
    assert!(error(&deep).starts_with("FG2004 at /tensors/0/dim"));
}

#[test]
fn huge_numbers() {
    let text = case(FWD);
    assert!(error(&text.replacen("\"uid\": 1\n", "\"uid\": 1e999\n", 1)).starts_with("FG2001 at line"));
    assert!(error(&text.replacen("\"uid\": 1\n", "\"uid\": 123456789012345678901234567890\n", 1))
        .starts_with("FG2004 at /tensors/0/uid"));
    assert!(error(&text.replacen("\"uid\": 1\n", &format!("\"uid\": {}\n", "9".repeat(5000)), 1)).starts_with("FG2001 at line"));
}

/// serde_json alone keeps the last of two equal keys; the graph would then not be the one that a reader sees first.
#[test]
fn a_key_twice() {
    let e = error(&case(FWD).replacen("\"right_bound\": 0,", "\"right_bound\": 0, \"right_bound\": 5,", 1));
    assert!(e.starts_with("FG2001 at line 40, column") && e.contains("key \"right_bound\" occurs twice in one object"), "{e}");
}

#[test]
fn files() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("none.json");
    let e = from_path(&missing, Strictness::Lenient).unwrap_err();
    assert_eq!((e.code.code(), e.at.as_str()), ("FG5001", missing.display().to_string().as_str()));
    let binary = dir.path().join("x.json");
    std::fs::write(&binary, [0xFF, 0xFE, 0x00]).unwrap();
    assert_eq!(from_path(&binary, Strictness::Lenient).unwrap_err().code.code(), "FG5001");
    std::fs::write(&binary, case(FWD)).unwrap();
    assert_eq!(from_path(&binary, Strictness::Strict).unwrap().graph, Graph::from_json(&case(FWD)).unwrap());
}
