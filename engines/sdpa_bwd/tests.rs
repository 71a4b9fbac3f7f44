//! The SM120 chain as data: routes, workspace, declines, launches.

use super::goldens::sm120;
use super::workspace::{scratch_workspace_bytes, Route};
use super::{config, rules, workspace};
use crate::sdpa::testing::{Case, Order};
use crate::sdpa::{Direction, SdpaFacts};
use crate::{Arg, Base, DType, DeclineCode as Code, Facts, Feature, Knob, Knobs, LaunchPlan, Step, Target};

fn target(cc: u32) -> Target {
    Target::describe(cc).expect("a known device")
}

fn mismatch(facts: &Facts, knobs: &Knobs) -> Option<(Code, String)> {
    super::mismatch(sm120(), facts, knobs, &target(120)).map(|d| (d.code, d.to_string()))
}

fn declined(facts: &Facts) -> Code {
    mismatch(facts, &Knobs::NONE).expect("a decline").0
}

fn bent(case: &Case, bend: impl FnOnce(&mut SdpaFacts)) -> Facts {
    let mut f = case.sdpa();
    bend(&mut f);
    Facts::Sdpa(Box::new(f))
}

fn plan(case: &Case, knobs: &Knobs, target: &Target) -> LaunchPlan {
    let facts = case.facts();
    assert_eq!(super::mismatch(sm120(), &facts, knobs, target), None, "{case:?}");
    (sm120().lower)(&facts, knobs, target).expect("an accepted graph lowers")
}

fn names(plan: &LaunchPlan) -> Vec<&'static str> {
    let name = |s: &Step| match s {
        Step::Kernel(l) => l.name,
        Step::Host(h) => h.name,
    };
    plan.steps.iter().map(name).collect()
}

fn route_of(case: &Case) -> Route {
    let f = case.sdpa();
    rules::choose(sm120(), &f, &Knobs::NONE, &target(120)).expect("an accepted graph").route
}

fn small() -> Case {
    Case { b: 1, h_q: 4, h_kv: 4, s_q: 128, s_kv: 128, d_qk: 64, d_v: 64, ..Case::default() }
}

fn gqa() -> Case {
    Case { h_kv: 2, ..Case::default() }
}

#[test]
fn workspace_vectors_of_facts_6_2() {
    let regions = |case: &Case| {
        let p = plan(case, &Knobs::NONE, &target(120));
        (p.regions.iter().map(|r| (r.name, r.bytes)).collect::<Vec<_>>(), p.workspace_bytes)
    };
    let (r, total) = regions(&gqa());
    assert_eq!(r, [("delta", 16_384), ("dq_accum", 2_097_152), ("dq_sem", 448), ("dk_ws", 1_228_800), ("dv_ws", 1_228_800)]);
    assert_eq!(total, 4_571_648);
    let (r, total) = regions(&Case { deterministic: true, ..gqa() });
    assert_eq!(r, [("delta", 16_384), ("ds_ws", 2_457_600), ("dk_ws", 1_228_800), ("dv_ws", 1_228_800)]);
    assert_eq!(total, 4_931_584);
    let (r, total) = regions(&small());
    assert_eq!(r, [("delta", 2_048), ("dq_accum", 131_072), ("dq_sem", 64)]);
    assert_eq!(total, 133_248);
}

