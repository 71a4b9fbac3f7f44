//! Spellings of masks and of the scale, as bounds.

use super::*;

// ---- masks: facts §3.3, T5, T7, report #53 ----

fn mask_of(mask: Mask, backward: bool) -> SdpaFacts {
    let mut g = Graph::new(GraphOptions::default());
    let dim = [1, 1, 16, 8];
    let [q, k, v, o, d_o] = ["q", "k", "v", "o", "d_o"].map(|n| g.tensor(Tensor::new(n, dim)));
    if backward {
        let stats = g.tensor(Tensor::new("stats", [1, 1, 16, 1]).dtype(DType::F32));
        g.sdpa_backward(q, k, v, o, d_o, stats, SdpaBackward { mask, ..SdpaBackward::default() }).unwrap();
    } else {
        g.sdpa(q, k, v, Sdpa { mask, ..Sdpa::default() }).unwrap();
    }
    facts(&g)
}

/// W, R and whether the corner is bottom-right.
type Bounds = (Option<i64>, Option<i64>, bool);

fn bounds(f: &SdpaFacts) -> Bounds {
    (f.mask.left, f.mask.right, f.mask.bottom_right)
}

#[test]
fn every_spelling_of_facts_3_3() {
    let none = Mask::none;
    let br = Alignment::BottomRight;
    let cases: [(Mask, Bounds, &[Feature]); 10] = [
        (none(), (None, None, false), &[]),
        (Mask { sliding_window: Some(5), ..none() }, (Some(4), None, false), &[Feature::Window]),
        (Mask { left_bound: Some(5), ..none() }, (Some(4), None, false), &[Feature::Window]),
        (Mask::causal(), (None, Some(0), false), &[Feature::Causal]),
        (Mask::causal_bottom_right(), (None, Some(0), true), &[Feature::Causal, Feature::BottomRight]),
        (Mask { right_bound: Some(0), ..none() }, (None, Some(0), false), &[Feature::Causal]),
        (Mask { right_bound: Some(3), ..none() }, (None, Some(3), false), &[Feature::RightBand]),
        (
            Mask { right_bound: Some(3), alignment: br, ..none() },
            (None, Some(3), true),
            &[Feature::RightBand, Feature::BottomRight],
        ),
        (Mask { alignment: br, ..none() }, (None, None, false), &[]),
        (Mask { left_bound: Some(1), alignment: br, ..none() }, (Some(0), None, true), &[Feature::BottomRight, Feature::Window]),
    ];
    for (mask, expected, features) in cases {
        for backward in [false, true] {
            let f = mask_of(mask.clone(), backward);
            assert_eq!(f.invalid, None, "{mask:?}");
            assert_eq!(bounds(&f), expected, "{mask:?} backward {backward}");
            assert_eq!(f.features, FeatureSet::of(features), "{mask:?}");
        }
    }
}

/// A causal flag sets the corner whatever `diagonal_alignment` says.
#[test]
fn causal_flags_set_the_alignment() {
    for backward in [false, true] {
        let top_left = Mask { alignment: Alignment::BottomRight, ..Mask::causal() };
        assert_eq!(bounds(&mask_of(top_left, backward)), (None, Some(0), false));
        let bottom_right = Mask { alignment: Alignment::TopLeft, ..Mask::causal_bottom_right() };
        assert_eq!(bounds(&mask_of(bottom_right, backward)), (None, Some(0), true));
    }
}

/// T7: malformed on a forward; on a half-precision backward the later setter wins.
#[test]
fn t7_conflicting_spellings() {
    let cases = [
        (Mask { sliding_window: Some(3), left_bound: Some(6), ..Mask::none() }, (Some(5), None, false)),
        (Mask { causal: true, ..Mask::causal_bottom_right() }, (None, Some(0), true)),
        (Mask { right_bound: Some(2), ..Mask::causal() }, (None, Some(2), false)),
        (Mask { right_bound: Some(2), ..Mask::causal_bottom_right() }, (None, Some(2), true)),
    ];
    for (mask, expected) in cases {
        let forward = mask_of(mask.clone(), false);
        assert!(forward.invalid.as_ref().is_some_and(|i| i.ends_with("are both given")), "{:?}", forward.invalid);
        let backward = mask_of(mask, true);
        assert_eq!(backward.invalid, None);
        assert_eq!(bounds(&backward), expected);
    }
}

