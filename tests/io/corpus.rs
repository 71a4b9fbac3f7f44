//! Every graph file of the repository that some CPU plan serves runs under each of its plans, and its outputs agree with the oracle
//! (field report 120: an engine that offers a plan and then fails at execute).

use frostgraph::json::{from_path, Strictness};
use frostgraph::sample::{check, expected, inputs, output_ids, outputs, HostTensors};
use frostgraph::{Bindings, BuildOptions, Device, HostWorkspace, Stream};
use std::path::PathBuf;

/// Files below a folder, without those that exist to be large.
fn files(folder: &str) -> Vec<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut list: Vec<PathBuf> = std::fs::read_dir(path).unwrap().map(|f| f.unwrap().path()).collect();
    list.retain(|p| p.extension().is_some_and(|e| e == "json") && !p.ends_with("bwd_many_batches.json"));
    list.sort();
    list
}

#[test]
fn every_plan_of_every_graph_file_is_right_120() {
    let mut ran = 0;
    for path in [files("examples"), files("tests/graphs"), files("tests/graphs/cudnn")].concat() {
        let name = path.display();
        let Ok(loaded) = from_path(&path, Strictness::Strict) else { continue };
        let options = BuildOptions { allow_empty: true, ..BuildOptions::default_engines() };
        let Ok(built) = loaded.graph.build_with(&Device::cpu(), &options) else { continue };
        for plan in built.plans() {
            let exe = plan.compile().unwrap_or_else(|e| panic!("{name}: {e}"));
            let data = inputs(built.graph(), 42, HostTensors::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
            let mut results = outputs(built.graph(), &data).unwrap();
            let mut bindings = Bindings::new();
            for (uid, t) in &data.0 {
                bindings.read(*uid, t.bytes());
            }
            for (uid, t) in &mut results.0 {
                bindings.write(*uid, t.bytes_mut());
            }
            let mut workspace = HostWorkspace::new(exe.workspace_bytes()).unwrap();
            workspace.bytes_mut().fill(0xFF);
            exe.execute(&Stream::cpu(), &mut bindings, &mut workspace.workspace())
                .unwrap_or_else(|e| panic!("{name}: {plan}: {e}"));
            drop(bindings);
            let compared = check(&expected(built.graph(), &data).unwrap(), &data, &results).unwrap();
            assert_eq!(compared.len(), output_ids(built.graph()).len(), "{name}: every output is compared");
            for c in compared {
                assert!(c.passed(), "{name}: {plan}: {c:?}");
            }
            ran += 1;
        }
    }
    assert!(ran >= 30, "only {ran} plans ran");
}
