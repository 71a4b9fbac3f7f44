//! The matrix for programs.

use crate::columns::{features, Group, Operation, DTYPES, GEMM_DTYPES, GEMM_INPUTS, LAYOUTS, MOE_INPUTS};
use crate::matrix::{gemm_inputs_label, moe_inputs_label};
use crate::{Engine, Flavour, Matrix, Record, Served, Status};
use frostgraph_engines::Family;
use serde_json::{json, Map, Value};

/// The JSON twin, pretty-printed with sorted keys and a final newline.
pub fn render_json(families: &[&'static Family], records: &[Record]) -> String {
    let m = Matrix::new(families, records);
    let lines: Vec<Value> = m
        .lines
        .iter()
        .map(|line| {
            let families: Vec<Value> = line
                .families
                .iter()
                .map(|f| {
                    let engines: Vec<Value> = f.engines.iter().map(|e| engine(e, f.operation)).collect();
                    json!({ "family": f.name, "engines": engines, "gaps": f.gaps() })
                })
                .collect();
            json!({ "architecture": line.arch, "families": families })
        })
        .collect();
    let text = serde_json::to_string_pretty(&json!({ "format": 1, "architectures": lines }));
    // Maps with string keys and finite numbers always serialise.
    text.unwrap_or_default() + "\n"
}

fn engine(e: &Engine, operation: Operation) -> Value {
    let flavours: Vec<Value> = e
        .flavours
        .iter()
        .map(|f| {
            match operation {
                Operation::GroupedGemm => return grouped_gemm(e, f),
                Operation::Moe => return moe(e, f),
                Operation::Attention(_) => {}
            }
            let dtypes: Map<String, Value> = DTYPES.iter().map(|d| (d.short().into(), served(e.dtype(f, *d)))).collect();
            let layouts: Map<String, Value> =
                LAYOUTS.iter().enumerate().map(|(i, l)| (l.to_string(), served(e.layout(f, i)))).collect();
            let group = |g| -> Map<String, Value> {
                features(operation, g).into_iter().map(|x| (x.label().into(), served(e.feature(f, x)))).collect()
            };
            json!({
                "head_dims": f.label,
                "served": served(f.served),
                "dtypes": dtypes,
                "layouts": layouts,
                "masks": group(Group::Mask),
                "features": group(Group::Feature),
            })
        })
        .collect();
    let knobs: Map<String, Value> = e.row.knobs.iter().map(|d| (d.knob.name().into(), json!(d.values))).collect();
    json!({
        "id": e.row.id,
        "name": e.row.name,
        "maturity": e.maturity(),
        "aligned_16": e.aligned_16(),
        "knobs": knobs,
        "note": e.row.note,
        "evidence": status(&e.status),
        "flavours": flavours,
    })
}

fn grouped_gemm(e: &Engine, f: &Flavour) -> Value {
    let inputs: Map<String, Value> = GEMM_INPUTS.iter().map(|i| (gemm_inputs_label(i), served(e.gemm_inputs(f, *i)))).collect();
    let c: Map<String, Value> = GEMM_DTYPES.iter().map(|d| (d.short().into(), served(e.gemm_c(f, *d)))).collect();
    let d: Map<String, Value> = GEMM_DTYPES.iter().map(|d| (d.short().into(), served(e.gemm_d(f, *d)))).collect();
    let features: Map<String, Value> = features(Operation::GroupedGemm, Group::Feature)
        .into_iter()
        .map(|x| (x.label().into(), served(e.feature(f, x))))
        .collect();
    json!({ "geometry": f.label, "served": served(f.served), "inputs": inputs, "c": c, "d": d, "features": features })
}

fn moe(e: &Engine, f: &Flavour) -> Value {
    let inputs: Map<String, Value> = MOE_INPUTS.iter().map(|i| (moe_inputs_label(i), served(e.moe_inputs(f, *i)))).collect();
    let output: Map<String, Value> = DTYPES.iter().map(|d| (d.short().into(), served(e.moe_output(f, *d)))).collect();
    let features: Map<String, Value> =
        features(Operation::Moe, Group::Feature).into_iter().map(|x| (x.label().into(), served(e.feature(f, x)))).collect();
    json!({ "geometry": f.label, "served": served(f.served), "inputs": inputs, "output": output, "features": features })
}

fn served(s: Served) -> Value {
    json!(match s {
        Served::Native => "native",
        Served::Envelope => "envelope",
        Served::Declined => "declined",
    })
}

fn status(s: &Status) -> Value {
    match s {
        Status::Ci => json!({ "status": "ci" }),
        Status::Verified { date, cases, worst_error, gpus } => {
            json!({ "status": "verified", "date": date, "cases": cases, "worst_error": worst_error, "gpus": gpus })
        }
        Status::Failing { failed, cases } => json!({ "status": "failing", "failed": failed, "cases": cases }),
        Status::Compiled => json!({ "status": "compiled" }),
        Status::NoSource => json!({ "status": "no_source" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frostgraph_engines::MANIFEST;

    #[test]
    fn the_twin_parses_and_says_the_same() {
        let v: Value = serde_json::from_str(&render_json(MANIFEST, &[])).expect("JSON");
        let sm90 = v["architectures"].as_array().expect("lines").iter().find(|l| l["architecture"] == "sm_90").expect("a line");
        let bwd = sm90["families"].as_array().expect("families").iter().find(|f| f["family"] == "sdpa_bwd").expect("a family");
        let e = bwd["engines"].as_array().expect("engines").iter().find(|e| e["id"] == 20600).expect("the row");
        assert_eq!(e["name"], "sdpa_bwd_sm120");
        assert_eq!(e["flavours"][0]["dtypes"]["bf16"], "native");
        assert_eq!(e["flavours"][0]["dtypes"]["f32"], "declined");
        assert_eq!(e["flavours"][0]["masks"]["causal"], "native");
        assert_eq!(e["knobs"]["TILE_M"], json!([32, 64, 128]));
    }
}
