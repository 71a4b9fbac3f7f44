//! The facts of one grouped matrix product: what the graph asks for, never whether it is good.

use crate::{DType, FeatureSet, Uid};

/// Which operand holds the pre-activation: the two published readings of the backward epilogue.
///
/// Writing `x` for the pre-activation and `u` for the other factor, both compute `D = 2 * prob * u * relu(x)` and
/// `dprob = sum over n of u * relu(x)^2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Formula {
    /// `x = G`, `u = C`: the equations of the specification (and of the reference's first release and its tests). The default.
    #[default]
    PreactivationG,
    /// `x = C`, `u = G`: what later releases of the reference compute. G is then the incoming gradient and C the saved pre-activation,
    /// the usual meaning of a backward pass; the specification names the roles the other way round (facts §9.5).
    PreactivationC,
}

/// How the weights of the experts lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Weights {
    /// One tensor (N, K, L).
    Dense,
    /// A pool tensor, and per expert a byte offset into it (`B_ptrs`, `SFB_ptrs`).
    Pool,
    /// Per expert a device address; the buffers are the caller's and unknown to the graph.
    Addresses,
}

/// One operand; extents of the graph, strides in elements, any rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GemmPort {
    /// Identifier in the graph.
    pub uid: Uid,
    /// Label for messages.
    pub name: String,
    /// Element type as declared: packed FP4 may be declared `UINT8`, two values an element.
    pub dtype: DType,
    /// Extents.
    pub dim: Vec<i64>,
    /// Strides in elements.
    pub stride: Vec<i64>,
    /// Guaranteed alignment of the base address in bytes.
    pub alignment: i64,
    /// Lives in the workspace rather than in a caller's buffer.
    pub is_virtual: bool,
}

/// Every operand; absent ones are `None`. Layouts are those of facts §9.1 and have been checked when facts exist.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GroupedGemmPorts {
    /// (M, K, 1), k contiguous.
    pub a: Option<GemmPort>,
    /// (N, K, L) dense, k or (FP8) n contiguous; a pool of any shape with [`Weights::Pool`].
    pub b: Option<GemmPort>,
    /// (M, N, 1), n contiguous.
    pub c: Option<GemmPort>,
    /// Scale atoms of A; [`super::scales`].
    pub sfa: Option<GemmPort>,
    /// Scale atoms of B: dense, or a pool of any shape.
    pub sfb: Option<GemmPort>,
    /// (L,), i64.
    pub b_ptrs: Option<GemmPort>,
    /// (L,), i64.
    pub sfb_ptrs: Option<GemmPort>,
    /// (L,), i32: cumulative ends of the experts' rows.
    pub padded_offsets: Option<GemmPort>,
    /// (L,), f32.
    pub alpha: Option<GemmPort>,
    /// (M, 1, 1), f32.
    pub prob: Option<GemmPort>,
    /// (1,), f32; present exactly when scales are generated.
    pub norm_const: Option<GemmPort>,
    /// (M, N, 1), output.
    pub d_row: Option<GemmPort>,
    /// (M, N, 1), output.
    pub d_col: Option<GemmPort>,
    /// (M, N, 1), output.
    pub d_srelu: Option<GemmPort>,
    /// (M, 1, 1), f32, output.
    pub dprob: Option<GemmPort>,
    /// (L, N, 1), bf16, output.
    pub dbias: Option<GemmPort>,
    /// (L, 1), f32, output.
    pub amax: Option<GemmPort>,
    /// Scale atoms of D_row, output.
    pub sfd_row: Option<GemmPort>,
    /// Scale atoms of D_col, output; rows are N, blocks are M / 32.
    pub sfd_col: Option<GemmPort>,
    /// Scale atoms of D_srelu, as `sfd_col`, output.
    pub sfd_col_d_srelu: Option<GemmPort>,
    /// (1,), i32, output; [`super::groups::Status`].
    pub status: Option<GemmPort>,
}

impl GroupedGemmPorts {
    /// The operands that are present, with their labels, inputs first; `true` where the node writes.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &GemmPort, bool)> {
        [
            ("A", &self.a, false),
            ("B", &self.b, false),
            ("C", &self.c, false),
            ("SFA", &self.sfa, false),
            ("SFB", &self.sfb, false),
            ("B_ptrs", &self.b_ptrs, false),
            ("SFB_ptrs", &self.sfb_ptrs, false),
            ("padded_offsets", &self.padded_offsets, false),
            ("alpha", &self.alpha, false),
            ("prob", &self.prob, false),
            ("norm_const", &self.norm_const, false),
            ("D_row", &self.d_row, true),
            ("D_col", &self.d_col, true),
            ("D_srelu", &self.d_srelu, true),
            ("dprob", &self.dprob, true),
            ("dbias", &self.dbias, true),
            ("amax", &self.amax, true),
            ("SFD_row", &self.sfd_row, true),
            ("SFD_col", &self.sfd_col, true),
            ("SFD_col_d_srelu", &self.sfd_col_d_srelu, true),
            ("status", &self.status, true),
        ]
        .into_iter()
        .filter_map(|(label, port, written)| port.as_ref().map(|p| (label, p, written)))
    }
}

/// Facts of one `grouped_gemm_dsrelu` node (facts page §9).
#[derive(Debug, Clone, PartialEq)]
pub struct GroupedGemmFacts {
    /// Rows of A, C and D over all experts: a bound on the last end of `padded_offsets`.
    pub m: i64,
    /// Columns of D.
    pub n: i64,
    /// Contraction.
    pub k: i64,
    /// Experts.
    pub experts: i64,
    /// Element type of A and B: E2M1 (also when declared as packed bytes), E4M3 or E5M2.
    pub ab: DType,
    /// Element type of every scale factor: E8M0 or E4M3.
    pub sf: DType,
    /// Values of K (and of N and M in generated scales) that share a scale: 16 or 32.
    pub sf_vec: i64,
    /// Element type of C.
    pub c: DType,
    /// Element type of D_row, D_col and D_srelu.
    pub d: DType,
    /// Where B lies.
    pub weights: Weights,
    /// B is (N, K) with n contiguous instead of k.
    pub b_n_major: bool,
    /// Which operand is the pre-activation.
    pub formula: Formula,
    /// `s` of the soft clamp `s * tanh(relu(x) / s)`, finite and above 0.
    pub tanh_clamp_scale: Option<f32>,
    /// Column scales lie expert by expert, each with a layout of its own.
    pub discrete_col_sfd: bool,
    /// SFD_row and SFD_col are generated: FP8 results.
    pub quantised: bool,
    /// dprob and dbias must be equal bits in every run.
    pub deterministic: bool,
    /// Everything beyond geometry and types that the graph uses.
    pub features: FeatureSet,
    /// Operands.
    pub ports: GroupedGemmPorts,
}

impl GroupedGemmFacts {
    /// Bytes of one expert's payload and scales of B.
    pub fn expert_bytes(&self) -> [i64; 2] {
        let up = |x: i64, by: i64| (x as u64).div_ceil(by as u64) as i64;
        let atoms = up(self.n, 128) * up(up(self.k, self.sf_vec), 4);
        [self.n * self.k * i64::from(self.ab.bits()) / 8, atoms * super::scales::ATOM_BYTES as i64]
    }
}
