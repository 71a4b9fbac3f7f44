//! Which row is faster where: the best plan of every row that serves a small problem, each captured as a graph, in rounds beside each other.
//!
//! Two times a plan, both medians: `cold_us` of a graph of one execution with the L2 cache overwritten before, `warm_us` of one execution in a
//! graph of [`CHAIN`], which hides the launch of the graph. The ranking of `engines/*/heuristics.rs` is checked against both.

use crate::cases::Case;
use crate::device::{stream, Buffers, Gpu};
use crate::grouped::{self, Format};
use crate::job::{wanted, Job};
use crate::prefill::other_rows;
use crate::rounds::Outcome;
use crate::variants::Variant;
use crate::{Args, Results};
use frostgraph::exec::{Executable, Operand};
use frostgraph::graph::{Graph, GraphOptions, Mask, Nvfp4Qat, Nvfp4QatBackward, Tensor};
use frostgraph::plan::{BuildOptions, Plan};
use frostgraph::runtime::{CudaEvent, CudaGraph};
use frostgraph::{DType, Device, Result};
use serde_json::{json, Map, Value};
use std::time::{Duration, Instant};

/// Executions in the graph of the warm time.
const CHAIN: usize = 8;
/// Rounds of all rows of a problem: at least the first of these, at most the second.
const ROUNDS: [usize; 2] = [3, 9];
/// No further round where every row's times are so close together already, (largest - smallest) / median: long problems, mostly.
const CLOSE: f64 = 0.02;
/// Results so far are written so often.
const SAVED_EVERY: Duration = Duration::from_secs(1);

const SIZES: [i64; 6] = [64, 128, 256, 512, 1024, 2048];
/// (B, query heads, key heads): one item that hardly fills a device, one that does from 512 rows on, and a group of eight.
const HEADS: [(i64, i64, i64); 3] = [(1, 8, 8), (4, 16, 16), (1, 32, 4)];

/// A family's problems: the pass, its sizes from this one on, its head dims.
type Family = (&'static str, usize, &'static [(i64, i64)]);

const FAMILIES: [Family; 4] = [
    ("nvfp4_qat_bwd", 1, &[(64, 64), (128, 128)]),
    ("sdpa_bwd", 1, &[(64, 64), (128, 128), (192, 128), (192, 192), (256, 256)]),
    ("sdpa_fwd", 0, &[(64, 64), (128, 128), (192, 128), (256, 256)]),
    ("nvfp4_qat_fwd", 0, &[(64, 64), (128, 128)]),
];

/// The same of graphs with more operands.
const VARIANTS: [(&str, Variant, Family); 4] = [
    ("bias", Variant::ForwardBias, ("sdpa_fwd", 0, &[(64, 64), (128, 128), (192, 128), (256, 256)])),
    ("bias", Variant::Bias, ("sdpa_bwd", 1, &[(64, 64), (128, 128), (192, 128), (192, 192), (256, 256)])),
    ("dBias", Variant::DBias, ("sdpa_bwd", 1, &[(64, 64), (128, 128), (192, 128), (192, 192), (256, 256)])),
    ("packed", Variant::Packed, ("sdpa_bwd", 1, &[(192, 128)])),
];

/// Where the rows of the NVFP4 QAT forward trade places at head dim 64 without a mask: heads and sizes.
const QAT_FWD_64: [i64; 8] = [12, 16, 24, 32, 48, 64, 96, 128];
const QAT_FWD_64_SIZES: [i64; 7] = [192, 256, 384, 512, 768, 1024, 1536];

const DSRELU: &str = "grouped_gemm_dsrelu";
/// Grouped products: M, N, K, experts.
const GROUPED: [[i64; 4]; 7] = [
    [256, 256, 256, 1],
    [256, 2048, 7168, 1],
    [512, 1024, 1024, 2],
    [2048, 2048, 2048, 8],
    [4096, 4096, 512, 16],
    [2048, 1024, 7168, 8],
    [8192, 2048, 2048, 32],
];

fn mask(case: &Case) -> Mask {
    if case.causal {
        Mask::causal()
    } else {
        Mask::none()
    }
}

