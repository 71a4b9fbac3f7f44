//! Integer inputs: sequence lengths, their sums, ragged offsets, page tables.

use super::rng::Rng;
use super::{data_error, label, HostTensor, HostTensors};
use crate::graph::{FrozenGraph, InPort, Node, OutPort, Tensor, TensorId};
use crate::{Error, ErrorCode, Result};
use frostgraph_engines::sdpa::lengths::Lengths;
use frostgraph_engines::{DType, Port, SdpaFacts};
use std::collections::BTreeMap;

/// Side of the attention whose lengths bound a port's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Query,
    Key,
}

/// What lengths must respect, over all nodes that read them.
struct Bound {
    sums: bool,
    batch: i64,
    rows: i64,
    total: Option<i64>,
}

/// Lengths and prefix sums that were not given.
pub(super) fn fill_lengths(graph: &FrozenGraph, facts: &[(usize, &SdpaFacts)], seed: u64, store: &mut HostTensors) -> Result<()> {
    let mut bounds: BTreeMap<TensorId, Bound> = BTreeMap::new();
    for (n, f) in facts {
        let node = &graph.nodes()[*n];
        for (port, sums, rows, total) in [
            (InPort::SeqLenQ, false, f.s_q, f.max_total_seq_len_q),
            (InPort::SeqLenKv, false, f.s_kv, f.max_total_seq_len_kv),
            (InPort::CuSeqLenQ, true, f.s_q, f.max_total_seq_len_q),
            (InPort::CuSeqLenKv, true, f.s_kv, f.max_total_seq_len_kv),
        ] {
            let Some(&id) = node.inputs.get(&port) else { continue };
            let b = bounds.entry(id).or_insert(Bound { sums, batch: f.b, rows, total });
            b.rows = b.rows.min(rows);
            b.total = [b.total, total].into_iter().flatten().min();
        }
    }
    for (id, bound) in bounds {
        let t = graph.tensor(id);
        let uid = t.uid.unwrap_or_default();
        if store.0.contains_key(&uid) {
            continue;
        }
        let lens = draw(&bound, &mut Rng::new(seed, uid));
        let values = if bound.sums { prefix_sums(&lens) } else { lens };
        store.0.insert(uid, ints(t, 0, &values).map_err(|e| e.at(label(graph, id)))?);
    }
    Ok(())
}

/// Lengths in `1..=rows`, the first one full, scaled down where a declared total is smaller.
fn draw(bound: &Bound, rng: &mut Rng) -> Vec<i64> {
    let mut lens: Vec<i64> = (0..bound.batch).map(|b| if b == 0 { bound.rows } else { rng.between(1, bound.rows) }).collect();
    let sum: i128 = lens.iter().map(|l| i128::from(*l)).sum();
    if let Some(total) = bound.total.filter(|t| i128::from(*t) < sum) {
        for l in &mut lens {
            *l = (i128::from(*l) * i128::from(total.max(0)) / sum) as i64;
        }
    }
    lens
}

fn prefix_sums(lens: &[i64]) -> Vec<i64> {
    let mut sums = vec![0i64];
    sums.extend(lens.iter().scan(0i64, |sum, l| {
        *sum = sum.saturating_add(*l);
        Some(*sum)
    }));
    sums
}

/// Offsets that were not given: every tensor that begins its sequences at them gets the room its lengths need.
pub(super) fn fill_offsets(graph: &FrozenGraph, facts: &[(usize, &SdpaFacts)], store: &mut HostTensors) -> Result<()> {
    let mut room: BTreeMap<TensorId, Vec<i64>> = BTreeMap::new();
    for (n, f) in facts {
        let node = &graph.nodes()[*n];
        if sides(node).iter().all(|(_, id)| graph.tensor(*id).ragged.is_none()) {
            continue;
        }
        let lens = Lengths::resolve(f, &store.view()).map_err(data_error)?;
        for (side, id) in sides(node) {
            let t = graph.tensor(id);
            let Some(r) = t.ragged.filter(|_| t.stride.len() == 4) else { continue };
            let lens = if side == Side::Query { &lens.q } else { &lens.kv };
            let slots = room.entry(r.offset).or_insert_with(|| vec![0; lens.len()]);
            for (slot, len) in slots.iter_mut().zip(lens) {
                let elements = len.checked_mul(t.stride[2]).ok_or_else(|| {
                    Error::new(ErrorCode::BadStrides, format!("row stride {}", t.stride[2]), "offsets in 64 bits")
                        .at(label(graph, id))
                })?;
                *slot = (*slot).max((elements as u64).div_ceil(r.multiplier.max(1) as u64) as i64);
            }
        }
    }
    for (id, slots) in room {
        let t = graph.tensor(id);
        let uid = t.uid.unwrap_or_default();
        if let std::collections::btree_map::Entry::Vacant(free) = store.0.entry(uid) {
            free.insert(ints(t, 0, &prefix_sums(&slots)).map_err(|e| e.at(label(graph, id)))?);
        }
    }
    Ok(())
}

