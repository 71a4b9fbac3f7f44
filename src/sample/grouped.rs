//! Grouped products: inputs that make sense together, and results for the nodes behind.

mod judge;

pub(super) use judge::Expected;

use super::rng::Rng;
use super::{data_error, size, HostTensor, HostTensors};
use crate::graph::{FrozenGraph, TensorId};
use crate::{Error, ErrorCode, Result};
use frostgraph_engines::codec::{e2m1, e4m3, e5m2, e8m0};
use frostgraph_engines::grouped_gemm::scales::ScaleMatrix;
use frostgraph_engines::grouped_gemm::{GroupedGemmFacts, ROW_ALIGN};
use frostgraph_engines::{grouped_gemm_dsrelu, DType, Decline, Facts, HostBuffers, Knobs, LaunchPlan, Step, Target, Uid};

/// Ends of the experts and offsets into pools, where they are not given.
pub(super) fn fill_indices(f: &GroupedGemmFacts, graph: &FrozenGraph, seed: u64, store: &mut HostTensors) -> Result<()> {
    let produced = produced_uids(graph);
    let p = &f.ports;
    let each = |bits: u64, values: i64| (values as u64).saturating_mul(bits) / 8;
    let experts = f.experts as u64;
    let payload = each(u64::from(f.ab.bits()), f.n.saturating_mul(f.k));
    let scales = ScaleMatrix::of(f.n as usize, f.k as usize, f.sf_vec as usize).bytes() as u64;
    for (port, bytes) in [(&p.b_ptrs, payload), (&p.sfb_ptrs, scales)] {
        // Raw addresses cannot be made up; only a pool has offsets.
        let Some(port) = port.as_ref().filter(|q| p.b.is_some() && !produced.contains(&q.uid) && !store.0.contains_key(&q.uid))
        else {
            continue;
        };
        let list: Vec<u8> = (0..experts).flat_map(|e| (e * bytes).to_ne_bytes()).collect();
        store.0.insert(port.uid, tensor(&list)?);
    }
    let Some(ends) = p.padded_offsets.as_ref().filter(|q| !produced.contains(&q.uid) && !store.0.contains_key(&q.uid)) else {
        return Ok(());
    };
    // Whole blocks of rows dealt to the experts one by one, so that some may get none.
    let (blocks, mut rng) = (f.m / ROW_ALIGN, Rng::new(seed, ends.uid));
    let mut counts = vec![0i64; f.experts as usize];
    for _ in 0..blocks.min(1 << 20) {
        counts[rng.between(0, f.experts - 1) as usize] += ROW_ALIGN;
    }
    let mut end = 0i64;
    let list: Vec<u8> = counts
        .into_iter()
        .flat_map(|n| {
            end += n;
            (end as i32).to_ne_bytes()
        })
        .collect();
    store.0.insert(ends.uid, tensor(&list)?);
    Ok(())
}

/// Every input of the node that is not given and that no other node makes: payloads, C and alpha of order one, scales within a few powers of
/// two of 1, probabilities between 0 and 1, a norm of 1.
pub(super) fn fill(f: &GroupedGemmFacts, graph: &FrozenGraph, seed: u64, store: &mut HostTensors) -> Result<()> {
    let produced = produced_uids(graph);
    for (label, port, written) in f.ports.all() {
        if written || produced.contains(&port.uid) || store.0.contains_key(&port.uid) || port.dtype == DType::I64 {
            continue;
        }
        let count = port.dim.iter().try_fold(1i64, |n, d| n.checked_mul(*d)).unwrap_or(i64::MAX) as u64;
        let bytes = count.saturating_mul(u64::from(port.dtype.bits())).div_ceil(8);
        let (mut buffer, mut rng) = (HostTensor::zeroed(bytes)?, Rng::new(seed, port.uid));
        let out = buffer.bytes_mut();
        match label {
            "A" | "B" => payloads(f.ab, out, &mut rng),
            "SFA" | "SFB" if f.sf == DType::F8E4M3 => out.iter_mut().for_each(|b| *b = e4m3::encode(unit(&mut rng) * 1.5 + 0.25)),
            "SFA" | "SFB" => out.iter_mut().for_each(|b| *b = e8m0::ONE - 1 + (rng.next() >> 62) as u8 % 3),
            "C" => write_all(port.dtype, out, || rng.normals()[0]),
            "prob" => write_all(DType::F32, out, || unit(&mut rng)),
            "alpha" => write_all(DType::F32, out, || 0.5 + unit(&mut rng)),
            _ => write_all(DType::F32, out, || 1.0),
        }
        store.0.insert(port.uid, buffer);
    }
    Ok(())
}