/// Report #53 and T5: a length L keeps L keys, so W = L - 1. With Q = 0 and V[j] = j, row i of O is the mean index of its kept keys.
#[test]
fn report_53_window_length_convention() {
    let kept = |length: i64| {
        let f = mask_of(Mask::causal().window(length), false);
        assert_eq!((f.invalid.as_deref(), f.mask.left), (None, Some(length - 1)));
        (0..16).map(|q| f.mask.kept(q, 16, 16)).collect::<Vec<_>>()
    };
    let cells = |rows: &[(i64, i64)]| rows.iter().map(|(lo, hi)| hi - lo).sum::<i64>();
    let mean = |rows: &[(i64, i64)], q: usize| (rows[q].0 + rows[q].1 - 1) as f64 / 2.0;
    let four = kept(4);
    assert_eq!(cells(&four), 58);
    assert_eq!([10, 11, 12].map(|q| mean(&four, q)), [8.5, 9.5, 10.5]);
    let five = kept(5);
    assert_eq!(cells(&five), 70, "FlashAttention's W = 4 is L = 5");
    assert_eq!([10, 11, 12].map(|q| mean(&five, q)), [8.0, 9.0, 10.0]);
    assert!((0..16).all(|q| mean(&kept(1), q) == q as f64), "L = 1 keeps the query's own key");
    let full: Vec<(i64, i64)> = (0..16).map(|q| (0, q + 1)).collect();
    for length in [16, 17, (1 << 31) - 1, i64::MAX] {
        assert_eq!(kept(length), full, "L = {length}");
    }
    assert_eq!(
        mask_of(Mask::causal().window(0), false).invalid.as_deref(),
        Some("sdpa: left bound 0 is below 1: a length of L keeps L keys")
    );
}

/// Report #51: more queries than keys at the bottom-right corner; the leading rows keep nothing.
#[test]
fn report_51_leading_rows_are_dead() {
    let mut g = Graph::new(GraphOptions::default());
    let q = g.tensor(Tensor::new("q", [1, 4, 5, 8]));
    let [k, v] = ["k", "v"].map(|n| g.tensor(Tensor::new(n, [1, 1, 2, 8])));
    g.sdpa(q, k, v, Sdpa { mask: Mask::causal_bottom_right(), ..Sdpa::default() }).unwrap();
    let f = facts(&g);
    assert_eq!(f.invalid, None);
    let kept: Vec<i64> = (0..5).map(|row| f.mask.kept(row, 5, 2)).map(|(lo, hi)| hi - lo).collect();
    assert_eq!(kept, [0, 0, 0, 1, 2]);
}

// ---- scale: T6 ----

#[test]
fn t6_scale() {
    let with = |attn_scale: Option<f32>| {
        let mut g = Graph::new(GraphOptions::default());
        let q = g.tensor(Tensor::new("q", [1, 1, 16, 64]));
        g.sdpa(q, q, q, Sdpa { attn_scale: attn_scale.map(AttnScale::Value), ..Sdpa::default() }).unwrap();
        facts(&g)
    };
    assert_eq!(with(None).scale, Scale::Static(1.0), "omitted is 1.0 in a graph, not 1/sqrt(d)");
    assert_eq!(with(Some(0.125)).scale, Scale::Static(0.125));
    let zero = with(Some(0.0));
    assert!(zero.features.has(Feature::ZeroScale));
    assert!(with(Some(-0.0)).features.has(Feature::ZeroScale));
    let mut g = Graph::new(GraphOptions::default());
    let q = g.tensor(Tensor::new("q", [1, 1, 16, 64]));
    let s = g.scalar("scale", ScalarValue::F32(0.5));
    g.get_mut(s).unwrap().uid = Some(99);
    g.sdpa(q, q, q, Sdpa { attn_scale: Some(AttnScale::Tensor(s)), ..Sdpa::default() }).unwrap();
    let f = facts(&g);
    assert_eq!(f.scale, Scale::Dynamic(99));
    assert!(f.features.has(Feature::DynamicScale));
}
