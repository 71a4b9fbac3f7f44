//! One case on the device: twice, on differently poisoned memory, with guard bands around everything.

use crate::cases::{Case, Data};
use crate::device::{fault, Gpu, Ready, POISON};
use crate::far::{self, Long};
use crate::inputs::inputs;
use crate::judge::{judge, owned};
use crate::library::{self, Subject};
use crate::lower;
use crate::program::Special;
use crate::want::Want;
use frostgraph::engines::grouped_gemm::oracle::evaluate;
use frostgraph::engines::grouped_gemm::{GroupedGemmFacts, Weights};
use frostgraph::engines::{Facts, Uid};
use frostgraph::runtime::{CudaStream, DeviceBuffer, Program};
use frostgraph::{DType, Result};
use std::collections::BTreeMap;

/// Buffers of a case; where weights are at addresses, those are kept with them.
fn ready<'a>(gpu: &'a Gpu, facts: &Facts, program: Program, data: &Bytes) -> Result<Ready<'a>> {
    let f = facts.expect_grouped_gemm();
    let (data, weights) = addressed(gpu, f, data)?;
    let outputs = f.ports.all().filter(|p| p.2).map(|(_, port, _)| {
        let len = port.dim.iter().product::<i64>() * i64::from(port.dtype.bits()) / 8;
        (port.uid, len as usize)
    });
    Ok(Ready::new(gpu, program, &data, outputs)?.keeping(weights))
}

/// Operands by uid.
type Bytes = BTreeMap<Uid, Vec<u8>>;

/// Where the node has addresses: two copies of each pool, and lists that lead every second expert to the second copy.
/// A list entry that leads outside the pool becomes a null address.
fn addressed(gpu: &Gpu, f: &GroupedGemmFacts, data: &BTreeMap<Uid, Vec<u8>>) -> Result<(Bytes, Vec<DeviceBuffer>)> {
    let (mut data, mut kept) = (data.clone(), Vec::new());
    if f.weights != Weights::Addresses {
        return Ok((data, kept));
    }
    for (pool, list, size) in [(2, 6, f.expert_bytes()[0]), (5, 7, f.expert_bytes()[1])] {
        let bytes = data.remove(&pool).ok_or_else(|| fault("no pool"))?;
        let copies = [DeviceBuffer::from_slice(&gpu.device, &bytes)?, DeviceBuffer::from_slice(&gpu.device, &bytes)?];
        let entries = data.get_mut(&list).ok_or_else(|| fault("no list"))?;
        for (expert, entry) in entries.chunks_exact_mut(8).enumerate() {
            let offset = entry.iter().rev().fold(0u64, |x, &b| x << 8 | u64::from(b));
            let inside = offset + size as u64 <= bytes.len() as u64;
            let address = if inside { copies[expert % 2].range().address + offset } else { 0 };
            entry.copy_from_slice(&address.to_ne_bytes());
        }
        kept.extend(copies);
    }
    Ok((data, kept))
}

/// Outputs whose bits must repeat: all but the sums that a plan without `deterministic` adds up in any order.
fn repeats(case: &Case, uid: Uid) -> bool {
    uid != 24 || case.deterministic
}

/// Runs a case; the relative error of D.
pub fn case(gpu: &Gpu, case: &Case, seed: u64) -> Result<f64> {
    let (facts, plan) = lower(case, gpu.device.target())?;
    let f = facts.expect_grouped_gemm();
    let data = inputs(case, seed);
    let views = data.iter().map(|(u, b)| (*u, &b[..])).collect();
    let pooled = case.oracle_facts();
    let oracle = evaluate(&pooled, &views).map_err(|e| fault(e.to_string()))?;
    let want = Want::new(&pooled, &data, oracle);
    let ready = ready(gpu, &facts, Program::compile(&gpu.device, &[&plan])?, &data)?;
    ready.poison(0xff)?;
    ready.queue()?;
    let first = ready.results()?;
    for (&uid, bytes) in &first {
        let mask = owned(f, &want.oracle.groups, uid, bytes.len());
        if let Some(at) = bytes.iter().zip(&mask).position(|(&b, &mine)| !mine && b != POISON) {
            return Err(fault(format!("byte {at} of output {uid} belongs to no expert and was written")));
        }
    }
    let error = judge(case, f, &want, &first).map_err(fault)?;
    ready.poison(0)?;
    ready.queue()?;
    let second = ready.results()?;
    if let Some(uid) = first.keys().find(|&&u| repeats(case, u) && first[&u] != second[&u]) {
        return Err(fault(format!("output {uid} has other bits in the second run")));
    }
    judge(case, f, &want, &second).map_err(fault)?;
    Ok(error)
}

/// Outputs of one run.
pub fn results(gpu: &Gpu, case: &Case, seed: u64) -> Result<BTreeMap<Uid, Vec<u8>>> {
    let (facts, plan) = lower(case, gpu.device.target())?;
    let ready = ready(gpu, &facts, Program::compile(&gpu.device, &[&plan])?, &inputs(case, seed))?;
    ready.poison(0xff)?;
    ready.queue()?;
    ready.results()
}

