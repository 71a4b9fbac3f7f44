//! Rules with their codes, facts of good graphs, plans.

use crate::support::{build, mxfp8, nvfp4, served, Case, Handles};
use frostgraph::analyze::analyze;
use frostgraph::engines::{Facts, Feature, FeatureSet, MoeFacts};
use frostgraph::graph::rules::MOE_RULES;
use frostgraph::graph::{Graph, InPort, MoeMode, OutPort};
use frostgraph::{DType, Device, ErrorCode};

fn facts(case: &Case) -> MoeFacts {
    let frozen = build(case).unwrap().0.freeze().unwrap_or_else(|e| panic!("{e}"));
    match analyze(&frozen, 0) {
        Facts::Moe(f) => *f,
        Facts::Sdpa(_) | Facts::GroupedGemm(_) => panic!("a plain grouped product"),
    }
}

/// The error of a case whose graph is bent after it was built.
fn refused(case: &Case, bend: impl FnOnce(&mut Graph, &Handles)) -> (ErrorCode, String) {
    let (mut g, h) = build(case).unwrap();
    bend(&mut g, &h);
    let e = g.freeze().expect_err("a rule");
    (e.code, e.to_string())
}

fn none(_: &mut Graph, _: &Handles) {}

#[test]
fn every_rule_has_its_code() {
    let d = Case::default;
    let scatter = || Case { mode: MoeMode::Scatter, top_k: 2, ..d() };
    let code = |case: &Case, bend: &dyn Fn(&mut Graph, &Handles)| refused(case, bend).0;
    let found = [
        (1, code(&d(), &|g, h| g.get_mut(h.token).unwrap().dim[0] = 2)),
        (2, code(&d(), &|g, h| g.get_mut(h.weight).unwrap().dim[1] = 32)),
        (3, code(&nvfp4(), &|g, h| g.get_mut(h.weight).unwrap().stride = vec![40 * 64, 40, 1])),
        (4, code(&d(), &|g, h| g.get_mut(h.weight).unwrap().dtype = Some(DType::F16))),
        (5, code(&Case { scales: Some((DType::F8E4M3, 32)), ..nvfp4() }, &none)),
        (6, code(&mxfp8(), &|g, h| g.get_mut(h.scales.unwrap().token).unwrap().dim[1] = 96)),
        (7, code(&d(), &|g, h| g.get_mut(h.offsets).unwrap().dtype = Some(DType::F32))),
        (
            8,
            code(&Case { mode: MoeMode::Gather, ..d() }, &|g, h| {
                let mut node = g.nodes()[0].clone();
                node.inputs.insert(InPort::TokenKs, h.token_index.unwrap());
                replace(g, node);
            }),
        ),
        (9, code(&Case { offsets: 5, ..d() }, &none)),
        (10, code(&d(), &|g, h| g.get_mut(h.out.output).unwrap().dtype = Some(DType::F8E4M3))),
        (11, code(&Case { top_k: 5, ..scatter() }, &none)),
    ];
    let wanted: Vec<(u32, ErrorCode)> = MOE_RULES.iter().map(|r| (r.number, r.code)).collect();
    assert_eq!(found.to_vec(), wanted, "one graph for each rule, in order");
    for (number, code) in wanted {
        assert_eq!(code.code(), format!("FG13{number:02}"));
    }
}

/// The same tensors with another node.
fn replace(g: &mut Graph, node: frostgraph::graph::Node) {
    let mut fresh = Graph::new(g.options().clone());
    for (_, t) in g.tensors() {
        fresh.tensor(t.clone());
    }
    fresh.node(node);
    *g = fresh;
}

