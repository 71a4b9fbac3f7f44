//! Every `invalid` reason of facts §3.5, on frozen graphs edited after freezing so that reasons behind a validation rule are reached too.

mod graphs;

use self::graphs::*;
use crate::analyze::analyze;
use crate::graph::{AttnScale, FrozenGraph, Graph, GraphOptions, InPort, Op, OutPort, Sdpa, Tensor};
use crate::DType;
use frostgraph_engines::Facts;

fn reason(f: &FrozenGraph) -> Option<String> {
    let Facts::Sdpa(f) = analyze(f, 0) else { panic!("attention") };
    f.invalid
}

#[test]
fn the_base_graphs_are_well_formed() {
    for f in [forward(), paged(), backward(), thd()] {
        assert_eq!(reason(&f), None);
    }
}

/// Base graph, edit, reason.
type Case = (fn() -> FrozenGraph, fn(&mut FrozenGraph), &'static str);

fn check(cases: &[Case]) {
    for (base, edit, expected) in cases {
        let mut f = base();
        edit(&mut f);
        assert_eq!(reason(&f).as_deref(), Some(*expected));
    }
}

#[test]
fn ports() {
    check(&[
        (forward, |f| remove_input(f, InPort::Q), "sdpa: Q is missing"),
        (forward, |f| remove_input(f, InPort::K), "sdpa: K is missing"),
        (forward, |f| remove_input(f, InPort::V), "sdpa: V is missing"),
        (forward, |f| remove_output(f, OutPort::O), "sdpa: O is missing"),
        (backward, |f| remove_input(f, InPort::O), "sdpa_backward: O is missing"),
        (backward, |f| remove_input(f, InPort::DO), "sdpa_backward: dO is missing"),
        (backward, |f| remove_output(f, OutPort::DQ), "sdpa_backward: dQ is missing"),
        (backward, |f| remove_output(f, OutPort::DK), "sdpa_backward: dK is missing"),
        (backward, |f| remove_output(f, OutPort::DV), "sdpa_backward: dV is missing"),
        (
            forward,
            |f| {
                input(f, InPort::Q).dim = vec![2, 4, 16];
                input(f, InPort::Q).stride = vec![64, 16, 1];
            },
            "sdpa: Q has extents [2, 4, 16] and strides [64, 16, 1], not rank 4",
        ),
        (
            backward,
            |f| input(f, InPort::DO).dim.push(1),
            "sdpa_backward: dO has extents [2, 4, 16, 16, 1] and strides [1024, 256, 16, 1], not rank 4",
        ),
    ]);
}

#[test]
fn paged_kv() {
    check(&[
        (
            backward,
            |f| {
                let id = f.nodes[0].inputs[&InPort::Stats];
                f.nodes[0].inputs.insert(InPort::PageTableK, id);
            },
            "sdpa_backward: paged K/V on a backward",
        ),
        (paged, |f| input(f, InPort::K).dim[3] = 24, "sdpa: K pool [7, 2, 8, 24] has another head dim than Q [2, 4, 16, 32]"),
        (
            paged,
            |f| input(f, InPort::V).dim[2] = 4,
            "sdpa: K pool [7, 2, 8, 32] and V pool [7, 2, 4, 16] differ in pages, heads or page size",
        ),
        (paged, |f| remove_input(f, InPort::PageTableV), "sdpa: Page_table_V is missing while the other page table is given"),
        (
            paged,
            |f| input(f, InPort::PageTableK).dim[0] = 3,
            "sdpa: Page_table_K has extents [3, 1, 3, 1], expected (2, 1, pages, 1)",
        ),
        (
            paged,
            |f| input(f, InPort::PageTableV).dim[3] = 2,
            "sdpa: Page_table_V has extents [2, 1, 3, 2], expected (2, 1, pages, 1)",
        ),
        (paged, |f| input(f, InPort::PageTableK).dtype = Some(DType::I64), "sdpa: Page_table_K has type INT64, expected INT32"),
        (
            paged,
            |f| {
                let offset = f.nodes[0].inputs[&InPort::SeqLenQ];
                input(f, InPort::PageTableK).ragged = Some(crate::graph::RaggedOffset { offset, multiplier: 1 });
            },
            "sdpa: Page_table_K is ragged",
        ),
        (paged, |f| input(f, InPort::PageTableV).dim[2] = 4, "sdpa: Page_table_K holds 3 pages a sequence and Page_table_V 4"),
        (
            paged,
            |f| {
                for (pool, table) in [(InPort::K, InPort::PageTableK), (InPort::V, InPort::PageTableV)] {
                    input(f, pool).dim[2] = 1 << 40;
                    input(f, table).dim[2] = 1 << 40;
                }
            },
            "sdpa: 1099511627776 pages of 1099511627776 rows exceed 64 bits",
        ),
        (
            paged,
            |f| match &mut f.nodes[0].op {
                Op::Sdpa(a) => a.max_seq_len_kv = Some(25),
                Op::SdpaBackward(_)
                | Op::Nvfp4Qat(_)
                | Op::Nvfp4QatBackward(_)
                | Op::GroupedGemmDsrelu(_)
                | Op::MoeGroupedMatmul(_) => {}
            },
            "sdpa: paged_attention_max_seq_len_kv 25 exceeds 3 pages of 8 rows",
        ),
    ]);
}

#[test]
fn shapes() {
    check(&[
        (forward, |f| input(f, InPort::K).dim[0] = 3, "sdpa: K has extents [3, 2, 24, 32], expected [2, 2, 24, 32]"),
        (forward, |f| input(f, InPort::K).dim[3] = 16, "sdpa: K has extents [2, 2, 24, 16], expected [2, 2, 24, 32]"),
        (forward, |f| input(f, InPort::V).dim[1] = 4, "sdpa: V has extents [2, 4, 24, 16], expected [2, 2, 24, 16]"),
        (forward, |f| input(f, InPort::V).dim[2] = 23, "sdpa: V has extents [2, 2, 23, 16], expected [2, 2, 24, 16]"),
        (forward, |f| output(f, OutPort::O).dim[3] = 32, "sdpa: O has extents [2, 4, 16, 32], expected [2, 4, 16, 16]"),
        (backward, |f| input(f, InPort::O).dim[2] = 15, "sdpa_backward: O has extents [2, 4, 15, 16], expected [2, 4, 16, 16]"),
        (backward, |f| input(f, InPort::DO).dim[2] = 15, "sdpa_backward: dO has extents [2, 4, 15, 16], expected [2, 4, 16, 16]"),
        (
            backward,
            |f| output(f, OutPort::DQ).dim[1] = 2,
            "sdpa_backward: dQ has extents [2, 2, 16, 32], expected [2, 4, 16, 32]",
        ),
        (
            backward,
            |f| output(f, OutPort::DK).dim[1] = 4,
            "sdpa_backward: dK has extents [2, 4, 24, 32], expected [2, 2, 24, 32]",
        ),
        (
            backward,
            |f| output(f, OutPort::DV).dim[3] = 32,
            "sdpa_backward: dV has extents [2, 2, 24, 32], expected [2, 2, 24, 16]",
        ),
        (
            forward,
            |f| {
                input(f, InPort::K).dim[2] = 0;
                input(f, InPort::V).dim[2] = 0;
            },
            "sdpa: K has extents [2, 2, 0, 32], not all above 0",
        ),
        (
            forward,
            |f| {
                input(f, InPort::K).dim[1] = 3;
                input(f, InPort::V).dim[1] = 3;
            },
            "sdpa: 4 query heads are no multiple of 3 key/value heads",
        ),
    ]);
}

/// Report #83: the message names the shape of the bias.
#[test]
fn bias_and_key_mask() {
    check(&[
        (forward, |f| input(f, InPort::Bias).dim = vec![4, 16, 24], "sdpa: bias has extents [4, 16, 24], not rank 4"),
        (
            forward,
            |f| input(f, InPort::Bias).dim = vec![2, 1, 1, 24],
            "sdpa: bias has extents [2, 1, 1, 24], expected (1|2, 1|4, 16, 24)",
        ),
        (
            backward,
            |f| input(f, InPort::Bias).dim = vec![2, 2, 16, 24],
            "sdpa_backward: bias has extents [2, 2, 16, 24], expected (1|2, 1|4, 16, 24)",
        ),
        (
            backward,
            |f| output(f, OutPort::DBias).dim[0] = 2,
            "sdpa_backward: dBias has extents [2, 4, 16, 24], expected those of the bias [1, 4, 16, 24]",
        ),
        (backward, |f| remove_input(f, InPort::Bias), "sdpa_backward: dBias without a bias"),
        (forward, |f| input(f, InPort::KvMask).dim[1] = 4, "sdpa: kv mask has extents [2, 4, 1, 24], expected (1|2, 1, 1, 24)"),
    ]);
}

#[test]
fn masks() {
    check(&[
        (
            forward,
            |f| {
                mask(f).sliding_window = Some(4);
                mask(f).left_bound = Some(4);
            },
            "sdpa: sliding_window_length and diagonal_band_left_bound are both given",
        ),
        (
            forward,
            |f| {
                mask(f).causal = true;
                mask(f).causal_bottom_right = true;
            },
            "sdpa: use_causal_mask and use_causal_mask_bottom_right are both given",
        ),
        (
            forward,
            |f| {
                mask(f).causal = true;
                mask(f).right_bound = Some(0);
            },
            "sdpa: a causal mask and diagonal_band_right_bound are both given",
        ),
        (forward, |f| mask(f).right_bound = Some(-1), "sdpa: right bound -1 is below 0"),
        (forward, |f| mask(f).sliding_window = Some(0), "sdpa: left bound 0 is below 1: a length of L keeps L keys"),
        (
            backward,
            |f| mask(f).left_bound = Some(i64::MIN),
            "sdpa_backward: left bound -9223372036854775808 is below 1: a length of L keeps L keys",
        ),
        (backward, |f| mask(f).right_bound = Some(-3), "sdpa_backward: right bound -3 is below 0"),
    ]);
}

#[test]
fn lengths_and_offsets() {
    check(&[
        (thd, |f| input(f, InPort::K).ragged = None, "sdpa: Q is ragged but K or V is not"),
        (thd, |f| remove_input(f, InPort::SeqLenQ), "sdpa: ragged operands without lengths on both sides"),
        (forward, |f| remove_input(f, InPort::SeqLenKv), "sdpa: a padding mask without key lengths"),
        (forward, |f| input(f, InPort::SeqLenQ).dtype = Some(DType::I64), "sdpa: SEQ_LEN_Q has type INT64, expected INT32"),
        (forward, |f| input(f, InPort::SeqLenKv).dtype = Some(DType::F32), "sdpa: SEQ_LEN_KV has type FLOAT, expected INT32"),
        (forward, |f| input(f, InPort::SeqLenKv).dim[0] = 3, "sdpa: SEQ_LEN_KV has extents [3, 1, 1, 1], expected 2 elements"),
        (
            forward,
            |f| input(f, InPort::SeqLenQ).stride[0] = 2,
            "sdpa: SEQ_LEN_Q has strides [2, 1, 1, 1], expected 2 elements one after another",
        ),
        (
            forward,
            |f| {
                let id = f.nodes[0].inputs.remove(&InPort::SeqLenQ).unwrap();
                f.nodes[0].inputs.insert(InPort::CuSeqLenQ, id);
            },
            "sdpa: CU_SEQ_LEN_Q has extents [2, 1, 1, 1], expected 3 elements",
        ),
        (thd, |f| f.tensors[0].dim[0] = 2, "sdpa: the ragged offset of Q has extents [2, 1, 1, 1], expected 3 elements"),
        (thd, |f| f.tensors[0].dtype = Some(DType::F32), "sdpa: the ragged offset of Q has type FLOAT, expected INT32 or INT64"),
    ]);
}

#[test]
fn sink_and_stats() {
    check(&[
        (forward, |f| input(f, InPort::Sink).dim = vec![4], "sdpa: sink has extents [4], expected [1, 4, 1, 1]"),
        (forward, |f| input(f, InPort::Sink).dtype = Some(DType::BF16), "sdpa: sink has type BFLOAT16, expected FLOAT"),
        (
            backward,
            |f| output(f, OutPort::DSink).dim[0] = 2,
            "sdpa_backward: dSink has extents [2, 4, 1, 1], expected those of the sink [1, 4, 1, 1]",
        ),
        (backward, |f| remove_input(f, InPort::Stats), "sdpa_backward: Stats is missing"),
        (forward, |f| remove_output(f, OutPort::Stats), "sdpa: Stats are requested but the node has no Stats output"),
        (
            backward,
            |f| input(f, InPort::Stats).dim[2] = 17,
            "sdpa_backward: Stats has extents [2, 4, 17, 1], expected [2, 4, 16, 1]",
        ),
        (forward, |f| output(f, OutPort::Max).dim[3] = 2, "sdpa: Max has extents [2, 4, 16, 2], expected [2, 4, 16, 1]"),
    ]);
}

#[test]
fn attributes() {
    let edit = |f: &mut FrozenGraph, dtype, scale, prefolded| match &mut f.nodes[0].op {
        Op::Sdpa(a) => (a.softmax_precision, a.attn_scale, a.attn_scale_prefolded) = (dtype, scale, prefolded),
        Op::SdpaBackward(_) | Op::Nvfp4Qat(_) | Op::Nvfp4QatBackward(_) | Op::GroupedGemmDsrelu(_) | Op::MoeGroupedMatmul(_) => {}
    };
    let reason_of = |dtype, scale, prefolded| {
        let mut f = forward();
        edit(&mut f, dtype, scale, prefolded);
        reason(&f)
    };
    assert_eq!(
        reason_of(Some(DType::BF16), None, false).as_deref(),
        Some("sdpa: softmax precision BFLOAT16, expected FLOAT or HALF")
    );
    assert_eq!(reason_of(Some(DType::F16), Some(1.0), false), None);
    assert_eq!(reason_of(Some(DType::F32), None, true), None);
    assert_eq!(reason_of(None, Some(1.0), true).as_deref(), Some("sdpa: attn_scale together with a prefolded attn_scale"));
    // The tensor spelling conflicts just as well.
    let mut g = Graph::new(GraphOptions::default());
    let [q, k, v] = ["Q", "K", "V"].map(|n| g.tensor(Tensor::new(n, [B, HQ, SQ, DQK])));
    let scale = g.tensor(Tensor::new("scale", [1, 1, 1, 1]).dtype(DType::F32));
    let attn_scale = Some(AttnScale::Tensor(scale));
    g.sdpa(q, k, v, Sdpa { attn_scale, attn_scale_prefolded: true, ..Sdpa::default() }).unwrap();
    assert_eq!(reason(&g.freeze().unwrap()).as_deref(), Some("sdpa: attn_scale together with a prefolded attn_scale"));
}

/// The groups are judged in the order of facts §3.5.
#[test]
fn the_first_reason_in_order_is_reported() {
    let mut f = forward();
    match &mut f.nodes[0].op {
        Op::Sdpa(a) => a.softmax_precision = Some(DType::BF16),
        Op::SdpaBackward(_) | Op::Nvfp4Qat(_) | Op::Nvfp4QatBackward(_) | Op::GroupedGemmDsrelu(_) | Op::MoeGroupedMatmul(_) => {}
    }
    let mut expect = |edit: &dyn Fn(&mut FrozenGraph), text: &str| {
        edit(&mut f);
        let got = reason(&f).unwrap();
        assert!(got.contains(text), "{got} lacks {text}");
    };
    expect(&|_| {}, "softmax precision");
    expect(&|f| remove_output(f, OutPort::Stats), "no Stats output");
    expect(&|f| input(f, InPort::Sink).dtype = Some(DType::BF16), "sink has type");
    expect(&|f| input(f, InPort::SeqLenQ).dtype = Some(DType::I64), "SEQ_LEN_Q has type");
    expect(&|f| mask(f).right_bound = Some(-1), "right bound -1");
    expect(&|f| input(f, InPort::Bias).dim[3] = 1, "bias has extents");
    expect(&|f| input(f, InPort::K).dim[3] = 8, "K has extents");
    expect(&|f| remove_input(f, InPort::V), "V is missing");
}
