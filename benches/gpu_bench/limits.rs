//! What limits a kernel: counters of one launch of every plan, from a profiler's table.
//!
//! ```text
//! ncu --csv --print-units base --metrics M,.. gpu_bench --suite S --once >S.csv      (the metrics: gpu_bench --metrics)
//! gpu_bench --suite S --limits S.csv --out DIR
//! ```
//! The second command writes DIR/<gpu>-S_limits.json: it plans the same cases, so it knows which kernel of the table belongs to which.

use crate::job::Job;
use frostgraph::{Error, ErrorCode, Result};
use serde_json::{json, Map, Value};
use std::path::Path;

/// Our name of a counter and the profiler's; shares are of the peak while the kernel ran.
const METRICS: [(&str, &str); 9] = [
    ("ns", "gpu__time_duration.sum"),
    ("cycles", "sm__cycles_elapsed.max"),
    ("tensor_pipe", "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed"),
    ("issue_slots", "sm__issue_active.avg.pct_of_peak_sustained_elapsed"),
    ("special_functions", "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed"),
    ("shared_memory", "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed"),
    ("l2", "lts__t_sectors.avg.pct_of_peak_sustained_elapsed"),
    ("device_memory", "dram__throughput.avg.pct_of_peak_sustained_elapsed"),
    ("dram_bytes", "dram__bytes.sum"),
];
/// The counters that compete for being the limit.
const SHARES: [&str; 6] = ["tensor_pipe", "issue_slots", "special_functions", "shared_memory", "l2", "device_memory"];

/// The argument for the profiler.
pub fn metrics() -> String {
    METRICS.map(|(_, m)| m).join(",")
}

/// One profiled launch.
struct Launch {
    id: String,
    kernel: String,
    counters: Map<String, Value>,
}

fn fail(path: &Path, what: impl Into<String>, expected: &str) -> Error {
    Error::new(ErrorCode::FileRead, what.into(), expected).at(path.display().to_string())
}

/// Fields of one line of comma-separated values in double quotes.
fn fields(line: &str) -> Vec<&str> {
    line.trim_end().trim_matches('"').split("\",\"").collect()
}

/// Launches in order. Lines before the table's head are the profiled program's own.
fn read(path: &Path) -> Result<Vec<Launch>> {
    let text = std::fs::read_to_string(path).map_err(|e| fail(path, e.to_string(), "a profiler's table"))?;
    let mut lines = text.lines().skip_while(|l| !l.starts_with("\"ID\""));
    let head = fields(lines.next().ok_or_else(|| fail(path, "no line that begins with \"ID\"", "a profiler's table"))?);
    let column = |name: &str| head.iter().position(|h| *h == name).ok_or_else(|| fail(path, format!("no column {name}"), "it"));
    let [id, kernel, metric, value] = [column("ID")?, column("Kernel Name")?, column("Metric Name")?, column("Metric Value")?];
    let mut launches: Vec<Launch> = Vec::new();
    for row in lines.filter(|l| l.starts_with('"')).map(fields).filter(|r| r.len() == head.len()) {
        if launches.last().is_none_or(|l| l.id != row[id]) {
            launches.push(Launch { id: row[id].into(), kernel: row[kernel].into(), counters: Map::new() });
        }
        let number = row[value].replace(',', "").parse::<f64>().ok();
        if let (Some(launch), Some((ours, _))) = (launches.last_mut(), METRICS.iter().find(|(_, m)| *m == row[metric])) {
            launch.counters.insert((*ours).to_owned(), json!(number));
        }
    }
    Ok(launches)
}

/// The counters of a launch, with its clock and the largest share.
fn judged(launch: &Launch) -> Value {
    let get = |key: &str| launch.counters.get(key).and_then(Value::as_f64);
    let mut out = launch.counters.clone();
    out.insert("kernel".into(), json!(launch.kernel));
    if let (Some(ns), Some(cycles)) = (get("ns"), get("cycles")) {
        out.insert("clock_ghz".into(), json!(cycles / ns));
    }
    let largest = SHARES.iter().filter_map(|s| Some((*s, get(s)?))).max_by(|a, b| a.1.total_cmp(&b.1));
    out.insert("largest_share".into(), json!(largest.map(|l| l.0)));
    Value::Object(out)
}

/// Every job with the counters of its kernels; `main` is the one that takes longest.
pub fn cases(path: &Path, jobs: &[Job]) -> Result<Vec<Value>> {
    let mut launches = read(path)?.into_iter();
    let mut out = Vec::new();
    for job in jobs {
        let mut kernels = Vec::new();
        for entry in job.kernels()? {
            let launch = launches.next().filter(|l| l.kernel == entry);
            let launch =
                launch.ok_or_else(|| fail(path, format!("no {entry} next, of {} {}", job.case, job.mode), "every launch"))?;
            kernels.push(judged(&launch));
        }
        let time = |k: &Value| k["ns"].as_f64().unwrap_or(0.0);
        let total: f64 = kernels.iter().map(time).sum();
        let main = kernels.iter().max_by(|a, b| time(a).total_cmp(&time(b))).cloned().unwrap_or_default();
        let share = time(&main) / total;
        out.push(json!({
            "case": job.case, "mode": job.mode, "plan": job.plan.to_string(), "flops": job.flops, "main": main, "main_share_of_time": share,
            "kernels": kernels,
        }));
    }
    Ok(out)
}
