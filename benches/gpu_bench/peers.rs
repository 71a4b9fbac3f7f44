//! The peers' times, from a script that runs in the same command on the same device.

use crate::Args;
use frostgraph::{Error, ErrorCode, Result};
use serde_json::{json, Map, Value};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

/// The lines of a script in the folder of `--peers` for these cases; none without it.
pub fn measure(args: &Args, script: &str, what: &str, cases: Vec<Value>) -> Result<Vec<Value>> {
    args.peers.as_ref().map_or_else(|| Ok(Vec::new()), |folder| lines_of(&folder.join(script), args, what, cases))
}

fn lines_of(script: &Path, args: &Args, what: &str, cases: Vec<Value>) -> Result<Vec<Value>> {
    let fail =
        |why: String| Error::new(ErrorCode::FileRead, why, "a script that measures the peers").at(script.display().to_string());
    let mut child = std::process::Command::new(args.python.as_deref().unwrap_or("python3"))
        .arg(script)
        .arg(what)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .map_err(|e| fail(e.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(Value::Array(cases).to_string().as_bytes()).map_err(|e| fail(e.to_string()))?;
    }
    // Told as they come: a run that is cut off leaves what it had.
    let mut found = Vec::new();
    for line in child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines) {
        let line = line.map_err(|e| fail(e.to_string()))?;
        println!("{line}");
        found.extend(serde_json::from_str::<Value>(&line));
    }
    let status = child.wait().map_err(|e| fail(e.to_string()))?;
    if !status.success() {
        // What it told before counts; cases without a line show no peer.
        eprintln!("{}", fail(status.to_string()));
    }
    Ok(found)
}

/// Lines that speak of the machine rather than of a case.
pub fn about(lines: &[Value]) -> Vec<&Value> {
    lines.iter().filter(|l| l.get("peer").is_none()).collect()
}

/// Peers of one case by name, and `ours / peer` throughput of every pair. `ms` is the key of a time, of ours and theirs alike.
pub fn join(case: &str, ours: &Map<String, Value>, lines: &[Value], ms: &str, flops: Option<f64>) -> Value {
    let (mut of_peers, mut ratios) = (Map::new(), Map::new());
    for line in lines.iter().filter(|l| l["case"] == case) {
        let Some(name) = line["peer"].as_str() else { continue };
        let Some(time) = line[ms].as_f64() else {
            of_peers.insert(name.into(), json!({ "error": line["error"] }));
            continue;
        };
        let mut peer = json!({ ms: time });
        if let Some(flops) = flops {
            peer["tflops"] = json!(flops / time / 1e9);
        }
        of_peers.insert(name.into(), peer);
        for (mode, result) in ours {
            if let Some(mine) = result[ms].as_f64() {
                ratios.insert(format!("{mode}/{name}"), json!(time / mine));
            }
        }
    }
    json!({ "case": case, "ours": ours, "peers": of_peers, "throughput_ratio": ratios })
}

/// One line for a person.
pub fn line(case: &Value, ms: &str) -> String {
    let mut row = format!("{:<40}", case["case"].as_str().unwrap_or_default());
    for (mode, r) in case["ours"].as_object().into_iter().flatten() {
        match r[ms].as_f64() {
            Some(time) => row += &format!(" | {mode} {time:.4} ms {:.0} TF/s", r["tflops"].as_f64().unwrap_or(0.0)),
            None => row += &format!(" | {mode} {}", r["error"].as_str().unwrap_or("failed")),
        }
    }
    for (pair, r) in case["throughput_ratio"].as_object().into_iter().flatten() {
        row += &format!(" | {pair} {:.2}x", r.as_f64().unwrap_or(0.0));
    }
    row
}
