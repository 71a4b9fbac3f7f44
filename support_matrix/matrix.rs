//! The join of rows and evidence, per architecture line.

mod serves;
#[cfg(test)]
mod tests;

pub(crate) use serves::{gemm_inputs_label, moe_inputs_label};

use crate::columns::Operation;
use crate::Record;
use frostgraph_engines::sdpa::Direction;
use frostgraph_engines::{Arch, Caps, Family, Row};

/// Architecture lines: the host, then compute capabilities. `None` is the host.
pub const ARCHITECTURES: &[Option<u32>] =
    &[None, Some(80), Some(86), Some(89), Some(90), Some(100), Some(103), Some(110), Some(120), Some(121)];

/// The whole matrix.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// One a line of [`ARCHITECTURES`].
    pub lines: Vec<Line>,
}

/// What one architecture has.
#[derive(Debug, Clone)]
pub struct Line {
    /// `cpu` or `sm_90`.
    pub arch: String,
    /// Every family of the manifest.
    pub families: Vec<FamilyLine>,
}

/// One family on one architecture.
#[derive(Debug, Clone)]
pub struct FamilyLine {
    /// Family name.
    pub name: &'static str,
    /// What its nodes compute.
    pub operation: Operation,
    /// Rows that run there, by rank.
    pub engines: Vec<Engine>,
}

/// One row on one architecture.
#[derive(Debug, Clone)]
pub struct Engine {
    /// The row.
    pub row: &'static Row,
    /// Head-dim flavours, native ones first.
    pub flavours: Vec<Flavour>,
    /// What is known about its correctness there.
    pub status: Status,
}

/// A head-dim flavour of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flavour {
    /// `128`, `192/128`, `any` or a description of the envelope.
    pub label: String,
    /// How graphs of it are served.
    pub served: Served,
}

/// How a row serves something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// By a kernel of that geometry.
    Native,
    /// Zero-padded on a larger kernel, at that kernel's cost.
    Envelope,
    /// Not at all.
    Declined,
}

/// Evidence of one engine on one architecture. Verified only where every counted case carries the digest of the current kernels (I9).
#[derive(Debug, Clone, PartialEq)]
pub enum Status {
    /// A CPU row: its numerics run in the project's own tests.
    Ci,
    /// Ran on a GPU with the current kernels.
    Verified {
        /// Latest day.
        date: String,
        /// Cases within tolerance.
        cases: u64,
        /// Largest relative error.
        worst_error: f64,
        /// Devices.
        gpus: Vec<String>,
    },
    /// Some cases of a run with the current kernels were outside tolerance.
    Failing {
        /// Cases outside tolerance.
        failed: u64,
        /// Cases run.
        cases: u64,
    },
    /// NVRTC makes the cubins for this architecture; nothing more is claimed.
    Compiled,
    /// The row's sources are not part of this build.
    NoSource,
}

impl Matrix {
    /// Joins families and evidence.
    pub fn new(families: &[&'static Family], records: &[Record]) -> Matrix {
        let lines = ARCHITECTURES.iter().map(|&cc| Line {
            arch: cc.map_or("cpu".into(), |cc| format!("sm_{cc}")),
            families: families.iter().map(|f| family_line(f, cc, records)).collect(),
        });
        Matrix { lines: lines.collect() }
    }
}

fn family_line(f: &'static Family, cc: Option<u32>, records: &[Record]) -> FamilyLine {
    let engines = f.rows.iter().filter(|r| runs_on(r, cc)).map(|row| {
        let digest = frostgraph_kernels::digest(row.sources).ok().filter(|_| !row.sources.is_empty());
        let status = status(row, cc, digest.as_deref(), records);
        Engine { row, flavours: flavours(row), status }
    });
    FamilyLine { name: f.name, operation: operation(f), engines: engines.collect() }
}

/// A family serves one operation and direction; its name says which, as rows are never moved between families.
fn operation(f: &Family) -> Operation {
    if f.name.starts_with("grouped_gemm") {
        Operation::GroupedGemm
    } else if f.name.starts_with("moe_grouped") {
        Operation::Moe
    } else if f.name.contains("bwd") {
        Operation::Attention(Direction::Backward)
    } else {
        Operation::Attention(Direction::Forward)
    }
}

fn runs_on(row: &Row, cc: Option<u32>) -> bool {
    match (row.caps.arch(), cc) {
        (Arch::Cpu, None) => true,
        (Arch::Sm { lo, hi }, Some(cc)) => (lo..=hi).contains(&cc),
        (Arch::Cpu, Some(_)) | (Arch::Sm { .. }, None) => false,
    }
}

fn flavours(row: &Row) -> Vec<Flavour> {
    let Caps::Sdpa(caps) = &row.caps else {
        return vec![Flavour { label: "any".into(), served: Served::Native }];
    };
    let h = &caps.head_dims;
    let order = if h.dqk_ge_dv { ", d_qk ≥ d_v" } else { "" };
    if h.native.is_empty() {
        return vec![Flavour { label: format!("any{order}"), served: Served::Native }];
    }
    let label = |(q, v): &(i64, i64)| if q == v { q.to_string() } else { format!("{q}/{v}") };
    let mut all: Vec<Flavour> = h.native.iter().map(|d| Flavour { label: label(d), served: Served::Native }).collect();
    if h.pad_multiple > 0 {
        let max = h.native.iter().map(|d| d.0.max(d.1)).max().unwrap_or(0);
        let label = format!("other multiples of {} to {max}{order}", h.pad_multiple);
        all.push(Flavour { label, served: Served::Envelope });
    }
    all
}

fn status(row: &Row, cc: Option<u32>, digest: Option<&str>, records: &[Record]) -> Status {
    if cc.is_none() {
        return Status::Ci;
    }
    let Some(digest) = digest else { return Status::NoSource };
    let current: Vec<&Record> =
        records.iter().filter(|r| r.engine == row.name && r.cc() == cc && r.kernel_digest == digest).collect();
    let failed: u64 = current.iter().map(|r| r.failed).sum();
    let passed: u64 = current.iter().map(|r| r.passed).sum();
    if failed > 0 {
        return Status::Failing { failed, cases: failed + passed };
    }
    let Some(date) = current.iter().map(|r| &r.date).max() else { return Status::Compiled };
    let mut gpus: Vec<String> = current.iter().map(|r| r.gpu.clone()).collect();
    gpus.sort();
    gpus.dedup();
    Status::Verified {
        date: date.clone(),
        cases: passed,
        worst_error: current.iter().fold(0.0, |w, r| w.max(r.worst_error)),
        gpus,
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Status::Ci => f.write_str("CI"),
            Status::Verified { date, cases, worst_error, gpus } => {
                write!(f, "verified ({date}, {cases} cases, worst error {worst_error:.1e}, {})", gpus.join(", "))
            }
            Status::Failing { failed, cases } => write!(f, "failing ({failed} of {cases} cases)"),
            Status::Compiled => f.write_str("compiled"),
            Status::NoSource => f.write_str("no source"),
        }
    }
}
