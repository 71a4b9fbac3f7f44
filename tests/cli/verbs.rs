//! What each verb prints.

use super::{fails, frostgraph, json, ok, program, root, stderr, stdout};

const BACKWARD: &str = "examples/sdpa_backward.json";

/// The command of the README and of the project's definition of done.
#[test]
fn run_checks_every_example() {
    for (file, outputs) in [
        ("examples/sdpa_backward.json", &["attn_backward::dQ", "attn_backward::dK", "attn_backward::dV"][..]),
        ("examples/sdpa_forward.json", &["attn::O", "attn::Stats"]),
        ("examples/sdpa_thd.json", &["attn::O", "attn::Stats"]),
        ("examples/sdpa_mla_192_128.json", &["attn::O"]),
        ("examples/nvfp4_qat_forward.json", &["attn::O", "attn::High_precision_O", "attn::Stats"]),
        ("examples/nvfp4_qat_backward.json", &["attn_backward::dQ", "attn_backward::dK", "attn_backward::dV"]),
    ] {
        let v = json(&["run", file, "--check"]);
        assert_eq!(v["passed"], true, "{file}: {v:#}");
        let list = v["outputs"].as_array().unwrap();
        let mut keys: Vec<&str> = list.iter().map(|o| o["key"].as_str().unwrap()).collect();
        let mut expected = outputs.to_vec();
        keys.sort_unstable();
        expected.sort_unstable();
        assert_eq!(keys, expected, "{file}");
        for o in list {
            let tolerance = match o["type"].as_str().unwrap() {
                "f32" => 1e-5,
                "bf16" => 1e-2,
                "f16" => 2e-3,
                other => panic!("type {other}"),
            };
            assert_eq!(o["tolerance"], tolerance);
            let error = o["error"].as_f64().unwrap();
            assert!(error <= tolerance && error > 0.0, "{file} {o}: an error of exactly 0 would mean that nothing was compared");
        }
    }
}

/// FP8 results are judged through the scales that came with them; scales by their codes.
#[test]
fn run_checks_grouped_products() {
    for (file, types) in [
        (
            "examples/grouped_gemm_mxfp8.json",
            &[("D_col", "e4m3"), ("D_row", "e4m3"), ("SFD_col", "e8m0"), ("SFD_row", "e8m0")][..],
        ),
        ("examples/grouped_gemm_nvfp4.json", &[("Amax", "f32"), ("D_col", "bf16"), ("D_row", "bf16")]),
    ] {
        let v = json(&["run", file, "--check", "--seed", "3"]);
        assert_eq!(v["passed"], true, "{file}: {v:#}");
        let found = |o: &serde_json::Value| (o["key"].as_str().unwrap().to_string(), o["type"].as_str().unwrap().to_string());
        let mut list: Vec<(String, String)> = v["outputs"].as_array().unwrap().iter().map(found).collect();
        list.sort();
        let always = [("dBias", "bf16"), ("dProb", "f32")];
        let expected: Vec<(String, String)> =
            types.iter().chain(&always).map(|(k, t)| (format!("experts::{k}"), t.to_string())).collect();
        assert_eq!(list, expected, "{file}");
        let d = v["outputs"].as_array().unwrap().iter().find(|o| o["key"] == "experts::D_row").unwrap();
        assert!(d["error"].as_f64().unwrap() > 1e-4, "an error of 0 would mean that nothing was compared");
        let text = ok(&["explain", file]);
        assert!(text.contains("D = 2 prob C relu(G)") && text.contains("grouped_gemm_dsrelu_cpu (id 20950, default)"), "{text}");
    }
}

