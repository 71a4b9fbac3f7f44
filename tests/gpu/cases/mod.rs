//! A case: one problem, its layout, and the engine that must solve it.

pub mod backward;
pub mod forward;
pub mod qat;

use frostgraph::engines::Knob;
use frostgraph::DType;

/// Rows under test.
pub const BWD: &str = "sdpa_bwd_sm120";
pub const BWD_SM90: &str = "sdpa_bwd_sm90";
pub const PREFILL: &str = "sdpa_fwd_prefill_sm80";
pub const DECODE: &str = "sdpa_fwd_decode_sm80";
pub const HOPPER: &str = "sdpa_fwd_prefill_sm90";
pub const QAT_FWD: &str = "nvfp4_qat_fwd_sm120";
pub const QAT_FWD_SM90: &str = "nvfp4_qat_fwd_sm90";
pub const QAT_BWD: &str = "nvfp4_qat_bwd_sm120";
pub const QAT_BWD_SM90: &str = "nvfp4_qat_bwd_sm90";

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

    pub fn left_or_bottom_right(self) -> bool {
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

impl Lens {
    /// Query and key lengths, where they are not full.
    pub fn both(&self) -> Option<(&Vec<i64>, &Vec<i64>)> {
        match self {
            Lens::Full => None,
            Lens::Padded { q, kv } | Lens::Thd { q, kv, .. } => Some((q, kv)),
        }
    }
}

/// Stats of a forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatsKind {
    None,
    Natural,
    Log2,
}

/// Softmax scale of a forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleKind {
    /// 1/sqrt(d).
    Usual,
    Zero,
    /// The usual one, negated.
    Negative,
    /// The usual one, in a tensor.
    Tensor,
}

/// Values of Q, K and V.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logits {
    Normal,
    /// Every logit is about minus this (reports 1 and 3: the fp32 exponential ends at 88.7).
    About(i64),
    /// Keys grow from tile to tile, so that every tile rescales what was summed before (rule S3).
    Growing,
    /// V near the end of bf16's range.
    Loud,
    /// NVFP4: every third block of 16 of Q, K and V is zero, and so is the first row of each head.
    ZeroBlocks,
    /// NVFP4: values on the ties of E2M1, the largest magnitude of a block in its first or last lane in turn.
    Ties,
    /// NVFP4: Q near the floor of the scale, K and V near saturation.
    FarScales,
    /// NVFP4: everything near the floor of the scale, much of it below what rounds to zero.
    Tiny,
    /// NVFP4: logits so peaked that P has blocks with one large value, and blocks at the floor of the scale.
    Peaked,
}

/// Page pools of K and V.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pages {
    pub rows: i64,
    /// (page, row, head, dim) in memory instead of (page, head, row, dim).
    pub nhd: bool,
    /// Table entries behind those that the keys need.
    pub spare: i64,
}

/// What only a forward has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fwd {
    pub stats: StatsKind,
    /// Row maximum and sum of exponentials are outputs as well.
    pub max_sum: bool,
    /// Lengths are given as prefix sums.
    pub cu: bool,
    pub scale: ScaleKind,
    pub logits: Logits,
    pub pages: Option<Pages>,
    /// Sinks of -inf, +inf, 2e38 and 2.4e38 in turn, instead of random ones (report 80).
    pub extreme_sinks: bool,
}

impl Default for Fwd {
    fn default() -> Fwd {
        Fwd {
            stats: StatsKind::Natural,
            max_sum: false,
            cu: false,
            scale: ScaleKind::Usual,
            logits: Logits::Normal,
            pages: None,
            extreme_sinks: false,
        }
    }
}

/// One problem.
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
    /// Knobs of the plan; none takes the engine's best plan.
    pub knobs: Vec<(Knob, i64)>,
    /// Row under test.
    pub engine: &'static str,
    /// What only a forward has.
    pub fwd: Fwd,
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
            knobs: Vec::new(),
            engine: BWD,
            fwd: Fwd::default(),
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
        for (knob, value) in &self.knobs {
            write!(f, " {}={value}", knob.name())?;
        }
        if self.engine == BWD_SM90 {
            write!(f, " {}", self.engine)?;
        }
        if self.is_forward() {
            write!(f, " {} {:?}", self.engine, self.fwd)?;
        }
        Ok(())
    }
}

impl Case {
    /// A small problem that this row serves in its default configuration.
    pub fn plain(engine: &'static str) -> Case {
        let base = Case { engine, ..Case::default() };
        if engine == DECODE {
            Case { s_q: 2, s_kv: 700, h_q: 8, h_kv: 2, ..base }
        } else {
            base
        }
    }

    pub fn is_forward(&self) -> bool {
        ![BWD, BWD_SM90, QAT_BWD, QAT_BWD_SM90].contains(&self.engine)
    }

    /// Whether Q, K, V and P are fake-quantised to NVFP4.
    pub fn is_qat(&self) -> bool {
        [QAT_FWD, QAT_FWD_SM90, QAT_BWD, QAT_BWD_SM90].contains(&self.engine)
    }

    /// Whether two runs must give the same bits: always where the row promises it, else when asked.
    pub fn repeats(&self) -> bool {
        self.deterministic || frostgraph::engines::row_by_name(self.engine).is_some_and(|row| row.reproducible)
    }

    /// Softmax scale.
    pub fn scale(&self) -> f32 {
        let usual = (self.d_qk as f32).sqrt().recip();
        match self.fwd.scale {
            ScaleKind::Usual | ScaleKind::Tensor => usual,
            ScaleKind::Zero => 0.0,
            ScaleKind::Negative => -usual,
        }
    }
}

/// Query heads of four, and their key heads: MHA, GQA, MQA.
pub const KV_HEADS: [i64; 3] = [4, 2, 1];

/// Sizes around tile edges, single rows, more queries than keys and fewer.
const SIZES: [(i64, i64); 10] =
    [(64, 64), (77, 133), (128, 128), (1, 65), (200, 200), (129, 257), (190, 255), (33, 31), (255, 100), (300, 300)];

/// The n-th pair of sizes that the mask takes.
pub fn sizes(n: usize, mask: MaskKind) -> (i64, i64) {
    let (q, kv) = SIZES[n % SIZES.len()];
    // Bounds that need as many keys as queries in an unpadded graph.
    if mask.left_or_bottom_right() && q > kv {
        (kv, q)
    } else {
        (q, kv)
    }
}
