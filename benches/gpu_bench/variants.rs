//! Graphs of the crossover alone: an attention with a bias, with the bias's gradient, or with packed sequences of one length.

use crate::cases::Case;
use frostgraph::exec::Operand;
use frostgraph::graph::{Graph, GraphOptions, Sdpa, SdpaBackward, Tensor, TensorId};
use frostgraph::{DType, Result};

/// What a graph has beyond the case's own operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// A bf16 bias of every batch and head, forward.
    ForwardBias,
    /// The same, backward.
    Bias,
    /// Backward with a bias and its gradient.
    DBias,
    /// Backward, sequences packed one behind the other (THD), each of the case's length.
    Packed,
}

fn bias(g: &mut Graph, case: &Case) -> TensorId {
    g.tensor(Tensor::new("Bias", [case.b, case.h_q, case.s, case.s]))
}

/// Lengths and the ragged offsets of packed sequences.
fn packed(g: &mut Graph, case: &Case) -> [TensorId; 2] {
    [("Lengths", case.b), ("Offsets", case.b + 1)].map(|(n, e)| g.tensor(Tensor::new(n, [e, 1, 1, 1]).dtype(DType::I32)))
}

impl Variant {
    pub fn graph(self, case: &Case) -> Result<Graph> {
        match self {
            Variant::ForwardBias => forward(case),
            Variant::Bias | Variant::DBias | Variant::Packed => self.backward(case),
        }
    }

    fn backward(self, case: &Case) -> Result<Graph> {
        let mut g = Graph::new(GraphOptions { io: DType::BF16, ..GraphOptions::default() });
        let mut options = SdpaBackward { mask: case.mask(), attn_scale: case.scale(), ..Default::default() };
        let sides = [("Q", case.h_q, case.d_qk), ("K", case.h_kv, case.d_qk), ("V", case.h_kv, case.d_v)];
        let rest = [("O", case.h_q, case.d_v), ("dO", case.h_q, case.d_v)];
        let offsets = (self == Variant::Packed).then(|| packed(&mut g, case));
        let mut operand = |(name, h, d): (&str, i64, i64)| -> Result<TensorId> {
            let id = case.operand(&mut g, name, h, d);
            offsets.map_or(Ok(()), |[_, to]| g.ragged(id, to, h * d))?;
            Ok(id)
        };
        let [q, k, v] = [operand(sides[0])?, operand(sides[1])?, operand(sides[2])?];
        let [o, d_o] = [operand(rest[0])?, operand(rest[1])?];
        let stats = Tensor::new("Stats", [case.b, case.h_q, case.s, 1]).dtype(DType::F32);
        let token_major = [case.s * case.h_q, 1, case.h_q, 1];
        let stats = g.tensor(offsets.map_or(stats.clone(), |[_, to]| stats.strides(token_major).ragged(to, case.h_q)));
        if let Some([lengths, _]) = offsets {
            options.mask = options.mask.padded();
            (options.seq_len_q, options.seq_len_kv) = (Some(lengths), Some(lengths));
        } else {
            options.bias = Some(bias(&mut g, case));
            options.dbias = self == Variant::DBias;
        }
        let grads = g.sdpa_backward(q, k, v, o, d_o, stats, options)?;
        for (id, (_, h, d)) in [grads.dq, grads.dk, grads.dv].into_iter().zip(sides) {
            offsets.map_or(Ok(()), |[_, to]| g.ragged(id, to, h * d))?;
            g.output(id)?;
        }
        grads.dbias.map_or(Ok(()), |id| g.output(id))?;
        Ok(g)
    }

    /// Lengths and offsets; the case's Stats, packed with the heads of a token side by side.
    pub fn given(self, case: &Case, o: &Operand) -> Option<Vec<u8>> {
        match o.name.as_str() {
            "Lengths" => Some((0..case.b).flat_map(|_| (case.s as i32).to_ne_bytes()).collect()),
            "Offsets" => Some((0..=case.b).flat_map(|i| ((i * case.s) as i32).to_ne_bytes()).collect()),
            _ if self == Variant::Packed => {
                let heads = |value: &[u8]| value.repeat(case.h_q as usize);
                case.stats(o).map(|rows| rows.chunks_exact(4).flat_map(heads).collect())
            }
            _ => case.stats(o),
        }
    }
}

/// The case's forward with a bias.
fn forward(case: &Case) -> Result<Graph> {
    case.forward_with(|g| Sdpa { bias: Some(bias(g, case)), ..Sdpa::default() })
}
