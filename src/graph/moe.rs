//! The plain grouped product of a mixture of experts: attributes, options, and how a call becomes a node.

use super::{Graph, InPort, Node, Op, OutPort, Reordering, Tensor, TensorId};
use crate::{DType, Result};
pub use frostgraph_engines::moe_grouped_matmul::MoeMode;
use std::collections::BTreeMap;

/// Attributes of a node as recorded; operands are ports.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MoeGroupedMatmulAttrs {
    /// Where routed rows come from and go to.
    pub mode: MoeMode,
    /// Rows of the output that each token has; read in scatter mode.
    pub top_k: i64,
    /// Values of K that share a scale: 16 or 32; 0 without block scales.
    pub sf_vec_size: i64,
    /// How the graph file spells the dequantisation of [`InPort::Token`] and [`InPort::Weight`]; empty in graphs that come from no file.
    pub dequantized: BTreeMap<InPort, Dequantized>,
}

/// A `BLOCK_SCALE_DEQUANTIZE` node that was folded into the product: nothing that changes what is computed, kept so that writing gives
/// the file back.
#[derive(Debug, Clone, PartialEq)]
pub struct Dequantized {
    /// Label of the node.
    pub name: String,
    /// Its compute type, as recorded.
    pub compute_dtype: Option<DType>,
    /// The virtual tensor that the product read: uid, name, and whatever else the file says of it.
    pub result: Tensor,
}

/// Block scales of both operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeScales {
    /// Of the token: (1, T, blocks), or whole atoms ([`Tensor::moe_scales`]).
    pub token: TensorId,
    /// Of the weights: (E, blocks, N), or whole atoms.
    pub weight: TensorId,
    /// Values of K that share a scale: 16 or 32.
    pub vec: i64,
}

/// Options of [`Graph::moe_grouped_matmul`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MoeGroupedMatmul {
    /// Label of the node; empty takes a unique one.
    pub name: String,
    /// Where routed rows come from and go to.
    pub mode: MoeMode,
    /// (1, R, 1), i32: with [`MoeMode::Gather`] and [`MoeMode::Scatter`].
    pub token_index: Option<TensorId>,
    /// (1, R, 1), i32: with [`MoeMode::Scatter`].
    pub token_ks: Option<TensorId>,
    /// Rows of the output that each token has; with [`MoeMode::Scatter`] at least 1.
    pub top_k: i64,
    /// Block scales of token and weights.
    pub scales: Option<MoeScales>,
    /// Request the status word (1,), i32: 0, or what is wrong with offsets and indices
    /// ([`Status`](frostgraph_engines::moe_grouped_matmul::routing::Status)).
    pub status: bool,
    /// Compute type of the node; `FLOAT` by default, `DOUBLE` accumulates in f64 where a row serves it.
    pub compute_dtype: Option<DType>,
}

/// Outputs of [`Graph::moe_grouped_matmul`]: virtual until [`Graph::output`] marks them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeGroupedMatmulOutputs {
    /// (1, R, N).
    pub output: TensorId,
    /// (1,), i32; present when requested.
    pub status: Option<TensorId>,
}

impl Graph {
    /// Adds a plain grouped product: routed row `r` of group `g` becomes `x[r] · weight[g % E]`.
    ///
    /// `token` is (1, T, K), `weight` (E, K, N) with any strides (k contiguous is what kernels like), `first_token_offset` (G + 1, 1, 1)
    /// boundaries or (G, 1, 1) starts, i32 or i64, with G a multiple of E. In modes none and scatter there are R = T routed rows, in mode
    /// gather as many as `token_index` has. Rows of the output that no routed row leads to are not touched. Shapes and rules are judged by
    /// [`Graph::freeze`]; this call fails only on a handle that is not of this graph (FG1107).
    pub fn moe_grouped_matmul(
        &mut self,
        token: TensorId,
        weight: TensorId,
        first_token_offset: TensorId,
        options: MoeGroupedMatmul,
    ) -> Result<MoeGroupedMatmulOutputs> {
        let inputs = self.operands(&[
            (InPort::Token, Some(token)),
            (InPort::Weight, Some(weight)),
            (InPort::FirstTokenOffset, Some(first_token_offset)),
            (InPort::TokenIndex, options.token_index),
            (InPort::TokenKs, options.token_ks),
            (InPort::Sfa, options.scales.map(|s| s.token)),
            (InPort::Sfb, options.scales.map(|s| s.weight)),
        ])?;
        let name = self.node_name(options.name, "moe_grouped_matmul");
        let mut outputs = BTreeMap::new();
        let output = self.produce(&name, OutPort::Output, &mut outputs);
        let status = options.status.then(|| self.produce(&name, OutPort::Status, &mut outputs));
        let sf_vec_size = options.scales.map_or(0, |s| s.vec);
        let MoeGroupedMatmul { mode, top_k, .. } = options;
        let op = Op::MoeGroupedMatmul(MoeGroupedMatmulAttrs { mode, top_k, sf_vec_size, dequantized: BTreeMap::new() });
        self.node(Node { name, op, inputs, outputs, compute_dtype: options.compute_dtype });
        Ok(MoeGroupedMatmulOutputs { output, status })
    }
}

impl Tensor {
    /// Scales in whole atoms of 128 rows by 4 blocks for a plain grouped product: of a token (1, `rows`, `k`), or with `experts` of weights
    /// (`experts`, `k`, `rows`), where `rows` are the N columns. Counts are rounded up to atoms; `vec` values share a scale.
    pub fn moe_scales(name: impl Into<String>, dtype: DType, [rows, k]: [i64; 2], vec: i64, experts: Option<i64>) -> Tensor {
        // Saturation is harmless: extents that large are refused when the graph is frozen.
        let up = |x: i64, by: i64| x.saturating_add(by - 1) / by.max(1) * by.max(1);
        let (blocks, rows) = (up(up(k, vec.max(1)) / vec.max(1), 4), up(rows, 128));
        let mut t = match experts {
            None => Tensor::new(name, [1, rows, blocks]),
            Some(e) => Tensor::new(name, [e, blocks, rows]).strides([blocks.saturating_mul(rows), 1, blocks]),
        };
        t.dtype = Some(dtype);
        t.reordering = Reordering::F8_128x4;
        t
    }
}
