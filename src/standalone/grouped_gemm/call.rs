//! The arguments of a call: operands and options of the specification.

use super::super::operand::{Operand, Shape};
use crate::graph::{BMajor, DsreluFormula};
use crate::DType;

/// One call of [`grouped_gemm_dsrelu`](super::grouped_gemm_dsrelu). Build it with [`GroupedGemmDsreluCall::new`], then set what differs from the defaults.
///
/// Extents are given by A (M, K), by `n` or B (N), and by `padded_offsets` (L); trailing extents of 1 may be left at 1. FP4 payloads are
/// bytes with two values each ([`Operand::read_bytes`] with [`DType::F4E2M1`] and extents in values). Scale factors are bytes in the atom
/// layout; their extents follow from the others, so any may be given.
#[derive(Debug)]
pub struct GroupedGemmDsreluCall<'a> {
    /// (M, K): E2M1, E4M3 or E5M2, k contiguous.
    pub a: Operand<'a>,
    /// (N, K, L) with `b_major` contiguous; with pointers a pool of any extents, or absent.
    pub b: Operand<'a>,
    /// (M, N): f32, f16, bf16, E4M3 or E5M2.
    pub c: Operand<'a>,
    /// Scales of A: E8M0 or E4M3.
    pub sfa: Operand<'a>,
    /// Scales of B, or their pool, or absent.
    pub sfb: Operand<'a>,
    /// (L,), i32: cumulative ends, multiples of 256.
    pub padded_offsets: Operand<'a>,
    /// (L,), f32.
    pub alpha: Operand<'a>,
    /// (M,), f32.
    pub prob: Operand<'a>,
    /// (1,), f32; needed with FP8 results.
    pub norm_const: Operand<'a>,
    /// (L,), i64: byte offsets into the pool `b`, or device addresses where there is none; multiples of 16.
    pub b_ptrs: Operand<'a>,
    /// (L,), i64: as `b_ptrs`, for scales.
    pub sfb_ptrs: Operand<'a>,
    /// N where pointers are given.
    pub n: Option<i64>,
    /// Element type of B where pointers are given; A's by default.
    pub b_dtype: Option<DType>,
    /// Contiguous extent of B.
    pub b_major: BMajor,
    /// (M, N), written.
    pub d_row: Operand<'a>,
    /// (M, N), written.
    pub d_col: Operand<'a>,
    /// (M,), f32, written.
    pub dprob: Operand<'a>,
    /// (L, N), bf16, written; optional.
    pub dbias: Operand<'a>,
    /// (L,), f32, written; optional.
    pub amax: Operand<'a>,
    /// Scales of D_row, written; with FP8 results.
    pub sfd_row: Operand<'a>,
    /// Scales of D_col, written; with FP8 results.
    pub sfd_col: Operand<'a>,
    /// (M, N), written; optional.
    pub d_srelu: Operand<'a>,
    /// Scales of D_srelu, written; with FP8 results.
    pub sfd_col_d_srelu: Operand<'a>,
    /// (1,), i32, written; optional.
    pub status: Operand<'a>,
    /// Accumulation: f32; f64 where a row serves it.
    pub acc_dtype: DType,
    /// Tile (M, N) of the row; `None` leaves it to the row. 128 or 256 each.
    pub mma_tiler_mn: Option<(i64, i64)>,
    /// Cluster (M, N); `None` is (2, 1) with a tile of 256 rows and (1, 1) with 128.
    pub cluster_shape_mn: Option<(i64, i64)>,
    /// Values a scale: 16 by default.
    pub sf_vec_size: i64,
    /// Vectorised single-precision arithmetic in the epilogue, where a row has that choice.
    pub vector_f32: bool,
    /// 256.
    pub m_aligned: i64,
    /// Column scales expert by expert.
    pub discrete_col_sfd: bool,
    /// Equal bits of dprob and dbias in every run.
    pub deterministic: bool,
    /// Soft clamp.
    pub tanh_clamp_scale: Option<f32>,
    /// Which operand is the pre-activation.
    pub formula: DsreluFormula,
}

impl<'a> GroupedGemmDsreluCall<'a> {
    /// A call with the specification's defaults and without outputs: at least `d_row`, `d_col` and `dprob` must be set.
    #[allow(clippy::too_many_arguments, reason = "the operands of the operation, in the specification's order")]
    pub fn new(
        a: Operand<'a>,
        b: Operand<'a>,
        c: Operand<'a>,
        sfa: Operand<'a>,
        sfb: Operand<'a>,
        padded_offsets: Operand<'a>,
        alpha: Operand<'a>,
        prob: Operand<'a>,
    ) -> GroupedGemmDsreluCall<'a> {
        GroupedGemmDsreluCall {
            a,
            b,
            c,
            sfa,
            sfb,
            padded_offsets,
            alpha,
            prob,
            norm_const: Operand::default(),
            b_ptrs: Operand::default(),
            sfb_ptrs: Operand::default(),
            n: None,
            b_dtype: None,
            b_major: BMajor::K,
            d_row: Operand::default(),
            d_col: Operand::default(),
            dprob: Operand::default(),
            dbias: Operand::default(),
            amax: Operand::default(),
            sfd_row: Operand::default(),
            sfd_col: Operand::default(),
            d_srelu: Operand::default(),
            sfd_col_d_srelu: Operand::default(),
            status: Operand::default(),
            acc_dtype: DType::F32,
            mma_tiler_mn: None,
            cluster_shape_mn: None,
            sf_vec_size: 16,
            vector_f32: false,
            m_aligned: 256,
            discrete_col_sfd: false,
            deterministic: false,
            tanh_clamp_scale: None,
            formula: DsreluFormula::PreactivationG,
        }
    }

    pub(super) fn operands(self) -> [Operand<'a>; 21] {
        [
            self.a,
            self.b,
            self.c,
            self.sfa,
            self.sfb,
            self.padded_offsets,
            self.alpha,
            self.prob,
            self.norm_const,
            self.b_ptrs,
            self.sfb_ptrs,
            self.d_row,
            self.d_col,
            self.dprob,
            self.dbias,
            self.amax,
            self.sfd_row,
            self.sfd_col,
            self.d_srelu,
            self.sfd_col_d_srelu,
            self.status,
        ]
    }

    pub(super) fn shapes(&self) -> [Option<Shape>; 21] {
        [
            &self.a,
            &self.b,
            &self.c,
            &self.sfa,
            &self.sfb,
            &self.padded_offsets,
            &self.alpha,
            &self.prob,
            &self.norm_const,
            &self.b_ptrs,
            &self.sfb_ptrs,
            &self.d_row,
            &self.d_col,
            &self.dprob,
            &self.dbias,
            &self.amax,
            &self.sfd_row,
            &self.sfd_col,
            &self.d_srelu,
            &self.sfd_col_d_srelu,
            &self.status,
        ]
        .map(|o| o.shape)
    }
}
