//! The case list: every pair of types and mode with every shape; offsets, indices and layouts rotate through them.

use frostgraph::engines::grouped_gemm::GemmPort;
use frostgraph::engines::moe_grouped_matmul::{BlockScales, MoeFacts, MoeMode, MoePorts, ScalePlace};
use frostgraph::engines::{DType, Feature, FeatureSet, Uid};

/// How the offsets cut the routed rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// At random places, some of them equal.
    Random,
    /// All rows in the first group.
    First,
    /// All rows in the last group.
    Last,
    /// The last boundary lies before the end, the first behind the beginning.
    Inside,
    /// One row a group as far as they go.
    Single,
    /// No rows at all.
    Empty,
    /// At multiples of 128.
    Aligned,
    /// A boundary in the middle decreases.
    Decreasing,
    /// A boundary in the middle lies beyond the rows.
    Beyond,
    /// The first boundary is below 0.
    Negative,
}

/// One problem.
#[derive(Debug, Clone)]
pub struct Case {
    pub tokens: i64,
    pub routed: i64,
    pub n: i64,
    pub k: i64,
    pub experts: i64,
    pub groups: i64,
    pub mode: MoeMode,
    pub top_k: i64,
    pub input: DType,
    /// Type of the scales and values a scale.
    pub scales: Option<(DType, i64)>,
    /// Where the scales of token and weights lie.
    pub places: [ScalePlace; 2],
    pub output: DType,
    pub cut: Cut,
    pub explicit_end: bool,
    pub wide_offsets: bool,
    /// Elements behind each row of token, weights and output.
    pub gap: i64,
    /// Weights with n contiguous.
    pub n_major: bool,
    /// Some indices of routed rows are out of range.
    pub bad_indices: bool,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mode = self.mode.json();
        write!(
            f,
            "{} -> {} {mode} T {} R {} N {} K {} E {} G {}, {:?}",
            self.input, self.output, self.tokens, self.routed, self.n, self.k, self.experts, self.groups, self.cut
        )?;
        if let Some((sf, vec)) = self.scales {
            write!(f, ", {sf}/{vec} {:?}", self.places)?;
        }
        let flags = [
            (self.explicit_end, "end"),
            (self.wide_offsets, "i64"),
            (self.gap > 0, "gaps"),
            (self.n_major, "n-major"),
            (self.bad_indices, "bad indices"),
            (self.top_k > 1, "top_k"),
        ];
        flags.iter().filter(|x| x.0).try_for_each(|x| write!(f, ", {}", x.1))
    }
}

/// Routed rows, N, K, experts, groups: one partial tile of every extent; a whole tile; several tiles of each; more groups than a warp looks
/// at; two batches of experts; odd multiples of 8; one step of k; many steps; a row of columns.
const SHAPES: [(i64, i64, i64, i64, i64); 10] = [
    (24, 40, 24, 2, 2),
    (128, 256, 64, 1, 1),
    (600, 520, 136, 5, 5),
    (384, 264, 72, 70, 70),
    (512, 128, 320, 6, 12),
    (1000, 248, 136, 36, 36),
    (300, 768, 8, 3, 3),
    (260, 16, 1480, 4, 4),
    (64, 1800, 64, 5, 40),
    (2000, 8, 48, 9, 9),
];

const CUTS: [Cut; 10] = [
    Cut::Random,
    Cut::Inside,
    Cut::First,
    Cut::Decreasing,
    Cut::Single,
    Cut::Aligned,
    Cut::Beyond,
    Cut::Empty,
    Cut::Last,
    Cut::Negative,
];

/// Narrow operands: values, scales, values a scale.
const NARROW: [(DType, Option<(DType, i64)>); 7] = [
    (DType::F8E4M3, Some((DType::F8E8M0, 32))),
    (DType::F8E5M2, Some((DType::F8E8M0, 32))),
    (DType::F4E2M1, Some((DType::F8E4M3, 16))),
    (DType::F4E2M1, Some((DType::F8E8M0, 16))),
    (DType::F4E2M1, Some((DType::F8E8M0, 32))),
    (DType::F8E4M3, None),
    (DType::F8E5M2, None),
];

