//! Every validation rule of facts §2.3 in both modes: a graph that breaks it, and the code it gets.

mod cases;

use cases::CASES;
use frostgraph::graph::rules::{Scope, RULES};
use frostgraph::graph::{
    Alignment, AttnScale, Compat, Dropout, Graph, GraphOptions, InPort, Mask, Node, Op, OutPort, Sdpa, SdpaAttrs, SdpaBackward,
    Tensor, TensorId,
};
use frostgraph::{DType, ErrorCode};

/// Geometry of the base graphs; each case edits it.
#[derive(Clone, Copy)]
struct Shape {
    b: i64,
    hq: i64,
    hk: i64,
    hv: i64,
    sq: i64,
    skv: i64,
    dqk: i64,
    dv: i64,
}

const SHAPE: Shape = Shape { b: 2, hq: 4, hk: 2, hv: 2, sq: 16, skv: 16, dqk: 32, dv: 32 };

/// A graph under construction with its main operands.
struct Base {
    g: Graph,
    q: TensorId,
    k: TensorId,
    v: TensorId,
    shape: Shape,
}

impl Base {
    fn new(compat: Compat, shape: Shape) -> Base {
        let mut g = Graph::new(GraphOptions { compat, ..GraphOptions::default() });
        let q = g.tensor(Tensor::new("Q", [shape.b, shape.hq, shape.sq, shape.dqk]));
        let k = g.tensor(Tensor::new("K", [shape.b, shape.hk, shape.skv, shape.dqk]));
        let v = g.tensor(Tensor::new("V", [shape.b, shape.hv, shape.skv, shape.dv]));
        Base { g, q, k, v, shape }
    }

    fn ints(&mut self, name: &str, n: i64) -> TensorId {
        self.g.tensor(Tensor::new(name, [n, 1, 1, 1]).dtype(DType::I32))
    }

    fn lens(&mut self) -> (Option<TensorId>, Option<TensorId>) {
        let b = self.shape.b;
        (Some(self.ints("len_q", b)), Some(self.ints("len_kv", b)))
    }

    fn bias(&mut self) -> TensorId {
        let s = self.shape;
        self.g.tensor(Tensor::new("bias", [1, s.hq, s.sq, s.skv]))
    }

    /// Makes Q, K and V ragged.
    fn pack(&mut self) {
        let off = self.ints("offsets", self.shape.b + 1);
        for id in [self.q, self.k, self.v] {
            self.g.ragged(id, off, 1).unwrap();
        }
    }

    fn table(&mut self, name: &str, pages: i64) -> TensorId {
        self.g.tensor(Tensor::new(name, [self.shape.b, 1, pages, 1]).dtype(DType::I32))
    }

    fn fwd(mut self, options: Sdpa) -> Graph {
        let out = self.g.sdpa(self.q, self.k, self.v, options).unwrap();
        self.g.output(out.o).unwrap();
        for id in [out.stats, out.rng_dump].into_iter().flatten() {
            self.g.output(id).unwrap();
        }
        self.g
    }

    fn bwd(mut self, options: SdpaBackward) -> Graph {
        let s = self.shape;
        let [o, d_o] = ["O", "dO"].map(|n| self.g.tensor(Tensor::new(n, [s.b, s.hq, s.sq, s.dv])));
        let stats = self.g.tensor(Tensor::new("Stats", [s.b, s.hq, s.sq, 1]).dtype(DType::F32));
        let grads = self.g.sdpa_backward(self.q, self.k, self.v, o, d_o, stats, options).unwrap();
        for id in [Some(grads.dq), Some(grads.dk), Some(grads.dv), grads.dbias, grads.dsink].into_iter().flatten() {
            self.g.output(id).unwrap();
        }
        self.g
    }
}

/// One graph per case: it breaks exactly this rule, or this rule before any other.
struct Case {
    rule: u32,
    what: &'static str,
    build: fn(Compat) -> Graph,
}

fn fwd(c: Compat) -> Base {
    Base::new(c, SHAPE)
}

fn tall(c: Compat) -> Base {
    Base::new(c, Shape { sq: 17, skv: 16, ..SHAPE })
}

fn set(b: &mut Base, id: TensorId, edit: impl FnOnce(&mut Tensor)) {
    edit(b.g.get_mut(id).unwrap());
}

