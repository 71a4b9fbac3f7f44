//! How far results of the grouped product are from the f64 oracle's.

use crate::graph::OutPort;
use crate::sample::{data_error, tolerance as of_type, HostTensors};

use crate::Result;
use frostgraph_engines::codec::e8m0;
use frostgraph_engines::grouped_gemm::oracle::{element, evaluate, Oracle};
use frostgraph_engines::grouped_gemm::scales::{ColumnScales, ScaleMatrix};
use frostgraph_engines::grouped_gemm::{GemmPort, GroupedGemmFacts};
use frostgraph_engines::DType;

/// The oracle's results of one node.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::sample) struct Expected {
    facts: GroupedGemmFacts,
    oracle: Oracle,
}

impl Expected {
    pub fn new(facts: &GroupedGemmFacts, inputs: &HostTensors) -> Result<Expected> {
        let oracle = evaluate(facts, &inputs.view()).map_err(data_error)?;
        Ok(Expected { facts: facts.clone(), oracle })
    }

    /// Element type, error and tolerance of one output; `None` where the result cannot be judged without scales that are not there.
    pub fn compare(&self, port: OutPort, b: &[u8], results: &HostTensors) -> Option<(DType, f64, f64)> {
        let (p, o, d) = (&self.facts.ports, &self.oracle, tolerance(self.facts.d));
        let scales = |port: &Option<GemmPort>| port.as_ref().and_then(|p| results.bytes(p.uid));
        let f32s = |i: usize| element(DType::F32, b, i);
        let (error, tolerance) = match port {
            OutPort::DRow => (self.results(b, &o.d, scales(&p.sfd_row), true)?, d),
            OutPort::DCol => (self.results(b, &o.d, scales(&p.sfd_col), false)?, d),
            OutPort::DSrelu => (self.results(b, &o.d_srelu, scales(&p.sfd_col_d_srelu), false)?, d),
            // dprob sums terms of both signs: its error is relative to their size.
            OutPort::DProb => (relative(f32s, &o.dprob, &o.dprob_size), 1e-5),
            OutPort::DBias => (relative(|i| element(DType::BF16, b, i), &o.dbias, &o.dbias), of_type(DType::BF16)),
            OutPort::Amax => (self.amax(b), 1e-5),
            // One step of a code where the largest magnitude lies at a power of two.
            OutPort::SfdRow => (self.codes(b, &o.d, true), 1.0),
            OutPort::SfdCol => (self.codes(b, &o.d, false), 1.0),
            OutPort::SfdColDSrelu => (self.codes(b, &o.d_srelu, false), 1.0),
            OutPort::Status if b.get(..4) == Some(&o.status.to_ne_bytes()) => (0.0, 0.0),
            OutPort::Status => (f64::INFINITY, 0.0),
            OutPort::O
            | OutPort::HighPrecisionO
            | OutPort::Stats
            | OutPort::Max
            | OutPort::SumExp
            | OutPort::RngDump
            | OutPort::DQ
            | OutPort::DK
            | OutPort::DV
            | OutPort::DSink
            | OutPort::Output => return None,
        };
        let dtype = self.ports().into_iter().find(|(q, _)| *q == port)?.1.dtype;
        Some((dtype, if error.is_nan() { f64::INFINITY } else { error }, tolerance))
    }

    fn column_scales(&self) -> ColumnScales {
        ColumnScales { m: self.facts.m as usize, n: self.facts.n as usize, discrete: self.facts.discrete_col_sfd }
    }

    /// Relative Frobenius error over the rows of experts; scaled results are multiplied by the scales that came with them, and cannot be
    /// judged without.
    fn results(&self, bytes: &[u8], want: &[f64], scales: Option<&[u8]>, by_row: bool) -> Option<f64> {
        let (f, n) = (&self.facts, self.facts.n as usize);
        let rows_sf = ScaleMatrix::of(f.m as usize, n, 32);
        let cols_sf = self.column_scales();
        if f.quantised && scales.is_none() {
            return None;
        }
        let (mut diff, mut norm) = (0.0, 0.0);
        for rows in &self.oracle.groups {
            for row in rows.clone() {
                for col in 0..n {
                    let i = row * n + col;
                    let mut got = element(f.d, bytes, i);
                    if let Some(sf) = scales.filter(|_| f.quantised) {
                        let at = if by_row { rows_sf.index(row, col / 32) } else { cols_sf.index(col, row, rows) };
                        got *= f64::from(e8m0::decode(sf[at])) / self.oracle.norm;
                    }
                    let same = got == want[i] || got.is_nan() && want[i].is_nan();
                    diff += if same { 0.0 } else { (got - want[i]).powi(2) };
                    norm += if want[i].is_finite() { want[i].powi(2) } else { 0.0 };
                }
            }
        }
        Some(if norm == 0.0 { f64::sqrt(diff) } else { (diff / norm).sqrt() })
    }

