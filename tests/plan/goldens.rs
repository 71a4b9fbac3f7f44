//! Ranked lists and declines of the graph catalogue, per device, against committed text. `BLESS=1` rewrites; under `CI` that is an error.

use crate::support::golden;
use frostgraph::plan::BuildOptions;
use frostgraph::Device;
use std::fmt::Write;

const DEVICES: [&str; 3] = ["cpu", "sm_90", "sm_120"];

/// The plans of one graph on every device, opt-in engines included.
fn render(g: &frostgraph::graph::Graph) -> String {
    let mut out = String::new();
    for name in DEVICES {
        let device = Device::describe(name).unwrap();
        writeln!(out, "device {name}").unwrap();
        let options = BuildOptions { allow_empty: true, ..BuildOptions::all_engines() };
        match g.build_with(&device, &options) {
            Err(e) => writeln!(out, "  error {e}").unwrap(),
            Ok(built) => {
                for n in built.nodes() {
                    writeln!(out, "  node {} '{}' family {}", n.node(), n.name(), n.family().unwrap_or("none")).unwrap();
                    for (i, r) in n.ranked().iter().enumerate() {
                        writeln!(out, "    plan {i} {r}").unwrap();
                    }
                    for d in n.declined() {
                        writeln!(out, "    decline {d}").unwrap();
                    }
                }
            }
        }
    }
    out
}

#[test]
fn ranked_plans_and_declines_match_their_goldens() {
    let mut wrong = Vec::new();
    let mut names = Vec::new();
    for (name, g) in crate::support::catalogue::all() {
        let file = format!("{name}.plans");
        wrong.extend(golden::differs(&file, &render(&g)));
        names.push(file);
    }
    assert!(wrong.is_empty(), "look at the differences and run with BLESS=1 if the new texts are right:\n{}", wrong.join("\n"));
    let stale: Vec<String> = std::fs::read_dir(golden::dir())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|f| f.ends_with(".plans") && !names.contains(f))
        .collect();
    assert!(stale.is_empty(), "goldens of graphs that no longer exist: {stale:?}");
    assert!(names.len() >= 40);
}

/// The catalogue as files: what a user without Rust starts from. What JSON cannot carry (callbacks, options of the python surface) has no file.
#[test]
fn graph_files_are_current_and_plan_like_the_graphs_they_came_from() {
    let mut files = 0;
    for (name, g) in crate::support::catalogue::all() {
        let Ok(text) = g.to_json() else { continue };
        golden::check(&format!("../graphs/{name}.json"), &format!("{text}\n"));
        let loaded = frostgraph::graph::Graph::from_json(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(render(&loaded), render(&g), "{name}: the file plans differently");
        files += 1;
    }
    assert!(files >= 20, "{files} graph files");
}
