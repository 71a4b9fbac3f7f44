//! The CPU engines against the f64 oracle over masks, heads, dims, types, layouts and lengths.

mod support;

use frostgraph_engines::sdpa::Mask;
use frostgraph_engines::DType;
use support::*;

const TYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];
const LAYOUTS: [Layout; 6] = [Layout::Bhsd, Layout::Bshd, Layout::Sbhd, Layout::Padded, Layout::SpreadD, Layout::Bhds];

fn both(spec: Spec) {
    let mut case = Case::new(spec);
    case.check_forward();
    if case.spec.page.is_none() {
        case.check_backward();
    }
}

/// Reports 50, 51, 55: every mask over extents below, at and above the tile, both ways around.
#[test]
fn masks_over_extents() {
    for (n, (sq, skv)) in [(3, 128), (128, 3), (64, 64), (65, 130), (1, 70), (100, 1)].into_iter().enumerate() {
        for (i, mask) in masks().into_iter().enumerate() {
            let (hq, hkv) = [(2, 2), (4, 2), (4, 1)][(i + n) % 3];
            both(Spec { mask, dtype: TYPES[(i + n) % 3], ..Spec::new(1, hq, hkv, sq, skv, 16) });
        }
    }
}

/// Reports 60, 61: every d_qk, d_v pair from a list with odd tile remainders, both ways.
#[test]
fn head_dims() {
    for (dqk, dv) in
        [(8, 8), (24, 40), (40, 24), (72, 104), (128, 96), (96, 128), (192, 128), (64, 8), (8, 64), (256, 256), (20, 12)]
    {
        let spec = Spec::new(1, 2, 1, 67, 66, dqk);
        both(Spec { dv, mask: Mask { right: Some(0), ..Mask::default() }, dtype: TYPES[dqk / 8 % 3], ..spec });
    }
}

/// Reports 33, 36, 38, 40, 43: any order of axes, padded rows and heads, non-unit head-dim stride, extents of 1, strided Stats.
#[test]
fn layouts() {
    for (i, layout) in LAYOUTS.into_iter().enumerate() {
        for (j, out_layout) in LAYOUTS.into_iter().enumerate() {
            for (b, sq, skv) in [(2, 9, 11), (3, 1, 5), (3, 5, 1)] {
                let stats_layout = LAYOUTS[(i + j) % 4];
                both(Spec { layout, out_layout, stats_layout, dtype: TYPES[(i + j) % 3], ..Spec::new(b, 4, 2, sq, skv, 8) });
            }
        }
    }
}

/// Reports 8, 10, 18, 56, 75: lengths from 0 to the extent, as lengths and as prefix sums.
#[test]
fn padded_lengths() {
    for (i, mask) in masks().into_iter().enumerate() {
        let lens = Some((vec![70, 0, 1, 64, 33], vec![75, 20, 0, 64, 70]));
        both(Spec { mask, lens, cu: i % 2 == 1, dtype: TYPES[i % 3], ..Spec::new(5, 4, 2, 70, 75, 16) });
    }
}

/// Rule S1 and reports 5, 15, 16, 18, 58: packed operands in every declaration of offsets and Stats.
#[test]
fn packed_lengths() {
    for (i, mask) in masks().into_iter().enumerate() {
        for head_major in [false, true] {
            let packed = Some(Packed { wide: i % 2 == 0, multiplier: i % 3 != 0, head_major, slack: (i % 3) as i64 });
            let layout = if i % 2 == 0 { Layout::Padded } else { Layout::Bshd };
            let lens = Some((vec![70, 0, 1, 64, 33], vec![75, 20, 0, 64, 70]));
            let spec = Spec::new(5, 4, 2, 70, 75, 16);
            both(Spec { mask, lens, cu: i % 2 == 1, packed, layout, dtype: TYPES[i % 3], ..spec });
        }
    }
}

