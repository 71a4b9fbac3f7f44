//! NVFP4 QAT, forward and backward, beside the public Triton port of the backward (`peers_qat.py`).

use crate::device::Gpu;
use crate::job::{self, Job};
use crate::prefill::other_rows;
use crate::{paces, rounds, Args, Results};
use frostgraph::exec::Operand;
use frostgraph::graph::{Graph, GraphOptions, Mask, Nvfp4Qat, Nvfp4QatBackward, Tensor};
use frostgraph::plan::{BuildOptions, Plan};
use frostgraph::{DType, Device, Result};
use serde_json::{json, Value};

/// One attention in the specification's layout, (B, H, S, 128) contiguous.
#[derive(Debug, Clone, Copy)]
struct Case {
    h: i64,
    s: i64,
    causal: bool,
}

/// The table of the issue, and the sequence of a video model that the port was made for.
const ALL: &[Case] = &[
    Case { h: 16, s: 4096, causal: false },
    Case { h: 16, s: 4096, causal: true },
    Case { h: 16, s: 16384, causal: false },
    Case { h: 12, s: 32760, causal: false },
];

const D: i64 = 128;

impl Case {
    fn name(&self) -> String {
        format!("B1 H{} S{} d{D} {}", self.h, self.s, if self.causal { "causal" } else { "full" })
    }

    fn json(&self) -> Value {
        json!({ "name": self.name(), "b": 1, "h": self.h, "s": self.s, "d": D, "causal": self.causal })
    }

    /// Multiply-adds times two of so many products over the kept pairs.
    fn flops(&self, products: i64) -> f64 {
        2.0 * (self.h * self.s * self.s * D * products) as f64 * if self.causal { 0.5 } else { 1.0 }
    }

    fn mask(&self) -> Mask {
        if self.causal {
            Mask::causal()
        } else {
            Mask::none()
        }
    }

    fn backward(&self) -> Result<Graph> {
        let mut g = Graph::new(GraphOptions::default());
        let dim = [1, self.h, self.s, D];
        let [q, k, v, o, d_o] = ["Q", "K", "V", "high_precision_o", "dO"].map(|n| g.tensor(Tensor::new(n, dim)));
        let lse = g.tensor(Tensor::new("lse", [1, self.h, self.s, 1]).dtype(DType::F32));
        let options = Nvfp4QatBackward { mask: self.mask(), attn_scale: Some((D as f32).sqrt().recip()), ..Default::default() };
        let grads = g.nvfp4_attention_qat_backward(d_o, q, k, v, o, lse, options)?;
        for id in [grads.dq, grads.dk, grads.dv] {
            g.output(id)?;
        }
        Ok(g)
    }

    fn forward(&self) -> Result<Graph> {
        let mut g = Graph::new(GraphOptions::default());
        let [q, k, v] = ["Q", "K", "V"].map(|n| g.tensor(Tensor::new(n, [1, self.h, self.s, D])));
        let options = Nvfp4Qat { mask: self.mask(), attn_scale: Some((D as f32).sqrt().recip()), ..Default::default() };
        let out = g.nvfp4_attention_qat_forward(q, k, v, options)?;
        for id in [out.o, out.high_precision_o, out.lse] {
            g.output(id)?;
        }
        Ok(g)
    }

    /// LSE as random scores would have it: ln of the kept keys plus half the variance of the scores, which is one.
    fn lse(&self, operand: &Operand) -> Option<Vec<u8>> {
        let kept = |i: i64| if self.causal { i + 1 } else { self.s };
        (operand.name == "lse").then(|| (0..self.s).flat_map(|i| ((kept(i) as f32).ln() + 0.5).to_ne_bytes()).collect())
    }
}

fn cases(args: &Args) -> Vec<Case> {
    ALL.iter().filter(|c| args.wants(&c.name())).copied().collect()
}

/// The best plan of every row that serves the graph, under the name that `mode` makes of the row's.
fn jobs_of(
    args: &Args,
    case: &Case,
    device: &Device,
    graph: &Graph,
    products: i64,
    mode: fn(&str) -> String,
) -> Result<Vec<Job>> {
    let plans = graph.build_with(device, &BuildOptions::all_engines())?.plans().collect();
    let c = *case;
    let job = |(row, plan): (String, Plan)| Job {
        case: c.name(),
        mode: mode(&row),
        plan,
        flops: c.flops(products),
        given: Box::new(move |o| c.lse(o)),
    };
    Ok(job::wanted(args, other_rows(plans, &[], "").into_iter().map(job).collect()))
}

fn backward_jobs(args: &Args, case: &Case, device: &Device) -> Result<Vec<Job>> {
    let mode = |row: &str| match row.strip_prefix("nvfp4_qat_bwd_") {
        Some("sm120") | None => "backward".to_owned(),
        Some(line) => format!("backward_{line}"),
    };
    jobs_of(args, case, device, &case.backward()?, 5, mode)
}

fn forward_jobs(args: &Args, case: &Case, device: &Device) -> Result<Vec<Job>> {
    jobs_of(args, case, device, &case.forward()?, 2, str::to_owned)
}

/// The best plan of every row, backward and forward.
pub fn jobs(args: &Args, device: &Device) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for case in &cases(args) {
        jobs.extend(backward_jobs(args, case, device)?);
        jobs.extend(forward_jobs(args, case, device)?);
    }
    Ok(jobs)
}

pub fn run(args: &Args, gpu: Gpu, device: &Device) -> Result<Option<Results>> {
    let pace = args.pace(paces::QAT);
    let mut groups = args.groups("peers_qat.py", &[("triton", &[])]);
    let body = json!({
        "method": rounds::METHOD, "pace": pace.json(),
        "counting": "2*B*H*S*S*d for each of five (backward) or two (forward) products, halved under a causal mask",
        "cases": [],
    });
    let mut results = Results::new("nvfp4_qat", crate::machine(&gpu), body);
    let own = |jobs: Vec<Job>| jobs.into_iter().map(|j| j.own(&gpu)).collect::<Vec<_>>();
    for case in cases(args) {
        let backward = own(backward_jobs(args, &case, device)?);
        let mut timed = rounds::case(&case.name(), "bwd_ms", pace, backward, &mut groups, &case.json());
        println!("{}", rounds::line(&timed, "bwd_ms"));
        // The port has no forward.
        let forward = own(forward_jobs(args, &case, device)?);
        let mut alone = rounds::case(&case.name(), "fwd_ms", pace, forward, &mut [], &Value::Null);
        println!("{}", rounds::line(&alone, "fwd_ms"));
        timed["forward"] = alone["ours"].take();
        results.add(args, "cases", timed, &mut groups)?;
    }
    Ok(Some(results))
}
