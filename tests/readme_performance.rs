//! The README's performance table is a function of `benches/results/*.json`, which the benchmarks write on a GPU.

use serde_json::Value;
use std::path::Path;

const BEGIN: &str = "<!-- performance: begin -->\n";
const END: &str = "<!-- performance: end -->";

/// One row per case: milliseconds of the whole chain and the throughput over each peer's in the same run.
fn render(results: &Value) -> String {
    let text = |v: &Value| v.as_str().unwrap_or("?").to_owned();
    let mut out = format!(
        "SDPA backward, bf16, {}, CUDA driver {}, {}. Throughput relative to FlashAttention-2 (PyTorch's flash backend) and cuDNN in the same\n\
         run; \"99 KB\" are the tiles that an SM120 runs. A dash: the peer does not run the case.\n\n\
         | case | ms | TFLOP/s | over FA2 | over cuDNN | 99 KB over FA2 | deterministic ms | over FA2 |\n|---|---|---|---|---|---|---|---|\n",
        text(&results["gpu"]),
        text(&results["driver"]),
        text(&results["peers"][0]["versions"]),
    );
    for case in results["cases"].as_array().expect("a list of cases") {
        let (ours, ratio) = (&case["ours"], &case["throughput_ratio"]);
        let number = |v: &Value, digits: usize| v.as_f64().map_or_else(|| "–".to_owned(), |x| format!("{x:.digits$}"));
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

/// Rewrites the table and fails once when it is stale; with `CI` set it only fails.
#[test]
fn readme_performance_table_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let json = std::fs::read_to_string(root.join("benches/results/h200-sdpa_bwd.json")).expect("the recorded results");
    let table = render(&serde_json::from_str(&json).expect("JSON"));
    let path = root.join("README.md");
    let readme = std::fs::read_to_string(&path).expect("the README");
    let begin = readme.find(BEGIN).expect("the begin marker") + BEGIN.len();
    let end = readme.find(END).expect("the end marker");
    if readme[begin..end] == table {
        return;
    }
    if std::env::var_os("CI").is_none() {
        std::fs::write(&path, format!("{}{table}{}", &readme[..begin], &readme[end..])).expect("a writable README");
    }
    panic!("README.md's performance table did not match benches/results; it is rewritten outside CI");
}
