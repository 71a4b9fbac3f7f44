//! One case on the device: twice, on differently poisoned memory; and what no single case shows.

use crate::cases::{Case, Cut};
use crate::data::{inputs, poison_unread, routing, span};
use crate::device::{fault, Gpu, Ready};
use crate::far::{self, Long};
use crate::judge::judge;
use crate::library::{self, Subject};
use crate::lower;
use crate::program::Special;
use frostgraph::engines::moe_grouped_matmul::oracle::evaluate;
use frostgraph::engines::moe_grouped_matmul::{MoeFacts, MoeMode, ScalePlace};
use frostgraph::engines::{Facts, LaunchPlan, Uid};
use frostgraph::runtime::{CudaStream, DeviceBuffer, Program};
use frostgraph::{DType, Result};
use std::collections::BTreeMap;

fn outputs(f: &MoeFacts) -> Vec<(Uid, usize)> {
    f.ports.all().filter(|p| p.2).map(|(_, p, _)| (p.uid, span(f, p.uid))).collect()
}

/// Rows of the token that some row of the output depends on.
fn reads(case: &Case, data: &BTreeMap<Uid, Vec<u8>>, rows: &[Option<Vec<f64>>]) -> Vec<bool> {
    let mut out = vec![false; case.tokens as usize];
    let index = |uid: Uid, r: usize| {
        let b = &data[&uid][4 * r..4 * r + 4];
        i64::from(i32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
    };
    for r in 0..case.routed as usize {
        let (from, to) = match case.mode {
            MoeMode::None => (r as i64, r as i64),
            MoeMode::Gather => (index(6, r), r as i64),
            MoeMode::Scatter => (r as i64, index(6, r).saturating_mul(case.top_k).saturating_add(index(7, r))),
        };
        let written = usize::try_from(to).ok().and_then(|t| rows.get(t)).is_some_and(Option::is_some);
        if let (true, Some(slot)) = (written, usize::try_from(from).ok().and_then(|f| out.get_mut(f))) {
            *slot = true;
        }
    }
    out
}

/// Runs a case; the relative error of the output.
pub fn case(gpu: &Gpu, case: &Case, seed: u64) -> Result<f64> {
    let (facts, plan) = lower(case, gpu.device.target())?;
    let f = facts.expect_moe();
    let mut data = inputs(case, f, seed);
    let oracle = |data: &BTreeMap<Uid, Vec<u8>>| {
        evaluate(f, &data.iter().map(|(u, b)| (*u, &b[..])).collect()).map_err(|e| fault(e.to_string()))
    };
    let want = oracle(&data)?;
    poison_unread(f, &reads(case, &data, &want.rows), &mut data);
    let ready = Ready::new(gpu, Program::compile(&gpu.device, &[&plan])?, &data, outputs(f))?;
    ready.poison(0xff)?;
    ready.queue()?;
    let first = ready.results()?;
    let error = judge(f, &want, &first).map_err(fault)?;
    ready.poison(0)?;
    ready.queue()?;
    if ready.results()? != first {
        return Err(fault("other bits in the second run"));
    }
    Ok(error)
}

/// Outputs of one run.
pub fn results(gpu: &Gpu, facts: &Facts, plan: &LaunchPlan, data: &BTreeMap<Uid, Vec<u8>>) -> Result<BTreeMap<Uid, Vec<u8>>> {
    let ready = Ready::new(gpu, Program::compile(&gpu.device, &[plan])?, data, outputs(facts.expect_moe()))?;
    ready.poison(0xff)?;
    ready.queue()?;
    ready.results()
}

pub const SPECIALS: &[Special] = &[
    ("50 runs beside another stream have equal bits", fifty),
    ("captured in a graph, replayed with another routing", replayed),
    ("misaligned operands are typed errors (report 45)", |g, s| each(g, s, library::misaligned)),
    ("workspace faults leave the device usable (report 125)", |g, s| each(g, s, library::workspace)),
    ("work goes to the caller's stream alone (report 126)", |g, s| each(g, s, library::streams)),
    ("threads share one executable", |g, s| each(g, s, library::threads)),
    ("execute allocates nothing on the host (I5)", |g, s| each(g, s, library::allocates_nothing)),
    ("the first execution is inside a capture (report 136)", |g, s| each(g, s, library::first_in_capture)),
    ("device 0, device 1, device 0 (reports 113, 128)", |g, s| each(g, s, library::devices)),
    ("tokens above 2^32 elements (rule S7)", |g, s| {
        far::check(g, &block(128, 4224, false), Long::Rows(MoeMode::None, 1 << 12), s)?;
        far::check(g, &block(128, 4224, false), Long::Token(1 << 12), s)
    }),
    ("results above 2^32 elements (rule S7)", |g, s| {
        far::check(g, &block(4224, 64, false), Long::Rows(MoeMode::None, 1 << 12), s)?;
        far::check(g, &block(4224, 64, false), Long::Rows(MoeMode::Scatter, 1 << 12), s)
    }),
    ("weights above 2^32 elements (rule S7)", |g, s| far::check(g, &block(1024, 4224, false), Long::Experts(1 << 10), s)),
    ("block-scaled tokens and weights above 2^32 elements (rule S7)", |g, s| {
        far::check(g, &block(128, 4224, true), Long::Rows(MoeMode::None, 1 << 12), s)?;
        far::check(g, &block(1024, 4224, true), Long::Experts(1 << 10), s)
    }),
];

/// 256 rows of one expert, in bf16 or MXFP8.
fn block(n: i64, k: i64, scaled: bool) -> Case {
    let (input, scales) = if scaled { (DType::F8E4M3, Some((DType::F8E8M0, 32))) } else { (DType::BF16, None) };
    let plain = Case { tokens: 256, routed: 256, experts: 1, groups: 1, top_k: 1, cut: Cut::First, ..sample(MoeMode::None) };
    Case { n, k, input, scales, ..plain }
}

/// A behaviour with a 16-bit product that gathers and a block-scaled one that scatters.
fn each(gpu: &Gpu, seed: u64, shows: fn(&Gpu, Subject, u64) -> Result<f64>) -> Result<f64> {
    let graphs = [include_str!("../../examples/moe_gather_bf16.json"), include_str!("../../examples/moe_scatter_mxfp8.json")];
    graphs.into_iter().try_fold(0.0, |_, graph| shows(gpu, Subject { engine: crate::ENGINE, graph }, seed))
}

fn sample(mode: MoeMode) -> Case {
    Case {
        tokens: 4096,
        routed: 4096,
        n: 512,
        k: 256,
        experts: 40,
        groups: 40,
        mode,
        top_k: 2,
        input: DType::BF16,
        scales: None,
        places: [ScalePlace::Atoms; 2],
        output: DType::BF16,
        cut: Cut::Random,
        explicit_end: true,
        wide_offsets: false,
        gap: 0,
        n_major: mode == MoeMode::Gather,
        bad_indices: false,
    }
}

/// Cases of the specials, for a bundle.
pub fn samples() -> Vec<Case> {
    MoeMode::ALL.map(sample).to_vec()
}

fn fifty(gpu: &Gpu, seed: u64) -> Result<f64> {
    let noise = CudaStream::new(&gpu.device)?;
    let junk = DeviceBuffer::new(&gpu.device, 64 << 20)?;
    for mode in MoeMode::ALL {
        let case = sample(mode);
        let (facts, plan) = lower(&case, gpu.device.target())?;
        let f = facts.expect_moe();
        let ready = Ready::new(gpu, Program::compile(&gpu.device, &[&plan])?, &inputs(&case, f, seed), outputs(f))?;
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
    }
    Ok(0.0)
}

/// Offsets and indices are read at execution: a captured graph follows them.
fn replayed(gpu: &Gpu, seed: u64) -> Result<f64> {
    let mut worst = 0.0f64;
    for mode in MoeMode::ALL {
        let case = sample(mode);
        let (facts, plan) = lower(&case, gpu.device.target())?;
        let f = facts.expect_moe();
        let mut data = inputs(&case, f, seed);
        let ready = Ready::new(gpu, Program::compile(&gpu.device, &[&plan])?, &data, outputs(f))?;
        ready.poison(1)?;
        ready.queue()?;
        ready.results()?;
        let graph = gpu.stream.capture(|| ready.queue())?;
        for round in 0..2 {
            for (uid, bytes) in routing(&case, seed ^ (round << 32)) {
                ready.rewrite(uid, &bytes)?;
                data.insert(uid, bytes);
            }
            ready.poison(2)?;
            graph.launch(&gpu.stream)?;
            let results = ready.results()?;
            let views = data.iter().map(|(u, b)| (*u, &b[..])).collect();
            let want = evaluate(f, &views).map_err(|e| fault(e.to_string()))?;
            worst = worst.max(judge(f, &want, &results).map_err(fault)?);
        }
    }
    Ok(worst)
}
