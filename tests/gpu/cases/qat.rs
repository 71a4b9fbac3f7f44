//! The case lists of NVFP4 QAT, forward and backward: masks x heads x head dims x sizes, then tails, lengths, strides and the values that
//! a quantiser can get wrong.
//!
//! Both lists hold what the operation has, whether or not a row serves it: a row that declines something has fewer eligible cases.

use super::{sizes, Case, Fwd, Layout, Lens, Logits, MaskKind, KV_HEADS, QAT_BWD, QAT_BWD_SM90, QAT_FWD, QAT_FWD_SM90};
use frostgraph::engines::Knob;

const VALUES: [Logits; 6] = [Logits::Normal, Logits::ZeroBlocks, Logits::Ties, Logits::FarScales, Logits::Tiny, Logits::Peaked];

/// Layouts and strides of Stats dealt over a list.
fn dealt(n: usize, case: Case) -> Case {
    let layout = [Layout::Bhsd, Layout::Bshd, Layout::Bhsd, Layout::Sbhd, Layout::Gapped][n / 3 % 5];
    Case { layout, strided_stats: n % 11 == 10, ..case }
}

/// What both passes have; `deterministic` are the modes to deal.
fn list(engine: &'static str, deterministic: &[bool]) -> Vec<Case> {
    let mut all: Vec<Case> = Vec::new();
    for mask in MaskKind::ALL {
        for h_kv in KV_HEADS {
            for d in [64, 128] {
                for &deterministic in deterministic {
                    for _ in 0..2 {
                        let n = all.len();
                        let (s_q, s_kv) = sizes(n * 7 + n / 12, mask);
                        let base = Case { engine, mask, h_kv, d_qk: d, d_v: d, deterministic, s_q, s_kv, ..Case::default() };
                        all.push(dealt(n, base));
                    }
                }
            }
        }
    }
    // Self-attention as the specification has it: equal heads, no mask or causal, tails of every residue that matters to blocks of 16.
    for (n, s) in [1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 79, 80, 81, 127, 129, 250].into_iter().enumerate() {
        for mask in [MaskKind::None, MaskKind::Causal] {
            let d = [64, 128][n % 2];
            all.push(Case { engine, mask, s_q: s, s_kv: s, d_qk: d, d_v: d, layout: Layout::Bhsd, ..Case::default() });
        }
    }
    // Cross attention, both ways around.
    for (n, (s_q, s_kv)) in [(1, 200), (200, 1), (40, 333), (333, 40), (16, 17), (130, 128)].into_iter().enumerate() {
        let d = [128, 64][n % 2];
        all.push(Case { engine, s_q, s_kv, d_qk: d, d_v: d, ..Case::default() });
    }
    // What the quantiser sees; a window of 0 leaves every row one key.
    for (i, logits) in VALUES.into_iter().enumerate() {
        for (j, mask) in
            [MaskKind::None, MaskKind::Causal, MaskKind::CausalWindow(33), MaskKind::CausalWindow(0)].into_iter().enumerate()
        {
            for d in [64, 128] {
                let (h_kv, fwd) = (KV_HEADS[(i + j) % 3], Fwd { logits, ..Fwd::default() });
                all.push(Case { engine, mask, h_kv, d_qk: d, d_v: d, s_q: 141, s_kv: 141, fwd, ..Case::default() });
            }
        }
    }
    // Lengths down to 0, rows past a length, rows without keys.
    let lens = [([130, 0], [100, 7]), ([1, 129], [0, 130]), ([64, 65], [130, 31]), ([77, 130], [16, 48])];
    for (n, mask) in MaskKind::ALL.into_iter().enumerate() {
        for (i, (q, kv)) in lens.iter().enumerate() {
            let d = [64, 128][(n + i) % 2];
            let deterministic = deterministic[(n + i) % deterministic.len()];
            let lens = Lens::Padded { q: q.to_vec(), kv: kv.to_vec() };
            let base =
                Case { engine, mask, lens, h_kv: KV_HEADS[(n + i) % 3], d_qk: d, d_v: d, deterministic, ..Case::default() };
            all.push(dealt(n + i, base));
        }
    }
    // More keys than a tile of any kernel, and more heads than a wave.
    for mask in [MaskKind::None, MaskKind::Causal] {
        all.push(Case { engine, mask, b: 1, h_q: 2, h_kv: 2, s_q: 700, s_kv: 700, d_qk: 128, d_v: 128, ..Case::default() });
        all.push(Case { engine, mask, b: 3, h_q: 32, h_kv: 32, s_q: 48, s_kv: 48, ..Case::default() });
    }
    // V of another head dim than Q and K.
    for (d_qk, d_v) in [(128, 64), (64, 128)] {
        all.push(Case { engine, d_qk, d_v, ..Case::default() });
    }
    all
}

