//! The rules of facts §9.2 as coded errors, inference, and the facts of good graphs.

use crate::support::{build, nvfp4, served, Case, Handles, B};
use frostgraph::analyze::analyze;
use frostgraph::engines::grouped_gemm::Weights;
use frostgraph::engines::{Facts, Feature, FeatureSet, GroupedGemmFacts};
use frostgraph::graph::rules::GEMM_RULES;
use frostgraph::graph::{BMajor, DsreluFormula, Graph, OutPort};
use frostgraph::{DType, Device, ErrorCode};

fn facts(case: &Case) -> GroupedGemmFacts {
    let frozen = build(case).unwrap().0.freeze().unwrap_or_else(|e| panic!("{e}"));
    match analyze(&frozen, 0) {
        Facts::GroupedGemm(f) => *f,
        Facts::Sdpa(_) | Facts::Moe(_) => panic!("a grouped product"),
    }
}

/// The error of a case whose graph is bent after it was built.
fn refused(case: &Case, bend: impl FnOnce(&mut Graph, &Handles)) -> (ErrorCode, String) {
    let (mut g, h) = build(case).unwrap();
    bend(&mut g, &h);
    let e = g.freeze().expect_err("a rule");
    (e.code, e.to_string())
}

fn code(case: &Case, bend: impl FnOnce(&mut Graph, &Handles)) -> ErrorCode {
    refused(case, bend).0
}

fn none(_: &mut Graph, _: &Handles) {}

#[test]
fn every_rule_of_facts_9_2_has_its_code() {
    let d = Case::default;
    let with = |edit: &dyn Fn(&mut Case)| {
        let mut c = d();
        edit(&mut c);
        c
    };
    let fp4 = |edit: &dyn Fn(&mut Case)| {
        let mut c = nvfp4();
        edit(&mut c);
        c
    };
    let found = [
        (1, code(&with(&|c| c.norm_const = false), none)),
        (2, code(&d(), |g, h| g.get_mut(h.b).unwrap().dim[1] = 64)),
        (3, code(&d(), |g, h| g.get_mut(h.c).unwrap().dim[1] = 128)),
        (4, code(&d(), |g, h| g.get_mut(h.a).unwrap().stride = vec![1, 512, 512])),
        (5, code(&d(), |g, h| g.get_mut(h.b).unwrap().dtype = Some(DType::F8E5M2))),
        (6, code(&d(), |g, h| g.get_mut(h.sfa).unwrap().dtype = Some(DType::F8E5M2))),
        (7, code(&with(&|c| c.sf = DType::F8E4M3), none)),
        (8, code(&d(), |g, h| g.get_mut(h.prob).unwrap().dtype = Some(DType::BF16))),
        (9, code(&d(), |g, h| g.get_mut(h.c).unwrap().dtype = Some(DType::F64))),
        (10, code(&d(), |g, h| g.get_mut(h.out.d_col).unwrap().dtype = Some(DType::F8E5M2))),
        (
            11,
            code(&fp4(&|c| (c.ab, c.sf, c.attrs.sf_vec_size) = (DType::F8E4M3, DType::F8E8M0, 32)), |g, h| {
                g.get_mut(h.out.d_row).unwrap().dtype = Some(DType::F8E4M3);
                g.get_mut(h.out.d_col).unwrap().dtype = Some(DType::F8E4M3);
            }),
        ),
        (
            12,
            code(&fp4(&|c| (c.norm_const, c.attrs.d_dtype) = (true, DType::F8E4M3)), |g, h| {
                g.get_mut(h.out.d_row).unwrap().dtype = Some(DType::BF16);
                g.get_mut(h.out.d_col).unwrap().dtype = Some(DType::BF16);
            }),
        ),
        (13, code(&with(&|c| c.d_srelu = true), |g, h| drop_output(g, h, OutPort::SfdColDSrelu))),
        (14, code(&fp4(&|c| c.attrs.b_major = BMajor::N), none)),
        (19, code(&with(&|c| c.attrs.m_aligned = 128), none)),
        (20, code(&with(&|c| c.n = 168), none)),
        (21, code(&with(&|c| c.experts = 1025), none)),
    ];
    let wanted: Vec<(u32, ErrorCode)> = GEMM_RULES.iter().map(|r| (r.number, r.code)).collect();
    assert_eq!(found.to_vec(), wanted, "one graph for each rule, in order");
    for (number, code) in wanted {
        assert_eq!(code.code(), format!("FG12{number:02}"));
    }
}

