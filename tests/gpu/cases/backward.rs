//! The case list of the backward: every mask × {MHA, GQA, MQA} × head dims × {bf16, f16} × {default, deterministic}, ragged sizes
//! dealt over it, then the features on top.

use super::{sizes, Case, Layout, Lens, MaskKind, BWD_SM90, KV_HEADS};
use frostgraph::engines::Knob;
use frostgraph::DType;

/// The head dims of the proof: native, padded, MLA, padded MLA.
pub const HEAD_DIMS: [(i64, i64); 9] =
    [(8, 8), (40, 40), (64, 64), (72, 72), (96, 96), (128, 128), (192, 128), (96, 40), (256, 256)];

fn product() -> Vec<Case> {
    let mut all = Vec::new();
    for mask in MaskKind::ALL {
        for h_kv in KV_HEADS {
            for (d_qk, d_v) in HEAD_DIMS {
                for dtype in [DType::BF16, DType::F16] {
                    for deterministic in [false, true] {
                        // The stride of 7 deals every size to every mask and dim; 3 and 10 share no factor with it.
                        let (s_q, s_kv) = sizes(all.len() * 7 + all.len() / 12, mask);
                        let base = Case { h_kv, d_qk, d_v, dtype, mask, deterministic, s_q, s_kv, ..Case::default() };
                        let layout = [Layout::Bshd, Layout::Bhsd, Layout::Sbhd, Layout::Gapped][all.len() / 5 % 4];
                        all.push(Case { layout, ..base });
                    }
                }
            }
        }
    }
    all
}

/// Features on top: padding, packing, sink, bias, strides, tiles.
fn featured() -> Vec<Case> {
    let mut all = Vec::new();
    let lens = [vec![130, 0], vec![1, 129], vec![64, 65]];
    let short = [vec![100, 7], vec![0, 130], vec![130, 31]];
    for (n, mask) in MaskKind::ALL.into_iter().enumerate() {
        for (i, (q, kv)) in lens.iter().zip(&short).enumerate() {
            for deterministic in [false, true] {
                let (d_qk, d_v) = [(64, 64), (128, 128), (96, 40), (192, 128), (40, 40), (256, 256)][(n + i) % 6];
                let (q, kv, h_kv) = (q.clone(), kv.clone(), KV_HEADS[(n + i) % 3]);
                let dtype = if (n + i) % 2 == 0 { DType::BF16 } else { DType::F16 };
                let base = Case { mask, deterministic, d_qk, d_v, h_kv, dtype, ..Case::default() };
                all.push(Case { lens: Lens::Padded { q: q.clone(), kv: kv.clone() }, ..base.clone() });
                let thd = Lens::Thd { q, kv, head_major: i == 1, wide: i == 2 };
                all.push(Case { lens: thd, ..base.clone() });
                all.push(Case { sink: true, strided_stats: i == 1, ..base.clone() });
            }
        }
    }
    for (n, (bias, broadcast)) in
        [(DType::BF16, false), (DType::F32, false), (DType::BF16, true), (DType::F32, true)].into_iter().enumerate()
    {
        for dbias in [None, Some(DType::BF16), Some(DType::F32)] {
            for deterministic in [false, true] {
                for mask in [MaskKind::None, MaskKind::Causal, MaskKind::CausalWindow(20)] {
                    let (d_qk, d_v) = [(64, 64), (128, 128), (72, 72), (192, 128)][n];
                    let h_kv = KV_HEADS[n % 3];
                    // 132 columns: a bias row that is no multiple of a vector (report 48).
                    let (s_q, s_kv) = (99, 132);
                    let base = Case { mask, deterministic, d_qk, d_v, h_kv, s_q, s_kv, ..Case::default() };
                    all.push(Case { bias: Some((bias, broadcast)), dbias, ..base });
                }
            }
        }
    }
    for tiles in [(32, 64), (64, 64), (64, 128), (128, 64), (128, 128)] {
        for (d_qk, d_v) in [(32, 32), (64, 64), (128, 128), (192, 128), (256, 256)] {
            for (mask, deterministic) in
                [(MaskKind::None, false), (MaskKind::CausalBottomRight, false), (MaskKind::CausalWindow(33), true)]
            {
                let knobs = vec![(Knob::TileM, tiles.0), (Knob::TileN, tiles.1)];
                all.push(Case { knobs, d_qk, d_v, mask, deterministic, s_q: 200, s_kv: 300, ..Case::default() });
            }
        }
    }
    all
}

