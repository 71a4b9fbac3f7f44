//! Inputs from a seed.

use super::rng::Rng;
use super::{data_error, grouped, label, lengths, moe, size, HostTensor, HostTensors};
use crate::analyze::analyze;
use crate::graph::{FrozenGraph, InPort, TensorId};
use crate::{Error, ErrorCode, Result};
use frostgraph_engines::sdpa::access::Rows;
use frostgraph_engines::sdpa::dense::write_dense;
use frostgraph_engines::sdpa::{oracle, Direction, Recipe};
use frostgraph_engines::{qat, DType, Facts, GroupedGemmFacts, MoeFacts, SdpaFacts};
use std::collections::BTreeMap;

/// Completes `given` by the integers that say where sequences lie: lengths, their sums, ragged offsets, page tables; and by the
/// scalars that the graph carries. [`inputs`] does the same first; this part alone is for readers of packed tensors.
///
/// Errors as for [`inputs`].
pub fn indices(graph: &FrozenGraph, seed: u64, given: HostTensors) -> Result<HostTensors> {
    let all = facts(graph)?;
    complete_indices(graph, &all, seed, given)
}

/// Refuses a graph whose dense inputs exceed the memory of this machine before any of them is touched: extents come from files.
fn fits(graph: &FrozenGraph, given: &HostTensors) -> Result<()> {
    let (available, mut total) = (super::store::available(), 0u64);
    for id in size::input_ids(graph) {
        let t = graph.tensor(id);
        if t.ragged.is_some() || given.0.contains_key(&t.uid.unwrap_or_default()) {
            continue;
        }
        let bytes = size::tensor_bytes(graph, id, &BTreeMap::new())?;
        total = total.saturating_add(bytes);
        if total > available {
            let expected = "inputs that this machine has memory for";
            return Err(Error::new(ErrorCode::BufferSize, format!("{bytes} bytes, {total} with the inputs before it"), expected)
                .at(label(graph, id)));
        }
    }
    Ok(())
}

fn facts(graph: &FrozenGraph) -> Result<Vec<(usize, Facts)>> {
    let all: Vec<(usize, Facts)> = graph.order().iter().map(|&n| (n, analyze(graph, n))).collect();
    for (n, f) in refs(&all) {
        if let Some(why) = &f.invalid {
            return Err(Error::new(ErrorCode::BadData, why.clone(), "a graph that some engine could run")
                .at(format!("node '{}'", graph.nodes()[n].name)));
        }
    }
    Ok(all)
}

fn refs(all: &[(usize, Facts)]) -> Vec<(usize, &SdpaFacts)> {
    all.iter()
        .filter_map(|(n, f)| match f {
            Facts::Sdpa(f) => Some((*n, f.as_ref())),
            Facts::GroupedGemm(_) | Facts::Moe(_) => None,
        })
        .collect()
}

fn products(all: &[(usize, Facts)]) -> impl Iterator<Item = &GroupedGemmFacts> {
    all.iter().filter_map(|(_, f)| match f {
        Facts::Sdpa(_) | Facts::Moe(_) => None,
        Facts::GroupedGemm(f) => Some(f.as_ref()),
    })
}

fn plain_products(all: &[(usize, Facts)]) -> impl Iterator<Item = &MoeFacts> {
    all.iter().filter_map(|(_, f)| match f {
        Facts::Sdpa(_) | Facts::GroupedGemm(_) => None,
        Facts::Moe(f) => Some(f.as_ref()),
    })
}

fn complete_indices(graph: &FrozenGraph, all: &[(usize, Facts)], seed: u64, given: HostTensors) -> Result<HostTensors> {
    let facts = &refs(all);
    fits(graph, &given)?;
    let mut store = given;
    for (_, t) in graph.tensors() {
        if let (Some(value), Some(uid)) = (t.value, t.uid) {
            store.0.entry(uid).or_insert(scalar(value)?);
        }
    }
    lengths::fill_lengths(graph, facts, seed, &mut store)?;
    lengths::fill_pages(graph, facts, &mut store)?;
    lengths::fill_offsets(graph, facts, &mut store)?;
    products(all).try_for_each(|f| grouped::fill_indices(f, graph, seed, &mut store))?;
    plain_products(all).try_for_each(|f| moe::fill_indices(f, graph, seed, &mut store))?;
    Ok(store)
}

/// Completes `given` to all inputs of the graph; scalars that the graph carries are included.
///
/// Real numbers are standard normal, a scale tensor is `1/sqrt(d_qk)`. A backward's O and Stats come from the f64 oracle, so that the
/// gradients are those of a forward that was really made. Deterministic in `seed`; a given tensor changes no other one, except those
/// that must match it.
///
/// Errors: FG4006 when given data contradict the graph, FG4002 when memory is short, FG1105 when a span leaves 64 bits.
pub fn inputs(graph: &FrozenGraph, seed: u64, given: HostTensors) -> Result<HostTensors> {
    let all = facts(graph)?;
    let facts = refs(&all);
    let mut store = complete_indices(graph, &all, seed, given)?;
    products(&all).try_for_each(|f| grouped::fill(f, graph, seed, &mut store))?;
    plain_products(&all).try_for_each(|f| moe::fill(f, graph, seed, &mut store))?;

    let roles = roles(graph);
    let late = |id: &TensorId| matches!(roles.get(id), Some((InPort::O | InPort::HighPrecisionO | InPort::Stats, _)));
    let wanted = size::input_ids(graph);
    for &id in wanted.iter().filter(|id| !late(id)) {
        let t = graph.tensor(id);
        let uid = t.uid.unwrap_or_default();
        if store.0.contains_key(&uid) {
            continue;
        }
        let mut buffer = allocate(graph, id, &store)?;
        match roles.get(&id) {
            Some((InPort::AttnScale, d)) => {
                fill(&mut buffer, t.dtype, |_| [1.0 / (*d as f32).sqrt(); 2], &mut Rng::new(seed, uid))
            }
            // Declined by every engine today; ones keep every element and are valid data.
            Some((InPort::DropoutMask | InPort::DropoutScale | InPort::DropoutScaleInv | InPort::BlockMask, _)) => {
                fill(&mut buffer, t.dtype, |_| [1.0; 2], &mut Rng::new(seed, uid));
            }
            Some((InPort::Seed | InPort::Offset, _)) | None => {}
            Some(_) => fill(&mut buffer, t.dtype, Rng::normals, &mut Rng::new(seed, uid)),
        }
        store.0.insert(uid, buffer);
    }
    for (n, f) in facts.iter().filter(|(_, f)| f.direction == Direction::Backward) {
        fill_forward_results(graph, *n, f, &mut store)?;
    }
    Ok(store)
}

