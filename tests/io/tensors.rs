//! Safetensors: dense files for any declared strides, packed tokens, coded faults, nothing half-written.

use super::{bf16s, cudnn, f32s, frozen, uid};
use frostgraph::graph::{FrozenGraph, Graph, GraphOptions, Sdpa, Tensor};
use frostgraph::sample::{indices, input_ids, inputs, HostTensors};
use frostgraph::tensor_file::{keys, write_beside, write_file, TensorFile};
use frostgraph::{DType, Result};
use safetensors::tensor::{Dtype, TensorView};
use std::path::{Path, PathBuf};

/// A file with f32 tensors.
fn save(dir: &Path, tensors: &[(&str, &[usize], Vec<f32>)]) -> PathBuf {
    let bytes: Vec<Vec<u8>> = tensors.iter().map(|t| t.2.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes).map(|(t, b)| (t.0, TensorView::new(Dtype::F32, t.1.to_vec(), b).unwrap()));
    let path = dir.join("in.safetensors");
    std::fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
    path
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

fn graph(q: Tensor, k: Tensor, v: Tensor) -> FrozenGraph {
    let mut g = Graph::new(GraphOptions { io: DType::F32, ..GraphOptions::default() });
    let [q, k, v] = [q, k, v].map(|t| g.tensor(t));
    let out = g.sdpa(q, k, v, Sdpa::default()).unwrap();
    g.output(out.o).unwrap();
    g.freeze().unwrap()
}

fn load(path: &Path, g: &FrozenGraph) -> Result<HostTensors> {
    let file = TensorFile::open(path)?;
    file.require_all(g)?;
    let mut data = HostTensors::default();
    file.read_dense(g, &mut data)?;
    let mut data = indices(g, 0, data)?;
    file.read_packed(g, &mut data)?;
    Ok(data)
}

/// Dense file order (b, h, s, d) lands where the declared strides say: row-major, batch-sequence-head, padded rows, strided columns.
#[test]
fn dense_data_for_any_strides() {
    let dir = tempfile::tempdir().unwrap();
    let dim = [2, 3, 4, 8];
    let shape = [2usize, 3, 4, 8];
    let path = save(dir.path(), &[("Q", &shape, ramp(192)), ("K", &shape, ramp(192)), ("V", &shape, ramp(192))]);
    for stride in [[96, 32, 8, 1], [96, 8, 24, 1], [400, 10, 32, 1], [1, 2, 6, 24]] {
        let g = graph(Tensor::new("Q", dim).strides(stride), Tensor::new("K", dim), Tensor::new("V", dim));
        let q = f32s(load(&path, &g).unwrap().bytes(uid(&g, "Q")).unwrap());
        let at = |b: i64, h: i64, s: i64, d: i64| q[(b * stride[0] + h * stride[1] + s * stride[2] + d * stride[3]) as usize];
        for (b, h, s, d) in [(0, 0, 0, 0), (1, 2, 3, 7), (1, 0, 2, 5), (0, 2, 1, 0)] {
            assert_eq!(at(b, h, s, d), (((b * 3 + h) * 4 + s) * 8 + d) as f32, "{stride:?}");
        }
    }
}

#[test]
fn broadcast_inputs_must_hold_equal_values() {
    let dir = tempfile::tempdir().unwrap();
    let g = graph(
        Tensor::new("Q", [2, 1, 2, 8]),
        Tensor::new("K", [2, 1, 2, 8]).strides([0, 16, 8, 1]),
        Tensor::new("V", [2, 1, 2, 8]),
    );
    let shape = [2usize, 1, 2, 8];
    let same: Vec<f32> = [ramp(16), ramp(16)].concat();
    let good = save(dir.path(), &[("Q", &shape, ramp(32)), ("K", &shape, same), ("V", &shape, ramp(32))]);
    assert_eq!(f32s(load(&good, &g).unwrap().bytes(uid(&g, "K")).unwrap()), ramp(16));
    let bad = save(dir.path(), &[("Q", &shape, ramp(32)), ("K", &shape, ramp(32)), ("V", &shape, ramp(32))]);
    let e = load(&bad, &g).unwrap_err();
    assert_eq!(e.code.code(), "FG5003");
    assert!(e.given.contains("differ along an axis of stride 0"), "{e}");
}

/// Packed tokens `[T, H, D]` and the padded form `[B, H, S, D]` give the same buffer; outputs are written packed.
#[test]
fn packed_tokens() {
    let g = frozen("examples/sdpa_thd.json");
    let dir = tempfile::tempdir().unwrap();
    let data = inputs(&g, 9, HostTensors::default()).unwrap();
    let ids = input_ids(&g);
    let path = dir.path().join("all.safetensors");
    write_file(&path, &g, &ids, &data, &data).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tokens = *super::i32s(data.bytes(uid(&g, "offset_q")).unwrap()).last().unwrap() as usize;
    assert_eq!(file.tensor("Q").unwrap().shape(), [tokens, 4, 64]);
    assert_eq!(load(&path, &g).unwrap(), data, "what was written reads back, ragged offsets included");
}

#[test]
fn names_and_numbers_as_keys() {
    let g = graph(Tensor::new("x", [1, 1, 2, 8]), Tensor::new("x", [1, 1, 2, 8]), Tensor::new("", [1, 1, 2, 8]));
    let of_inputs = |g: &FrozenGraph| -> Vec<String> {
        let keys = keys(g);
        input_ids(g).into_iter().map(|id| keys[&id].clone()).collect()
    };
    assert_eq!(of_inputs(&g), ["uid:1", "uid:2", "uid:3"]);
    let g = cudnn("json_sdpa_bwd.json");
    assert_eq!(of_inputs(&g), ["q", "k", "v", "o", "dO", "stats"]);
}

#[test]
fn faults_name_file_tensor_and_expectation() {
    let dir = tempfile::tempdir().unwrap();
    let dim = [1, 1, 2, 8];
    let g = graph(Tensor::new("Q", dim), Tensor::new("K", dim), Tensor::new("V", dim).dtype(DType::F32));
    let (shape, wrong) = ([1usize, 1, 2, 8], [1usize, 2, 1, 8]);
    let message = |path: &Path| {
        let e = load(path, &g).unwrap_err();
        assert_eq!(e.code.code(), "FG5003", "{e}");
        assert_eq!(e.at, path.display().to_string());
        format!("{}; {}", e.given, e.expected)
    };
    let path = save(dir.path(), &[("Q", &shape, ramp(16)), ("K", &shape, ramp(16))]);
    assert_eq!(message(&path), "no tensor \"V\" (the file holds K, Q); every input of the graph; uid 3 'V' is f32 [1, 1, 2, 8]");
    let path = save(dir.path(), &[("Q", &shape, ramp(16)), ("K", &wrong, ramp(16)), ("V", &shape, ramp(16))]);
    assert_eq!(message(&path), "\"K\" of shape [1, 2, 1, 8]; shape [1, 1, 2, 8]");

    let g16 = {
        let mut g = Graph::new(GraphOptions::default());
        let [q, k, v] = ["Q", "K", "V"].map(|n| g.tensor(Tensor::new(n, dim)));
        let out = g.sdpa(q, k, v, Sdpa::default()).unwrap();
        g.output(out.o).unwrap();
        g.freeze().unwrap()
    };
    let path = save(dir.path(), &[("Q", &shape, ramp(16)), ("K", &shape, ramp(16)), ("V", &shape, ramp(16))]);
    let e = load(&path, &g16).unwrap_err();
    assert_eq!((e.given.as_str(), e.expected.as_str()), ("\"Q\" of type F32", "BF16, as the graph declares"));

    // Cut off at every length: a coded error, never a panic.
    let whole = std::fs::read(&path).unwrap();
    for end in 0..whole.len() {
        std::fs::write(&path, &whole[..end]).unwrap();
        assert_eq!(TensorFile::open(&path).unwrap_err().code.code(), "FG5003", "{end}");
    }
    assert_eq!(TensorFile::open(&dir.path().join("none")).unwrap_err().code.code(), "FG5001");
}

/// Stride gaps are not part of the file; bits survive.
#[test]
fn outputs_are_dense() {
    let g = graph(
        Tensor::new("Q", [1, 2, 2, 8]).strides([100, 8, 40, 1]),
        Tensor::new("K", [1, 2, 2, 8]),
        Tensor::new("V", [1, 2, 2, 8]),
    );
    let dir = tempfile::tempdir().unwrap();
    let data = inputs(&g, 1, HostTensors::default()).unwrap();
    let path = dir.path().join("x.safetensors");
    write_file(&path, &g, &input_ids(&g), &data, &data).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let q = f32s(safetensors::SafeTensors::deserialize(&bytes).unwrap().tensor("Q").unwrap().data());
    let held = f32s(data.bytes(1).unwrap());
    assert_eq!((q.len(), q[16], q[8]), (32, held[8], held[40]), "file (h, s, d) against buffer strides (8, 40, 1)");
    assert!(bf16s(&[0x80, 0x3F]) == [1.0]);
}

#[test]
fn nothing_half_written() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    for path in [folder.clone(), dir.path().join("none/x"), PathBuf::from("/")] {
        assert_eq!(write_beside(&path, b"data").unwrap_err().code.code(), "FG5002", "{}", path.display());
    }
    let target = dir.path().join("x");
    std::fs::write(&target, "old").unwrap();
    write_beside(&target, b"new").unwrap();
    assert_eq!(std::fs::read(&target).unwrap(), b"new");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}
