//! Ranks the backward rows. Pure: facts, target and offered rows only.

use super::config::{default_tiles, padded_head_dims, SM120_SMEM};
use super::rows::SM90_NAME;
use crate::caps::Candidate;
use crate::sdpa::arith::ceil_div;
use crate::sdpa::ranking;
use crate::{Facts, Feature, Knob, Knobs, Mode, Row, SdpaFacts, Target};

/// Tiles that beat the default where shared memory allows them: best first, by measurement only. The first entry that fits the graph
/// is used.
const LARGE_SMEM_TILES: &[Measured] = &[
    Measured { dims: (32, 32), tiles: &[(64, 128)] },
    Measured { dims: (64, 64), tiles: &[(128, 128)] },
    Measured { dims: (128, 64), tiles: &[(64, 128)] },
    Measured { dims: (128, 128), tiles: &[(64, 128)] },
    Measured { dims: (192, 64), tiles: &[(64, 64)] },
    Measured { dims: (192, 128), tiles: &[(64, 64)] },
    Measured { dims: (192, 192), tiles: &[(64, 64)] },
    Measured { dims: (256, 64), tiles: &[(64, 64)] },
    Measured { dims: (256, 128), tiles: &[(64, 64)] },
    Measured { dims: (256, 192), tiles: &[(64, 64)] },
    Measured { dims: (256, 256), tiles: &[(64, 64)] },
];

/// The compute capability of the measurements (H200).
const MEASURED_ON: u32 = 90;

/// One line of measurements.
struct Measured {
    /// Padded `(d_qk, d_v)`.
    dims: Pair,
    /// `(query rows, key rows)`.
    tiles: &'static [Pair],
}

/// Two sides of something.
type Pair = (i64, i64);

