//! The forward: host costs, long queries, decode, and the peers of both.

use crate::device::{Buffers, Gpu};
use crate::prefill;
use crate::{backward, decode, host, paces, rounds, Args, Results};
use frostgraph::plan::Plan;
use frostgraph::{Device, Result};
use serde_json::json;

/// What the suite runs beyond the jobs of its long queries.
pub fn further_plans(args: &Args, device: &Device) -> Result<Vec<Plan>> {
    let mut plans: Vec<Plan> = prefill::plans(&host::SMALL, device)?;
    if args.sweep {
        for case in prefill::wanted(args) {
            plans.extend(prefill::all_plans(&case, device)?);
        }
    }
    for point in decode::wanted(args) {
        let (best, all) = decode::plans(&point, device)?;
        plans.push(best);
        plans.extend(all.into_iter().map(|(_, p)| p));
    }
    Ok(plans)
}

pub fn run(args: &Args, gpu: Gpu, device: &Device) -> Result<Option<Results>> {
    let costs = {
        let exe = prefill::plans(&host::SMALL, device)?[0].compile()?;
        let buffers = Buffers::new(&gpu, &exe, exe.workspace_bytes(), |_| None)?;
        host::launches(&gpu, &exe, &buffers)?
    };
    println!("{}", serde_json::to_string_pretty(&costs).unwrap_or_default());
    if args.host {
        return Ok(None);
    }
    let copy = gpu.copy_bandwidth()?;
    println!("a large device copy reads and writes {:.2} TB/s", copy / 1e12);
    let (long, short) = (args.pace(paces::FORWARD), args.pace(paces::SHORT));
    let words: [(&str, &[&str]); 3] =
        [("backends", &["fwd", "backends"]), ("cudnn_graph", &["fwd", "cudnn_graph"]), ("fa4", &["fwd", "fa4"])];
    let mut groups = args.groups(backward::SCRIPT, &words);
    let body = json!({
        "host": { "launches": costs }, "copy_bytes_per_second": copy, "method": rounds::METHOD,
        "pace": { "cases of the peers' table": long.json(), "others": short.json() },
        "counting": "2*B*H*S*S*(d_qk+d_v), halved under a causal mask, the exact band under a window; decode: K and V once",
        "cases": [], "decode": [],
    });
    let mut results = Results::new("sdpa_fwd", crate::machine(&gpu), body);
    for case in prefill::wanted(args) {
        let pace = if prefill::is_short(&case) { short } else { long };
        let timed = prefill::run(args, &gpu, device, &case, pace, &mut groups);
        results.add(args, "cases", timed, &mut groups)?;
    }
    for point in decode::wanted(args) {
        let timed = decode::run(args, &gpu, device, &point, short, copy, &mut groups);
        results.add(args, "decode", timed, &mut groups)?;
    }
    Ok(Some(results))
}
