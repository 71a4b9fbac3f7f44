//! The wgmma row.

use super::*;

/// The configuration for head dims, rows of a tile and a few switches of a case.
fn hopper_config(case: &Case, knobs: &[(Knob, i64)]) -> Option<prefill_sm90::Config> {
    prefill_sm90::config(&case.sdpa(), &Knobs::new(knobs))
}

/// Q 128x128 and three buffers of 128 keys; Q 192x64 and four of 64; Q 64x128, four of 64 and two warpgroups' halves of O; everything fits a CTA's 227 KB.
#[test]
fn hopper_configurations_fit() {
    let mut seen = 0;
    for (d_qk, d_v) in (8..=256).step_by(8).flat_map(|q| (8..=256).step_by(8).map(move |v| (q, v))) {
        let biases = [None, Some(DType::F32), Some(DType::BF16)];
        for (left, bias, pack) in
            [None, Some(9)].iter().flat_map(|l| biases.iter().flat_map(move |b| [0, 1].map(|p| (*l, *b, p))))
        {
            let case = Case { d_qk, d_v, left, bias: bias.map(|dtype| (dtype, 1)), ..forward() };
            for rows in [64, 128, 192] {
                let Some(c) = hopper_config(&case, &[(Knob::TileM, rows), (Knob::PackGqa, pack)]) else { continue };
                seen += 1;
                assert!(!c.key_split || c.stages % 2 == 0 && c.v_stages % 2 == 0, "a buffer is read by one warpgroup: {c:?}");
                assert!(c.d_qk >= d_qk && c.d_v >= d_v && c.q_tile() == rows && c.smem() <= 232_448, "{c:?}");
                // Registers of a math thread: S, P twice, O, a bias read from memory, and about 32 more; 240 of them with two warpgroups, 160 with three.
                let read = bias.is_some() && c.bias_stages == 0;
                let registers = c.kv_tile / 2 * (2 + i64::from(read)) + c.d_v / 2;
                assert!(registers + 32 <= if c.groups == 2 { 240 } else { 160 }, "{c:?}");
            }
        }
    }
    assert!(seen > 5000, "{seen}");
    let at = |d, left| Case { d_qk: d, d_v: d, left, ..forward() };
    let c = hopper_config(&at(128, None), &[]).expect("d 128");
    assert_eq!((c.q_tile(), c.threads(), c.smem()), (128, 384, 2 * (128 * 128 + 3 * 128 * 256) + 16 * (2 + 3 + 3)));
    let c = hopper_config(&at(40, Some(31)), &[]).expect("d 64");
    assert_eq!((c.q_tile(), c.threads(), c.smem()), (192, 512, 2 * (192 * 64 + 4 * 64 * 128) + 16 * (3 + 4 + 4)));
    let c = hopper_config(&at(128, None), &[(Knob::TileM, 64)]).expect("d 128, shared rows");
    let exchange = 2 * 128 * (32 + 4) * 4;
    assert_eq!((c.q_tile(), c.threads(), c.smem()), (64, 384, 2 * (64 * 128 + 4 * 64 * 256) + exchange + 16 * (1 + 4 + 4)));
    assert_eq!(hopper_config(&at(264, None), &[]), None);
    for (d, rows) in [(256, 64), (128, 192), (256, 192)] {
        let facts = at(d, None).facts();
        assert_eq!(declined(hopper_row(), &facts, &Knobs::new(&[(Knob::TileM, rows)])), Code::Knob, "{rows} rows at d {d}");
    }
}

