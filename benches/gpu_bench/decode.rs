//! Few queries against many keys: bound by reading K and V once, so the yardstick is a device copy of the same run.

use crate::device::{Buffers, Gpu};
use crate::prefill::failed;
use crate::Args;
use frostgraph::engines::{row_by_name, Knob, Knobs};
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

fn measure(gpu: &Gpu, point: &Point, device: &Device, copy: f64, sweep: bool) -> Result<Map<String, Value>> {
    let (best, all) = plans(point, device)?;
    let exe = best.compile()?;
    let most = all.iter().map(|(_, p)| p.workspace_bytes()).try_fold(0, |m, n| n.map(|n| n.max(m)))?;
    let buffers = Buffers::new(gpu, &exe, most, |_| None)?;
    let ms = buffers.time(gpu, &exe, 60.0)?;
    let mut splits = Map::new();
    if sweep {
        for (s, plan) in &all {
            splits.insert(s.to_string(), json!(buffers.time(gpu, &plan.compile()?, 20.0)?));
        }
    }
    // Last, because it overwrites V: K onto V reads and writes as many bytes together as K and V have.
    let same = match (buffers.named("K"), buffers.named("V")) {
        (Some(k), Some(v)) => gpu.median_ms(20.0, || v.copy(&gpu.stream, 0, k.range()))?,
        _ => f64::NAN,
    };
    let mut default = json!({
        "plan": best.to_string(), "fwd_ms": ms, "kv_bytes": point.kv_bytes(), "share_of_copy_bandwidth": point.kv_bytes() / copy * 1e3 / ms,
        "copy_of_as_many_bytes_ms": same, "share_of_copy_of_as_many_bytes": same / ms,
    });
    if sweep {
        default["ms_by_splits"] = Value::Object(splits);
    }
    Ok(Map::from_iter([("default".to_owned(), default)]))
}

/// `copy`: bytes a second that a large copy reads and writes together.
pub fn run(args: &Args, gpu: &Gpu, device: &Device, copy: f64) -> Vec<Map<String, Value>> {
    let mut ours = Vec::new();
    for point in &wanted(args) {
        let of_point = measure(gpu, point, device, copy, args.sweep).unwrap_or_else(|e| failed(&e));
        let d = &of_point["default"];
        let number = |key: &str| d[key].as_f64().unwrap_or(f64::NAN);
        println!(
            "{:<40} | {} {:.4} ms, {:.2} of the copy bandwidth, {:.2} of a copy as large",
            point.name(),
            d["plan"].as_str().or(d["error"].as_str()).unwrap_or_default(),
            number("fwd_ms"),
            number("share_of_copy_bandwidth"),
            number("share_of_copy_of_as_many_bytes"),
        );
        let mut splits: Vec<(u64, f64)> =
            d["ms_by_splits"].as_object().into_iter().flatten().filter_map(|(s, ms)| s.parse().ok().zip(ms.as_f64())).collect();
        splits.sort_by_key(|s| s.0);
        if !splits.is_empty() {
            let list: Vec<String> = splits.iter().map(|(s, ms)| format!("{s}: {:.1}", ms * 1e3)).collect();
            println!("    us by splits  {}", list.join("  "));
        }
        ours.push(of_point);
    }
    ours
}