/// Reports #68 and #76: exact bytes of the default plan for 20 shapes. A change here is a change of what users must allocate.
#[test]
fn workspace_table_reports_68_76() {
    const K: i64 = 1024;
    let case = |b, h_q, h_kv, s_q, s_kv, d_qk, d_v, deterministic| Case {
        b,
        h_q,
        h_kv,
        s_q,
        s_kv,
        d_qk,
        d_v,
        deterministic,
        ..Case::default()
    };
    let thd = |c: Case, totals| Case { thd: Some(DType::I32), totals: Some(totals), ..c };
    let table: [(Case, u64); 20] = [
        (case(1, 1, 1, 1, 128, 64, 64, false), 512 + 32_768 + 128),
        (case(2, 8, 2, 200, 300, 128, 128, false), 4_571_648),
        (case(2, 8, 2, 200, 300, 128, 128, true), 4_931_584),
        (case(1, 4, 4, 128, 128, 64, 64, false), 133_248),
        (case(1, 4, 4, 128, 128, 64, 64, true), 133_248),
        (case(1, 32, 32, 8 * K, 8 * K, 128, 128, false), (1 << 20) + (128 << 20) + 32 * 1024),
        (case(1, 32, 32, 8 * K, 8 * K, 128, 128, true), (1 << 20) + (4 << 30)),
        (case(1, 32, 32, 8 * K, 8 * K, 64, 64, true), (1 << 20) + (64 << 20) + 32 * 1024),
        (case(128, 32, 32, 2 * K, 2 * K, 64, 64, false), (32 << 20) + (2 << 30) + (1 << 20)),
        (case(1, 16, 16, 4 * K, 4 * K, 192, 128, false), (256 << 10) + (48 << 20) + 8192),
        (case(1, 16, 16, 4 * K, 4 * K, 192, 128, true), (256 << 10) + (512 << 20)),
        (case(1, 16, 16, 4 * K, 4 * K, 184, 128, true), (256 << 10) + (48 << 20) + 8192),
        (case(1, 2, 2, 256, 256, 256, 256, false), 2048 + (512 << 10) + 128),
        (case(1, 2, 2, 256, 256, 256, 256, true), 2048 + (256 << 10)),
        (case(1, 2, 2, 129, 257, 96, 40, false), 2048 + 262_144 + 128),
        (case(4, 8, 1, 100, 100, 8, 8, false), 16_384 + 524_288 + 512 + 204_800 + 204_800),
        // 32 heads of 8 sequences' 16,384 tokens, each sequence on 128-row blocks of its own.
        (thd(case(8, 32, 32, 2 * K, 2 * K, 128, 128, false), (16 * K, 16 * K)), 32 * 17_408 * 4 * 129 + 8 * 32 * 64 * 4),
        // Report #68: S 131,072, H 32, packed, deterministic. Linear in tokens, far below the 8 GiB of the report.
        (thd(case(1, 32, 32, 128 * K, 128 * K, 128, 128, true), (128 * K, 128 * K)), 32 * 131_200 * 4 * 129 + 32 * 4096 * 4),
        (
            thd(case(1, 32, 8, 128 * K, 128 * K, 64, 64, true), (128 * K, 128 * K)),
            32 * 131_200 * 4 * 65 + 32 * 4096 * 4 + 2 * (512 << 20),
        ),
        (case(65_536, 1, 1, 4, 4, 64, 64, false), (32 << 20) + (2 << 30) + (256 << 10)),
    ];
    let Target::Cuda { smem_optin, .. } = target(120) else { panic!("a CUDA target") };
    for (case, want) in table {
        assert_eq!(scratch_workspace_bytes(&case.facts(), smem_optin, 96 << 30), Some(want), "{case:?}");
        let p = plan(&case, &Knobs::NONE, &target(120));
        assert_eq!(p.workspace_bytes, want);
        let last = p.regions.last().expect("a region");
        assert_eq!((last.offset + last.bytes).next_multiple_of(128), want, "regions add up");
    }
}

#[test]
fn sizes_beyond_64_bits_decline() {
    let huge = Case { b: 1 << 18, h_q: 1 << 12, h_kv: 1 << 12, s_q: 1 << 20, s_kv: 1 << 20, ..Case::default() };
    let (_, text) = mismatch(&huge.facts(), &Knobs::NONE).expect("a decline");
    assert!(text.contains("D07-geometry"), "{text}");
}

#[test]
fn a_workspace_beyond_the_device_declines_with_its_bytes_report_68() {
    let case = Case { b: 64, h_q: 128, h_kv: 128, s_q: 65_536, s_kv: 65_536, ..Case::default() };
    let (code, text) = mismatch(&case.facts(), &Knobs::NONE).expect("a decline");
    assert_eq!(code, Code::Resources);
    assert!(text.contains("workspace="), "{text}");
}

#[test]
fn route_rule_of_facts_6_3() {
    let det = |c: Case| route_of(&Case { deterministic: true, ..c });
    assert_eq!(route_of(&Case::default()), Route::Atomic);
    assert_eq!(det(Case::default()), Route::TwoKernel);
    assert_eq!(det(Case { d_qk: 192, ..Case::default() }), Route::TwoKernel);
    assert_eq!(det(Case { d_qk: 256, d_v: 256, ..Case::default() }), Route::TwoKernel);
    assert_eq!(det(Case { right: Some(0), ..Case::default() }), Route::TwoKernel);
    assert_eq!(det(Case { d_v: 72, ..Case::default() }), Route::TwoKernel, "d_v may pad to 128");
    let relays = [
        ("d 64", Case { d_qk: 64, d_v: 64, ..Case::default() }),
        ("d_qk pads", Case { d_qk: 120, d_v: 120, ..Case::default() }),
        ("192/192", Case { d_qk: 192, d_v: 192, ..Case::default() }),
        ("128/64", Case { d_v: 64, ..Case::default() }),
        ("window", Case { left: Some(63), ..Case::default() }),
        ("lengths", Case { padded: true, ..Case::default() }),
        ("packed", Case { thd: Some(DType::I32), ..Case::default() }),
        ("K not compact", Case { order: Order::Bhsd, ..Case::default() }),
    ];
    for (why, case) in relays {
        assert_eq!(det(case), Route::Relay, "{why}");
    }
}

