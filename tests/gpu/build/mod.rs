//! From a case to a graph; uids are fixed so that buffers and messages are the same everywhere.

mod backward;
pub mod forward;
mod qat;

use crate::cases::{Case, Layout, Lens, MaskKind, ScaleKind};
use frostgraph::graph::{AttnScale, Graph, GraphOptions, Mask, Tensor, TensorId};
use frostgraph::{DType, Result};

pub const Q: i64 = 1;
pub const K: i64 = 2;
pub const V: i64 = 3;
pub const O: i64 = 4;
pub const D_O: i64 = 5;
pub const STATS: i64 = 6;
pub const BIAS: i64 = 7;
pub const SINK: i64 = 8;
pub const SEQ_Q: i64 = 9;
pub const SEQ_KV: i64 = 10;
/// Packed token offsets of the query side and of the key side.
pub const RAG_Q: i64 = 11;
pub const RAG_KV: i64 = 12;
/// Prefix sums of the lengths.
pub const CU_Q: i64 = 13;
pub const CU_KV: i64 = 14;
pub const TABLE_K: i64 = 15;
pub const TABLE_V: i64 = 16;
/// Row maximum and sum of exponentials.
pub const MAX: i64 = 17;
pub const SUM: i64 = 18;
pub const DQ: i64 = 21;
pub const DK: i64 = 22;
pub const DV: i64 = 23;
pub const DBIAS: i64 = 24;
pub const DSINK: i64 = 25;
/// The high-precision O of an NVFP4 QAT forward; its backward reads it as [`O`].
pub const HIGH: i64 = 26;

/// The softmax scale of a case that has it in a tensor.
pub const SCALE: i64 = 27;

/// Elements that a packed side leaves free before each sequence: token offsets need not be dense.
const GAP: i64 = 3;

/// Token offsets of a packed side: B + 1 of them.
pub fn offsets(lens: &[i64]) -> Vec<i64> {
    let mut at = vec![GAP];
    for len in lens {
        at.push(at[at.len() - 1] + len + GAP);
    }
    at
}

/// Tokens that a packed buffer holds.
pub fn tokens(lens: &[i64]) -> i64 {
    *offsets(lens).last().unwrap_or(&0)
}

pub fn strides(layout: Layout, [b, h, s, d]: [i64; 4]) -> [i64; 4] {
    match layout {
        Layout::Bshd => [s * h * d, d, h * d, 1],
        Layout::Bhsd => [h * s * d, s * d, d, 1],
        Layout::Sbhd => [h * d, d, b * h * d, 1],
        Layout::Gapped => {
            let row = h * (d + 8) + 16;
            [(s + 3) * row, d + 8, row, 1]
        }
    }
}

fn mask(kind: MaskKind) -> Mask {
    match kind {
        MaskKind::None => Mask::none(),
        MaskKind::Causal => Mask::causal(),
        MaskKind::CausalBottomRight => Mask::causal_bottom_right(),
        MaskKind::Band(r) => Mask { right_bound: Some(r), ..Mask::default() },
        MaskKind::Window(w) => Mask { left_bound: Some(w + 1), ..Mask::default() },
        MaskKind::CausalWindow(w) => Mask::causal().window(w + 1),
        MaskKind::BottomRightWindow(w) => Mask::causal_bottom_right().window(w + 1),
        MaskKind::TwoSided(w, r) => Mask { left_bound: Some(w + 1), right_bound: Some(r), ..Mask::default() },
    }
}

/// The graph of a case.
pub fn graph(c: &Case) -> Result<Graph> {
    match (c.is_qat(), c.is_forward()) {
        (false, true) => forward::graph(c),
        (false, false) => backward::graph(c),
        (true, true) => qat::forward(c),
        (true, false) => qat::backward(c),
    }
}

/// A graph under construction with what both passes declare alike.
struct Parts<'a> {
    g: Graph,
    c: &'a Case,
    thd: bool,
    /// Token offsets of the query side and of the key side.
    rag: Option<(TensorId, TensorId)>,
}

