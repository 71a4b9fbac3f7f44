//! Few queries against many keys: bound by reading K and V once, so the yardstick is a device copy of the same run.

use crate::device::{Buffers, Gpu};
use crate::job::Job;
use crate::peers::Peers;
use crate::prefill::failed;
use crate::rounds::{self, Pace};
use crate::Args;
use frostgraph::engines::{row_by_name, Knob, Knobs};
use frostgraph::exec::Executable;
use frostgraph::graph::{AttnScale, Graph, GraphOptions, Mask, Sdpa, Tensor};
use frostgraph::plan::{BuildOptions, Built, Plan};
use frostgraph::{DType, Device, Error, ErrorCode, Result};
use serde_json::{json, Map, Value};

pub const ENGINE: &str = "sdpa_fwd_decode_sm80";
const D: i64 = 128;

/// One decode step, bf16, d 128, memory order B, S, H, D; the queries are the last tokens.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    b: i64,
    h_q: i64,
    h_kv: i64,
    s_q: i64,
    s_kv: i64,
}

const fn point(b: i64, s_kv: i64) -> Point {
    Point { b, h_q: 32, h_kv: 8, s_q: 1, s_kv }
}

pub const ALL: &[Point] = &[
    point(1, 1 << 10),
    point(1, 4 << 10),
    point(1, 8 << 10),
    point(1, 32 << 10),
    point(1, 128 << 10),
    point(4, 1 << 10),
    point(4, 8 << 10),
    point(4, 32 << 10),
    point(16, 1 << 10),
    point(16, 8 << 10),
    point(16, 32 << 10),
    point(64, 1 << 10),
    point(64, 8 << 10),
    point(64, 32 << 10),
    point(64, 128 << 10),
    // Speculative windows: four tokens, causal from the bottom right.
    Point { s_q: 4, ..point(1, 8 << 10) },
    Point { s_q: 4, h_q: 64, ..point(4, 32 << 10) },
];

impl Point {
    pub fn name(&self) -> String {
        format!("decode B{} H{}/{} S{} over {} d{D}", self.b, self.h_q, self.h_kv, self.s_q, self.s_kv)
    }

    pub fn json(&self) -> Value {
        json!({
            "name": self.name(), "b": self.b, "h_q": self.h_q, "h_kv": self.h_kv, "s": self.s_q, "s_kv": self.s_kv, "d_qk": D, "d_v": D,
            "causal": self.s_q > 1, "window": null,
        })
    }

    /// Bytes of K and V, each counted once.
    fn kv_bytes(&self) -> f64 {
        (self.b * self.h_kv * self.s_kv * D * 2 * 2) as f64
    }

    fn graph(&self) -> Result<Graph> {
        let mut g = Graph::new(GraphOptions { io: DType::BF16, ..GraphOptions::default() });
        let mut operand =
            |name: &str, h: i64, s: i64| g.tensor(Tensor::new(name, [self.b, h, s, D]).strides([s * h * D, D, h * D, 1]));
        let q = operand("Q", self.h_q, self.s_q);
        let [k, v] = ["K", "V"].map(|name| operand(name, self.h_kv, self.s_kv));
        let mask = if self.s_q > 1 { Mask::causal_bottom_right() } else { Mask::none() };
        let attn_scale = Some(AttnScale::Value((D as f32).sqrt().recip()));
        let out = g.sdpa(q, k, v, Sdpa { mask, attn_scale, generate_stats: Some(true), ..Default::default() })?;
        for id in [Some(out.o), out.stats].into_iter().flatten() {
            g.output(id)?;
        }
        Ok(g)
    }

    fn built(&self, device: &Device) -> Result<Built> {
        self.graph()?.build_with(device, &BuildOptions::all_engines())
    }
}

pub fn wanted(args: &Args) -> Vec<Point> {
    ALL.iter().filter(|p| args.wants(&p.name())).copied().collect()
}

fn best(point: &Point, built: &Built) -> Result<Plan> {
    let plan = built.plans().find(|p| p.entries().all(|e| e.row.name == ENGINE));
    plan.ok_or_else(|| Error::new(ErrorCode::NoPlan, point.name(), ENGINE))
}

/// The best plan, and one for every split count that the row knows.
pub fn plans(point: &Point, device: &Device) -> Result<(Plan, Vec<(i64, Plan)>)> {
    let built = point.built(device)?;
    let row = row_by_name(ENGINE).ok_or_else(|| Error::new(ErrorCode::UnknownEngine, ENGINE, "a row of MANIFEST"))?;
    let splits = row.domain(Knob::SplitKv).unwrap_or(&[]);
    let all = splits.iter().map(|&s| Ok((s, built.create_plan(row.id, &Knobs::new(&[(Knob::SplitKv, s)]))?)));
    Ok((best(point, &built)?, all.collect::<Result<_>>()?))
}

/// The times of every split count, and of a copy of as many bytes as K and V have.
fn beside(gpu: &Gpu, point: &Point, device: &Device, pace: Pace, sweep: bool) -> Result<(Map<String, Value>, f64)> {
    let (best, plans) = plans(point, device)?;
    let all: Vec<Executable> = plans.iter().map(|(_, p)| p.compile()).collect::<Result<_>>()?;
    let most = all.iter().map(Executable::workspace_bytes).max().unwrap_or(0);
    let buffers = Buffers::new(gpu, &best.compile()?, most, |_| None)?;
    let mut splits = Map::new();
    if sweep {
        let times = buffers.sweep(gpu, &all)?;
        splits.extend(plans.iter().zip(times).map(|((s, _), ms)| (s.to_string(), json!(ms))));
    }
    // Last, because it overwrites V: K onto V reads and writes as many bytes together as K and V have.
    let same = match (buffers.named("K"), buffers.named("V")) {
        (Some(k), Some(v)) => gpu.turn(pace.turn, || v.copy(&gpu.stream, 0, k.range()))?,
        _ => f64::NAN,
    };
    Ok((splits, same))
}

/// A point beside the peers. `copy`: bytes a second that a large copy reads and writes together.
pub fn run(args: &Args, gpu: &Gpu, device: &Device, point: &Point, pace: Pace, copy: f64, groups: &mut [Peers]) -> Value {
    let job = |plan| Job { case: point.name(), mode: "default".to_owned(), plan, flops: 0.0, given: Box::new(|_| None) };
    let own = plans(point, device).map_or_else(failed, |(best, _)| vec![job(best).own(gpu)]);
    let mut timed = rounds::case(&point.name(), "fwd_ms", pace, own, groups, &point.json());
    println!("{}", rounds::line(&timed, "fwd_ms"));
    let default = &mut timed["ours"]["default"];
    let Some(ms) = default["fwd_ms"].as_f64() else { return timed };
    default["kv_bytes"] = json!(point.kv_bytes());
    default["share_of_copy_bandwidth"] = json!(point.kv_bytes() / copy * 1e3 / ms);
    match beside(gpu, point, device, pace, args.sweep) {
        Ok((splits, same)) => {
            println!("    {:.2} of the copy bandwidth, {:.2} of a copy as large", point.kv_bytes() / copy * 1e3 / ms, same / ms);
            default["copy_of_as_many_bytes_ms"] = json!(same);
            default["share_of_copy_of_as_many_bytes"] = json!(same / ms);
            if args.sweep {
                default["ms_by_splits"] = Value::Object(splits);
            }
        }
        Err(e) => default["sweep_error"] = json!(e.to_string()),
    }
    timed
}
