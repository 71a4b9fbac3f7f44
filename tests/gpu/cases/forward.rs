//! The case list of the forward rows: a product over masks, heads, head dims and types for prefill and for decode, with sizes, layouts
//! and Stats dealt over it, then the features on top.

mod hopper;

use super::{sizes, Case, Fwd, Layout, Lens, Logits, MaskKind, Pages, ScaleKind, StatsKind, DECODE, KV_HEADS, PREFILL};
use frostgraph::engines::Knob;
use frostgraph::DType;

/// Native, padded, unequal both ways (MLA and its opposite), padded and unequal.
pub const HEAD_DIMS: [(i64, i64); 10] =
    [(8, 8), (40, 40), (64, 64), (72, 72), (96, 96), (128, 128), (192, 128), (64, 128), (96, 40), (256, 256)];

const DTYPES: [DType; 2] = [DType::BF16, DType::F16];
const LAYOUTS: [Layout; 4] = [Layout::Bshd, Layout::Bhsd, Layout::Sbhd, Layout::Gapped];
const STATS: [StatsKind; 3] = [StatsKind::Natural, StatsKind::Log2, StatsKind::None];

/// Keys of decode cases: one key, page and tile edges, enough for several splits.
const DECODE_KEYS: [i64; 7] = [1, 16, 129, 255, 400, 640, 1025];

/// Query tokens of decode cases (report 38: one; speculative windows have more).
const DECODE_TOKENS: [i64; 5] = [1, 2, 4, 7, 16];

fn prefill(base: Case) -> Case {
    Case { engine: PREFILL, ..base }
}

/// A decode problem with its sizes dealt by number.
fn decode(n: usize) -> Case {
    let s_q = DECODE_TOKENS[n % 5];
    let s_kv = DECODE_KEYS[(n * 3 + n / 5) % 7].max(s_q);
    Case { engine: DECODE, h_q: 8, h_kv: [8, 2, 1][n % 3], s_q, s_kv, b: 1 + n as i64 % 3, ..Case::default() }
}

fn product() -> Vec<Case> {
    let mut all = Vec::new();
    for mask in MaskKind::ALL {
        for h_kv in KV_HEADS {
            for (d_qk, d_v) in HEAD_DIMS {
                for dtype in DTYPES {
                    let n = all.len();
                    // Seven shares no factor with the ten sizes, and n / 20 shifts them from mask to mask.
                    let (s_q, s_kv) = sizes(n * 7 + n / 20, mask);
                    let fwd = Fwd { stats: STATS[(n + n / 20) % 3], max_sum: n % 4 == 1, ..Fwd::default() };
                    let base = Case { h_kv, d_qk, d_v, dtype, mask, s_q, s_kv, ..Case::default() };
                    all.push(prefill(Case { layout: LAYOUTS[n / 3 % 4], fwd, ..base }));
                }
            }
        }
    }
    for mask in MaskKind::ALL {
        for h_kv in [8, 2, 1] {
            for (i, (d_qk, d_v)) in HEAD_DIMS.into_iter().enumerate() {
                let n = all.len();
                let fwd = Fwd { stats: STATS[n % 3], ..Fwd::default() };
                let (dtype, layout) = (DTYPES[(n + i / 2) % 2], LAYOUTS[n / 2 % 4]);
                all.push(Case { h_kv, d_qk, d_v, dtype, mask, layout, fwd, ..decode(n) });
            }
        }
    }
    all
}

