//! Freezing: from what the user wrote to a complete, checked, ordered graph.

use super::{check, infer, order, rules, uids, FrozenGraph, Graph, Op, OutPort};
use crate::{Error, ErrorCode, Result};

impl Graph {
    /// Completes, checks and orders the graph; the original stays as it is.
    ///
    /// In this order: handles, producers, dangling tensors and cycles; uids; element types; per node the operand rules V1 to V3 and
    /// inference of outputs; generic checks of every tensor and attribute; per node the remaining validation rules of facts §2.3 in their
    /// order. The first fault is returned (FG10xx for rules, FG11xx for the rest). Linear in nodes and tensors.
    pub fn freeze(&self) -> Result<FrozenGraph> {
        if self.nodes.is_empty() {
            return Err(Error::new(ErrorCode::GraphState, "a graph without nodes", "at least one operation"));
        }
        let wiring = order::wire(self)?;
        let mut tensors = self.tensors.clone();
        uids::assign(&mut tensors)?;
        infer::dtypes(&mut tensors, &self.nodes, &self.options)?;
        for &n in &wiring.order {
            match &self.nodes[n].op {
                Op::GroupedGemmDsrelu(a) => rules::grouped_gemm::input_strides(&self.nodes[n], a, &mut tensors),
                Op::MoeGroupedMatmul(_) => rules::moe::input_strides(&self.nodes[n], &mut tensors),
                Op::Sdpa(_) | Op::SdpaBackward(_) | Op::Nvfp4Qat(_) | Op::Nvfp4QatBackward(_) => Ok(()),
            }
            .map_err(|e| e.at(self.node_label(n)))?;
        }
        for (i, t) in tensors.iter_mut().enumerate() {
            if t.stride.is_empty() && wiring.producer[i].is_none() {
                t.stride = infer::row_major(&t.dim).map_err(|e| e.at(format!("tensor '{}'", t.name)))?;
            }
        }
        let mut packed_stats = vec![false; tensors.len()];
        for &n in &wiring.order {
            let node = &self.nodes[n];
            rules::operands(node, &tensors).map_err(|e| e.at(self.node_label(n)))?;
            check::foreign_ports(node).map_err(|e| e.at(self.node_label(n)))?;
            infer::outputs(node, &mut tensors).map_err(|e| e.at(self.node_label(n)))?;
            if rules::is_ragged(node, &tensors) {
                for port in [OutPort::Stats, OutPort::Max, OutPort::SumExp] {
                    if let Some(id) = node.outputs.get(&port) {
                        packed_stats[id.0 as usize] = true;
                    }
                }
            }
        }
        check::tensors(&tensors, &wiring.producer, &packed_stats)?;
        for &n in &wiring.order {
            let node = &self.nodes[n];
            check::attributes(node, &tensors).map_err(|e| e.at(self.node_label(n)))?;
            rules::check(node, &tensors, self.options.compat).map_err(|e| e.at(self.node_label(n)))?;
        }
        Ok(FrozenGraph { options: self.options.clone(), tensors, nodes: self.nodes.clone(), order: wiring.order })
    }
}
