//! Every output against the f64 oracle.

use crate::cases::Case;
use crate::want::{finite, float, Want};
use frostgraph::engines::codec::{e4m3, e5m2, e8m0};
use frostgraph::engines::grouped_gemm::oracle::element;
use frostgraph::engines::grouped_gemm::scales::{ColumnScales, ScaleMatrix};
use frostgraph::engines::grouped_gemm::GroupedGemmFacts;
use frostgraph::engines::{DType, Uid};
use half::bf16;
use std::collections::BTreeMap;
use std::ops::Range;

fn decode(d: DType, bytes: &[u8], i: usize) -> f64 {
    match d {
        DType::F8E4M3 => e4m3::decode(bytes[i]).into(),
        DType::F8E5M2 => e5m2::decode(bytes[i]).into(),
        _ => element(d, bytes, i),
    }
}

/// Largest rounding error of `x` in a type: half a unit of the last place, and of the smallest subnormal.
fn rounding(d: DType, x: f64) -> f64 {
    let (bits, least) = match d {
        DType::F8E4M3 => (4, -10),
        DType::F8E5M2 => (3, -17),
        DType::BF16 => (8, -134),
        DType::F16 => (11, -25),
        _ => (24, -150),
    };
    (x.abs() * 2f64.powi(-bits)).max(2f64.powi(least)) * 1.0001
}

/// `Err` names the first value that is out of bounds.
fn near(what: &str, at: usize, got: f64, want: f64, tolerance: f64, largest: f64) -> Result<(), String> {
    let fine = if want.is_nan() {
        got.is_nan()
    } else {
        (got - want).abs() <= tolerance
            || (want.abs() + tolerance >= largest && got.abs() >= largest && got.signum() == want.signum())
    };
    if fine {
        Ok(())
    } else {
        Err(format!("{what}[{at}] is {got:e}, expected {want:e} within {tolerance:e}"))
    }
}

fn largest(d: DType) -> f64 {
    match d {
        DType::F16 => 65504.0,
        DType::BF16 => 3.38e38,
        _ => 3.4e38,
    }
}

/// Values to be quantised, the bounds on their errors, and where the quantised ones are.
struct Quantised<'a> {
    d: DType,
    norm: f64,
    values: &'a [f64],
    errors: &'a [f64],
    got: &'a [u8],
}

impl Quantised<'_> {
    /// Checks one block of up to 32 values: the scale's code, then every value under that scale. `each` sees values before and after.
    fn block(&self, code: u8, at: &[usize], mut each: impl FnMut(usize, f64)) -> Result<(), String> {
        let rcp = if self.d == DType::F8E5M2 { 1.0 / 128.0 } else { 1.0 / 448.0f32 as f64 };
        let known = || at.iter().map(|&i| (self.values[i].abs(), self.errors[i])).filter(|x| !x.0.is_nan());
        let high = known().fold(0.0, |a: f64, (d, e)| a.max(d + e)) * (1.0 + 1e-6);
        let low = known().fold(0.0, |a: f64, (d, e)| a.max(d - e)) * (1.0 - 1e-6);
        let codes = [low, high].map(|x| e8m0::encode_up((x * rcp * self.norm).min(3.4e38) as f32));
        if !(codes[0]..=codes[1]).contains(&code) {
            return Err(format!("scale of the block at {} is {code}, expected {} to {}", at[0], codes[0], codes[1]));
        }
        let by = (self.norm * f64::from(e8m0::reciprocal(code))).min(f64::from(f32::MAX));
        let top = if self.d == DType::F8E5M2 { 57344.0 } else { 448.0 };
        for &i in at {
            let (q, want) = (decode(self.d, self.got, i), self.values[i] * by);
            near("a quantised value", i, q, want, rounding(self.d, want) + self.errors[i] * by * 1.1, top)?;
            // Under the scale of an infinite value, 2^127, finite ones vanish by contract: no error to report.
            if self.values[i].is_finite() && by > 0.0 && high.is_finite() {
                each(i, q / by);
            }
        }
        Ok(())
    }

    /// One scale a column and 32 rows of an expert; places behind the last column hold 0.
    fn columns(
        &self,
        f: &GroupedGemmFacts,
        rows: &Range<usize>,
        scales: &[u8],
        mut each: impl FnMut(usize, f64),
    ) -> Result<(), String> {
        let n = f.n as usize;
        let by_col = ColumnScales { m: f.m as usize, n, discrete: f.discrete_col_sfd };
        for first in rows.clone().step_by(32) {
            for col in 0..n.next_multiple_of(128) {
                let code = scales[by_col.index(col, first, rows)];
                if col < n {
                    let at: Vec<usize> = (0..32).map(|i| (first + i) * n + col).collect();
                    self.block(code, &at, &mut each)?;
                } else if code != 0 {
                    return Err(format!("the padding of column scales at {col} is not zero"));
                }
            }
        }
        Ok(())
    }

    /// One scale a row and 32 columns.
    fn rows(
        &self,
        f: &GroupedGemmFacts,
        rows: &Range<usize>,
        scales: &[u8],
        mut each: impl FnMut(usize, f64),
    ) -> Result<(), String> {
        let n = f.n as usize;
        let by_row = ScaleMatrix::of(f.m as usize, n, 32);
        for row in rows.clone() {
            for b in 0..n.div_ceil(128) * 4 {
                let code = scales[by_row.index(row, b)];
                if 32 * b < n {
                    let at: Vec<usize> = (32 * b..n.min(32 * b + 32)).map(|col| row * n + col).collect();
                    self.block(code, &at, &mut each)?;
                } else if code != 0 {
                    return Err(format!("the padding of row {row}'s scales is not zero"));
                }
            }
        }
        Ok(())
    }
}