/// Report 13: block tables with unused entries that must not be followed, any page size.
#[test]
fn paged_keys_and_values() {
    for (i, page) in [16, 1, 5, 64, 128].into_iter().enumerate() {
        for layout in [Layout::Bhsd, Layout::Bshd] {
            let lens = Some((vec![1, 3, 0, 2], vec![1, 15, 16, 33]));
            let mask = masks()[i * 2];
            // Packed queries too: the prefill of a server.
            let packed = (layout == Layout::Bshd).then_some(PACKED);
            both(Spec { lens, page: Some(page), packed, layout, mask, dtype: TYPES[i % 3], ..Spec::new(4, 4, 2, 3, 40, 16) });
        }
    }
}

/// Reports 48, 81, 83: bias and dBias in every type and broadcast, key extents around vector widths.
#[test]
fn bias_and_its_gradient() {
    for (i, skv) in [1, 7, 65, 130].into_iter().enumerate() {
        for (j, extents) in [(2, 4), (1, 4), (2, 1), (1, 1)].into_iter().enumerate() {
            let bias = Some((extents.0, extents.1, TYPES[(i + j) % 3]));
            let lens = if j == 1 { Some((vec![66, 40], vec![skv as i32, skv as i32 / 2])) } else { None };
            both(Spec { bias, lens, mask: masks()[i + j], dtype: TYPES[i % 3], ..Spec::new(2, 4, 2, 66, skv, 16) });
        }
    }
}

/// Report 78: sinks of either sign, with dead rows and padding.
#[test]
fn sink_and_its_gradient() {
    for (i, mask) in masks().into_iter().enumerate() {
        let sink = Some(vec![0.0, 20.0, -3.5, 1.25]);
        let lens = if i % 2 == 0 { Some((vec![66, 40], vec![70, 9])) } else { None };
        both(Spec { sink, lens, mask, log2: false, dtype: TYPES[i % 3], ..Spec::new(2, 4, 2, 66, 70, 16) });
    }
}

/// Rule S4: Stats in log base 2 with nonzero logits; O, maximum and sum do not change.
#[test]
fn stats_in_log2() {
    let case = Case::new(Spec { log2: true, size: 3.0, sink: Some(vec![1.0, -1.0]), ..Spec::new(1, 2, 1, 20, 80, 16) });
    case.check_forward();
}

/// attn_scale 0 makes attention uniform over the kept keys; a tensor scale is read at execution; a negative one is legal.
#[test]
fn scales() {
    for (scale, dynamic_scale) in [(0.0, false), (0.0, true), (0.3, true), (-0.7, false), (1.0, false)] {
        both(Spec { scale, dynamic_scale, mask: masks()[2], ..Spec::new(2, 2, 1, 30, 70, 8) });
    }
}

/// Report 18, reduced: random packed lengths with many zeros.
#[test]
fn random_packed_lengths() {
    for seed in 0..12 {
        let mut rng = Rng(seed);
        let mut len = || if rng.below(10) < 3 { 0 } else { rng.below(131) as i32 };
        let lens = Some(((0..8).map(|_| len()).collect(), (0..8).map(|_| len()).collect()));
        let mask = masks()[seed as usize % masks().len()];
        both(Spec { lens, packed: Some(PACKED), mask, seed, dtype: TYPES[seed as usize % 3], ..Spec::new(8, 4, 2, 130, 130, 8) });
    }
}

/// Query lengths alone: every key counts, rows past the length are zeros.
#[test]
fn query_trim() {
    let case = Case::new(Spec { lens: Some((vec![5, 0], vec![70, 70])), mask: masks()[2], ..Spec::new(2, 2, 1, 9, 70, 8) });
    let want = bits(&case.check_forward());
    let mut facts = case.facts(frostgraph_engines::sdpa::Direction::Forward);
    facts.ports.seq_len_kv = None;
    let uids = [uid::O, uid::STATS, uid::MAX, uid::SUM];
    assert_eq!(bits(&case.execute(facts, &uids).unwrap()), want);
}
