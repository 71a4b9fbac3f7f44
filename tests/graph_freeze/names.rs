//! Uids, names, element types and scalars.

use super::*;

#[test]
fn users_uids_stand_and_the_rest_take_the_smallest_unused() {
    let (mut g, [q, k, v], o) = forward();
    g.get_mut(k).unwrap().uid = Some(1);
    g.get_mut(o).unwrap().uid = Some(3);
    let f = g.freeze().unwrap();
    let uids = [q, k, v, o].map(|id| f.tensor(id).uid);
    assert_eq!(uids, [Some(2), Some(1), Some(4), Some(3)]);
    assert_eq!(g.get(q).unwrap().uid, None, "the graph under construction stays as it is");
}

#[test]
fn clashing_and_impossible_uids() {
    let (mut g, [q, k, _], _) = forward();
    g.get_mut(q).unwrap().uid = Some(7);
    g.get_mut(k).unwrap().uid = Some(7);
    let e = error(&g);
    assert_eq!(e.to_string(), "FG1104: uid 7 on 'Q' and on 'K'; expected one uid per tensor");
    for uid in [0, -1, i64::MIN] {
        g.get_mut(k).unwrap().uid = Some(uid);
        assert_eq!(code(&g), ErrorCode::BadTensor);
    }
    g.get_mut(k).unwrap().uid = Some(i64::MAX);
    assert!(g.freeze().is_ok());
}

#[test]
fn element_types_default_to_io_intermediate_and_float_stats() {
    let mut g = Graph::new(GraphOptions { io: DType::F16, ..GraphOptions::default() });
    let [q, k, v] = qkv(&mut g);
    let options = Sdpa { generate_stats: Some(true), score_max: true, score_sum_exp: true, ..Sdpa::default() };
    let out = g.sdpa(q, k, v, options).unwrap();
    let dtype = |g: &Graph, id| g.freeze().unwrap().tensor(id).dtype.unwrap();
    assert_eq!(dtype(&g, q), DType::F16);
    assert_eq!(dtype(&g, out.o), DType::F32, "virtual: the intermediate type");
    for id in [out.stats, out.score_max, out.score_sum_exp] {
        assert_eq!(dtype(&g, id.unwrap()), DType::F32);
    }
    g.output(out.o).unwrap();
    assert_eq!(dtype(&g, out.o), DType::F16, "visible: the io type");
}

#[test]
fn stats_follow_generate_stats_then_is_inference() {
    let cases = [
        (None, None, false),
        (None, Some(true), false),
        (None, Some(false), true),
        (Some(true), Some(true), true),
        (Some(false), Some(false), false),
    ];
    for (generate_stats, is_inference, expected) in cases {
        let mut g = Graph::new(GraphOptions::default());
        let [q, k, v] = qkv(&mut g);
        let out = g.sdpa(q, k, v, Sdpa { generate_stats, is_inference, ..Sdpa::default() }).unwrap();
        assert_eq!(out.stats.is_some(), expected, "{generate_stats:?} {is_inference:?}");
    }
}

#[test]
fn names_are_node_and_port_and_unique() {
    let mut g = Graph::new(GraphOptions::default());
    let [q, k, v] = qkv(&mut g);
    let first = g.sdpa(q, k, v, Sdpa { generate_stats: Some(true), ..Sdpa::default() }).unwrap();
    let second = g.sdpa(q, k, v, Sdpa::default()).unwrap();
    let stats = first.stats.unwrap();
    let third = g.sdpa_backward(q, k, v, first.o, q, stats, SdpaBackward::default()).unwrap();
    let named = g.sdpa(q, k, v, Sdpa { name: "mine".into(), ..Sdpa::default() }).unwrap();
    let name = |id| g.get(id).unwrap().name.as_str();
    assert_eq!(
        [first.o, stats, second.o, third.dq, named.o].map(name),
        ["sdpa::O", "sdpa::Stats", "sdpa_1::O", "sdpa_backward_2::dQ", "mine::O"]
    );
}

#[test]
fn scalars_carry_their_type() {
    let mut g = Graph::new(GraphOptions::default());
    let s = g.scalar("scale", ScalarValue::F32(0.5));
    let t = g.get(s).unwrap();
    assert_eq!(
        (t.dim.as_slice(), t.dtype, t.pass_by_value, t.value),
        (&[1, 1, 1, 1][..], Some(DType::F32), true, Some(ScalarValue::F32(0.5)))
    );
    assert_eq!(ScalarValue::BF16(0).dtype(), DType::BF16);
    assert_eq!(ScalarValue::I64(0).dtype(), DType::I64);
}

/// Building is linear too: automatic names cost no search.
#[test]
fn ten_thousand_automatic_names_are_unique() {
    let mut g = Graph::new(GraphOptions::default());
    let [q, k, v] = qkv(&mut g);
    for _ in 0..10_000 {
        g.sdpa(q, k, v, Sdpa::default()).unwrap();
    }
    let names: std::collections::BTreeSet<&str> = g.nodes().iter().map(|n| n.name.as_str()).collect();
    assert_eq!(names.len(), 10_000);
}