fn drop_output(g: &mut Graph, _: &Handles, port: OutPort) {
    let mut fresh = Graph::new(g.options().clone());
    let tensors: Vec<_> = g.tensors().map(|(_, t)| t.clone()).collect();
    for t in tensors {
        fresh.tensor(t);
    }
    for node in g.nodes() {
        let mut node = node.clone();
        let gone = node.outputs.remove(&port).unwrap();
        fresh.get_mut(gone).unwrap().is_virtual = false;
        fresh.get_mut(gone).unwrap().dim = vec![1];
        fresh.node(node);
    }
    *g = fresh;
}

#[test]
fn messages_say_what_was_found_and_what_is_allowed() {
    let text = |case: &Case| refused(case, none).1;
    let sf = Case { sf: DType::F8E4M3, ..Case::default() };
    assert_eq!(
        text(&sf),
        "FG1207 at node 'grouped_gemm_dsrelu': sf_vec_size 32 with E4M3 scales; expected 16 with E4M3 scales (rule 7 of facts §9.2)"
    );
    let mut narrow = Case::default();
    narrow.attrs.d_dtype = DType::BF16;
    narrow.norm_const = false;
    assert_eq!(
        text(&narrow),
        "FG1210 at node 'grouped_gemm_dsrelu': D_row 'grouped_gemm_dsrelu::D_row' of type BFLOAT16; expected FP8_E4M3 or FP8_E5M2 with \
         FP8 inputs (rule 10 of facts §9.2)"
    );
    let (code, wrong) = refused(&Case::default(), |g, h| g.get_mut(h.sfa).unwrap().dim = vec![1, 4, 1, 32, 4, 5]);
    assert_eq!(code, ErrorCode::GemmShape);
    assert!(wrong.contains("extents [32, 4, 4, 4, 1, 1] or, in memory order, [1, 4, 1, 32, 4, 4]"), "{wrong}");
    for (scale, ok) in [(0.0, false), (-1.0, false), (f32::NAN, false), (f32::INFINITY, false), (0.5, true)] {
        let mut c = Case::default();
        c.attrs.tanh_clamp_scale = Some(scale);
        let result = build(&c).unwrap().0.freeze();
        assert_eq!(result.as_ref().err().map(|e| e.code), (!ok).then_some(ErrorCode::BadAttribute), "{scale}");
    }
    let mut pool = Case { b: B::Pool, ..Case::default() };
    pool.attrs.n = Some(0);
    assert_eq!(code_of(&pool), ErrorCode::GemmShape);
    for vec in [0, 8, 64] {
        let mut c = Case::default();
        c.attrs.sf_vec_size = vec;
        assert_eq!(code_of(&c), if vec == 0 { ErrorCode::GemmScaleBlock } else { code_of(&c) });
        assert!([ErrorCode::GemmScaleBlock, ErrorCode::GemmShape].contains(&code_of(&c)), "{vec}");
    }
}

fn code_of(case: &Case) -> ErrorCode {
    code(case, none)
}

#[test]
fn missing_and_foreign_operands() {
    let bare = |drop: &dyn Fn(&mut frostgraph::graph::Node)| {
        let (g, _) = build(&Case::default()).unwrap();
        let mut fresh = Graph::new(g.options().clone());
        g.tensors().for_each(|(_, t)| {
            let mut t = t.clone();
            t.is_virtual = false;
            if t.dim.is_empty() {
                t.dim = vec![1];
            }
            fresh.tensor(t);
        });
        let mut node = g.nodes()[0].clone();
        drop(&mut node);
        fresh.node(node);
        fresh.freeze().expect_err("refused").to_string()
    };
    use frostgraph::graph::InPort as I;
    for port in [I::A, I::B, I::C, I::Sfa, I::Sfb, I::PaddedOffsets, I::Alpha, I::Prob] {
        let e = bare(&|n| {
            n.inputs.remove(&port);
        });
        assert!(e.starts_with("FG1001") && e.contains(&format!("no {}", port.json())), "{e}");
    }
    for port in [OutPort::DRow, OutPort::DCol, OutPort::DProb] {
        let e = bare(&|n| {
            n.outputs.remove(&port);
        });
        assert!(e.starts_with("FG1001") && e.contains(&format!("no {}", port.json())), "{e}");
    }
    let e = bare(&|n| {
        n.inputs.insert(I::Bias, n.inputs[&I::A]);
    });
    assert!(e.starts_with("FG1108") && e.contains("Bias on GROUPED_GEMM_DSRELU"), "{e}");
}

