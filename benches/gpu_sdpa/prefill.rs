//! Forwards of many queries, with Stats: the peers' table, and problems that hardly fill a device.

use crate::cases::{self, Case};
use crate::device::{Buffers, Gpu};
use crate::{peers, Args};
use frostgraph::plan::{BuildOptions, Plan};
use frostgraph::{Device, Error, ErrorCode, Result};
use serde_json::{json, Map, Value};

pub const ENGINE: &str = "sdpa_fwd_prefill_sm80";

pub fn wanted(args: &Args) -> Vec<Case> {
    cases::ALL.iter().chain(cases::SHORT).filter(|c| args.wants(&c.name())).copied().collect()
}

/// The row's plans for a case, best first.
pub fn plans(case: &Case, device: &Device) -> Result<Vec<Plan>> {
    let built = case.forward()?.build_with(device, &BuildOptions::all_engines())?;
    let plans: Vec<Plan> = built.plans().filter(|p| p.entries().all(|e| e.row.name == ENGINE)).collect();
    match plans.is_empty() {
        false => Ok(plans),
        true => Err(Error::new(ErrorCode::NoPlan, case.name(), ENGINE)),
    }
}

/// The best plan, and with `--sweep` the time of every plan of the list.
fn measure(gpu: &Gpu, case: &Case, device: &Device, sweep: bool) -> Result<Map<String, Value>> {
    let plans = plans(case, device)?;
    let exe = plans[0].compile()?;
    let buffers = Buffers::new(gpu, &exe, exe.workspace_bytes(), |o| case.stats(o))?;
    let time = |ms: f64| json!({ "fwd_ms": ms, "tflops": case.forward_flops() / ms / 1e9 });
    let mut default = time(buffers.time(gpu, &exe, 150.0)?);
    default["plan"] = json!(plans[0].to_string());
    if sweep {
        let mut all = Map::new();
        for plan in &plans {
            all.insert(plan.to_string(), time(buffers.time(gpu, &plan.compile()?, 60.0)?));
        }
        default["all_plans"] = Value::Object(all);
    }
    Ok(Map::from_iter([("default".to_owned(), default)]))
}

pub fn run(args: &Args, gpu: &Gpu, device: &Device) -> Vec<Map<String, Value>> {
    let mut ours = Vec::new();
    for case in &wanted(args) {
        // One case that does not fit this device's memory is a result, not the end.
        let of_case = measure(gpu, case, device, args.sweep).unwrap_or_else(|e| failed(&e));
        println!("{}", peers::line(&json!({ "case": case.name(), "ours": of_case }), "fwd_ms"));
        for (plan, r) in of_case["default"]["all_plans"].as_object().into_iter().flatten() {
            println!("    {plan} {:.4} ms {:.0} TF/s", r["fwd_ms"].as_f64().unwrap_or(0.0), r["tflops"].as_f64().unwrap_or(0.0));
        }
        ours.push(of_case);
    }
    ours
}

pub fn failed(e: &Error) -> Map<String, Value> {
    Map::from_iter([("default".to_owned(), json!({ "error": e.to_string() }))])
}
