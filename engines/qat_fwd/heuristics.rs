//! Ranks the rows of the NVFP4 QAT forward. Pure: facts, target and offered rows only.

use crate::caps::Candidate;
use crate::sdpa::arith::ceil_div;
use crate::sdpa::ranking;
use crate::sdpa_fwd::{heuristics::scheds, prefill::Sched};
use crate::{Facts, Knob, Knobs, Mode, Row, SdpaFacts, Target};

/// Plans of each eligible row, best first: the orders of the tiles, which both walks share. The wgmma row leads but where `mma_leads`.
pub fn recommend(facts: &Facts, target: &Target, rows: &[&'static Row], mode: Mode) -> Vec<Candidate> {
    let Facts::Sdpa(f) = facts else { return Vec::new() };
    let mut rows = rows.to_vec();
    if mma_leads(f, target) {
        // Stable: only these two change places.
        rows.sort_by_key(|r| r.id == super::rows::SM90_ID);
    }
    ranking::rank(facts, target, &rows, super::mismatch, |row| {
        if row.domain(Knob::SchedPolicy).is_none() {
            return vec![Knobs::NONE];
        }
        let scheds = match mode {
            Mode::A | Mode::B | Mode::OpenSource => scheds(f),
            Mode::Fallback => &[Sched::Natural],
        };
        scheds.iter().map(|&s| Knobs::new(&[(Knob::SchedPolicy, s as i64)])).collect()
    })
}

/// Where the mma.sync row was ahead on an H200 (132 multiprocessors): head dim 64 without a mask, where the wgmma row's tiles of 192 rows are wasted in
/// part. Mostly where they need a second round and 128 rows a tile do not leave a multiprocessor more than two: 0.80 to 0.89 x in six shapes (heads times
/// S 256: 96, 128; 512: 48, 64; 1024: 24, 32); slightly where one round is enough for both and the last tile of a head is short, 0.95 to 0.99 x (S 128,
/// 256, 512). At whole multiples of 192 rows, with a mask and at head dim 128 the wgmma row was ahead, 1.02 to 1.9 x (`kernels/PERFORMANCE.md` section 18).
fn mma_leads(f: &SdpaFacts, target: &Target) -> bool {
    /// Rows computed for eight that are there, at least.
    const WASTED: i64 = 9;
    let Target::Cuda { sm_count, .. } = target else { return false };
    if f.mask.is_bounded() || f.d_qk.max(f.d_v) > 64 || f.s_q < 128 {
        return false;
    }
    let tiles = |rows: i64| ceil_div(f.s_q, rows);
    let rounds = |rows: i64| ceil_div(tiles(rows).saturating_mul(f.b).saturating_mul(f.h_q), i64::from(*sm_count));
    let wasted = tiles(192).saturating_mul(192 * 8) >= f.s_q.saturating_mul(WASTED);
    match (rounds(192), rounds(128)) {
        (2, 2) => wasted,
        (1, 1) => wasted && f.s_q.max(f.s_kv) <= 512,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qat_fwd::goldens;
    use crate::sdpa::testing::Case;

    /// Which row stands first in the shapes that were measured (heads, S, ratio of the times mma.sync : wgmma, one execution).
    #[test]
    fn the_faster_row_of_the_measured_shapes_leads() {
        let rows: Vec<&'static Row> = super::super::rows::ROWS.iter().collect();
        let target = Target::describe(90).expect("a known device");
        let first = |h: i64, s: i64, d: i64, right| {
            let case = Case { b: 1, h_q: h, h_kv: h, s_q: s, s_kv: s, d_qk: d, d_v: d, right, ..goldens::case() };
            recommend(&case.facts(), &target, &rows, Mode::A).first().map(|c| c.id)
        };
        for (h, s, ratio) in [
            (8, 64, 1.11),
            (8, 128, 0.98),
            (64, 192, 1.07),
            (16, 256, 0.97),
            (96, 256, 0.80),
            (128, 256, 0.82),
            (32, 384, 1.04),
            (64, 384, 1.25),
            (32, 512, 0.98),
            (48, 512, 0.82),
            (64, 512, 0.81),
            (96, 512, 1.03),
            (32, 768, 1.40),
            (48, 768, 1.34),
            (16, 1024, 1.07),
            (24, 1024, 0.89),
            (32, 1024, 0.88),
            (48, 1024, 1.14),
            (12, 1536, 1.61),
            (32, 2048, 1.24),
        ] {
            assert_eq!(first(h, s, 64, None), Some(if ratio < 1.0 { 20700 } else { 20717 }), "{h} heads, S {s}");
            // 1.06 to 1.3 x with a mask, 1.02 to 1.9 x at head dim 128.
            assert_eq!(first(h, s, 64, Some(0)), Some(20717), "{h} heads, S {s}, causal");
            assert_eq!(first(h, s, 128, None), Some(20717), "{h} heads, S {s}, d 128");
        }
    }
}