#[test]
fn open_outputs_are_inferred() {
    let case = Case { dbias: true, d_srelu: true, status: true, ..Case::default() };
    let (g, h) = build(&case).unwrap();
    let f = g.freeze().unwrap();
    let shape = |id| {
        let t = f.tensor(id);
        (t.dim.clone(), t.stride.clone(), t.dtype.unwrap())
    };
    assert_eq!(shape(h.out.d_row), (vec![512, 160, 1], vec![160, 1, 1], DType::F8E4M3));
    assert_eq!(shape(h.out.dprob), (vec![512, 1, 1], vec![1, 1, 1], DType::F32));
    assert_eq!(shape(h.out.dbias.unwrap()), (vec![3, 160, 1], vec![160, 1, 1], DType::BF16));
    assert_eq!(shape(h.out.status.unwrap()), (vec![1], vec![1], DType::I32));
    // 5 blocks of 32 columns are two atoms: (32, 4, M/128, 4, 2, 1).
    assert_eq!(shape(h.out.sfd_row.unwrap()), (vec![32, 4, 4, 4, 2, 1], vec![16, 4, 1024, 1, 512, 4096], DType::F8E8M0));
    assert_eq!(shape(h.out.sfd_col.unwrap()).0, [32, 4, 2, 4, 4, 1]);
    assert_eq!(f.tensor(h.b).stride, [96, 1, 160 * 96], "an open dense B is k-major");
}

/// The view of the specification and the memory order are the same scales.
#[test]
fn scales_in_either_form() {
    let (mut g, h) = build(&Case::default()).unwrap();
    let t = g.get_mut(h.sfa).unwrap();
    assert_eq!(t.dim, [1, 4, 1, 32, 4, 4]);
    (t.dim, t.stride) = (vec![32, 4, 4, 4, 1, 1], Vec::new());
    assert_eq!(g.freeze().unwrap().tensor(h.sfa).stride, [16, 4, 512, 1, 512, 2048]);
    g.get_mut(h.sfa).unwrap().stride = vec![16, 4, 512, 1, 256, 2048];
    assert!(g.freeze().is_ok(), "one atom along the blocks: its stride does not matter");
    g.get_mut(h.sfa).unwrap().stride = vec![16, 4, 500, 1, 512, 2048];
    assert_eq!(g.freeze().unwrap_err().code, ErrorCode::GemmLayout);
}