#[test]
fn the_further_edges_of_rules() {
    let d = Case::default;
    let text = |case: &Case| refused(case, none).1;
    assert_eq!(
        text(&Case { offsets: 8, ..d() }),
        "FG1309 at node 'moe': 8 offsets for 3 experts; expected as many as there are groups, a multiple of the experts, or one more (rule 9 of \
         the plain grouped product)"
    );
    let f16_scales = Case { scales: Some((DType::F8E8M0, 32)), ..d() };
    assert!(text(&f16_scales).contains("FG1305") && text(&f16_scales).contains("scales of FP8 or FP4 operands"));
    assert!(text(&Case { scales: None, ..nvfp4() }).contains("FP4 values without scales"));
    assert!(text(&Case { scales: Some((DType::F8E8M0, 16)), ..mxfp8() }).contains("32 values a scale with FP8 operands"));
    assert!(text(&Case { scales: Some((DType::F8E8M0, 64)), ..mxfp8() }).contains("16 or 32 values a scale"));
    assert!(text(&Case { top_k: 0, mode: MoeMode::Scatter, ..d() }).contains("FG1311"));
    assert!(text(&Case { compute: Some(DType::F16), ..d() }).contains("FG1307"));
    let (code, e) = refused(&mxfp8(), |g, h| g.get_mut(h.scales.unwrap().token).unwrap().dim[2] = 2);
    assert!(code == ErrorCode::MoeScaleShape && e.contains("extents [1, 128, 4]: whole atoms of 128 by 4"), "{e}");
    let (code, e) = refused(&mxfp8(), |g, h| g.get_mut(h.scales.unwrap().weight).unwrap().stride = vec![512, 128, 1]);
    assert!(code == ErrorCode::MoeScaleShape && e.contains("compact strides with the blocks innermost"), "{e}");
    let (code, _) = refused(&d(), |g, h| g.get_mut(h.token).unwrap().dim = vec![96, 64]);
    assert_eq!(code, ErrorCode::MoeShape);
    for port in [InPort::Token, InPort::Weight, InPort::FirstTokenOffset, InPort::TokenIndex, InPort::TokenKs] {
        let case = Case { mode: MoeMode::Scatter, top_k: 2, ..d() };
        let (code, e) = refused(&case, |g, _| {
            let mut node = g.nodes()[0].clone();
            node.inputs.remove(&port);
            replace(g, node);
        });
        assert!(code == ErrorCode::MissingPort && e.contains(&format!("no {}", port.json())), "{e}");
    }
    let (code, e) = refused(&d(), |g, h| {
        let mut node = g.nodes()[0].clone();
        node.inputs.insert(InPort::Bias, h.token);
        replace(g, node);
    });
    assert!(code == ErrorCode::BadAttribute && e.contains("Bias on MOE_GROUPED_MATMUL"), "{e}");
    let (code, _) = refused(&d(), |g, h| {
        let mut node = g.nodes()[0].clone();
        let out = node.outputs.remove(&OutPort::Output).unwrap();
        g.get_mut(h.out.output).unwrap().dim = vec![1];
        assert_eq!(out, h.out.output);
        replace(g, node);
    });
    assert_eq!(code, ErrorCode::MissingPort);
}

#[test]
fn open_tensors_are_inferred() {
    let (mut g, h) = build(&Case { mode: MoeMode::Gather, tokens: 48, status: true, atoms: false, ..mxfp8() }).unwrap();
    g.get_mut(h.offsets).unwrap().dtype = None;
    let f = g.freeze().unwrap();
    let shape = |id| (f.tensor(id).dim.clone(), f.tensor(id).stride.clone());
    assert_eq!(shape(h.out.output), (vec![1, 96, 40], vec![3840, 40, 1]), "as many rows as the index has");
    assert_eq!(shape(h.out.status.unwrap()), (vec![1], vec![1]));
    assert_eq!(shape(h.scales.unwrap().weight), (vec![3, 2, 40], vec![80, 1, 2]), "blocks are contiguous");
    assert_eq!(f.tensor(h.offsets).dtype, Some(DType::I32));
}

