//! The grouped block-scaled matrix product with the dsReLU backward epilogue: attributes, options, and how a call becomes a node.

use super::{Graph, InPort, Node, Op, OutPort, Reordering, Tensor, TensorId};
use crate::{DType, Error, ErrorCode, Result};
pub use frostgraph_engines::grouped_gemm::Formula as DsreluFormula;
use frostgraph_engines::grouped_gemm::{scales, ROW_ALIGN};
use std::collections::BTreeMap;

/// Which extent of B is contiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BMajor {
    /// k, as A.
    #[default]
    K,
    /// n; FP8 only.
    N,
}

/// Where the weights of the experts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GemmWeights {
    /// One tensor (N, K, L) with its scales.
    Dense {
        /// (N, K, L): strides (K, 1, N·K), or (1, N, N·K) for FP8.
        b: TensorId,
        /// Scale atoms, one slice an expert.
        sfb: TensorId,
    },
    /// Two pools of any extents, and for each expert a byte offset into either: multiples of 16.
    Pool {
        /// Payloads.
        b: TensorId,
        /// Scale atoms.
        sfb: TensorId,
        /// (L,), i64.
        b_ptrs: TensorId,
        /// (L,), i64.
        sfb_ptrs: TensorId,
    },
    /// For each expert a device address, a multiple of 16, of its payload and of its scale atoms. The buffers are the caller's, must stay alive, and are
    /// unknown to the graph, so nothing but null and alignment can be checked, on the device. No CPU row takes addresses: nothing could
    /// tell the host a good one from a bad one, and a safe call must not depend on that; a pool serves the same there.
    Addresses {
        /// (L,), i64.
        b_ptrs: TensorId,
        /// (L,), i64.
        sfb_ptrs: TensorId,
    },
}

/// Attributes of a node as recorded; operands are ports.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupedGemmDsreluAttrs {
    /// Which operand is the pre-activation.
    pub formula: DsreluFormula,
    /// Values of K that share a scale: 16 or 32.
    pub sf_vec_size: i64,
    /// `s` of the soft clamp `s * tanh(relu(x) / s)`; finite and above 0.
    pub tanh_clamp_scale: Option<f32>,
    /// Column scales laid out expert by expert; without generated scales it has no effect.
    pub discrete_col_sfd: bool,
    /// dprob and dbias of equal bits in every run.
    pub deterministic: bool,
    /// Multiple of rows that every end of `padded_offsets` is; 256 is the only value.
    pub m_aligned: i64,
    /// Columns of B, where B is no tensor that tells.
    pub n: Option<i64>,
    /// Element type of B, where B is no tensor that tells; omitted is A's.
    pub b_dtype: Option<DType>,
    /// Contiguous extent of B where its strides do not tell.
    pub b_major: BMajor,
    /// Element type of D_row, D_col and D_srelu where their tensors name none.
    pub d_dtype: DType,
}

impl Default for GroupedGemmDsreluAttrs {
    fn default() -> GroupedGemmDsreluAttrs {
        GroupedGemmDsreluAttrs {
            formula: DsreluFormula::PreactivationG,
            sf_vec_size: 16,
            tanh_clamp_scale: None,
            discrete_col_sfd: false,
            deterministic: false,
            m_aligned: ROW_ALIGN,
            n: None,
            b_dtype: None,
            b_major: BMajor::K,
            d_dtype: DType::BF16,
        }
    }
}

/// Options of [`Graph::grouped_gemm_dsrelu`], with the defaults of the specification.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GroupedGemmDsrelu {
    /// Label of the node; empty takes a unique one.
    pub name: String,
    /// Formula, scale block, clamp and the rest; an FP8 `d_dtype` makes the node generate scales.
    pub attrs: GroupedGemmDsreluAttrs,
    /// (1,), f32; needed exactly where scales are generated.
    pub norm_const: Option<TensorId>,
    /// Request dbias (L, N, 1), bf16.
    pub dbias: bool,
    /// Request amax (L, 1), f32: the largest |D| of each expert before it is rounded, beside generated scales too.
    pub amax: bool,
    /// Request D_srelu (M, N, 1): the forward activation times prob.
    pub d_srelu: bool,
    /// Request the status word (1,), i32: 0, or what is wrong with the ends
    /// ([`Status`](frostgraph_engines::grouped_gemm::groups::Status)).
    pub status: bool,
    /// Compute type of the node; `FLOAT` by default, `DOUBLE` accumulates in f64 where a row serves it.
    pub compute_dtype: Option<DType>,
}

/// Outputs of [`Graph::grouped_gemm_dsrelu`]: virtual until [`Graph::output`] marks them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupedGemmDsreluOutputs {
    /// (M, N, 1).
    pub d_row: TensorId,
    /// (M, N, 1).
    pub d_col: TensorId,
    /// (M, 1, 1), f32.
    pub dprob: TensorId,
    /// (L, N, 1), bf16; present when requested.
    pub dbias: Option<TensorId>,
    /// (L, 1), f32; present when requested.
    pub amax: Option<TensorId>,
    /// Scale atoms of D_row; present for FP8 results.
    pub sfd_row: Option<TensorId>,
    /// Scale atoms of D_col; present for FP8 results.
    pub sfd_col: Option<TensorId>,
    /// (M, N, 1); present when requested.
    pub d_srelu: Option<TensorId>,
    /// Scale atoms of D_srelu; present when requested, for FP8 results.
    pub sfd_col_d_srelu: Option<TensorId>,
    /// (1,), i32; present when requested.
    pub status: Option<TensorId>,
}

