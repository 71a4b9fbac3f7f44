//! A compiled plan.

#[cfg(feature = "cuda")]
use super::bindings::Binding;
use super::bound::{Bound, Virtuals};
use super::operand::{operands, Operand};
use super::{check, host, Bindings, Stream, Workspace};
use crate::plan::{Lowered, Plan};
#[cfg(feature = "cuda")]
use crate::runtime::DeviceRange;
use crate::{Device, Error, ErrorCode, Result};
use frostgraph_engines::{Target, Uid};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A plan that is ready to run. Holds no buffers: two threads may execute one executable at a time with different bindings and workspaces.
#[derive(Debug)]
pub struct Executable {
    plan: Plan,
    lowered: Arc<Lowered>,
    /// Ascending by uid.
    operands: Vec<Operand>,
    /// Outputs that the graph keeps for itself, with offset and bytes in the workspace; binding one is a mistake worth a message.
    virtuals: Virtuals,
    backend: Backend,
    /// One thread at a time sorts here; another one that runs meanwhile sorts in memory of its own.
    by_address: Mutex<check::ByAddress>,
}

#[derive(Debug)]
enum Backend {
    /// Host steps; per node the tensors it touches.
    Host(Vec<host::HostNode>),
    /// Loaded kernels.
    #[cfg(feature = "cuda")]
    Cuda(Box<crate::runtime::Program>),
    /// The device is only described, so there is nothing to run on.
    Absent,
}

impl Plan {
    /// Makes the plan ready to run. On the CPU there is nothing to compile; for a device that is only described the result can be
    /// looked at but not executed.
    ///
    /// Errors: [`ErrorCode::Declined`] when an engine declines at lowering; FG6xxx when the CUDA runtime cannot be reached or a
    /// kernel does not compile.
    pub fn compile(&self) -> Result<Executable> {
        let lowered = self.lower()?;
        let g = &self.built.frozen;
        let backend = match (&self.built.device.target, self.built.device.ordinal) {
            (_, None) => Backend::Absent,
            (Target::Cpu, Some(_)) => Backend::Host(host::nodes(g, &lowered)?),
            #[cfg(feature = "cuda")]
            (Target::Cuda { .. }, Some(ordinal)) => {
                let device = crate::runtime::CudaDevice::open(ordinal)?;
                let plans: Vec<_> = lowered.nodes.iter().map(|n| &n.launches).collect();
                let program = crate::runtime::Program::compile(&device, &plans)?;
                Backend::Cuda(Box::new(program.label(self.to_string())))
            }
            #[cfg(not(feature = "cuda"))]
            (Target::Cuda { .. }, Some(_)) => {
                let given = format!("a CUDA plan for {}", self.built.device.target.name());
                return Err(Error::new(ErrorCode::NoCudaFeature, given, "a build with the feature `cuda`"));
            }
        };
        let virtuals = lowered.virtuals.iter().map(|v| (v.uid, (v.offset, v.bytes))).collect();
        let operands = operands(g)?;
        let by_address = Mutex::new(Vec::with_capacity(operands.len()));
        Ok(Executable { plan: self.clone(), operands, virtuals, lowered, backend, by_address })
    }
}

impl Executable {
    /// Bytes of workspace that every execution needs, base aligned to 128 bytes. 0 means that no workspace is needed.
    pub fn workspace_bytes(&self) -> u64 {
        self.lowered.workspace_bytes
    }

    /// The plan this was compiled from.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What must be bound, ascending by uid.
    pub fn operands(&self) -> &[Operand] {
        &self.operands
    }

    /// The launch plan as text; see [`Plan::launch_text`].
    pub fn launch_text(&self) -> Result<String> {
        self.plan.launch_text()
    }

    /// The loaded kernels of a CUDA plan.
    #[cfg(feature = "cuda")]
    pub fn program(&self) -> Option<&crate::runtime::Program> {
        match &self.backend {
            Backend::Cuda(program) => Some(program),
            Backend::Host(_) | Backend::Absent => None,
        }
    }

    /// Checks bindings and workspace as [`Executable::execute`] does, without running anything; works for described devices too.
    pub fn check(&self, bindings: &Bindings<'_>, workspace: &Workspace<'_>) -> Result<()> {
        match self.plan.built.device.target {
            Target::Cpu => {
                check::host_operands(&Bound::new(&self.operands, &self.virtuals, bindings)?)?;
                check::host_workspace(self.workspace_bytes(), workspace)
            }
            Target::Cuda { .. } => {
                let bound = Bound::new(&self.operands, &self.virtuals, bindings)?;
                self.check_device(&bound, workspace).map(|_| ())
            }
        }
    }

