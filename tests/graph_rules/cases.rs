//! For every rule the graphs that break it, and what each mode says.

use super::*;

pub(super) const CASES: &[Case] = &[
    Case {
        rule: 1,
        what: "no V",
        build: |c| {
            let mut b = fwd(c);
            let o = b.g.tensor(Tensor::new("O", [2, 4, 16, 32]));
            let inputs = [(InPort::Q, b.q), (InPort::K, b.k)].into();
            let outputs = [(OutPort::O, o)].into();
            b.g.node(Node { name: "bare".into(), op: Op::Sdpa(SdpaAttrs::default()), inputs, outputs, compute_dtype: None });
            b.g
        },
    },
    Case {
        rule: 2,
        what: "Q of rank 3",
        build: |c| {
            let mut b = fwd(c);
            let q = b.q;
            set(&mut b, q, |t| t.dim = vec![2, 16, 32]);
            b.fwd(Sdpa::default())
        },
    },
    Case {
        rule: 2,
        what: "dO of rank 5",
        build: |c| {
            let mut b = fwd(c);
            let [o, d_o] = [("O", vec![2, 4, 16, 32]), ("dO", vec![1, 2, 4, 16, 32])].map(|(n, d)| b.g.tensor(Tensor::new(n, d)));
            let stats = b.g.tensor(Tensor::new("Stats", [2, 4, 16, 1]).dtype(DType::F32));
            b.g.sdpa_backward(b.q, b.k, b.v, o, d_o, stats, SdpaBackward::default()).unwrap();
            b.g
        },
    },
    Case {
        rule: 3,
        what: "K with three strides",
        build: |c| {
            let mut b = fwd(c);
            let k = b.k;
            set(&mut b, k, |t| t.stride = vec![512, 32, 1]);
            b.fwd(Sdpa::default())
        },
    },
    Case {
        rule: 4,
        what: "V with head-dim stride 2",
        build: |c| {
            let mut b = fwd(c);
            let v = b.v;
            set(&mut b, v, |t| t.stride = vec![2048, 1024, 64, 2]);
            b.fwd(Sdpa::default())
        },
    },
    Case {
        rule: 4,
        what: "O with sequence innermost",
        build: |c| {
            let mut b = fwd(c);
            let out = b.g.sdpa(b.q, b.k, b.v, Sdpa::default()).unwrap();
            b.g.output(out.o).unwrap();
            set(&mut b, out.o, |t| t.stride = vec![2048, 512, 1, 16]);
            b.g
        },
    },
    Case {
        rule: 5,
        what: "1 x 1 backward",
        build: |c| Base::new(c, Shape { sq: 1, skv: 1, ..SHAPE }).bwd(SdpaBackward::default()),
    },
    Case { rule: 6, what: "4 over 3 heads", build: |c| Base::new(c, Shape { hk: 3, hv: 3, ..SHAPE }).fwd(Sdpa::default()) },
    Case {
        rule: 6,
        what: "4 over 3 value heads",
        build: |c| Base::new(c, Shape { hv: 3, ..SHAPE }).bwd(SdpaBackward::default()),
    },
    Case {
        rule: 7,
        what: "ALiBi unmasked",
        build: |c| fwd(c).fwd(Sdpa { mask: Mask { alibi: true, ..Mask::none() }, ..Sdpa::default() }),
    },
    Case {
        rule: 7,
        what: "ALiBi with a right band",
        build: |c| fwd(c).fwd(Sdpa { mask: Mask { alibi: true, right_bound: Some(1), ..Mask::none() }, ..Sdpa::default() }),
    },
    Case {
        rule: 8,
        what: "boolean bias",
        build: |c| {
            let mut b = fwd(c);
            let bias = b.bias();
            set(&mut b, bias, |t| t.dtype = Some(DType::Bool));
            b.fwd(Sdpa { bias: Some(bias), ..Sdpa::default() })
        },
    },
    Case {
        rule: 9,
        what: "both forms on the key side",
        build: |c| {
            let mut b = fwd(c);
            let (seq_len_q, seq_len_kv) = b.lens();
            let cu_seq_len_kv = Some(b.ints("cu", 3));
            b.fwd(Sdpa { mask: Mask::none().padded(), seq_len_q, seq_len_kv, cu_seq_len_kv, ..Sdpa::default() })
        },
    },
    Case { rule: 10, what: "padding alone", build: |c| fwd(c).fwd(Sdpa { mask: Mask::none().padded(), ..Sdpa::default() }) },
    Case {
        rule: 10,
        what: "padding with query lengths only",
        build: |c| {
            let mut b = fwd(c);
            let (seq_len_q, _) = b.lens();
            b.bwd(SdpaBackward { mask: Mask::none().padded(), seq_len_q, ..SdpaBackward::default() })
        },
    },
    Case {
        rule: 11,
        what: "lengths without padding",
        build: |c| {
            let mut b = fwd(c);
            let (seq_len_q, seq_len_kv) = b.lens();
            b.fwd(Sdpa { seq_len_q, seq_len_kv, ..Sdpa::default() })
        },
    },
    // With a padding mask V10 comes first, without one V11; a score modification lifts V11, so V12 is first there.
    Case {
        rule: 12,
        what: "query lengths beside a score modification",
        build: |c| {
            let mut b = fwd(c);
            let (seq_len_q, _) = b.lens();
            b.fwd(Sdpa { score_mod: true, seq_len_q, ..Sdpa::default() })
        },
    },
    Case {
        rule: 13,
        what: "totals on dense operands",
        build: |c| fwd(c).bwd(SdpaBackward { max_total_seq_len_kv: Some(64), ..SdpaBackward::default() }),
    },
    Case {
        rule: 14,
        what: "probability and mask",
        build: |c| {
            let mut b = fwd(c);
            let mask = Some(b.bias());
            b.fwd(Sdpa { dropout: Dropout { probability: Some(0.1), mask, ..Dropout::default() }, ..Sdpa::default() })
        },
    },
    Case {
        rule: 15,
        what: "probability 1",
        build: |c| {
            fwd(c).bwd(SdpaBackward {
                dropout: Dropout { probability: Some(1.0), ..Dropout::default() },
                ..SdpaBackward::default()
            })
        },
    },
    Case {
        rule: 16,
        what: "17 queries, 16 keys, bottom-right",
        build: |c| tall(c).fwd(Sdpa { mask: Mask::causal_bottom_right(), ..Sdpa::default() }),
    },
    Case {
        rule: 16,
        what: "right bound 0 spelled out",
        build: |c| {
            let mask = Mask { right_bound: Some(0), alignment: Alignment::BottomRight, ..Mask::none() };
            tall(c).bwd(SdpaBackward { mask, ..SdpaBackward::default() })
        },
    },
    Case {
        rule: 17,
        what: "bottom-right with bias",
        build: |c| {
            let mut b = fwd(c);
            let bias = Some(b.bias());
            b.fwd(Sdpa { mask: Mask::causal_bottom_right(), bias, ..Sdpa::default() })
        },
    },
    Case {
        rule: 17,
        what: "bottom-right with ALiBi",
        build: |c| fwd(c).fwd(Sdpa { mask: Mask { alibi: true, ..Mask::causal_bottom_right() }, ..Sdpa::default() }),
    },
    Case {
        rule: 17,
        what: "bottom-right with dropout",
        build: |c| {
            let dropout = Dropout { probability: Some(0.5), ..Dropout::default() };
            fwd(c).bwd(SdpaBackward { mask: Mask::causal_bottom_right(), dropout, ..SdpaBackward::default() })
        },
    },
    Case {
        rule: 17,
        what: "bottom-right ragged without padding",
        build: |c| {
            let mut b = fwd(c);
            b.pack();
            b.bwd(SdpaBackward { mask: Mask::causal_bottom_right(), ..SdpaBackward::default() })
        },
    },
    Case {
        rule: 18,
        what: "window on 17 x 16",
        build: |c| tall(c).fwd(Sdpa { mask: Mask::causal().window(4), ..Sdpa::default() }),
    },
    Case {
        rule: 19,
        what: "window on ragged without padding",
        build: |c| {
            let mut b = fwd(c);
            b.pack();
            b.bwd(SdpaBackward { mask: Mask::causal().window(4), ..SdpaBackward::default() })
        },
    },
    Case {
        rule: 20,
        what: "right bound -1",
        build: |c| fwd(c).fwd(Sdpa { mask: Mask { right_bound: Some(-1), ..Mask::none() }, ..Sdpa::default() }),
    },
    Case {
        rule: 21,
        what: "bf16 Stats",
        build: |c| {
            let mut b = fwd(c);
            let out = b.g.sdpa(b.q, b.k, b.v, Sdpa { generate_stats: Some(true), ..Sdpa::default() }).unwrap();
            set(&mut b, out.stats.unwrap(), |t| t.dtype = Some(DType::BF16));
            b.g
        },
    },
    Case {
        rule: 22,
        what: "ragged without padding",
        build: |c| {
            let mut b = fwd(c);
            b.pack();
            b.fwd(Sdpa::default())
        },
    },
    Case {
        rule: 23,
        what: "score_mod with causal",
        build: |c| fwd(c).fwd(Sdpa { score_mod: true, mask: Mask::causal(), ..Sdpa::default() }),
    },
    Case { rule: 24, what: "d_v 12", build: |c| Base::new(c, Shape { dv: 12, ..SHAPE }).fwd(Sdpa::default()) },
    Case {
        rule: 25,
        what: "pages without lengths",
        build: |c| {
            let (b, options) = paged(c, None, false);
            b.fwd(options)
        },
    },
    Case {
        rule: 26,
        what: "paged maximum, no pages",
        build: |c| fwd(c).fwd(Sdpa { max_seq_len_kv: Some(16), ..Sdpa::default() }),
    },
    Case {
        rule: 27,
        what: "bias of 16 keys, maximum 12",
        build: |c| {
            let (mut b, options) = paged(c, Some(12), true);
            let bias = Some(b.bias());
            b.fwd(Sdpa { bias, ..options })
        },
    },
    Case {
        rule: 28,
        what: "rng dump of 16 keys, maximum 12",
        build: |c| {
            let (mut b, options) = paged(c, Some(12), true);
            let out = b.g.sdpa(b.q, b.k, b.v, Sdpa { rng_dump: true, ..options }).unwrap();
            set(&mut b, out.rng_dump.unwrap(), |t| t.dim = vec![2, 4, 16, 16]);
            b.g
        },
    },
    Case {
        rule: 45,
        what: "score_mod with window",
        build: |c| fwd(c).bwd(SdpaBackward { score_mod: true, mask: Mask::none().window(4), ..SdpaBackward::default() }),
    },
    Case {
        rule: 46,
        what: "left bound 0",
        build: |c| fwd(c).bwd(SdpaBackward { mask: Mask::causal().window(0), ..SdpaBackward::default() }),
    },
    Case { rule: 47, what: "dSink alone", build: |c| fwd(c).bwd(SdpaBackward { dsink: true, ..SdpaBackward::default() }) },
    Case { rule: 48, what: "d_qk 36", build: |c| Base::new(c, Shape { dqk: 36, ..SHAPE }).bwd(SdpaBackward::default()) },
];
