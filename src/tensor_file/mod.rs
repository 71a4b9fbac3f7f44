//! Tensors of a graph in safetensors files.
//!
//! A tensor's key is its name, or `uid:N` where it has no name or another tensor of the graph has the same one. A file holds dense
//! row-major data of the declared extents whatever strides the graph declares; packed (ragged) tensors are `[tokens, H, D]`, or the
//! declared extents with each sequence at the front of its rows. Bytes are little-endian, as the format demands.

mod layout;
mod read;
mod write;

pub use crate::files::{check_writable, read_text, read_text_file, write_beside};
pub use read::TensorFile;
pub use write::write_file;

use crate::graph::{FrozenGraph, Tensor, TensorId};
use frostgraph_engines::DType;
use safetensors::Dtype;
use std::collections::BTreeMap;

/// Key of every tensor of a graph in a file.
pub fn keys(graph: &FrozenGraph) -> BTreeMap<TensorId, String> {
    let mut named: BTreeMap<&str, usize> = BTreeMap::new();
    graph.tensors().for_each(|(_, t)| *named.entry(&t.name).or_default() += 1);
    let key = |t: &Tensor| {
        // A name of the form `uid:N` could be taken for another tensor's number.
        if !t.name.is_empty() && named[t.name.as_str()] == 1 && !t.name.starts_with("uid:") {
            t.name.clone()
        } else {
            format!("uid:{}", t.uid.unwrap_or_default())
        }
    };
    graph.tensors().map(|(id, t)| (id, key(t))).collect()
}

/// The file's element type; `None` for types that the format lacks.
fn file_dtype(d: DType) -> Option<Dtype> {
    match d {
        DType::F32 => Some(Dtype::F32),
        DType::F64 => Some(Dtype::F64),
        DType::F16 => Some(Dtype::F16),
        DType::BF16 => Some(Dtype::BF16),
        DType::I8 => Some(Dtype::I8),
        DType::U8 => Some(Dtype::U8),
        DType::I32 => Some(Dtype::I32),
        DType::I64 => Some(Dtype::I64),
        DType::ByteBool => Some(Dtype::BOOL),
        DType::F8E4M3 => Some(Dtype::F8_E4M3),
        DType::F8E5M2 => Some(Dtype::F8_E5M2),
        DType::F8E8M0 => Some(Dtype::F8_E8M0),
        DType::I8x4
        | DType::U8x4
        | DType::I8x32
        | DType::Bool
        | DType::FastF8
        | DType::F8E5M3
        | DType::F4E2M1
        | DType::I4
        | DType::C64
        | DType::C128 => None,
    }
}