/// Lengths on both sides: dense with lengths or prefix sums, packed with either kind of Stats.
fn lengths() -> Vec<Case> {
    let mut all = Vec::new();
    let queries = [vec![130, 0], vec![1, 129], vec![64, 65]];
    let keys = [vec![100, 7], vec![0, 130], vec![130, 31]];
    for (n, mask) in MaskKind::ALL.into_iter().enumerate() {
        for i in 0..3 {
            let (d_qk, d_v) = [(64, 64), (128, 128), (96, 40), (192, 128), (40, 40), (64, 128), (256, 256)][(n + i) % 7];
            let (q, kv) = (queries[i].clone(), keys[(n + i) % 3].clone());
            let (h_kv, dtype) = (KV_HEADS[(n + i) % 3], DTYPES[(n + i) % 2]);
            let base = prefill(Case { mask, d_qk, d_v, h_kv, dtype, ..Case::default() });
            for cu in [false, true] {
                let fwd = Fwd { stats: STATS[(n + i) % 3], max_sum: cu && i == 1, cu, ..Fwd::default() };
                let lens = Lens::Padded { q: q.clone(), kv: kv.clone() };
                all.push(Case { lens, fwd, strided_stats: i == 2, ..base.clone() });
                let thd = Lens::Thd { q: q.clone(), kv: kv.clone(), head_major: (i == 1) ^ cu, wide: i == 2 };
                all.push(Case { lens: thd, fwd, ..base.clone() });
                // Decode: sequences without tokens or keys beside full ones; some splits see no key (reports 73, 111).
                let d = decode(n * 6 + i * 2 + usize::from(cu));
                let (q, kv) = (vec![d.s_q, d.s_q - 1, 0], vec![1, d.s_kv, d.s_kv / 2]);
                let lens = Lens::Padded { q, kv };
                let fwd = Fwd { stats: STATS[(n + i) % 3], cu, ..Fwd::default() };
                all.push(Case { b: 3, mask, d_qk, d_v, dtype, lens, fwd, strided_stats: i == 1, ..d });
            }
        }
    }
    all
}

/// Sequences of one token, in front, behind, and many of them (report 21); queries without keys, keys without queries (reports 5, 15, 16).
fn tails() -> Vec<Case> {
    let singles = vec![1; 64];
    let shapes: [(Vec<i64>, Vec<i64>); 6] = [
        (vec![511, 1], vec![511, 1]),
        (vec![1, 511], vec![1, 511]),
        (singles.clone(), singles),
        (vec![76, 34, 146], vec![1, 1, 1]),
        (vec![76, 34, 146], vec![0, 1, 2]),
        (vec![150, 0, 150], vec![100, 100, 100]),
    ];
    let mut all = Vec::new();
    for (n, (q, kv)) in shapes.into_iter().enumerate() {
        for (i, mask) in [MaskKind::None, MaskKind::Causal, MaskKind::CausalBottomRight].into_iter().enumerate() {
            let most = |x: &[i64]| x.iter().copied().max().unwrap_or(1).max(1);
            let (b, s_q, s_kv) = (q.len() as i64, most(&q), most(&kv));
            let fwd = Fwd { stats: STATS[(n + i) % 2], cu: i == 1, ..Fwd::default() };
            let lens = Lens::Thd { q: q.clone(), kv: kv.clone(), head_major: n % 2 == 1, wide: i == 2 };
            let (d, h_kv) = ([32, 64, 128][i], KV_HEADS[n % 3]);
            let base = Case { b, s_q, s_kv, d_qk: d, d_v: d, h_kv, mask, fwd, dtype: DTYPES[(n + i) % 2], ..Case::default() };
            all.push(prefill(Case { lens, ..base }));
        }
    }
    all
}

