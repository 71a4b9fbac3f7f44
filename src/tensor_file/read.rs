//! Reading inputs.

use super::layout::blocks;
use super::{file_dtype, keys};
use crate::graph::{FrozenGraph, TensorId};
use crate::sample::{available, input_ids, label, tensor_bytes, HostTensor, HostTensors};
use crate::{Error, ErrorCode, Result};
use safetensors::tensor::Metadata;
use safetensors::SafeTensors;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

/// What a header may have.
const LONGEST_HEADER: u64 = 100_000_000;

/// As many bytes as the header announces, and one more where there is one. The parser then says what is wrong with them: a file that
/// announces nothing sensible is not read to its end, which it may not have.
fn whole(mut file: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.by_ref().take(8).read_to_end(&mut bytes)?;
    let header = bytes.first_chunk::<8>().map_or(0, |length| u64::from_le_bytes(*length));
    if header > LONGEST_HEADER {
        return Ok(bytes);
    }
    file.by_ref().take(header).read_to_end(&mut bytes)?;
    let announced = serde_json::from_slice::<Metadata>(&bytes[bytes.len().min(8)..]).map_or(0, |m| m.data_len() as u64);
    if announced > available() {
        return Err(std::io::Error::other(format!("{announced} bytes of tensors, where {} bytes are free", available())));
    }
    bytes.try_reserve_exact(announced as usize + 1)?;
    file.take(announced + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A safetensors file in memory.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl TensorFile {
    /// Reads a file. FG5001 when it cannot be read, FG5003 when it is no safetensors file.
    pub fn open(path: &Path) -> Result<TensorFile> {
        let bytes = std::fs::File::open(path).and_then(whole).map_err(|e| {
            Error::new(ErrorCode::FileRead, e.to_string(), "a readable safetensors file that fits into memory")
                .at(path.display().to_string())
        })?;
        let file = TensorFile { path: path.to_path_buf(), bytes };
        file.parse()?;
        Ok(file)
    }

    fn parse(&self) -> Result<SafeTensors<'_>> {
        SafeTensors::deserialize(&self.bytes).map_err(|e| self.fault(format!("{e}"), "a complete safetensors file".into()))
    }

    fn fault(&self, given: String, expected: String) -> Error {
        Error::new(ErrorCode::TensorFile, given, expected).at(self.path.display().to_string())
    }

    /// Keys of the file that name no input of the graph, in order.
    pub fn foreign(&self, graph: &FrozenGraph) -> Result<Vec<String>> {
        let keys = keys(graph);
        let known: BTreeSet<&str> = input_ids(graph).iter().map(|id| keys[id].as_str()).collect();
        let names: BTreeSet<String> = self.parse()?.names().into_iter().map(str::to_string).collect();
        Ok(names.into_iter().filter(|n| !known.contains(n.as_str())).collect())
    }

    /// Inputs of the graph that the file lacks. FG5003 naming the first one.
    pub fn require_all(&self, graph: &FrozenGraph) -> Result<()> {
        let file = self.parse()?;
        let names: BTreeSet<&str> = file.names().into_iter().collect();
        let keys = keys(graph);
        match input_ids(graph).into_iter().find(|id| !names.contains(keys[id].as_str())) {
            None => Ok(()),
            Some(id) => {
                let held: Vec<&str> = names.into_iter().collect();
                let given = format!("no tensor \"{}\" (the file holds {})", keys[&id], held.join(", "));
                let t = graph.tensor(id);
                let dtype = t.dtype.map_or("", |d| d.short());
                Err(self.fault(given, format!("every input of the graph; {} is {dtype} {:?}", label(graph, id), t.dim)))
            }
        }
    }

    /// Adds the file's dense inputs to `into`.
    ///
    /// Errors: FG5003 for another element type or shape, or for values that differ where the graph declares a stride of 0.
    pub fn read_dense(&self, graph: &FrozenGraph, into: &mut HostTensors) -> Result<()> {
        self.read(graph, into, false)
    }

    /// Adds the file's packed inputs to `into`, which must hold their offsets. Errors as for [`TensorFile::read_dense`].
    pub fn read_packed(&self, graph: &FrozenGraph, into: &mut HostTensors) -> Result<()> {
        self.read(graph, into, true)
    }

    fn read(&self, graph: &FrozenGraph, into: &mut HostTensors, ragged: bool) -> Result<()> {
        let file = self.parse()?;
        let names: BTreeSet<&str> = file.names().into_iter().collect();
        let keys = keys(graph);
        for id in input_ids(graph) {
            let key = keys[&id].as_str();
            if graph.tensor(id).ragged.is_some() == ragged && names.contains(key) {
                let t = self.one(graph, id, key, &file, into)?;
                into.0.insert(graph.tensor(id).uid.unwrap_or_default(), t);
            }
        }
        Ok(())
    }

    fn one(
        &self,
        graph: &FrozenGraph,
        id: TensorId,
        key: &str,
        file: &SafeTensors<'_>,
        store: &HostTensors,
    ) -> Result<HostTensor> {
        let t = graph.tensor(id);
        let view = file.tensor(key).map_err(|e| self.fault(format!("{key}: {e}"), "a tensor".into()))?;
        let want = t.dtype.and_then(file_dtype);
        if want != Some(view.dtype()) {
            let expected = match (want, t.dtype) {
                (Some(w), _) => format!("{w}, as the graph declares"),
                (None, d) => format!("a graph that declares a type of this format, not {}", d.map_or("none", |d| d.short())),
            };
            return Err(self.fault(format!("\"{key}\" of type {}", view.dtype()), expected));
        }
        let inputs = store.view();
        let Some(blocks) = blocks(graph, id, view.shape(), &inputs)? else {
            let packed = if t.ragged.is_some() { ", or packed tokens [T, H, D]" } else { "" };
            return Err(self.fault(format!("\"{key}\" of shape {:?}", view.shape()), format!("shape {:?}{packed}", t.dim)));
        };
        let mut out = HostTensor::zeroed(tensor_bytes(graph, id, &inputs)?)?;
        let width = view.dtype().bitsize() / 8;
        let (source, target) = (view.data(), out.bytes_mut());
        let mut differ = false;
        for block in &blocks {
            let broadcast: Vec<usize> = (0..block.dim.len()).filter(|&a| block.stride[a] == 0 && block.dim[a] > 1).collect();
            block.each(|to, from, run| {
                let data = &source[from * width..(from + run) * width];
                let place = &mut target[to * width..(to + run) * width];
                // Past the first step along a broadcast axis the element is already there.
                let again = broadcast.iter().any(|&a| (from - block.from) / block.file[a] % block.dim[a] > 0);
                if again {
                    differ |= place != data;
                } else {
                    place.copy_from_slice(data);
                }
            });
        }
        if differ {
            let given = format!("\"{key}\" whose values differ along an axis of stride 0");
            return Err(self.fault(given, "equal values along a broadcast axis".into()));
        }
        Ok(out)
    }
}
