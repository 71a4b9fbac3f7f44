//! What the lowerings of the CUDA forward rows share: pieces of their parameter lists and switches.

use crate::sdpa::params::{narrow, Params};
use crate::sdpa::Scale;
use crate::{Arg, Base, DType, Decline, DeclineCode, Feature, KernelSpec, Launch, Port, Row, SdpaFacts, Step, Target};

/// Name in the plan text, source, entry point.
#[derive(Clone, Copy)]
pub struct Kernel(pub &'static str, pub &'static str, pub &'static str);

/// Compute capability from which a kernel may be launched before its predecessor has finished.
const PDL_FROM: u32 = 90;

/// Grid, block and shared memory of a launch.
pub struct Shape {
    /// Blocks along x: every kernel folds its work into x, so that batches and heads above 65,535 need no other path.
    pub grid: i64,
    /// Threads.
    pub block: i64,
    /// Dynamic shared memory, bytes.
    pub smem: i64,
    /// Whether the kernel waits for its predecessor itself, where the device has that.
    pub waits: bool,
}

/// One launch, its switches sorted by name.
pub fn launch(kernel: Kernel, defines: &[(&'static str, i64)], shape: &Shape, p: Params, target: &Target) -> Step {
    let Kernel(name, source, entry) = kernel;
    let mut defines = defines.to_vec();
    defines.sort_unstable();
    let (args, names) = p.done();
    let word = |x: i64| u32::try_from(x).unwrap_or(u32::MAX);
    Step::Kernel(Launch {
        name,
        kernel: KernelSpec { source, entry, defines },
        grid: [word(shape.grid), 1, 1],
        cluster: [1, 1, 1],
        block: [word(shape.block), 1, 1],
        smem: word(shape.smem),
        pdl: shape.waits && matches!(target, Target::Cuda { cc, .. } if *cc >= PDL_FROM),
        args,
        names,
    })
}

/// The scale as a number.
///
/// # Errors
/// [`Decline`] D09 for a scale tensor.
pub fn scale(row: &Row, f: &SdpaFacts) -> Result<f32, Decline> {
    match f.scale {
        Scale::Static(scale) => Ok(scale),
        Scale::Dynamic(_) => {
            Err(row.decline(DeclineCode::Feature, "attn_scale=tensor", "attn_scale is a tensor; this row serves a number"))
        }
    }
}

/// Lengths of one side in either form.
pub fn lens<'a>(plain: &'a Option<Port>, cumulative: &'a Option<Port>) -> &'a Option<Port> {
    if plain.is_some() {
        plain
    } else {
        cumulative
    }
}

/// Switches of lengths: whether there are any, and whether they are running totals.
pub fn length_defines(f: &SdpaFacts) -> [(&'static str, i64); 2] {
    let p = &f.ports;
    let plain = p.seq_len_q.is_some() || p.seq_len_kv.is_some();
    let cumulative = p.cu_seq_len_q.is_some() || p.cu_seq_len_kv.is_some();
    [("FG_PADDED", i64::from(plain || cumulative)), ("FG_CU_SEQ", i64::from(cumulative))]
}

/// Switches of the band.
pub fn mask_defines(f: &SdpaFacts) -> [(&'static str, i64); 2] {
    [("FG_CAUSAL", i64::from(f.mask.right.is_some())), ("FG_WINDOW", i64::from(f.mask.left.is_some()))]
}

/// Bounds of the band.
pub fn bounds(f: &SdpaFacts, p: &mut Params) {
    p.i32("window_left", narrow(f.mask.left.unwrap_or(0)));
    p.i32("window_right", narrow(f.mask.right.unwrap_or(0)));
    p.i32("bottom_right", i32::from(f.mask.bottom_right));
}

/// `FG_BF16`.
pub fn bf16(f: &SdpaFacts) -> (&'static str, i64) {
    ("FG_BF16", i64::from(f.dtype == DType::BF16))
}

/// `FG_SINK`.
pub fn sink(f: &SdpaFacts) -> (&'static str, i64) {
    ("FG_SINK", i64::from(f.ports.sink.is_some()))
}

/// `FG_STATS`: none, natural log, log base 2.
pub fn stats(f: &SdpaFacts) -> (&'static str, i64) {
    let base = if f.features.has(Feature::StatsLog2) { 2 } else { 1 };
    ("FG_STATS", if stats_port(f).is_some() { base } else { 0 })
}

/// Stats, where the graph asks for them.
pub fn stats_port(f: &SdpaFacts) -> &Option<Port> {
    if f.wants_stats {
        &f.ports.stats
    } else {
        &None
    }
}

/// Pointer to a workspace region.
pub fn region(index: Option<usize>) -> Arg {
    index.map_or(Arg::Null, |i| Arg::Ptr(Base::Region(i)))
}