/// Sink, bias, logits and scales.
fn features() -> Vec<Case> {
    let mut all = Vec::new();
    for (n, mask) in MaskKind::ALL.into_iter().enumerate() {
        for (i, (d_qk, d_v)) in [(64, 64), (128, 128), (192, 128)].into_iter().enumerate() {
            let fwd = Fwd { stats: STATS[n % 2], max_sum: i == 0, ..Fwd::default() };
            let base = Case { mask, d_qk, d_v, sink: true, fwd, dtype: DTYPES[(n + i) % 2], ..Case::default() };
            all.push(prefill(Case { strided_stats: i == 1, h_kv: KV_HEADS[(n + i) % 3], ..base.clone() }));
            let d = decode(n * 3 + i);
            let knobs = if i == 0 { Vec::new() } else { vec![(Knob::SplitKv, 4)] };
            let fwd = Fwd { max_sum: false, ..fwd };
            let tokens = Case { engine: DECODE, h_q: d.h_q, h_kv: d.h_kv, s_q: d.s_q, s_kv: d.s_kv, b: d.b, knobs, fwd, ..base };
            all.push(tokens.clone());
            if n < 4 && i < 2 {
                // With rows that see no key beside those that do.
                let fwd = Fwd { extreme_sinks: true, ..Fwd::default() };
                let lens = |s_q: i64, s_kv: i64| Lens::Padded { q: vec![s_q, s_q], kv: vec![s_kv / 2, 0] };
                all.push(Case { lens: lens(tokens.s_q, tokens.s_kv), b: 2, fwd, ..tokens.clone() });
                all.push(prefill(Case {
                    lens: lens(130, 130),
                    b: 2,
                    s_q: 130,
                    s_kv: 130,
                    h_q: 4,
                    h_kv: 2,
                    fwd,
                    knobs: Vec::new(),
                    ..tokens
                }));
            }
        }
    }
    for (n, (bias, broadcast)) in
        [(None, false), (Some(DType::F32), false), (None, true), (Some(DType::F32), true)].into_iter().enumerate()
    {
        for mask in [MaskKind::None, MaskKind::Causal, MaskKind::CausalWindow(20), MaskKind::Band(5)] {
            // Widths that are no multiple of a vector (report 48).
            for (i, s_kv) in [132, 361, 7, 367].into_iter().enumerate() {
                let (d_qk, d_v) = [(64, 64), (128, 128), (72, 72), (192, 128)][(n + i) % 4];
                let dtype = DTYPES[i % 2];
                let s_q = 99.min(s_kv);
                let base = Case { mask, d_qk, d_v, dtype, h_kv: KV_HEADS[(n + i) % 3], s_q, s_kv, ..Case::default() };
                all.push(prefill(Case { bias: Some((bias.unwrap_or(dtype), broadcast)), ..base }));
            }
        }
    }
    let odd = [
        Fwd { logits: Logits::About(100), ..Fwd::default() },
        Fwd { logits: Logits::About(120), stats: StatsKind::Log2, ..Fwd::default() },
        Fwd { logits: Logits::Growing, ..Fwd::default() },
        Fwd { scale: ScaleKind::Zero, ..Fwd::default() },
        Fwd { scale: ScaleKind::Negative, stats: StatsKind::Log2, ..Fwd::default() },
    ];
    for (i, fwd) in odd.into_iter().enumerate() {
        for (n, mask) in
            [MaskKind::None, MaskKind::Causal, MaskKind::CausalBottomRight, MaskKind::CausalWindow(33)].into_iter().enumerate()
        {
            for (d_qk, d_v) in [(64, 64), (128, 128), (256, 256)] {
                let base = Case { mask, d_qk, d_v, dtype: DTYPES[(n + i) % 2], ..Case::default() };
                let prefill_fwd = Fwd { max_sum: true, ..fwd };
                all.push(prefill(Case { fwd: prefill_fwd, s_q: 150, s_kv: 300, h_kv: 2, ..base.clone() }));
                let d = decode(n * 5 + i);
                all.push(Case { engine: DECODE, h_q: d.h_q, h_kv: d.h_kv, s_q: d.s_q, s_kv: d.s_kv.max(129), fwd, ..base });
            }
        }
    }
    all
}

/// Page pools: page sizes, orders in memory, spare table entries, declared maxima that end inside a page.
fn paged() -> Vec<Case> {
    let mut all = Vec::new();
    for rows in [8, 16, 32, 64, 128, 256] {
        for nhd in [false, true] {
            for (i, mask) in
                [MaskKind::None, MaskKind::CausalBottomRight, MaskKind::BottomRightWindow(70)].into_iter().enumerate()
            {
                for (d_qk, d_v) in [(64, 64), (128, 128), (192, 128)] {
                    let n = all.len();
                    let d = decode(n);
                    let s_kv = [33, 300, 513, 700][n % 4];
                    let lens = Lens::Padded { q: vec![d.s_q, d.s_q - 1, d.s_q], kv: vec![s_kv, s_kv / 3, (n as i64 % 3) * 8] };
                    let pages = Some(Pages { rows, nhd, spare: n as i64 % 3 });
                    let fwd = Fwd { pages, stats: STATS[n % 3], cu: n % 5 == 4, ..Fwd::default() };
                    let knobs = if n % 4 == 3 { vec![(Knob::SplitKv, 8)] } else { Vec::new() };
                    let sink = i == 1 && nhd;
                    all.push(Case { b: 3, s_kv, mask, d_qk, d_v, lens, fwd, knobs, sink, dtype: DTYPES[n / 2 % 2], ..d });
                }
            }
        }
    }
    all
}

