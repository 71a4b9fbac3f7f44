//! The join of rows and evidence, per architecture line.

use crate::columns::{features, Group, Operation, DTYPES, GEMM_DTYPES, GEMM_INPUTS, MOE_INPUTS};
use crate::Record;
use frostgraph_engines::caps::LayoutRule;
use frostgraph_engines::sdpa::Direction;
use frostgraph_engines::{Arch, Caps, DType, Family, Feature, Maturity, Row};

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

impl Engine {
    /// Whether graphs of this flavour may have an element type; of attention rows.
    pub fn dtype(&self, flavour: &Flavour, d: DType) -> Served {
        when(self.row.caps.sdpa().is_some_and(|c| c.dtypes.contains(&d)), flavour)
    }

    /// Whether a grouped product may have these inputs (of `GEMM_INPUTS`).
    pub fn gemm_inputs(&self, flavour: &Flavour, inputs: (DType, DType, i64)) -> Served {
        when(matches!(&self.row.caps, Caps::GroupedGemm(c) if c.inputs.contains(&inputs)), flavour)
    }

    /// Whether a grouped product may have this type of C.
    pub fn gemm_c(&self, flavour: &Flavour, d: DType) -> Served {
        when(matches!(&self.row.caps, Caps::GroupedGemm(c) if c.c.contains(&d)), flavour)
    }

    /// Whether a grouped product may have this type of D.
    pub fn gemm_d(&self, flavour: &Flavour, d: DType) -> Served {
        when(matches!(&self.row.caps, Caps::GroupedGemm(c) if c.d.contains(&d)), flavour)
    }

    /// Whether a plain grouped product may have these inputs (of `MOE_INPUTS`).
    pub fn moe_inputs(&self, flavour: &Flavour, inputs: (DType, Option<(DType, i64)>)) -> Served {
        when(matches!(&self.row.caps, Caps::Moe(c) if c.inputs.contains(&inputs)), flavour)
    }

    /// Whether a plain grouped product may have this type of output.
    pub fn moe_output(&self, flavour: &Flavour, d: DType) -> Served {
        when(matches!(&self.row.caps, Caps::Moe(c) if c.output.contains(&d)), flavour)
    }

    /// Whether graphs of this flavour may use a feature.
    pub fn feature(&self, flavour: &Flavour, f: Feature) -> Served {
        when(self.row.caps.features().has(f), flavour)
    }

    /// Whether graphs of this flavour may have the layout of this column.
    pub fn layout(&self, flavour: &Flavour, column: usize) -> Served {
        let reach = match self.row.caps.sdpa().map(|c| c.layout) {
            None => 0,
            Some(LayoutRule::Bshd) => 1,
            Some(LayoutRule::DenseFlex) => 2,
            Some(LayoutRule::Any) => 3,
        };
        when(column < reach, flavour)
    }

    /// Whether strides and bases must be multiples of 16 bytes.
    pub fn aligned_16(&self) -> bool {
        self.row.caps.sdpa().is_none_or(|c| c.aligned_16)
    }

    /// `default` or `opt-in`.
    pub fn maturity(&self) -> &'static str {
        match self.row.maturity {
            Maturity::Default => "default",
            Maturity::OptIn => "opt-in",
        }
    }
}

/// `e4m3 e8m0/32`: element type, scale type, values a scale.
pub(crate) fn gemm_inputs_label((ab, sf, vec): &(DType, DType, i64)) -> String {
    format!("{ab} {sf}/{vec}")
}

/// `bf16`, or as [`gemm_inputs_label`].
pub(crate) fn moe_inputs_label((d, scales): &(DType, Option<(DType, i64)>)) -> String {
    scales.map_or(d.to_string(), |(sf, vec)| gemm_inputs_label(&(*d, sf, vec)))
}

fn when(yes: bool, flavour: &Flavour) -> Served {
    if yes {
        flavour.served
    } else {
        Served::Declined
    }
}