pub const SPECIALS: &[Special] = &[
    ("50 deterministic runs beside another stream have equal bits", |g, s| fifty(g, &sample(true), s)),
    ("50 deterministic runs with every feature", |g, s| fifty(g, &rich(), s)),
    ("50 deterministic runs of clusters", |g, s| fifty(g, &clusters(), s)),
    ("50 deterministic runs of tiles split along k", |g, s| fifty(g, &split(), s)),
    ("captured in a graph and replayed", |g, s| captured(g, &sample(true), s)),
    ("captured clusters, with tiles split along k", |g, s| captured(g, &split(), s)),
    ("captured with weights at addresses", |g, s| captured(g, &rich(), s)),
    ("misaligned operands are typed errors (report 45)", |g, s| each(g, s, library::misaligned)),
    ("workspace faults leave the device usable (report 125)", |g, s| each(g, s, library::workspace)),
    ("work goes to the caller's stream alone (report 126)", |g, s| each(g, s, library::streams)),
    ("threads share one executable", |g, s| each(g, s, library::threads)),
    ("execute allocates nothing on the host (I5)", |g, s| each(g, s, library::allocates_nothing)),
    ("the first execution is inside a capture (report 136)", |g, s| each(g, s, library::first_in_capture)),
    ("device 0, device 1, device 0 (reports 113, 128)", |g, s| each(g, s, library::devices)),
    ("A above 2^32 elements (rule S7)", |g, s| far(g, s, [128, 4224], Long::Rows(1 << 12))),
    ("C and D above 2^32 elements (rule S7)", |g, s| far(g, s, [4224, 256], Long::Rows(1 << 12))),
    ("B above 2^32 elements (rule S7)", |g, s| far(g, s, [1024, 4224], Long::Experts(1 << 10))),
];

/// MXFP8, and NVFP4 in clusters where the row has them.
fn far(gpu: &Gpu, seed: u64, [n, k]: [i64; 2], long: Long) -> Result<f64> {
    let block = |case: Case| Case { m: 256, n, k, ends: vec![256], dbias: false, compact: false, ..case };
    let nvfp4 = if crate::first() { clusters() } else { Case { cluster: 1, ..clusters() } };
    let error = far::check(gpu, &block(sample(true)), long, seed)?;
    Ok(error.max(far::check(gpu, &block(nvfp4), long, seed)?))
}

/// A behaviour with the graph of each input format.
fn each(gpu: &Gpu, seed: u64, shows: fn(&Gpu, Subject, u64) -> Result<f64>) -> Result<f64> {
    let graphs = [include_str!("../../examples/grouped_gemm_mxfp8.json"), include_str!("../../examples/grouped_gemm_nvfp4.json")];
    graphs.into_iter().try_fold(0.0, |_, graph| shows(gpu, Subject { engine: crate::engine(), graph }, seed))
}

fn sample(deterministic: bool) -> Case {
    Case {
        m: 8192,
        n: 1024,
        k: 1024,
        ends: (1..=8).map(|e| 1024 * e).collect(),
        ab: DType::F8E4M3,
        sf: DType::F8E8M0,
        sf_vec: 32,
        c: DType::BF16,
        d: DType::F8E4M3,
        formula: frostgraph::engines::grouped_gemm::Formula::PreactivationG,
        clamp: None,
        compact: false,
        deterministic,
        dbias: true,
        amax: false,
        d_srelu: false,
        weights: Weights::Dense,
        b_n_major: false,
        cluster: 1,
        data: Data::Plain,
    }
}

/// Everything that a deterministic call of the row may have: weights at addresses, n-major, D_srelu, columns that end inside a block, amax.
fn rich() -> Case {
    let all = crate::first();
    Case { n: 1008, compact: true, amax: true, d_srelu: all, weights: Weights::Addresses, b_n_major: all, ..sample(true) }
}

fn clusters() -> Case {
    let nvfp4 = Case { ab: DType::F4E2M1, sf: DType::F8E4M3, sf_vec: 16, d: DType::BF16, amax: true, ..sample(true) };
    Case { cluster: 2, ..nvfp4 }
}

/// Fewer tiles than half of the clusters: each is split.
fn split() -> Case {
    Case { m: 2048, n: 512, k: 2048, ends: vec![512, 1024, 1024, 2048], ..clusters() }
}

/// Cases of the specials, for a bundle.
pub fn samples() -> Vec<Case> {
    vec![sample(true), rich(), clusters(), split()]
}

fn fifty(gpu: &Gpu, case: &Case, seed: u64) -> Result<f64> {
    let (facts, plan) = lower(case, gpu.device.target())?;
    let ready = ready(gpu, &facts, Program::compile(&gpu.device, &[&plan])?, &inputs(case, seed))?;
    let noise = CudaStream::new(&gpu.device)?;
    let junk = DeviceBuffer::new(&gpu.device, 64 << 20)?;
    let mut first = None;
    for i in 0..50u8 {
        ready.poison(i)?;
        for _ in 0..3 {
            junk.fill(&noise, 0, junk.bytes(), i)?;
        }
        ready.queue()?;
        let now = ready.results()?;
        if first.get_or_insert_with(|| now.clone()) != &now {
            return Err(fault(format!("run {i} has other bits")));
        }
    }
    noise.synchronize()?;
    Ok(0.0)
}

fn captured(gpu: &Gpu, case: &Case, seed: u64) -> Result<f64> {
    let (facts, plan) = lower(case, gpu.device.target())?;
    let ready = ready(gpu, &facts, Program::compile(&gpu.device, &[&plan])?, &inputs(case, seed))?;
    ready.poison(1)?;
    ready.queue()?;
    let plain = ready.results()?;
    let graph = gpu.stream.capture(|| ready.queue())?;
    for poison in [2, 3] {
        ready.poison(poison)?;
        graph.launch(&gpu.stream)?;
        if ready.results()? != plain {
            return Err(fault("a replayed graph gives other bits"));
        }
    }
    Ok(0.0)
}