/// Knobs: tiles, orders and packing of prefill, split counts of decode, more splits than keys among them.
fn knobs() -> Vec<Case> {
    let mut all = Vec::new();
    for (tiles, (d_qk, d_v)) in [(64, 64), (64, 128), (128, 64), (128, 128)]
        .iter()
        .flat_map(|t| [(64, 64), (128, 128), (192, 128), (256, 256)].map(|d| (t, d)))
    {
        for (sched, pack, mask) in [(0, 0, MaskKind::None), (1, 1, MaskKind::Causal), (2, 0, MaskKind::CausalWindow(33))] {
            let knobs = vec![(Knob::TileM, tiles.0), (Knob::TileN, tiles.1), (Knob::SchedPolicy, sched), (Knob::PackGqa, pack)];
            all.push(prefill(Case { knobs, d_qk, d_v, mask, h_kv: 2, s_q: 200, s_kv: 300, ..Case::default() }));
        }
    }
    for (i, splits) in [1, 2, 4, 8, 16, 32, 64].into_iter().enumerate() {
        for (j, (d_qk, d_v)) in [(64, 64), (128, 128), (192, 128), (40, 40)].into_iter().enumerate() {
            let mask = MaskKind::ALL[(i * 4 + j) % 8];
            let (s_q, s_kv, h_kv) = ([1, 4, 2, 3][j], [700, 129, 1025][(i + j) % 3], [8, 2, 1][(i + j) % 3]);
            let base = Case {
                engine: DECODE,
                knobs: vec![(Knob::SplitKv, splits)],
                h_q: 8,
                h_kv,
                s_q,
                s_kv,
                d_qk,
                d_v,
                mask,
                ..Case::default()
            };
            // O in both orders, whose row strides differ (report 43).
            let fwd = Fwd { stats: STATS[(i + j) % 3], ..Fwd::default() };
            all.push(Case { layout: LAYOUTS[j % 4], fwd, ..base });
        }
    }
    all
}

/// The flavours that the product leaves out, and odd multiples of 8 below each of them.
fn flavours() -> Vec<Case> {
    let dims = [(32, 32), (24, 16), (48, 56), (88, 96), (104, 120), (144, 104), (192, 192), (184, 136), (136, 192), (200, 248)];
    let mut all = Vec::new();
    for (n, (d_qk, d_v)) in dims.into_iter().enumerate() {
        for (i, mask) in [MaskKind::None, MaskKind::Causal, MaskKind::BottomRightWindow(70)].into_iter().enumerate() {
            let (s_q, s_kv) = sizes(n * 3 + i * 7 + 1, mask);
            let (dtype, layout) = (DTYPES[(n + i) % 2], LAYOUTS[(n + i) % 4]);
            let base = Case { mask, d_qk, d_v, dtype, layout, ..Case::default() };
            all.push(prefill(Case { s_q, s_kv, h_kv: KV_HEADS[(n + i) % 3], ..base.clone() }));
            let d = decode(n * 3 + i);
            all.push(Case { engine: DECODE, h_q: d.h_q, h_kv: d.h_kv, s_q: d.s_q, s_kv: d.s_kv, b: d.b, ..base });
        }
    }
    all
}

/// The largest split counts: of keys that fill them, and of fewer keys than splits.
fn many_splits() -> Vec<Case> {
    let mut all = Vec::new();
    for (i, splits) in [128, 256].into_iter().enumerate() {
        for (j, s_kv) in [20_001, 200].into_iter().enumerate() {
            let (d, mask) = ([64, 128][j], [MaskKind::None, MaskKind::CausalBottomRight][i]);
            let base = Case { engine: DECODE, b: 1, h_q: 8, h_kv: 2, s_q: 2, s_kv, d_qk: d, d_v: d, mask, ..Case::default() };
            all.push(Case { knobs: vec![(Knob::SplitKv, splits)], dtype: DTYPES[(i + j) % 2], ..base });
        }
    }
    all
}

/// The list, in a fixed order: a new group goes behind the others, because numbers are how a case is named.
pub fn all() -> Vec<Case> {
    let mut all = [product(), lengths(), tails(), features(), paged(), knobs(), flavours()].concat();
    let own = hopper::shared_and_long(&all);
    all.extend(own);
    all.extend(hopper::claimed());
    all.extend(many_splits());
    all.extend(hopper::paired());
    all
}
