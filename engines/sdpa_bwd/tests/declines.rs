//! What the row declines, in which order and in which words.

use super::*;

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
        let d = super::super::mismatch(sm120(), &c.facts(), &Knobs::NONE, &target(cc)).expect("a decline");
        assert_eq!(d.code, Code::Arch);
    }
    assert_eq!(super::super::mismatch(sm120(), &c.facts(), &Knobs::NONE, &Target::Cpu).expect("a decline").code, Code::Arch);
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
        let Some(d) = super::super::mismatch(sm120(), &facts, &knobs, &device) else { break };
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
