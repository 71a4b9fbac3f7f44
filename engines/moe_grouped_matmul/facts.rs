//! The facts of one plain grouped product: what the graph asks for, never whether it is good.

use crate::grouped_gemm::scales::ScaleMatrix;
use crate::grouped_gemm::GemmPort;
use crate::{DType, FeatureSet};

/// Where the rows of a group come from and go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MoeMode {
    /// Tokens already lie group by group, and so do the results.
    #[default]
    None,
    /// Routed row `r` reads token `token_index[r]`.
    Gather,
    /// Routed row `r` is written to `token_index[r] * top_k + token_ks[r]`.
    Scatter,
}

impl MoeMode {
    /// Every mode.
    pub const ALL: [MoeMode; 3] = [MoeMode::None, MoeMode::Gather, MoeMode::Scatter];

    /// Spelling in graph JSON.
    pub const fn json(self) -> &'static str {
        match self {
            MoeMode::None => "NONE",
            MoeMode::Gather => "GATHER",
            MoeMode::Scatter => "SCATTER",
        }
    }
}

/// How the scales of an operand lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScalePlace {
    /// Atoms of 128 rows by 4 blocks, whole atoms in both directions.
    Atoms,
    /// By the strides of the tensor.
    Strided,
}

/// One scale for a block of values along K.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockScales {
    /// E8M0 or E4M3.
    pub dtype: DType,
    /// Values of K that share a scale: 16 or 32.
    pub vec: i64,
    /// Layout of the token's scales.
    pub token: ScalePlace,
    /// Layout of the weights' scales.
    pub weight: ScalePlace,
}

/// Every operand; absent ones are `None`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MoePorts {
    /// (1, T, K).
    pub token: Option<GemmPort>,
    /// (E, K, N).
    pub weight: Option<GemmPort>,
    /// (1, T, blocks), or whole atoms.
    pub token_scale: Option<GemmPort>,
    /// (E, blocks, N), or whole atoms.
    pub weight_scale: Option<GemmPort>,
    /// (G, 1, 1) or (G + 1, 1, 1); i32 or i64.
    pub first_token_offset: Option<GemmPort>,
    /// (1, R, 1), i32.
    pub token_index: Option<GemmPort>,
    /// (1, R, 1), i32.
    pub token_ks: Option<GemmPort>,
    /// (1, R, N), output.
    pub output: Option<GemmPort>,
    /// (1,), i32, output; [`super::routing::Status`].
    pub status: Option<GemmPort>,
}

impl MoePorts {
    /// The operands that are present, with their labels, inputs first; `true` where the node writes.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &GemmPort, bool)> {
        [
            ("Token", &self.token, false),
            ("Weight", &self.weight, false),
            ("Token scale", &self.token_scale, false),
            ("Weight scale", &self.weight_scale, false),
            ("FirstTokenOffset", &self.first_token_offset, false),
            ("TokenIndex", &self.token_index, false),
            ("TokenKs", &self.token_ks, false),
            ("Output", &self.output, true),
            ("Status", &self.status, true),
        ]
        .into_iter()
        .filter_map(|(label, port, written)| port.as_ref().map(|p| (label, p, written)))
    }
}

/// Facts of one `moe_grouped_matmul` node.
#[derive(Debug, Clone, PartialEq)]
pub struct MoeFacts {
    /// Rows of the token tensor.
    pub tokens: i64,
    /// Routed rows R: those of the output.
    pub routed: i64,
    /// Columns of the output.
    pub n: i64,
    /// Contraction.
    pub k: i64,
    /// Experts E.
    pub experts: i64,
    /// Groups G, a multiple of E; group `g` uses the weights of expert `g % E`.
    pub groups: i64,
    /// The offsets end with a boundary of their own.
    pub explicit_end: bool,
    /// Routing.
    pub mode: MoeMode,
    /// Experts a token; of consequence in scatter mode only.
    pub top_k: i64,
    /// Element type of token and weight.
    pub input: DType,
    /// Block scales; both operands have them or neither.
    pub scales: Option<BlockScales>,
    /// Element type of the output.
    pub output: DType,
    /// Everything beyond geometry and types that the graph uses.
    pub features: FeatureSet,
    /// Operands.
    pub ports: MoePorts,
}

/// Where one element or scale lies: offset and strides of two axes, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// `base + row * s[0] + col * s[1]`.
    Strided(usize, [usize; 2]),
    /// In the atoms of a matrix that begins at this byte.
    Atoms(usize, ScaleMatrix),
}

impl At {
    #[inline(always)]
    pub fn index(&self, row: usize, col: usize) -> usize {
        match self {
            At::Strided(base, s) => base + row * s[0] + col * s[1],
            At::Atoms(base, matrix) => base + matrix.index(row, col),
        }
    }
}

impl MoeFacts {
    /// Blocks of K; one without scales.
    pub fn blocks(&self) -> usize {
        self.scales.map_or(1, |s| (self.k as usize).div_ceil(s.vec as usize))
    }

    /// Rows and K of the token.
    pub(super) fn token_at(&self) -> At {
        let s = strides(&self.ports.token);
        At::Strided(0, [s[1], s[2]])
    }

    /// Columns and K of one expert's weights.
    pub(super) fn weight_at(&self, expert: usize) -> At {
        let s = strides(&self.ports.weight);
        At::Strided(expert * s[0], [s[2], s[1]])
    }

    /// Rows and blocks of the token's scales.
    pub(super) fn token_scale_at(&self) -> At {
        let s = strides(&self.ports.token_scale);
        match self.scales.map(|x| x.token) {
            Some(ScalePlace::Atoms) => At::Atoms(0, ScaleMatrix { rows: self.tokens as usize, blocks: self.blocks() }),
            Some(ScalePlace::Strided) | None => At::Strided(0, [s[1], s[2]]),
        }
    }

    /// Columns and blocks of one expert's scales.
    pub(super) fn weight_scale_at(&self, expert: usize) -> At {
        let s = strides(&self.ports.weight_scale);
        match self.scales.map(|x| x.weight) {
            Some(ScalePlace::Atoms) => {
                let matrix = ScaleMatrix { rows: self.n as usize, blocks: self.blocks() };
                At::Atoms(expert * matrix.bytes(), matrix)
            }
            Some(ScalePlace::Strided) | None => At::Strided(expert * s[0], [s[2], s[1]]),
        }
    }

    /// Rows and columns of the output.
    pub(super) fn output_at(&self) -> At {
        let s = strides(&self.ports.output);
        At::Strided(0, [s[1], s[2]])
    }
}

/// Strides of an operand of rank 3; zeros where it is absent.
fn strides(port: &Option<GemmPort>) -> [usize; 3] {
    let mut out = [0; 3];
    if let Some(p) = port {
        for (o, &s) in out.iter_mut().zip(&p.stride) {
            *o = usize::try_from(s).unwrap_or(0);
        }
    }
    out
}
