//! What both calls are planned from, and the graph of one.

use super::super::operand::Shape;
use crate::graph::{Graph, GraphOptions, Mask, Nvfp4Qat, Nvfp4QatBackward, Tensor, TensorId};
use crate::{DType, Error, ErrorCode, Result};

/// Names of the operands in uid order, from 1.
const NAMES: [&str; 11] = ["dO", "q", "k", "v", "high_precision_o", "lse", "dq", "dk", "dv", "seq_len_q", "seq_len_kv"];

/// Everything that the executable of a call depends on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shared {
    pub backward: bool,
    /// In the order of [`NAMES`]; a forward has O in the place of dq.
    pub shapes: [Option<Shape>; 11],
    pub softmax_scale: Option<f32>,
    pub is_causal: bool,
    pub window_size_left: Option<i64>,
    pub deterministic: bool,
    pub workspace_limit_bytes: Option<u64>,
}

impl Shared {
    pub fn place(&self) -> &'static str {
        if self.backward {
            "nvfp4_attention_qat_backward"
        } else {
            "nvfp4_attention_qat_forward"
        }
    }

    pub fn bad(&self, given: impl Into<String>, expected: &str) -> Error {
        Error::new(ErrorCode::BadAttribute, given, expected).at(self.place())
    }

    /// The mask; what only this interface leaves unsaid is refused here, where its names are known.
    fn mask(&self) -> Result<Mask> {
        let length = |i: usize| self.shapes[i].map(|s| s.dim[2]);
        let (s_q, s_kv) = (length(1), length(2));
        if self.is_causal && s_q != s_kv {
            let given = format!("is_causal with S_q {} and S_kv {}", s_q.unwrap_or(0), s_kv.unwrap_or(0));
            let e = self.bad(given, "equal lengths: a causal mask of this interface is one of self-attention");
            return Err(e.help("A graph says which corner the diagonal starts in: Mask::causal() or Mask::causal_bottom_right()"));
        }
        if let Some(w) = self.window_size_left.filter(|w| *w < 0 || *w == i64::MAX) {
            return Err(self.bad(format!("window_size_left {w}"), "an offset of 0 or more"));
        }
        if self.shapes[9].is_some() && self.shapes[10].is_none() {
            return Err(self.bad("query lengths without key lengths", "both, or key lengths alone"));
        }
        Ok(Mask {
            left_bound: self.window_size_left.map(|w| w + 1),
            right_bound: self.is_causal.then_some(0),
            padding: self.shapes[10].is_some(),
            ..Mask::none()
        })
    }

    pub fn graph(&self) -> Result<Graph> {
        let mut g = Graph::new(GraphOptions { io: DType::BF16, ..GraphOptions::default() });
        let mut input = |i: usize| -> Option<TensorId> {
            let s = self.shapes[i]?;
            let t = Tensor::new(NAMES[i], s.dim).strides(s.stride).dtype(s.dtype).uid(i as i64 + 1);
            // LSE and lengths are read element by element.
            let element = s.dtype.bytes().unwrap_or(1) as i64;
            Some(g.tensor(if i < 5 { t } else { t.alignment(element) }))
        };
        let needed = if self.backward { 0..6 } else { 1..4 };
        let mut operands = Vec::new();
        for i in needed {
            let expected = if self.backward { "dO, q, k, v, high_precision_o and lse" } else { "q, k and v" };
            operands.push(input(i).ok_or_else(|| self.bad(format!("no {}", NAMES[i]), expected))?);
        }
        let (seq_len_q, seq_len_kv) = (input(9), input(10));
        let d = self.shapes[1].map_or(1, |s| s.dim[3]);
        let (name, mask) = (self.place().to_owned(), self.mask()?);
        let attn_scale = Some(self.softmax_scale.unwrap_or((d as f32).sqrt().recip()));
        let outputs = match operands[..] {
            [d_o, q, k, v, o, lse] => {
                let options = Nvfp4QatBackward {
                    name,
                    mask,
                    attn_scale,
                    seq_len_q,
                    seq_len_kv,
                    deterministic: self.deterministic,
                    compute_dtype: None,
                };
                let grads = g.nvfp4_attention_qat_backward(d_o, q, k, v, o, lse, options)?;
                vec![(6, grads.dq), (7, grads.dk), (8, grads.dv)]
            }
            _ => {
                let options = Nvfp4Qat { name, mask, attn_scale, seq_len_q, seq_len_kv, compute_dtype: None };
                let out = g.nvfp4_attention_qat_forward(operands[0], operands[1], operands[2], options)?;
                vec![(4, out.high_precision_o), (5, out.lse), (6, out.o)]
            }
        };
        for (i, id) in outputs {
            g.output(id)?;
            let t = g.get_mut(id)?;
            let name = if !self.backward && i == 6 { "o" } else { NAMES[i] };
            (t.name, t.uid) = (name.to_owned(), Some(i as i64 + 1));
            if let Some(s) = self.shapes[i] {
                (t.dim, t.stride, t.dtype) = (s.dim.to_vec(), s.stride.to_vec(), Some(s.dtype));
            }
            if i == 5 {
                t.alignment = 4;
            }
        }
        Ok(g)
    }
}
