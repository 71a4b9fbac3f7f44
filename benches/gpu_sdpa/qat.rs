//! NVFP4 QAT, forward and backward, beside the public Triton port of the backward (`peers_qat.py`).

use crate::device::{Buffers, Gpu};
use crate::{peers, Args, Results};
use frostgraph::engines::row_by_name;
use frostgraph::exec::Operand;
use frostgraph::graph::{Graph, GraphOptions, Mask, Nvfp4Qat, Nvfp4QatBackward, Tensor};
use frostgraph::plan::BuildOptions;
use frostgraph::{DType, Device, Error, ErrorCode, Result};
use serde_json::{json, Map, Value};

pub const FORWARD: [&str; 2] = ["nvfp4_qat_fwd_sm90", "nvfp4_qat_fwd_sm120"];
pub const BACKWARD: &str = "nvfp4_qat_bwd_sm120";

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

/// The best plan of an engine, timed.
fn measure(gpu: &Gpu, case: &Case, graph: &Graph, device: &Device, engine: &str, (ms, flops): (&str, f64)) -> Result<Value> {
    let built = graph.build_with(device, &BuildOptions::all_engines())?;
    let plan = built.plans().find(|p| p.entries().all(|e| e.row.name == engine));
    let exe = plan.ok_or_else(|| Error::new(ErrorCode::NoPlan, case.name(), engine))?.compile()?;
    let buffers = Buffers::new(gpu, &exe, exe.workspace_bytes(), |o| case.lse(o))?;
    let time = buffers.time(gpu, &exe, 300.0)?;
    Ok(json!({
        "plan": exe.plan().to_string(), ms: time, "tflops": flops / time / 1e9, "workspace_bytes": exe.workspace_bytes(),
    }))
}

pub fn run(args: &Args, gpu: Gpu, device: &Device) -> Result<Option<Results>> {
    if FORWARD.iter().chain([&BACKWARD]).any(|e| row_by_name(e).is_none()) {
        println!("nvfp4_qat: SKIPPED, NOT MEASURED: its rows are not in MANIFEST");
        return Ok(None);
    }
    let cases: Vec<Case> = ALL.iter().filter(|c| args.wants(&c.name())).copied().collect();
    let (mut backward, mut forward) = (Vec::new(), Vec::new());
    for case in &cases {
        let told = |r: Result<Value>| r.unwrap_or_else(|e| json!({ "error": e.to_string() }));
        let b = told(measure(&gpu, case, &case.backward()?, device, BACKWARD, ("bwd_ms", case.flops(5))));
        let graph = case.forward()?;
        let f = FORWARD.map(|e| (e.to_owned(), told(measure(&gpu, case, &graph, device, e, ("fwd_ms", case.flops(2))))));
        println!("{} backward {b} forward {f:?}", case.name());
        backward.push(Map::from_iter([("backward".to_owned(), b)]));
        forward.push(Value::Object(Map::from_iter(f)));
    }
    let machine = crate::machine(&gpu);
    // The peer gets the device to itself.
    drop(gpu);
    let script = args.peers.as_ref().map(|p| p.with_file_name("peers_qat.py"));
    let lines = match &script {
        Some(script) => peers::measure_by(script, args, "bwd", cases.iter().map(Case::json).collect())?,
        None => Vec::new(),
    };
    let mut joined = Vec::new();
    for ((case, b), f) in cases.iter().zip(&backward).zip(forward) {
        let mut line = peers::join(&case.name(), b, &lines, "bwd_ms", Some(case.flops(5)));
        line["forward"] = f;
        println!("{}", peers::line(&line, "bwd_ms"));
        joined.push(line);
    }
    let body = json!({
        "peers": peers::about(&lines),
        "counting": "2*B*H*S*S*d for each of five (backward) or two (forward) products, halved under a causal mask",
        "cases": joined,
    });
    let engines = FORWARD.into_iter().chain([BACKWARD]).map(str::to_owned).collect();
    Ok(Some(Results { suite: "nvfp4_qat", engines, machine, body }))
}
