//! Bounded fuzzing of reader and planner: mutated samples and random bytes never panic; what is accepted can be written and read again;
//! what the planner ranks first can be lowered, or declines with a code.
//!
//! `FUZZ_SECONDS` extends the time, `FUZZ_SEED` repeats a run.

use super::case;
use frostgraph::graph::Graph;
use frostgraph::json::{from_str, Strictness};
use frostgraph::{BuildOptions, Device};
use std::time::{Duration, Instant};

/// splitmix64: enough for choosing mutations.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

const TOKENS: &[&str] = &[
    "null",
    "true",
    "{}",
    "[]",
    "-1",
    "0",
    "9223372036854775807",
    "9223372036854775808",
    "1e308",
    "\"\"",
    "\"7FC00000\"",
    "\"NONE\"",
    "[[[[",
    "{\"a\":",
    "\"context\"",
    "\"uid\": 1",
    ",",
    ":",
    "\\u0000",
    "\"SDPA_BWD\"",
    "4294967296",
    "-9223372036854775808",
];

fn mutate(rng: &mut Rng, text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..1 + rng.below(4) {
        let at = rng.below(bytes.len());
        match rng.below(6) {
            0 => bytes[at] = rng.next() as u8,
            1 => bytes.truncate(at),
            2 => {
                let token = TOKENS[rng.below(TOKENS.len())].bytes();
                bytes.splice(at..at, token);
            }
            3 => {
                // Replaces one value: from a colon to the next comma or line end.
                if let Some(colon) = bytes[at..].iter().position(|&b| b == b':').map(|i| at + i + 1) {
                    let end = bytes[colon..].iter().position(|&b| b == b',' || b == b'\n').map_or(bytes.len(), |i| colon + i);
                    bytes.splice(colon..end, TOKENS[rng.below(TOKENS.len())].bytes());
                }
            }
            4 => {
                let end = (at + rng.below(40)).min(bytes.len());
                bytes.drain(at..end);
            }
            _ => {
                let end = (at + rng.below(200)).min(bytes.len());
                let copy = bytes[at..end].to_vec();
                let to = rng.below(bytes.len());
                bytes.splice(to..to, copy);
            }
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Plans a graph for the CPU and for described devices, with every engine offered. Gives whether some device had a plan.
fn plan(graph: &Graph, devices: &[Device]) -> bool {
    let mut planned = false;
    for device in devices {
        let options = BuildOptions { allow_empty: true, ..BuildOptions::all_engines() };
        let Ok(built) = graph.build_with(device, &options) else { continue };
        for d in built.declined() {
            assert!(!d.reason.is_empty() && !d.engine.is_empty(), "{d}");
        }
        for plan in built.plans().take(3) {
            planned = true;
            if let Err(e) = plan.lower() {
                assert_eq!(e.code.code(), "FG3005", "{plan}: {e}");
            }
        }
    }
    planned
}

#[test]
fn reader_and_planner_never_panic() {
    let seed = number("FUZZ_SEED").unwrap_or(20261130);
    let limit = Duration::from_secs(number("FUZZ_SECONDS").unwrap_or(5));
    let mut rng = Rng(seed);
    let samples: Vec<String> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/graphs/cudnn"))
        .unwrap()
        .map(|f| case(&f.unwrap().file_name().into_string().unwrap()))
        .collect();
    let mut devices = vec![Device::cpu()];
    devices.extend(["sm_80", "sm_90", "sm_100", "sm_120"].map(|name| Device::describe(name).unwrap()));
    let started = Instant::now();
    let (mut runs, mut accepted, mut planned) = (0u64, 0u64, 0u64);
    while started.elapsed() < limit {
        let bytes = if rng.below(8) == 0 {
            (0..rng.below(300)).map(|_| rng.next() as u8).collect()
        } else {
            let sample = &samples[rng.below(samples.len())];
            mutate(&mut rng, sample)
        };
        let text = String::from_utf8_lossy(&bytes);
        runs += 1;
        let strictness = if rng.below(2) == 0 { Strictness::Strict } else { Strictness::Lenient };
        if let Ok(loaded) = from_str(&text, strictness) {
            accepted += 1;
            let written = loaded.graph.to_json().unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
            let again = from_str(&written, Strictness::Strict).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
            assert_eq!(again.graph.to_json().unwrap(), written, "seed {seed}\n{text}");
            planned += u64::from(plan(&loaded.graph, &devices));
        }
    }
    // A fuzzer that accepts nothing tests only the first check.
    assert!(accepted * 200 > runs, "seed {seed}: {accepted} of {runs} inputs were accepted");
    assert!(planned * 1000 > runs, "seed {seed}: {planned} of {runs} inputs were planned");
}
