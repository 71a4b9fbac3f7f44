//! The Hopper row's own cases, behind those that it shares with the portable one.

use super::super::{Case, Fwd, Lens, Logits, MaskKind, ScaleKind, StatsKind, HOPPER, KV_HEADS, PREFILL};
use super::{DTYPES, STATS};
use frostgraph::engines::Knob;
use frostgraph::DType;

/// The Hopper row: the prefill cases, then more tiles than multiprocessors (each CTA takes several in turn), long rows (tiles without a mask, references that
/// lag behind the maximum), its orders, tiles and packed heads, and a scale that lies on the device.
///
/// The prefill cases are short: in bf16 they run on the best plan, mostly tiles of 64 rows, in f16 on the tiles for long problems. Score outputs and biases
/// are switches of the compiler and come with bf16 alone: types share every line that these touch.
pub fn shared_and_long(shared: &[Case]) -> Vec<Case> {
    let takes = |c: &&Case| c.engine == PREFILL && c.knobs.is_empty() && (c.bias.is_none() || c.dtype == DType::BF16);
    let own = |c: &Case| {
        let bf16 = c.dtype == DType::BF16;
        let max_sum = c.fwd.max_sum && bf16 && c.d_qk <= 128 && c.d_v <= 128 && c.fwd.scale == ScaleKind::Usual;
        let rows = if c.d_qk <= 64 && c.d_v <= 64 { 192 } else { 128 };
        let knobs = if bf16 { Vec::new() } else { vec![(Knob::TileM, rows)] };
        Case { engine: HOPPER, knobs, fwd: Fwd { max_sum, ..c.fwd }, ..c.clone() }
    };
    let mut all: Vec<Case> = shared.iter().filter(takes).map(own).collect();
    for (n, mask) in MaskKind::ALL.into_iter().enumerate() {
        for (i, (d_qk, d_v)) in [(64, 64), (128, 128), (192, 128), (256, 256)].into_iter().enumerate() {
            let (dtype, sched) = (DTYPES[(n + i) % 2], ((n + i) % 3) as i64);
            let base = Case { engine: HOPPER, d_qk, d_v, dtype, mask, h_kv: KV_HEADS[(n + i) % 3], ..Case::default() };
            let knobs = vec![(Knob::SchedPolicy, sched)];
            all.push(Case { b: 7, h_q: 16, h_kv: 4, s_q: 200, s_kv: 300, knobs: knobs.clone(), ..base.clone() });
            let logits = [Logits::Normal, Logits::Growing, Logits::About(100), Logits::Loud][(n + 2 * i) % 4];
            // Loud values end bf16's range; f16 has none of them.
            let dtype = if logits == Logits::Loud { DType::BF16 } else { dtype };
            all.push(Case { b: 1, s_q: 700, s_kv: 1100, dtype, knobs, fwd: Fwd { logits, ..Fwd::default() }, ..base });
        }
    }
    all.extend(tiles());
    all.extend(biases());
    all
}

/// Biases whose rows are whole 16 bytes, which come through shared memory (361 and 7 keys above, and 132 of 16 bits, are read by the threads): both widths on every
/// tile, more tiles than multiprocessors, long rows, lengths.
fn biases() -> Vec<Case> {
    let mut all = Vec::new();
    let masks = [MaskKind::None, MaskKind::Causal, MaskKind::CausalWindow(33), MaskKind::Band(5)];
    for (n, mask) in masks.into_iter().enumerate() {
        for (i, (d_qk, d_v)) in [(64, 64), (128, 128), (192, 128), (256, 256)].into_iter().enumerate() {
            let dtype = DTYPES[(n + i) % 2];
            let case = |k: usize, rows: i64, case: Case| {
                let knobs =
                    if rows > 0 { vec![(Knob::TileM, rows), (Knob::SchedPolicy, ((n + k) % 3) as i64)] } else { Vec::new() };
                let bias = Some(([dtype, DType::F32][(n + k) % 2], (n + i + k).is_multiple_of(3)));
                Case { engine: HOPPER, d_qk, d_v, dtype, mask, bias, knobs, h_kv: KV_HEADS[(n + i + k) % 3], ..case }
            };
            let logits = [Logits::Growing, Logits::Normal, Logits::About(100)][(n + i) % 3];
            for k in 0..2 {
                all.push(case(k, 128, Case { b: 7, h_q: 16, s_q: 200, s_kv: 304, ..Case::default() }));
                let fwd = Fwd { logits, stats: STATS[(n + k) % 2], ..Fwd::default() };
                let rows = if d_qk < 256 && (n + i).is_multiple_of(2) { 64 } else { 128 };
                all.push(case(k, rows, Case { b: 1, s_q: 700, s_kv: 1104, fwd, ..Case::default() }));
            }
            if d_qk < 256 {
                let lens = Lens::Padded { q: vec![150, 51], kv: vec![90, 400] };
                all.push(case(i, 64, Case { b: 2, s_q: 150, s_kv: 400, lens, sink: i == 1, ..Case::default() }));
            }
        }
    }
    all
}