/// Tiles of 128 keys at d 128 take turns (kernels/PERFORMANCE.md section 8); those that an SM120 has keep the reference's route.
#[test]
fn large_tiles_at_d128_take_turns() {
    let f = Case { deterministic: true, right: Some(0), ..Case::default() }.sdpa();
    let on = |tiles: (i64, i64)| {
        let knobs = Knobs::new(&[(Knob::TileM, tiles.0), (Knob::TileN, tiles.1)]);
        rules::choose(sm120(), &f, &knobs, &target(90)).expect("an accepted graph").route
    };
    assert_eq!((on((64, 128)), on((64, 64))), (Route::Relay, Route::TwoKernel));
}

#[test]
fn an_explicit_query_tile_that_does_not_divide_the_dq_tile_takes_turns() {
    let f = Case { deterministic: true, d_qk: 256, d_v: 256, ..Case::default() }.sdpa();
    let c = config::resolve(256, 256, &Knobs::NONE, 232_448, Route::Atomic).expect("a configuration");
    assert_eq!(workspace::route(&f, &c, Some(32), 1 << 40), Route::TwoKernel);
    assert_eq!(workspace::route(&f, &c, Some(64), 1 << 40), Route::TwoKernel);
    assert_eq!(workspace::route(&f, &c, Some(128), 1 << 40), Route::Relay, "the dQ kernel of d 256 has 64 rows");
}

#[test]
fn a_two_kernel_workspace_beyond_the_device_takes_turns() {
    let f = Case { deterministic: true, ..Case::default() }.sdpa();
    let c = config::resolve(128, 128, &Knobs::NONE, 101_376, Route::Atomic).expect("a configuration");
    let need = 16_384 + 2_457_600;
    assert_eq!(workspace::route(&f, &c, None, need), Route::TwoKernel);
    assert_eq!(workspace::route(&f, &c, None, need - 1), Route::Relay);
}

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
    let d = super::mismatch(&row, &facts, &Knobs::NONE, &target(120)).expect("a decline");
    assert_eq!((d.code, d.fact.as_str()), (Code::Feature, "feature=deterministic"));
}