/// Compares every output; the relative error of D.
pub fn judge(case: &Case, f: &GroupedGemmFacts, w: &Want, out: &BTreeMap<Uid, Vec<u8>>) -> Result<f64, String> {
    let (m, n) = (f.m as usize, f.n as usize);
    let mut sums = [0.0; 2];
    let mut add = |i: usize, got: f64| {
        sums[0] += (got - w.oracle.d[i]).powi(2);
        sums[1] += w.d_size[i].powi(2);
    };
    for rows in w.oracle.groups.iter() {
        if case.quantised() {
            let of = |uid: Uid, values, errors| Quantised { d: f.d, norm: w.oracle.norm, values, errors, got: &out[&uid] };
            let (d, e) = (&w.oracle.d[..], &w.d_error[..]);
            of(21, d, e).rows(f, rows, &out[&27], &mut add).map_err(|x| format!("D_row: {x}"))?;
            of(22, d, e).columns(f, rows, &out[&28], &mut add).map_err(|x| format!("D_col: {x}"))?;
            if case.d_srelu {
                let (d, e) = (&w.oracle.d_srelu[..], &w.srelu_error[..]);
                of(23, d, e).columns(f, rows, &out[&29], |_, _| {}).map_err(|x| format!("D_srelu: {x}"))?;
            }
            continue;
        }
        for i in rows.start * n..rows.end * n {
            for uid in [21, 22] {
                let (got, want) = (decode(f.d, &out[&uid], i), w.oracle.d[i]);
                near("D", i, got, want, w.d_error[i] + rounding(f.d, want), largest(f.d))?;
                if want.is_finite() && got.is_finite() {
                    add(i, got);
                }
            }
            if case.d_srelu {
                let (got, want) = (decode(f.d, &out[&23], i), w.oracle.d_srelu[i]);
                near("D_srelu", i, got, want, w.srelu_error[i] + rounding(f.d, want), largest(f.d))?;
            }
        }
    }
    for i in 0..m {
        near("dprob", i, float(&out[&24], i), w.oracle.dprob[i], w.dprob_error[i] + 1e-37, 3.4e38)?;
    }
    for (expert, rows) in w.oracle.groups.iter().enumerate() {
        if case.dbias {
            for col in 0..n {
                let sum: f64 = rows.clone().map(|r| w.d_error[r * n + col] + 2e-6 * finite(w.oracle.d[r * n + col].abs())).sum();
                let want = w.oracle.dbias[expert * n + col];
                let got: f64 =
                    bf16::from_ne_bytes([out[&25][2 * (expert * n + col)], out[&25][2 * (expert * n + col) + 1]]).into();
                near("dbias", expert * n + col, got, want, sum + rounding(DType::BF16, want), 3.38e38)?;
            }
        }
        if case.amax {
            let (got, want) = (float(&out[&26], expert), w.oracle.amax[expert]);
            let any_nan = rows.clone().any(|r| w.oracle.d[r * n..r * n + n].iter().any(|x| x.is_nan()));
            let error = rows.clone().flat_map(|r| &w.d_error[r * n..r * n + n]).fold(0.0, |a: f64, e| a.max(*e));
            let fine = if any_nan {
                got.is_nan()
            } else {
                got == want || (got - want).abs() <= error + 1e-6 * want.abs() || want > 3.3e38
            };
            if !fine {
                return Err(format!("amax[{expert}] is {got:e}, expected {want:e}"));
            }
        }
    }
    if let Some(status) = out.get(&30) {
        let got = i32::from_ne_bytes([status[0], status[1], status[2], status[3]]);
        if got != w.oracle.status {
            return Err(format!("status is {got:#x}, expected {:#x}", w.oracle.status));
        }
    }
    Ok((sums[0] / sums[1].max(f64::MIN_POSITIVE)).sqrt())
}

/// Bytes of an output that an execution may write: those of rows that experts own, and all of the small ones.
pub fn owned(f: &GroupedGemmFacts, groups: &[Range<usize>], uid: Uid, len: usize) -> Vec<bool> {
    let (m, n) = (f.m as usize, f.n as usize);
    let size = f.d.bytes().unwrap_or(1) as usize;
    let mut mask = vec![!matches!(uid, 21 | 22 | 23 | 27 | 28 | 29); len];
    let by_col = ColumnScales { m, n, discrete: f.discrete_col_sfd };
    for rows in groups.iter().filter(|r| !r.is_empty()) {
        match uid {
            21..=23 => mask[rows.start * n * size..rows.end * n * size].fill(true),
            27 => {
                let atom_row = n.div_ceil(128) * 512;
                mask[rows.start / 128 * atom_row..rows.end / 128 * atom_row].fill(true);
            }
            28 | 29 => {
                for first in rows.clone().step_by(128) {
                    for column_atom in 0..n.div_ceil(128) {
                        let at = by_col.atom(column_atom, first, rows);
                        mask[at..at + 512].fill(true);
                    }
                }
            }
            _ => {}
        }
    }
    mask
}
