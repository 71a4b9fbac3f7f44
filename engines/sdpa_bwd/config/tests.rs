use super::*;
use proptest::prelude::*;

fn at(d_qk: i64, d_v: i64) -> Config {
    resolve(d_qk, d_v, &Knobs::NONE, SM120_SMEM as u32, Route::Atomic).expect("a default configuration")
}

#[test]
fn padded_dims_are_those_of_the_specification() {
    for (given, want) in [
        ((8, 8), (32, 32)),
        ((32, 32), (32, 32)),
        ((40, 40), (64, 64)),
        ((96, 40), (128, 64)),
        ((64, 32), (64, 64)),
        ((64, 8), (64, 64)),
        ((192, 128), (192, 128)),
        ((200, 136), (256, 192)),
        ((256, 256), (256, 256)),
    ] {
        assert_eq!(padded_head_dims(given.0, given.1), Some(want), "{given:?}");
    }
    assert_eq!(padded_head_dims(264, 264), None);
    assert_eq!(padded_head_dims(264, 8), None);
}

#[test]
fn default_tiles_and_stages_keep_within_the_sm120_cap() {
    // Specification: double-buffered Q everywhere except at d 256.
    for (d, tiles, stages) in [(32, (128, 64), 2), (64, (64, 128), 2), (128, (64, 64), 2), (192, (32, 64), 2), (256, (32, 64), 1)]
    {
        let c = at(d, d);
        assert_eq!((c.q_tile, c.kv_tile), tiles, "d {d}");
        assert_eq!(c.q_stages, stages, "d {d}: {c:?}");
        assert!(c.smem <= SM120_SMEM, "d {d}: {c:?}");
    }
}

#[test]
fn a_larger_device_runs_the_same_default_configuration() {
    for d in NATIVE {
        assert_eq!(
            resolve(d, d, &Knobs::NONE, 232_448, Route::Atomic),
            resolve(d, d, &Knobs::NONE, SM120_SMEM as u32, Route::Atomic)
        );
    }
}

#[test]
fn partition_table_of_facts_6_1() {
    for (key, want) in [
        ((32, 128, 64), (4, 4, 8)),
        ((32, 128, 128), (4, 8, 4)),
        ((64, 64, 128), (4, 8, 4)),
        ((64, 128, 64), (8, 2, 4)),
        ((128, 64, 64), (2, 1, 4)),
        ((192, 32, 64), (2, 4, 2)),
        ((256, 32, 64), (2, 4, 2)),
    ] {
        let p = partition(key.0, key.0, key.1, key.2).expect("a partition");
        assert_eq!((p.sdp, p.dkv, p.dq), want, "{key:?}");
    }
}

#[test]
fn a_tuned_partition_that_does_not_tile_d_v_is_derived_again() {
    // d 128 tunes one warp along the keys; d_v 64 over eight warps would be 8 columns each.
    let p = partition(128, 64, 64, 64).expect("a partition");
    assert_eq!((p.sdp, p.dkv, p.dq), (2, 4, 4));
}

#[test]
fn largest_valid_rule_off_the_table() {
    // M 64 over 16 rows allows 4; N 64 with 4 warps along M leaves 32 columns each.
    assert_eq!(partition(64, 64, 64, 64), Some(Partition { sdp: 4, dkv: 4, dq: 4 }));
    assert_eq!(partition(256, 256, 32, 128), Some(Partition { sdp: 2, dkv: 8, dq: 2 }));
    assert_eq!(largest_valid(16, &[64]), None, "64 columns over 8 warps are 8 each");
    assert_eq!(largest_valid(8, &[128]), None);
}

