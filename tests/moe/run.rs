//! Runs on the CPU: every form against the oracle, two products in a row, what the seed fills, faulty offsets.

use crate::cpu_run::{execute, matches_the_oracle};
use crate::support::{build, served, Case};
use frostgraph::graph::{Graph, GraphOptions, MoeGroupedMatmul, MoeMode, Tensor};
use frostgraph::sample::{check, expected, inputs, HostTensors};
use frostgraph::{DType, ErrorCode};

#[test]
fn every_form_matches_the_oracle() {
    for (seed, (name, case)) in served().into_iter().enumerate() {
        matches_the_oracle(name, &build(&case).unwrap().0, seed as u64);
    }
}

/// FC1 by gather into a virtual tensor, FC2 by scatter out of it: two nodes of one graph.
#[test]
fn two_products_in_a_row() {
    let (s, top_k, h, inter, e) = (24, 2, 32, 48, 4);
    let mut g = Graph::new(GraphOptions { intermediate: None, ..GraphOptions::default() });
    let x = g.tensor(Tensor::new("x", [1, s, h]));
    let w1 = g.tensor(Tensor::new("w1", [e, h, inter]).strides([h * inter, 1, h]));
    let w2 = g.tensor(Tensor::new("w2", [e, inter, h]).strides([h * inter, 1, inter]));
    let offsets = g.tensor(Tensor::new("offsets", [e + 1, 1, 1]).dtype(DType::I32));
    let [index, ks] = ["index", "ks"].map(|n| g.tensor(Tensor::new(n, [1, s * top_k, 1]).dtype(DType::I32)));
    let gather = MoeGroupedMatmul { mode: MoeMode::Gather, token_index: Some(index), ..MoeGroupedMatmul::default() };
    let fc1 = g.moe_grouped_matmul(x, w1, offsets, gather).unwrap();
    let scatter = MoeGroupedMatmul {
        mode: MoeMode::Scatter,
        token_index: Some(index),
        token_ks: Some(ks),
        top_k,
        ..MoeGroupedMatmul::default()
    };
    let fc2 = g.moe_grouped_matmul(fc1.output, w2, offsets, scatter).unwrap();
    g.output(fc2.output).unwrap();
    let frozen = g.freeze().unwrap();
    // The same index serves both: every destination once.
    let mut data = inputs(&frozen, 7, HostTensors::default()).unwrap();
    let list = |f: &dyn Fn(i64) -> i64| -> Vec<u8> {
        (0..s * top_k).flat_map(|r| (f((r * 7) % (s * top_k)) as i32).to_ne_bytes()).collect()
    };
    for (id, bytes) in [(index, list(&|p| p / top_k)), (ks, list(&|p| p % top_k))] {
        data.0.get_mut(&frozen.tensor(id).uid.unwrap()).unwrap().bytes_mut().copy_from_slice(&bytes);
    }
    let (frozen, results) = execute(&g, &data).unwrap();
    let compared = check(&expected(&frozen, &data).unwrap(), &data, &results).unwrap();
    assert!(compared.len() == 1 && compared[0].passed() && compared[0].error > 0.0, "{compared:?}");
}

#[test]
fn inputs_are_a_function_of_the_seed_and_make_sense() {
    let (g, h) = build(&Case { mode: MoeMode::Scatter, top_k: 2, ..Case::default() }).unwrap();
    let frozen = g.freeze().unwrap();
    let make = |seed| inputs(&frozen, seed, HostTensors::default()).unwrap();
    assert_eq!(make(3), make(3));
    let ints = |data: &HostTensors, id| -> Vec<i32> {
        let bytes = data.bytes(frozen.tensor(id).uid.unwrap()).unwrap();
        bytes.chunks_exact(4).map(|b| i32::from_ne_bytes(b.try_into().unwrap())).collect()
    };
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..8 {
        let data = make(seed);
        let offsets = ints(&data, h.offsets);
        assert!(offsets[0] == 0 && offsets[3] == 96 && offsets.windows(2).all(|w| w[0] <= w[1]), "{offsets:?}");
        let mut index = ints(&data, h.token_index.unwrap());
        index.sort_unstable();
        assert!(index.iter().enumerate().all(|(i, x)| *x == i as i32 / 2), "every token twice");
        seen.insert(offsets);
    }
    assert!(seen.len() > 4);
}

/// Faulty offsets without a status word are an error that names the group.
#[test]
fn faulty_offsets_end_in_a_coded_error() {
    let (g, h) = build(&Case::default()).unwrap();
    let frozen = g.freeze().unwrap();
    let mut data = inputs(&frozen, 1, HostTensors::default()).unwrap();
    let offsets = data.0.get_mut(&frozen.tensor(h.offsets).uid.unwrap()).unwrap();
    offsets.bytes_mut().copy_from_slice(&[0i32, 50, 97, 96].map(i32::to_ne_bytes).concat());
    let e = execute(&g, &data).expect_err("faulty offsets");
    assert_eq!(e.code, ErrorCode::BadData);
    assert!(e.to_string().contains("the boundaries of group 1 lie beyond the routed rows"), "{e}");
}
