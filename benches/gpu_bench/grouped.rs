//! The grouped product with the dsReLU backward epilogue, beside PyTorch's bf16 grouped product with the same epilogue compiled.

use crate::blocks::quantised;
pub use crate::blocks::Format;
use crate::device::Gpu;
use crate::job::{wanted, Job};
use crate::prefill::row_of;
use crate::{paces, plain, rounds, Args, Results};
use frostgraph::exec::Operand;
use frostgraph::graph::{GemmWeights, Graph, GraphOptions, GroupedGemmDsrelu, GroupedGemmDsreluAttrs, Tensor};
use frostgraph::plan::{BuildOptions, Plan};
use frostgraph::{DType, Device, Error, ErrorCode, Result};
use serde_json::{json, Value};

/// Name of the key that holds a time, of ours and theirs alike.
const MS: &str = "ms";
const FAMILY: &str = "grouped_gemm_dsrelu_";
/// Rows of an expert are a multiple of this.
const ROWS: i64 = 256;

/// `m` rows shared out evenly over `experts`; where that is no multiple of [`ROWS`] every second expert is empty.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    m: i64,
    n: i64,
    k: i64,
    experts: i64,
}

const fn case(m: i64, n: i64, k: i64, experts: i64) -> Case {
    Case { m, n, k, experts }
}

/// The peers' table, and its weight-bound shape with rows for every expert.
const ALL: &[Case] = &[
    case(65536, 2048, 7168, 32),
    case(65536, 4096, 4096, 8),
    case(16384, 8192, 2048, 128),
    case(65536, 2048, 2048, 64),
    case(8192, 2048, 7168, 8),
    case(32768, 8192, 2048, 128),
];

const MODES: [(&str, Format, bool); 3] =
    [("mxfp8", Format::Mxfp8, false), ("mxfp8_deterministic", Format::Mxfp8, true), ("nvfp4", Format::Nvfp4, false)];

impl Case {
    /// Of M, N, K and experts.
    pub fn of([m, n, k, experts]: [i64; 4]) -> Case {
        case(m, n, k, experts)
    }

    pub fn name(&self) -> String {
        format!("M{} N{} K{} experts {}", self.m, self.n, self.k, self.experts)
    }

    fn json(&self) -> Value {
        json!({ "name": self.name(), "m": self.m, "n": self.n, "k": self.k, "experts": self.experts, "ends": self.ends() })
    }

    fn ends(&self) -> Vec<i64> {
        let each = self.m / self.experts;
        (1..=self.experts).map(|e| if each % ROWS == 0 { e * each } else { (e * each).div_euclid(ROWS) * ROWS }).collect()
    }

    fn experts_with_rows(&self) -> i64 {
        let ends = self.ends();
        (0..ends.len()).filter(|&e| ends[e] > if e == 0 { 0 } else { ends[e - 1] }).count() as i64
    }

    fn flops(&self) -> f64 {
        2.0 * (self.m * self.n * self.k) as f64
    }

    pub fn graph(&self, format: Format, deterministic: bool) -> Result<Graph> {
        let Case { m, n, k, experts } = *self;
        let (ab, sf, d) = match format {
            Format::Mxfp8 => (DType::F8E4M3, DType::F8E8M0, DType::F8E4M3),
            Format::Nvfp4 => (DType::F4E2M1, DType::F8E4M3, DType::BF16),
        };
        let vec = format.vec() as i64;
        let mut g = Graph::new(GraphOptions::default());
        let a = g.tensor(Tensor::new("A", [m, k, 1]).dtype(ab));
        let b = g.tensor(Tensor::new("B", [n, k, experts]).dtype(ab));
        let sfa = g.tensor(Tensor::scale_atoms("SFA", sf, [m, k], vec, 1)?);
        let sfb = g.tensor(Tensor::scale_atoms("SFB", sf, [n, k], vec, experts)?);
        let c = g.tensor(Tensor::new("C", [m, n, 1]).dtype(DType::BF16));
        let ends = g.tensor(Tensor::new("Padded_offsets", [experts]).dtype(DType::I32));
        let alpha = g.tensor(Tensor::new("Alpha", [experts]).dtype(DType::F32));
        let prob = g.tensor(Tensor::new("Prob", [m, 1, 1]).dtype(DType::F32));
        let norm_const = (format == Format::Mxfp8).then(|| g.tensor(Tensor::new("Norm_const", [1]).dtype(DType::F32)));
        let attrs = GroupedGemmDsreluAttrs { sf_vec_size: vec, d_dtype: d, deterministic, ..Default::default() };
        let options = GroupedGemmDsrelu { attrs, norm_const, amax: format == Format::Nvfp4, ..Default::default() };
        let out = g.grouped_gemm_dsrelu(a, GemmWeights::Dense { b, sfb }, c, sfa, ends, alpha, prob, options)?;
        for id in [Some(out.d_row), Some(out.d_col), Some(out.dprob), out.sfd_row, out.sfd_col, out.amax].into_iter().flatten() {
            g.output(id)?;
        }
        Ok(g)
    }