/// Page pools of 8 rows and tables of 2 pages a sequence.
fn paged(c: Compat, max: Option<i64>, lengths: bool) -> (Base, Sdpa) {
    let mut b = Base::new(c, Shape { skv: 16, ..SHAPE });
    for id in [b.k, b.v] {
        set(&mut b, id, |t| t.dim = vec![9, 2, 8, 32]);
    }
    let (k, v) = (b.table("table_k", 2), b.table("table_v", 2));
    let (seq_len_q, seq_len_kv) = if lengths { b.lens() } else { (None, None) };
    let mask = if lengths { Mask::none().padded() } else { Mask::none() };
    let options = Sdpa {
        page_table_k: Some(k),
        page_table_v: Some(v),
        max_seq_len_kv: max,
        seq_len_q,
        seq_len_kv,
        mask,
        ..Sdpa::default()
    };
    (b, options)
}

fn code(g: &Graph) -> Option<&'static str> {
    g.freeze().err().map(|e| e.code.code())
}

#[test]
fn every_rule_has_a_case_and_its_code() {
    for case in CASES {
        let rule = RULES.iter().find(|r| r.number == case.rule).unwrap();
        let expected = format!("FG1{:03}", case.rule);
        assert_eq!(rule.code.code(), expected, "codes are the rule numbers");
        let e = (case.build)(Compat::Cudnn).freeze().expect_err(case.what);
        assert_eq!(e.code.code(), expected, "V{} {}: {e}", case.rule, case.what);
        let text = e.to_string();
        assert!(text.contains(&format!("(rule V{})", case.rule)), "{text}");
        assert!(!e.given.is_empty() && !e.at.is_empty(), "{text}");
    }
    let missing: Vec<u32> = RULES.iter().map(|r| r.number).filter(|n| CASES.iter().all(|c| c.rule != *n)).collect();
    assert_eq!(missing, Vec::<u32>::new(), "rules without a case");
}

#[test]
fn rules_stand_in_their_order_and_all_are_there() {
    let numbers: Vec<u32> = RULES.iter().map(|r| r.number).collect();
    let expected: Vec<u32> = (1..=28).chain(45..=48).collect();
    assert_eq!(numbers, expected);
    let forward: Vec<u32> = RULES.iter().filter(|r| r.scope == Scope::Forward).map(|r| r.number).collect();
    assert_eq!(forward, (21..=28).collect::<Vec<_>>());
    let backward: Vec<u32> = RULES.iter().filter(|r| r.scope == Scope::Backward).map(|r| r.number).collect();
    assert_eq!(backward, [5, 45, 46, 47, 48]);
}

#[test]
fn by_default_only_what_no_engine_serves_is_refused() {
    for case in CASES {
        let got = code(&(case.build)(Compat::Frostgraph));
        let expected = match case.rule {
            4 | 5 | 16 | 18 => None,
            n => Some(format!("FG1{n:03}")),
        };
        assert_eq!(got.map(str::to_string), expected, "V{} {}", case.rule, case.what);
    }
    let lifted: Vec<u32> = RULES.iter().filter(|r| r.lift.is_some()).map(|r| r.number).collect();
    assert_eq!(lifted, [4, 5, 10, 12, 16, 18], "each lift needs a demand: extend the table above with it");
    for lift in RULES.iter().filter_map(|r| r.lift.as_ref()) {
        assert!(!lift.why.is_empty() && !lift.source.is_empty());
    }
}

/// The backward page: padding needs key lengths, query lengths are optional.
#[test]
fn key_lengths_alone_are_enough_by_default() {
    let build = |compat| {
        let mut b = fwd(compat);
        let (_, seq_len_kv) = b.lens();
        b.bwd(SdpaBackward { mask: Mask::none().padded(), seq_len_kv, ..SdpaBackward::default() })
    };
    assert_eq!(code(&build(Compat::Frostgraph)), None);
    assert_eq!(code(&build(Compat::Cudnn)), Some("FG1010"));
}

/// Packed queries cannot do without their own lengths.
#[test]
fn key_lengths_alone_are_not_enough_when_ragged() {
    let mut b = fwd(Compat::Frostgraph);
    b.pack();
    let (_, seq_len_kv) = b.lens();
    let g = b.fwd(Sdpa { mask: Mask::none().padded(), seq_len_kv, ..Sdpa::default() });
    assert_eq!(code(&g), Some("FG1010"));
}

