//! Results of a run against the f64 oracle, with the error that each last rounding allows.

use crate::codec::e8m0;
use crate::grouped_gemm::oracle::{element, evaluate, Oracle};
use crate::grouped_gemm::scales::{ColumnScales, ScaleMatrix};
use crate::grouped_gemm::testing::Case;
use crate::{DType, Uid};
use std::collections::BTreeMap;

pub type Buffers = BTreeMap<Uid, Vec<u8>>;

pub fn oracle(case: &Case, inputs: &Buffers) -> Oracle {
    let view = inputs.iter().map(|(u, b)| (*u, &b[..])).collect();
    evaluate(&case.grouped(), &view).expect("an oracle")
}

pub fn float(bytes: &[u8], i: usize) -> f64 {
    element(DType::F32, bytes, i)
}

/// Checks every output of a run; element by element, with the error that its last rounding allows.
pub fn check(case: &Case, inputs: &Buffers, results: &Buffers) {
    let f = case.grouped();
    let o = oracle(case, inputs);
    let (m, n) = (f.m as usize, f.n as usize);
    let poison = |uid: Uid, at: usize, size: usize| results[&uid][at..at + size].iter().all(|b| *b == 0xa5);
    // Accumulation in single precision over K, relative to the largest D of the row.
    let rounding = match case.d {
        DType::F8E4M3 => 1.0 / 16.0,
        DType::F8E5M2 => 1.0 / 8.0,
        DType::F16 => 1.0 / 2048.0,
        DType::BF16 => 1.0 / 256.0,
        _ => 0.0,
    };
    let rows_sf = ScaleMatrix::of(m, n, 32);
    let cols_sf = ColumnScales { m, n, discrete: f.discrete_col_sfd };
    let owner = |row: usize| o.groups.iter().find(|g| g.contains(&row));
    for row in 0..m {
        let owner = owner(row);
        let top = (0..n).fold(0.0, |a: f64, c| a.max(o.d[row * n + c].abs()));
        for col in 0..n {
            let i = row * n + col;
            let outputs = [(21, &o.d, Some((27, true))), (22, &o.d, Some((28, false))), (23, &o.d_srelu, Some((29, false)))];
            for (uid, want, scale) in outputs.into_iter().filter(|(uid, _, _)| results.contains_key(uid)) {
                let size = case.d.bytes().expect("whole bytes") as usize;
                let Some(rows) = owner else {
                    assert!(poison(uid, i * size, size), "row {row} of {uid} belongs to no expert and was written");
                    continue;
                };
                let mut got = element(case.d, &results[&uid], i);
                let mut step = rounding * want[i].abs();
                if let (true, Some((sf, by_row))) = (f.quantised, scale) {
                    let at = if by_row { rows_sf.index(row, col / 32) } else { cols_sf.index(col, row, rows) };
                    let s = f64::from(e8m0::decode(results[&sf][at]));
                    got *= s / o.norm;
                    // A subnormal FP8 step is absolute.
                    step += s / o.norm * if case.d == DType::F8E4M3 { 2f64.powi(-10) } else { 2f64.powi(-17) };
                }
                if case.d == DType::F16 && want[i].abs() > 65_504.0 {
                    assert!(got.is_infinite() || got.abs() == 65_504.0, "f16 does not saturate");
                    continue;
                }
                let slack = step + 1e-5 * top.max(want[i].abs()) + 1e-30;
                assert!((got - want[i]).abs() <= slack, "({row}, {col}) of {uid}: {got} and not {}, {case:?}", want[i]);
            }
        }
        let dprob = float(&results[&24], row);
        assert!((dprob - o.dprob[row]).abs() <= 1e-5 * o.dprob_size[row], "dprob of row {row}: {dprob} and not {}", o.dprob[row]);
    }
    if f.quantised {
        check_scales(case, &o, results);
    }
    for (e, rows) in o.groups.iter().enumerate() {
        if let Some(amax) = results.get(&26) {
            let got = float(amax, e);
            assert!(
                got == o.amax[e] || (got - o.amax[e]).abs() <= 1e-5 * o.amax[e].abs(),
                "amax of {e}: {got} and not {}",
                o.amax[e]
            );
            assert_eq!(rows.is_empty(), got == f64::NEG_INFINITY);
        }
        if let Some(dbias) = results.get(&25) {
            for col in 0..n {
                let (got, want) = (element(DType::BF16, dbias, e * n + col), o.dbias[e * n + col]);
                assert!((got - want).abs() <= want.abs() / 256.0 + 1e-4, "dbias ({e}, {col}): {got} and not {want}");
            }
        }
    }
}

/// Scales are the powers of two just above amax / 448 * norm, and the padding of their atoms is 0.
fn check_scales(case: &Case, o: &Oracle, results: &Buffers) {
    let f = case.grouped();
    let (m, n) = (f.m as usize, f.n as usize);
    let max = if case.d == DType::F8E5M2 { 128.0 } else { 448.0 };
    let near = |code: u8, amax: f64| {
        let want = amax / max * o.norm;
        let s = 2f64.powi(i32::from(code) - 127);
        code == 0 && want < 2f64.powi(-126) || want <= s * (1.0 + 1e-5) && want > s / 2.0 * (1.0 - 1e-5)
    };
    let (rows_sf, cols_sf) = (ScaleMatrix::of(m, n, 32), ColumnScales { m, n, discrete: f.discrete_col_sfd });
    let mut written = [vec![false; results[&27].len()], vec![false; results[&28].len()]];
    for rows in &o.groups {
        for row in rows.clone() {
            for block in 0..n.div_ceil(32) {
                let amax = (block * 32..n.min(block * 32 + 32)).fold(0.0, |a: f64, c| a.max(o.d[row * n + c].abs()));
                let at = rows_sf.index(row, block);
                assert!(near(results[&27][at], amax), "SFD_row ({row}, {block})");
                written[0][at] = true;
            }
            for col in (0..n).filter(|_| row % 32 == 0) {
                let amax = (row..row + 32).fold(0.0, |a: f64, r| a.max(o.d[r * n + col].abs()));
                let at = cols_sf.index(col, row, rows);
                assert!(near(results[&28][at], amax), "SFD_col ({col}, {row})");
                written[1][at] = true;
            }
        }
    }
    let owned: usize = o.groups.iter().map(|g| g.len()).sum();
    for (uid, written) in [27, 28].into_iter().zip(&written) {
        let zero = results[&uid].iter().zip(written).filter(|(b, w)| !**w && **b == 0).count();
        let poison = results[&uid].iter().zip(written).filter(|(b, w)| !**w && **b == 0xa5).count();
        let used = written.iter().filter(|w| **w).count();
        assert_eq!(used + zero + poison, written.len(), "nothing else in {uid}");
        let padded = m.next_multiple_of(128);
        assert_eq!(poison * padded, (padded - owned) * written.len(), "atoms of {uid} past the last expert are untouched");
    }
}