/// Tiles of 64 rows whose keys two warpgroups share, and rows of a group's heads in one tile, groups that do not divide 64 among them: more tiles than
/// multiprocessors, long rows, lengths, packed sequences, what rows carry.
fn tiles() -> Vec<Case> {
    let mut all = Vec::new();
    let groups = [(16, 4), (6, 2), (8, 1), (10, 2)];
    for (n, mask) in MaskKind::ALL.into_iter().enumerate() {
        for (i, (d_qk, d_v)) in [(64, 64), (128, 128), (192, 128), (256, 256)].into_iter().enumerate() {
            let (h_q, h_kv) = groups[(n + i) % 4];
            let logits = [Logits::Growing, Logits::Normal, Logits::About(100)][(n + i) % 3];
            let fwd = Fwd { logits, stats: STATS[n % 2], ..Fwd::default() };
            let base = Case { engine: HOPPER, d_qk, d_v, mask, h_q, h_kv, sink: i == 1, fwd, ..Case::default() };
            let knobs = |rows: i64, pack| {
                let rows = Some((Knob::TileM, rows)).filter(|_| rows > 0);
                rows.into_iter().chain([(Knob::SchedPolicy, (n % 3) as i64), (Knob::PackGqa, pack)]).collect::<Vec<_>>()
            };
            let most = |s_q: i64| Lens::Padded { q: vec![s_q, s_q / 3], kv: vec![90, 400] };
            let thd = Lens::Thd { q: vec![150, 61], kv: vec![400, 33], head_major: n % 2 == 0, wide: false };
            // d 256 has no room for the exchange.
            if d_qk < 256 {
                all.push(Case { b: 7, s_q: 200, s_kv: 300, knobs: knobs(64, 0), ..base.clone() });
                all.push(Case { b: 1, s_q: 300, s_kv: 1100, knobs: knobs(64, 0), ..base.clone() });
                all.push(Case { lens: most(150), s_q: 150, s_kv: 400, knobs: knobs(64, i64::from(n == 1)), ..base.clone() });
            }
            if (n + i) % 2 == 0 {
                let rows = if n % 4 == 0 && i < 3 { 64 } else { 0 };
                all.push(Case { b: 7, s_q: 200, s_kv: 300, knobs: knobs(0, 1), ..base.clone() });
                all.push(Case { b: 2, s_q: 33, s_kv: 700, knobs: knobs(0, 1), ..base.clone() });
                all.push(Case { lens: thd, s_q: 150, s_kv: 400, knobs: knobs(rows, 1), ..base.clone() });
            }
            if i == n % 2 {
                let fwd = Fwd { scale: ScaleKind::Tensor, ..fwd };
                all.push(Case { s_q: 150, s_kv: 400, fwd, ..base });
            }
        }
    }
    // Everything at once.
    for (n, bias) in [DType::BF16, DType::F32].into_iter().enumerate() {
        for rows in [64, 128] {
            let knobs = vec![(Knob::TileM, rows), (Knob::PackGqa, 1)];
            let fwd = Fwd { max_sum: true, scale: ScaleKind::Negative, ..Fwd::default() };
            let lens = Lens::Padded { q: vec![150, 61], kv: vec![300, 33] };
            let base = Case { engine: HOPPER, knobs, fwd, sink: true, s_q: 150, s_kv: 301, h_q: 6, h_kv: 2, ..Case::default() };
            all.push(Case { bias: Some((bias, n == 1)), mask: MaskKind::CausalWindow(33), lens, ..base.clone() });
            all.push(Case { bias: Some((bias, n == 0)), d_qk: 128, d_v: 128, ..base });
        }
    }
    all
}

/// What the Hopper row's list leaves out of the product (feature claimed) × (tiles) × (types): `Suite::claims` counts it.
pub fn claimed() -> Vec<Case> {
    let mut all = Vec::new();
    for (n, (d_qk, d_v)) in [(64, 64), (128, 128), (192, 128), (256, 256)].into_iter().enumerate() {
        for (i, dtype) in DTYPES.into_iter().enumerate() {
            let base = Case { engine: HOPPER, d_qk, d_v, dtype, h_kv: KV_HEADS[(n + i) % 3], ..Case::default() };
            let fwd = Fwd { max_sum: true, ..Fwd::default() };
            let bias = Some(([dtype, DType::F32][n % 2], true));
            all.push(Case { s_q: 99, s_kv: 132, bias, sink: true, mask: MaskKind::Band(5), fwd, ..base.clone() });
            let padded = Lens::Padded { q: vec![130, 31], kv: vec![7, 130] };
            all.push(Case { lens: padded.clone(), sink: true, mask: MaskKind::Causal, fwd, ..base.clone() });
            let fwd = Fwd { scale: ScaleKind::Tensor, ..Fwd::default() };
            let thd = Lens::Thd { q: vec![130, 1], kv: vec![65, 130], head_major: i == 0, wide: n % 2 == 0 };
            all.push(Case { lens: thd, mask: MaskKind::CausalBottomRight, fwd, ..base.clone() });
            let fwd = Fwd { scale: ScaleKind::Zero, cu: true, stats: StatsKind::Log2, ..Fwd::default() };
            all.push(Case { lens: padded, strided_stats: true, mask: MaskKind::CausalWindow(33), fwd, ..base });
        }
    }
    all
}

/// Heads with keys of their own that L2 does not hold together: CTAs take a head's longest and shortest tile in turn (`pair_rounds`). Smaller lists never
/// reach it.
pub fn paired() -> Vec<Case> {
    let large = [(128, 128, MaskKind::CausalBottomRight, DType::BF16), (192, 128, MaskKind::Causal, DType::F16)];
    let case = |(d_qk, d_v, mask, dtype)| {
        let base = Case { engine: HOPPER, b: 34, h_q: 8, h_kv: 8, s_q: 256, s_kv: 512, ..Case::default() };
        Case { d_qk, d_v, mask, dtype, knobs: vec![(Knob::TileM, 128), (Knob::SchedPolicy, 2)], ..base }
    };
    large.into_iter().map(case).collect()
}
