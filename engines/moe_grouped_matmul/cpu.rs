//! The CPU row: a job owns up to 128 rows of one group and all columns, so every sum has one order and results are equal bits for any number of
//! threads. Results are written behind a batch of jobs, in the order of routed rows.

use super::routing::{routing, RoutedRow};
use super::MoeFacts;
use crate::grouped_gemm::GemmPort;
use crate::grouped_gemm_dsrelu::cpu_tile::{payload, read, scale, write, Panel, Product, TILE};
use crate::sdpa::access::{bytes_of, fault};
use crate::{DType, Decline, Facts, Feature, HostBuffers, HostCall, HostError, Knobs, LaunchPlan, Step, Target};
use rayon::prelude::*;

/// Name of the row and of its step.
const NAME: &str = "moe_grouped_matmul_cpu";

/// The plan: one host step without workspace.
///
/// # Errors
/// None; the type is that of every row's lowering.
pub fn lower(_facts: &Facts, _knobs: &Knobs, _target: &Target) -> Result<LaunchPlan, Decline> {
    Ok(LaunchPlan { steps: vec![Step::Host(HostCall { name: NAME, run })], ..LaunchPlan::default() })
}

fn need<'a>(port: &'a Option<GemmPort>, what: &str) -> Result<&'a GemmPort, HostError> {
    port.as_ref().ok_or_else(|| fault(what, "the node does not have this operand", "it to be present"))
}

/// Operands of one execution; scales are empty where there are none.
struct Inputs<'a> {
    f: &'a MoeFacts,
    token: &'a [u8],
    weight: &'a [u8],
    token_scale: &'a [u8],
    weight_scale: &'a [u8],
    double: bool,
}

/// Rows of one group that one job computes.
struct Job<'a> {
    expert: usize,
    rows: &'a [Option<RoutedRow>],
}

/// Panels of a thread.
#[derive(Default)]
struct Scratch {
    a: Panel,
    b: Panel,
    out: Vec<f32>,
}

/// A value of a 16-bit or 32-bit operand, or the payload of a narrow one.
#[inline(always)]
fn value(dtype: DType, bytes: &[u8], i: usize) -> f32 {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => read(dtype, bytes, i),
        _ => payload(dtype, bytes, i),
    }
}

/// Integers of a vector operand, whose only extent above 1 may lie along any axis.
fn ints(port: &GemmPort, bytes: &[u8]) -> Vec<i64> {
    let (count, stride) =
        port.dim.iter().zip(&port.stride).find(|(d, _)| **d > 1).map_or((1, 1), |(d, s)| (*d as usize, *s as usize));
    let width = if port.dtype == DType::I64 { 8 } else { 4 };
    let at = |i: usize| bytes.get(i * stride * width..i * stride * width + width).unwrap_or_default();
    let word = |b: &[u8]| match b {
        [a, b, c, d] => i64::from(i32::from_ne_bytes([*a, *b, *c, *d])),
        [a, b, c, d, e, f, g, h] => i64::from_ne_bytes([*a, *b, *c, *d, *e, *f, *g, *h]),
        _ => -1,
    };
    (0..count).map(|i| word(at(i))).collect()
}

