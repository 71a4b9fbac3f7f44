//! The forward: host costs, long queries, decode, and the peers of both.

use crate::device::{Buffers, Gpu};
use crate::prefill;
use crate::{decode, host, peers, Args, Results};
use frostgraph::plan::Plan;
use frostgraph::{Device, Result};
use serde_json::{json, Value};

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
    let exe = prefill::plans(&host::SMALL, device)?[0].compile()?;
    let buffers = Buffers::new(&gpu, &exe, exe.workspace_bytes(), |_| None)?;
    let costs = host::launches(&gpu, &exe, &buffers)?;
    println!("{}", serde_json::to_string_pretty(&costs).unwrap_or_default());
    if args.host {
        return Ok(None);
    }
    let copy = gpu.copy_bandwidth()?;
    println!("a large device copy reads and writes {:.2} TB/s", copy / 1e12);
    let long = prefill::run(args, &gpu, device);
    let short = decode::run(args, &gpu, device, copy);
    let machine = crate::machine(&gpu);
    // The peers get the device to themselves.
    drop((buffers, exe, gpu));
    let (cases, points) = (prefill::wanted(args), decode::wanted(args));
    let asked = cases.iter().map(|c| c.json()).chain(points.iter().map(|p| p.json())).collect();
    let lines = peers::measure(args, "peers_sdpa.py", "fwd", asked)?;
    let joined = |list: Vec<Value>| {
        list.iter().for_each(|c| println!("{}", peers::line(c, "fwd_ms")));
        list
    };
    println!("\nthroughput beside the peers of this run");
    let prefill = cases.iter().zip(&long).map(|(c, o)| peers::join(&c.name(), o, &lines, "fwd_ms", Some(c.forward_flops())));
    let decode = points.iter().zip(&short).map(|(p, o)| peers::join(&p.name(), o, &lines, "fwd_ms", None));
    let (prefill, decode) = (joined(prefill.collect()), joined(decode.collect()));
    let engines = crate::rows_of(prefill.iter().chain(&decode));
    let body = json!({
        "peers": peers::about(&lines), "host": { "launches": costs }, "copy_bytes_per_second": copy,
        "counting": "2*B*H*S*S*(d_qk+d_v), halved under a causal mask, the exact band under a window; decode: K and V once",
        "cases": prefill, "decode": decode,
    });
    Ok(Some(Results { suite: "sdpa_fwd", engines, machine, body }))
}