pub(super) fn produced_uids(graph: &FrozenGraph) -> Vec<Uid> {
    size::produced(graph).into_iter().map(|id| graph.tensor(id).uid.unwrap_or_default()).collect()
}

pub(super) fn tensor(bytes: &[u8]) -> Result<HostTensor> {
    let mut t = HostTensor::zeroed(bytes.len() as u64)?;
    t.bytes_mut().copy_from_slice(bytes);
    Ok(t)
}

/// In (0, 1).
pub(super) fn unit(rng: &mut Rng) -> f32 {
    ((rng.next() >> 41) as f32 + 0.5) / (1u32 << 23) as f32
}

pub(super) fn payloads(dtype: DType, out: &mut [u8], rng: &mut Rng) {
    for two in out.chunks_mut(2) {
        let pair = rng.normals();
        match dtype {
            DType::F4E2M1 => {
                for (byte, x) in two.iter_mut().zip([pair, rng.normals()]) {
                    *byte = e2m1::encode(x[0] * 1.5) | e2m1::encode(x[1] * 1.5) << 4;
                }
            }
            DType::F8E5M2 => two.iter_mut().zip(pair).for_each(|(b, x)| *b = e5m2::encode(x)),
            _ => two.iter_mut().zip(pair).for_each(|(b, x)| *b = e4m3::encode(x)),
        }
    }
}

pub(super) fn write_all(dtype: DType, out: &mut [u8], mut next: impl FnMut() -> f32) {
    match dtype {
        DType::F16 => out.chunks_exact_mut(2).for_each(|o| o.copy_from_slice(&half::f16::from_f32(next()).to_ne_bytes())),
        DType::BF16 => out.chunks_exact_mut(2).for_each(|o| o.copy_from_slice(&half::bf16::from_f32(next()).to_ne_bytes())),
        DType::F8E4M3 => out.iter_mut().for_each(|o| *o = e4m3::encode(next())),
        DType::F8E5M2 => out.iter_mut().for_each(|o| *o = e5m2::encode(next())),
        _ => out.chunks_exact_mut(4).for_each(|o| o.copy_from_slice(&next().to_ne_bytes())),
    }
}

/// Results for nodes that read them: what the CPU row makes, rounded as in a run. Nothing where no node does.
pub(super) fn store_results(graph: &FrozenGraph, n: usize, f: &GroupedGemmFacts, store: &mut HostTensors) -> Result<()> {
    let facts = Facts::GroupedGemm(Box::new(f.clone()));
    store_host_results(graph, n, &facts, || grouped_gemm_dsrelu::cpu::lower(&facts, &Knobs::NONE, &Target::Cpu), store)
}

/// What a CPU row makes of one node, stored where some node reads it.
pub(super) fn store_host_results(
    graph: &FrozenGraph,
    n: usize,
    facts: &Facts,
    lower: impl FnOnce() -> std::result::Result<LaunchPlan, Decline>,
    store: &mut HostTensors,
) -> Result<()> {
    let outputs: Vec<TensorId> = graph.nodes()[n].outputs.values().copied().collect();
    if !graph.nodes().iter().any(|node| node.inputs.values().any(|id| outputs.contains(id))) {
        return Ok(());
    }
    let plan = lower().map_err(|d| Error::new(ErrorCode::Declined, d.to_string(), "a product that the CPU can evaluate"))?;
    let mut results = HostTensors::default();
    for id in outputs {
        let bytes = size::tensor_bytes(graph, id, &store.view())?;
        results.0.insert(graph.tensor(id).uid.unwrap_or_default(), HostTensor::zeroed(bytes)?);
    }
    let mut scratch = HostTensor::zeroed(plan.workspace_bytes)?;
    let mut buffers = HostBuffers {
        inputs: store.view(),
        outputs: results.0.iter_mut().map(|(uid, t)| (*uid, t.bytes_mut())).collect(),
        workspace: scratch.bytes_mut(),
    };
    for step in &plan.steps {
        if let Step::Host(call) = step {
            (call.run)(facts, &Knobs::NONE, &mut buffers).map_err(data_error)?;
        }
    }
    store.0.extend(results.0);
    Ok(())
}
