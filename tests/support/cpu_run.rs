//! From seeded inputs to results on the CPU, checked against the f64 oracle the way `frostgraph run --check` does it.

use frostgraph::exec::{Bindings, HostWorkspace, Stream};
use frostgraph::graph::{FrozenGraph, Graph};
use frostgraph::sample::{check, expected, inputs, outputs, HostTensors};
use frostgraph::{Device, Result};

/// Runs the best plan.
pub fn execute(g: &Graph, data: &HostTensors) -> Result<(FrozenGraph, HostTensors)> {
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

/// Every output is within its tolerance, and the judge sees each of them when its bytes are wrong.
pub fn matches_the_oracle(name: &str, g: &Graph, seed: u64) {
    let data = inputs(&g.freeze().unwrap(), seed, HostTensors::default()).unwrap();
    let (frozen, results) = execute(g, &data).unwrap_or_else(|e| panic!("{name}: {e}"));
    let want = expected(&frozen, &data).unwrap();
    let compared = check(&want, &data, &results).unwrap();
    assert_eq!(compared.len(), results.0.len(), "{name}: every output is judged");
    for c in &compared {
        assert!(c.passed(), "{name}: {} is off by {} and may by {}", c.name, c.error, c.tolerance);
    }
    for &uid in results.0.keys() {
        let mut bad = results.clone();
        let bytes = bad.0.get_mut(&uid).unwrap().bytes_mut();
        // Of a status word the lowest byte is enough, of floats the high bytes matter.
        let step = if bytes.len() > 4 { 1 } else { 4 };
        bytes.iter_mut().step_by(step).for_each(|b| *b ^= 0x28);
        let compared = check(&want, &data, &bad).unwrap();
        assert!(compared.iter().any(|c| c.uid == uid && !c.passed()), "{name}: uid {uid}");
    }
}