/// What a map holds of a bias: keys next to each other, rows a multiple of 16 bytes apart, no stride of 0; never of packed heads.
#[test]
fn hopper_biases_come_by_boxes_where_a_map_can_be_made() {
    let of = |facts: &Facts, pack| {
        let p = plan(hopper_row(), facts, &Knobs::new(&[(Knob::PackGqa, pack)]), 90);
        (arg(&p, 0, "tm_bias"), define(&p, 0, "FG_BIAS_STAGES"))
    };
    let case = |dtype, s_kv| Case { h_q: 6, h_kv: 2, s_kv, bias: Some((dtype, 1)), ..forward() };
    // One batch; 200 keys are 400 bytes, 6 heads of 200 rows. The stride of the only batch is that of a row.
    let (Arg::Map(m), 2) = of(&case(DType::BF16, 200).facts(), 0) else { panic!("a map and two buffers") };
    assert_eq!((m.dim, m.tile, m.swizzle), (vec![Some(200), Some(200), Some(6), Some(1)], vec![64, 64, 1, 1], 128));
    assert_eq!(m.stride_bytes, [400, 200 * 400, 400]);
    // 132 keys of fp32 are 528 bytes; the stride of what is one has to be legal beside rows that are padded.
    let (Arg::Map(m), _) = of(&case(DType::F32, 132).facts(), 0) else { panic!("a map") };
    assert_eq!((m.tile, m.stride_bytes), (vec![32, 64, 1, 1], vec![528, 200 * 528, 528]));
    let padded = bent(&case(DType::BF16, 131), |f| f.ports.bias.as_mut().expect("bias").stride = [0, 200 * 136, 136, 1]);
    let (Arg::Map(m), _) = of(&padded, 0) else { panic!("a map") };
    assert_eq!((m.dim[0], m.stride_bytes), (Some(131), vec![272, 200 * 272, 272]));
    // No map: rows of 262 bytes, a base of 8 bytes, keys apart, heads on top of each other, packed heads.
    let bias = |bend: fn(&mut Port)| bent(&case(DType::BF16, 200), |f| bend(f.ports.bias.as_mut().expect("bias")));
    let refused = [
        case(DType::BF16, 131).facts(),
        bias(|b| b.alignment = 8),
        bias(|b| b.stride = [400 * 1200, 400 * 200, 400, 2]),
        bias(|b| b.stride[1] = 0),
    ];
    for facts in refused {
        assert_eq!(of(&facts, 0), (Arg::NoMap, 0), "{:?}", facts.expect_sdpa().ports.bias);
    }
    assert_eq!(of(&case(DType::BF16, 200).facts(), 1), (Arg::NoMap, 0));
}

/// Packed: a tile of 128 rows is 42 tokens of three heads; the map's box is the three heads of 21 tokens, heads fastest.
#[test]
fn hopper_packs_groups_that_do_not_divide_a_tile() {
    let case = Case { h_q: 6, h_kv: 2, ..forward() };
    let knobs = Knobs::new(&[(Knob::PackGqa, 1)]);
    let c = hopper_config(&case, &[(Knob::PackGqa, 1)]).expect("served");
    assert_eq!((c.pack, c.group_tokens(), c.tokens()), (3, 21, 42));
    let p = plan(hopper_row(), &case.facts(), &knobs, 90);
    assert_eq!(define(&p, 0, "FG_PACK_GQA"), 1);
    let Step::Kernel(l) = &p.steps[0] else { panic!("a kernel") };
    // Five tiles of 200 tokens, two key heads, two batches.
    assert_eq!(l.grid[0], 5 * 2 * 2);
    let Arg::Map(m) = arg(&p, 0, "tm_q") else { panic!("a map") };
    assert_eq!((m.dim, m.tile), (vec![Some(128), Some(6), Some(200), Some(2)], vec![64, 3, 21, 1]));
    assert_eq!(m.stride_bytes, [256, 6 * 256, 200 * 6 * 256]);
    for (h_q, h_kv) in [(8, 8), (130, 2)] {
        let facts = Case { h_q, h_kv, ..forward() }.facts();
        assert_eq!(declined(hopper_row(), &facts, &knobs), Code::Knob, "{h_q}/{h_kv}");
    }
}

/// Sections of the Hopper row: all heads where four CTAs read each key head anyway; else even rounds of the device's 132 CTAs.
#[test]
fn hopper_sections() {
    let at = |b, h_q, h_kv, s, d_qk, d_v, sched| {
        let case = Case { b, h_q, h_kv, s_q: s, s_kv: s, d_qk, d_v, right: Some(0), ..forward() };
        prefill_sm90::section(&case.sdpa(), &hopper_config(&case, &[]).expect("a configuration"), sched, &target(90))
    };
    assert_eq!(at(1, 64, 8, 4096, 128, 128, 2), 64);
    assert_eq!((at(1, 128, 128, 4096, 192, 128, 2), at(1, 128, 128, 4096, 192, 128, 1)), (33, 128));
    assert_eq!(at(1, 128, 128, 8192, 192, 128, 2), 33);
    assert_eq!(at(4, 32, 32, 4096, 64, 64, 2), 12, "22 tiles a head");
    // One tile a head: sections do not help, 33 heads do not fill the device.
    assert_eq!(at(1, 128, 128, 128, 128, 128, 2), 128);
    // Packed heads count once.
    let case = Case { b: 8, h_q: 64, h_kv: 8, s_q: 4096, s_kv: 4096, right: Some(0), ..forward() };
    let c = hopper_config(&case, &[(Knob::PackGqa, 1)]).expect("a configuration");
    assert_eq!(
        (prefill_sm90::section(&case.sdpa(), &c, 1, &target(90)), prefill_sm90::grid(&case.sdpa(), &c, &target(90))),
        (64, 132)
    );
}