#[test]
fn shared_memory_formula_by_hand() {
    // d 128, 64x64, all of V in registers: 2*64*128 + 64*128 + 64*128 + max(64*128, 2*2*64*64) elements of 2 bytes, 2*64 rows of 8
    // bytes, 128 of barriers.
    assert_eq!(at(128, 128).smem, 2 * (16384 + 8192 + 8192 + 16384) + 1024 + 128);
    // d 256, 32x64, one buffer of each, 192 columns of V stay: the P and dS tiles end where V did.
    assert_eq!(at(256, 256).smem, 2 * (8192 + 8192 + 16384 + 16384) + 256 + 128);
    // Specification: Q_STAGES*q*d_qk + q*d_v + kv*d_qk + max(kv*d_v, 2*q*kv) elements for tiles without a tuned entry.
    let knobs = Knobs::new(&[(Knob::TileM, 32), (Knob::TileN, 64)]);
    let c = resolve(128, 128, &knobs, SM120_SMEM as u32, Route::Atomic).expect("a configuration");
    assert_eq!(c.smem, 2 * (2 * 4096 + 4096 + 8192 + 8192) + 512 + 128);
}

#[test]
fn tuned_entries_are_legal_and_used() {
    for t in TUNED {
        let (route, dims) = (Route::Atomic, t.dims);
        let c = t.config(dims, t.tiles, route).unwrap_or_else(|| panic!("illegal entry {t:?}"));
        let chunk = if dims.0 % 64 == 0 && dims.1 % 64 == 0 { 64 } else { 32 };
        assert!(c.v_reg_cols % chunk == 0 && c.k_reg_cols % 16 == 0 && c.k_reg_cols <= c.d_qk, "{c:?}");
        let knobs = Knobs::new(&[(Knob::TileM, t.tiles.0), (Knob::TileN, t.tiles.1)]);
        assert_eq!(resolve(dims.0, dims.1, &knobs, 232_448, route), Ok(c), "an earlier entry hides {t:?}");
        assert!(c.smem <= SM120_SMEM || t.tiles != default_tiles(dims.0), "a default tile runs on the SM120 line: {c:?}");
    }
    for d in NATIVE {
        let tiles = default_tiles(d);
        assert!(TUNED.iter().any(|t| t.config((d, d), tiles, Route::Atomic) == Some(at(d, d))), "the default of {d} is tuned");
    }
    let wide = Knobs::new(&[(Knob::TileM, 64), (Knob::TileN, 64)]);
    let c = resolve(192, 128, &wide, 232_448, Route::Atomic).expect("a configuration");
    assert!(!c.dkv_split, "unequal head dims cannot split");
    assert_eq!(at(192, 128).v_reg_cols, 128, "a smaller d_v keeps all of its columns in registers");
}

#[test]
fn tiles_that_cannot_fit_name_their_bytes() {
    let knobs = Knobs::new(&[(Knob::TileM, 128), (Knob::TileN, 128)]);
    let (code, fact, reason) = resolve(256, 256, &knobs, SM120_SMEM as u32, Route::Atomic).expect_err("too large");
    assert_eq!(code, Code::Resources);
    assert!(fact.starts_with("TILE_M=128 TILE_N=128 smem="), "{fact}");
    assert!(reason.contains("101376"), "{reason}");
}

proptest! {
    #[test]
    fn every_resolved_configuration_is_legal(dq in 1i64..33, dv in 1i64..33, m in 0usize..3, n in 0usize..2, big: bool, det: bool) {
        let (d_qk, d_v) = (8 * dq.max(dv), 8 * dq.min(dv));
        let knobs = Knobs::new(&[(Knob::TileM, [32, 64, 128][m]), (Knob::TileN, [64, 128][n])]);
        let route = if det { Route::TwoKernel } else { Route::Atomic };
        let smem = if big { 232_448 } else { SM120_SMEM as u32 };
        if let Ok(c) = resolve(d_qk, d_v, &knobs, smem, route) {
            prop_assert!(c.smem <= i64::from(smem) && c.d_qk >= d_qk && c.d_v >= d_v && c.d_qk >= c.d_v);
            prop_assert!(c.d_qk == c.d_v || (c.d_qk % 64 == 0 && c.d_v % 64 == 0));
            prop_assert!(ROW_ROUND % c.q_tile == 0);
            prop_assert!(tiles_evenly(8, c.warps.sdp, c.q_tile, &[c.kv_tile]));
            let dkv = if c.dkv_split { 4 } else { 8 };
            prop_assert!(tiles_evenly(dkv, c.warps.dkv, c.kv_tile, &[c.d_qk, c.d_v]));
            prop_assert!(tiles_evenly(8, c.warps.dq, c.q_tile, &[c.d_qk]));
        }
    }
}