/// Operands of a node that are indexed by token, with the side that counts them.
fn sides(node: &Node) -> Vec<(Side, TensorId)> {
    let of_input = |p: &InPort| match p {
        InPort::Q | InPort::O | InPort::HighPrecisionO | InPort::DO | InPort::Stats => Some(Side::Query),
        InPort::K | InPort::V => Some(Side::Key),
        InPort::AttnScale
        | InPort::Bias
        | InPort::SeqLenQ
        | InPort::SeqLenKv
        | InPort::CuSeqLenQ
        | InPort::CuSeqLenKv
        | InPort::Seed
        | InPort::Offset
        | InPort::DropoutMask
        | InPort::DropoutScale
        | InPort::DropoutScaleInv
        | InPort::PageTableK
        | InPort::PageTableV
        | InPort::BlockMask
        | InPort::Sink
        | InPort::KvMask
        | InPort::A
        | InPort::B
        | InPort::C
        | InPort::Sfa
        | InPort::Sfb
        | InPort::BPtrs
        | InPort::SfbPtrs
        | InPort::PaddedOffsets
        | InPort::Alpha
        | InPort::Prob
        | InPort::NormConst
        | InPort::Token
        | InPort::Weight
        | InPort::FirstTokenOffset
        | InPort::TokenIndex
        | InPort::TokenKs => None,
    };
    let of_output = |p: &OutPort| match p {
        OutPort::O | OutPort::HighPrecisionO | OutPort::Stats | OutPort::Max | OutPort::SumExp | OutPort::DQ => Some(Side::Query),
        OutPort::DK | OutPort::DV => Some(Side::Key),
        OutPort::RngDump
        | OutPort::DBias
        | OutPort::DSink
        | OutPort::DRow
        | OutPort::DCol
        | OutPort::DSrelu
        | OutPort::DProb
        | OutPort::Amax
        | OutPort::SfdRow
        | OutPort::SfdCol
        | OutPort::SfdColDSrelu
        | OutPort::Status
        | OutPort::Output => None,
    };
    let inputs = node.inputs.iter().filter_map(|(p, id)| Some((of_input(p)?, *id)));
    let outputs = node.outputs.iter().filter_map(|(p, id)| Some((of_output(p)?, *id)));
    inputs.chain(outputs).collect()
}

/// Page tables that were not given: consecutive pages, each used once while the pool lasts.
pub(super) fn fill_pages(graph: &FrozenGraph, facts: &[(usize, &SdpaFacts)], store: &mut HostTensors) -> Result<()> {
    for (n, f) in facts {
        let node = &graph.nodes()[*n];
        for (port, pool) in [(InPort::PageTableK, &f.ports.k), (InPort::PageTableV, &f.ports.v)] {
            let (Some(&id), Some(pool)) = (node.inputs.get(&port), pool) else { continue };
            let t = graph.tensor(id);
            let uid = t.uid.unwrap_or_default();
            if store.0.contains_key(&uid) {
                continue;
            }
            let (batch, pages) = (t.dim.first().copied().unwrap_or(0), t.dim.get(2).copied().unwrap_or(1));
            let mut buffer = sized(t).map_err(|e| e.at(label(graph, id)))?;
            for b in 0..batch {
                for i in 0..pages {
                    let page = (b * pages + i) % pool.dim[0].max(1);
                    let at = b * t.stride[0] + i * t.stride.get(2).copied().unwrap_or(1);
                    put(&mut buffer, t, at, page).map_err(|e| e.at(label(graph, id)))?;
                }
            }
            store.0.insert(uid, buffer);
        }
    }
    Ok(())
}

/// An integer tensor with these values along one axis.
fn ints(t: &Tensor, axis: usize, values: &[i64]) -> Result<HostTensor> {
    let have = t.dim.get(axis).copied().unwrap_or(0);
    if have < values.len() as i64 {
        return Err(Error::new(ErrorCode::BadDims, format!("extents {:?}", t.dim), format!("{} entries", values.len())));
    }
    let mut buffer = sized(t)?;
    let stride = if have > 1 { t.stride[axis] } else { 1 };
    for (i, v) in values.iter().enumerate() {
        put(&mut buffer, t, i as i64 * stride, *v)?;
    }
    Ok(buffer)
}

/// A zeroed buffer for a dense tensor.
fn sized(t: &Tensor) -> Result<HostTensor> {
    let last = t.dim.iter().zip(&t.stride).try_fold(0i64, |sum, (d, s)| sum.checked_add((d - 1).max(0).checked_mul(*s)?));
    let width = t.dtype.and_then(DType::bytes).unwrap_or(8);
    let bytes = last.and_then(|l| u64::try_from(l).ok()).and_then(|l| l.checked_add(1)).and_then(|n| n.checked_mul(width));
    HostTensor::zeroed(bytes.unwrap_or(u64::MAX))
}

fn put(buffer: &mut HostTensor, t: &Tensor, at: i64, value: i64) -> Result<()> {
    let bytes = buffer.bytes_mut();
    let at = at as usize;
    let fits = |from: i64| Error::new(ErrorCode::BadData, format!("{from}"), "a value that i32 holds");
    match t.dtype {
        Some(DType::I64) => bytes[at * 8..at * 8 + 8].copy_from_slice(&value.to_ne_bytes()),
        Some(DType::I32) => {
            let narrow = i32::try_from(value).map_err(|_| fits(value))?;
            bytes[at * 4..at * 4 + 4].copy_from_slice(&narrow.to_ne_bytes());
        }
        other => {
            let given = format!("element type {}", other.map_or("unset", DType::short));
            return Err(Error::new(ErrorCode::BadData, given, "i32 or i64 for lengths, offsets and page tables"));
        }
    }
    Ok(())
}

/// An integer tensor as the engines' reader wants it.
pub(crate) fn int_port(t: &Tensor) -> Port {
    let (mut dim, mut stride) = ([1; 4], [1; 4]);
    for a in 0..t.dim.len().min(t.stride.len()).min(4) {
        (dim[a], stride[a]) = (t.dim[a], t.stride[a]);
    }
    Port {
        uid: t.uid.unwrap_or_default(),
        name: t.name.clone(),
        dim,
        stride,
        dtype: t.dtype.unwrap_or(DType::I32),
        alignment: t.alignment,
        is_virtual: t.is_virtual,
        ragged: None,
    }
}
