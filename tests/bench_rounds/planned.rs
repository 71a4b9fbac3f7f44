//! How long the suites take on a GPU, planned from the recorded times: a run there has a budget.

use crate::paces;
use crate::rounds::{Pace, Turn};
use serde_json::Value;
use std::path::Path;

/// Seconds of a case besides its turns: buffers and plans of ours, the peers' first runs, letting go.
const PREPARED: f64 = 1.5;
/// Milliseconds that a launch waits for the L2 cache to be overwritten.
const FLUSHED: f64 = 0.35;
/// As in `device`.
const BATCH_MS: f64 = 8.0;

/// Milliseconds of a turn of launches this long, as `Gpu::turn` takes it.
fn milliseconds(turn: Turn, launch: f64) -> f64 {
    let one = launch + FLUSHED;
    let (mut warm, mut batch) = (0.0, 1.0);
    loop {
        warm += batch * one;
        if warm >= turn.warm_ms {
            return warm + (turn.measure_ms / one).round().clamp(2.0, 100.0) * one;
        }
        if batch * one < (turn.warm_ms / 8.0).min(BATCH_MS) {
            batch *= 2.0;
        }
    }
}

/// Seconds of the turns of one recorded list of plans and peers.
fn seconds(pace: Pace, lists: &[&Value]) -> f64 {
    let timed: Vec<(&str, f64)> = lists
        .iter()
        .flat_map(|l| l.as_object().into_iter().flatten())
        .filter_map(|(name, r)| Some((name.as_str(), ["bwd_ms", "fwd_ms", "ms"].iter().find_map(|k| r[*k].as_f64())?)))
        .collect();
    let names: Vec<&str> = timed.iter().map(|(name, _)| *name).collect();
    pace.turns(&names).into_iter().map(|(who, turn)| milliseconds(turn, timed[who].1) / 1e3).sum()
}

fn cases(suite: &str, list: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("benches/results/h200-{suite}.json"));
    let results: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("the recorded results")).expect("JSON");
    results[list].as_array().expect("a list of cases").clone()
}

/// The head dim that the case's name says.
fn d_qk(case: &Value) -> i64 {
    let name = case["case"].as_str().expect("a name");
    let dims = name.split(' ').find_map(|word| word.strip_prefix('d')).expect("head dims");
    dims.split('/').next().and_then(|d| d.parse().ok()).expect("a number")
}

/// The table of `paces`: seconds of the turns, and of the whole suite where `before` is what comes ahead of its first case.
#[test]
fn planned_seconds() {
    let all = |list: &[Value], pace: fn(&Value) -> Pace| -> f64 {
        list.iter().map(|c| seconds(pace(c), &[&c["ours"], &c["peers"]])).sum()
    };
    let backward = cases("sdpa_bwd", "cases");
    let (long, short): (Vec<Value>, Vec<Value>) =
        cases("sdpa_fwd", "cases").into_iter().partition(|c| c["ours"]["sm90"]["fwd_ms"].as_f64().is_some_and(|ms| ms > 0.2));
    let decode = cases("sdpa_fwd", "decode");
    let qat = cases("nvfp4_qat", "cases");
    let grouped = cases("grouped_gemm", "cases");
    let forward = all(&long, |_| paces::FORWARD) + all(&short, |_| paces::SHORT) + all(&decode, |_| paces::SHORT);
    let with_forward: f64 = qat.iter().map(|c| seconds(paces::QAT, &[&c["forward"]])).sum();
    for (suite, count, turns, before, bound) in [
        ("sdpa_bwd", backward.len(), all(&backward, |c| paces::backward(d_qk(c))), 8.0, 150.0),
        ("sdpa_fwd", long.len() + short.len() + decode.len(), forward, 12.0, 155.0),
        ("nvfp4_qat", qat.len(), all(&qat, |_| paces::QAT) + with_forward, 20.0, 60.0),
        ("grouped_gemm", grouped.len(), all(&grouped, |_| paces::GROUPED), 13.0, 90.0),
    ] {
        let whole = turns + before + PREPARED * count as f64;
        println!("| `{suite}` | {count} | {turns:.0} | {whole:.0} |");
        assert!(whole < bound, "{suite}: {whole:.0} s are planned");
    }
}