/// NVFP4 QAT of this case, operands (B, H, S, D) contiguous.
fn qat(case: &Case, backward: bool) -> Result<Graph> {
    let mut g = Graph::new(GraphOptions::default());
    let of = |h: i64, d: i64| [case.b, h, case.s, d];
    let q = g.tensor(Tensor::new("Q", of(case.h_q, case.d_qk)));
    let [k, v] = ["K", "V"].map(|n| g.tensor(Tensor::new(n, of(case.h_kv, case.d_qk))));
    let attn_scale = Some((case.d_qk as f32).sqrt().recip());
    let outputs = if backward {
        let [o, d_o] = ["high_precision_o", "dO"].map(|n| g.tensor(Tensor::new(n, of(case.h_q, case.d_qk))));
        let lse = g.tensor(Tensor::new("Stats", of(case.h_q, 1)).dtype(DType::F32));
        let options = Nvfp4QatBackward { mask: mask(case), attn_scale, ..Default::default() };
        let grads = g.nvfp4_attention_qat_backward(d_o, q, k, v, o, lse, options)?;
        [grads.dq, grads.dk, grads.dv]
    } else {
        let options = Nvfp4Qat { mask: mask(case), attn_scale, ..Default::default() };
        let out = g.nvfp4_attention_qat_forward(q, k, v, options)?;
        [out.o, out.high_precision_o, out.lse]
    };
    for id in outputs {
        g.output(id)?;
    }
    Ok(g)
}

fn attention(family: &'static str, case: Case) -> Result<Graph> {
    match family {
        "nvfp4_qat_bwd" => qat(&case, true),
        "nvfp4_qat_fwd" => qat(&case, false),
        "sdpa_bwd" => case.backward(false),
        _ => case.forward(),
    }
}

/// A problem: its family, its name, and the best plan of every row.
struct Problem {
    family: &'static str,
    first: Option<String>,
    jobs: Vec<Job>,
}

/// The row that the heuristics rank first, and every row's best plan by its name.
type Ranked = (Option<String>, Vec<(String, Plan)>);

fn rows(graph: &Graph, device: &Device) -> Result<Ranked> {
    let plans: Vec<Plan> = graph.build_with(device, &BuildOptions::all_engines())?.plans().collect();
    let first = plans.first().and_then(crate::prefill::row_of).map(str::to_owned);
    Ok((first, other_rows(plans, &[], "").into_iter().collect()))
}

/// The problem of a graph, where it is wanted.
fn problem<G>(
    args: &Args,
    device: &Device,
    family: &'static str,
    name: String,
    graph: Result<Graph>,
    given: G,
) -> Result<Option<Problem>>
where
    G: Fn(&Operand) -> Option<Vec<u8>> + Clone + 'static,
{
    if !args.wants(&name) {
        return Ok(None);
    }
    let (first, plans) = rows(&graph?, device)?;
    let job = |(mode, plan): (String, Plan)| Job { case: name.clone(), mode, plan, flops: 0.0, given: Box::new(given.clone()) };
    Ok(Some(Problem { family, first, jobs: wanted(args, plans.into_iter().map(job).collect()) }))
}

/// A family's cases, by head dims, without and with a causal mask, heads, sizes.
fn cases_of((_, from, dims): Family) -> impl Iterator<Item = Case> {
    let with_mask = dims.iter().flat_map(|d| [(*d, false), (*d, true)]);
    with_mask.flat_map(move |((d_qk, d_v), causal)| {
        let sized = HEADS.iter().flat_map(move |h| SIZES[from..].iter().map(move |&s| (*h, s)));
        sized.map(move |((b, h_q, h_kv), s)| Case { b, h_q, h_kv, s, d_qk, d_v, causal, window: None })
    })
}

fn problems(args: &Args, device: &Device) -> Result<Vec<Problem>> {
    let mut all = Vec::new();
    for (family, case) in FAMILIES.into_iter().flat_map(|f| cases_of(f).map(move |c| (f.0, c))) {
        let name = format!("{family} {}", case.name());
        all.extend(problem(args, device, family, name, attention(family, case), move |o: &Operand| case.stats(o))?);
    }
    for (with, variant, family) in VARIANTS {
        for case in cases_of(family) {
            let name = format!("{} {with} {}", family.0, case.name());
            all.extend(problem(args, device, family.0, name, variant.graph(&case), move |o: &Operand| variant.given(&case, o))?);
        }
    }
    for (h, s) in QAT_FWD_64.into_iter().flat_map(|h| QAT_FWD_64_SIZES.map(|s| (h, s))) {
        let case = Case { b: 1, h_q: h, h_kv: h, s, d_qk: 64, d_v: 64, causal: false, window: None };
        let (family, name) = ("nvfp4_qat_fwd", format!("nvfp4_qat_fwd heads {}", case.name()));
        all.extend(problem(args, device, family, name, attention(family, case), move |o: &Operand| case.stats(o))?);
    }
    for (extents, format) in GROUPED.into_iter().flat_map(|e| [(e, Format::Mxfp8), (e, Format::Nvfp4)]) {
        let case = grouped::Case::of(extents);
        let name = format!("{DSRELU} {} {format:?}", case.name());
        let given = std::rc::Rc::new(case.given(format));
        all.extend(problem(args, device, DSRELU, name, case.graph(format, false), move |o: &Operand| given(o))?);
    }
    Ok(all)
}

/// Every plan that is timed.
pub fn jobs(args: &Args, device: &Device) -> Result<Vec<Job>> {
    Ok(problems(args, device)?.into_iter().flat_map(|p| p.jobs).collect())
}

