//! Inputs from a seed make sense together, and the comparison with the oracle sees faults.

use super::{bf16s, cudnn, f32s, frozen, i32s, uid};
use frostgraph::engines::sdpa::access::read_ints;
use frostgraph::graph::{Graph, GraphOptions, Sdpa, Tensor};
use frostgraph::sample::{check, expected, inputs, outputs, HostTensor, HostTensors};
use frostgraph::DType;

#[test]
fn lengths_offsets_and_totals_fit() {
    // 128 rows a sequence, 2 sequences, at most 200 tokens.
    let g = cudnn("json_sdpa_fwd_thd.json");
    for seed in 0..4 {
        let data = inputs(&g, seed, HostTensors::default()).unwrap();
        for name in ["seq_q", "seq_kv"] {
            let lens = i32s(data.bytes(uid(&g, name)).unwrap());
            assert!(lens.iter().all(|l| (0..=128).contains(l)) && lens.iter().sum::<i32>() <= 200, "{name} {lens:?}");
            assert!(lens[0] > 0);
        }
        let offsets = i32s(data.bytes(uid(&g, "ragged_off")).unwrap());
        assert!(offsets[0] == 0 && offsets.windows(2).all(|w| w[0] <= w[1]), "{offsets:?}");
        // The file gives O the same offsets without the multiplier of 64, so O decides the room: 256 elements a token.
        let longest = i32s(data.bytes(uid(&g, "seq_q")).unwrap());
        for (w, len) in offsets.windows(2).zip(longest) {
            assert!(w[1] - w[0] >= len * 256, "{offsets:?}");
        }
        let scale = f32s(data.bytes(uid(&g, "scale")).unwrap());
        assert_eq!(scale, [0.125]);
    }
}

#[test]
fn packed_offsets_are_the_running_sum() {
    let g = frozen("examples/sdpa_thd.json");
    let data = inputs(&g, 3, HostTensors::default()).unwrap();
    let lens = i32s(data.bytes(uid(&g, "seq_len_q")).unwrap());
    let sums: Vec<i32> = std::iter::once(0)
        .chain(lens.iter().scan(0, |s, l| {
            *s += l;
            Some(*s)
        }))
        .collect();
    assert_eq!(i32s(data.bytes(uid(&g, "offset_q")).unwrap()), sums);
    assert_eq!(lens[0], 160, "one sequence has the declared length");
}

#[test]
fn a_seed_decides_and_a_given_tensor_changes_no_other() {
    let g = cudnn("json_sdpa_fwd.json");
    let a = inputs(&g, 1, HostTensors::default()).unwrap();
    assert_eq!(a, inputs(&g, 1, HostTensors::default()).unwrap());
    assert_ne!(a, inputs(&g, 2, HostTensors::default()).unwrap());
    let mut given = HostTensors::default();
    let zero = HostTensor::zeroed(a.bytes(1).unwrap().len() as u64).unwrap();
    given.0.insert(1, zero.clone());
    let b = inputs(&g, 1, given).unwrap();
    assert_eq!(b.0[&1], zero);
    assert_eq!((&b.0[&2], &b.0[&3]), (&a.0[&2], &a.0[&3]));
    // Normal: mean near 0, variance near 1 over 65,536 values.
    let v = bf16s(a.bytes(2).unwrap());
    let mean = v.iter().sum::<f32>() / v.len() as f32;
    let var = v.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / v.len() as f32;
    assert!(mean.abs() < 0.02 && (var - 1.0).abs() < 0.03, "{mean} {var}");
}

/// With a causal mask the first query keeps key 0 alone: O is V's first row and Stats is the scaled score.
#[test]
fn backward_gets_o_and_stats_of_its_own_forward() {
    let g = cudnn("json_sdpa_bwd.json");
    let data = inputs(&g, 5, HostTensors::default()).unwrap();
    let row = |name: &str, b: usize, h: usize| {
        let x = bf16s(data.bytes(uid(&g, name)).unwrap());
        x[b * 32768 + h * 64..b * 32768 + h * 64 + 64].to_vec()
    };
    let stats = f32s(data.bytes(uid(&g, "stats")).unwrap());
    for (b, h) in [(0, 0), (1, 3)] {
        assert_eq!(row("o", b, h), row("v", b, h));
        let score: f64 =
            row("q", b, h).iter().zip(row("k", b, h)).map(|(x, y)| f64::from(*x) * f64::from(y)).sum::<f64>() * 0.125;
        assert!((f64::from(stats[b * 512 + h * 128]) - score).abs() < 1e-6 * score.abs().max(1.0));
    }
}

