//! Evidence records: one for each feature group of the cases that ran.

use crate::verdict::{Tally, Verdict};
use frostgraph::engines::{row_by_name, Facts};
use frostgraph::runtime::{CudaDevice, Nvrtc};
use frostgraph::{Error, ErrorCode, Result};
use serde_json::{json, Value};
use std::collections::BTreeMap;

/// Days since 1970-01-01 as a date (civil-from-days).
fn date(days: i64) -> String {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day = z.rem_euclid(146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let in_year = day - (365 * year + year / 4 - year / 100);
    let m = (5 * in_year + 2) / 153;
    let (d, month) = (in_year - (153 * m + 2) / 5 + 1, if m < 10 { m + 3 } else { m - 9 });
    format!("{:04}-{month:02}-{d:02}", year + era * 400 + i64::from(month <= 2))
}

/// Today, UTC.
pub fn today() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    date(now.map_or(0, |d| d.as_secs() as i64 / 86_400))
}

/// Features of a case as the analyzer names them; `plain` when there are none.
pub fn features(facts: &Facts) -> Vec<String> {
    let labels: Vec<String> = facts.features().iter().map(|x| x.label().to_owned()).collect();
    if labels.is_empty() {
        vec!["plain".into()]
    } else {
        labels
    }
}

/// The kernel module's version where Linux tells it, else the CUDA version of the driver.
fn driver(device: &CudaDevice) -> String {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let number = |w: &&str| w.contains('.') && w.chars().all(|c| c.is_ascii_digit() || c == '.');
    let found = text.lines().next().and_then(|l| l.split_whitespace().find(number));
    found.map_or_else(|| format!("CUDA {}", device.driver_version()), str::to_owned)
}

/// Digest of an engine's kernel sources.
fn digest(engine: &str) -> Result<String> {
    let row = row_by_name(engine).ok_or_else(|| Error::new(ErrorCode::UnknownEngine, engine, "a row of MANIFEST"))?;
    frostgraph_kernels::digest(row.sources).map_err(|e| Error::new(ErrorCode::Nvrtc, e.to_string(), "embedded sources"))
}

/// One record for each engine and group of features.
pub fn records(device: &CudaDevice, suite: &str, seed: u64, results: &[(&str, Vec<String>, &Verdict)]) -> Result<Value> {
    let cc = frostgraph::runtime::compile::compute_capability(&device.arch())?;
    let nvrtc = Nvrtc::get(cc).map_or_else(|_| "bundle".to_owned(), |n| n.release());
    let mut groups: BTreeMap<(&str, &[String]), Tally> = BTreeMap::new();
    for (engine, features, verdict) in results {
        groups.entry((engine, features)).or_default().add(verdict);
    }
    let mut list = Vec::new();
    for ((engine, features), t) in groups.iter().filter(|(_, t)| t.passed + t.failed > 0) {
        list.push(json!({
            "engine": engine, "arch": device.arch(), "gpu": device.name(), "driver": driver(device), "nvrtc": nvrtc,
            "date": today(), "kernel_digest": digest(engine)?, "suite": suite, "features": features, "passed": t.passed,
            "failed": t.failed, "skipped": t.skipped, "worst_error": t.worst, "seed": seed,
        }));
    }
    Ok(Value::Array(list))
}

/// `h200` for `NVIDIA H200`: the file's name begins with it.
pub fn short_name(gpu: &str) -> String {
    let last = gpu.rsplit(' ').find(|w| w.chars().any(|c| c.is_ascii_digit())).unwrap_or(gpu);
    last.to_ascii_lowercase().chars().filter(char::is_ascii_alphanumeric).collect()
}

pub fn self_check() {
    assert_eq!([date(0), date(59), date(11_016), date(20_787)], ["1970-01-01", "1970-03-01", "2000-02-29", "2026-11-30"]);
    assert_eq!(short_name("NVIDIA H200"), "h200");
    assert_eq!(short_name("NVIDIA RTX PRO 6000 Blackwell"), "6000");
}