/// A plan captured: once, and [`CHAIN`] times.
struct Captured {
    once: CudaGraph,
    chain: CudaGraph,
    /// Its kernels, which the graphs point to.
    _exe: Executable,
    /// Microseconds of the rounds so far.
    cold: Outcome,
    warm: Outcome,
}

impl Captured {
    fn close(&self) -> bool {
        [&self.cold, &self.warm].iter().all(|o| o.spread().is_some_and(|s| s <= CLOSE))
    }
}

fn capture(gpu: &Gpu, exe: Executable, buffers: &Buffers) -> Result<Captured> {
    let (mut bindings, mut workspace, s) = (buffers.bindings(), buffers.workspace(), stream(gpu));
    exe.execute(&s, &mut bindings, &mut workspace)?;
    gpu.stream.synchronize()?;
    let mut record = |n: usize| gpu.stream.capture(|| (0..n).try_for_each(|_| exe.execute(&s, &mut bindings, &mut workspace)));
    let (once, chain) = (record(1)?, record(CHAIN)?);
    Ok(Captured { once, chain, _exe: exe, cold: Outcome::default(), warm: Outcome::default() })
}

fn measure(gpu: &Gpu, problem: &Problem) -> Result<Value> {
    let exes: Vec<Executable> = problem.jobs.iter().map(|j| j.plan.compile()).collect::<Result<_>>()?;
    // Plans of one graph have the same operands.
    let workspace = exes.iter().map(Executable::workspace_bytes).max().unwrap_or(0);
    let buffers = Buffers::new(gpu, &exes[0], workspace, |o| (problem.jobs[0].given)(o))?;
    let mut rows: Vec<Captured> = exes.into_iter().map(|exe| capture(gpu, exe, &buffers)).collect::<Result<_>>()?;
    let (start, stop) = (CudaEvent::new(&gpu.device)?, CudaEvent::new(&gpu.device)?);
    let timed = |graph: &CudaGraph| -> Result<f64> {
        start.record(&gpu.stream)?;
        graph.launch(&gpu.stream)?;
        stop.record(&gpu.stream)?;
        stop.synchronize()?;
        Ok(f64::from(stop.ms_since(&start)?) * 1e3)
    };
    let mut rounds = 0;
    while rounds < ROUNDS[0] || rounds < ROUNDS[1] && !rows.iter().all(Captured::close) {
        for row in &mut rows {
            gpu.overwrite_cache(rounds as u8)?;
            row.cold.turns.push(timed(&row.once)?);
            row.once.launch(&gpu.stream)?;
            row.warm.turns.push(timed(&row.chain)? / CHAIN as f64);
        }
        rounds += 1;
    }
    let of_rows: Map<String, Value> = problem
        .jobs
        .iter()
        .zip(&rows)
        .map(|(j, r)| {
            let (cold, warm) = (r.cold.ms(), r.warm.ms());
            (j.mode.clone(), json!({ "plan": j.plan.to_string(), "cold_us": cold, "warm_us": warm }))
        })
        .collect();
    Ok(
        json!({ "case": problem.jobs[0].case, "family": problem.family, "first": problem.first, "rounds": rounds, "ours": of_rows }),
    )
}

fn line(case: &Value) -> String {
    let rows = case["ours"].as_object().into_iter().flatten();
    let of_row = |(name, r): (&String, &Value)| {
        let us = |key: &str| r[key].as_f64().unwrap_or(0.0);
        format!("{} {:.1}/{:.1}", name.rsplit('_').next().unwrap_or(name), us("cold_us"), us("warm_us"))
    };
    format!("{} | {} | first {}", case["case"], rows.map(of_row).collect::<Vec<_>>().join(" "), case["first"])
}

pub fn run(args: &Args, gpu: Gpu, device: &Device) -> Result<Option<Results>> {
    let body = json!({
        "counting": format!(
            "microseconds, medians in {} to {} rounds, the fewer the closer together they are; cold: a graph of one execution, \
             the L2 cache overwritten before it; warm: one of {CHAIN} in a graph", ROUNDS[0], ROUNDS[1]
        ),
    });
    let mut results = Results::new("crossover", crate::machine(&gpu), body);
    let mut saved = Instant::now();
    for problem in problems(args, device)?.iter().filter(|p| p.jobs.len() > 1) {
        // A row that fails is a result, not the end.
        let case = measure(&gpu, problem)
            .unwrap_or_else(|e| json!({ "case": problem.jobs[0].case, "family": problem.family, "error": e.to_string() }));
        println!("{}", line(&case));
        results.push("cases", case);
        // A run that is cut off leaves what there was a second before.
        if saved.elapsed() >= SAVED_EVERY {
            results.save_in(args)?;
            saved = Instant::now();
        }
    }
    Ok(Some(results))
}
