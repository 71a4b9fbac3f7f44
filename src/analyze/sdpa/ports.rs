//! Operands of a node as the engines see them.

use super::Request;
use crate::graph::{FrozenGraph, InPort, Node, OutPort, Tensor};
use frostgraph_engines::sdpa::{Direction, Recipe, SdpaPorts};
use frostgraph_engines::{DType, Port, Ragged};

/// A node and the graph that holds its tensors.
pub(super) struct Operands<'a> {
    pub graph: &'a FrozenGraph,
    pub node: &'a Node,
}

impl<'a> Operands<'a> {
    pub fn input(&self, port: InPort) -> Option<&'a Tensor> {
        self.node.inputs.get(&port).map(|&id| self.graph.tensor(id))
    }

    pub fn output(&self, port: OutPort) -> Option<&'a Tensor> {
        self.node.outputs.get(&port).map(|&id| self.graph.tensor(id))
    }

    /// O: an output of the forward, an input of the backward, where NVFP4 QAT has the high-precision one in its place.
    pub fn o(&self, request: &Request) -> Option<&'a Tensor> {
        match (request.direction, request.recipe) {
            (Direction::Forward, _) => self.output(OutPort::O),
            (Direction::Backward, Recipe::Plain) => self.input(InPort::O),
            (Direction::Backward, Recipe::Nvfp4Qat) => self.input(InPort::HighPrecisionO),
        }
    }

    /// Stats: an output of the forward, an input of the backward.
    pub fn stats(&self, direction: Direction) -> Option<&'a Tensor> {
        match direction {
            Direction::Forward => self.output(OutPort::Stats),
            Direction::Backward => self.input(InPort::Stats),
        }
    }

    /// An output that counts only when the caller can see it (facts §3.1).
    pub fn visible(&self, port: OutPort) -> Option<&'a Tensor> {
        self.output(port).filter(|t| !t.is_virtual)
    }

    pub fn paged(&self) -> bool {
        self.input(InPort::PageTableK).is_some() || self.input(InPort::PageTableV).is_some()
    }

    pub fn thd(&self) -> bool {
        self.input(InPort::Q).is_some_and(|t| t.ragged.is_some())
    }

    /// Keys of the longest sequence: the extent of K; paged the declared maximum, else max_pages · page.
    pub fn s_kv(&self) -> i64 {
        self.graph.s_kv(self.node)
    }

    fn port(&self, t: &Tensor) -> Option<Port> {
        let (mut dim, mut stride) = ([1; 4], [1; 4]);
        if t.dim.len() > 4 || t.stride.len() != t.dim.len() {
            return None;
        }
        dim[..t.dim.len()].copy_from_slice(&t.dim);
        stride[..t.dim.len()].copy_from_slice(&t.stride);
        Some(Port {
            uid: t.uid.unwrap_or_default(),
            name: t.name.clone(),
            dim,
            stride,
            dtype: dtype(t),
            alignment: t.alignment,
            is_virtual: t.is_virtual,
            ragged: t.ragged.map(|r| {
                let offset = self.graph.tensor(r.offset);
                Ragged { uid: offset.uid.unwrap_or_default(), dtype: dtype(offset), multiplier: r.multiplier }
            }),
        })
    }

    pub fn ports(&self, request: &Request) -> SdpaPorts {
        let d = request.direction;
        let port = |t: Option<&Tensor>| t.and_then(|t| self.port(t));
        let input = |p| port(self.input(p));
        let output = |p| port(self.output(p));
        SdpaPorts {
            q: input(InPort::Q),
            k: input(InPort::K),
            v: input(InPort::V),
            o: port(self.o(request)),
            high_precision_o: output(OutPort::HighPrecisionO),
            stats: port(self.stats(d).filter(|_| request.wants_stats)),
            d_o: input(InPort::DO),
            dq: output(OutPort::DQ),
            dk: output(OutPort::DK),
            dv: output(OutPort::DV),
            bias: input(InPort::Bias),
            dbias: output(OutPort::DBias),
            sink: input(InPort::Sink),
            dsink: output(OutPort::DSink),
            seq_len_q: input(InPort::SeqLenQ),
            seq_len_kv: input(InPort::SeqLenKv),
            cu_seq_len_q: input(InPort::CuSeqLenQ),
            cu_seq_len_kv: input(InPort::CuSeqLenKv),
            page_table_k: input(InPort::PageTableK),
            page_table_v: input(InPort::PageTableV),
            score_max: port(self.visible(OutPort::Max)),
            score_sum_exp: port(self.visible(OutPort::SumExp)),
            attn_scale: input(InPort::AttnScale),
        }
    }
}

/// Freezing gives every tensor an element type.
pub(super) fn dtype(t: &Tensor) -> DType {
    t.dtype.unwrap_or(DType::F32)
}
