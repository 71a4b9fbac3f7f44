//! A chain of launches with everything that can be prepared prepared: what is left for `execute` is addresses (I5).
//!
//! Nothing here knows the driver; a `Sink` encodes maps and launches. Tests put a recorder there.

use super::compile::Cubin;
use super::tensor_map::{MapRequest, TensorMap};
use super::DeviceRange;
use crate::engines::launch::{Base, WORKSPACE_ALIGN};
use crate::engines::{Arg, KernelSpec, Launch, LaunchPlan, Step, Target, Uid};
use crate::{Error, ErrorCode, Result};
use std::ffi::c_void;
use std::sync::Mutex;

/// Most parameters of one kernel.
const MAX_ARGS: usize = 96;
/// Most tensor maps of one kernel.
const MAX_MAPS: usize = 12;
/// Most distinct operands of one chain.
const MAX_OPERANDS: usize = 64;

/// What a chain needs of the driver.
pub(crate) trait Sink {
    /// Makes a tensor map.
    fn encode(&self, request: &MapRequest) -> Result<TensorMap>;
    /// Queues launch `index`. `params` points to one value a parameter, all alive during the call.
    fn launch(&self, index: usize, params: &mut [*mut c_void]) -> Result<()>;
}

/// Where the value of a parameter comes from that is not fixed at compile time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Address of an operand.
    Operand(usize),
    /// Address in the workspace.
    Workspace(u64),
    /// Index into the chain's maps.
    Map(usize),
    /// 128 zero bytes.
    NoMap,
}

/// The shape of one launch, as the driver wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Name in the plan.
    pub name: &'static str,
    /// Index into the chain's kernels.
    pub kernel: usize,
    pub grid: [u32; 3],
    pub cluster: [u32; 3],
    pub block: [u32; 3],
    pub smem: u32,
    pub pdl: bool,
}

#[derive(Debug)]
struct Prepared {
    shape: Shape,
    /// The chain's values that belong to this launch, one a parameter in their order; those of the parameters below are not read.
    values: std::ops::Range<usize>,
    /// Parameters that every execution resolves: number and source.
    params: Vec<(usize, Source)>,
}

#[derive(Debug, Clone, Copy)]
struct PreparedMap {
    request: MapRequest,
    base: MapBase,
}

#[derive(Debug, Clone, Copy)]
enum MapBase {
    Operand(usize),
    /// Offset and bytes in the workspace.
    Workspace(u64, u64),
}

/// Maps of the last binding. A repeated execution with the same buffers encodes nothing.
#[derive(Debug)]
struct LastMaps {
    bound: Option<([DeviceRange; MAX_OPERANDS], u64)>,
    maps: Vec<TensorMap>,
}

/// Prepared launches of one or more plans, in order.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Distinct kernels.
    pub kernels: Vec<KernelSpec>,
    launches: Vec<Prepared>,
    values: Vec<u64>,
    maps: Vec<PreparedMap>,
    operands: Vec<Uid>,
    workspace_bytes: u64,
    /// First and one past the last workspace byte that regions cover.
    scratch: (u64, u64),
    last: Mutex<LastMaps>,
}

static NO_MAP: TensorMap = TensorMap { opaque: [0; 16] };

fn bug(launch: &str, given: String, expected: &str) -> Error {
    Error::new(ErrorCode::KernelBudget, given, expected.to_owned()).at(format!("launch {launch}"))
}

fn limits(launch: &Launch) -> Result<()> {
    let [x, y, z] = launch.grid;
    let product = |e: [u32; 3]| e.iter().map(|&n| u64::from(n)).product::<u64>();
    if x == 0 || y == 0 || z == 0 || x > i32::MAX as u32 || y > 65_535 || z > 65_535 {
        return Err(bug(launch.name, format!("a grid of {x}x{y}x{z}"), "1 to 2^31 - 1 along x, 1 to 65535 along y and z"));
    }
    if product(launch.block) == 0 || product(launch.block) > 1024 {
        return Err(bug(launch.name, format!("a block of {:?}", launch.block), "1 to 1024 threads"));
    }
    let fits = (0..3).all(|i| launch.cluster[i] > 0 && launch.grid[i].is_multiple_of(launch.cluster[i]));
    if !fits || product(launch.cluster) > 16 {
        let given = format!("a cluster of {:?} for a grid of {:?}", launch.cluster, launch.grid);
        return Err(bug(launch.name, given, "at most 16 blocks that divide the grid"));
    }
    if launch.args.len() > MAX_ARGS || launch.args.iter().filter(|a| matches!(a, Arg::Map(_))).count() > MAX_MAPS {
        let given = format!("{} parameters", launch.args.len());
        return Err(bug(launch.name, given, &format!("at most {MAX_ARGS} parameters, {MAX_MAPS} of them maps")));
    }
    Ok(())
}