    /// The best plan of every row, best row first; the first has no suffix.
    fn plans(&self, device: &Device, format: Format, deterministic: bool) -> Result<Vec<(String, Plan)>> {
        let built = self.graph(format, deterministic)?.build_with(device, &BuildOptions::all_engines())?;
        let mut rows: Vec<&str> = Vec::new();
        let mut out = Vec::new();
        for plan in built.plans() {
            let Some(row) = row_of(&plan).filter(|r| !rows.contains(r)) else { continue };
            let suffix = if rows.is_empty() { String::new() } else { format!("_{}", row.strip_prefix(FAMILY).unwrap_or(row)) };
            rows.push(row);
            out.push((suffix, plan));
        }
        match out.is_empty() {
            false => Ok(out),
            true => Err(Error::new(ErrorCode::NoPlan, self.name(), FAMILY)),
        }
    }

    /// A and B are random normal values, quantised, each with its own scales: what the peers get as bf16.
    pub fn given(self, format: Format) -> impl Fn(&Operand) -> Option<Vec<u8>> {
        let [a, b] = [7, 8].map(|seed| quantised(format, self.k as usize, seed));
        move |o| match o.name.as_str() {
            "A" => Some(a.payload.clone()),
            "B" => Some(b.payload.clone()),
            "SFA" => Some(a.scales.clone()),
            "SFB" => Some(b.scales.clone()),
            "Padded_offsets" => Some(self.ends().iter().flat_map(|&e| (e as i32).to_ne_bytes()).collect()),
            "Alpha" | "Norm_const" => Some(1f32.to_ne_bytes().to_vec()),
            "Prob" => Some((0..1 << 12).flat_map(|i| ((i as f32 + 0.5) / 4096.0).to_ne_bytes()).collect()),
            _ => None,
        }
    }

    /// Bytes of every operand once; of B and its scales the share whose experts have rows.
    fn bytes(&self, operands: &[Operand]) -> f64 {
        let share = self.experts_with_rows() as f64 / self.experts as f64;
        operands
            .iter()
            .map(|o| o.bytes as f64 * if matches!(o.name.as_str(), "B" | "SFB" | "Weight") { share } else { 1.0 })
            .sum()
    }
}

fn cases(args: &Args) -> Vec<Case> {
    ALL.iter().filter(|c| args.wants(&c.name())).copied().collect()
}

fn jobs_of(args: &Args, case: &Case, device: &Device) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for (mode, format, deterministic) in MODES {
        for (suffix, plan) in case.plans(device, format, deterministic)? {
            let given = Box::new(case.given(format));
            jobs.push(Job { case: case.name(), mode: format!("{mode}{suffix}"), plan, flops: case.flops(), given });
        }
    }
    if let Some(plan) = plain::plan(device, [case.m, case.n, case.k, case.experts])? {
        let given = Box::new(plain::given(case.ends()));
        jobs.push(Job { case: case.name(), mode: plain::MODE.to_owned(), plan, flops: case.flops(), given });
    }
    Ok(wanted(args, jobs))
}

/// Everything that the suite runs.
pub fn jobs(args: &Args, device: &Device) -> Result<Vec<Job>> {
    let lists: Vec<Vec<Job>> = cases(args).iter().map(|c| jobs_of(args, c, device)).collect::<Result<_>>()?;
    Ok(lists.into_iter().flatten().collect())
}

pub fn run(args: &Args, gpu: Gpu, device: &Device) -> Result<Option<Results>> {
    let copy = gpu.copy_bandwidth()?;
    println!("a large device copy reads and writes {:.2} TB/s", copy / 1e12);
    let pace = args.pace(paces::GROUPED);
    let mut groups = args.groups("peers_grouped.py", &[("torch", &[])]);
    let body = json!({
        "copy_bytes_per_second": copy, "method": rounds::METHOD, "pace": pace.json(),
        "counting": "2*M*N*K; bytes: every operand once, weights of the experts that have rows",
        "cases": [],
    });
    let mut results = Results::new("grouped_gemm", crate::machine(&gpu), body);
    for case in cases(args) {
        let jobs = jobs_of(args, &case, device)?;
        let bytes: Vec<(String, f64)> =
            jobs.iter().map(|j| Ok((j.mode.clone(), case.bytes(j.plan.compile()?.operands())))).collect::<Result<_>>()?;
        let own = jobs.into_iter().map(|j| j.own(&gpu)).collect();
        let mut timed = rounds::case(&case.name(), MS, pace, own, &mut groups, &case.json());
        for (mode, bytes) in bytes {
            let result = &mut timed["ours"][&mode];
            if let Some(ms) = result[MS].as_f64() {
                result["bytes"] = json!(bytes);
                result["share_of_copy_bandwidth"] = json!(bytes / copy * 1e3 / ms);
            }
        }
        println!("{}", rounds::line(&timed, MS));
        results.add(args, "cases", timed, &mut groups)?;
    }
    Ok(Some(results))
}
