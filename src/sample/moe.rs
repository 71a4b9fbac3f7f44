//! Plain grouped products: inputs that make sense together, the f64 oracle's results, and how far results are from them.

use super::grouped::{payloads, produced_uids, store_host_results, tensor, unit, write_all};
use super::rng::Rng;
use super::{data_error, HostTensor, HostTensors};
use crate::graph::{FrozenGraph, OutPort};
use crate::Result;
use frostgraph_engines::codec::{e4m3, e8m0};
use frostgraph_engines::grouped_gemm::oracle::element;
use frostgraph_engines::grouped_gemm::GemmPort;
use frostgraph_engines::moe_grouped_matmul::oracle::{evaluate, Oracle};
use frostgraph_engines::moe_grouped_matmul::{cpu, MoeFacts, MoeMode};
use frostgraph_engines::{DType, Facts, Knobs, Target};

/// Offsets and indices where they are not given: every routed row is dealt to some group, destinations of scatter are a permutation.
pub(super) fn fill_indices(f: &MoeFacts, graph: &FrozenGraph, seed: u64, store: &mut HostTensors) -> Result<()> {
    let produced = produced_uids(graph);
    let p = &f.ports;
    let absent = |port: &Option<GemmPort>, store: &HostTensors| {
        port.clone().filter(|q| !produced.contains(&q.uid) && !store.0.contains_key(&q.uid))
    };
    if let Some(offsets) = absent(&p.first_token_offset, store) {
        let mut rng = Rng::new(seed, offsets.uid);
        let mut cuts: Vec<i64> = (1..f.groups).map(|_| rng.between(0, f.routed)).collect();
        cuts.sort_unstable();
        cuts.insert(0, 0);
        cuts.extend(f.explicit_end.then_some(f.routed));
        store.0.insert(offsets.uid, integers(&offsets, &cuts)?);
    }
    // One order for both indices of scatter, whichever of them is given.
    let mut rng = Rng::new(seed, p.token_index.as_ref().map_or(0, |q| q.uid));
    let mut order: Vec<i64> = (0..f.routed).collect();
    (1..order.len()).rev().for_each(|i| order.swap(i, rng.between(0, i as i64) as usize));
    if let Some(index) = absent(&p.token_index, store) {
        let list: Vec<i64> = match f.mode {
            MoeMode::Scatter => order.iter().map(|d| d / f.top_k.max(1)).collect(),
            MoeMode::None | MoeMode::Gather => order.iter().map(|_| rng.between(0, f.tokens - 1)).collect(),
        };
        store.0.insert(index.uid, integers(&index, &list)?);
    }
    if let Some(ks) = absent(&p.token_ks, store) {
        let list: Vec<i64> = order.iter().map(|d| d % f.top_k.max(1)).collect();
        store.0.insert(ks.uid, integers(&ks, &list)?);
    }
    Ok(())
}

/// A vector operand by its stride along the only extent above 1.
fn integers(port: &GemmPort, values: &[i64]) -> Result<HostTensor> {
    let stride = port.dim.iter().zip(&port.stride).find(|(d, _)| **d > 1).map_or(1, |(_, s)| *s) as usize;
    let width = if port.dtype == DType::I64 { 8 } else { 4 };
    let mut bytes = vec![0u8; (values.len().saturating_sub(1) * stride + 1) * width];
    for (slot, v) in bytes.chunks_exact_mut(width).step_by(stride.max(1)).zip(values) {
        slot.copy_from_slice(&v.to_ne_bytes()[..width]);
    }
    tensor(&bytes)
}

/// Every input of the node that is not given and that no other node makes: tokens of order one, weights of order 1 / sqrt(K) where they are wide
/// enough, scales within a few powers of two of 1.
pub(super) fn fill(f: &MoeFacts, graph: &FrozenGraph, seed: u64, store: &mut HostTensors) -> Result<()> {
    let produced = produced_uids(graph);
    for (label, port, written) in f.ports.all() {
        if written || produced.contains(&port.uid) || store.0.contains_key(&port.uid) {
            continue;
        }
        let span = port.dim.iter().zip(&port.stride).map(|(d, s)| (d - 1).saturating_mul(*s)).fold(1i64, i64::saturating_add);
        let bytes = (span as u64).saturating_mul(u64::from(port.dtype.bits())).div_ceil(8);
        let (mut buffer, mut rng) = (HostTensor::zeroed(bytes)?, Rng::new(seed, port.uid));
        let out = buffer.bytes_mut();
        let scale = if label == "Weight" { (f.k as f32).sqrt().recip() } else { 1.0 };
        match port.dtype {
            DType::F8E8M0 => out.iter_mut().for_each(|b| *b = e8m0::ONE - 1 + (rng.next() >> 62) as u8 % 3),
            DType::F8E4M3 if label.ends_with("scale") => {
                out.iter_mut().for_each(|b| *b = e4m3::encode(unit(&mut rng) * 1.5 + 0.25));
            }
            DType::F4E2M1 | DType::F8E4M3 | DType::F8E5M2 => payloads(port.dtype, out, &mut rng),
            other => write_all(other, out, || rng.normals()[0] * scale),
        }
        store.0.insert(port.uid, buffer);
    }
    Ok(())
}

/// Results for nodes that read them; nothing where no node does.
pub(super) fn store_results(graph: &FrozenGraph, n: usize, f: &MoeFacts, store: &mut HostTensors) -> Result<()> {
    let facts = Facts::Moe(Box::new(f.clone()));
    store_host_results(graph, n, &facts, || cpu::lower(&facts, &Knobs::NONE, &Target::Cpu), store)
}

/// The oracle's results of one node.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Expected {
    facts: MoeFacts,
    oracle: Oracle,
}

impl Expected {
    pub fn new(facts: &MoeFacts, inputs: &HostTensors) -> Result<Expected> {
        let oracle = evaluate(facts, &inputs.view()).map_err(data_error)?;
        Ok(Expected { facts: facts.clone(), oracle })
    }

    /// The outputs with their ports.
    pub fn ports(&self) -> Vec<(OutPort, &GemmPort)> {
        let p = &self.facts.ports;
        let all = [(OutPort::Output, &p.output), (OutPort::Status, &p.status)];
        all.into_iter().filter_map(|(port, operand)| Some((port, operand.as_ref()?))).collect()
    }

    /// Element type, error and tolerance of one output: of the product the relative Frobenius error over the rows that some routed row leads to.
    pub fn compare(&self, port: OutPort, bytes: &[u8]) -> Option<(DType, f64, f64)> {
        let (_, operand) = self.ports().into_iter().find(|(q, _)| *q == port)?;
        if port == OutPort::Status {
            let same = bytes.get(..4) == Some(&self.oracle.status.to_ne_bytes());
            return Some((operand.dtype, if same { 0.0 } else { f64::INFINITY }, 0.0));
        }
        let (row, col) = (operand.stride[1] as usize, operand.stride[2] as usize);
        let (mut diff, mut norm) = (0.0, 0.0);
        for (r, want) in self.oracle.rows.iter().enumerate() {
            for (c, &want) in want.iter().flatten().enumerate() {
                let got = element(operand.dtype, bytes, r * row + c * col);
                let same = got == want || got.is_nan() && want.is_nan();
                diff += if same { 0.0 } else { (got - want).powi(2) };
                norm += if want.is_finite() { want.powi(2) } else { 0.0 };
            }
        }
        let error = if norm == 0.0 { f64::sqrt(diff) } else { (diff / norm).sqrt() };
        let error = if error.is_nan() { f64::INFINITY } else { error };
        Some((operand.dtype, error, super::tolerance(operand.dtype)))
    }
}