/// Pairs of tiles of the Hopper row: heads with keys of their own beyond the L2 cache, an even number of tiles each, a causal mask without a left bound.
#[test]
fn hopper_pairs() {
    let rounds = |case: Case, sched| {
        prefill_sm90::pair_rounds(&case.sdpa(), &hopper_config(&case, &[]).expect("a configuration"), sched, &target(90))
    };
    let mla = |s| Case { b: 1, h_q: 128, h_kv: 128, s_q: s, s_kv: s, d_qk: 192, d_v: 128, right: Some(0), ..forward() };
    // 128 heads of 16 or 32 pairs on 132 multiprocessors: 15.5 and 31.03 double rounds.
    assert_eq!((rounds(mla(4096), 2), rounds(mla(8192), 2)), (Some(14), Some(30)));
    assert_eq!(rounds(mla(4096), 1), None, "another order was asked for");
    assert_eq!(rounds(Case { left: Some(64), ..mla(4096) }, 2), None);
    assert_eq!(rounds(Case { right: None, ..mla(4096) }, 2), None);
    assert_eq!(rounds(mla(31 * 128), 2), None, "an odd number of tiles");
    assert_eq!(rounds(Case { h_kv: 64, ..mla(4096) }, 2), None, "two heads read the same keys");
    assert_eq!(
        rounds(Case { b: 1, h_q: 16, h_kv: 16, s_q: 8192, s_kv: 8192, d_qk: 256, d_v: 256, right: Some(0), ..forward() }, 2),
        Some(2)
    );
    assert_eq!(
        rounds(Case { b: 2, h_q: 16, h_kv: 16, s_q: 2048, s_kv: 2048, right: Some(0), ..forward() }, 2),
        None,
        "32 MiB stay in the cache"
    );
}

/// Clusters of the Hopper row: where tiles go in pairs, of a cluster's two tiles of 128 rows each; the maps of K and V have half of a tile's keys.
#[test]
fn hopper_clusters() {
    let mla = |s| Case { b: 1, h_q: 128, h_kv: 128, s_q: s, s_kv: s, d_qk: 192, d_v: 128, right: Some(0), ..forward() };
    let of = |case: &Case, sched| {
        let p = plan(hopper_row(), &case.facts(), &Knobs::new(&[(Knob::SchedPolicy, sched)]), 90);
        let Step::Kernel(l) = &p.steps[0] else { panic!("a kernel") };
        let keys = ["tm_q", "tm_k", "tm_v"].map(|name| match arg(&p, 0, name) {
            Arg::Map(m) => m.tile[1],
            _ => panic!("a map"),
        });
        (l.cluster, l.grid[0], define(&p, 0, "FG_CLUSTER"), keys, arg(&p, 0, "section"))
    };
    // 128 heads of eight pairs on 66 clusters: 15.5 double rounds, the last of them and half of one longest first.
    assert_eq!(of(&mla(4096), 2), ([2, 1, 1], 132, 2, [64, 64, 64], Arg::I32(14)));
    assert_eq!(of(&mla(4096), 1), ([1, 1, 1], 132, 1, [64, 128, 128], Arg::I32(128)), "another order was asked for");
    // 17 tiles of 256 rows have no pairs, 34 of 128 have.
    assert_eq!(of(&mla(17 * 256), 2).0, [1, 1, 1]);
    assert_eq!(of(&Case { d_qk: 64, d_v: 64, b: 2, ..mla(4608) }, 2).0, [1, 1, 1], "three warpgroups");
    assert_eq!(of(&Case { bias: Some((DType::F32, 1)), ..mla(4096) }, 2).0, [1, 1, 1]);
    assert_eq!(of(&Case { h_kv: 16, ..mla(4096) }, 2).0, [1, 1, 1], "eight heads read the same keys");
    let packed = Knobs::new(&[(Knob::SchedPolicy, 2), (Knob::PackGqa, 1)]);
    let p = plan(hopper_row(), &Case { h_kv: 16, ..mla(8192) }.facts(), &packed, 90);
    assert_eq!(define(&p, 0, "FG_CLUSTER"), 1, "the kernel has no clusters of packed heads");
}

/// A part of a device: an odd multiprocessor stays idle, and one alone has no cluster.
#[test]
fn hopper_clusters_need_two_multiprocessors() {
    let case = Case { b: 1, h_q: 16, h_kv: 16, s_q: 16_384, s_kv: 16_384, right: Some(0), ..forward() };
    let of = |sms| {
        let Target::Cuda { cc, smem_optin, l2_bytes, total_memory, .. } = target(90) else { panic!("a CUDA device") };
        let part = Target::Cuda { cc, sm_count: sms, smem_optin, l2_bytes, total_memory };
        let p =
            (hopper_row().lower)(&case.facts(), &Knobs::new(&[(Knob::SchedPolicy, 2)]), &part).expect("an accepted graph lowers");
        let Step::Kernel(l) = &p.steps[0] else { panic!("a kernel") };
        (l.cluster[0], l.grid[0])
    };
    assert_eq!([1, 2, 3, 17, 132].map(of), [(1, 1), (2, 2), (2, 2), (2, 16), (2, 132)]);
}

