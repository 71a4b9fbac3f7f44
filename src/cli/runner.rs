//! Executes a compiled plan on this machine's CPU or CUDA device: buffers are made once, then every run is `execute` alone.

use frostgraph::exec::{Bindings, Executable, HostWorkspace, Stream};
use frostgraph::graph::FrozenGraph;
use frostgraph::sample::HostTensors;
use frostgraph::{Error, ErrorCode, Result};
use std::time::{Duration, Instant};

/// A plan with its buffers.
pub enum Runner<'a> {
    /// Host slices.
    Host { executable: &'a Executable, inputs: &'a HostTensors, results: HostTensors, workspace: HostWorkspace },
    /// Device memory.
    #[cfg(feature = "cuda")]
    Cuda(Box<cuda::CudaRunner<'a>>),
}

impl<'a> Runner<'a> {
    /// Takes inputs and result buffers of the right sizes; for CUDA plans both are copied to the device.
    pub fn new(
        executable: &'a Executable,
        graph: &'a FrozenGraph,
        inputs: &'a HostTensors,
        results: HostTensors,
    ) -> Result<Runner<'a>> {
        #[cfg(feature = "cuda")]
        if let Some(program) = executable.program() {
            let device = program.device().clone();
            return Ok(Runner::Cuda(Box::new(cuda::CudaRunner::new(executable, device, graph, inputs, results)?)));
        }
        let _ = graph;
        let bytes = executable.workspace_bytes();
        let workspace = HostWorkspace::new(bytes).ok_or_else(|| {
            Error::new(ErrorCode::Workspace, format!("a workspace of {bytes} bytes"), "a size that this machine can address")
        })?;
        Ok(Runner::Host { executable, inputs, results, workspace })
    }

    /// One execution; the time is that of the plan alone (on a CUDA device between two events).
    pub fn run(&mut self) -> Result<Duration> {
        match self {
            Runner::Host { executable, inputs, results, workspace } => {
                let mut bindings = Bindings::new();
                for (uid, t) in &inputs.0 {
                    bindings.read(*uid, t.bytes());
                }
                for (uid, t) in &mut results.0 {
                    bindings.write(*uid, t.bytes_mut());
                }
                let started = Instant::now();
                executable.execute(&Stream::cpu(), &mut bindings, &mut workspace.workspace())?;
                Ok(started.elapsed())
            }
            #[cfg(feature = "cuda")]
            Runner::Cuda(c) => c.run(),
        }
    }

    /// The results of the last run, in host memory.
    pub fn finish(self) -> Result<HostTensors> {
        match self {
            Runner::Host { results, .. } => Ok(results),
            #[cfg(feature = "cuda")]
            Runner::Cuda(c) => c.finish(),
        }
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use frostgraph::engines::Uid;
    use frostgraph::exec::{Bindings, Executable, Stream, Workspace};
    use frostgraph::graph::FrozenGraph;
    use frostgraph::runtime::{CudaDevice, CudaEvent, CudaStream, DeviceBuffer};
    use frostgraph::sample::HostTensors;
    use frostgraph::Result;
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    /// Buffers, stream and events of one plan on one device.
    pub struct CudaRunner<'a> {
        executable: &'a Executable,
        inputs: &'a HostTensors,
        results: HostTensors,
        /// Scalars that are handed over by value stay in host memory.
        by_value: BTreeSet<Uid>,
        buffers: BTreeMap<Uid, DeviceBuffer>,
        workspace: DeviceBuffer,
        stream: CudaStream,
        events: [CudaEvent; 2],
    }

    impl<'a> CudaRunner<'a> {
        pub fn new(
            executable: &'a Executable,
            device: CudaDevice,
            graph: &FrozenGraph,
            inputs: &'a HostTensors,
            results: HostTensors,
        ) -> Result<CudaRunner<'a>> {
            let by_value = graph.tensors().filter(|(_, t)| t.pass_by_value).filter_map(|(_, t)| t.uid).collect();
            let mut buffers = BTreeMap::new();
            for (uid, t) in inputs.0.iter().chain(&results.0) {
                buffers.insert(*uid, DeviceBuffer::from_slice(&device, t.bytes())?);
            }
            let workspace = DeviceBuffer::new(&device, executable.workspace_bytes())?;
            let stream = CudaStream::new(&device)?;
            let events = [CudaEvent::new(&device)?, CudaEvent::new(&device)?];
            Ok(CudaRunner { executable, inputs, results, by_value, buffers, workspace, stream, events })
        }

        pub fn run(&mut self) -> Result<Duration> {
            let mut bindings = Bindings::new();
            for (uid, buffer) in &self.buffers {
                match self.inputs.bytes(*uid).filter(|_| self.by_value.contains(uid)) {
                    Some(value) => bindings.read(*uid, value),
                    None => bindings.device(*uid, buffer.range().address, buffer.bytes()),
                };
            }
            let mut workspace = Workspace::device(self.workspace.range().address, self.workspace.bytes());
            let [before, after] = &self.events;
            before.record(&self.stream)?;
            self.executable.execute(&Stream::cuda(self.stream.raw()), &mut bindings, &mut workspace)?;
            after.record(&self.stream)?;
            self.stream.synchronize()?;
            Ok(Duration::from_secs_f64(f64::from(after.ms_since(before)?) * 1e-3))
        }

        pub fn finish(mut self) -> Result<HostTensors> {
            for (uid, t) in &mut self.results.0 {
                if let Some(buffer) = self.buffers.get(uid) {
                    buffer.read(0, t.bytes_mut())?;
                }
            }
            Ok(self.results)
        }
    }
}
