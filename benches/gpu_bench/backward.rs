//! The backward: default and deterministic, with the device's best tiles and with an SM120's.

use crate::cases::{self, Case};
use crate::device::{Buffers, Gpu};
use crate::job::{self, Job};
use crate::prefill::{other_rows, row_of};
use crate::{host, paces, rounds, Args, Results};
use frostgraph::engines::Knob;
use frostgraph::plan::{BuildOptions, Plan};
use frostgraph::{Device, Error, ErrorCode, Result};
use serde_json::{json, Value};

pub const ENGINE: &str = "sdpa_bwd_sm120";
pub const SCRIPT: &str = "peers_sdpa.py";

/// Tiles that fit the SM120 line's shared memory, by padded d_qk (the specification's table).
fn sm120_tiles(d_qk: i64) -> (i64, i64) {
    match d_qk {
        ..=32 => (128, 64),
        33..=64 => (64, 128),
        65..=128 => (64, 64),
        _ => (32, 64),
    }
}

/// Modes of one case: name and plan.
fn modes(case: &Case, device: &Device) -> Result<Vec<(String, Plan)>> {
    let mut out = Vec::new();
    for deterministic in [false, true] {
        let built = case.backward(deterministic)?.build_with(device, &BuildOptions::all_engines())?;
        let ours: Vec<Plan> = built.plans().filter(|p| row_of(p) == Some(ENGINE)).collect();
        let best = ours.first().cloned();
        let (m, n) = sm120_tiles(case.d_qk);
        let sm120 = ours
            .into_iter()
            .find(|p| p.entries().all(|e| e.knobs.get(Knob::TileM) == Some(m) && e.knobs.get(Knob::TileN) == Some(n)));
        let names =
            if deterministic { ["deterministic", "deterministic_sm120_tiles"] } else { ["default", "default_sm120_tiles"] };
        let same = best.as_ref().map(ToString::to_string) == sm120.as_ref().map(ToString::to_string);
        out.extend(best.map(|p| (names[0].to_owned(), p)));
        let others = other_rows(built.plans().collect(), &[ENGINE], "sdpa_bwd_");
        let suffix = if deterministic { "_deterministic" } else { "" };
        out.extend(others.into_iter().map(|(name, plan)| (name + suffix, plan)));
        if !same {
            out.extend(sm120.map(|p| (names[1].to_owned(), p)));
        }
    }
    if out.is_empty() {
        return Err(Error::new(ErrorCode::NoPlan, case.name(), ENGINE));
    }
    Ok(out)
}

/// The plan that host costs are measured with.
pub fn plan_of(case: &Case, device: &Device) -> Result<Plan> {
    let built = case.backward(false)?.build_with(device, &BuildOptions::all_engines())?;
    let plan = built.plans().find(|p| p.entries().all(|e| e.row.name == ENGINE));
    plan.ok_or_else(|| Error::new(ErrorCode::NoPlan, case.name(), ENGINE))
}

fn jobs_of(args: &Args, case: &Case, device: &Device) -> Result<Vec<Job>> {
    let c = *case;
    let job = |(mode, plan)| Job { case: c.name(), mode, plan, flops: c.backward_flops(), given: Box::new(move |o| c.stats(o)) };
    Ok(job::wanted(args, modes(case, device)?.into_iter().map(job).collect()))
}

fn cases(args: &Args) -> Vec<Case> {
    cases::ALL.iter().filter(|c| args.wants(&c.name())).copied().collect()
}

/// Every mode of every case.
pub fn jobs(args: &Args, device: &Device) -> Result<Vec<Job>> {
    let lists: Vec<Vec<Job>> = cases(args).iter().map(|c| jobs_of(args, c, device)).collect::<Result<_>>()?;
    Ok(lists.into_iter().flatten().collect())
}

fn launch_costs(gpu: &Gpu, device: &Device) -> Result<Value> {
    let exe = plan_of(&host::SMALL, device)?.compile()?;
    let buffers = Buffers::new(gpu, &exe, exe.workspace_bytes(), |o| host::SMALL.stats(o))?;
    host::launches(gpu, &exe, &buffers)
}

const GROUPS: [(&str, &[&str]); 3] =
    [("backends", &["bwd", "backends"]), ("cudnn_graph", &["bwd", "cudnn_graph"]), ("fa4", &["bwd", "fa4"])];

pub fn run(args: &Args, gpu: Gpu, device: &Device) -> Result<Option<Results>> {
    // The peers load while the slow costs are measured: the microseconds of a launch come before them.
    let launches = if args.no_host { Value::Null } else { launch_costs(&gpu, device)? };
    let mut groups = if args.host { Vec::new() } else { args.groups(SCRIPT, &GROUPS) };
    let costs = match args.no_host {
        true => Value::Null,
        false => json!({ "launches": launches, "cold_compile": host::cold()?, "warm_start": host::warm()? }),
    };
    println!("{}", serde_json::to_string_pretty(&costs).unwrap_or_default());
    if args.host {
        return Ok(None);
    }
    let pace = |d_qk| args.pace(paces::backward(d_qk));
    let body = json!({
        "counting": "2*B*H*S*S*(3*d_qk+2*d_v), halved under a causal mask, the exact band under a window",
        "method": rounds::METHOD, "host": costs, "cases": [],
        "pace": pace(256).json(), "aside_up_to_head_dim_128": pace(128).json()["aside"]["names"],
    });
    let mut results = Results::new("sdpa_bwd", crate::machine(&gpu), body);
    for case in cases(args) {
        let own = jobs_of(args, &case, device)?.into_iter().map(|j| j.own(&gpu)).collect();
        let timed = rounds::case(&case.name(), "bwd_ms", pace(case.d_qk), own, &mut groups, &case.json());
        println!("{}", rounds::line(&timed, "bwd_ms"));
        results.add(args, "cases", timed, &mut groups)?;
    }
    Ok(Some(results))
}