/// Bytes of a parameter.
fn size_of(arg: &Arg) -> u32 {
    match arg {
        Arg::Ptr(_) | Arg::Null | Arg::I64(_) => 8,
        Arg::I32(_) | Arg::F32(_) => 4,
        Arg::Map(_) | Arg::NoMap => 128,
    }
}

/// Compares a launch with the kernel that was really compiled: parameter list, block, shared memory.
///
/// # Errors
/// FG6006 naming the launch and the first difference.
pub fn check_launch(launch: &Launch, cubin: &Cubin, target: &Target) -> Result<()> {
    limits(launch)?;
    let have: Vec<u32> = launch.args.iter().map(size_of).collect();
    let want: Vec<u32> = cubin.info.params.iter().map(|p| p.size).collect();
    if have != want {
        let at = have.iter().zip(&want).position(|(a, b)| a != b).unwrap_or(have.len().min(want.len()));
        let name = launch.names.get(at).copied().unwrap_or("");
        let size = |s: &[u32]| s.get(at).map_or("none".into(), |n| format!("{n} bytes"));
        let given = format!("{} parameters, number {at} '{name}' of {}", have.len(), size(&have));
        return Err(bug(launch.name, given, &format!("{} parameters as compiled, number {at} of {}", want.len(), size(&want))));
    }
    let threads: u32 = launch.block.iter().product();
    if cubin.info.max_threads.is_some_and(|max| threads > max) {
        let given = format!("{threads} threads");
        return Err(bug(launch.name, given, &format!("at most {} by its launch bounds", cubin.info.max_threads.unwrap_or(0))));
    }
    let Target::Cuda { smem_optin, .. } = target else { return Ok(()) };
    let smem = launch.smem.saturating_add(cubin.info.static_smem);
    if smem > *smem_optin {
        return Err(bug(
            launch.name,
            format!("{smem} bytes of shared memory"),
            &format!("at most {smem_optin} on {}", target.name()),
        ));
    }
    Ok(())
}

impl Chain {
    /// Prepares the launches of these plans in order.
    ///
    /// # Errors
    /// FG6006 for launches beyond the hardware's limits, FG4003 for maps that TMA does not serve, FG3006 for a host step.
    pub(crate) fn new(plans: &[&LaunchPlan]) -> Result<Chain> {
        let mut c = Chain {
            kernels: Vec::new(),
            launches: Vec::new(),
            values: Vec::new(),
            maps: Vec::new(),
            operands: Vec::new(),
            workspace_bytes: plans.iter().map(|p| p.workspace_bytes).max().unwrap_or(0),
            scratch: (0, 0),
            last: Mutex::new(LastMaps { bound: None, maps: Vec::new() }),
        };
        for plan in plans {
            for r in &plan.regions {
                let end = r.offset.checked_add(r.bytes).filter(|&end| end <= plan.workspace_bytes).ok_or_else(|| {
                    bug(r.name, format!("region at {} of {} bytes", r.offset, r.bytes), "a region inside the workspace")
                })?;
                let (low, high) = c.scratch;
                c.scratch = if high == 0 { (r.offset, end) } else { (low.min(r.offset), high.max(end)) };
            }
            for step in &plan.steps {
                match step {
                    Step::Kernel(launch) => c.add(plan, launch)?,
                    Step::Host(host) => {
                        let given = format!("host step '{}'", host.name);
                        return Err(Error::new(ErrorCode::BadDevice, given, "kernel launches alone on a CUDA device"));
                    }
                }
            }
        }
        if c.operands.len() > MAX_OPERANDS {
            let given = format!("{} operands", c.operands.len());
            return Err(bug("", given, &format!("at most {MAX_OPERANDS} operands in one chain")));
        }
        c.last = Mutex::new(LastMaps { bound: None, maps: vec![NO_MAP; c.maps.len()] });
        Ok(c)
    }

