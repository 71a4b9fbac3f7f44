//! Launch plans: the ordered launches of a chosen engine as pure data, ready to be printed, compared, compiled ahead of time, executed.

use crate::{DType, Facts, HostBuffers, HostError, Knobs, Uid};

/// A named byte range of the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Name in the plan text, such as `delta`.
    pub name: &'static str,
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes before rounding.
    pub bytes: u64,
}

/// One kernel to compile: a source, an entry point and its template switches.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelSpec {
    /// Path below `kernels/`.
    pub source: &'static str,
    /// `extern "C"` entry point.
    pub entry: &'static str,
    /// `-DNAME=VALUE` switches, sorted by name: exactly what the source reads.
    pub defines: Vec<(&'static str, i64)>,
}

/// A tensor map to encode at binding time (`cuTensorMapEncodeTiled`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorMapSpec {
    /// Where the base address comes from.
    pub base: Base,
    /// Element type.
    pub dtype: DType,
    /// Extents, innermost first; `None` in a position means "as many as the bound buffer holds" (packed tokens).
    pub dim: Vec<Option<u64>>,
    /// Strides in bytes of dimensions 1 and up.
    pub stride_bytes: Vec<u64>,
    /// Box extents in elements, innermost first.
    pub tile: Vec<u32>,
    /// Swizzle span in bytes: 0, 32, 64 or 128.
    pub swizzle: u32,
}

/// What an address is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// A bound tensor.
    Tensor(Uid),
    /// Index into the plan's workspace regions.
    Region(usize),
}

/// One kernel parameter, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Arg {
    /// Device pointer.
    Ptr(Base),
    /// A null pointer for an operand that this configuration does not read.
    Null,
    /// 32-bit integer.
    I32(i32),
    /// 64-bit integer.
    I64(i64),
    /// Single-precision value.
    F32(f32),
    /// 128-byte tensor map, passed by value.
    Map(TensorMapSpec),
    /// 128 zero bytes in the place of a map that this configuration does not read.
    NoMap,
}

/// One kernel launch.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    /// Short name in the plan text, such as `main`.
    pub name: &'static str,
    /// What to compile.
    pub kernel: KernelSpec,
    /// Grid extents; y and z at most 65,535.
    pub grid: [u32; 3],
    /// Cluster extents.
    pub cluster: [u32; 3],
    /// Block extents.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub smem: u32,
    /// Launched with programmatic stream serialisation.
    pub pdl: bool,
    /// Parameters.
    pub args: Vec<Arg>,
    /// Name of each parameter, for the plan text only.
    pub names: Vec<&'static str>,
}

/// A CPU step. The function pointer is part of the plan so that a host row is an ordinary row.
#[derive(Debug, Clone, Copy)]
pub struct HostCall {
    /// Name in the plan text.
    pub name: &'static str,
    /// The engine.
    pub run: fn(&Facts, &Knobs, &mut HostBuffers<'_>) -> Result<(), HostError>,
}

impl PartialEq for HostCall {
    /// By name: a function's address is not an identity.
    fn eq(&self, other: &HostCall) -> bool {
        self.name == other.name
    }
}

/// One step of a plan.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Run on the host.
    Host(HostCall),
    /// Launch on the caller's stream.
    Kernel(Launch),
}

/// The ordered work of one node under one engine.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LaunchPlan {
    /// Steps in order.
    pub steps: Vec<Step>,
    /// Workspace regions, each rounded up to 128 bytes.
    pub regions: Vec<Region>,
    /// Total workspace bytes.
    pub workspace_bytes: u64,
}

/// Alignment of each workspace region and of the workspace itself, bytes.
pub const WORKSPACE_ALIGN: u64 = 128;

impl LaunchPlan {
    /// Appends a region and returns its index; `None` when the total no longer fits 64 bits.
    pub fn region(&mut self, name: &'static str, bytes: u64) -> Option<usize> {
        let rounded = bytes.checked_next_multiple_of(WORKSPACE_ALIGN)?;
        self.regions.push(Region { name, offset: self.workspace_bytes, bytes });
        self.workspace_bytes = self.workspace_bytes.checked_add(rounded)?;
        Some(self.regions.len() - 1)
    }
}
