//! A chain of launches with everything that can be prepared prepared: what is left for `execute` is addresses (I5).
//!
//! Nothing here knows the driver; a `Sink` encodes maps and launches. Tests put a recorder there.

mod fit;
mod run;

use super::tensor_map::{MapRequest, TensorMap};
use super::DeviceRange;
use crate::engines::launch::Base;
use crate::engines::{Arg, KernelSpec, Launch, LaunchPlan, Step, Uid};
use crate::{Error, ErrorCode, Result};
use fit::{bug, limits};
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::Mutex;

pub use fit::check_launch;

/// Most parameters of one kernel.
const MAX_ARGS: usize = 96;
/// Most tensor maps of one kernel.
const MAX_MAPS: usize = 12;
/// Most distinct operands of one segment: what an execution holds without allocating. No launch has more operands than parameters.
const MAX_OPERANDS: usize = MAX_ARGS;

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
    /// Address of an operand of the segment.
    Operand(usize),
    /// Address in the workspace.
    Workspace(u64),
    /// Index into the segment's maps.
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

/// Launches in a row that name few enough operands to be held at once. Every single node fits in one; a graph of many has several.
#[derive(Debug)]
struct Segment {
    /// Number of the first launch in the chain.
    first: usize,
    launches: Vec<Prepared>,
    /// Distinct, in order of first use.
    operands: Vec<Uid>,
    maps: Vec<PreparedMap>,
    last: Mutex<LastMaps>,
}

impl Segment {
    fn new(first: usize) -> Segment {
        let last = Mutex::new(LastMaps { bound: None, maps: Vec::new() });
        Segment { first, launches: Vec::new(), operands: Vec::new(), maps: Vec::new(), last }
    }

    fn operand(&mut self, uid: Uid) -> usize {
        self.operands.iter().position(|u| *u == uid).unwrap_or_else(|| {
            self.operands.push(uid);
            self.operands.len() - 1
        })
    }

    /// Whether the operands of one more launch can be held beside those that are here.
    fn has_room(&self, launch: &Launch) -> bool {
        let new: BTreeSet<Uid> = operands_of(launch).filter(|uid| !self.operands.contains(uid)).collect();
        self.operands.len() + new.len() <= MAX_OPERANDS
    }
}

/// Prepared launches of one or more plans, in order.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Distinct kernels.
    pub kernels: Vec<KernelSpec>,
    segments: Vec<Segment>,
    values: Vec<u64>,
    operands: Vec<Uid>,
    workspace_bytes: u64,
    /// First and one past the last workspace byte that regions cover.
    scratch: (u64, u64),
}

static NO_MAP: TensorMap = TensorMap { opaque: [0; 16] };

impl Chain {
    /// Prepares the launches of these plans in order.
    ///
    /// # Errors
    /// FG6006 for launches beyond the hardware's limits, FG4003 for maps that TMA does not serve, FG3006 for a host step.
    pub(crate) fn new(plans: &[&LaunchPlan]) -> Result<Chain> {
        let mut c = Chain {
            kernels: Vec::new(),
            segments: Vec::new(),
            values: Vec::new(),
            operands: Vec::new(),
            workspace_bytes: plans.iter().map(|p| p.workspace_bytes).max().unwrap_or(0),
            scratch: (0, 0),
        };
        let mut count = 0;
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
                    Step::Kernel(launch) => {
                        limits(launch)?;
                        let mut segment = match c.segments.pop() {
                            Some(open) if open.has_room(launch) => open,
                            full => {
                                c.segments.extend(full);
                                Segment::new(count)
                            }
                        };
                        c.add(&mut segment, plan, launch)?;
                        c.segments.push(segment);
                        count += 1;
                    }
                    Step::Host(host) => {
                        let given = format!("host step '{}'", host.name);
                        return Err(Error::new(ErrorCode::BadDevice, given, "kernel launches alone on a CUDA device"));
                    }
                }
            }
        }
        let mut seen = BTreeSet::new();
        c.operands = c.segments.iter().flat_map(|s| &s.operands).copied().filter(|uid| seen.insert(*uid)).collect();
        for s in &mut c.segments {
            s.last = Mutex::new(LastMaps { bound: None, maps: vec![NO_MAP; s.maps.len()] });
        }
        Ok(c)
    }

    fn add(&mut self, segment: &mut Segment, plan: &LaunchPlan, launch: &Launch) -> Result<()> {
        let kernel = self.kernels.iter().position(|k| *k == launch.kernel).unwrap_or_else(|| {
            self.kernels.push(launch.kernel.clone());
            self.kernels.len() - 1
        });
        let first = self.values.len();
        let mut params = Vec::new();
        for (i, arg) in launch.args.iter().enumerate() {
            let (bits, source) = match arg {
                Arg::Ptr(Base::Tensor(uid)) => (0, Some(Source::Operand(segment.operand(*uid)))),
                Arg::Ptr(Base::Region(r)) => (0, Some(Source::Workspace(region(plan, *r, launch)?.0))),
                Arg::Null => (0, None),
                Arg::I32(v) => (u64::from(*v as u32), None),
                Arg::I64(v) => (*v as u64, None),
                Arg::F32(v) => (u64::from(v.to_bits()), None),
                Arg::NoMap => (0, Some(Source::NoMap)),
                Arg::Map(spec) => {
                    let request = MapRequest::new(spec).map_err(|e| e.at(format!("launch {}", launch.name)))?;
                    let base = match spec.base {
                        Base::Tensor(uid) => MapBase::Operand(segment.operand(uid)),
                        Base::Region(r) => {
                            let (offset, bytes) = region(plan, r, launch)?;
                            MapBase::Workspace(offset, bytes)
                        }
                    };
                    segment.maps.push(PreparedMap { request, base });
                    (0, Some(Source::Map(segment.maps.len() - 1)))
                }
            };
            // Parameters are little-endian on every CUDA host, so a 32-bit value is the first half of its slot.
            self.values.push(bits.to_le());
            params.extend(source.map(|source| (i, source)));
        }
        let values = first..self.values.len();
        let Launch { name, grid, cluster, block, smem, pdl, .. } = *launch;
        segment.launches.push(Prepared { shape: Shape { name, kernel, grid, cluster, block, smem, pdl }, values, params });
        Ok(())
    }

    /// Shapes of the launches in order.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = &Shape> {
        self.segments.iter().flat_map(|s| &s.launches).map(|l| &l.shape)
    }

    /// Distinct operands that an execution reads or writes, in order of first use.
    pub(crate) fn operands(&self) -> &[Uid] {
        &self.operands
    }

    pub(crate) fn workspace_bytes(&self) -> u64 {
        self.workspace_bytes
    }
}

/// Tensors that a launch names, as often as it names them.
fn operands_of(launch: &Launch) -> impl Iterator<Item = Uid> + '_ {
    launch.args.iter().filter_map(|arg| match arg {
        Arg::Ptr(Base::Tensor(uid)) => Some(*uid),
        Arg::Map(spec) => match spec.base {
            Base::Tensor(uid) => Some(uid),
            Base::Region(_) => None,
        },
        Arg::Ptr(Base::Region(_)) | Arg::Null | Arg::I32(_) | Arg::I64(_) | Arg::F32(_) | Arg::NoMap => None,
    })
}

fn region(plan: &LaunchPlan, index: usize, launch: &Launch) -> Result<(u64, u64)> {
    let found = plan.regions.get(index).map(|r| (r.offset, r.bytes));
    found.ok_or_else(|| bug(launch.name, format!("workspace region {index}"), "a region of the plan"))
}

#[cfg(test)]
mod tests;