/// O and Stats of a backward that neither the caller nor another node provides.
fn fill_forward_results(graph: &FrozenGraph, n: usize, f: &SdpaFacts, store: &mut HostTensors) -> Result<()> {
    let node = &graph.nodes()[n];
    let produced = size::produced(graph);
    let missing = |port: InPort, store: &HostTensors| {
        let id = node.inputs.get(&port).copied()?;
        let known = produced.contains(&id) || store.0.contains_key(&graph.tensor(id).uid.unwrap_or_default());
        (!known).then_some(id)
    };
    let o = missing(InPort::O, store).or(missing(InPort::HighPrecisionO, store));
    let stats = missing(InPort::Stats, store);
    if o.is_none() && stats.is_none() {
        return Ok(());
    }
    let (made_o, made_stats) = match f.recipe {
        Recipe::Plain => {
            let made = oracle::forward(f, &store.view()).map_err(data_error)?;
            (made.o, made.stats)
        }
        Recipe::Nvfp4Qat => {
            let made = qat::oracle::auxiliaries(f, &store.view()).map_err(data_error)?;
            (made.o, made.stats)
        }
    };
    for (id, port, dense) in [(o, &f.ports.o, &made_o), (stats, &f.ports.stats, &made_stats)] {
        let (Some(id), Some(port)) = (id, port) else { continue };
        let mut buffer = allocate(graph, id, store)?;
        write_dense(f, port, Rows::Query, &store.view(), dense, buffer.bytes_mut()).map_err(data_error)?;
        store.0.insert(port.uid, buffer);
    }
    Ok(())
}

fn allocate(graph: &FrozenGraph, id: TensorId, store: &HostTensors) -> Result<HostTensor> {
    HostTensor::zeroed(size::tensor_bytes(graph, id, &store.view())?).map_err(|e| e.at(label(graph, id)))
}

/// The port that reads each tensor and the d_qk of its node; the first reader decides.
fn roles(graph: &FrozenGraph) -> BTreeMap<TensorId, (InPort, i64)> {
    let mut roles = BTreeMap::new();
    for &n in graph.order() {
        let node = &graph.nodes()[n];
        let q = node.inputs.get(&InPort::Q).and_then(|id| graph.tensor(*id).dim.last().copied());
        for (port, id) in &node.inputs {
            roles.entry(*id).or_insert((*port, q.unwrap_or(1)));
        }
    }
    roles
}

fn scalar(value: crate::graph::ScalarValue) -> Result<HostTensor> {
    use crate::graph::ScalarValue as V;
    let bytes = match value {
        V::I64(x) => x.to_ne_bytes().to_vec(),
        V::I32(x) => x.to_ne_bytes().to_vec(),
        V::F16(x) | V::BF16(x) => x.to_ne_bytes().to_vec(),
        V::F32(x) => x.to_ne_bytes().to_vec(),
        V::F64(x) => x.to_ne_bytes().to_vec(),
    };
    let mut t = HostTensor::zeroed(bytes.len() as u64)?;
    t.bytes_mut().copy_from_slice(&bytes);
    Ok(t)
}

/// Fills a whole buffer, gaps between rows included; types without a real-number reading stay zero.
fn fill(buffer: &mut HostTensor, dtype: Option<DType>, pair: impl Fn(&mut Rng) -> [f32; 2], rng: &mut Rng) {
    fn each<const N: usize>(
        bytes: &mut [u8],
        pair: impl Fn(&mut Rng) -> [f32; 2],
        rng: &mut Rng,
        encode: impl Fn(f32) -> [u8; N],
    ) {
        for two in bytes.chunks_mut(2 * N) {
            for (slot, x) in two.chunks_exact_mut(N).zip(pair(rng)) {
                slot.copy_from_slice(&encode(x));
            }
        }
    }
    let bytes = buffer.bytes_mut();
    match dtype {
        Some(DType::F32) => each(bytes, pair, rng, f32::to_ne_bytes),
        Some(DType::F64) => each(bytes, pair, rng, |x| f64::from(x).to_ne_bytes()),
        Some(DType::F16) => each(bytes, pair, rng, |x| half::f16::from_f32(x).to_ne_bytes()),
        Some(DType::BF16) => each(bytes, pair, rng, |x| half::bf16::from_f32(x).to_ne_bytes()),
        Some(DType::U8 | DType::I8 | DType::ByteBool | DType::Bool) => each(bytes, pair, rng, |x| [u8::from(x > 0.0)]),
        Some(_) | None => {}
    }
}
