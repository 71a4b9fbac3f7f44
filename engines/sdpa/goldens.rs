//! Launch plans of typical graphs as text, compared with `tests/golden/*.launch`. `BLESS=1` rewrites them, except where `CI` is set.
#![allow(missing_docs, reason = "compiled for tests only")]

use super::testing::Case;
use crate::{Decline, Facts, Knobs, Launch, LaunchPlan, Row, Step, Target};
use std::path::PathBuf;

/// Name, device, graph, knobs.
pub type Golden = (&'static str, &'static str, Case, Knobs);

fn target(device: &str) -> Target {
    device.strip_prefix("sm_").and_then(|d| d.parse().ok()).and_then(Target::describe).expect("a known device")
}

fn plan(row: &Row, (_, device, case, knobs): &Golden) -> LaunchPlan {
    (row.lower)(&case.facts(), knobs, &target(device)).expect("an accepted graph lowers")
}

/// The kernel launches of one graph.
pub fn launches(row: &Row, golden: &Golden) -> Vec<Launch> {
    let steps = plan(row, golden).steps.into_iter();
    steps
        .filter_map(|s| match s {
            Step::Kernel(l) => Some(l),
            Step::Host(_) => None,
        })
        .collect()
}

/// Compares every plan with its file.
pub fn check<'a>(
    family: &str,
    cases: impl Iterator<Item = (&'a Row, &'a Golden)>,
    mismatch: fn(&Row, &Facts, &Knobs, &Target) -> Option<Decline>,
) {
    check_texts(cases.map(|(row, golden)| {
        let (name, device, case, knobs) = golden;
        assert_eq!(mismatch(row, &case.facts(), knobs, &target(device)), None, "{name}");
        let text = format!("{} {}{knobs} on {device}\n{}", row.id, row.name, plan(row, golden));
        (format!("{family}_{name}.launch"), text)
    }));
}

/// Compares texts with the files of these names.
pub fn check_texts(goldens: impl Iterator<Item = (String, String)>) {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden"));
    let bless = std::env::var_os("BLESS").is_some();
    assert!(!(bless && std::env::var_os("CI").is_some()), "goldens are not blessed in CI");
    let mut stale = Vec::new();
    for (file, text) in goldens {
        let path = folder.join(&file);
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        if old == text {
            continue;
        }
        if bless {
            std::fs::write(&path, &text).expect("the golden folder is writable");
        } else {
            let line = text.lines().zip(old.lines()).position(|(a, b)| a != b).unwrap_or(old.lines().count());
            let at = |t: &str| t.lines().nth(line).unwrap_or("(end)").to_string();
            stale.push(format!("{file} line {}:\n  golden {}\n  now    {}", line + 1, at(&old), at(&text)));
        }
    }
    assert!(stale.is_empty(), "{}\nBLESS=1 cargo test -p frostgraph-engines goldens rewrites them", stale.join("\n"));
}
