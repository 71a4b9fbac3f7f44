//! The case list of the backward: every mask × {MHA, GQA, MQA} × head dims × {bf16, f16} × {default, deterministic}, ragged sizes
//! dealt over it, then the features on top.

use frostgraph::DType;

/// Mask of a case; numbers are offsets (W, R).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaskKind {
    None,
    Causal,
    CausalBottomRight,
    /// Right bound R, top-left.
    Band(i64),
    /// Left bound W without causal.
    Window(i64),
    CausalWindow(i64),
    BottomRightWindow(i64),
    /// Left bound W and right bound R.
    TwoSided(i64, i64),
}

impl MaskKind {
    pub const ALL: [MaskKind; 8] = [
        MaskKind::None,
        MaskKind::Causal,
        MaskKind::CausalBottomRight,
        MaskKind::Band(5),
        MaskKind::Window(40),
        MaskKind::CausalWindow(33),
        MaskKind::BottomRightWindow(70),
        MaskKind::TwoSided(64, 9),
    ];

    fn left_or_bottom_right(self) -> bool {
        !matches!(self, MaskKind::None | MaskKind::Causal | MaskKind::Band(_))
    }
}

/// How tensors lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    Bshd,
    Bhsd,
    Sbhd,
    /// Gaps after every row, head and batch; outputs in another order than inputs.
    Gapped,
}

/// Lengths of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lens {
    Full,
    /// Dense with per-batch lengths.
    Padded {
        q: Vec<i64>,
        kv: Vec<i64>,
    },
    /// Packed; the bools choose head-major Stats and 64-bit offsets.
    Thd {
        q: Vec<i64>,
        kv: Vec<i64>,
        head_major: bool,
        wide: bool,
    },
}

/// One backward problem.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    pub b: i64,
    pub h_q: i64,
    pub h_kv: i64,
    pub s_q: i64,
    pub s_kv: i64,
    pub d_qk: i64,
    pub d_v: i64,
    pub dtype: DType,
    pub mask: MaskKind,
    pub deterministic: bool,
    pub lens: Lens,
    pub layout: Layout,
    pub sink: bool,
    /// Element type, and whether the batch is broadcast.
    pub bias: Option<(DType, bool)>,
    pub dbias: Option<DType>,
    pub strided_stats: bool,
    /// Tile knobs; none takes the best plan.
    pub tiles: Option<(i64, i64)>,
}

impl Default for Case {
    fn default() -> Case {
        Case {
            b: 2,
            h_q: 4,
            h_kv: 4,
            s_q: 130,
            s_kv: 130,
            d_qk: 64,
            d_v: 64,
            dtype: DType::BF16,
            mask: MaskKind::None,
            deterministic: false,
            lens: Lens::Full,
            layout: Layout::Bshd,
            sink: false,
            bias: None,
            dbias: None,
            strided_stats: false,
            tiles: None,
        }
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Case { b, h_q, h_kv, s_q, s_kv, d_qk, d_v, dtype, mask, .. } = self;
        write!(f, "b{b} h{h_q}/{h_kv} s{s_q}x{s_kv} d{d_qk}/{d_v} {dtype} {mask:?}")?;
        if self.deterministic {
            write!(f, " det")?;
        }
        if self.lens != Lens::Full {
            write!(f, " {:?}", self.lens)?;
        }
        if self.layout != Layout::Bshd {
            write!(f, " {:?}", self.layout)?;
        }
        if let Some((t, broadcast)) = self.bias {
            write!(f, " bias {t}{}", if broadcast { " broadcast" } else { "" })?;
        }
        if let Some(t) = self.dbias {
            write!(f, " dbias {t}")?;
        }
        if self.sink {
            write!(f, " sink")?;
        }
        if self.strided_stats {
            write!(f, " strided stats")?;
        }
        if let Some((m, n)) = self.tiles {
            write!(f, " tiles {m}x{n}")?;
        }
        Ok(())
    }
}

/// The head dims of the proof: native, padded, MLA, padded MLA.
pub const HEAD_DIMS: [(i64, i64); 9] =
    [(8, 8), (40, 40), (64, 64), (72, 72), (96, 96), (128, 128), (192, 128), (96, 40), (256, 256)];
/// Query heads of four, and their key heads: MHA, GQA, MQA.
pub const KV_HEADS: [i64; 3] = [4, 2, 1];

/// Sizes around tile edges, single rows, more queries than keys and fewer.
const SIZES: [(i64, i64); 10] =
    [(64, 64), (77, 133), (128, 128), (1, 65), (200, 200), (129, 257), (190, 255), (33, 31), (255, 100), (300, 300)];

fn sizes(n: usize, mask: MaskKind) -> (i64, i64) {
    let (q, kv) = SIZES[n % SIZES.len()];
    // Bounds that need as many keys as queries in an unpadded graph.
    if mask.left_or_bottom_right() && q > kv {
        (kv, q)
    } else {
        (q, kv)
    }
}

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
                all.push(Case { tiles: Some(tiles), d_qk, d_v, mask, deterministic, s_q: 200, s_kv: 300, ..Case::default() });
            }
        }
    }
    all
}

/// The list, in a fixed order.
pub fn all() -> Vec<Case> {
    let mut all = product();
    all.extend(featured());
    all
}
