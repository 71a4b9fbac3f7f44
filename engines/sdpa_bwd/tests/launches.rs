//! The chain: order, grids, switches, strides.

use super::*;

#[test]
fn launch_order_of_facts_6_4() {
    let all = Case { bias: Some((DType::F32, 2)), dbias: Some(DType::BF16), sink: true, dsink: true, ..gqa() };
    let order = |c: &Case| names(&plan(c, &Knobs::NONE, &target(120)));
    assert_eq!(order(&Case::default()), ["dot", "main", "cvt"]);
    assert_eq!(order(&gqa()), ["dot", "main", "reduce", "cvt"]);
    assert_eq!(order(&all), ["zero", "dot", "main", "reduce", "cvt", "dbias_cvt", "dsink"]);
    assert_eq!(
        order(&Case { deterministic: true, ..all.clone() }),
        ["zero", "dot", "main", "dq2k", "reduce", "dbias_cvt", "dsink"]
    );
    let in_place = Case { bias: Some((DType::F32, 2)), dbias: Some(DType::F32), ..Case::default() };
    assert_eq!(order(&in_place), ["zero", "dot", "main", "cvt"], "an fp32 dBias is its own accumulator");
}

#[test]
fn deterministic_dbias_of_a_broadcast_bias_sums_planes_in_a_second_pass() {
    for out in [DType::F32, DType::BF16] {
        let case = Case { bias: Some((DType::F32, 1)), dbias: Some(out), deterministic: true, ..Case::default() };
        let p = plan(&case, &Knobs::NONE, &target(120));
        let plane = 8 * 200 * 300u64;
        let accum = p.regions.iter().find(|r| r.name == "dbias_accum").expect("one plane a batch");
        assert_eq!(accum.bytes, 2 * plane * 4);
        let cvt = p.steps.iter().find_map(|s| match s {
            Step::Kernel(l) if l.name == "dbias_cvt" => Some(l),
            Step::Kernel(_) | Step::Host(_) => None,
        });
        let cvt = cvt.expect("the second pass");
        assert_eq!(cvt.args[2..], [Arg::I64(plane as i64), Arg::I64(plane as i64), Arg::I32(2)]);
        assert_eq!(cvt.kernel.defines, [("FG_BF16", 1), ("FG_OUT_F32", i64::from(out == DType::F32))]);
    }
}

/// Report #66: determinism is never dropped on the way to the kernel, on any route.
#[test]
fn deterministic_reaches_the_kernel_report_66() {
    let base = [
        Case::default(),
        Case { thd: Some(DType::I32), ..Case::default() },
        Case { bias: Some((DType::BF16, 2)), ..Case::default() },
        Case { sink: true, dsink: true, ..Case::default() },
        gqa(),
        small(),
    ];
    for case in base {
        let det = |c: &Case| {
            let p = plan(c, &Knobs::NONE, &target(120));
            p.steps.iter().find_map(|s| match s {
                Step::Kernel(l) if l.name == "main" => l.kernel.defines.iter().find(|d| d.0 == "FG_DET").map(|d| d.1),
                Step::Kernel(_) | Step::Host(_) => None,
            })
        };
        assert_eq!(det(&case), Some(0));
        assert!(det(&Case { deterministic: true, ..case }) > Some(0));
    }
    // A row without the feature is out: take it away from the capabilities.
    let mut row = *sm120();
    let crate::Caps::Sdpa(caps) = &mut row.caps else { panic!("an attention row") };
    caps.features = caps.features.without(Feature::Deterministic);
    let facts = Case { deterministic: true, ..Case::default() }.facts();
    let d = super::super::mismatch(&row, &facts, &Knobs::NONE, &target(120)).expect("a decline");
    assert_eq!((d.code, d.fact.as_str()), (Code::Feature, "feature=deterministic"));
}

#[test]
fn grids_are_folded_report_28() {
    for (b, h) in [(65_535, 1), (65_536, 1), (65_537, 1), (1, 65_535), (1, 65_536), (70_000, 1)] {
        let case = Case { b, h_q: h, h_kv: h, s_q: 4, s_kv: 4, d_qk: 64, d_v: 64, ..Case::default() };
        let p = plan(&case, &Knobs::NONE, &target(90));
        for s in &p.steps {
            let Step::Kernel(l) = s else { panic!("a kernel") };
            assert_eq!(l.grid[1..], [1, 1], "{}", l.name);
            assert_eq!(i64::from(l.grid[0]), b * h, "{}: one block a (batch, head) of this shape", l.name);
        }
    }
    let too_many = Case { b: 1 << 28, h_q: 16, h_kv: 16, s_q: 4, s_kv: 4, d_qk: 8, d_v: 8, ..Case::default() };
    assert_eq!(declined(&too_many.facts()), Code::Geometry);
}

