//! Buffers of one case on the device, with guard bands around everything that is written.

use frostgraph::engines::Uid;
use frostgraph::runtime::{CudaDevice, CudaStream, DeviceBuffer, DeviceRange, Program};
use frostgraph::{Error, ErrorCode, Result};
use std::collections::BTreeMap;

/// Guard band on both sides of an output.
const GUARD: usize = 1024;
/// What outputs hold before a run.
pub const POISON: u8 = 0xa5;

/// A device with a stream.
pub struct Gpu {
    pub device: CudaDevice,
    pub stream: CudaStream,
}

impl Gpu {
    pub fn new(device: CudaDevice) -> Result<Gpu> {
        Ok(Gpu { stream: CudaStream::new(&device)?, device })
    }
}

/// A result that is not the oracle's.
pub fn fault(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::CheckFailed, what.into(), "what the oracle says")
}

/// A compiled case with its buffers.
pub struct Ready<'a> {
    gpu: &'a Gpu,
    program: Program,
    inputs: BTreeMap<Uid, DeviceBuffer>,
    outputs: BTreeMap<Uid, (DeviceBuffer, usize)>,
    workspace: DeviceBuffer,
    /// What inputs lead to by address.
    _kept: Vec<DeviceBuffer>,
}

impl<'a> Ready<'a> {
    /// Inputs as they are given, outputs of these lengths in bytes.
    pub fn new(
        gpu: &'a Gpu,
        program: Program,
        data: &BTreeMap<Uid, Vec<u8>>,
        outputs: impl IntoIterator<Item = (Uid, usize)>,
    ) -> Result<Ready<'a>> {
        let mut inputs = BTreeMap::new();
        for (&uid, bytes) in data {
            inputs.insert(uid, DeviceBuffer::from_slice(&gpu.device, bytes)?);
        }
        let mut made = BTreeMap::new();
        for (uid, len) in outputs {
            made.insert(uid, (DeviceBuffer::new(&gpu.device, (len + 2 * GUARD) as u64)?, len));
        }
        let workspace = DeviceBuffer::new(&gpu.device, program.workspace_bytes() + 256)?;
        Ok(Ready { gpu, program, inputs, outputs: made, workspace, _kept: Vec::new() })
    }

    /// Keeps buffers that inputs lead to by address.
    #[allow(dead_code, reason = "not every operation has addresses")]
    pub fn keeping(mut self, buffers: Vec<DeviceBuffer>) -> Ready<'a> {
        self._kept = buffers;
        self
    }

    /// Puts one run on the stream.
    pub fn queue(&self) -> Result<()> {
        let operand = |uid: Uid| {
            let output = self
                .outputs
                .get(&uid)
                .map(|(b, len)| DeviceRange { address: b.range().address + GUARD as u64, bytes: *len as u64 });
            output.or_else(|| self.inputs.get(&uid).map(|b| b.range()))
        };
        self.program.execute(self.gpu.stream.raw(), &operand, self.workspace.range())
    }

    /// Fills outputs with their poison and the workspace with this byte.
    pub fn poison(&self, workspace: u8) -> Result<()> {
        for (buffer, _) in self.outputs.values() {
            buffer.fill(&self.gpu.stream, 0, buffer.bytes(), POISON)?;
        }
        self.workspace.fill(&self.gpu.stream, 0, self.workspace.bytes(), workspace)
    }

    /// Writes an input again, where it is.
    #[allow(dead_code, reason = "not every suite changes inputs")]
    pub fn rewrite(&self, uid: Uid, bytes: &[u8]) -> Result<()> {
        self.gpu.stream.synchronize()?;
        self.inputs[&uid].write(0, bytes)
    }

    /// Outputs after the queued work; guard bands checked.
    pub fn results(&self) -> Result<BTreeMap<Uid, Vec<u8>>> {
        self.gpu.stream.synchronize()?;
        let mut out = BTreeMap::new();
        for (&uid, (buffer, len)) in &self.outputs {
            let all = buffer.to_vec()?;
            if all[..GUARD].iter().chain(&all[GUARD + len..]).any(|&b| b != POISON) {
                return Err(fault(format!("bytes around output {uid} changed")));
            }
            out.insert(uid, all[GUARD..GUARD + len].to_vec());
        }
        Ok(out)
    }
}