/// The list.
pub fn all() -> Vec<Case> {
    let mut list = Vec::new();
    let mut kinds = Vec::new();
    for input in [DType::BF16, DType::F16] {
        for output in [DType::BF16, DType::F16, DType::F32] {
            kinds.extend(MoeMode::ALL.map(|mode| (input, None, output, mode)));
        }
    }
    // Of narrow operands main sees bf16, whose kernels are those of the kinds above.
    for (i, (input, scales)) in NARROW.into_iter().enumerate() {
        let output = |m: usize| [DType::BF16, DType::F32, DType::F16][(i + m) % 3];
        kinds.extend(MoeMode::ALL.iter().enumerate().map(|(m, &mode)| (input, scales, output(m), mode)));
    }
    for (i, &(input, scales, output, mode)) in kinds.iter().enumerate() {
        for (s, &(routed, n, k, experts, groups)) in SHAPES.iter().enumerate() {
            // A narrow kind takes every shape once.
            for v in if input.is_half() { 0..3usize } else { (i + s) % 3..(i + s) % 3 + 1 } {
                // Two forms of offsets a kind (each is a kernel to compile); cuts move against shapes and kinds.
                let form = (v + i) % 2;
                let explicit_end = form == 0;
                let mut cut = CUTS[(3 * v + s + i) % 10];
                if groups < 3 && matches!(cut, Cut::Decreasing | Cut::Beyond) || cut == Cut::Inside && !explicit_end {
                    cut = Cut::Random;
                }
                list.push(Case {
                    tokens: if mode == MoeMode::Gather { routed / 2 + 3 } else { routed },
                    routed,
                    n,
                    k,
                    experts,
                    groups,
                    mode,
                    top_k: if mode == MoeMode::Scatter { [1, 2, 4][v] } else { 1 },
                    input,
                    scales,
                    places: [s % 2, s / 2 % 2].map(|x| [ScalePlace::Atoms, ScalePlace::Strided][x]),
                    output,
                    cut,
                    // One expert and one start is the only form that has no end.
                    explicit_end,
                    wide_offsets: (i / 2 + form) % 2 == 1,
                    gap: if (s + v) % 3 == 1 { 8 } else { 0 },
                    n_major: input.is_half() && (i / 3 + form) % 2 == 1,
                    bad_indices: mode != MoeMode::None && (s + v) % 4 == 2,
                });
            }
        }
    }
    list
}

impl Case {
    /// Every second case asks for the status word.
    pub fn has_status(&self) -> bool {
        self.bad_indices
            || matches!(self.cut, Cut::Decreasing | Cut::Beyond | Cut::Negative)
            || (self.n + self.k / 8 + self.top_k) % 2 == 0
    }

    pub fn facts(&self) -> MoeFacts {
        let (t, r, n, k, e) = (self.tokens, self.routed, self.n, self.k, self.experts);
        let port = |uid: Uid, name: &str, dtype: DType, dim: [i64; 3], stride: [i64; 3]| {
            let (dim, stride) = (dim.to_vec(), stride.to_vec());
            Some(GemmPort { uid, name: name.into(), dtype, dim, stride, alignment: 16, is_virtual: false })
        };
        let list = self.groups + i64::from(self.explicit_end);
        let offset_type = if self.wide_offsets { DType::I64 } else { DType::I32 };
        let (token_row, out_row) = (k + self.gap, n + self.gap);
        let weight = if self.n_major {
            let row = n + 2 * self.gap;
            [k * row, row, 1]
        } else {
            let row = k + 2 * self.gap;
            [n * row, 1, row]
        };
        let (sf, vec) = self.scales.unwrap_or((DType::F8E8M0, 32));
        let up = |x: i64, by: i64| (x + by - 1) / by * by;
        let blocks = up(k, vec) / vec;
        let extents = |place: ScalePlace, rows: i64| match place {
            ScalePlace::Atoms => [up(rows, 128), up(blocks, 4)],
            ScalePlace::Strided => [rows, blocks],
        };
        let ([rows, a], [columns, b]) = (extents(self.places[0], t), extents(self.places[1], n));
        let scaled = |p: Option<GemmPort>| p.filter(|_| self.scales.is_some());
        let index = |uid, name: &str| port(uid, name, DType::I32, [1, r, 1], [r, 1, 1]);
        let ports = MoePorts {
            token: port(1, "token", self.input, [1, t, k], [t * token_row, token_row, 1]),
            weight: port(2, "weight", self.input, [e, k, n], weight),
            token_scale: scaled(port(3, "token_scale", sf, [1, rows, a], [rows * a, a, 1])),
            weight_scale: scaled(port(4, "weight_scale", sf, [e, b, columns], [b * columns, 1, b])),
            first_token_offset: port(5, "first_token_offset", offset_type, [list, 1, 1], [1, 1, 1]),
            token_index: index(6, "token_index").filter(|_| self.mode != MoeMode::None),
            token_ks: index(7, "token_ks").filter(|_| self.mode == MoeMode::Scatter),
            output: port(21, "output", self.output, [1, r, n], [r * out_row, out_row, 1]),
            status: port(22, "status", DType::I32, [1, 1, 1], [1, 1, 1]).filter(|_| self.has_status()),
        };
        let mut features = FeatureSet::EMPTY;
        features.set_if(Feature::NMajorB, self.n_major);
        features.set_if(Feature::StatusWord, self.has_status());
        features.set_if(Feature::GatherTokens, self.mode == MoeMode::Gather);
        features.set_if(Feature::ScatterTokens, self.mode == MoeMode::Scatter);
        MoeFacts {
            tokens: t,
            routed: r,
            n,
            k,
            experts: e,
            groups: self.groups,
            explicit_end: self.explicit_end,
            mode: self.mode,
            top_k: self.top_k,
            input: self.input,
            scales: self.scales.map(|(dtype, vec)| BlockScales { dtype, vec, token: self.places[0], weight: self.places[1] }),
            output: self.output,
            features,
            ports,
        }
    }
}