/// What the forward rows have beyond the list: zero-padded head dims, every order of the tiles over more tiles than multiprocessors, and more keys than
/// the Hopper row walks in short tiles.
fn forward_only(engine: &'static str) -> Vec<Case> {
    let mut all = Vec::new();
    for (n, (d_qk, d_v)) in [(16, 16), (32, 16), (80, 48), (96, 112), (16, 128), (112, 96)].into_iter().enumerate() {
        for mask in [MaskKind::None, MaskKind::CausalBottomRight] {
            all.push(Case { engine, mask, h_kv: KV_HEADS[n % 3], d_qk, d_v, ..Case::default() });
        }
    }
    for (n, mask) in [MaskKind::Causal, MaskKind::CausalWindow(33), MaskKind::None].into_iter().enumerate() {
        for sched in [0, 1, 2] {
            let d = [64, 128][(n + sched as usize) % 2];
            let knobs = vec![(Knob::SchedPolicy, sched)];
            all.push(Case {
                engine,
                mask,
                b: 7,
                h_q: 16,
                h_kv: 4,
                s_q: 200,
                s_kv: 300,
                d_qk: d,
                d_v: d,
                knobs,
                ..Case::default()
            });
        }
    }
    for mask in [MaskKind::None, MaskKind::CausalBottomRight] {
        all.push(Case { engine, mask, b: 1, h_q: 2, h_kv: 1, s_q: 70, s_kv: 8300, d_qk: 128, d_v: 128, ..Case::default() });
    }
    all
}

/// Forward cases.
pub fn forward() -> Vec<Case> {
    [QAT_FWD, QAT_FWD_SM90].into_iter().flat_map(|engine| [list(engine, &[false]), forward_only(engine)].concat()).collect()
}

/// What the Hopper row alone decides: groups of query heads whole in one block, halved, one a block; heads that take turns in the grid; and scores at
/// every level of the quantiser (low, floor, any scale) over many tiles.
fn hopper_only() -> Vec<Case> {
    let engine = QAT_BWD_SM90;
    let mut all = Vec::new();
    for (n, (b, h_q, h_kv)) in [(1, 8, 2), (16, 16, 2), (33, 8, 2), (5, 24, 6)].into_iter().enumerate() {
        for mask in [MaskKind::None, MaskKind::Causal, MaskKind::CausalWindow(33)] {
            let (d, deterministic) = ([64, 128][n % 2], n % 2 == 1);
            all.push(Case { engine, mask, b, h_q, h_kv, s_q: 140, s_kv: 300, d_qk: d, d_v: d, deterministic, ..Case::default() });
        }
    }
    for (n, logits) in VALUES.into_iter().enumerate() {
        for d in [64, 128] {
            let mask = [MaskKind::None, MaskKind::Causal][n % 2];
            let fwd = Fwd { logits, ..Fwd::default() };
            all.push(Case { engine, mask, b: 1, h_q: 1, h_kv: 1, s_q: 300, s_kv: 1500, d_qk: d, d_v: d, fwd, ..Case::default() });
        }
    }
    all
}

/// Backward cases: the list, then every tile pair of the portable row by name, because a device has only one of them as its default.
pub fn backward() -> Vec<Case> {
    let mut all = list(QAT_BWD, &[false, true]);
    for (d, tiles) in [(64, (64, 128)), (64, (128, 128)), (128, (64, 64)), (128, (64, 128))] {
        for (i, mask) in MaskKind::ALL.into_iter().enumerate() {
            let (s_q, s_kv) = sizes(i + all.len(), mask);
            let knobs = vec![(Knob::TileM, tiles.0), (Knob::TileN, tiles.1)];
            let fwd = Fwd { logits: VALUES[i % VALUES.len()], ..Fwd::default() };
            let (h_kv, deterministic) = (KV_HEADS[i % 3], (i + all.len() / 10) % 2 == 1);
            let base =
                Case { engine: QAT_BWD, mask, h_kv, d_qk: d, d_v: d, deterministic, s_q, s_kv, knobs, fwd, ..Case::default() };
            all.push(dealt(i, base));
        }
    }
    all.extend(list(QAT_BWD_SM90, &[false, true]));
    all.extend(hopper_only());
    // Lengths and single rows in both modes at both head dims: the list deals the modes so that each has them at one.
    for (d, deterministic) in [(64, false), (64, true), (128, false), (128, true)] {
        let base = Case { engine: QAT_BWD_SM90, d_qk: d, d_v: d, deterministic, h_kv: 2, ..Case::default() };
        let lens = Lens::Padded { q: vec![130, 77], kv: vec![100, 0] };
        all.push(Case { lens, mask: MaskKind::CausalBottomRight, ..base.clone() });
        all.push(Case { s_q: 1, s_kv: 200, ..base });
    }
    all
}