/// Every 64-bit integer parameter of a plan with its name.
fn strides_in(plan: &LaunchPlan) -> Vec<(&'static str, i64)> {
    let of = |s: &Step| match s {
        Step::Kernel(l) => l.names.iter().zip(&l.args).map(|(n, a)| (*n, a.clone())).collect::<Vec<_>>(),
        Step::Host(_) => Vec::new(),
    };
    plan.steps
        .iter()
        .flat_map(of)
        .filter_map(|(n, a)| match a {
            Arg::I64(v) => Some((n, v)),
            Arg::Ptr(_) | Arg::Null | Arg::I32(_) | Arg::F32(_) | Arg::Map(_) | Arg::NoMap => None,
        })
        .collect()
}

/// Whatever the declared layout, the plan carries it or the row declines.
#[test]
fn declared_strides_reach_the_kernels_or_decline_report_40() {
    let mut random = crate::sdpa::testing::Random::new(40);
    let (mut accepted, mut declined) = (0, 0);
    for _ in 0..200 {
        let order = [Order::Bshd, Order::Bhsd, Order::Sbhd][random.below(3)];
        let case = Case { order, s_q: 40, s_kv: 24, d_qk: 64, d_v: 64, ..Case::default() };
        let mut f = case.sdpa();
        let which = random.below(8);
        let p = &mut f.ports;
        let ports = [&mut p.q, &mut p.k, &mut p.v, &mut p.o, &mut p.d_o, &mut p.dq, &mut p.dk, &mut p.dv];
        let port = ports.into_iter().nth(which).expect("eight operands").as_mut().expect("present");
        // Each level of the order leaves a gap after the one inside it: 0 to 3 units of 16 bytes, sometimes of less.
        let unit = [8, 8, 8, 4, 1][random.below(5)];
        let inner: [usize; 3] = match order {
            Order::Bshd => [1, 2, 0],
            Order::Bhsd => [2, 1, 0],
            Order::Sbhd => [1, 0, 2],
        };
        let mut span = port.dim[3];
        for axis in inner {
            port.stride[axis] = span + unit * random.below(4) as i64;
            span = port.stride[axis] * port.dim[axis];
        }
        if random.below(8) == 0 {
            port.stride[3] = 2;
        }
        let (uid, stride) = (port.uid, port.stride);
        let facts = Facts::Sdpa(Box::new(f));
        if super::super::mismatch(sm120(), &facts, &Knobs::NONE, &target(120)).is_some() {
            declined += 1;
            continue;
        }
        accepted += 1;
        assert!(stride[3] == 1 && stride[..3].iter().all(|s| s % 8 == 0), "{stride:?}");
        let p = (sm120().lower)(&facts, &Knobs::NONE, &target(120)).expect("lowers");
        let bytes = [stride[2] as u64 * 2, stride[1] as u64 * 2, stride[0] as u64 * 2];
        let mapped = p.steps.iter().any(|s| match s {
            Step::Kernel(l) => l.args.iter().any(|a| match a {
                Arg::Map(m) => m.base == Base::Tensor(uid) && m.stride_bytes == bytes,
                Arg::Ptr(_) | Arg::Null | Arg::I32(_) | Arg::I64(_) | Arg::F32(_) | Arg::NoMap => false,
            }),
            Step::Host(_) => false,
        });
        let prefix = ["q", "k", "v", "o", "do", "dq", "dk", "dv"][which];
        let given = strides_in(&p);
        let passed = ["sb", "sh", "ss"]
            .iter()
            .zip(stride)
            .all(|(axis, s)| given.iter().any(|(n, v)| *n == format!("{prefix}_{axis}") && *v == s));
        assert!(mapped || passed, "operand {prefix} with strides {stride:?}");
    }
    assert!(accepted > 50 && declined > 30, "{accepted} accepted, {declined} declined");
}