#[test]
fn good_graphs_pass_in_both_modes() {
    for compat in [Compat::Frostgraph, Compat::Cudnn] {
        assert_eq!(code(&fwd(compat).fwd(Sdpa { generate_stats: Some(true), ..Sdpa::default() })), None);
        assert_eq!(code(&fwd(compat).bwd(SdpaBackward::default())), None);
        assert_eq!(code(&tall(compat).fwd(Sdpa { mask: Mask::causal(), ..Sdpa::default() })), None);
        let mut b = tall(compat);
        let (seq_len_q, seq_len_kv) = b.lens();
        let mask = Mask::causal_bottom_right().window(3).padded();
        assert_eq!(
            code(&b.bwd(SdpaBackward { mask, seq_len_q, seq_len_kv, ..SdpaBackward::default() })),
            None,
            "padding lifts V16, V18"
        );
        let mut b = fwd(compat);
        b.pack();
        let (seq_len_q, seq_len_kv) = b.lens();
        let mask = Mask::causal_bottom_right().window(3).padded();
        let max_total_seq_len_q = Some(20);
        assert_eq!(code(&b.fwd(Sdpa { mask, seq_len_q, seq_len_kv, max_total_seq_len_q, ..Sdpa::default() })), None);
        for max in [None, Some(12)] {
            let (b, options) = paged(compat, max, true);
            assert_eq!(code(&b.fwd(options)), None);
        }
        assert_eq!(code(&fwd(compat).fwd(Sdpa { score_mod: true, ..Sdpa::default() })), None);
    }
}

/// The rule with the lower number wins where a graph breaks several.
#[test]
fn the_first_rule_wins() {
    let broken = Shape { hk: 3, hv: 3, dqk: 36, ..SHAPE };
    let mask = Mask { alibi: true, right_bound: Some(-1), ..Mask::none() };
    let dropout = Dropout { probability: Some(1.0), ..Dropout::default() };
    let with = |shape: Shape, mask: &Mask, dropout: Dropout| {
        code(&Base::new(Compat::Frostgraph, shape).fwd(Sdpa { mask: mask.clone(), dropout, ..Sdpa::default() }))
    };
    assert_eq!(with(broken, &mask, dropout), Some("FG1006"));
    assert_eq!(with(Shape { hk: 2, hv: 2, ..broken }, &mask, dropout), Some("FG1007"));
    let no_alibi = Mask { alibi: false, ..mask };
    assert_eq!(with(Shape { hk: 2, hv: 2, ..broken }, &no_alibi, dropout), Some("FG1015"));
    assert_eq!(with(Shape { hk: 2, hv: 2, ..broken }, &no_alibi, Dropout::default()), Some("FG1020"));
    assert_eq!(with(Shape { hk: 2, hv: 2, ..broken }, &Mask::none(), Dropout::default()), Some("FG1024"));
}

#[test]
fn attribute_values_outside_the_rules() {
    let scale = |s: f32| code(&fwd(Compat::Frostgraph).fwd(Sdpa { attn_scale: Some(AttnScale::Value(s)), ..Sdpa::default() }));
    assert_eq!(scale(f32::NAN), Some("FG1108"));
    assert_eq!(scale(f32::INFINITY), Some("FG1108"));
    assert_eq!(scale(0.0), None);
    let p = |p: f32| {
        let dropout = Dropout { probability: Some(p), ..Dropout::default() };
        code(&fwd(Compat::Frostgraph).bwd(SdpaBackward { dropout, ..SdpaBackward::default() }))
    };
    assert_eq!(p(f32::NAN), Some("FG1108"));
    assert_eq!(p(-0.1), Some("FG1108"));
    assert_eq!(p(1.5), Some("FG1108"));
    let mut b = fwd(Compat::Frostgraph);
    let s = b.g.scalar("scale", frostgraph::graph::ScalarValue::F32(f32::NAN));
    let e = b.fwd(Sdpa { attn_scale: Some(AttnScale::Tensor(s)), ..Sdpa::default() }).freeze().unwrap_err();
    assert_eq!(e.code, ErrorCode::BadAttribute);
}

/// Messages are part of the surface: code, place, given, expected, what to do. `BLESS=1` rewrites the golden, but never in CI.
#[test]
fn messages_match_their_golden() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/validation_rules.txt");
    let lines = CASES.iter().map(|c| format!("{}\n  {}\n", c.what, (c.build)(Compat::Cudnn).freeze().unwrap_err()));
    let got: String = lines.collect();
    let bless = std::env::var_os("BLESS").is_some();
    assert!(!(bless && std::env::var_os("CI").is_some()), "blessing is an error in CI");
    if bless {
        std::fs::write(path, &got).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap();
    assert_eq!(got, golden, "run the tests with BLESS=1 if the change is meant");
}
