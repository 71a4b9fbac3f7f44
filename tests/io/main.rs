//! Seeded data and safetensors files.

mod corpus;
mod sampling;
mod tensors;

use frostgraph::graph::{FrozenGraph, Graph};

/// One of cudnn-frontend's own files, frozen.
fn cudnn(name: &str) -> FrozenGraph {
    frozen(&format!("tests/graphs/cudnn/{name}"))
}

/// A graph file of the repository, frozen.
fn frozen(path: &str) -> FrozenGraph {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    Graph::from_json(&std::fs::read_to_string(path).unwrap()).unwrap().freeze().unwrap()
}

/// Uid of the tensor with this name.
fn uid(g: &FrozenGraph, name: &str) -> i64 {
    g.tensors().find(|(_, t)| t.name == name).and_then(|(_, t)| t.uid).unwrap_or_else(|| panic!("no tensor {name}"))
}

fn i32s(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|b| i32::from_ne_bytes(b.try_into().unwrap())).collect()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
}

fn bf16s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(2).map(|b| half::bf16::from_ne_bytes(b.try_into().unwrap()).to_f32()).collect()
}
