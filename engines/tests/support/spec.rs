//! What a case is: sizes, masks, and how its operands are declared.

use frostgraph_engines::sdpa::{Mask, Recipe};
use frostgraph_engines::DType;

/// Order of the axes in memory, outermost first, and padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    Bhsd,
    Bshd,
    Sbhd,
    /// BSHD with 3 spare elements after every head and 5 after every row.
    Padded,
    /// BHSD with every second element of the head dim used.
    SpreadD,
    /// Head dim outside the sequence: BHDS.
    Bhds,
}

/// How packed operands are declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    /// Offsets are i64.
    pub wide: bool,
    /// Offsets count tokens and the multiplier is the token stride; otherwise they count elements.
    pub multiplier: bool,
    /// Stats are (H, T) instead of (T, H).
    pub head_major: bool,
    /// Unused token slots after each sequence.
    pub slack: i64,
}

pub const PACKED: Packed = Packed { wide: false, multiplier: true, head_major: false, slack: 0 };

/// One attention problem and how it is declared.
#[derive(Debug, Clone)]
pub struct Spec {
    pub b: usize,
    pub hq: usize,
    pub hkv: usize,
    pub sq: usize,
    pub skv: usize,
    pub dqk: usize,
    pub dv: usize,
    pub dtype: DType,
    pub mask: Mask,
    pub scale: f32,
    pub dynamic_scale: bool,
    pub lens: Option<(Vec<i32>, Vec<i32>)>,
    /// Lengths are declared as prefix sums.
    pub cu: bool,
    pub packed: Option<Packed>,
    /// Rows of a K/V page.
    pub page: Option<usize>,
    /// (batch extent, head extent, type).
    pub bias: Option<(usize, usize, DType)>,
    pub sink: Option<Vec<f32>>,
    pub layout: Layout,
    pub out_layout: Layout,
    pub stats_layout: Layout,
    pub log2: bool,
    /// Element type of O when it is not `dtype`.
    pub o_dtype: Option<DType>,
    /// Magnitude of Q and K values.
    pub size: f64,
    pub recipe: Recipe,
    pub seed: u64,
}

impl Spec {
    pub fn new(b: usize, hq: usize, hkv: usize, sq: usize, skv: usize, d: usize) -> Spec {
        Spec {
            b,
            hq,
            hkv,
            sq,
            skv,
            dqk: d,
            dv: d,
            dtype: DType::F32,
            mask: Mask::default(),
            scale: 1.0 / (d as f32).sqrt(),
            dynamic_scale: false,
            lens: None,
            cu: false,
            packed: None,
            page: None,
            bias: None,
            sink: None,
            layout: Layout::Bhsd,
            out_layout: Layout::Bhsd,
            stats_layout: Layout::Bhsd,
            log2: false,
            o_dtype: None,
            size: 1.0,
            recipe: Recipe::Plain,
            seed: 7,
        }
    }
}

/// Every mask kind and alignment that the engines serve.
pub fn masks() -> Vec<Mask> {
    let m = |left, right, bottom_right| Mask { left, right, bottom_right };
    vec![
        m(None, None, false),
        m(None, Some(0), false),
        m(None, Some(0), true),
        m(None, Some(5), false),
        m(None, Some(5), true),
        m(Some(9), None, false),
        m(Some(9), None, true),
        m(Some(9), Some(0), false),
        m(Some(9), Some(0), true),
        m(Some(3), Some(4), false),
        m(Some(0), Some(0), true),
    ]
}
