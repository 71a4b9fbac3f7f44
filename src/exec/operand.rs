//! What an executable expects of each bound tensor, worked out once at compile time.

use crate::graph::{FrozenGraph, ScalarValue, Tensor, TensorId};
use crate::{DType, Error, ErrorCode, Result};
use frostgraph_engines::Uid;
use std::collections::BTreeMap;

/// One tensor that the caller binds.
#[derive(Debug, Clone, PartialEq)]
pub struct Operand {
    /// Identifier.
    pub uid: Uid,
    /// Label of the tensor; may be empty.
    pub name: String,
    /// Written by some node (it may also be read by a later one).
    pub written: bool,
    /// Element type.
    pub dtype: DType,
    /// Least length of the buffer in bytes: from the first to one past the last addressed element. 0 for packed (ragged) tensors,
    /// whose length depends on their offsets; the engines check those against the data.
    pub bytes: u64,
    /// Bytes that the declared extents address; for packed tensors, what they take when every sequence is as long as declared.
    pub declared_bytes: u64,
    /// Alignment promised by the graph, bytes; CUDA plans rely on it.
    pub alignment: u64,
    /// Whether batches are packed.
    pub ragged: bool,
    /// Extents and strides in bytes, for telling interleaved tensors from overlapping ones.
    pub(crate) lattice: Vec<(u64, u64)>,
    /// Bytes of a scalar that the graph itself carries; used when nothing is bound.
    pub(crate) value: Option<Vec<u8>>,
    /// A host scalar handed over by value, also to CUDA plans.
    pub(crate) by_value: bool,
}

impl Operand {
    /// `uid 7 'dQ'`, or `uid 7` when the tensor has no name.
    pub fn label(&self) -> String {
        label(self.uid, &self.name)
    }

    /// Bytes of one element, at least 1: the alignment that host slices need.
    pub fn element_bytes(&self) -> u64 {
        u64::from(self.dtype.bits().div_ceil(8)).max(1)
    }
}

pub(crate) fn label(uid: Uid, name: &str) -> String {
    if name.is_empty() {
        format!("uid {uid}")
    } else {
        format!("uid {uid} '{name}'")
    }
}

/// Uid of a frozen graph's tensor. Freezing gives every tensor one.
pub(crate) fn uid_of(t: &Tensor) -> Uid {
    t.uid.unwrap_or(0)
}

/// Elements from the first to one past the last addressed element, in checked 64-bit.
fn span_elements(dim: &[i64], stride: &[i64]) -> Option<u64> {
    let mut last = 0i64;
    for (&d, &s) in dim.iter().zip(stride) {
        if d <= 0 || s < 0 {
            return None;
        }
        last = last.checked_add((d - 1).checked_mul(s)?)?;
    }
    u64::try_from(last).ok()?.checked_add(1)
}

/// Bytes of a tensor by its declared geometry. A packed tensor may hold as many tokens as the padded one: batch times sequence.
pub(crate) fn declared_bytes(t: &Tensor) -> Result<u64> {
    let dtype = t.dtype.unwrap_or(DType::F32);
    let dense = span_elements(&t.dim, &t.stride);
    let elements = if t.ragged.is_some() && t.dim.len() == 4 {
        let tokens = t.dim[0].checked_mul(t.dim[2]);
        let packed = tokens.and_then(|n| span_elements(&[t.dim[1], n, t.dim[3]], &[t.stride[1], t.stride[2], t.stride[3]]));
        dense.zip(packed).map(|(a, b)| a.max(b))
    } else {
        dense
    };
    elements.and_then(|n| n.checked_mul(u64::from(dtype.bits()))).map(|bits| bits.div_ceil(8)).ok_or_else(|| {
        Error::new(
            ErrorCode::BadDims,
            format!("extents {:?} with strides {:?}", t.dim, t.stride),
            "a span that fits 64-bit bytes",
        )
        .at(label(uid_of(t), &t.name))
    })
}

fn scalar_bytes(v: ScalarValue) -> Vec<u8> {
    match v {
        ScalarValue::I64(x) => x.to_ne_bytes().to_vec(),
        ScalarValue::I32(x) => x.to_ne_bytes().to_vec(),
        ScalarValue::F16(x) | ScalarValue::BF16(x) => x.to_ne_bytes().to_vec(),
        ScalarValue::F32(x) => x.to_ne_bytes().to_vec(),
        ScalarValue::F64(x) => x.to_ne_bytes().to_vec(),
    }
}

fn operand(t: &Tensor, written: bool) -> Result<Operand> {
    let dtype = t.dtype.unwrap_or(DType::F32);
    let width = u64::from(dtype.bits().div_ceil(8));
    let declared_bytes = declared_bytes(t)?;
    // Elements narrower than a byte have no byte stride: the range as a whole.
    let lattice = if dtype.bits() < 8 {
        vec![(declared_bytes, 1)]
    } else {
        t.dim.iter().zip(&t.stride).filter(|(d, _)| **d > 1).map(|(d, s)| (*d as u64, (*s).max(0) as u64 * width)).collect()
    };
    Ok(Operand {
        uid: uid_of(t),
        name: t.name.clone(),
        written,
        dtype,
        bytes: if t.ragged.is_some() { 0 } else { declared_bytes },
        declared_bytes,
        alignment: u64::try_from(t.alignment).unwrap_or(1).max(1),
        ragged: t.ragged.is_some(),
        lattice,
        value: t.value.map(scalar_bytes),
        by_value: t.pass_by_value,
    })
}

/// Tensors read and written by one node, offset tensors of packed operands included, as handles.
pub(crate) struct NodeTensors {
    pub reads: Vec<TensorId>,
    pub writes: Vec<TensorId>,
}

pub(crate) fn node_tensors(g: &FrozenGraph, node: usize) -> NodeTensors {
    let n = &g.nodes()[node];
    let mut reads: Vec<TensorId> = n.inputs.values().copied().collect();
    let writes: Vec<TensorId> = n.outputs.values().copied().collect();
    for id in n.inputs.values().chain(n.outputs.values()) {
        if let Some(r) = g.tensor(*id).ragged {
            reads.push(r.offset);
        }
    }
    reads.sort();
    reads.dedup();
    NodeTensors { reads, writes }
}

/// Every tensor that the caller binds, ascending by uid.
pub(crate) fn operands(g: &FrozenGraph) -> Result<Vec<Operand>> {
    let mut written: BTreeMap<TensorId, bool> = BTreeMap::new();
    for node in 0..g.nodes().len() {
        let t = node_tensors(g, node);
        for id in t.reads {
            written.entry(id).or_insert(false);
        }
        for id in t.writes {
            written.insert(id, true);
        }
    }
    let mut list = Vec::with_capacity(written.len());
    for (id, w) in written {
        let t = g.tensor(id);
        if !t.is_virtual {
            list.push(operand(t, w)?);
        }
    }
    list.sort_by_key(|o| o.uid);
    Ok(list)
}