impl<'a> Parts<'a> {
    fn new(c: &'a Case) -> Parts<'a> {
        let g = Graph::new(GraphOptions { io: c.dtype, ..GraphOptions::default() });
        let mut p = Parts { g, c, thd: matches!(c.lens, Lens::Thd { .. }), rag: None };
        if let Lens::Thd { wide, .. } = c.lens {
            let dtype = if wide { DType::I64 } else { DType::I32 };
            p.rag = Some((p.ints("rag_q", RAG_Q, c.b + 1, dtype), p.ints("rag_kv", RAG_KV, c.b + 1, dtype)));
        }
        p
    }

    fn ints(&mut self, name: &str, uid: i64, n: i64, dtype: DType) -> TensorId {
        self.g.tensor(Tensor::new(name, [n, 1, 1, 1]).dtype(dtype).uid(uid))
    }

    fn side(&self, query: bool) -> Option<TensorId> {
        self.rag.map(|(q, kv)| if query { q } else { kv })
    }

    fn strides(&self, layout: Layout, dim: [i64; 4]) -> [i64; 4] {
        strides(if self.thd { Layout::Bshd } else { layout }, dim)
    }

    /// An operand of the case's layout, packed on its side where the case is.
    fn input(&mut self, name: &str, uid: i64, dim: [i64; 4], query: bool) -> TensorId {
        let mut t = Tensor::new(name, dim).strides(self.strides(self.c.layout, dim)).uid(uid);
        if let Some(offset) = self.side(query) {
            t = t.ragged(offset, dim[1] * dim[3]);
        }
        self.g.tensor(t)
    }

    /// Strides of one value a query row, and the multiplier of their token offsets.
    fn row_values(&self) -> ([i64; 4], i64) {
        let c = self.c;
        match &c.lens {
            Lens::Thd { q, head_major: true, .. } => ([1, tokens(q), 1, 1], 1),
            Lens::Thd { .. } => ([c.s_q * c.h_q, 1, c.h_q, 1], c.h_q),
            Lens::Full | Lens::Padded { .. } if c.strided_stats => ([c.s_q * c.h_q * 3 + 5, 3, c.h_q * 3, 1], 1),
            Lens::Full | Lens::Padded { .. } => ([c.h_q * c.s_q, c.s_q, 1, 1], 1),
        }
    }

    /// Declared totals, which head-major Stats need: without one the planner must assume B·S packed tokens, and this head stride is shorter.
    fn totals(&self) -> (Option<i64>, Option<i64>) {
        match &self.c.lens {
            Lens::Thd { q, kv, head_major: true, .. } => (Some(tokens(q)), Some(tokens(kv))),
            Lens::Thd { .. } | Lens::Full | Lens::Padded { .. } => (None, None),
        }
    }

    fn mask(&self) -> Mask {
        Mask { padding: self.c.lens != Lens::Full, ..mask(self.c.mask) }
    }

    fn scale(&mut self) -> Option<AttnScale> {
        Some(match self.c.fwd.scale {
            ScaleKind::Usual | ScaleKind::Zero | ScaleKind::Negative => AttnScale::Value(self.c.scale()),
            ScaleKind::Tensor => {
                AttnScale::Tensor(self.g.tensor(Tensor::new("attn_scale", [1, 1, 1, 1]).dtype(DType::F32).uid(SCALE)))
            }
        })
    }

    fn bias(&mut self) -> Option<TensorId> {
        let (c, (dtype, broadcast)) = (self.c, self.c.bias?);
        let dim = [if broadcast { 1 } else { c.b }, c.h_q, c.s_q, c.s_kv];
        Some(self.g.tensor(Tensor::new("bias", dim).dtype(dtype).uid(BIAS)))
    }

    fn sink(&mut self) -> Option<TensorId> {
        let dim = [1, self.c.h_q, 1, 1];
        self.c.sink.then(|| self.g.tensor(Tensor::new("sink", dim).dtype(DType::F32).uid(SINK)))
    }
}

fn output(g: &mut Graph, id: TensorId, uid: i64, dtype: DType) -> Result<()> {
    g.output(id)?;
    let t = g.get_mut(id)?;
    t.uid = Some(uid);
    t.dtype = Some(dtype);
    Ok(())
}

/// Order of the outputs: another one than the operands' where the layout is about that.
fn out_layout(layout: Layout) -> Layout {
    if layout == Layout::Gapped {
        Layout::Bhsd
    } else {
        layout
    }
}

/// Places an output like an operand of its dim; a gapped case has a gap after each batch that no kernel may touch.
fn place(p: &mut Parts<'_>, id: TensorId, dim: [i64; 4], query: bool) -> Result<()> {
    let mut stride = p.strides(out_layout(p.c.layout), dim);
    if p.c.layout == Layout::Gapped && !p.thd {
        stride[0] += 64;
    }
    let offset = p.side(query);
    let t = p.g.get_mut(id)?;
    t.dim = dim.to_vec();
    t.stride = stride.to_vec();
    match offset {
        Some(offset) => p.g.ragged(id, offset, dim[1] * dim[3]),
        None => Ok(()),
    }
}