fn run(facts: &Facts, _knobs: &Knobs, buffers: &mut HostBuffers<'_>) -> Result<(), HostError> {
    let f = facts.expect_moe();
    let p = &f.ports;
    let bytes = |port: &Option<GemmPort>, what: &str| {
        let port = need(port, what)?;
        bytes_of(&buffers.inputs, port.uid, &port.name)
    };
    let list = |port: &Option<GemmPort>, what: &str| -> Result<Vec<i64>, HostError> {
        match port {
            None => Ok(Vec::new()),
            Some(port) => Ok(ints(port, bytes(&Some(port.clone()), what)?)),
        }
    };
    let narrow = |v: Vec<i64>| v.into_iter().map(|x| x as i32).collect::<Vec<i32>>();
    let offsets = list(&p.first_token_offset, "FirstTokenOffset")?;
    let (index, ks) = (narrow(list(&p.token_index, "TokenIndex")?), narrow(list(&p.token_ks, "TokenKs")?));
    let routes = routing(f, &offsets, &index, &ks);
    let scaled = |port: &Option<GemmPort>, what: &str| if f.scales.is_some() { bytes(port, what) } else { Ok(&[][..]) };
    let x = Inputs {
        f,
        token: bytes(&p.token, "Token")?,
        weight: bytes(&p.weight, "Weight")?,
        token_scale: scaled(&p.token_scale, "token scale")?,
        weight_scale: scaled(&p.weight_scale, "weight scale")?,
        double: f.features.has(Feature::F64Accumulate),
    };
    let mut outputs = std::mem::take(&mut buffers.outputs);
    let mut write_to = |port: &Option<GemmPort>, what: &str| {
        let port = need(port, what)?;
        let found = outputs.remove(&port.uid);
        found.ok_or_else(|| fault(&port.name, format!("no buffer is bound to uid {}", port.uid), "a buffer"))
    };
    match &p.status {
        Some(_) => write_to(&p.status, "Status")?[..4].copy_from_slice(&routes.status.0.to_ne_bytes()),
        None if routes.status.is_ok() => {}
        None => {
            let expected = format!("boundaries that do not decrease and are at most {}, and indices in range", f.routed);
            return Err(fault("FirstTokenOffset", routes.status.to_string(), expected));
        }
    }
    let jobs: Vec<Job<'_>> = routes
        .groups
        .iter()
        .enumerate()
        .flat_map(|(g, rows)| {
            let expert = g % f.experts.max(1) as usize;
            routes.rows[rows.clone()].chunks(TILE).map(move |rows| Job { expert, rows })
        })
        .collect();
    let out = write_to(&p.output, "Output")?;
    let (n, at) = (f.n as usize, f.output_at());
    for batch in jobs.chunks(rayon::current_num_threads().max(1) * 2) {
        let results: Vec<Vec<f32>> =
            batch.par_iter().map_init(Scratch::default, |scratch, job| product(&x, scratch, job)).collect();
        for (job, values) in batch.iter().zip(results) {
            for (row, values) in job.rows.iter().zip(values.chunks_exact(n)) {
                let Some(row) = row else { continue };
                values.iter().enumerate().for_each(|(c, v)| write(f.output, out, at.index(row.to, c), *v));
            }
        }
    }
    Ok(())
}

/// `[rows][N]` of one job; rows whose index is out of range hold zeros.
fn product(x: &Inputs<'_>, scratch: &mut Scratch, job: &Job<'_>) -> Vec<f32> {
    let f = x.f;
    let (n, k, blocks) = (f.n as usize, f.k as usize, f.blocks());
    let vec = f.scales.map_or(k, |s| s.vec as usize);
    let Scratch { a, b, out } = scratch;
    out.resize(TILE * TILE, 0.0);
    let scale_of = |bytes: &[u8], at: usize| f.scales.map_or(1.0, |s| scale(s.dtype, bytes[at]));
    let (at, scale_at) = (f.token_at(), f.token_scale_at());
    let from = |r: usize| job.rows[r].map(|r| r.from);
    a.fill(
        job.rows.len(),
        [k, blocks],
        |r, i| from(r).map_or(0.0, |r| value(f.input, x.token, at.index(r, i))),
        |r, i| from(r).map_or(0.0, |r| scale_of(x.token_scale, scale_at.index(r, i))),
    );
    let (at, scale_at) = (f.weight_at(job.expert), f.weight_scale_at(job.expert));
    let mut results = vec![0.0f32; job.rows.len() * n];
    for col0 in (0..n).step_by(TILE) {
        let cols = TILE.min(n - col0);
        b.fill(
            cols,
            [k, blocks],
            |c, i| value(f.input, x.weight, at.index(col0 + c, i)),
            |c, i| scale_of(x.weight_scale, scale_at.index(col0 + c, i)),
        );
        Product { a, b, k, vec, double: x.double, out }.run();
        for (row, tile) in results.chunks_exact_mut(n).zip(out.chunks_exact(TILE)) {
            row[col0..col0 + cols].copy_from_slice(&tile[..cols]);
        }
    }
    results
}