impl FamilyLine {
    /// What no engine of this family serves here: element types, then masks, then features.
    pub fn gaps(&self) -> Vec<String> {
        let mut gaps: Vec<String> = Vec::new();
        let none = |test: &dyn Fn(&Engine) -> Served| self.engines.iter().all(|e| test(e) == Served::Declined);
        let whole = Flavour { label: String::new(), served: Served::Native };
        match self.operation {
            Operation::Attention(_) => {
                gaps.extend(DTYPES.iter().filter(|d| none(&|e| e.dtype(&whole, **d))).map(|d| d.short().to_string()));
            }
            Operation::GroupedGemm => {
                gaps.extend(GEMM_INPUTS.iter().filter(|i| none(&|e| e.gemm_inputs(&whole, **i))).map(gemm_inputs_label));
                for (what, test) in [("C", Engine::gemm_c as fn(&Engine, &Flavour, DType) -> Served), ("D", Engine::gemm_d)] {
                    gaps.extend(GEMM_DTYPES.iter().filter(|d| none(&|e| test(e, &whole, **d))).map(|d| format!("{what} {d}")));
                }
            }
            Operation::Moe => {
                gaps.extend(MOE_INPUTS.iter().filter(|i| none(&|e| e.moe_inputs(&whole, **i))).map(moe_inputs_label));
                gaps.extend(DTYPES.iter().filter(|d| none(&|e| e.moe_output(&whole, **d))).map(|d| format!("output {d}")));
            }
        }
        for g in [Group::Mask, Group::Feature] {
            for f in features(self.operation, g) {
                if none(&|e| e.feature(&whole, f)) {
                    gaps.push(f.label().to_string());
                }
            }
        }
        gaps
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

#[cfg(test)]
mod tests {
    use super::*;
    use frostgraph_engines::MANIFEST;

    fn sm120() -> &'static Row {
        frostgraph_engines::row_by_name("sdpa_bwd_sm120").expect("a row")
    }

    fn record(digest: &str, passed: u64, failed: u64) -> Record {
        Record {
            engine: "sdpa_bwd_sm120".into(),
            arch: "sm_90a".into(),
            gpu: "NVIDIA H200".into(),
            driver: "580".into(),
            nvrtc: "13.0".into(),
            date: "2026-11-30".into(),
            kernel_digest: digest.into(),
            suite: "sdpa_bwd".into(),
            features: vec![],
            passed,
            failed,
            skipped: 0,
            worst_error: 0.004,
            seed: 1,
        }
    }

    /// I9: evidence counts only for the kernels it was recorded with, and only for the architecture it ran on.
    #[test]
    fn verified_needs_the_current_digest_i9() {
        let (now, old) = ("a".repeat(64), "b".repeat(64));
        let on = |cc, records: &[Record]| status(sm120(), Some(cc), Some(&now), records);
        assert_eq!(on(90, &[]), Status::Compiled);
        assert_eq!(on(90, &[record(&old, 500, 0)]), Status::Compiled);
        let two = [record(&now, 500, 0), record(&now, 40, 0), record(&old, 7, 3)];
        assert_eq!(on(90, &two).to_string(), "verified (2026-11-30, 540 cases, worst error 4.0e-3, NVIDIA H200)");
        assert_eq!(on(120, &two), Status::Compiled, "what ran on sm_90 says nothing of sm_120");
        assert_eq!(on(90, &[record(&now, 500, 0), record(&now, 1, 2)]), Status::Failing { failed: 2, cases: 503 });
        assert_eq!(status(sm120(), Some(90), None, &two), Status::NoSource);
        assert_eq!(status(sm120(), None, None, &two), Status::Ci);
    }

    #[test]
    fn lines_hold_the_rows_of_their_architecture() {
        let m = Matrix::new(MANIFEST, &[]);
        let names = |arch: &str| -> Vec<&str> {
            let line = m.lines.iter().find(|l| l.arch == arch).expect("a line");
            line.families.iter().flat_map(|f| f.engines.iter().map(|e| e.row.name)).collect()
        };
        assert_eq!(names("cpu").iter().filter(|n| n.ends_with("_cpu")).count(), names("cpu").len());
        assert!(names("cpu").contains(&"sdpa_fwd_cpu"));
        assert!(!names("sm_89").contains(&"sdpa_bwd_sm120"));
        for arch in ["sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"] {
            assert!(names(arch).contains(&"sdpa_bwd_sm120"), "{arch}");
        }
    }

    #[test]
    fn envelopes_are_told_from_native_head_dims() {
        let f = flavours(sm120());
        assert_eq!(f[0], Flavour { label: "32".into(), served: Served::Native });
        let last = f.last().expect("an envelope");
        assert_eq!(last, &Flavour { label: "other multiples of 8 to 256, d_qk ≥ d_v".into(), served: Served::Envelope });
        let e = Engine { row: sm120(), flavours: f.clone(), status: Status::Compiled };
        assert_eq!(e.dtype(last, DType::BF16), Served::Envelope);
        assert_eq!(e.dtype(&f[0], DType::F32), Served::Declined);
        assert_eq!(e.feature(&f[0], Feature::Causal), Served::Native);
        assert_eq!(
            [e.layout(&f[0], 0), e.layout(&f[0], 1), e.layout(&f[0], 2)],
            [Served::Native, Served::Native, Served::Declined]
        );
    }

    #[test]
    fn gaps_name_what_nobody_serves() {
        let m = Matrix::new(MANIFEST, &[]);
        let cpu = &m.lines[0].families;
        let backward = cpu.iter().find(|f| f.name == "sdpa_bwd").expect("a family").gaps();
        assert!(backward.contains(&"dropout".to_string()) && !backward.contains(&"causal".to_string()), "{backward:?}");
        assert!(!backward.contains(&"paged K/V".to_string()), "a backward cannot ask for pages");
    }
}
