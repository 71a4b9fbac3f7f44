//! The README's performance tables are a function of `benches/results/*.json`, which the benchmarks write on a GPU.

use serde_json::Value;
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- performance: begin -->\n";
const END: &str = "<!-- performance: end -->";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

fn results(suite: &str) -> Value {
    let path = root().join(format!("benches/results/h200-{suite}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).expect("the recorded results")).expect("JSON")
}

fn text(v: &Value) -> String {
    v.as_str().unwrap_or("?").to_owned()
}

fn number(v: &Value, digits: usize) -> String {
    v.as_f64().map_or_else(|| "–".to_owned(), |x| format!("{x:.digits$}"))
}

fn list<'a>(results: &'a Value, key: &str) -> &'a [Value] {
    results[key].as_array().expect("a list of cases")
}

fn machine(results: &Value) -> String {
    format!(
        "bf16, {}, CUDA driver {}, {}",
        text(&results["gpu"]),
        text(&results["driver"]),
        text(&results["peers"][0]["versions"])
    )
}

/// Whether some case ran on the Hopper row as well: then its columns are shown.
fn has_sm90(results: &Value) -> bool {
    list(results, "cases").iter().any(|c| c["ours"]["sm90"].is_object())
}

/// The further columns of the Hopper row, or nothing.
fn sm90_head(results: &Value) -> [&'static str; 2] {
    if has_sm90(results) {
        [" sm_90 ms | TFLOP/s | over FA2 | over cuDNN |", "---|---|---|---|"]
    } else {
        ["", ""]
    }
}

fn sm90_cells(results: &Value, case: &Value, ms: &str, digits: usize) -> String {
    if !has_sm90(results) {
        return String::new();
    }
    let (ours, ratio) = (&case["ours"]["sm90"], &case["throughput_ratio"]);
    format!(
        " {} | {} | {} | {} |",
        number(&ours[ms], digits),
        number(&ours["tflops"], 0),
        number(&ratio["sm90/fa2"], 2),
        number(&ratio["sm90/cudnn"], 2)
    )
}

/// One row per case: milliseconds of the whole chain and the throughput over each peer's in the same run.
fn backward(results: &Value) -> String {
    let [head, line] = sm90_head(results);
    let mut out = format!(
        "SDPA backward, {}. Throughput relative to FlashAttention-2 (PyTorch's flash backend) and cuDNN in the same\n\
         run; \"99 KB\" are the tiles that an SM120 runs. A dash: the peer does not run the case.\n\n\
         | case | ms | TFLOP/s | over FA2 | over cuDNN | 99 KB over FA2 | deterministic ms | over FA2 |{head}\n\
         |---|---|---|---|---|---|---|---|{line}\n",
        machine(results),
    );
    for case in list(results, "cases") {
        let (ours, ratio) = (&case["ours"], &case["throughput_ratio"]);
        out += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} |{}\n",
            text(&case["case"]),
            number(&ours["default"]["bwd_ms"], 2),
            number(&ours["default"]["tflops"], 0),
            number(&ratio["default/fa2"], 2),
            number(&ratio["default/cudnn"], 2),
            number(&ratio["default_sm120_tiles/fa2"], 2),
            number(&ours["deterministic"]["bwd_ms"], 2),
            number(&ratio["deterministic/fa2"], 2),
            sm90_cells(results, case, "bwd_ms", 2),
        );
    }
    out
}

/// Long queries by arithmetic, decode by the bytes of K and V.
fn forward(results: &Value) -> String {
    let [head, line] = sm90_head(results);
    let mut out = format!(
        "\nSDPA forward with Stats, {}, by PyTorch's backends.\n\n\
         | case | ms | TFLOP/s | over FA2 | over cuDNN | over memory-efficient |{head}\n|---|---|---|---|---|---|{line}\n",
        machine(results),
    );
    for case in list(results, "cases") {
        let (ours, ratio) = (&case["ours"]["default"], &case["throughput_ratio"]);
        out += &format!(
            "| {} | {} | {} | {} | {} | {} |{}\n",
            text(&case["case"]),
            number(&ours["fwd_ms"], 3),
            number(&ours["tflops"], 0),
            number(&ratio["default/fa2"], 2),
            number(&ratio["default/cudnn"], 2),
            number(&ratio["default/efficient"], 2),
            sm90_cells(results, case, "fwd_ms", 3),
        );
    }
    out += &format!(
        "\nDecode, as shares of what a device copy of the same run does: K and V count once, a large copy reads and writes {} TB/s, \"a copy as\n\
         large\" moves as many bytes as K and V have.\n\n\
         | case | µs | of the copy bandwidth | of a copy as large | over FA2 | over cuDNN |\n|---|---|---|---|---|---|\n",
        results["copy_bytes_per_second"].as_f64().map_or_else(|| "?".to_owned(), |x| format!("{:.2}", x / 1e12)),
    );
    for case in list(results, "decode") {
        let (ours, ratio) = (&case["ours"]["default"], &case["throughput_ratio"]);
        out += &format!(
            "| {} | {} | {} | {} | {} | {} |\n",
            text(&case["case"]),
            ours["fwd_ms"].as_f64().map_or_else(|| "–".to_owned(), |ms| format!("{:.1}", ms * 1e3)),
            number(&ours["share_of_copy_bandwidth"], 2),
            number(&ours["share_of_copy_of_as_many_bytes"], 2),
            number(&ratio["default/fa2"], 2),
            number(&ratio["default/cudnn"], 2),
        );
    }
    out
}

