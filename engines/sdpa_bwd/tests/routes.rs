//! Bytes of workspace, and the route that decides about them.

use super::*;

#[test]
fn workspace_vectors_of_facts_6_2() {
    let regions = |case: &Case| {
        let p = plan(case, &Knobs::NONE, &target(120));
        (p.regions.iter().map(|r| (r.name, r.bytes)).collect::<Vec<_>>(), p.workspace_bytes)
    };
    let (r, total) = regions(&gqa());
    assert_eq!(r, [("delta", 16_384), ("dq_accum", 2_097_152), ("dq_sem", 448), ("dk_ws", 1_228_800), ("dv_ws", 1_228_800)]);
    assert_eq!(total, 4_571_648);
    let (r, total) = regions(&Case { deterministic: true, ..gqa() });
    assert_eq!(r, [("delta", 16_384), ("ds_ws", 2_457_600), ("dk_ws", 1_228_800), ("dv_ws", 1_228_800)]);
    assert_eq!(total, 4_931_584);
    let (r, total) = regions(&small());
    assert_eq!(r, [("delta", 2_048), ("dq_accum", 131_072), ("dq_sem", 64)]);
    assert_eq!(total, 133_248);
}

/// Reports #68 and #76: exact bytes of the default plan for 20 shapes. A change here is a change of what users must allocate.
#[test]
fn workspace_table_reports_68_76() {
    const K: i64 = 1024;
    let case = |b, h_q, h_kv, s_q, s_kv, d_qk, d_v, deterministic| Case {
        b,
        h_q,
        h_kv,
        s_q,
        s_kv,
        d_qk,
        d_v,
        deterministic,
        ..Case::default()
    };
    let thd = |c: Case, totals| Case { thd: Some(DType::I32), totals: Some(totals), ..c };
    let table: [(Case, u64); 20] = [
        (case(1, 1, 1, 1, 128, 64, 64, false), 512 + 32_768 + 128),
        (case(2, 8, 2, 200, 300, 128, 128, false), 4_571_648),
        (case(2, 8, 2, 200, 300, 128, 128, true), 4_931_584),
        (case(1, 4, 4, 128, 128, 64, 64, false), 133_248),
        (case(1, 4, 4, 128, 128, 64, 64, true), 133_248),
        (case(1, 32, 32, 8 * K, 8 * K, 128, 128, false), (1 << 20) + (128 << 20) + 32 * 1024),
        (case(1, 32, 32, 8 * K, 8 * K, 128, 128, true), (1 << 20) + (4 << 30)),
        (case(1, 32, 32, 8 * K, 8 * K, 64, 64, true), (1 << 20) + (64 << 20) + 32 * 1024),
        (case(128, 32, 32, 2 * K, 2 * K, 64, 64, false), (32 << 20) + (2 << 30) + (1 << 20)),
        (case(1, 16, 16, 4 * K, 4 * K, 192, 128, false), (256 << 10) + (48 << 20) + 8192),
        (case(1, 16, 16, 4 * K, 4 * K, 192, 128, true), (256 << 10) + (512 << 20)),
        (case(1, 16, 16, 4 * K, 4 * K, 184, 128, true), (256 << 10) + (48 << 20) + 8192),
        (case(1, 2, 2, 256, 256, 256, 256, false), 2048 + (512 << 10) + 128),
        (case(1, 2, 2, 256, 256, 256, 256, true), 2048 + (256 << 10)),
        (case(1, 2, 2, 129, 257, 96, 40, false), 2048 + 262_144 + 128),
        (case(4, 8, 1, 100, 100, 8, 8, false), 16_384 + 524_288 + 512 + 204_800 + 204_800),
        // 32 heads of 8 sequences' 16,384 tokens, each sequence on 128-row blocks of its own.
        (thd(case(8, 32, 32, 2 * K, 2 * K, 128, 128, false), (16 * K, 16 * K)), 32 * 17_408 * 4 * 129 + 8 * 32 * 64 * 4),
        // Report #68: S 131,072, H 32, packed, deterministic. Linear in tokens, far below the 8 GiB of the report.
        (thd(case(1, 32, 32, 128 * K, 128 * K, 128, 128, true), (128 * K, 128 * K)), 32 * 131_200 * 4 * 129 + 32 * 4096 * 4),
        (
            thd(case(1, 32, 8, 128 * K, 128 * K, 64, 64, true), (128 * K, 128 * K)),
            32 * 131_200 * 4 * 65 + 32 * 4096 * 4 + 2 * (512 << 20),
        ),
        (case(65_536, 1, 1, 4, 4, 64, 64, false), (32 << 20) + (2 << 30) + (256 << 10)),
    ];
    let Target::Cuda { smem_optin, .. } = target(120) else { panic!("a CUDA target") };
    for (case, want) in table {
        assert_eq!(scratch_workspace_bytes(&case.facts(), smem_optin, 96 << 30), Some(want), "{case:?}");
        let p = plan(&case, &Knobs::NONE, &target(120));
        assert_eq!(p.workspace_bytes, want);
        let last = p.regions.last().expect("a region");
        assert_eq!((last.offset + last.bytes).next_multiple_of(128), want, "regions add up");
    }
}

