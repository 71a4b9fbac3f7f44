//! The README's performance tables are a function of `benches/results/*.json`, which the benchmarks write on a GPU.

mod grouped;
mod hopper;

use serde_json::{json, Value};
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- performance: begin -->\n";
const END: &str = "<!-- performance: end -->";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

fn results(suite: &str) -> Value {
    recorded(suite).expect("the recorded results")
}

/// A suite's results; `None` before its first run.
fn recorded(suite: &str) -> Option<Value> {
    let path = root().join(format!("benches/results/h200-{suite}.json"));
    Some(serde_json::from_str(&std::fs::read_to_string(path).ok()?).expect("JSON"))
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

/// Milliseconds unmeasured and measured of each kind of turn in a result file's pace, of those `aside` or of the others.
fn lengths(pace: &Value, aside: bool) -> Vec<String> {
    let Some(fields) = pace.as_object() else { return Vec::new() };
    if fields.contains_key("rounds") {
        let turn = if aside { &pace["aside"] } else { pace };
        let ms = |key: &str| turn[key].as_f64().map(|x| format!("{x:.0}"));
        return ms("warm_ms")
            .zip(ms("measure_ms"))
            .map(|(warm, measured)| format!("{warm} + {measured} ms"))
            .into_iter()
            .collect();
    }
    fields.values().flat_map(|p| lengths(p, aside)).collect()
}

/// How long the turns were (unmeasured + measured), and how far those of one plan or peer are apart (`spread`): of those `aside`, or of the
/// others. Nothing where none took turns.
fn steadiness(results: &Value, list: &str, aside: bool) -> String {
    let mut spreads: Vec<(f64, String)> = Vec::new();
    for case in results[list].as_array().into_iter().flatten() {
        for (name, r) in ["ours", "peers", "forward"].iter().flat_map(|l| case[*l].as_object().into_iter().flatten()) {
            let of_table = r["aside"].as_bool().unwrap_or(false) == aside;
            spreads.extend(
                r["spread"].as_f64().filter(|_| of_table).map(|s| (100.0 * s, format!("{name}, {}", text(&case["case"])))),
            );
        }
    }
    spreads.sort_by(|a, b| a.0.total_cmp(&b.0));
    let Some((most, whose)) = spreads.last() else { return String::new() };
    let share = |n: usize, of: usize| spreads[spreads.len() * n / of].0;
    format!(
        " Turns of\n{}; those of one plan or peer are {:.1} % apart in the median, {:.1} % or less in nine of ten, {most:.0} % at most ({whose}).",
        lengths(&results["pace"], aside).join(" or "),
        share(1, 2),
        share(9, 10),
    )
}

/// One row per case: milliseconds of the whole chain and the throughput over each peer's in the same run.
fn backward(results: &Value) -> String {
    let mut out = format!(
        "SDPA backward of the portable row, {}. Throughput relative to FlashAttention-2 (PyTorch's flash backend) and cuDNN in the same\n\
         run; \"99 KB\" are the tiles that an SM120 runs. A dash: the peer does not run the case.{}\n\n\
         | case | ms | TFLOP/s | over FA2 | over cuDNN | 99 KB over FA2 | deterministic ms | over FA2 |\n\
         |---|---|---|---|---|---|---|---|\n",
        machine(results),
        steadiness(results, "cases", true),
    );
    for case in list(results, "cases") {
        let (ours, ratio) = (&case["ours"], &case["throughput_ratio"]);
        out += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} |\n",
            text(&case["case"]),
            number(&ours["default"]["bwd_ms"], 2),
            number(&ours["default"]["tflops"], 0),
            number(&ratio["default/fa2"], 2),
            number(&ratio["default/cudnn"], 2),
            number(&ratio["default_sm120_tiles/fa2"], 2),
            number(&ours["deterministic"]["bwd_ms"], 2),
            number(&ratio["deterministic/fa2"], 2),
        );
    }
    out
}

/// Long queries by arithmetic, decode by the bytes of K and V.
fn forward(results: &Value) -> String {
    let mut out = format!(
        "\nSDPA forward with Stats of the portable row, {}, by PyTorch's backends.{}\n\n\
         | case | ms | TFLOP/s | over FA2 | over cuDNN | over memory-efficient |\n|---|---|---|---|---|---|\n",
        machine(results),
        steadiness(results, "cases", true),
    );
    for case in list(results, "cases") {
        let (ours, ratio) = (&case["ours"]["default"], &case["throughput_ratio"]);
        out += &format!(
            "| {} | {} | {} | {} | {} | {} |\n",
            text(&case["case"]),
            number(&ours["fwd_ms"], 3),
            number(&ours["tflops"], 0),
            number(&ratio["default/fa2"], 2),
            number(&ratio["default/cudnn"], 2),
            number(&ratio["default/efficient"], 2),
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
         tiles; it is launched on a GPU that it does not support. The port has no forward.{}\n\n\
         | case | the port ms | backward by wgmma ms | TFLOP/s | over the port | by mma.sync ms | over the port | forward by wgmma ms | TFLOP/s | by mma.sync ms |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
        machine(results),
        steadiness(results, "cases", false),
    );
    for case in list(results, "cases") {
        let (ours, ratio, forward) = (&case["ours"], &case["throughput_ratio"], &case["forward"]);
        out += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            text(&case["case"]),
            number(&case["peers"]["triton"]["bwd_ms"], 3),
            number(&ours["backward_sm90"]["bwd_ms"], 3),
            number(&ours["backward_sm90"]["tflops"], 0),
            number(&ratio["backward_sm90/triton"], 2),
            number(&ours["backward"]["bwd_ms"], 3),
            number(&ratio["backward/triton"], 2),
            number(&forward["nvfp4_qat_fwd_sm90"]["fwd_ms"], 3),
            number(&forward["nvfp4_qat_fwd_sm90"]["tflops"], 0),
            number(&forward["nvfp4_qat_fwd_sm120"]["fwd_ms"], 3),
        );
    }
    out
}