/// The plain grouped product: what is written through an index is judged where the index leads.
#[test]
fn run_checks_plain_grouped_products() {
    for (file, output, rows) in [
        ("examples/moe_gather_bf16.json", "fc1::Output", "read through token_index"),
        ("examples/moe_scatter_mxfp8.json", "fc2::Output", "written to token_index * 2 + token_ks"),
    ] {
        let v = json(&["run", file, "--check", "--seed", "3"]);
        assert_eq!(v["passed"], true, "{file}: {v:#}");
        let outputs = v["outputs"].as_array().unwrap();
        assert_eq!((outputs.len(), &outputs[0]["key"]), (1, &output.into()));
        assert!(outputs[0]["error"].as_f64().unwrap() > 1e-4, "an error of 0 would mean that nothing was compared");
        let text = ok(&["explain", file]);
        assert!(text.contains(rows) && text.contains("moe_grouped_matmul_cpu (id 21050, default)"), "{text}");
    }
}

#[test]
fn run_prints_plans_choice_and_errors() {
    let text = ok(&["run", BACKWARD, "--check", "--threads", "1"]);
    for part in ["plans\n    0  sdpa_bwd_cpu", "sdpa_bwd_sm120: ", "chosen sdpa_bwd_cpu", "attn_backward::dQ", "  ok\n"] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
}

/// Outputs do not depend on the number of threads, and what a run wrote another one reads.
#[test]
fn run_writes_and_reads_safetensors() {
    let dir = tempfile::tempdir().unwrap();
    let at = |n: &str| dir.path().join(n).display().to_string();
    for (threads, name) in [("1", "a"), ("3", "b")] {
        let text = ok(&["run", "examples/sdpa_forward.json", "--seed", "7", "--outputs", &at(name), "--threads", threads]);
        assert!(text.contains(&format!("wrote {}", at(name))), "{text}");
    }
    assert_eq!(std::fs::read(at("a")).unwrap(), std::fs::read(at("b")).unwrap());
    let held = std::fs::read(at("a")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&held).unwrap();
    assert_eq!(file.tensor("attn::O").unwrap().shape(), [2, 8, 256, 64]);
    assert_eq!(file.tensor("attn::Stats").unwrap().shape(), [2, 8, 256, 1]);

    // O as an input under the name Q: same type and extents.
    let o = file.tensor("attn::O").unwrap();
    std::fs::write(at("q"), safetensors::serialize([("Q", o)], None).unwrap()).unwrap();
    let (code, text) = fails(&["run", "examples/sdpa_forward.json", "--inputs", &at("q")]);
    assert_eq!(code, 3);
    assert!(text.contains("FG5003") && text.contains("no tensor \"K\" (the file holds Q)") && text.contains("--seed"), "{text}");
    let v = json(&["run", "examples/sdpa_forward.json", "--inputs", &at("q"), "--seed", "1", "--check"]);
    assert_eq!(v["passed"], true);
}

/// Field report 123: nobody sees "no plan" without each engine's reason.
#[test]
fn no_plan_lists_every_reason_123() {
    let o = frostgraph(&["plans", BACKWARD, "--device", "sm_80"]);
    assert_eq!(o.status.code(), Some(4));
    let text = stdout(&o);
    assert!(text.contains("no plan serves the graph"), "{text}");
    assert!(text.contains("sdpa_bwd_sm120: ") && text.contains("D03-arch"), "{text}");
    assert!(text.contains("sdpa_bwd_cpu: "), "{text}");
    let (code, text) = fails(&["run", BACKWARD, "--device", "sm_80"]);
    assert_eq!(code, 4);
    assert!(text.contains("FG3001") && text.contains("sdpa_bwd_sm120"), "{text}");
    // Explaining needs no plan.
    let o = frostgraph(&["explain", BACKWARD, "--device", "sm_80"]);
    assert_eq!(o.status.code(), Some(4));
    assert!(stdout(&o).contains("engines of family sdpa_bwd"), "{}", stdout(&o));
    // A row that is only switched off says what did it. (An opt-in row's words are a unit test of `plan::rank`.)
    let o = program(&["plans", "examples/sdpa_forward.json"]).env("FROSTGRAPH_DISABLE_ENGINES", "sdpa_fwd_cpu").output().unwrap();
    assert_eq!(o.status.code(), Some(4));
    assert!(stdout(&o).contains("sdpa_fwd_cpu: is switched off by FROSTGRAPH_DISABLE_ENGINES"), "{}", stdout(&o));
}