#[test]
fn declines_of_facts_6_7() {
    let c = Case::default();
    // 1, 4: layout and the 16-byte rule.
    assert_eq!(declined(&bent(&c, |f| f.ports.k.as_mut().expect("K").stride = [0, 128, 1024, 1])), Code::Layout);
    assert_eq!(declined(&bent(&c, |f| f.ports.q.as_mut().expect("Q").stride = [1024 * 204, 1, 1024, 8])), Code::Layout);
    assert_eq!(declined(&bent(&c, |f| f.ports.d_o.as_mut().expect("dO").stride = [205_600, 128, 1028, 1])), Code::Layout);
    assert_eq!(declined(&bent(&c, |f| f.ports.v.as_mut().expect("V").alignment = 8)), Code::Layout);
    // 2, 3: shapes are the analyzer's; head dims here.
    assert_eq!(declined(&bent(&c, |f| f.invalid = Some("shapes".into()))), Code::Invalid);
    for (d_qk, d_v) in [(64, 128), (264, 264), (260, 128), (12, 12), (128, 20)] {
        assert_eq!(declined(&Case { d_qk, d_v, ..Case::default() }.facts()), Code::HeadDim, "{d_qk}/{d_v}");
    }
    // 5: Stats.
    assert_eq!(declined(&bent(&c, |f| f.ports.stats.as_mut().expect("Stats").dtype = DType::BF16)), Code::Stats);
    assert_eq!(declined(&bent(&c, |f| f.ports.stats.as_mut().expect("Stats").dim[1] = 4)), Code::Stats);
    assert_eq!(declined(&bent(&c, |f| f.ports.stats.as_mut().expect("Stats").stride = [0, 200, 1, 1])), Code::Stats);
    // 6: element types.
    assert_eq!(declined(&Case { dtype: DType::F32, ..Case::default() }.facts()), Code::DType);
    assert_eq!(declined(&bent(&c, |f| f.ports.dv.as_mut().expect("dV").dtype = DType::F16)), Code::DType);
    // 7: tiles.
    for (knob, value) in [(Knob::TileM, 16), (Knob::TileM, 0), (Knob::TileN, 32), (Knob::TileN, 256), (Knob::SplitKv, 1)] {
        let (code, text) = mismatch(&c.facts(), &Knobs::new(&[(knob, value)])).expect("a decline");
        assert_eq!(code, Code::Knob, "{text}");
    }
    // 8: masks and lengths.
    assert_eq!(declined(&Case { left: Some(7), bottom_right: true, ..Case::default() }.facts()), Code::Feature);
    assert_eq!(declined(&bent(&Case { padded: true, ..c.clone() }, |f| f.ports.seq_len_kv = None)), Code::Lengths);
    // 9: sink.
    assert_eq!(declined(&Case { dsink: true, ..Case::default() }.facts()), Code::Sink);
    let sunk = Case { sink: true, dsink: true, ..Case::default() };
    assert_eq!(declined(&bent(&sunk, |f| f.ports.sink.as_mut().expect("sink").dtype = DType::BF16)), Code::Sink);
    assert_eq!(declined(&bent(&sunk, |f| f.ports.dsink.as_mut().expect("dSink").stride[1] = 2)), Code::Sink);
    // 10, 11: bias.
    assert_eq!(declined(&Case { dbias: Some(DType::F32), ..Case::default() }.facts()), Code::Bias);
    let biased = Case { bias: Some((DType::BF16, 2)), dbias: Some(DType::F32), ..Case::default() };
    assert_eq!(declined(&bent(&biased, |f| f.ports.bias.as_mut().expect("bias").dim[1] = 1)), Code::Bias);
    assert_eq!(declined(&bent(&biased, |f| f.ports.bias.as_mut().expect("bias").stride[2] = 304)), Code::Bias);
    assert_eq!(declined(&bent(&biased, |f| f.ports.bias.as_mut().expect("bias").dtype = DType::F16)), Code::Bias);
    assert_eq!(declined(&bent(&biased, |f| f.ports.dbias.as_mut().expect("dBias").dim[0] = 1)), Code::Bias);
    // 12: devices.
    for cc in [80, 86, 89] {
        let d = super::mismatch(sm120(), &c.facts(), &Knobs::NONE, &target(cc)).expect("a decline");
        assert_eq!(d.code, Code::Arch);
    }
    assert_eq!(super::mismatch(sm120(), &c.facts(), &Knobs::NONE, &Target::Cpu).expect("a decline").code, Code::Arch);
    // Row-level additions of facts §5.11.
    for case in [
        Case { dropout: true, ..Case::default() },
        Case { alibi: true, ..Case::default() },
        Case { scale: 0.0, ..Case::default() },
        Case { paged: true, ..Case::default() },
    ] {
        assert_eq!(declined(&case.facts()), Code::Feature, "{case:?}");
    }
}

#[test]
fn declines_of_packed_declarations() {
    let c = Case { thd: Some(DType::I32), ..Case::default() };
    assert_eq!(mismatch(&c.facts(), &Knobs::NONE), None);
    assert_eq!(mismatch(&Case { token_major_stats: true, thd: Some(DType::I64), ..c.clone() }.facts(), &Knobs::NONE), None);
    // Rule S1: dense-padded Stats next to packed operands are refused, by stride and not by a flag.
    assert_eq!(declined(&bent(&c, |f| f.ports.stats.as_mut().expect("Stats").stride = [1600, 200, 2, 1])), Code::Stats);
    assert_eq!(declined(&bent(&c, |f| f.ports.stats.as_mut().expect("Stats").ragged = None)), Code::Stats);
    assert_eq!(declined(&bent(&c, |f| f.ports.stats.as_mut().expect("Stats").stride[1] = 399)), Code::Stats);
    assert_eq!(declined(&bent(&c, |f| f.ports.dq.as_mut().expect("dQ").ragged = None)), Code::Lengths);
    assert_eq!(
        declined(&bent(&c, |f| f.ports.v.as_mut().expect("V").ragged.as_mut().expect("packed").dtype = DType::I64)),
        Code::Lengths
    );
    assert_eq!(declined(&bent(&c, |f| f.max_total_seq_len_q = Some(0))), Code::Lengths);
    assert_eq!(declined(&bent(&c, |f| f.ports.seq_len_q = None)), Code::Lengths);
    assert_eq!(declined(&Case { bias: Some((DType::BF16, 2)), ..c }.facts()), Code::Bias);
}