/// The Hopper row: the cases that it has features and head dims for, then long rows (many tiles a block, tiles without an edge) and groups of heads
/// that one block sums.
fn sm90(shared: &[Case]) -> Vec<Case> {
    let packed = |c: &Case| matches!(c.lens, Lens::Thd { .. });
    let served =
        |c: &&Case| c.d_qk <= 192 && c.d_v <= 128 && c.bias.is_none() && c.knobs.is_empty() && !(packed(c) && c.d_qk > 128);
    let mut all: Vec<Case> = shared.iter().filter(served).cloned().collect();
    for (n, mask) in MaskKind::ALL.into_iter().enumerate() {
        for (i, (d_qk, d_v)) in [(64, 64), (128, 128), (192, 128)].into_iter().enumerate() {
            let dtype = if (n + i) % 2 == 0 { DType::BF16 } else { DType::F16 };
            let base = Case { d_qk, d_v, dtype, mask, deterministic: (n + i) % 3 == 0, ..Case::default() };
            all.push(Case { b: 1, s_q: 700, s_kv: 1100, h_kv: KV_HEADS[(n + i) % 3], ..base.clone() });
            // Blocks enough for a group of four heads in each.
            all.push(Case { b: 15, h_q: 8, h_kv: 2, s_q: 70, s_kv: 390, ..base });
        }
    }
    all.into_iter().map(|c| Case { engine: BWD_SM90, ..c }).collect()
}

/// The Hopper row's bias and dBias, and packed MLA heads: what it learned to serve after the numbers of the others were given.
fn sm90_later(shared: &[Case]) -> Vec<Case> {
    let packed = |c: &Case| matches!(c.lens, Lens::Thd { .. });
    let served =
        |c: &&Case| c.d_qk <= 192 && c.d_v <= 128 && c.knobs.is_empty() && (c.bias.is_some() || packed(c) && c.d_qk > 128);
    let mut all: Vec<Case> = shared.iter().filter(served).cloned().collect();
    for (n, mask) in MaskKind::ALL.into_iter().enumerate() {
        let (d_qk, d_v) = [(64, 64), (128, 128), (192, 128)][n % 3];
        let dtype = [DType::BF16, DType::F16][n % 2];
        let base = Case { d_qk, d_v, dtype, mask, deterministic: n % 3 == 1, h_kv: KV_HEADS[n % 3], ..Case::default() };
        // Many tiles, padded lengths under a bias, groups of heads in one block. Bottom-right bounds come without a bias (rule V17).
        let bottom_right = matches!(mask, MaskKind::CausalBottomRight | MaskKind::BottomRightWindow(_));
        let base_bias = Case { mask: if bottom_right { MaskKind::Causal } else { mask }, ..base.clone() };
        let bias = Some(([DType::F32, dtype][n / 2 % 2], n % 4 == 0));
        let lens = Lens::Padded { q: vec![311, 290], kv: vec![402, 350] };
        all.push(Case { s_q: 330, s_kv: 410, bias, dbias: Some([dtype, DType::F32][n / 4 % 2]), lens, ..base_bias.clone() });
        all.push(Case { b: 15, h_q: 8, h_kv: 2, s_q: 70, s_kv: 390, bias, dbias: Some(DType::F32), ..base_bias });
        // Packed MLA with sequences around the 48-row tile.
        let (q, kv) = (vec![1, 47, 48, 49, 0, 145, 300], vec![260, 47, 1, 129, 31, 145, 320]);
        let lens = Lens::Thd { q, kv, head_major: n % 2 == 0, wide: n % 3 == 0 };
        all.push(Case { b: 7, s_q: 300, s_kv: 320, d_qk: [192, 136][n % 2], d_v: 128, lens, ..base });
    }
    all.into_iter().map(|c| Case { engine: BWD_SM90, ..c }).collect()
}

