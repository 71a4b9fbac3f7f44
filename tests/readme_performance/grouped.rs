//! The grouped product with the dsReLU epilogue beside PyTorch's bf16 product with the same epilogue compiled.

use crate::{list, number, text};
use serde_json::Value;

const MODES: [&str; 3] = ["mxfp8", "mxfp8_deterministic", "nvfp4"];

/// Our time as a share of the peer's, so that the bound of the specification (at most 1) can be read off.
fn share(case: &Value, mode: &str) -> String {
    let ours = case["ours"][mode]["ms"].as_f64();
    let peer = case["peers"]["torch_dsrelu"]["ms"].as_f64();
    number(&ours.zip(peer).map_or(Value::Null, |(o, p)| Value::from(o / p)), 2)
}

/// One row a shape.
pub fn table(results: &Value, limits: Option<&Value>) -> String {
    let copy = results["copy_bytes_per_second"].as_f64().map_or_else(|| "?".to_owned(), |x| format!("{:.2}", x / 1e12));
    let mut out = format!(
        "\nGrouped block-scaled product with the dsReLU epilogue, {}, CUDA driver {}, {}: whole operation with all outputs, beside PyTorch's bf16\n\
         grouped product with the epilogue that `torch.compile` makes. MXFP8 gives FP8 with both sets of scales, NVFP4 gives bf16 and amax. \"of torch\" is\n\
         our time by theirs. Bytes: every operand once, weights of the experts that have rows; a large copy reads and writes {copy} TB/s.\n\n\
         | case | torch ms (product alone) | MXFP8 ms | of torch | TFLOP/s | GB | of the copy bandwidth | deterministic ms | of torch | NVFP4 ms | of torch | tensor pipe % |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|\n",
        text(&results["gpu"]),
        text(&results["driver"]),
        text(&results["peers"][0]["versions"]),
    );
    for case in list(results, "cases") {
        let (ours, peers) = (&case["ours"], &case["peers"]);
        let [main, deterministic, nvfp4] = MODES.map(|m| &ours[m]);
        let profiled = limits.and_then(|l| list(l, "cases").iter().find(|c| c["case"] == case["case"] && c["mode"] == MODES[0]));
        out += &format!(
            "| {} | {} ({}) | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            text(&case["case"]),
            number(&peers["torch_dsrelu"]["ms"], 3),
            number(&peers["torch_product"]["ms"], 3),
            number(&main["ms"], 3),
            share(case, MODES[0]),
            number(&main["tflops"], 0),
            number(&main["bytes"].as_f64().map_or(Value::Null, |b| Value::from(b / 1e9)), 2),
            number(&main["share_of_copy_bandwidth"], 2),
            number(&deterministic["ms"], 3),
            share(case, MODES[1]),
            number(&nvfp4["ms"], 3),
            share(case, MODES[2]),
            number(profiled.map_or(&Value::Null, |p| &p["main"]["tensor_pipe"]), 0),
        );
    }
    out
}
