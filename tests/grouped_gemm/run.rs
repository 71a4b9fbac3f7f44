//! From seeded inputs to results, checked against the f64 oracle the way `frostgraph run --check` does it.

use crate::support::{build, served, Case};
use frostgraph::exec::{Bindings, HostWorkspace, Stream};
use frostgraph::graph::FrozenGraph;
use frostgraph::sample::{check, expected, inputs, outputs, HostTensors};
use frostgraph::{Device, ErrorCode, Result};

pub fn execute(g: &frostgraph::graph::Graph, data: &HostTensors) -> Result<(FrozenGraph, HostTensors)> {
    let built = g.build(&Device::cpu())?;
    let exe = built.best()?.compile()?;
    let mut results = outputs(built.graph(), data)?;
    let mut scratch = HostWorkspace::new(exe.workspace_bytes()).unwrap();
    let mut bindings = Bindings::new();
    for (uid, t) in &data.0 {
        bindings.read(*uid, t.bytes());
    }
    for (uid, t) in &mut results.0 {
        bindings.write(*uid, t.bytes_mut());
    }
    exe.execute(&Stream::cpu(), &mut bindings, &mut scratch.workspace())?;
    Ok((built.graph().clone(), results))
}

#[test]
fn every_form_matches_the_oracle() {
    for (seed, (name, case)) in served().into_iter().enumerate() {
        let (g, _) = build(&case).unwrap();
        let data = inputs(&g.freeze().unwrap(), seed as u64, HostTensors::default()).unwrap();
        let (frozen, results) = execute(&g, &data).unwrap_or_else(|e| panic!("{name}: {e}"));
        let want = expected(&frozen, &data).unwrap();
        let compared = check(&want, &data, &results).unwrap();
        assert_eq!(compared.len(), results.0.len(), "{name}: every output is judged");
        for c in &compared {
            assert!(c.passed(), "{name}: {} is off by {} and may by {}", c.name, c.error, c.tolerance);
        }
    }
}

/// The judge sees what is wrong: one flipped bit of a scale, of a result, of a status word.
#[test]
fn wrong_results_are_seen() {
    let case = Case { dbias: true, d_srelu: true, status: true, ..Case::default() };
    let (g, _) = build(&case).unwrap();
    let data = inputs(&g.freeze().unwrap(), 5, HostTensors::default()).unwrap();
    let (frozen, results) = execute(&g, &data).unwrap();
    let want = expected(&frozen, &data).unwrap();
    for &uid in results.0.keys() {
        let mut bad = results.clone();
        let bytes = bad.0.get_mut(&uid).unwrap().bytes_mut();
        // Of little-endian floats the high bytes matter.
        let step = if bytes.len() > 4 { 1 } else { 4 };
        bytes.iter_mut().step_by(step).for_each(|b| *b ^= 0x28);
        let compared = check(&want, &data, &bad).unwrap();
        assert!(compared.iter().any(|c| c.uid == uid && !c.passed()), "uid {uid}");
    }
}

#[test]
fn inputs_are_a_function_of_the_seed_and_make_sense() {
    let (g, h) = build(&Case { m: 2304, experts: 5, ..Case::default() }).unwrap();
    let frozen = g.freeze().unwrap();
    let make = |seed| inputs(&frozen, seed, HostTensors::default()).unwrap();
    assert_eq!(make(3), make(3));
    let ends = |data: &HostTensors| -> Vec<i32> {
        let bytes = data.bytes(frozen.tensor(h.offsets).uid.unwrap()).unwrap();
        bytes.chunks_exact(4).map(|b| i32::from_ne_bytes(b.try_into().unwrap())).collect()
    };
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..8 {
        let ends = ends(&make(seed));
        assert!(ends.windows(2).all(|w| w[0] <= w[1]) && ends.iter().all(|e| e % 256 == 0) && ends[4] == 2304, "{ends:?}");
        seen.insert(ends);
    }
    assert!(seen.len() > 4);
}

/// Faulty ends without a status word are an error that names the expert; a run never touches what is not an expert's.
#[test]
fn faulty_ends_end_in_a_coded_error() {
    let (g, h) = build(&Case::default()).unwrap();
    let frozen = g.freeze().unwrap();
    let mut data = inputs(&frozen, 1, HostTensors::default()).unwrap();
    let ends = data.0.get_mut(&frozen.tensor(h.offsets).uid.unwrap()).unwrap();
    ends.bytes_mut()[4..8].copy_from_slice(&300i32.to_ne_bytes());
    ends.bytes_mut()[..4].copy_from_slice(&256i32.to_ne_bytes());
    let e = execute(&g, &data).expect_err("faulty ends");
    assert_eq!(e.code, ErrorCode::BadData);
    assert!(e.to_string().contains("the end of expert 1 is no multiple of 256"), "{e}");
}
