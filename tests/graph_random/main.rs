//! Random graphs: freezing, analysing, planning and running never panic, and what freezes keeps its promises.

mod generator;

use frostgraph::analyze::analyze;
use frostgraph::engines::Facts;
use frostgraph::exec::{Bindings, HostWorkspace, Stream};
use frostgraph::graph::{FrozenGraph, Graph, Op, OutPort, TensorId};
use frostgraph::plan::BuildOptions;
use frostgraph::{Device, ErrorCode};
use generator::{build, plan};
use proptest::prelude::*;

/// What [`FrozenGraph`] promises its readers.
fn promises(f: &FrozenGraph) {
    let mut uids: Vec<i64> = f.tensors().map(|(_, t)| t.uid.unwrap()).collect();
    uids.sort_unstable();
    assert!(uids.windows(2).all(|p| p[0] < p[1]) && uids[0] >= 1);
    for (_, t) in f.tensors() {
        assert!(
            t.dtype.is_some()
                && t.dim.iter().all(|&d| d > 0)
                && t.stride.len() == t.dim.len()
                && t.stride.iter().all(|&s| s >= 0)
        );
    }
    for node in f.nodes() {
        match &node.op {
            Op::Sdpa(_) | Op::Nvfp4Qat(_) => assert!(node.outputs.contains_key(&OutPort::O)),
            Op::SdpaBackward(_) | Op::Nvfp4QatBackward(_) => assert!(node.outputs.contains_key(&OutPort::DQ)),
            Op::GroupedGemmDsrelu(_) => assert!(node.outputs.contains_key(&OutPort::DRow)),
            Op::MoeGroupedMatmul(_) => assert!(node.outputs.contains_key(&OutPort::Output)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn freezing_and_analysing_never_panic(plan in plan()) {
        let g = build(&plan);
        match g.freeze() {
            Ok(f) => {
                promises(&f);
                let Facts::Sdpa(facts) = analyze(&f, 0) else { panic!("attention only") };
                if facts.invalid.is_none() {
                    prop_assert!(facts.b > 0 && facts.h_kv > 0 && facts.h_q % facts.h_kv == 0 && facts.s_kv > 0);
                    prop_assert!(facts.mask.left.is_none_or(|w| w >= 0) && facts.mask.right.is_none_or(|r| r >= 0));
                    prop_assert!(facts.ports.q.is_some() && facts.ports.k.is_some() && facts.ports.v.is_some() && facts.ports.o.is_some());
                }
                // Freezing is a function of the graph.
                prop_assert_eq!(&f, &g.freeze().unwrap());
            }
            Err(e) => prop_assert!(!e.given.is_empty() && !e.expected.is_empty(), "{}", e),
        }
    }
}

/// Plans, lowers, replays and runs a random graph. Data of zeros are valid for every graph (lengths, offsets and pages of 0), so an
/// engine that accepted the graph must run them (field report 120); bytes of 0x7F contradict it (lengths of 2^31), which is an error.
/// Returns how many runs there were.
fn plan_and_run(g: &Graph) -> usize {
    let mut runs = 0;
    let mut g = g.clone();
    let outputs: Vec<TensorId> = g.nodes().iter().flat_map(|n| n.outputs.values().copied()).collect();
    for id in outputs {
        g.output(id).unwrap();
    }
    for name in ["cpu", "sm_90", "sm_120"] {
        let device = if name == "cpu" { Device::cpu() } else { Device::describe(name).unwrap() };
        let options = BuildOptions { allow_empty: true, ..BuildOptions::all_engines() };
        let Ok(built) = g.build_with(&device, &options) else { return 0 };
        for plan in built.plans() {
            match plan.lower() {
                Ok(_) => assert_eq!(built.replay(&plan.records()).unwrap().to_string(), plan.to_string()),
                Err(e) => {
                    assert_eq!(e.code, ErrorCode::Declined, "{e}");
                    continue;
                }
            }
            let exe = plan.compile().unwrap();
            let total: u64 = exe.operands().iter().map(|o| o.declared_bytes).fold(exe.workspace_bytes(), u64::saturating_add);
            if name != "cpu" || total > 1 << 22 {
                continue;
            }
            for fill in [0u8, 0x7F] {
                let length = |o: &frostgraph::exec::Operand| (o.declared_bytes as usize).div_ceil(16);
                let mut store: Vec<Vec<u128>> =
                    exe.operands().iter().map(|o| vec![u128::from_ne_bytes([fill; 16]); length(o)]).collect();
                let mut bindings = Bindings::new();
                for (o, words) in exe.operands().iter().zip(&mut store) {
                    bindings.write(o.uid, words);
                }
                let mut w = HostWorkspace::new(exe.workspace_bytes()).unwrap();
                match exe.execute(&Stream::cpu(), &mut bindings, &mut w.workspace()) {
                    Ok(()) => runs += 1,
                    Err(e) => assert!(fill != 0 && e.code == ErrorCode::BadData, "{plan} with {fill:#x}: {e}"),
                }
            }
        }
    }
    runs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn planning_and_running_random_graphs_never_panics_120(plan in plan()) {
        plan_and_run(&build(&plan));
    }
}

#[test]
fn the_generator_reaches_graphs_that_run() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let runs: usize = (0..400).map(|_| plan_and_run(&build(&plan().new_tree(&mut runner).unwrap().current()))).sum();
    assert!(runs > 20, "{runs} runs");
}

/// The generator must reach both answers, or the property says little.
#[test]
fn the_generator_reaches_good_and_bad_graphs() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut valid, mut invalid, mut refused) = (0, 0, std::collections::BTreeSet::new());
    for _ in 0..1500 {
        match build(&plan().new_tree(&mut runner).unwrap().current()).freeze() {
            Ok(f) => match analyze(&f, 0) {
                Facts::Sdpa(facts) if facts.invalid.is_none() => valid += 1,
                Facts::Sdpa(_) => invalid += 1,
                Facts::GroupedGemm(_) | Facts::Moe(_) => panic!("attention only"),
            },
            Err(e) => drop(refused.insert(e.code)),
        }
    }
    assert!(valid > 50 && invalid > 20 && refused.len() > 15, "{valid} valid, {invalid} invalid, {refused:?}");
}