#[test]
fn facts_of_good_graphs() {
    let f = facts(&Case::default());
    assert_eq!((f.tokens, f.routed, f.n, f.k, f.experts, f.groups, f.explicit_end), (96, 96, 40, 64, 3, 3, true));
    assert_eq!((f.features, f.scales), (FeatureSet::EMPTY, None));
    let batches = facts(&Case { offsets: 6, ..Case::default() });
    assert_eq!((batches.groups, batches.explicit_end), (6, false));
    for (offsets, want) in [(1, (1, false)), (2, (1, true)), (4, (3, true))] {
        let one = facts(&Case { experts: 1, offsets, ..Case::default() });
        assert_eq!((one.groups, one.explicit_end), want, "of one expert two offsets or more are boundaries");
    }
    let feature = |case: Case| facts(&case).features;
    let only = |f| FeatureSet::of(&[f]);
    let d = Case::default;
    assert_eq!(feature(Case { n_major: true, ..d() }), only(Feature::NMajorB));
    assert_eq!(feature(Case { mode: MoeMode::Gather, ..d() }), only(Feature::GatherTokens));
    assert_eq!(feature(Case { mode: MoeMode::Scatter, top_k: 2, ..d() }), only(Feature::ScatterTokens));
    assert_eq!(feature(Case { status: true, ..d() }), only(Feature::StatusWord));
    assert_eq!(feature(Case { compute: Some(DType::F64), ..d() }), only(Feature::F64Accumulate));
}

#[test]
fn plans_and_declines() {
    for (name, case) in served() {
        let (g, _) = build(&case).unwrap();
        let built = g.build(&Device::cpu()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(built.best().unwrap().to_string(), "moe_grouped_matmul_cpu", "{name}");
    }
    let (g, _) = build(&Case { scales: None, input: DType::F8E4M3, ..Case::default() }).unwrap();
    let e = g.build(&Device::describe("sm_120").unwrap()).expect_err("no engine");
    assert!(e.code == ErrorCode::NoPlan && e.to_string().contains("D03-arch"), "{e}");
}

/// Bent extents, strides, types and attributes end in an error or in a plan, never in a panic.
#[test]
fn bent_graphs_never_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n
    };
    let sizes = [0, 1, 2, 3, 4, 16, 32, 64, 96, 128, 1 << 20, 1 << 31, 1 << 40, 1 << 62, i64::MAX, -1, i64::MIN];
    let (cases, mut good, mut bad) = (served(), 0, std::collections::BTreeSet::new());
    for _ in 0..4000 {
        let mut case = cases[next(cases.len() as u64) as usize].1.clone();
        match next(5) {
            0 => case.top_k = sizes[next(17) as usize],
            1 => case.offsets = sizes[next(17) as usize],
            2 => case.compute = Some(DType::ALL[next(DType::ALL.len() as u64) as usize]),
            _ => {}
        }
        let Ok((mut g, _)) = build(&case) else { continue };
        let ids: Vec<_> = g.tensors().map(|(id, _)| id).collect();
        for _ in 0..next(3) {
            let t = g.get_mut(ids[next(ids.len() as u64) as usize]).unwrap();
            let (axis, size) = (next(4) as usize, sizes[next(17) as usize]);
            match next(4) {
                0 if axis < t.dim.len() => t.dim[axis] = size,
                1 => t.stride = (0..t.dim.len()).map(|_| sizes[next(17) as usize]).collect(),
                2 => t.dtype = Some(DType::ALL[next(DType::ALL.len() as u64) as usize]),
                _ => t.dim.truncate(axis),
            }
        }
        let device = if next(2) == 0 { Device::cpu() } else { Device::describe("sm_90").unwrap() };
        match g.build(&device) {
            Ok(built) => {
                let _ = built.best().map(|p| p.workspace_bytes());
                good += 1;
            }
            Err(e) => drop(bad.insert(e.code)),
        }
    }
    assert!(good > 300 && bad.len() > 10, "{good} good, {bad:?}");
}