    fn add(&mut self, plan: &LaunchPlan, launch: &Launch) -> Result<()> {
        limits(launch)?;
        let kernel = self.kernels.iter().position(|k| *k == launch.kernel).unwrap_or_else(|| {
            self.kernels.push(launch.kernel.clone());
            self.kernels.len() - 1
        });
        let first = self.values.len();
        let mut params = Vec::new();
        for (i, arg) in launch.args.iter().enumerate() {
            let (bits, source) = match arg {
                Arg::Ptr(Base::Tensor(uid)) => (0, Some(Source::Operand(self.operand(*uid)))),
                Arg::Ptr(Base::Region(r)) => (0, Some(Source::Workspace(region(plan, *r, launch)?.0))),
                Arg::Null => (0, None),
                Arg::I32(v) => (u64::from(*v as u32), None),
                Arg::I64(v) => (*v as u64, None),
                Arg::F32(v) => (u64::from(v.to_bits()), None),
                Arg::NoMap => (0, Some(Source::NoMap)),
                Arg::Map(spec) => {
                    let request = MapRequest::new(spec).map_err(|e| e.at(format!("launch {}", launch.name)))?;
                    let base = match spec.base {
                        Base::Tensor(uid) => MapBase::Operand(self.operand(uid)),
                        Base::Region(r) => {
                            let (offset, bytes) = region(plan, r, launch)?;
                            MapBase::Workspace(offset, bytes)
                        }
                    };
                    self.maps.push(PreparedMap { request, base });
                    (0, Some(Source::Map(self.maps.len() - 1)))
                }
            };
            // Parameters are little-endian on every CUDA host, so a 32-bit value is the first half of its slot.
            self.values.push(bits.to_le());
            params.extend(source.map(|source| (i, source)));
        }
        let values = first..self.values.len();
        let Launch { name, grid, cluster, block, smem, pdl, .. } = *launch;
        self.launches.push(Prepared { shape: Shape { name, kernel, grid, cluster, block, smem, pdl }, values, params });
        Ok(())
    }

    fn operand(&mut self, uid: Uid) -> usize {
        self.operands.iter().position(|u| *u == uid).unwrap_or_else(|| {
            self.operands.push(uid);
            self.operands.len() - 1
        })
    }