/// The Hopper row's head dims above 128 on both sides, whose loop is another one: what the portable row's list has of them, then every mask with long
/// rows, groups summed in a block, lengths, packing, bias.
fn sm90_wide(shared: &[Case]) -> Vec<Case> {
    let served = |c: &&Case| (c.d_qk > 192 || c.d_v > 128) && c.knobs.is_empty();
    let mut all: Vec<Case> = shared.iter().filter(served).cloned().collect();
    let (q, kv) = (vec![130, 0, 64], vec![100, 130, 31]);
    for (n, mask) in MaskKind::ALL.into_iter().enumerate() {
        for (i, (d_qk, d_v)) in [(192, 192), (256, 256), (136, 136), (200, 192), (256, 64)].into_iter().enumerate() {
            let dtype = if (n + i) % 2 == 0 { DType::BF16 } else { DType::F16 };
            let base = Case { d_qk, d_v, dtype, mask, h_kv: KV_HEADS[(n + i) % 3], ..Case::default() };
            all.push(Case { b: 1, s_q: 700, s_kv: 1100, deterministic: i % 2 == 0, ..base.clone() });
            all.push(Case { b: 15, h_q: 8, h_kv: 2, s_q: 70, s_kv: 390, deterministic: i % 2 == 1, ..base.clone() });
            let padded = Lens::Padded { q: q.clone(), kv: kv.clone() };
            all.push(Case { b: 3, lens: padded.clone(), sink: i % 2 == 0, deterministic: (n + i) % 2 == 0, ..base.clone() });
            let thd = Lens::Thd { q: q.clone(), kv: kv.clone(), head_major: n % 2 == 1, wide: i % 2 == 1 };
            all.push(Case { b: 3, lens: thd, deterministic: (n + i) % 2 == 1, strided_stats: i == 4, ..base.clone() });
            // Bottom-right bounds come without a bias (rule V17).
            if !matches!(mask, MaskKind::CausalBottomRight | MaskKind::BottomRightWindow(_)) {
                let bias = Some(([DType::F32, dtype][i % 2], (n + i) % 3 == 0));
                let dbias = [None, Some(dtype), Some(DType::F32)][(n + 2 * i) % 3];
                let (b, lens) = if i % 2 == 0 { (2, Lens::Full) } else { (3, padded) };
                all.push(Case { b, s_q: 130, s_kv: 132, bias, dbias, lens, deterministic: n % 2 == 0, ..base });
            }
        }
    }
    all.into_iter().map(|c| Case { engine: BWD_SM90, ..c }).collect()
}

/// What the lists above leave out of the product (feature claimed) × (tiles) × (types) and × (modes): `Suite::claims` counts it.
fn sm90_claimed() -> Vec<Case> {
    let mut all = Vec::new();
    // Full head dims of each kind of tiles, and smaller unequal ones.
    let dims = [
        ((64, 64), (64, 40)),
        ((128, 128), (128, 96)),
        ((192, 128), (192, 104)),
        ((192, 192), (192, 136)),
        ((256, 256), (256, 200)),
    ];
    for (n, (full, unequal)) in dims.into_iter().enumerate() {
        for (i, dtype) in [DType::BF16, DType::F16].into_iter().enumerate() {
            let at = |(d_qk, d_v), turn: usize| {
                let deterministic = (n + i + turn).is_multiple_of(2);
                Case { d_qk, d_v, dtype, deterministic, h_kv: KV_HEADS[(n + turn) % 3], ..Case::default() }
            };
            all.push(Case { s_q: 1, s_kv: 65, sink: true, strided_stats: true, ..at(unequal, 0) });
            let (q, kv) = (vec![130, 0, 64], vec![100, 130, 31]);
            let lens = Lens::Thd { q, kv, head_major: i == 0, wide: n % 2 == 0 };
            all.push(Case { b: 3, lens, mask: MaskKind::CausalBottomRight, ..at(full, 1) });
            let bias = Some(([DType::F32, dtype][n % 2], true));
            all.push(Case { s_q: 99, s_kv: 132, bias, mask: MaskKind::Band(5), ..at(full, 0) });
        }
    }
    all.into_iter().map(|c| Case { engine: BWD_SM90, ..c }).collect()
}

