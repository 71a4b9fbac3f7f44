//! How far results are from the oracle, and how far they may be.

use super::memory::take;
use super::uid::*;
use super::{Buffer, Case};
use frostgraph_engines::qat::oracle as qat;
use frostgraph_engines::sdpa::Direction;
use frostgraph_engines::{DType, Uid};
use std::collections::BTreeMap;

impl Case {
    /// NVFP4 QAT forward against the oracle; returns the results, and how wrong O would be if P had not been quantised.
    pub fn check_qat_forward(&self) -> (BTreeMap<Uid, Buffer>, f64) {
        let got = self.forward().unwrap_or_else(|e| panic!("{e}\n{:?}", self.spec));
        let want = qat::forward(&self.facts(Direction::Forward), &self.view()).unwrap();
        let t = self.tolerance();
        for (uid, want, reach, tolerance) in
            [(O, &want.o, &want.o_reach[..], t), (HIGH, &want.plain.o, &[], t), (STATS, &want.plain.stats, &[], 1e-5)]
        {
            let error = self.error_beyond(uid, &got, want, reach);
            assert!(error <= tolerance, "{}: error {error:.2e}\n{:?}", self.spots[&uid].port.name, self.spec);
        }
        let unquantised = beyond(&want.plain.o, &want.o, &want.o_reach);
        (got, unquantised)
    }

    /// NVFP4 QAT backward on the oracle's auxiliaries, against the oracle; and how wrong dV would be if P had not been quantised.
    pub fn check_qat_backward(&mut self) -> (BTreeMap<Uid, Buffer>, f64) {
        let made = qat::forward(&self.facts(Direction::Forward), &self.view()).unwrap();
        self.store(O, self.spec.sq, &made.plain.o);
        self.store(STATS, self.spec.sq, &made.plain.stats);
        let got = self.run_backward().unwrap_or_else(|e| panic!("{e}\n{:?}", self.spec));
        let want = qat::backward(&self.facts(Direction::Backward), &self.view()).unwrap();
        for (uid, want, reach) in [(DQ, &want.plain.dq, &[][..]), (DK, &want.plain.dk, &[]), (DV, &want.dv, &want.dv_reach)] {
            let error = self.error_beyond(uid, &got, want, reach);
            assert!(error <= self.tolerance(), "{}: error {error:.2e}\n{:?}", self.spots[&uid].port.name, self.spec);
        }
        (got, beyond(&want.plain.dv, &want.dv, &want.dv_reach))
    }

    /// Relative Frobenius distance of an output over its elements; equal infinities agree, a NaN never does.
    pub fn error(&self, uid: Uid, outputs: &BTreeMap<Uid, Buffer>, want: &[f64]) -> f64 {
        self.error_beyond(uid, outputs, want, &[])
    }

    /// The distance beyond `reach` around every element; an empty one is all zero.
    pub fn error_beyond(&self, uid: Uid, outputs: &BTreeMap<Uid, Buffer>, want: &[f64], reach: &[f64]) -> f64 {
        let spot = &self.spots[&uid];
        let (mut diff, mut norm) = (0.0f64, 0.0f64);
        for (i, at) in spot.elements(self.rows_of(uid)) {
            let got = take(outputs[&uid].bytes(), at, spot.port.dtype);
            if got.is_infinite() && got == want[i] {
                continue;
            }
            if !got.is_finite() {
                return f64::INFINITY;
            }
            diff += ((got - want[i]).abs() - reach.get(i).copied().unwrap_or(0.0)).max(0.0).powi(2);
            norm += want[i].powi(2);
        }
        if norm > 0.0 {
            (diff / norm).sqrt()
        } else {
            diff.sqrt()
        }
    }

    pub fn tolerance(&self) -> f64 {
        self.tolerance_of(self.spec.dtype)
    }

    fn tolerance_of(&self, dtype: DType) -> f64 {
        match dtype {
            DType::F32 => 1e-5,
            DType::F16 => 2e-3,
            _ => 1e-2,
        }
    }

    /// Forward against the oracle: O, Stats, maximum, sum.
    pub fn check_forward(&self) -> BTreeMap<Uid, Buffer> {
        let got = self.forward().unwrap_or_else(|e| panic!("{e}\n{:?}", self.spec));
        let want = self.problem.forward();
        let stats = if self.spec.log2 { want.stats_log2() } else { want.stats.clone() };
        for (uid, want, tolerance) in [
            (O, &want.o, self.tolerance()),
            (STATS, &stats, 1e-5),
            (MAX, &want.score_max, 1e-5),
            (SUM, &want.score_sum_exp, self.tolerance()),
        ] {
            let error = self.error(uid, &got, want);
            assert!(error <= tolerance, "{}: error {error:.2e}\n{:?}", self.spots[&uid].port.name, self.spec);
        }
        got
    }

    /// Backward against the oracle: every gradient.
    pub fn check_backward(&mut self) -> BTreeMap<Uid, Buffer> {
        let got = self.backward().unwrap_or_else(|e| panic!("{e}\n{:?}", self.spec));
        let want = self.expect_backward();
        for (uid, want) in [(DQ, &want.dq), (DK, &want.dk), (DV, &want.dv), (DBIAS, &want.dbias), (DSINK, &want.dsink)] {
            if !self.spots.contains_key(&uid) {
                continue;
            }
            let dtype = self.spots[&uid].port.dtype;
            let tolerance = self.tolerance().max(self.tolerance_of(dtype));
            let error = self.error(uid, &got, want);
            assert!(error <= tolerance, "{}: error {error:.2e}\n{:?}", self.spots[&uid].port.name, self.spec);
        }
        got
    }
}

/// Relative distance of `got` from `want` beyond `reach`.
fn beyond(got: &[f64], want: &[f64], reach: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let off = norm(&mut got.iter().zip(want).zip(reach).map(|((g, w), r)| ((g - w).abs() - r).max(0.0)));
    off / norm(&mut want.iter().copied()).max(1e-30)
}