/// NVFP4 QAT: our backward and forward, and the public Triton port of the backward with its conversion replaced.
fn qat(results: &Value) -> String {
    let mut out = format!(
        "\nNVFP4 QAT, {}, whose conversion to E2M1 is replaced by arithmetic and which takes the fastest of four sets of\n\
         tiles; it is launched on a GPU that it does not support. The port has no forward.\n\n\
         | case | backward ms | TFLOP/s | the port ms | over the port | forward ms | TFLOP/s | forward by mma.sync ms |\n|---|---|---|---|---|---|---|---|\n",
        machine(results),
    );
    for case in list(results, "cases") {
        let (ours, forward) = (&case["ours"]["backward"], &case["forward"]["nvfp4_qat_fwd_sm90"]);
        out += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} |\n",
            text(&case["case"]),
            number(&ours["bwd_ms"], 3),
            number(&ours["tflops"], 0),
            number(&case["peers"]["triton"]["bwd_ms"], 3),
            number(&case["throughput_ratio"]["backward/triton"], 2),
            number(&forward["fwd_ms"], 3),
            number(&forward["tflops"], 0),
            number(&case["forward"]["nvfp4_qat_fwd_sm120"]["fwd_ms"], 3),
        );
    }
    out
}

/// Rewrites the tables and fails once when they are stale; with `CI` set it only fails.
#[test]
fn readme_performance_table_is_current() {
    let mut tables = backward(&results("sdpa_bwd")) + &forward(&results("sdpa_fwd"));
    // Recorded since its rows exist.
    if root().join("benches/results/h200-nvfp4_qat.json").exists() {
        tables += &qat(&results("nvfp4_qat"));
    }
    let path = root().join("README.md");
    let readme = std::fs::read_to_string(&path).expect("the README");
    let begin = readme.find(BEGIN).expect("the begin marker") + BEGIN.len();
    let end = readme.find(END).expect("the end marker");
    if readme[begin..end] == tables {
        return;
    }
    if std::env::var_os("CI").is_none() {
        std::fs::write(&path, format!("{}{tables}{}", &readme[..begin], &readme[end..])).expect("a writable README");
    }
    panic!("README.md's performance tables did not match benches/results; they are rewritten outside CI");
}

/// Field report 121: a list whose first plan is not the fastest. Of every graph that was measured with all its plans, the first is within
/// a tenth of the fastest.
#[test]
fn the_first_plan_is_the_fastest_or_nearly_121() {
    let results = results("sdpa_fwd");
    let mut counted = (0, 0);
    for case in list(&results, "cases").iter().chain(list(&results, "decode")) {
        let ours = &case["ours"]["default"];
        let first = ours["fwd_ms"].as_f64().expect("a time");
        let plans = ours["all_plans"].as_object().into_iter().flatten().map(|(name, r)| (name, &r["fwd_ms"]));
        let splits = ours["ms_by_splits"].as_object().into_iter().flatten();
        let others: Vec<(&String, f64)> = plans.chain(splits).map(|(name, ms)| (name, ms.as_f64().expect("a time"))).collect();
        for (name, ms) in &others {
            assert!(first <= 1.1 * ms, "{}: {} takes {first} ms, {name} takes {ms}", case["case"], ours["plan"]);
        }
        counted = (counted.0 + usize::from(!others.is_empty()), counted.1 + others.len());
    }
    assert!(counted.0 >= 25 && counted.1 >= 200, "{counted:?} graphs and plans were compared");
}