/// One plan for each eligible row, with the tiles that its lowering would pick (facts §4.7). Rows keep their order, in which the wgmma row stands first:
/// it was measured faster in every shape tried without a bias, from 128 rows on (`kernels/PERFORMANCE.md` sections 12 and 18), but for those of
/// `one_round`, and its caps name the one architecture of those measurements. With a bias it leads only where it was ahead. The device of the
/// measurements leads with the measured larger tiles; `FALLBACK` is the table alone.
pub fn recommend(facts: &Facts, target: &Target, rows: &[&'static Row], mode: Mode) -> Vec<Candidate> {
    let Facts::Sdpa(f) = facts else { return Vec::new() };
    let mut rows = rows.to_vec();
    if one_round(f, target) || f.features.has(Feature::Bias) && !wgmma_leads_with_bias(f, target) {
        rows.sort_by_key(|r| r.name == SM90_NAME);
    }
    ranking::rank(facts, target, &rows, super::mismatch, |row| knob_sets(row, f, target, mode))
}

/// Blocks of the portable row's launch, one for 64 keys of a head, and how many run at once.
fn portable_blocks(f: &SdpaFacts, target: &Target) -> Option<(i64, i64)> {
    match target {
        Target::Cuda { sm_count, .. } => {
            let blocks = f.b.saturating_mul(f.h_q).saturating_mul(ceil_div(f.s_kv, 64));
            Some((blocks, i64::from(*sm_count)))
        }
        Target::Cpu => None,
    }
}

/// Where the portable row was ahead at head dims 192/128: while its blocks of 64 keys all run at once, and the wgmma row's of 128 leave half of the
/// multiprocessors idle. On an H200, us, portable / wgmma: H8 S128 16.2 / 17.9, S1024 58.9 / 60.5 (64 blocks against 128), S2048 185 / 113; causal
/// 17.5 / 19.3, 57.1 / 59.5, 108 / 107. The deterministic mode was not measured.
fn one_round(f: &SdpaFacts, target: &Target) -> bool {
    let fits = portable_blocks(f, target).is_some_and(|(blocks, sms)| blocks <= sms);
    fits && padded_head_dims(f.d_qk, f.d_v) == Some((192, 128)) && !f.features.has(Feature::Deterministic)
}

/// Where the wgmma row was ahead of the portable one with a bias (`kernels/PERFORMANCE.md` section 18). At 128/128 and 192/128, where one warp of it adds
/// dBias, once the portable row's blocks of 64 keys, under a mask half of them, no longer run at once; at 64/64 without dBias; on its wide loop, but at
/// 192/192 not with dBias and no mask. Small d_v beside d_qk above 192 was not measured.
fn wgmma_leads_with_bias(f: &SdpaFacts, target: &Target) -> bool {
    let (dbias, masked) = (f.ports.dbias.is_some(), f.mask.is_bounded());
    let rounds = || portable_blocks(f, target).is_some_and(|(blocks, sms)| blocks > if masked { 2 * sms } else { sms });
    match (f.d_qk, f.d_v) {
        (..=64, _) => !dbias,
        (..=128, _) | (..=192, ..=128) => rounds(),
        (_, ..=128) => false,
        (..=192, _) => masked || !dbias,
        (_, _) => true,
    }
}

/// Tiles of a row of this chain, best first; none for a row without tiles.
pub(crate) fn knob_sets(row: &Row, f: &SdpaFacts, target: &Target, mode: Mode) -> Vec<Knobs> {
    let tiles = |(m, n)| Knobs::new(&[(Knob::TileM, m), (Knob::TileN, n)]);
    let Some(padded) = padded_head_dims(f.d_qk, f.d_v).filter(|_| row.domain(Knob::TileM).is_some()) else {
        return vec![Knobs::NONE];
    };
    let mut sets = Vec::new();
    // Only where they were measured: on 100, 103 and 110 some of these tiles spill a few registers and nothing says they are faster.
    let measured_here = match target {
        Target::Cuda { cc, smem_optin, .. } => *cc == MEASURED_ON && i64::from(*smem_optin) > SM120_SMEM,
        Target::Cpu => false,
    };
    match mode {
        // With a bias the larger tiles spill, so those graphs keep the default.
        Mode::A | Mode::B | Mode::OpenSource if measured_here && !f.features.has(Feature::Bias) => {
            let measured = LARGE_SMEM_TILES.iter().find(|m| m.dims == padded).map_or(&[][..], |m| m.tiles);
            sets.extend(measured.iter().copied().map(tiles));
        }
        Mode::A | Mode::B | Mode::OpenSource | Mode::Fallback => {}
    }
    sets.push(tiles(default_tiles(padded.0)));
    sets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sdpa::testing::Case;
    use crate::sdpa_bwd::config;
    use crate::sdpa_bwd::workspace::Route;
    use crate::DType;

    const MODES: [Mode; 4] = [Mode::A, Mode::B, Mode::Fallback, Mode::OpenSource];

    fn ranked(case: &Case, cc: u32, mode: Mode) -> Vec<String> {
        let rows: Vec<&'static Row> = super::super::rows::ROWS.iter().collect();
        let target = Target::describe(cc).expect("a known device");
        recommend(&case.facts(), &target, &rows, mode).iter().map(|c| format!("{}{}", c.id, c.knobs)).collect()
    }

    #[test]
    fn table_of_facts_4_7_and_goldens_of_7_8() {
        for mode in MODES {
            let at = |d_qk, d_v| ranked(&Case { d_qk, d_v, ..Case::default() }, 120, mode);
            assert_eq!(at(128, 128), ["20600[TILE_M=64,TILE_N=64]"]);
            assert_eq!(at(96, 40), ["20600[TILE_M=64,TILE_N=64]"]);
            assert_eq!(at(32, 32), ["20600[TILE_M=128,TILE_N=64]"]);
            assert_eq!(at(64, 64), ["20600[TILE_M=64,TILE_N=128]"]);
            assert_eq!(at(192, 128), ["20600[TILE_M=32,TILE_N=64]"]);
            assert_eq!(at(256, 256), ["20600[TILE_M=32,TILE_N=64]"]);
            assert!(at(264, 264).is_empty());
            assert!(ranked(&Case { scale: 0.0, ..Case::default() }, 120, mode).is_empty());
        }
    }

    #[test]
    fn the_default_tiles_stay_offered_on_larger_devices() {
        for cc in [90, 100, 103, 110] {
            for mode in MODES {
                assert!(
                    ranked(&Case::default(), cc, mode).contains(&"20600[TILE_M=64,TILE_N=64]".to_string()),
                    "sm_{cc} {mode:?}"
                );
            }
            let portable = ranked(&Case::default(), cc, Mode::Fallback);
            assert_eq!(portable.iter().filter(|p| p.starts_with("20600")).count(), 1);
        }
    }

    /// On Hopper the wgmma row leads; nowhere else is it offered.
    #[test]
    fn wgmma_leads_on_hopper() {
        for mode in MODES {
            assert_eq!(ranked(&Case::default(), 90, mode).first().map(String::as_str), Some("20617"), "{mode:?}");
            for cc in [100, 103, 110, 120, 121] {
                assert!(!ranked(&Case::default(), cc, mode).contains(&"20617".to_string()), "sm_{cc}");
            }
        }
    }

    /// The crossover with the portable row, as measured on an H200 (`kernels/PERFORMANCE.md` section 12): which row stands first.
    #[test]
    fn the_faster_row_of_the_measured_shapes_leads() {
        let first = |case: Case| ranked(&case, 90, Mode::A).first().map_or(String::new(), |p| p[..5].to_string());
        let square = |b, h_q, h_kv, s, d| Case { b, h_q, h_kv, s_q: s, s_kv: s, d_qk: d, d_v: d, ..Case::default() };
        // Without a bias 1.07 to 1.57 x in all sixty shapes, the smallest among them.
        for (b, h_q, h_kv) in [(1, 8, 8), (4, 16, 16), (1, 32, 4)] {
            for s in [128, 256, 512, 1024, 2048] {
                for d in [64, 128] {
                    for right in [None, Some(0)] {
                        assert_eq!(
                            first(Case { right, ..square(b, h_q, h_kv, s, d) }),
                            "20617",
                            "b{b} h{h_q} s{s} d{d} {right:?}"
                        );
                    }
                }
            }
        }
        // Time of the portable row over the wgmma row's, one execution: with a bias, and with its gradient too.
        let heads = [(1, 8, 8), (4, 16, 16), (1, 32, 4)];
        type Line = (Option<i64>, i64, [f64; 3], [f64; 3]);
        let table: [((i64, i64), &[Line]); 5] = [
            (
                (64, 64),
                &[(None, 512, [1.20, 1.18, 1.16], [0.75, 0.81, 0.82]), (Some(0), 2048, [1.22, 1.27, 1.25], [0.79, 0.82, 0.83])],
            ),
            (
                (128, 128),
                &[
                    (None, 128, [0.86, 0.92, 0.87], [0.63, 0.74, 0.68]),
                    (None, 512, [0.81, 1.31, 1.29], [0.57, 1.03, 1.05]),
                    (None, 2048, [1.41, 1.44, 1.47], [1.03, 1.02, 1.04]),
                    (Some(0), 256, [0.84, 0.97, 0.85], [0.60, 0.82, 0.67]),
                    (Some(0), 2048, [0.80, 1.50, 1.42], [0.69, 1.02, 1.01]),
                ],
            ),
            (
                (192, 128),
                &[
                    (None, 1024, [0.93, 1.55, 1.62], [0.63, 1.05, 1.08]),
                    (Some(0), 128, [0.87, 0.90, 0.93], [0.68, 0.77, 0.73]),
                    (Some(0), 1024, [0.94, 1.57, 1.94], [0.69, 1.17, 1.30]),
                ],
            ),
            (
                (192, 192),
                &[(None, 2048, [1.13, 1.16, 1.18], [0.91, 0.92, 0.93]), (Some(0), 1024, [1.11, 1.14, 1.28], [1.12, 1.08, 1.18])],
            ),
            (
                (256, 256),
                &[(None, 1024, [1.18, 1.22, 1.27], [1.02, 1.0, 1.04]), (None, 2048, [1.24, 1.27, 1.31], [1.0, 1.0, 1.04])],
            ),
        ];
        for ((d_qk, d_v), lines) in table {
            for &(right, s, biased, with_gradient) in lines {
                for (n, (b, h_q, h_kv)) in heads.into_iter().enumerate() {
                    let case = Case { right, d_qk, d_v, bias: Some((DType::BF16, b)), ..square(b, h_q, h_kv, s, 64) };
                    let want = |ratio: f64| if ratio < 1.0 { "20600" } else { "20617" };
                    assert_eq!(first(case.clone()), want(biased[n]), "b{b} s{s} d{d_qk}/{d_v} {right:?}");
                    let dbias = Case { dbias: Some(DType::BF16), ..case };
                    assert_eq!(first(dbias), want(with_gradient[n]), "b{b} s{s} d{d_qk}/{d_v} {right:?} with its gradient");
                }
            }
        }
    }

    /// Head dims above 128 (`kernels/PERFORMANCE.md` section 18): ahead in all sixty shapes of the wide loop, 1.04 to 2.0 x; at 192/128 behind while the
    /// portable row's blocks all run at once.
    #[test]
    fn the_faster_row_of_the_measured_wide_shapes_leads() {
        let first = |case: Case| ranked(&case, 90, Mode::A).first().map_or(String::new(), |p| p[..5].to_string());
        for (b, h_q, h_kv, s, ratio) in [
            (1, 8, 8, 128, 0.90),
            (1, 8, 8, 512, 0.93),
            (1, 8, 8, 1024, 0.97),
            (1, 8, 8, 2048, 1.64),
            (4, 16, 16, 256, 1.31),
            (4, 16, 16, 512, 1.45),
            (1, 32, 4, 128, 0.92),
            (1, 32, 4, 512, 1.47),
            (1, 32, 4, 2048, 1.75),
        ] {
            for right in [None, Some(0)] {
                let at = |d_qk, d_v| Case { b, h_q, h_kv, s_q: s, s_kv: s, d_qk, d_v, right, ..Case::default() };
                let want = if ratio < 1.0 { "20600" } else { "20617" };
                assert_eq!(first(at(192, 128)), want, "b{b} h{h_q} s{s} {right:?}");
                assert_eq!(first(at(192, 192)), "20617", "b{b} h{h_q} s{s} {right:?}");
                assert_eq!(first(at(256, 256)), "20617", "b{b} h{h_q} s{s} {right:?}");
            }
        }
    }

    /// On its wide loop too (d_v above 128): at d256 it was 1.2 to 2.0 x the portable row from S512 on.
    #[test]
    fn wgmma_leads_at_every_head_dim() {
        for (d_qk, d_v) in [(256, 256), (200, 8), (192, 192), (192, 136), (192, 128), (136, 128), (8, 8)] {
            let plans = ranked(&Case { b: 8, d_qk, d_v, ..Case::default() }, 90, Mode::A);
            assert_eq!(plans[0], "20617", "{d_qk}/{d_v}: {plans:?}");
            assert!(plans[1].starts_with("20600"), "{d_qk}/{d_v}: {plans:?}");
        }
    }

    #[test]
    fn packed_graphs_are_served_beyond_the_specification() {
        assert_eq!(ranked(&Case { thd: Some(DType::I32), ..Case::default() }, 120, Mode::A), ["20600[TILE_M=64,TILE_N=64]"]);
    }

    /// Every measured entry must fit and resolve, or it would silently fall away.
    #[test]
    fn measured_tiles_resolve_on_a_large_device() {
        for m in LARGE_SMEM_TILES {
            for &(q, kv) in m.tiles {
                let knobs = Knobs::new(&[(Knob::TileM, q), (Knob::TileN, kv)]);
                let c = config::resolve(m.dims.0, m.dims.1, &knobs, 232_448, Route::Atomic);
                assert!(c.is_ok(), "{:?} {q}x{kv}: {c:?}", m.dims);
                assert_ne!((q, kv), default_tiles(m.dims.0), "the default is listed already");
            }
        }
    }
}