/// Rewrites the tables and fails once when they are stale; with `CI` set it only fails.
#[test]
fn readme_performance_table_is_current() {
    let (bwd, fwd) = (results("sdpa_bwd"), results("sdpa_fwd"));
    let mut tables = hopper::backward(&bwd, recorded("sdpa_bwd_limits").as_ref());
    tables += &recorded("sdpa_bwd_again").map_or_else(String::new, |r| hopper::backward_again(&r));
    tables += &hopper::forward(&fwd, recorded("sdpa_fwd_limits").as_ref());
    tables += &backward(&bwd);
    tables += &forward(&fwd);
    tables += &qat(&results("nvfp4_qat"));
    tables +=
        &recorded("grouped_gemm").map_or_else(String::new, |r| grouped::table(&r, recorded("grouped_gemm_limits").as_ref()));
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

/// Who took short turns is no match for long ones, unless nobody else of cuDNN's was there; a table says how long its turns were.
#[test]
fn a_table_is_of_one_pace() {
    let timed = |ms: f64, aside: bool| json!({ "bwd_ms": ms, "spread": ms / 10.0, "aside": aside });
    let pace = json!({ "rounds": 5, "warm_ms": 250.0, "measure_ms": 12.0, "aside": { "rounds": 3, "warm_ms": 40.0, "measure_ms": 10.0 } });
    let mut results = json!({ "pace": pace, "cases": [{
        "case": "one", "ours": { "sm90": timed(1.0, false) },
        "peers": { "cudnn": timed(1.1, true), "cudnn_graph": timed(1.2, false), "fa4": timed(1.3, false) },
    }] });
    let row = |results: &Value| hopper::backward(results, None).lines().last().expect("a row").to_owned();
    assert!(row(&results).starts_with("| one | 1.00 | 1.20 | 1.30 | 1.20 |"), "{}", row(&results));
    let told = [false, true].map(|aside| steadiness(&results, "cases", aside));
    assert!(
        told[0].contains("Turns of\n250 + 12 ms; those")
            && told[0].contains("12.0 % apart in the median")
            && told[0].ends_with("13 % at most (fa4, one)."),
        "{}",
        told[0]
    );
    assert!(told[1].contains("Turns of\n40 + 10 ms; those") && told[1].contains("11.0 % apart in the median"), "{}", told[1]);
    results["cases"][0]["peers"]["cudnn_graph"] = Value::Null;
    assert!(row(&results).starts_with("| one | 1.00 | 1.10 | 1.30 | 1.10 |"), "{}", row(&results));
}

/// Field report 121: a list whose first plan is not the fastest. Of every graph that was measured with all its plans, the first is within
/// a tenth of the fastest.
#[test]
fn the_first_plan_is_the_fastest_or_nearly_121() {
    let results = results("sdpa_fwd");
    let mut counted = (0, 0);
    for case in list(&results, "cases").iter().chain(list(&results, "decode")) {
        let ours = &case["ours"]["default"];
        // Its time in the same sweep where there is one: what was measured first, after memory was taken and filled, is no match for that.
        let swept = &ours["all_plans"][ours["plan"].as_str().expect("a plan")]["fwd_ms"];
        let first = swept.as_f64().or(ours["fwd_ms"].as_f64()).expect("a time");
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

/// Every recorded time is the median of turns in rounds, and the backward's file has what the host pays.
#[test]
fn recorded_times_are_of_rounds() {
    let suites = [("sdpa_bwd", "bwd_ms"), ("sdpa_fwd", "fwd_ms"), ("nvfp4_qat", "bwd_ms"), ("grouped_gemm", "ms")];
    for (suite, key) in suites {
        let results = results(suite);
        assert!(results["method"].as_str().is_some_and(|m| m.contains("rounds")), "{suite} has no method");
        let mut counted = 0;
        for case in ["cases", "decode"].iter().flat_map(|k| results[*k].as_array().into_iter().flatten()) {
            let lists = [&case["ours"], &case["peers"], &case["forward"]];
            for (name, r) in lists.iter().flat_map(|l| l.as_object().into_iter().flatten()).filter(|(_, r)| r["error"].is_null())
            {
                let mut turns: Vec<f64> = list(r, "turns").iter().map(|t| t.as_f64().expect("a time")).collect();
                turns.sort_by(f64::total_cmp);
                let ms = r[key].as_f64().or(r["fwd_ms"].as_f64()).expect("a time");
                assert!(turns.len() >= 3, "{suite} {} {name}: {turns:?}", case["case"]);
                let median = (turns[(turns.len() - 1) / 2] + turns[turns.len() / 2]) / 2.0;
                assert_eq!(ms, median, "{suite} {} {name}", case["case"]);
                counted += 1;
            }
        }
        assert!(counted >= 12, "{suite}: {counted} times");
    }
    let host = &results("sdpa_bwd")["host"];
    assert!(
        host["launches"]["execute_over_bare"].as_f64().is_some() && host["warm_start"]["median_ms"].as_f64().is_some(),
        "{host}"
    );
    assert!(!list(host, "cold_compile").is_empty());
}
