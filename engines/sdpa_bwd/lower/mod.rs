//! Lowers `sdpa_bwd_sm120` to its chain. Parameter lists follow `kernels/sdpa/bwd/mma/README.md`, in its order.

mod around;
mod params;
mod products;

use super::rules::{self, Choice};
use super::workspace::{self, Regions, Route};
use crate::sdpa::Scale;
use crate::{Decline, DeclineCode, Facts, Feature, Knobs, LaunchPlan, Row, SdpaFacts, Step, Target};

/// Name in the plan text, source, entry point.
#[derive(Clone, Copy)]
pub(crate) struct Kernel(pub(crate) &'static str, pub(crate) &'static str, pub(crate) &'static str);

pub(crate) const CVT: Kernel = Kernel("cvt", "sdpa/bwd/mma/cvt.cu", "fg_sdpa_bwd_cvt");
pub(super) const DBIAS_CVT: Kernel = Kernel("dbias_cvt", "sdpa/bwd/mma/dbias_cvt.cu", "fg_sdpa_bwd_dbias_cvt");
pub(crate) const DOT: Kernel = Kernel("dot", "sdpa/bwd/mma/dot.cu", "fg_sdpa_bwd_dot");
const DQ2K: Kernel = Kernel("dq2k", "sdpa/bwd/mma/dq2k.cu", "fg_sdpa_bwd_dq2k");
pub(crate) const DSINK: Kernel = Kernel("dsink", "sdpa/bwd/mma/dsink.cu", "fg_sdpa_bwd_dsink");
const MAIN: Kernel = Kernel("main", "sdpa/bwd/mma/main.cu", "fg_sdpa_bwd_main");
/// The same pass over quantised copies, with P fake-quantised where it feeds dV.
pub(crate) const QAT_MAIN: Kernel = Kernel("main", "qat/bwd/mma/main.cu", "fg_sdpa_bwd_main");
pub(crate) const REDUCE: Kernel = Kernel("reduce", "sdpa/bwd/mma/reduce.cu", "fg_sdpa_bwd_reduce");
pub(super) const ZERO: Kernel = Kernel("zero", "sdpa/bwd/mma/zero.cu", "fg_sdpa_bwd_zero");

/// Kernel sources of the chain.
pub const SOURCES: &[&str] = &[CVT.1, DBIAS_CVT.1, DOT.1, DQ2K.1, DSINK.1, MAIN.1, REDUCE.1, ZERO.1];

/// The chain for these facts: [zero] dot main [dq2k] [reduce] [cvt] [dbias_cvt] [dsink].
pub fn lower(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Result<LaunchPlan, Decline> {
    let f = facts.expect_sdpa();
    let choice = rules::choose(row, f, knobs, target)?;
    let Scale::Static(scale) = f.scale else {
        return Err(row.decline(DeclineCode::Feature, "attn_scale=tensor", "attn_scale is a tensor; this row serves a number"));
    };
    let mut plan = LaunchPlan::default();
    let overflow = || {
        row.decline(
            DeclineCode::Geometry,
            "workspace=overflow",
            "the workspace size leaves 64 bits; this row serves sizes that fit",
        )
    };
    let regions = workspace::carve(f, &choice.config, choice.route, &mut plan).ok_or_else(overflow)?;
    let ws_rows = workspace::ws_rows(f).ok_or_else(overflow)?;
    let inputs = Inputs::Tensors;
    let total_rows = workspace::ws_total_rows(f).ok_or_else(overflow)?;
    let thd = f.features.has(Feature::Thd);
    let mut chain = Chain { f, choice, inputs, regions, scale, ws_rows, total_rows, thd, steps: Vec::new() };
    if f.ports.dbias.is_some() {
        chain.zero();
    }
    chain.dot();
    chain.main();
    if choice.route == Route::TwoKernel {
        chain.dq2k();
    }
    if f.h_q != f.h_kv {
        chain.reduce(1);
    }
    if choice.route != Route::TwoKernel {
        chain.cvt();
    }
    if regions.dbias.is_some() {
        chain.dbias_cvt();
    }
    if f.ports.dsink.is_some() {
        chain.dsink();
    }
    plan.steps = chain.steps;
    Ok(plan)
}

/// Where main finds Q, K and V.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Inputs {
    /// In the operands.
    Tensors,
    /// In copies that a kernel before it makes: compact `[B, H, S, D]`, in these regions.
    Copies([usize; 3]),
}

impl Inputs {
    /// Regions of the copies, if that is what main reads.
    pub(crate) fn copies(self) -> [Option<usize>; 3] {
        match self {
            Inputs::Tensors => [None; 3],
            Inputs::Copies(regions) => regions.map(Some),
        }
    }
}

/// What `dot` does for main: the row sums of the first heads (batches first), of which it has either whole batches or a part of the first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DotShare {
    /// Heads, over all batches.
    pub(crate) heads: i64,
    /// Their part of dq_accum is cleared.
    pub(crate) accum: bool,
    /// Counters to clear.
    pub(crate) counters: i64,
}

/// A chain under construction; shared with the NVFP4 backward, which puts another kernel in front of the same ones.
pub(crate) struct Chain<'a> {
    pub(crate) f: &'a SdpaFacts,
    pub(crate) choice: Choice,
    pub(crate) inputs: Inputs,
    pub(crate) regions: Regions,
    pub(crate) scale: f32,
    /// Rows of delta and dq_accum for each head, and in all.
    pub(crate) ws_rows: i64,
    pub(crate) total_rows: i64,
    pub(crate) thd: bool,
    pub(crate) steps: Vec<Step>,
}
