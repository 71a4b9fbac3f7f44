//! Writing results.

use super::layout::{blocks, file_shape};
use super::{file_dtype, keys};
use crate::files::write_beside;
use crate::graph::{FrozenGraph, TensorId};
use crate::sample::{label, HostTensors};
use crate::{Error, ErrorCode, Result};
use safetensors::tensor::TensorView;
use std::collections::BTreeMap;
use std::path::Path;

/// Writes tensors of the graph to a safetensors file. `data` holds them, `inputs` the ragged offsets.
///
/// Rows of a packed tensor that its offsets leave room for but no sequence has are written as they lie in the buffer.
///
/// Errors: FG5002 when the file cannot be written; FG5003 for an element type that the format lacks.
pub fn write_file(path: &Path, graph: &FrozenGraph, ids: &[TensorId], data: &HostTensors, inputs: &HostTensors) -> Result<()> {
    let (view, keys) = (inputs.view(), keys(graph));
    let mut dense: BTreeMap<String, (safetensors::Dtype, Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for &id in ids {
        let t = graph.tensor(id);
        let Some(source) = data.bytes(t.uid.unwrap_or_default()) else { continue };
        let fault = |given: String, expected: &str| {
            Error::new(ErrorCode::TensorFile, format!("{}: {given}", label(graph, id)), expected).at(path.display().to_string())
        };
        let dtype = t.dtype.and_then(file_dtype).ok_or_else(|| {
            fault(format!("type {}", t.dtype.map_or("unset", |d| d.short())), "a type of the safetensors format")
        })?;
        let width = dtype.bitsize() / 8;
        let shape = file_shape(graph, id, &view)?;
        let mut bytes = vec![0u8; shape.iter().product::<usize>() * width];
        for block in blocks(graph, id, &shape, &view)?.unwrap_or_default() {
            block.each(|from, to, run| {
                bytes[to * width..(to + run) * width].copy_from_slice(&source[from * width..(from + run) * width]);
            });
        }
        dense.insert(keys[&id].clone(), (dtype, shape, bytes));
    }
    let mut views = Vec::with_capacity(dense.len());
    for (key, (dtype, shape, bytes)) in &dense {
        let view = TensorView::new(*dtype, shape.clone(), bytes)
            .map_err(|e| Error::new(ErrorCode::TensorFile, format!("\"{key}\": {e}"), "a tensor of the format"))?;
        views.push((key.as_str(), view));
    }
    let bytes = safetensors::serialize(views, None)
        .map_err(|e| Error::new(ErrorCode::TensorFile, e.to_string(), "tensors that the format can hold"))?;
    write_beside(path, &bytes)
}
