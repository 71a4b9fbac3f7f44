//! A graph's buffers on this machine's CPU or CUDA device, made once for one plan or for a list of them.

use frostgraph::exec::{Bindings, HostWorkspace, Stream, Workspace};
use frostgraph::plan::Built;
use frostgraph::sample::HostTensors;
use frostgraph::{Error, ErrorCode, Result};

/// Inputs, results and workspace where the graph's device reads them.
pub enum Buffers<'a> {
    /// Host slices.
    Host { inputs: &'a HostTensors, results: HostTensors, workspace: HostWorkspace },
    /// Device memory.
    #[cfg(feature = "cuda")]
    Cuda(Box<cuda::CudaBuffers<'a>>),
}

impl<'a> Buffers<'a> {
    /// Takes inputs and result buffers of the right sizes; for a CUDA device both are copied to it.
    pub fn new(built: &Built, inputs: &'a HostTensors, results: HostTensors, workspace_bytes: u64) -> Result<Buffers<'a>> {
        #[cfg(feature = "cuda")]
        if let (frostgraph::engines::Target::Cuda { .. }, Some(ordinal)) = (&built.device().target, built.device().ordinal) {
            let buffers = cuda::CudaBuffers::new(ordinal, built.graph(), inputs, results, workspace_bytes)?;
            return Ok(Buffers::Cuda(Box::new(buffers)));
        }
        let _ = built;
        let workspace = HostWorkspace::new(workspace_bytes).ok_or_else(|| {
            let given = format!("a workspace of {workspace_bytes} bytes");
            Error::new(ErrorCode::Workspace, given, "a size that this machine can address")
        })?;
        Ok(Buffers::Host { inputs, results, workspace })
    }

    /// Hands everything that an execution takes to `work`.
    pub fn with<T>(&mut self, work: impl FnOnce(&Stream, &mut Bindings<'_>, &mut Workspace<'_>) -> T) -> T {
        match self {
            Buffers::Host { inputs, results, workspace } => {
                let mut bindings = Bindings::new();
                for (uid, t) in &inputs.0 {
                    bindings.read(*uid, t.bytes());
                }
                for (uid, t) in &mut results.0 {
                    bindings.write(*uid, t.bytes_mut());
                }
                work(&Stream::cpu(), &mut bindings, &mut workspace.workspace())
            }
            #[cfg(feature = "cuda")]
            Buffers::Cuda(c) => c.with(work),
        }
    }

    /// The results of the last execution, in host memory.
    pub fn finish(self) -> Result<HostTensors> {
        match self {
            Buffers::Host { results, .. } => Ok(results),
            #[cfg(feature = "cuda")]
            Buffers::Cuda(c) => c.finish(),
        }
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use frostgraph::engines::Uid;
    use frostgraph::exec::{Bindings, Stream, Workspace};
    use frostgraph::graph::FrozenGraph;
    use frostgraph::runtime::{CudaDevice, CudaStream, DeviceBuffer};
    use frostgraph::sample::HostTensors;
    use frostgraph::Result;
    use std::collections::{BTreeMap, BTreeSet};

    /// Buffers and a stream of one device.
    pub struct CudaBuffers<'a> {
        inputs: &'a HostTensors,
        results: HostTensors,
        /// Scalars that are handed over by value stay in host memory.
        by_value: BTreeSet<Uid>,
        buffers: BTreeMap<Uid, DeviceBuffer>,
        workspace: DeviceBuffer,
        stream: CudaStream,
    }

    impl<'a> CudaBuffers<'a> {
        pub fn new(
            ordinal: u32,
            graph: &FrozenGraph,
            inputs: &'a HostTensors,
            results: HostTensors,
            workspace_bytes: u64,
        ) -> Result<CudaBuffers<'a>> {
            let device = CudaDevice::open(ordinal)?;
            let by_value = graph.tensors().filter(|(_, t)| t.pass_by_value).filter_map(|(_, t)| t.uid).collect();
            let mut buffers = BTreeMap::new();
            for (uid, t) in inputs.0.iter().chain(&results.0) {
                buffers.insert(*uid, DeviceBuffer::from_slice(&device, t.bytes())?);
            }
            let workspace = DeviceBuffer::new(&device, workspace_bytes)?;
            let stream = CudaStream::new(&device)?;
            Ok(CudaBuffers { inputs, results, by_value, buffers, workspace, stream })
        }

        pub fn with<T>(&mut self, work: impl FnOnce(&Stream, &mut Bindings<'_>, &mut Workspace<'_>) -> T) -> T {
            let mut bindings = Bindings::new();
            for (uid, buffer) in &self.buffers {
                match self.inputs.bytes(*uid).filter(|_| self.by_value.contains(uid)) {
                    Some(value) => bindings.read(*uid, value),
                    None => bindings.device(*uid, buffer.range().address, buffer.bytes()),
                };
            }
            let mut workspace = Workspace::device(self.workspace.range().address, self.workspace.bytes());
            work(&Stream::cuda(self.stream.raw()), &mut bindings, &mut workspace)
        }

        pub fn finish(mut self) -> Result<HostTensors> {
            self.stream.synchronize()?;
            for (uid, t) in &mut self.results.0 {
                if let Some(buffer) = self.buffers.get(uid) {
                    buffer.read(0, t.bytes_mut())?;
                }
            }
            Ok(self.results)
        }
    }
}