    /// Shapes of the launches in order.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = &Shape> {
        self.launches.iter().map(|l| &l.shape)
    }

    /// Distinct operands that an execution reads or writes, in order of first use.
    pub(crate) fn operands(&self) -> &[Uid] {
        &self.operands
    }

    pub(crate) fn workspace_bytes(&self) -> u64 {
        self.workspace_bytes
    }

    fn check(&self, bound: &[DeviceRange], workspace: DeviceRange) -> Result<()> {
        let need = self.workspace_bytes;
        let complain = |given: String| {
            let expected = format!("{need} bytes, base aligned to {WORKSPACE_ALIGN}");
            Err(Error::new(ErrorCode::Workspace, given, expected))
        };
        if need == 0 {
            return Ok(());
        }
        if workspace.address == 0 || workspace.bytes < need {
            return complain(format!("a workspace of {} bytes", if workspace.address == 0 { 0 } else { workspace.bytes }));
        }
        let off = workspace.address % WORKSPACE_ALIGN;
        if off != 0 {
            return complain(format!("a workspace whose base is {off} past a multiple of {WORKSPACE_ALIGN}"));
        }
        let (low, high) = self.scratch;
        let scratch = DeviceRange { address: workspace.address + low, bytes: high - low };
        match bound.iter().zip(&self.operands).find(|(r, _)| r.overlaps(scratch)) {
            Some((_, uid)) => {
                let given = format!("a workspace that shares memory with uid {uid}");
                Err(Error::new(ErrorCode::BufferOverlap, given, "a workspace apart from every operand"))
            }
            None => Ok(()),
        }
    }

    fn request(&self, map: &PreparedMap, bound: &[DeviceRange], workspace: u64) -> Result<MapRequest> {
        let range = match map.base {
            MapBase::Operand(i) => bound[i],
            MapBase::Workspace(offset, bytes) => DeviceRange { address: workspace + offset, bytes },
        };
        map.request.bind(range).map_err(|e| match map.base {
            MapBase::Operand(i) => e.at(format!("uid {}", self.operands[i])),
            MapBase::Workspace(..) => e.at("workspace"),
        })
    }

    /// Queues every launch. Allocates nothing, waits for nothing, reads nothing back; several threads may run one chain at once.
    ///
    /// # Errors
    /// FG4001 for a missing or null operand, FG4002 to FG4005 for ranges that cannot serve, and what the sink reports. Launches that
    /// came before a failing one stay queued.
    pub(crate) fn run<S: Sink>(
        &self,
        sink: &S,
        operand: &dyn Fn(Uid) -> Option<DeviceRange>,
        workspace: DeviceRange,
    ) -> Result<()> {
        let mut ranges = [DeviceRange::default(); MAX_OPERANDS];
        for (slot, &uid) in ranges.iter_mut().zip(&self.operands) {
            *slot = operand(uid).filter(|r| r.address != 0).ok_or_else(|| {
                Error::new(ErrorCode::MissingBinding, "no device memory", "a device address").at(format!("uid {uid}"))
            })?;
        }
        let bound = &ranges[..self.operands.len()];
        self.check(bound, workspace)?;

        // One thread at a time keeps the last maps; another one that runs meanwhile encodes its own.
        let mut guard = if self.maps.is_empty() { None } else { self.last.try_lock().ok() };
        if let Some(last) = guard.as_deref_mut() {
            if last.bound != Some((ranges, workspace.address)) {
                last.bound = None;
                for (slot, map) in last.maps.iter_mut().zip(&self.maps) {
                    *slot = sink.encode(&self.request(map, bound, workspace.address)?)?;
                }
                last.bound = Some((ranges, workspace.address));
            }
        }
        let kept = guard.as_deref().map(|last| last.maps.as_slice());
        let mut own = if kept.is_none() && !self.maps.is_empty() { Some([NO_MAP; MAX_MAPS]) } else { None };
        let mut addresses = [0u64; MAX_ARGS];
        let mut params = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
        for (index, launch) in self.launches.iter().enumerate() {
            let values = &self.values[launch.values.clone()];
            // The driver only reads through these pointers, whatever their type says.
            for (param, value) in params.iter_mut().zip(values) {
                *param = std::ptr::from_ref(value).cast_mut().cast();
            }
            let mut own_used = 0;
            for &(i, source) in &launch.params {
                match source {
                    Source::NoMap => params[i] = std::ptr::from_ref(&NO_MAP).cast_mut().cast(),
                    Source::Operand(o) => addresses[i] = bound[o].address,
                    Source::Workspace(offset) => addresses[i] = workspace.address + offset,
                    Source::Map(m) => match (kept, &mut own) {
                        (None, Some(own)) => {
                            own[own_used] = sink.encode(&self.request(&self.maps[m], bound, workspace.address)?)?;
                            own_used += 1;
                        }
                        (Some(maps), _) => params[i] = std::ptr::from_ref(&maps[m]).cast_mut().cast(),
                        (None, None) => {}
                    },
                }
            }
            // Pointers into the local arrays are taken after the last write to them.
            let mut fresh = own.iter().flatten();
            for &(i, source) in &launch.params {
                match source {
                    Source::Operand(_) | Source::Workspace(_) => params[i] = std::ptr::from_ref(&addresses[i]).cast_mut().cast(),
                    Source::Map(_) => {
                        if let Some(map) = fresh.next() {
                            params[i] = std::ptr::from_ref(map).cast_mut().cast();
                        }
                    }
                    Source::NoMap => {}
                }
            }
            sink.launch(index, &mut params[..values.len()])?;
        }
        Ok(())
    }
}

fn region(plan: &LaunchPlan, index: usize, launch: &Launch) -> Result<(u64, u64)> {
    let found = plan.regions.get(index).map(|r| (r.offset, r.bytes));
    found.ok_or_else(|| bug(launch.name, format!("workspace region {index}"), "a region of the plan"))
}

#[cfg(test)]
mod tests;