/// The comparison must fail on what is wrong: one changed element, a NaN, an element that was never written.
#[test]
fn the_comparison_sees_faults() {
    let g = cudnn("json_sdpa_fwd.json");
    let data = inputs(&g, 0, HostTensors::default()).unwrap();
    let want = expected(&g, &data).unwrap();
    let mut got = outputs(&g, &data).unwrap();
    let untouched = check(&want, &data, &got).unwrap();
    assert!(untouched.iter().all(|c| c.error == f64::INFINITY && !c.passed()), "0xFF is NaN: {untouched:?}");
    assert_eq!(untouched.iter().map(|c| (c.uid, c.tolerance)).collect::<Vec<_>>(), [(4, 1e-2), (5, 1e-5)]);

    // The first row of a causal O is V's first row; taking V for O makes a few rows right and the rest wrong.
    let v = data.bytes(3).unwrap().to_vec();
    got.0.get_mut(&4).unwrap().bytes_mut().copy_from_slice(&v);
    let c = &check(&want, &data, &got).unwrap()[0];
    assert!(c.error.is_finite() && !c.passed(), "{c:?}");
    got.0.get_mut(&4).unwrap().bytes_mut()[65534..65536].fill(0xFF);
    assert_eq!(check(&want, &data, &got).unwrap()[0].error, f64::INFINITY);
}

/// A hostile graph asks for more memory than there is: an error, not an abort.
#[test]
fn too_large_for_this_machine() {
    let mut g = Graph::new(GraphOptions { io: DType::F32, ..GraphOptions::default() });
    let [q, k, v] = ["Q", "K", "V"].map(|n| g.tensor(Tensor::new(n, [1 << 20, 1 << 10, 1 << 20, 64])));
    let out = g.sdpa(q, k, v, Sdpa::default()).unwrap();
    g.output(out.o).unwrap();
    let e = inputs(&g.freeze().unwrap(), 0, HostTensors::default()).unwrap_err();
    assert_eq!((e.code.code(), e.at.as_str()), ("FG4002", "uid 1 'Q'"), "{e}");
}

/// Page tables stay inside their pools and use each page once while the pool lasts.
#[test]
fn page_tables() {
    let mut g = Graph::new(GraphOptions::default());
    let q = g.tensor(Tensor::new("Q", [2, 4, 1, 64]));
    let [k, v] = ["K", "V"].map(|n| g.tensor(Tensor::new(n, [5, 2, 16, 64])));
    let [tk, tv] = ["TK", "TV"].map(|n| g.tensor(Tensor::new(n, [2, 1, 3, 1]).dtype(DType::I32)));
    let [lq, lk] = ["LQ", "LK"].map(|n| g.tensor(Tensor::new(n, [2, 1, 1, 1]).dtype(DType::I32)));
    let sdpa = Sdpa {
        page_table_k: Some(tk),
        page_table_v: Some(tv),
        seq_len_q: Some(lq),
        seq_len_kv: Some(lk),
        mask: frostgraph::graph::Mask::none().padded(),
        ..Sdpa::default()
    };
    let out = g.sdpa(q, k, v, sdpa).unwrap();
    g.output(out.o).unwrap();
    let g = g.freeze().unwrap();
    let data = inputs(&g, 0, HostTensors::default()).unwrap();
    assert_eq!(i32s(data.bytes(uid(&g, "TK")).unwrap()), [0, 1, 2, 3, 4, 0]);
    assert_eq!(expected(&g, &data).unwrap().len(), 1, "the oracle takes them");
    let t = g.tensors().find(|(_, t)| t.name == "LK").unwrap().1;
    let port = frostgraph::engines::Port {
        uid: 1,
        name: String::new(),
        dim: [2, 1, 1, 1],
        stride: [1, 1, 1, 1],
        dtype: DType::I32,
        alignment: 16,
        is_virtual: false,
        ragged: None,
    };
    let lens = read_ints(&port, 0, 2, data.bytes(t.uid.unwrap()).unwrap()).unwrap();
    assert!(lens.iter().all(|l| (1..=48).contains(l)), "{lens:?}");
}