    /// The address of the workspace, once everything that can be checked has been.
    fn check_device(&self, bound: &Bound<'_, '_>, workspace: &Workspace<'_>) -> Result<u64> {
        match self.by_address.try_lock() {
            Ok(mut room) => check::device_operands(bound, &mut room)?,
            Err(_) => check::device_operands(bound, &mut Vec::new())?,
        }
        check::device_workspace(self.workspace_bytes(), workspace, bound)
    }

    /// Runs the plan on a stream: all outputs are written, the workspace is left undefined.
    ///
    /// CPU plans return when the work is done, CUDA plans when it is queued (nothing is allocated, waited for or read back).
    /// Everything that can be checked is checked before the first byte is written.
    ///
    /// Errors: FG4001 to FG4007, [`ErrorCode::BadDevice`] for a plan whose device is only described. After an error that an engine
    /// found in the data (FG4006) the outputs are unspecified.
    pub fn execute(&self, stream: &Stream, bindings: &mut Bindings<'_>, workspace: &mut Workspace<'_>) -> Result<()> {
        match &self.backend {
            Backend::Absent => Err(absent(&self.plan.built.device)),
            Backend::Host(nodes) => {
                if *stream != Stream::Cpu {
                    return Err(Error::new(ErrorCode::BindingDevice, "a CUDA stream for a CPU plan", "Stream::cpu()"));
                }
                self.check(bindings, workspace)?;
                let scratch: &mut [u8] = match workspace {
                    Workspace::Host(bytes) => &mut bytes[..self.lowered.workspace_bytes as usize],
                    Workspace::None | Workspace::Device { .. } => &mut [],
                };
                host::run(nodes, &self.lowered, &self.operands, bindings, scratch)
            }
            #[cfg(feature = "cuda")]
            Backend::Cuda(program) => {
                let Stream::Cuda(raw) = *stream else {
                    return Err(Error::new(ErrorCode::BindingDevice, "the CPU for a CUDA plan", "Stream::cuda(..)"));
                };
                let bound = Bound::new(&self.operands, &self.virtuals, bindings)?;
                let address = self.check_device(&bound, workspace)?;
                let operand = |uid: Uid| match bound.get(uid) {
                    Some(Binding::Device(b)) => Some(DeviceRange { address: b.address, bytes: b.bytes }),
                    Some(Binding::Read(_) | Binding::Write(_)) => None,
                    None => {
                        let (offset, bytes) = self.virtuals.get(&uid)?;
                        Some(DeviceRange { address: address + offset, bytes: *bytes })
                    }
                };
                program.execute(raw, &operand, DeviceRange { address, bytes: self.workspace_bytes() })
            }
        }
    }
}

impl Executable {
    /// One execution that is waited for, and how long the work itself took: on the CPU the call, on a CUDA device the time between two
    /// events around it on the stream. For tuning and benchmarks: it allocates the events, and the stream must not be capturing.
    ///
    /// Errors: those of [`Executable::execute`], and FG6003.
    pub fn execute_timed(&self, stream: &Stream, bindings: &mut Bindings<'_>, workspace: &mut Workspace<'_>) -> Result<Duration> {
        #[cfg(feature = "cuda")]
        if let (Backend::Cuda(program), Stream::Cuda(raw)) = (&self.backend, stream) {
            use crate::runtime::CudaEvent;
            let [before, after] = [CudaEvent::new(program.device())?, CudaEvent::new(program.device())?];
            before.record_raw(*raw)?;
            self.execute(stream, bindings, workspace)?;
            after.record_raw(*raw)?;
            after.synchronize()?;
            return Ok(Duration::from_secs_f64(f64::from(after.ms_since(&before)?.max(0.0)) * 1e-3));
        }
        let started = Instant::now();
        self.execute(stream, bindings, workspace)?;
        Ok(started.elapsed())
    }
}

fn absent(device: &Device) -> Error {
    let given = format!("an execution on {}, which is only described", device.target.name());
    Error::new(ErrorCode::BadDevice, given, "a plan built for a device of this machine: the CPU, or a CUDA device by its number")
}

/// Uid → place in the operand list.
pub(super) fn index(operands: &[Operand]) -> BTreeMap<Uid, usize> {
    operands.iter().enumerate().map(|(i, o)| (o.uid, i)).collect()
}
