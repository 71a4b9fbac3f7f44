//! What the rules look at: one node with its operands and its mask resolved once.

use crate::graph::infer;
use crate::graph::{Alignment, InPort, Mask, Node, Op, OutPort, SdpaAttrs, Tensor};

/// Of a node without scores: its rules have a view of their own, so this only keeps the view total.
static NO_MASK: Mask = Mask {
    causal: false,
    causal_bottom_right: false,
    sliding_window: None,
    left_bound: None,
    right_bound: None,
    alignment: Alignment::TopLeft,
    padding: false,
    alibi: false,
};

/// A node under validation.
pub(in crate::graph) struct View<'a> {
    pub node: &'a Node,
    pub tensors: &'a [Tensor],
    pub mask: &'a Mask,
    pub backward: bool,
    /// Length of the left bound, right bound, bottom-right anchor.
    pub left: Option<i64>,
    pub right: Option<i64>,
    pub bottom_right: bool,
    pub ragged: bool,
    pub len_q: bool,
    pub len_kv: bool,
    pub paged: bool,
    pub score_mod: bool,
    pub dropout_probability: Option<f32>,
}

impl<'a> View<'a> {
    pub fn new(node: &'a Node, tensors: &'a [Tensor]) -> View<'a> {
        let mask = node.op.mask().unwrap_or(&NO_MASK);
        let (left, right, bottom_right) = mask.diagonal();
        let has = |p| node.inputs.contains_key(&p);
        let (backward, score_mod, dropout_probability) = match &node.op {
            Op::Sdpa(a) => (false, a.score_mod, a.dropout_probability),
            Op::SdpaBackward(a) => (true, a.score_mod, a.dropout_probability),
            Op::Nvfp4Qat(_) | Op::MoeGroupedMatmul(_) => (false, false, None),
            Op::Nvfp4QatBackward(_) | Op::GroupedGemmDsrelu(_) => (true, false, None),
        };
        let mut view = View {
            node,
            tensors,
            mask,
            backward,
            left,
            right,
            bottom_right,
            ragged: false,
            len_q: has(InPort::SeqLenQ) || has(InPort::CuSeqLenQ),
            len_kv: has(InPort::SeqLenKv) || has(InPort::CuSeqLenKv),
            paged: has(InPort::PageTableK) || has(InPort::PageTableV),
            score_mod,
            dropout_probability,
        };
        let o = if backward { view.input(InPort::O).or(view.input(InPort::HighPrecisionO)) } else { view.output(OutPort::O) };
        let four = [view.input(InPort::Q), view.input(InPort::K), view.input(InPort::V), o];
        view.ragged = four.into_iter().flatten().any(|t| t.ragged.is_some());
        view
    }

    pub fn input(&self, port: InPort) -> Option<&'a Tensor> {
        self.node.inputs.get(&port).map(|id| &self.tensors[id.0 as usize])
    }

    pub fn output(&self, port: OutPort) -> Option<&'a Tensor> {
        self.node.outputs.get(&port).map(|id| &self.tensors[id.0 as usize])
    }

    /// Attributes of a forward.
    pub fn forward(&self) -> Option<&'a SdpaAttrs> {
        match &self.node.op {
            Op::Sdpa(a) => Some(a),
            Op::SdpaBackward(_)
            | Op::Nvfp4Qat(_)
            | Op::Nvfp4QatBackward(_)
            | Op::GroupedGemmDsrelu(_)
            | Op::MoeGroupedMatmul(_) => None,
        }
    }

    /// One extent of an operand, 0 where the operand or the axis is missing.
    pub fn extent(&self, port: InPort, axis: usize) -> i64 {
        self.input(port).and_then(|t| t.dim.get(axis)).copied().unwrap_or(0)
    }

    /// S_q and S_kv.
    pub fn lengths(&self) -> (i64, i64) {
        (self.extent(InPort::Q, 2), infer::s_kv(self.node, self.tensors))
    }

    /// Causal with its diagonal in the bottom-right corner.
    pub fn bottom_right_causal(&self) -> bool {
        self.bottom_right && self.right == Some(0)
    }

    /// The four-dimensional operands the rules name, with the keys of the graph file; `None` where missing.
    pub fn ports(&self) -> impl Iterator<Item = (&'static str, Option<&'a Tensor>)> + '_ {
        const FORWARD: (&[InPort], &[OutPort]) = (&[InPort::Q, InPort::K, InPort::V], &[OutPort::O]);
        const BACKWARD: (&[InPort], &[OutPort]) =
            (&[InPort::Q, InPort::K, InPort::V, InPort::O, InPort::DO], &[OutPort::DQ, OutPort::DK, OutPort::DV]);
        const QAT_FORWARD: (&[InPort], &[OutPort]) = (FORWARD.0, &[OutPort::O, OutPort::HighPrecisionO, OutPort::Stats]);
        const QAT_BACKWARD: (&[InPort], &[OutPort]) =
            (&[InPort::Q, InPort::K, InPort::V, InPort::HighPrecisionO, InPort::DO, InPort::Stats], BACKWARD.1);
        const NONE: (&[InPort], &[OutPort]) = (&[], &[]);
        let (inputs, outputs) = match &self.node.op {
            Op::Sdpa(_) => FORWARD,
            Op::SdpaBackward(_) => BACKWARD,
            Op::Nvfp4Qat(_) => QAT_FORWARD,
            Op::Nvfp4QatBackward(_) => QAT_BACKWARD,
            Op::GroupedGemmDsrelu(_) | Op::MoeGroupedMatmul(_) => NONE,
        };
        let inputs = inputs.iter().map(|&p| (p.json(), self.input(p)));
        inputs.chain(outputs.iter().map(|&p| (p.json(), self.output(p))))
    }
}
