//! The wgmma rows of both attention passes: beside the better of cuDNN and FlashAttention-4 of the same run, and what limits them.

use crate::{list, machine, number, steadiness, text};
use serde_json::Value;

/// cuDNN through PyTorch and through its own graphs: the faster one counts, of those that did not take short turns where there is one.
const CUDNN: [&str; 2] = ["cudnn", "cudnn_graph"];
const FA4: &str = "fa4";

/// The least time of these peers.
fn least(case: &Value, peers: &[String], ms: &str) -> Option<f64> {
    let timed = |aside: bool| {
        let all = peers.iter().map(|p| &case["peers"][p.as_str()]).filter(|r| r["aside"].as_bool().unwrap_or(false) == aside);
        all.filter_map(|r| r[ms].as_f64()).min_by(f64::total_cmp)
    };
    timed(false).or_else(|| timed(true))
}

fn named(suffix: &str) -> ([String; 2], String) {
    (CUDNN.map(|p| format!("{p}{suffix}")), format!("{FA4}{suffix}"))
}

fn cell(x: Option<f64>, digits: usize) -> String {
    number(&x.map_or(Value::Null, Value::from), digits)
}

/// Our time, cuDNN's, FlashAttention-4's, and our throughput over the better one's.
fn beside(case: &Value, mode: &str, suffix: &str, ms: &str, digits: usize) -> String {
    let (cudnn, fa4) = named(suffix);
    let ours = case["ours"][mode][ms].as_f64();
    let (cudnn, fa4) = (least(case, &cudnn, ms), least(case, &[fa4], ms));
    let better = [cudnn, fa4].into_iter().flatten().min_by(f64::total_cmp);
    let ratio = better.zip(ours).map(|(theirs, ours)| theirs / ours);
    [cell(ours, digits), cell(cudnn, digits), cell(fa4, digits), cell(ratio, 2)].join(" | ")
}

/// Share of the tensor pipe and the largest other share, of the longest kernel of a mode.
fn limit(limits: Option<&Value>, case: &Value, mode: &str) -> String {
    let found = limits.and_then(|l| list(l, "cases").iter().find(|c| c["case"] == case["case"] && c["mode"] == mode));
    let Some(main) = found.map(|c| &c["main"]) else { return "– | –".into() };
    let others = ["issue_slots", "special_functions", "shared_memory", "l2", "device_memory"];
    let largest = others.iter().filter_map(|o| Some((*o, main[*o].as_f64()?))).max_by(|a, b| a.1.total_cmp(&b.1));
    let other = largest.map_or_else(|| "–".to_owned(), |(name, share)| format!("{} {share:.0}", name.replace('_', " ")));
    format!("{} | {other}", number(&main["tensor_pipe"], 0))
}

const LIMITS: &str = "tensor pipe % | next %";
const NOTE: &str = "\"Over\": the better peer's time by ours. Tensor pipe: share of the main kernel's cycles in which it was busy, from a profiled \
                    launch;\n\"next\": the largest other share of a peak. A dash: not served, or not measured.";

const BACKWARD: &str = "case | ms | cuDNN ms | FA4 ms | over | TFLOP/s | deterministic ms | cuDNN ms | FA4 ms | over";

/// The columns of [`BACKWARD`].
fn backward_cells(case: &Value) -> String {
    format!(
        "{} | {} | {} | {}",
        text(&case["case"]),
        beside(case, "sm90", "", "bwd_ms", 2),
        number(&case["ours"]["sm90"]["tflops"], 0),
        beside(case, "sm90_deterministic", "_deterministic", "bwd_ms", 2),
    )
}

/// Default and deterministic.
pub fn backward(results: &Value, limits: Option<&Value>) -> String {
    let mut out = format!(
        "SDPA backward on wgmma (`sdpa_bwd_sm90`), {}. {NOTE}{}\n\n\
         | {BACKWARD} | {LIMITS} |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|\n",
        machine(results),
        steadiness(results, "cases", false),
    );
    for case in list(results, "cases") {
        out += &format!("| {} | {} |\n", backward_cells(case), limit(limits, case, "sm90"));
    }
    out
}

/// Cases of that table whose turns lay too far apart for their ratio, in a run of more rounds.
pub fn backward_again(results: &Value) -> String {
    let mut out = format!(
        "\nOf these, once more in {} rounds (a run of its own).{}\n\n\
         | {BACKWARD} |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
        results["pace"]["rounds"],
        steadiness(results, "cases", false),
    );
    for case in list(results, "cases") {
        out += &format!("| {} |\n", backward_cells(case));
    }
    out
}

/// With Stats.
pub fn forward(results: &Value, limits: Option<&Value>) -> String {
    let mut out = format!(
        "\nSDPA forward with Stats on wgmma (`sdpa_fwd_prefill_sm90`), {}.{}\n\n\
         | case | ms | cuDNN ms | FA4 ms | over | TFLOP/s | {LIMITS} |\n|---|---|---|---|---|---|---|---|\n",
        machine(results),
        steadiness(results, "cases", false),
    );
    for case in list(results, "cases") {
        out += &format!(
            "| {} | {} | {} | {} |\n",
            text(&case["case"]),
            beside(case, "sm90", "", "fwd_ms", 3),
            number(&case["ours"]["sm90"]["tflops"], 0),
            limit(limits, case, "sm90"),
        );
    }
    out + "\n"
}