#[test]
fn plans_and_switches() {
    let v = json(&["plans", BACKWARD, "--device", "sm_120", "--opt-in"]);
    assert_eq!(v["nodes"][0]["ranked"][0]["engine"], "sdpa_bwd_sm120");
    assert_eq!(v["nodes"][0]["ranked"][0]["engine_id"], 20600);
    let record = &v["plans"][0]["records"][0];
    assert_eq!(record["engine_id"], 20600);
    assert!(v["plan_count"].as_u64().unwrap() >= v["plans"].as_array().unwrap().len() as u64);
    let declined: Vec<_> = v["nodes"][0]["declined"].as_array().unwrap().iter().map(|d| d["engine"].as_str().unwrap()).collect();
    assert_eq!(declined, ["sdpa_bwd_sm90", "sdpa_bwd_cpu"]);
    let v = json(&["plans", "examples/sdpa_forward.json"]);
    assert_eq!((v["device"].as_str(), v["plans"][0]["name"].as_str()), (Some("cpu"), Some("sdpa_fwd_cpu")));
}

/// The product's face at two widths: every line fits, and the text is the golden one.
#[test]
fn explain_at_80_and_120_columns() {
    for width in ["80", "120"] {
        for (name, args) in
            [("cpu", vec!["explain", BACKWARD]), ("sm_120", vec!["explain", BACKWARD, "--device", "sm_120", "--opt-in"])]
        {
            let text = ok(&[args.as_slice(), &["--width", width]].concat());
            let columns: usize = width.parse().unwrap();
            let wide: Vec<&str> = text.lines().filter(|l| l.chars().count() > columns && l.contains("  ")).collect();
            assert!(wide.is_empty(), "{wide:#?}");
            // The launch plan has goldens of its own; here only that it is there.
            let (page, launches) = text.split_once("\nplan ").expect("a launch plan");
            assert!(launches.contains("workspace in all") && launches.contains("kernels"), "{launches}");
            super::generated::golden(&format!("tests/golden/explain_{name}_{width}.txt"), page);
        }
    }
}

#[test]
fn explain_for_programs() {
    let v = json(&["explain", BACKWARD, "--device", "sm_90a", "--opt-in"]);
    let n = &v["nodes"][0];
    assert_eq!(n["facts"]["geometry"], "B 2, H_q 8, H_kv 2, S_q 256, S_kv 256, d_qk 64, d_v 64");
    assert_eq!(n["operands"][0]["port"], "Q");
    assert!(v["plan"]["workspace_bytes"].as_u64().unwrap() > 0);
    assert!(v["plan"]["nodes"][0]["steps"][0]["kernel"].is_string());
}

#[test]
fn bench_and_tune() {
    let v = json(&["bench", "examples/sdpa_mla_192_128.json", "--plan", "all", "--seconds", "0.05"]);
    let p = &v["plans"][0];
    assert!(p["median_seconds"].as_f64().unwrap() >= p["least_seconds"].as_f64().unwrap());
    assert!(p["runs"].as_u64().unwrap() >= 3 && p["tflops"].as_f64().unwrap() > 0.0);
    // Causal: 192 * 193 / 2 pairs, 4 heads, two flop a multiply-add, 192 + 128 columns.
    assert_eq!(v["flop"].as_f64().unwrap(), 2.0 * 192.0 * 193.0 / 2.0 * 4.0 * 320.0);

    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("record.json").display().to_string();
    let v = json(&["tune", "examples/sdpa_mla_192_128.json", "--seconds", "0.02", "--save", &record]);
    assert_eq!(v["fastest"]["name"], "sdpa_fwd_cpu");
    let v = json(&["run", "examples/sdpa_mla_192_128.json", "--record", &record]);
    assert_eq!(v["chosen"]["records"][0]["engine"], "sdpa_fwd_cpu");
}