impl Graph {
    /// Adds a grouped block-scaled product with the dsReLU backward epilogue.
    ///
    /// Rows `padded_offsets[e-1]..padded_offsets[e]` belong to expert `e`. With `G = alpha[e] * A B[e]ᵀ` (both dequantised):
    /// `D = 2 * prob * C * relu(G)` and `dprob = sum over n of C * relu(G)^2`, or the other reading of
    /// [`DsreluFormula`]. `a` is (M, K, 1), `c` (M, N, 1), `sfa` the scale atoms of A ([`Tensor::scale_atoms`]), `padded_offsets` (L,) i32,
    /// `alpha` (L,) f32, `prob` (M, 1, 1) f32. Shapes and rules are judged by [`Graph::freeze`]; this call fails only on a handle that is not
    /// of this graph (FG1107).
    #[allow(clippy::too_many_arguments, reason = "the operands of the operation, in the specification's order")]
    pub fn grouped_gemm_dsrelu(
        &mut self,
        a: TensorId,
        weights: GemmWeights,
        c: TensorId,
        sfa: TensorId,
        padded_offsets: TensorId,
        alpha: TensorId,
        prob: TensorId,
        options: GroupedGemmDsrelu,
    ) -> Result<GroupedGemmDsreluOutputs> {
        let (b, sfb, b_ptrs, sfb_ptrs) = match weights {
            GemmWeights::Dense { b, sfb } => (Some(b), Some(sfb), None, None),
            GemmWeights::Pool { b, sfb, b_ptrs, sfb_ptrs } => (Some(b), Some(sfb), Some(b_ptrs), Some(sfb_ptrs)),
            GemmWeights::Addresses { b_ptrs, sfb_ptrs } => (None, None, Some(b_ptrs), Some(sfb_ptrs)),
        };
        let inputs = self.operands(&[
            (InPort::A, Some(a)),
            (InPort::B, b),
            (InPort::C, Some(c)),
            (InPort::Sfa, Some(sfa)),
            (InPort::Sfb, sfb),
            (InPort::BPtrs, b_ptrs),
            (InPort::SfbPtrs, sfb_ptrs),
            (InPort::PaddedOffsets, Some(padded_offsets)),
            (InPort::Alpha, Some(alpha)),
            (InPort::Prob, Some(prob)),
            (InPort::NormConst, options.norm_const),
        ])?;
        let name = self.node_name(options.name, "grouped_gemm_dsrelu");
        let quantised = options.attrs.d_dtype.is_fp8();
        let mut outputs = BTreeMap::new();
        let mut when = |g: &mut Graph, yes: bool, port| yes.then(|| g.produce(&name, port, &mut outputs));
        let sfd_row = when(self, quantised, OutPort::SfdRow);
        let sfd_col = when(self, quantised, OutPort::SfdCol);
        let d_srelu = when(self, options.d_srelu, OutPort::DSrelu);
        let sfd_col_d_srelu = when(self, quantised && options.d_srelu, OutPort::SfdColDSrelu);
        let dbias = when(self, options.dbias, OutPort::DBias);
        let amax = when(self, options.amax, OutPort::Amax);
        let status = when(self, options.status, OutPort::Status);
        let d_row = self.produce(&name, OutPort::DRow, &mut outputs);
        let d_col = self.produce(&name, OutPort::DCol, &mut outputs);
        let dprob = self.produce(&name, OutPort::DProb, &mut outputs);
        let op = Op::GroupedGemmDsrelu(options.attrs);
        self.node(Node { name, op, inputs, outputs, compute_dtype: options.compute_dtype });
        Ok(GroupedGemmDsreluOutputs { d_row, d_col, dprob, dbias, amax, sfd_row, sfd_col, d_srelu, sfd_col_d_srelu, status })
    }
}

impl Tensor {
    /// The scale factors of a `(rows, columns)` operand with `vec` values a scale along its columns, in memory order
    /// (slices, rows/128, blocks/4, 32, 4, 4), counts rounded up; `slices` is the number of experts for B, else 1.
    ///
    /// # Errors
    /// FG1105 for counts below 1.
    pub fn scale_atoms(
        name: impl Into<String>,
        dtype: DType,
        [rows, columns]: [i64; 2],
        vec: i64,
        slices: i64,
    ) -> Result<Tensor> {
        let extents = scales::extents(rows, columns, vec, slices).ok_or_else(|| {
            let given = format!("{slices} slices of {rows} rows and {columns} columns, {vec} values a scale");
            Error::new(ErrorCode::BadDims, given, "counts of at least 1")
        })?;
        let mut t = Tensor::new(name, scales::physical(&extents)).dtype(dtype);
        t.reordering = Reordering::F8_128x4;
        Ok(t)
    }
}