    /// Largest relative difference over the experts; infinite where one side has rows and the other has not.
    fn amax(&self, bytes: &[u8]) -> f64 {
        let worst = self.oracle.amax.iter().enumerate().map(|(e, &want)| {
            let got = element(DType::F32, bytes, e);
            if got == want || got.is_nan() && want.is_nan() {
                0.0
            } else {
                (got - want).abs() / want.abs().max(f64::MIN_POSITIVE)
            }
        });
        worst.fold(0.0, |a, x| if x.is_nan() { f64::INFINITY } else { a.max(x) })
    }

    /// Largest difference between codes and those of the oracle's magnitudes.
    fn codes(&self, bytes: &[u8], values: &[f64], by_row: bool) -> f64 {
        let (f, n) = (&self.facts, self.facts.n as usize);
        let (rows_sf, cols_sf) = (ScaleMatrix::of(f.m as usize, n, 32), self.column_scales());
        let max = if f.d == DType::F8E5M2 { 128.0 } else { 448.0 };
        let mut worst = 0i32;
        for rows in &self.oracle.groups {
            for row in rows.clone().step_by(if by_row { 1 } else { 32 }) {
                for col in (0..n).step_by(if by_row { 32 } else { 1 }) {
                    let (at, peak) = if by_row {
                        (rows_sf.index(row, col / 32), peak((col..n.min(col + 32)).map(|c| values[row * n + c])))
                    } else {
                        (cols_sf.index(col, row, rows), peak((row..row + 32).map(|r| values[r * n + col])))
                    };
                    let want = e8m0::encode_up((peak / max * self.oracle.norm) as f32);
                    worst = worst.max((i32::from(bytes[at]) - i32::from(want)).abs());
                }
            }
        }
        worst.into()
    }

    /// The outputs with their ports.
    pub fn ports(&self) -> Vec<(OutPort, &GemmPort)> {
        let p = &self.facts.ports;
        [
            (OutPort::DRow, &p.d_row),
            (OutPort::DCol, &p.d_col),
            (OutPort::DSrelu, &p.d_srelu),
            (OutPort::DProb, &p.dprob),
            (OutPort::DBias, &p.dbias),
            (OutPort::Amax, &p.amax),
            (OutPort::SfdRow, &p.sfd_row),
            (OutPort::SfdCol, &p.sfd_col),
            (OutPort::SfdColDSrelu, &p.sfd_col_d_srelu),
            (OutPort::Status, &p.status),
        ]
        .into_iter()
        .filter_map(|(port, operand)| Some((port, operand.as_ref()?)))
        .collect()
    }
}

fn peak(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |a, x| a.max(x.abs()))
}

fn relative(got: impl Fn(usize) -> f64, want: &[f64], size: &[f64]) -> f64 {
    let (mut diff, mut norm) = (0.0, 0.0);
    for (i, (&want, &size)) in want.iter().zip(size).enumerate() {
        let got = got(i);
        let same = got == want || got.is_nan() && want.is_nan();
        diff += if same { 0.0 } else { (got - want).powi(2) };
        norm += if size.is_finite() { size.powi(2) } else { 0.0 };
    }
    if norm == 0.0 {
        f64::sqrt(diff)
    } else {
        (diff / norm).sqrt()
    }
}

/// Largest error of results: one rounding to the type; FP8 results keep three (E4M3) or two (E5M2) mantissa bits under their block's scale.
fn tolerance(d: DType) -> f64 {
    match d {
        DType::F8E4M3 => 4e-2,
        DType::F8E5M2 => 8e-2,
        other => of_type(other),
    }
}