#[test]
fn choosing_a_plan() {
    for choice in [&["--plan", "0"][..], &["--engine", "sdpa_bwd_cpu"], &["--engine", "20650"]] {
        let v = json(&[&["run", BACKWARD][..], choice].concat());
        assert_eq!(v["chosen"]["records"][0]["engine_id"], 20650);
        assert_eq!(v["passed"], serde_json::Value::Null, "nothing was checked");
    }
}

#[test]
fn standard_input_and_logs() {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let graph: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(root().join(BACKWARD)).unwrap()).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_frostgraph"))
        .args(["plans", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(format!("[cudnn_frontend] INFO {graph}\n").as_bytes()).unwrap();
    let o = child.wait_with_output().unwrap();
    assert!(stdout(&o).starts_with("standard input: 1 node, 9 tensors, device cpu\n"), "{}", stdout(&o));
}

#[test]
fn unknown_keys_warn_on_standard_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.json");
    let text = std::fs::read_to_string(root().join(BACKWARD)).unwrap();
    std::fs::write(&path, text.replacen("\"gid\": 0", "\"gid\": 0, \"novel\": 1", 1)).unwrap();
    let path = path.display().to_string();
    let o = frostgraph(&["plans", &path]);
    assert!(o.status.success());
    assert_eq!(stderr(&o), format!("warning: {path}: /novel: unknown key \"novel\" is ignored\n"));
    let (code, text) = fails(&["plans", &path, "--strict"]);
    assert_eq!(code, 3);
    assert!(text.starts_with(&format!("error: FG2007 at {path}: /novel: ")), "{text}");
}

#[test]
fn matrix_and_schema() {
    assert!(ok(&["matrix"]).contains("sdpa_bwd_sm120"));
    assert!(json(&["matrix"]).is_object());
    assert_eq!(ok(&["matrix", "--check"]), "current\n");
    let dir = tempfile::tempdir().unwrap();
    let check = ["matrix", "--check", "--root", &dir.path().display().to_string()];
    let (status, text) = fails(&check);
    assert!(status == 5 && text.contains("FG5001") && text.contains("--root"), "{text}");
    std::fs::write(dir.path().join("SUPPORT_MATRIX_TRACKER.md"), "old").unwrap();
    let o = frostgraph(&check);
    assert!(o.status.code() == Some(1) && stdout(&o).starts_with("stale: SUPPORT_MATRIX_TRACKER.md, "), "{}", stdout(&o));
    let committed = std::fs::read_to_string(root().join("schema/frostgraph-graph.schema.json")).unwrap();
    assert_eq!(ok(&["schema"]), committed);
    assert_eq!(ok(&["schema", "--format", "json"]), committed);
}

/// Verbs of the CUDA part either work (NVRTC is there) or say plainly what they need.
#[test]
fn compile_and_cache_say_what_they_need() {
    let o = frostgraph(&["compile", BACKWARD, "--arch", "sm_90a", "--opt-in"]);
    if o.status.success() {
        assert!(stdout(&o).contains("fg_sdpa_bwd_sm90_main"), "{}", stdout(&o));
    } else {
        assert_eq!(o.status.code(), Some(6), "{}", stderr(&o));
        let text = stderr(&o);
        assert!(text.contains("FG6001") || text.contains("FG6002"), "{text}");
    }
    if cfg!(feature = "cuda") {
        assert!(json(&["cache"])["entries"].is_array());
    } else {
        assert!(fails(&["cache"]).1.contains("FG6001"));
    }
    let o = frostgraph(&["run", BACKWARD, "--device", "cuda:63"]);
    assert!(matches!(o.status.code(), Some(2 | 6)), "{}", stderr(&o));
}
