//! Forwards of many queries, with Stats: the peers' table, and problems that hardly fill a device.

use crate::cases::{self, Case};
use crate::device::{Buffers, Gpu};
use crate::job::{self, Job};
use crate::peers::Peers;
use crate::rounds::{self, Own, Pace};
use crate::Args;
use frostgraph::exec::Executable;
use frostgraph::plan::{BuildOptions, Plan};
use frostgraph::{Device, Error, ErrorCode, Result};
use serde_json::{json, Value};
use std::collections::BTreeMap;

pub const ENGINE: &str = "sdpa_fwd_prefill_sm80";
/// Longer problems are not swept.
const SWEPT_MS: f64 = 2.0;

/// Whether a case is one of the short ones.
pub fn is_short(case: &Case) -> bool {
    cases::SHORT.iter().any(|c| c.name() == case.name())
}

pub fn wanted(args: &Args) -> Vec<Case> {
    cases::ALL.iter().chain(cases::SHORT).filter(|c| args.wants(&c.name())).copied().collect()
}

/// Every plan of a case, best first.
pub fn all_plans(case: &Case, device: &Device) -> Result<Vec<Plan>> {
    let built = case.forward()?.build_with(device, &BuildOptions::all_engines())?;
    Ok(built.plans().collect())
}

/// The row's plans for a case, best first.
pub fn plans(case: &Case, device: &Device) -> Result<Vec<Plan>> {
    let plans: Vec<Plan> = all_plans(case, device)?.into_iter().filter(|p| row_of(p) == Some(ENGINE)).collect();
    match plans.is_empty() {
        false => Ok(plans),
        true => Err(Error::new(ErrorCode::NoPlan, case.name(), ENGINE)),
    }
}

/// The row of a plan of one node.
pub fn row_of(plan: &Plan) -> Option<&'static str> {
    plan.entries().next().map(|e| e.row.name)
}

/// The best plan of every further row, by what its name has beyond the family's.
pub fn other_rows(plans: Vec<Plan>, known: &[&str], family: &str) -> BTreeMap<String, Plan> {
    let mut others = BTreeMap::new();
    for plan in plans {
        let Some(row) = row_of(&plan).filter(|r| !known.contains(r)) else { continue };
        others.entry(row.strip_prefix(family).unwrap_or(row).to_owned()).or_insert(plan);
    }
    others
}

fn jobs_of(args: &Args, case: &Case, device: &Device) -> Result<Vec<Job>> {
    let best = plans(case, device)?.swap_remove(0);
    let others = other_rows(all_plans(case, device)?, &[ENGINE, crate::decode::ENGINE], "sdpa_fwd_prefill_");
    let modes = std::iter::once(("default".to_owned(), best)).chain(others);
    let c = *case;
    let job = |(mode, plan)| Job { case: c.name(), mode, plan, flops: c.forward_flops(), given: Box::new(move |o| c.stats(o)) };
    Ok(job::wanted(args, modes.map(job).collect()))
}

/// The best plan of every row, for the cases of the peers' table and the short ones.
pub fn jobs(args: &Args, device: &Device) -> Result<Vec<Job>> {
    let lists: Vec<Vec<Job>> = wanted(args).iter().map(|c| jobs_of(args, c, device)).collect::<Result<_>>()?;
    Ok(lists.into_iter().flatten().collect())
}

fn sweep(gpu: &Gpu, case: &Case, device: &Device) -> Result<Value> {
    let own = plans(case, device)?;
    let all: Vec<Executable> = own.iter().map(Plan::compile).collect::<Result<_>>()?;
    let most = all.iter().map(Executable::workspace_bytes).max().unwrap_or(0);
    let buffers = Buffers::new(gpu, &all[0], most, |o| case.stats(o))?;
    let times = buffers.sweep(gpu, &all)?;
    let told = own.iter().zip(times).map(|(plan, ms)| {
        println!("    {plan} {ms:.4} ms");
        (plan.to_string(), json!({ "fwd_ms": ms, "tflops": case.forward_flops() / ms / 1e9 }))
    });
    Ok(Value::Object(told.collect()))
}

/// The best plan of the row and of every other row beside the peers, and with `--sweep` the time of every plan of the row for problems of some
/// milliseconds.
pub fn run(args: &Args, gpu: &Gpu, device: &Device, case: &Case, pace: Pace, groups: &mut [Peers]) -> Value {
    // One case that does not fit this device's memory is a result, not the end.
    let own = jobs_of(args, case, device).map_or_else(failed, |jobs| jobs.into_iter().map(|j| j.own(gpu)).collect());
    let mut timed = rounds::case(&case.name(), "fwd_ms", pace, own, groups, &case.json());
    println!("{}", rounds::line(&timed, "fwd_ms"));
    // Where the plans of long problems stand does not change with a few keys more.
    let default = &mut timed["ours"]["default"];
    if args.sweep && default["fwd_ms"].as_f64().is_some_and(|ms| ms < SWEPT_MS) {
        default["all_plans"] = sweep(gpu, case, device).unwrap_or_else(|e| json!({ "error": e.to_string() }));
    }
    timed
}

/// What could not even be planned.
pub fn failed<'a>(e: Error) -> Vec<Own<'a>> {
    vec![Own { name: "default".to_owned(), about: json!({ "error": e.to_string() }), flops: 0.0, turn: None }]
}