#[test]
fn facts_of_good_graphs() {
    let f = facts(&Case::default());
    assert_eq!((f.m, f.n, f.k, f.experts, f.sf_vec), (512, 160, 96, 3, 32));
    assert_eq!((f.ab, f.sf, f.c, f.d), (DType::F8E4M3, DType::F8E8M0, DType::BF16, DType::F8E4M3));
    assert_eq!((f.weights, f.b_n_major, f.quantised), (Weights::Dense, false, true));
    assert_eq!(f.features, FeatureSet::of(&[Feature::OutputScales]));
    assert_eq!(f.formula, DsreluFormula::PreactivationG, "the specification's reading is the default");

    let packed = facts(&Case { ab: DType::U8, ..nvfp4() });
    assert_eq!((packed.k, packed.ab), (96, DType::F4E2M1), "bytes hold two values");
    assert_eq!(packed.features, FeatureSet::of(&[Feature::Amax]));

    let feature = |edit: &dyn Fn(&mut Case)| {
        let mut c = Case::default();
        edit(&mut c);
        facts(&c).features.minus(FeatureSet::of(&[Feature::OutputScales]))
    };
    let only = |f| FeatureSet::of(&[f]);
    assert_eq!(feature(&|c| c.attrs.deterministic = true), only(Feature::Deterministic));
    assert_eq!(feature(&|c| c.dbias = true), only(Feature::DBias));
    assert_eq!(feature(&|c| c.attrs.discrete_col_sfd = true), only(Feature::DiscreteColSfd));
    assert_eq!(feature(&|c| c.d_srelu = true), only(Feature::DSrelu));
    assert_eq!(feature(&|c| c.amax = true), only(Feature::Amax), "beside generated scales too");
    assert_eq!(feature(&|c| c.attrs.tanh_clamp_scale = Some(1.0)), only(Feature::TanhClamp));
    assert_eq!(feature(&|c| c.attrs.formula = DsreluFormula::PreactivationC), only(Feature::PreactivationC));
    assert_eq!(feature(&|c| c.b = B::Pool), only(Feature::PooledWeights));
    assert_eq!(feature(&|c| c.attrs.b_major = BMajor::N), only(Feature::NMajorB));
    assert_eq!(feature(&|c| c.compute = Some(DType::F64)), only(Feature::F64Accumulate));
    assert_eq!(feature(&|c| c.status = true), only(Feature::StatusWord));
    // Without generated scales the attribute has no effect (rule 12).
    let mut idle = nvfp4();
    idle.attrs.discrete_col_sfd = true;
    assert!(!facts(&idle).discrete_col_sfd && !facts(&idle).features.has(Feature::DiscreteColSfd));
}

/// Bent extents, strides, types and attributes end in an error or in facts and a plan, never in a panic; offsets are bounded before sizes
/// are multiplied.
#[test]
fn bent_graphs_never_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n
    };
    let sizes = [0, 1, 2, 4, 16, 32, 64, 96, 128, 256, 512, 1 << 20, 1 << 31, 1 << 40, 1 << 62, i64::MAX, -1, i64::MIN];
    let (cases, mut good, mut bad) = (served(), 0, std::collections::BTreeSet::new());
    for round in 0..4000 {
        let mut case = cases[next(cases.len() as u64) as usize].1.clone();
        match next(6) {
            0 => case.attrs.n = Some(sizes[next(18) as usize]),
            1 => case.attrs.sf_vec_size = sizes[next(18) as usize].max(1),
            2 => case.compute = Some(DType::ALL[next(DType::ALL.len() as u64) as usize]),
            3 => case.k = 1 << (5 + next(40)),
            _ => {}
        }
        let Ok((mut g, _)) = build(&case) else { continue };
        let ids: Vec<_> = g.tensors().map(|(id, _)| id).collect();
        for _ in 0..next(3) {
            let t = g.get_mut(ids[next(ids.len() as u64) as usize]).unwrap();
            let (axis, size) = (next(6) as usize, sizes[next(18) as usize]);
            match next(4) {
                0 if axis < t.dim.len() => t.dim[axis] = size,
                1 => t.stride = (0..t.dim.len()).map(|_| sizes[next(18) as usize]).collect(),
                2 => t.dtype = Some(DType::ALL[next(DType::ALL.len() as u64) as usize]),
                _ => t.dim.truncate(axis),
            }
        }
        match g.build(&Device::cpu()) {
            Ok(built) => {
                let _ = built.best().map(|p| p.workspace_bytes());
                good += 1;
            }
            Err(e) => drop(bad.insert(e.code)),
        }
        let _ = round;
    }
    assert!(good > 300 && bad.len() > 10, "{good} good, {bad:?}");
}

#[test]
fn plans_and_declines() {
    for (name, case) in served() {
        let (g, _) = build(&case).unwrap();
        let built = g.build(&Device::cpu()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let plan = built.best().unwrap();
        assert_eq!(plan.to_string(), "grouped_gemm_dsrelu_cpu", "{name}");
        assert!(plan.is_deterministic(), "{name}");
    }
    // Raw addresses leave nothing for the host to read.
    let (g, h) = build(&Case { b: B::Addresses, ..Case::default() }).unwrap();
    let _ = h.offsets;
    let e = g.build(&Device::cpu()).expect_err("no engine");
    assert_eq!(e.code, ErrorCode::NoPlan);
    assert!(e.to_string().contains("D09-feature feature=weight addresses"), "{e}");
}