#[test]
fn reasons_name_the_value_and_what_is_served() {
    let text = |facts: &Facts, knobs: &Knobs| mismatch(facts, knobs).expect("a decline").1;
    let c = Case::default();
    assert_eq!(
        text(&Case { d_qk: 264, ..Case::default() }.facts(), &Knobs::NONE),
        "sdpa_bwd_sm120: head dims are 264/128; this row serves multiples of 8 up to 32, 64, 128, 192/128, 192, 256 with d_qk at least d_v \
         [D06-head-dim d_qk=264 d_v=128]"
    );
    assert_eq!(
        text(&c.facts(), &Knobs::new(&[(Knob::TileM, 16)])),
        "sdpa_bwd_sm120: TILE_M is 16; this row serves 32, 64, 128 [D04-knob TILE_M=16]"
    );
    assert_eq!(
        text(&Case { dropout: true, ..Case::default() }.facts(), &Knobs::NONE),
        "sdpa_bwd_sm120: the graph uses dropout, which this row does not serve [D09-feature feature=dropout]"
    );
    assert_eq!(
        text(&bent(&c, |f| f.ports.d_o.as_mut().expect("dO").stride = [205_600, 128, 1028, 1]), &Knobs::NONE),
        "sdpa_bwd_sm120: dO has strides [205600, 128, 1028, 1] of bf16 and base alignment 16; this row serves strides and bases that are \
         multiples of 16 bytes [D08-layout dO.stride=[205600, 128, 1028, 1] alignment=16]"
    );
}

/// Several faults at once: the first in the documented order is reported, whatever the others are.
#[test]
fn mismatch_order() {
    let mut f = Case { dropout: true, d_qk: 260, dbias: Some(DType::F32), dsink: true, ..Case::default() }.sdpa();
    f.invalid = Some("x".into());
    f.direction = Direction::Forward;
    f.dtype = DType::F32;
    f.ports.v.as_mut().expect("V").stride[3] = 2;
    f.ports.seq_len_q = Some(crate::sdpa::testing::port(20, "SEQ_LEN_Q", [2, 1, 1, 1], DType::I32));
    f.ports.cu_seq_len_q = f.ports.seq_len_q.clone();
    f.ports.stats.as_mut().expect("Stats").dim[2] = 7;
    let knobs = Knobs::new(&[(Knob::TileM, 5)]);
    let mut seen = Vec::new();
    let (mut knobs, mut device) = (knobs, target(80));
    for _ in 0..16 {
        let facts = Facts::Sdpa(Box::new(f.clone()));
        let Some(d) = super::mismatch(sm120(), &facts, &knobs, &device) else { break };
        seen.push(d.code);
        match d.code {
            Code::Invalid => f.invalid = None,
            Code::Operation => f.direction = Direction::Backward,
            Code::Arch => device = target(120),
            Code::Knob => knobs = Knobs::NONE,
            Code::DType => f.dtype = DType::BF16,
            Code::HeadDim => f.d_qk = 128,
            Code::Layout => f.ports = Case { dbias: Some(DType::F32), dsink: true, ..Case::default() }.sdpa().ports,
            Code::Feature => {
                f.features = f.features.without(Feature::Dropout);
                f.ports.cu_seq_len_q = f.ports.seq_len_q.clone();
                f.ports.seq_len_q = f.ports.q.clone();
                f.ports.cu_seq_len_q = f.ports.q.clone();
                f.ports.stats.as_mut().expect("Stats").dim[2] = 7;
            }
            Code::Lengths => (f.ports.seq_len_q, f.ports.cu_seq_len_q) = (None, None),
            Code::Stats => f.ports.stats.as_mut().expect("Stats").dim[2] = f.s_q,
            Code::Bias => f.ports.dbias = None,
            Code::Sink => f = Case { b: 1, h_q: 1, h_kv: 1, s_q: 1 << 29, ..Case::default() }.sdpa(),
            Code::Geometry => f = Case { b: 64, h_q: 128, h_kv: 128, s_q: 65_536, s_kv: 65_536, ..Case::default() }.sdpa(),
            Code::Resources => break,
            Code::Switch | Code::WorkspaceLimit | Code::Determinism => panic!("{d}"),
        }
    }
    let order = [
        Code::Invalid,
        Code::Operation,
        Code::Arch,
        Code::Knob,
        Code::DType,
        Code::HeadDim,
        Code::Layout,
        Code::Feature,
        Code::Lengths,
        Code::Stats,
        Code::Bias,
        Code::Sink,
        Code::Geometry,
        Code::Resources,
    ];
    assert_eq!(seen, order);
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
        if super::mismatch(sm120(), &facts, &Knobs::NONE, &target(120)).is_some() {
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
