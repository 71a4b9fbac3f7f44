//! The grouped product with the dsReLU epilogue beside PyTorch's bf16 product with the same epilogue compiled.

use crate::{list, number, steadiness, text};
use serde_json::Value;

const MODES: [&str; 3] = ["mxfp8", "mxfp8_deterministic", "nvfp4"];
const PLAIN: &str = "plain_bf16";
const FUSED: &str = "torch_dsrelu";
const PRODUCT: &str = "torch_product";

/// The deterministic mode's time as a multiple of the default's (bound of the specification: 1.1).
fn price(ours: &Value) -> String {
    let [default, deterministic] = [MODES[0], MODES[1]].map(|m| ours[m]["ms"].as_f64());
    number(&deterministic.zip(default).map_or(Value::Null, |(d, o)| Value::from(d / o)), 2)
}

/// Our time as a share of the peer's, so that the bound of the specification (at most 1) can be read off.
fn share(case: &Value, mode: &str, peer: &str) -> String {
    let ours = case["ours"][mode]["ms"].as_f64();
    let peer = case["peers"][peer]["ms"].as_f64();
    number(&ours.zip(peer).map_or(Value::Null, |(o, p)| Value::from(o / p)), 2)
}

fn gigabytes(bytes: &Value) -> String {
    number(&bytes.as_f64().map_or(Value::Null, |b| Value::from(b / 1e9)), 2)
}

/// One row a shape.
pub fn table(results: &Value, limits: Option<&Value>) -> String {
    let copy = results["copy_bytes_per_second"].as_f64().map_or_else(|| "?".to_owned(), |x| format!("{:.2}", x / 1e12));
    let mut out = format!(
        "\nGrouped block-scaled product with the dsReLU epilogue, {}, CUDA driver {}, {}: whole operation with all outputs, beside PyTorch's bf16\n\
         grouped product with the epilogue that `torch.compile` makes. MXFP8 gives FP8 with both sets of scales, NVFP4 gives bf16 and amax. \"of torch\" is\n\
         our time by theirs. GB: every operand once, weights of the experts that have rows, and what a profiled launch of the main kernel moved; a large\n\
         copy reads and writes {copy} TB/s. The last columns are the plain product of bf16 (`moe_grouped_matmul`) beside PyTorch's.{}\n\n\
         | case | torch ms (product alone) | MXFP8 ms | of torch | TFLOP/s | GB (moved) | of the copy bandwidth | tensor pipe % | deterministic ms | of torch | of the default \
         | NVFP4 ms | of torch | plain bf16 ms | of torch |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
        text(&results["gpu"]),
        text(&results["driver"]),
        text(&results["peers"][0]["versions"]),
        steadiness(results, "cases", false),
    );
    for case in list(results, "cases") {
        let (ours, peers) = (&case["ours"], &case["peers"]);
        let [main, deterministic, nvfp4] = MODES.map(|m| &ours[m]);
        let profiled = limits.and_then(|l| list(l, "cases").iter().find(|c| c["case"] == case["case"] && c["mode"] == MODES[0]));
        out += &format!(
            "| {} | {} ({}) | {} | {} | {} | {} ({}) | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            text(&case["case"]),
            number(&peers[FUSED]["ms"], 3),
            number(&peers[PRODUCT]["ms"], 3),
            number(&main["ms"], 3),
            share(case, MODES[0], FUSED),
            number(&main["tflops"], 0),
            gigabytes(&main["bytes"]),
            gigabytes(profiled.map_or(&Value::Null, |p| &p["main"]["dram_bytes"])),
            number(&main["share_of_copy_bandwidth"], 2),
            number(profiled.map_or(&Value::Null, |p| &p["main"]["tensor_pipe"]), 0),
            number(&deterministic["ms"], 3),
            share(case, MODES[1], FUSED),
            price(ours),
            number(&nvfp4["ms"], 3),
            share(case, MODES[2], FUSED),
            number(&ours[PLAIN]["ms"], 3),
            share(case, PLAIN, PRODUCT),
        );
    }
    out
}
