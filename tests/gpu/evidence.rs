//! Evidence records: one for each feature group of the cases that ran.

use crate::cases::{Case, Lens, MaskKind};
use crate::plan::ENGINE;
use crate::work::Verdict;
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
    let Facts::Sdpa(f) = facts;
    let labels: Vec<String> = f.features.iter().map(|x| x.label().to_owned()).collect();
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

/// One record a group.
pub fn records(device: &CudaDevice, suite: &str, seed: u64, results: &[(Vec<String>, &Verdict)]) -> Result<Value> {
    let row = row_by_name(ENGINE).ok_or_else(|| Error::new(ErrorCode::UnknownEngine, ENGINE, "a row of MANIFEST"))?;
    let digest =
        frostgraph_kernels::digest(row.sources).map_err(|e| Error::new(ErrorCode::Nvrtc, e.to_string(), "embedded sources"))?;
    let cc = frostgraph::runtime::compile::compute_capability(&device.arch())?;
    let nvrtc = Nvrtc::get(cc).map_or_else(|_| "bundle".to_owned(), |n| n.release());
    let mut groups: BTreeMap<Vec<String>, (u64, u64, u64, f64)> = BTreeMap::new();
    for (features, verdict) in results {
        let g = groups.entry(features.clone()).or_default();
        match verdict {
            Verdict::Passed(e) => {
                g.0 += 1;
                g.3 = g.3.max(*e);
            }
            Verdict::Failed(_) => g.1 += 1,
            Verdict::Skipped(_) => g.2 += 1,
        }
    }
    let record = |(features, (passed, failed, skipped, worst)): (&Vec<String>, &(u64, u64, u64, f64))| {
        json!({
            "engine": ENGINE, "arch": device.arch(), "gpu": device.name(), "driver": driver(device), "nvrtc": nvrtc,
            "date": today(), "kernel_digest": digest, "suite": suite, "features": features, "passed": passed, "failed": failed,
            "skipped": skipped, "worst_error": worst, "seed": seed,
        })
    };
    Ok(Value::Array(groups.iter().filter(|(_, g)| g.0 + g.1 > 0).map(record).collect()))
}

/// `h200` for `NVIDIA H200`: the file's name begins with it.
pub fn short_name(gpu: &str) -> String {
    let last = gpu.rsplit(' ').find(|w| w.chars().any(|c| c.is_ascii_digit())).unwrap_or(gpu);
    last.to_ascii_lowercase().chars().filter(char::is_ascii_alphanumeric).collect()
}

/// Group of the short table that is printed last.
pub fn group(case: &Case) -> String {
    let base = match (&case.lens, case.bias, case.sink, case.tiles) {
        (Lens::Thd { .. }, ..) => "THD",
        (Lens::Padded { .. }, ..) => "padding",
        (_, Some(_), ..) => "bias",
        (_, _, true, _) => "sink",
        (.., Some(_)) => "tiles",
        _ => match case.mask {
            MaskKind::None => "no mask",
            MaskKind::Causal => "causal",
            MaskKind::CausalBottomRight => "bottom-right",
            MaskKind::Band(_) => "right band",
            MaskKind::Window(_) => "window",
            MaskKind::CausalWindow(_) => "causal window",
            MaskKind::BottomRightWindow(_) => "bottom-right window",
            MaskKind::TwoSided(..) => "two-sided window",
        },
    };
    format!("{base}, {}", if case.deterministic { "deterministic" } else { "default" })
}

pub fn self_check() {
    assert_eq!([date(0), date(59), date(11_016), date(20_787)], ["1970-01-01", "1970-03-01", "2000-02-29", "2026-11-30"]);
    assert_eq!(short_name("NVIDIA H200"), "h200");
    assert_eq!(short_name("NVIDIA RTX PRO 6000 Blackwell"), "6000");
}
