//! Every kind of bad input gives its coded error and exit status; nothing panics, nothing half-written is left.

use super::{fails, frostgraph, program, root, stderr, stdout};
use serde_json::Value;
use std::path::Path;

const FORWARD: &str = "examples/sdpa_forward.json";

/// A copy of an example with one edit, in `dir`.
fn edited(dir: &Path, file: &str, edit: impl FnOnce(&mut Value)) -> String {
    let mut v: Value = serde_json::from_str(&std::fs::read_to_string(root().join(file)).unwrap()).unwrap();
    edit(&mut v);
    let path = dir.join("g.json");
    std::fs::write(&path, v.to_string()).unwrap();
    path.display().to_string()
}

fn raw(dir: &Path, text: &str) -> String {
    let path = dir.join("raw.json");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn expect(args: &[&str], exit: i32, code: &str) -> String {
    let (status, text) = fails(args);
    assert_eq!(status, exit, "{args:?}: {text}");
    assert!(text.starts_with(&format!("error: {code} ")) || text.starts_with(&format!("error: {code}:")), "{args:?}: {text}");
    text
}

#[test]
fn graphs_that_are_no_graphs() {
    let dir = tempfile::tempdir().unwrap();
    let whole = std::fs::read_to_string(root().join(FORWARD)).unwrap();
    for (text, code) in [
        (whole[..whole.len() / 2].to_string(), "FG2001"),
        ("[".repeat(200_000), "FG2001"),
        (format!("{}1{}", "{\"context\":".repeat(3000), "}".repeat(3000)), "FG2001"),
        (String::new(), "FG2001"),
        ("null".into(), "FG2004"),
        (whole.replacen("\"2.0\"", "\"3.0\"", 1), "FG2002"),
        (whole.replacen("\"SDPA\"", "\"SDPA_FP8_FWD\"", 1), "FG2005"),
    ] {
        let path = raw(dir.path(), &text);
        for verb in ["plans", "explain", "run"] {
            expect(&[verb, &path], 3, code);
        }
    }
    expect(&["plans", "no/such/file.json"], 5, "FG5001");
    expect(&["plans", &dir.path().display().to_string()], 5, "FG5001");
}

/// Negative and overflowing extents, zero and negative strides, scales that are no numbers.
#[test]
fn graphs_with_impossible_values() {
    type Edit = fn(&mut Value);
    let cases: &[(Edit, &str)] = &[
        (|v| v["tensors"][0]["dim"][2] = (-4).into(), "FG1105"),
        (|v| v["tensors"][0]["dim"][2] = 0.into(), "FG1105"),
        (|v| v["tensors"][0]["dim"][0] = i64::MAX.into(), "FG1"),
        (|v| v["tensors"][0]["stride"][0] = i64::MAX.into(), "FG1"),
        (|v| v["tensors"][0]["stride"][2] = (-512).into(), "FG1106"),
        (|v| v["tensors"][3]["stride"][2] = 0.into(), "FG1106"),
        (|v| v["nodes"][0]["attn_scale_value"] = "7FC00000".into(), "FG1108"),
        (|v| v["nodes"][0]["attn_scale_value"] = "FF800000".into(), "FG1108"),
        (|v| v["tensors"][1]["uid"] = 1.into(), "FG2006"),
        (|v| v["nodes"][0]["inputs"]["K"] = 77.into(), "FG2006"),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (i, (edit, code)) in cases.iter().enumerate() {
        let path = edited(dir.path(), FORWARD, edit);
        for verb in ["plans", "run"] {
            let (status, text) = fails(&[verb, &path]);
            assert_eq!(status, 3, "case {i}: {text}");
            assert!(text.starts_with(&format!("error: {code}")), "case {i}: {text}");
        }
    }
}

/// Well-formed but larger than any machine: planning may go on, running says what is missing.
#[test]
fn a_graph_that_does_not_fit_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = edited(dir.path(), "examples/sdpa_mla_192_128.json", |v| {
        for t in v["tensors"].as_array_mut().unwrap() {
            t["dim"][0] = (1i64 << 30).into();
        }
    });
    let (status, text) = fails(&["run", &path]);
    assert_eq!(status, 3, "{text}");
    assert!(text.contains("FG4002") && text.contains("memory"), "{text}");
}

/// Names come from files: none ends a line or steers the terminal.
#[test]
fn names_with_control_characters() {
    let dir = tempfile::tempdir().unwrap();
    let path = edited(dir.path(), FORWARD, |v| {
        v["nodes"][0]["name"] = "evil\u{1b}[2J\r\n".into();
        v["tensors"].as_array_mut().unwrap().iter_mut().for_each(|t| t["name"] = format!("t\n{}", t["uid"]).into());
    });
    for args in [&["plans", &path][..], &["explain", &path], &["run", &path, "--check"]] {
        let text = super::ok(args);
        assert!(text.contains("\\u{1b}[2J\\r\\n") && !text.contains(['\u{1b}', '\r']), "{args:?}: {text}");
        assert!(args[0] != "run" || text.contains("t\\n"), "{args:?}: {text}");
    }
    let broken = edited(dir.path(), FORWARD, |v| {
        v["nodes"][0]["name"] = "evil\u{1b}[2J\n".into();
        v["tensors"][0]["dim"][2] = 0.into();
        v["tensors"][0]["name"] = "Q\n".into();
    });
    let (_, text) = fails(&["plans", &broken]);
    assert!(text.lines().count() == 1 && text.contains("'Q\\n'"), "{text}");
}

/// A check that compares nothing would never fail.
#[test]
fn a_check_without_anything_to_check() {
    let dir = tempfile::tempdir().unwrap();
    let path = edited(dir.path(), FORWARD, |v| {
        v["tensors"]
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .filter(|t| t["uid"].as_i64() > Some(3))
            .for_each(|t| t["is_virtual"] = true.into());
    });
    super::ok(&["run", &path]);
    assert!(expect(&["run", &path, "--check"], 1, "FG5005").contains("all virtual"));
}

#[test]
fn tensor_files() {
    use safetensors::tensor::{Dtype, TensorView};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.safetensors");
    let at = path.display().to_string();
    let write = |dtype: Dtype, shape: &[usize]| {
        let bytes = vec![0u8; shape.iter().product::<usize>() * dtype.bitsize() / 8];
        let views = ["Q", "K", "V"].map(|n| (n, TensorView::new(dtype, shape.to_vec(), &bytes).unwrap()));
        std::fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
    };
    let run = ["run", FORWARD, "--inputs", at.as_str()];
    expect(&run, 5, "FG5001");
    std::fs::write(&path, "not safetensors").unwrap();
    expect(&run, 3, "FG5003");
    write(Dtype::BF16, &[2, 8, 256, 32]);
    assert!(expect(&run, 3, "FG5003").contains("\"Q\" of shape [2, 8, 256, 32]; expected shape [2, 8, 256, 64]"));
    write(Dtype::F16, &[2, 8, 256, 64]);
    assert!(expect(&run, 3, "FG5003").contains("\"Q\" of type F16; expected BF16"));
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    expect(&run, 3, "FG5003");
}

/// A device or a pipe may have no end, and a header may announce more than a machine has: neither is read until memory runs out.
#[cfg(unix)]
#[test]
fn inputs_without_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    expect(&["plans", "/dev/zero"], 5, "FG5001");
    assert!(expect(&["run", FORWARD, "--record", "/dev/zero"], 5, "FG5001").contains("more than 268435456 bytes"));
    let mut endless = program(&["plans", "-"]).stdin(std::fs::File::open("/dev/zero").unwrap()).output().unwrap();
    assert_eq!(endless.status.code(), Some(5), "{}", stderr(&endless));
    endless = program(&["run", FORWARD, "--inputs", "/dev/zero"]).output().unwrap();
    assert!(stderr(&endless).starts_with("error: FG5003 at /dev/zero"), "{}", stderr(&endless));
    for (elements, exit, code) in [(1u64 << 50, 5, "FG5001"), (u64::MAX / 8, 3, "FG5003")] {
        let header = format!(
            "{{\"Q\":{{\"dtype\":\"BF16\",\"shape\":[{elements}],\"data_offsets\":[0,{}]}}}}",
            elements.saturating_mul(2)
        );
        std::fs::write(at("huge"), [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
        expect(&["run", FORWARD, "--inputs", &at("huge")], exit, code);
    }
}

/// A sequence length above its extent, a page table would be the same: data that contradict the graph.
#[test]
fn data_out_of_range() {
    use safetensors::tensor::{Dtype, TensorView};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lens.safetensors");
    for (len, code) in [(161i32, "FG4006"), (-1, "FG4006")] {
        let bytes: Vec<u8> = [len, 5, 5].iter().flat_map(|x| x.to_le_bytes()).collect();
        let view = TensorView::new(Dtype::I32, vec![3, 1, 1, 1], &bytes).unwrap();
        std::fs::write(&path, safetensors::serialize([("seq_len_q", view)], None).unwrap()).unwrap();
        let text = expect(&["run", "examples/sdpa_thd.json", "--inputs", &path.display().to_string(), "--seed", "0"], 3, code);
        assert!(text.contains("seq_len_q") && text.contains("0 to 160"), "{text}");
    }
}

#[test]
fn engines_knobs_plans_and_devices() {
    for (args, code) in [
        (&["run", FORWARD, "--plan", "1"][..], "FG3002"),
        (&["run", FORWARD, "--engine", "warp_drive"], "FG3003"),
        (&["run", FORWARD, "--engine", "20599"], "FG3003"),
        (&["run", FORWARD, "--engine", "sdpa_fwd_cpu", "--knob", "TILE_X=1"], "FG3004"),
        (&["run", FORWARD, "--engine", "sdpa_fwd_cpu", "--knob", "TILE_M"], "FG3004"),
        (&["run", FORWARD, "--engine", "sdpa_fwd_cpu", "--knob", "TILE_M=many"], "FG3004"),
        (&["run", FORWARD, "--engine", "sdpa_fwd_cpu", "--knob", "TILE_M=64"], "FG3004"),
        (&["plans", FORWARD, "--device", "sm_1"], "FG3006"),
        (&["plans", FORWARD, "--device", "cuda:x"], "FG3006"),
        (&["plans", FORWARD, "--device", "tpu"], "FG3006"),
        (&["plans", FORWARD, "--device", "cuda:1:2"], "FG3006"),
        (&["plans", FORWARD, "--device", "sm_90aa"], "FG3006"),
        (&["run", FORWARD, "--plan", "all"], "FG5004"),
    ] {
        expect(args, 2, code);
    }
    expect(&["run", FORWARD, "--engine", "sdpa_bwd_cpu"], 4, "FG3005");
    for args in [&["run"][..], &["fly"], &["run", FORWARD, "--plan", "x"], &["bench", FORWARD, "--seconds", "-1"], &[]] {
        let (status, text) = fails(args);
        assert_eq!(status, 2, "{text}");
        assert!(text.contains("Usage") || text.contains("--help"), "{args:?}: {text}");
    }
}

/// A number with a sign is a wrong value of its option, not an option of its own.
#[test]
fn negative_numbers_are_named_as_values() {
    for (args, option) in [
        (&["run", FORWARD, "--plan", "-1"][..], "--plan"),
        (&["bench", FORWARD, "--seconds", "-1"], "--seconds"),
        (&["run", FORWARD, "--seed", "-3"], "--seed"),
        (&["plans", FORWARD, "--width", "-3"], "--width"),
    ] {
        let (status, text) = fails(args);
        assert!(status == 2 && text.contains("invalid value '-") && text.contains(option), "{args:?}: {text}");
    }
}

/// What the parser of the command line refuses has the form of every other error, and JSON where JSON is asked for.
#[test]
fn usage_errors_are_coded() {
    for args in [&["plan"][..], &["run"], &["run", "a", "b"], &["run", FORWARD, "--threads", "x"], &["matrix", "--arch", "9"]] {
        expect(args, 2, "FG5004");
    }
    let text = expect(&["plans", FORWARD, "--devices", "cpu"], 2, "FG5004");
    assert_eq!(
        text,
        "error: FG5004: unexpected argument '--devices' found; expected frostgraph plans --device <DEVICE> <GRAPH>. tip: a similar \
         argument exists: '--device' For more information, try '--help'.\n"
    );
    let o = frostgraph(&["bench", FORWARD, "--format", "json", "--seconds", "-1"]);
    let v: Value = serde_json::from_str(&stderr(&o)).unwrap();
    assert_eq!((v["error"]["code"].as_str(), v["error"]["exit"].as_u64()), (Some("FG5004"), Some(2)));
    assert!(v["error"]["given"].as_str().is_some_and(|g| g.starts_with("invalid value '-1' for '--seconds")), "{v}");
    assert_eq!(frostgraph(&["--help"]).status.code(), Some(0));
    assert!(stderr(&frostgraph(&[])).contains("Usage: frostgraph"));
}

#[test]
fn records_that_cannot_be_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.json");
    let at = path.display().to_string();
    let run = ["run", FORWARD, "--record", at.as_str()];
    expect(&run, 5, "FG5001");
    for (text, exit, code) in [
        ("{", 3, "FG2004"),
        ("[]", 2, "FG3003"),
        ("[{\"engine_id\": 1}]", 2, "FG3003"),
        ("[{\"engine_id\": 20550, \"knbos\": {\"26\": 64}}]", 3, "FG2004"),
        ("[{\"engine_id\": 20550, \"engine\": \"other\"}]", 2, "FG3003"),
        ("[{\"engine_id\": 20550, \"knobs\": {\"99999\": 1}}]", 2, "FG3004"),
    ] {
        std::fs::write(&path, text).unwrap();
        expect(&run, exit, code);
    }
}

/// The output path is looked at before the work, and a failure leaves no part file.
#[test]
fn unwritable_outputs() {
    let dir = tempfile::tempdir().unwrap();
    let at = |p: &str| dir.path().join(p).display().to_string();
    for path in [at("none/y.safetensors"), at(""), "/proc/y.safetensors".into()] {
        expect(&["run", "examples/sdpa_mla_192_128.json", "--outputs", &path], 5, "FG5002");
    }
    // Before the minutes of timing and of compiling, not after them.
    let began = std::time::Instant::now();
    expect(&["tune", "examples/sdpa_mla_192_128.json", "--seconds", "600", "--save", &at("none/r.json")], 5, "FG5002");
    #[cfg(feature = "cuda")]
    expect(&["compile", FORWARD, "--arch", "sm_90", "--out", &at("none/k.fgb")], 5, "FG5002");
    assert!(began.elapsed().as_secs() < 120);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn errors_for_programs() {
    let o = frostgraph(&["plans", "none.json", "--format", "json"]);
    assert_eq!((o.status.code(), stdout(&o).as_str()), (Some(5), ""));
    let v: Value = serde_json::from_str(&stderr(&o)).unwrap();
    assert_eq!(
        (v["error"]["code"].as_str(), v["error"]["exit"].as_u64(), v["error"]["at"].as_str()),
        (Some("FG5001"), Some(5), Some("none.json"))
    );
}