#[test]
fn hopper_declines_what_it_lacks() {
    let served_by = |case: Case| super::super::mismatch(hopper_row(), &case.facts(), &Knobs::NONE, &target(90)).map(|d| d.code);
    for case in [
        forward(),
        Case { scale: -0.1, ..forward() },
        Case { scale: 0.0, ..forward() },
        Case { bias: Some((DType::F32, 1)), ..forward() },
    ] {
        assert_eq!(served_by(case.clone()), None, "{case:?}");
    }
    assert_eq!(served_by(Case { bias: Some((DType::F32, 1)), thd: Some(DType::I32), ..forward() }), Some(Code::Bias));
    assert_eq!(served_by(Case { paged: true, padded: true, ..forward() }), Some(Code::Feature));
    assert_eq!(
        super::super::mismatch(hopper_row(), &forward().facts(), &Knobs::NONE, &target(100)).map(|d| d.code),
        Some(Code::Arch)
    );
    let far = bent(&forward(), |f| f.ports.k.as_mut().expect("K").stride[0] = 1 << 39);
    assert_eq!(declined(hopper_row(), &far, &Knobs::NONE), Code::Geometry);
}

/// What costs instructions in every tile is a switch of the compiler, off where nothing asks for it; a scale tensor's pointer is a parameter.
#[test]
fn hopper_switches_follow_the_graph() {
    let switches = |facts: &Facts| {
        let p = plan(hopper_row(), facts, &Knobs::NONE, 90);
        ["FG_BIAS", "FG_PRESCALE", "FG_MAX_SUM", "FG_KEY_SPLIT", "FG_PACK_GQA"].map(|name| define(&p, 0, name))
    };
    assert_eq!(switches(&forward().facts()), [0; 5]);
    assert_eq!(switches(&Case { scale: 1e-31, ..forward() }.facts()), [0, 1, 0, 0, 0]);
    assert_eq!(switches(&Case { bias: Some((DType::F32, 1)), ..forward() }.facts()), [2, 1, 0, 0, 0]);
    assert_eq!(switches(&Case { bias: Some((DType::BF16, 2)), ..forward() }.facts()), [1, 1, 0, 0, 0]);
    let max = bent(&forward(), |f| f.ports.score_max = Some(port(70, "max", [2, 8, 200, 1], DType::F32)));
    assert_eq!(switches(&max), [0, 0, 1, 0, 0]);
    let scaled = |dtype| {
        bent(&forward(), |f| {
            f.scale = Scale::Dynamic(77);
            f.ports.attn_scale = Some(port(77, "attn_scale", [1, 1, 1, 1], dtype));
            f.features = f.features.union(FeatureSet::of(&[Feature::DynamicScale]));
        })
    };
    assert_eq!(switches(&scaled(DType::F32)), [0, 1, 0, 0, 0]);
    let p = plan(hopper_row(), &scaled(DType::F32), &Knobs::NONE, 90);
    assert_eq!((arg(&p, 0, "scale_at"), arg(&p, 0, "scale")), (Arg::Ptr(Base::Tensor(77)), Arg::F32(1.0)));
    assert_eq!(declined(hopper_row(), &scaled(DType::BF16), &Knobs::NONE), Code::DType);
}

/// `form_bits` by hand: packed, 64-bit offsets, running totals, log2, an order.
#[test]
fn hopper_form_bits() {
    let bits = |case: Case, sched| {
        let knobs = Knobs::new(&[(Knob::SchedPolicy, sched)]);
        arg(&plan(hopper_row(), &case.facts(), &knobs, 90), 0, "form_bits")
    };
    assert_eq!(bits(forward(), 0), Arg::I32(0));
    assert_eq!(bits(Case { thd: Some(DType::I32), ..forward() }, 0), Arg::I32(1));
    assert_eq!(bits(Case { thd: Some(DType::I64), stats_log2: true, ..forward() }, 2), Arg::I32(1 + 2 + 8 + 16));
    // Pairs: `section` counts double rounds then.
    let mla = Case { b: 1, h_q: 128, h_kv: 128, s_q: 4096, s_kv: 4096, d_qk: 192, d_v: 128, right: Some(0), ..forward() };
    assert_eq!((bits(mla.clone(), 2), bits(mla.clone(), 1)), (Arg::I32(16 + 32), Arg::I32(16)));
    let lpt_l2 = plan(hopper_row(), &mla.facts(), &Knobs::new(&[(Knob::SchedPolicy, 2)]), 90);
    assert_eq!(arg(&lpt_l2, 0, "section"), Arg::I32(14));
}