#[test]
fn sizes_beyond_64_bits_decline() {
    let huge = Case { b: 1 << 18, h_q: 1 << 12, h_kv: 1 << 12, s_q: 1 << 20, s_kv: 1 << 20, ..Case::default() };
    let (_, text) = mismatch(&huge.facts(), &Knobs::NONE).expect("a decline");
    assert!(text.contains("D07-geometry"), "{text}");
}

#[test]
fn a_workspace_beyond_the_device_declines_with_its_bytes_report_68() {
    let case = Case { b: 64, h_q: 128, h_kv: 128, s_q: 65_536, s_kv: 65_536, ..Case::default() };
    let (code, text) = mismatch(&case.facts(), &Knobs::NONE).expect("a decline");
    assert_eq!(code, Code::Resources);
    assert!(text.contains("workspace="), "{text}");
}

#[test]
fn route_rule_of_facts_6_3() {
    let det = |c: Case| route_of(&Case { deterministic: true, ..c });
    assert_eq!(route_of(&Case::default()), Route::Atomic);
    assert_eq!(det(Case::default()), Route::TwoKernel);
    assert_eq!(det(Case { d_qk: 192, ..Case::default() }), Route::TwoKernel);
    assert_eq!(det(Case { d_qk: 256, d_v: 256, ..Case::default() }), Route::TwoKernel);
    assert_eq!(det(Case { right: Some(0), ..Case::default() }), Route::TwoKernel);
    assert_eq!(det(Case { d_v: 72, ..Case::default() }), Route::TwoKernel, "d_v may pad to 128");
    let relays = [
        ("d 64", Case { d_qk: 64, d_v: 64, ..Case::default() }),
        ("d_qk pads", Case { d_qk: 120, d_v: 120, ..Case::default() }),
        ("192/192", Case { d_qk: 192, d_v: 192, ..Case::default() }),
        ("128/64", Case { d_v: 64, ..Case::default() }),
        ("window", Case { left: Some(63), ..Case::default() }),
        ("lengths", Case { padded: true, ..Case::default() }),
        ("packed", Case { thd: Some(DType::I32), ..Case::default() }),
        ("K not compact", Case { order: Order::Bhsd, ..Case::default() }),
    ];
    for (why, case) in relays {
        assert_eq!(det(case), Route::Relay, "{why}");
    }
}

/// Tiles of 128 keys at d 128 take turns (kernels/PERFORMANCE.md section 8); those that an SM120 has keep the reference's route.
#[test]
fn large_tiles_at_d128_take_turns() {
    let f = Case { deterministic: true, right: Some(0), ..Case::default() }.sdpa();
    let on = |tiles: (i64, i64)| {
        let knobs = Knobs::new(&[(Knob::TileM, tiles.0), (Knob::TileN, tiles.1)]);
        rules::choose(sm120(), &f, &knobs, &target(90)).expect("an accepted graph").route
    };
    assert_eq!((on((64, 128)), on((64, 64))), (Route::Relay, Route::TwoKernel));
}

#[test]
fn an_explicit_query_tile_that_does_not_divide_the_dq_tile_takes_turns() {
    let f = Case { deterministic: true, d_qk: 256, d_v: 256, ..Case::default() }.sdpa();
    let c = config::resolve(256, 256, &Knobs::NONE, 232_448, Route::Atomic).expect("a configuration");
    assert_eq!(workspace::route(&f, &c, Some(32), 1 << 40), Route::TwoKernel);
    assert_eq!(workspace::route(&f, &c, Some(64), 1 << 40), Route::TwoKernel);
    assert_eq!(workspace::route(&f, &c, Some(128), 1 << 40), Route::Relay, "the dQ kernel of d 256 has 64 rows");
}

#[test]
fn a_two_kernel_workspace_beyond_the_device_takes_turns() {
    let f = Case { deterministic: true, ..Case::default() }.sdpa();
    let c = config::resolve(128, 128, &Knobs::NONE, 101_376, Route::Atomic).expect("a configuration");
    let need = 16_384 + 2_457_600;
    assert_eq!(workspace::route(&f, &c, None, need), Route::TwoKernel);
    assert_eq!(workspace::route(&f, &c, None, need - 1), Route::Relay);
}