/// Grids of several times the device, whose blocks prepare the row sums and the zeros of later heads; the lists above hold smaller ones.
fn sm90_ahead() -> Vec<Case> {
    let mut all = Vec::new();
    let masks = [MaskKind::None, MaskKind::Causal, MaskKind::CausalBottomRight, MaskKind::Window(40)];
    for (n, mask) in masks.into_iter().enumerate() {
        for (i, (d_qk, d_v)) in [(64, 64), (128, 128), (192, 128), (96, 40)].into_iter().enumerate() {
            let dtype = [DType::BF16, DType::F16][(n + i) % 2];
            let layout = [Layout::Bshd, Layout::Bhsd, Layout::Sbhd, Layout::Gapped][(n + 2 * i) % 4];
            // A group of four heads is one block's or divided, as the number of blocks allows.
            let (b, h_kv, s_q, s_kv) = [(40, 8, 100, 130), (120, 2, 33, 65), (80, 4, 70, 60), (90, 1, 90, 40)][(n + i) % 4];
            all.push(Case { b, h_q: 8, h_kv, s_q, s_kv, d_qk, d_v, dtype, layout, mask, sink: i == 3, ..Case::default() });
        }
    }
    all.into_iter().map(|c| Case { engine: BWD_SM90, ..c }).collect()
}

/// Long rows at head dim 128, where two blocks of a cluster share dQ: partial tiles on both sides, an odd number of query tiles, groups summed in a block and
/// parted, blocks that prepare later heads.
fn sm90_pairs() -> Vec<Case> {
    let shapes = [(1, 8, 520, 500), (1, 2, 577, 1010), (11, 8, 513, 250), (11, 2, 514, 130), (3, 1, 640, 390), (34, 4, 512, 129)];
    let mut all = Vec::new();
    for (n, (b, h_kv, s_q, s_kv)) in shapes.into_iter().enumerate() {
        let (d_qk, d_v) = [(128, 128), (96, 96), (128, 72)][n % 3];
        let (h_q, dtype) = (if b == 34 { 4 } else { 8 }, [DType::BF16, DType::F16][n % 2]);
        let layout = [Layout::Bshd, Layout::Bhsd, Layout::Sbhd, Layout::Gapped][n % 4];
        all.push(Case { b, h_q, h_kv, s_q, s_kv, d_qk, d_v, dtype, layout, sink: n == 3, ..Case::default() });
    }
    // A causal mask takes longer rows; few keys keep the reference short.
    for (n, (h_kv, s_q, s_kv)) in [(2, 8192, 250), (1, 8193, 130), (1, 8250, 390)].into_iter().enumerate() {
        let mask = [MaskKind::Causal, MaskKind::Causal, MaskKind::Band(5)][n];
        let (dtype, d_qk) = ([DType::BF16, DType::F16][n % 2], [128, 96, 128][n]);
        all.push(Case { b: 1, h_q: 2, h_kv, s_q, s_kv, d_qk, d_v: d_qk, dtype, mask, ..Case::default() });
    }
    all.into_iter().map(|c| Case { engine: BWD_SM90, ..c }).collect()
}

/// The list, in a fixed order: a new group goes behind the others, because numbers are how a case is named.
pub fn all() -> Vec<Case> {
    let mut all = product();
    all.extend(featured());
    let (own, later, wide) = (sm90(&all), sm90_later(&all), sm90_wide(&all));
    all.extend(own);
    all.extend(later);
    all.extend(wide);
    all.extend(sm90_claimed());
    all.extend(sm90_ahead());
    all.extend(sm90_pairs());
    all
}
