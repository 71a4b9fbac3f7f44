//! What both CUDA lowerings share: how a launch is written down, and the kernel that adds up sums left in slots.

use super::sm90::args::{maybe, ptr, region};
use crate::grouped_gemm::GroupedGemmFacts;
use crate::sdpa::arith::ceil_div;
use crate::sdpa::params::Params;
use crate::{Arg, KernelSpec, Launch, Step};

/// Name of the step, source and entry point of the last kernel.
pub(super) const FINISH: [&str; 3] = ["finish", "grouped_gemm/sm90/finish.cu", "fg_grouped_gemm_finish"];

/// Rows of dprob that one block sums.
const FINISH_ROWS: i64 = 256;

/// Workspace regions that `main` left sums in, and the table's head.
pub(super) struct Sums {
    /// dprob of each column tile: deterministic plans.
    pub slots: Option<usize>,
    /// dbias of each 32 rows.
    pub partial: Option<usize>,
    pub head: usize,
}

/// The step, where there is anything to add up.
pub(super) fn step(f: &GroupedGemmFacts, sums: Sums) -> Option<Step> {
    if sums.slots.is_none() && sums.partial.is_none() {
        return None;
    }
    let dprob_blocks = if sums.slots.is_some() { ceil_div(f.m, FINISH_ROWS) } else { 0 };
    let dbias_blocks = if sums.partial.is_some() { f.experts * ceil_div(f.n, 128) } else { 0 };
    let mut p = Params::default();
    p.push("slots", maybe(sums.slots));
    p.push("dprob", if sums.slots.is_some() { ptr(&f.ports.dprob) } else { Arg::Null });
    p.push("partial", maybe(sums.partial));
    p.push("dbias", ptr(&f.ports.dbias));
    p.push("offsets", ptr(&f.ports.padded_offsets));
    p.push("head", region(sums.head));
    p.i64("m", f.m);
    p.sizes(&[("n", f.n), ("dprob_blocks", dprob_blocks)]);
    Some(launch(FINISH, Vec::new(), [dprob_blocks + dbias_blocks, 512], 1, 0, p))
}

/// One kernel of a plan.
pub(super) fn launch(
    [name, source, entry]: [&'static str; 3],
    mut defines: Vec<(&'static str, i64)>,
    [grid, block]: [i64; 2],
    cluster: u32,
    smem: u32,
    p: Params,
) -> Step {
    defines.sort_unstable();
    let (args, names) = p.done();
    let word = |x: i64| u32::try_from(x).unwrap_or(u32::MAX);
    Step::Kernel(Launch {
        name,
        kernel: KernelSpec { source, entry, defines },
        grid: [word(grid), 1, 1],
        cluster: [cluster, 1, 1],
        block: [word(block), 1, 1],
        smem,
        pdl: true,
        args,
        names,
    })
}
