//! Lowers `moe_grouped_matmul_sm90`: one kernel, behind two that turn narrow operands into bf16, before one where the status word is asked for.

mod args;
mod rules;

use super::MoeFacts;
use crate::grouped_gemm::GemmPort;
use crate::sdpa::arith::{ceil_div, product};
use crate::sdpa::params::Params;
use crate::{Base, Decline, DeclineCode as Code, Facts, Feature, KernelSpec, Knobs, Launch, LaunchPlan, Row, Step, Target};
use args::{defines, expand, main, status};
use rules::rules;

const MAIN: [&str; 3] = ["main", "moe/sm90/main.cu", "fg_moe_main"];
const EXPAND: [&str; 3] = ["expand", "moe/sm90/expand.cu", "fg_moe_expand"];
const STATUS: [&str; 3] = ["status", "moe/sm90/status.cu", "fg_moe_status"];

/// Kernel sources of the row.
pub const SOURCES: &[&str] = &[EXPAND[1], MAIN[1], STATUS[1]];

/// Rows and columns of a tile of the output, and k of a pipeline stage.
const TILE: [i64; 3] = [128, 256, 64];
const THREADS: u32 = 384;
const STATUS_THREADS: u32 = 1024;
/// Threads of expand, and rows that a block of it takes.
const EXPAND_THREADS: u32 = 256;
const EXPAND_ROWS: i64 = 8;
/// Shared memory of main, as `config.cuh` lays it out: four stages, staging of results, tile descriptions, barriers, alignment.
const SMEM: u32 = 4 * (128 + 256) * 128 + 8 * 2 * 2048 + 4 * 16 + 256 + 1024;
/// Elements of 16 bytes' worth of 16-bit values: what copies and stores move at once.
const UNIT: i64 = 8;

/// Whether operands have to be turned into 16-bit values first.
fn narrow(f: &MoeFacts) -> bool {
    !f.input.is_half()
}

/// Where main finds its operands.
#[derive(Clone, Copy)]
struct Operands {
    token: Base,
    weight: Base,
}

/// Regions of the 16-bit operands in `plan`, or the tensors themselves; `None` when sizes leave 64 bits.
fn operands(f: &MoeFacts, plan: &mut LaunchPlan) -> Option<Operands> {
    let uid = |port: &Option<GemmPort>| port.as_ref().map(|p| Base::Tensor(p.uid));
    if !narrow(f) {
        return Some(Operands { token: uid(&f.ports.token)?, weight: uid(&f.ports.weight)? });
    }
    let mut region = |name, extents: &[i64]| {
        let bytes = u64::try_from(product(extents)?.checked_mul(2)?).ok()?;
        plan.region(name, bytes).map(Base::Region)
    };
    Some(Operands { token: region("token16", &[f.tokens, f.k])?, weight: region("weight16", &[f.experts, f.n, f.k])? })
}

/// Whether the weights lie with n contiguous.
fn n_major(f: &MoeFacts) -> bool {
    f.features.has(Feature::NMajorB)
}

/// The row's `extra` hook.
pub fn extra(row: &Row, facts: &Facts, _knobs: &Knobs, target: &Target) -> Option<Decline> {
    rules(row, facts.expect_moe(), target).err()
}

/// The launches for these facts.
///
/// # Errors
/// [`Decline`] where [`extra`] refuses.
pub fn lower(row: &Row, facts: &Facts, _knobs: &Knobs, target: &Target) -> Result<LaunchPlan, Decline> {
    let f = facts.expect_moe();
    let sm_count = rules(row, f, target)?;
    let mut out = LaunchPlan::default();
    let Some(bases) = operands(f, &mut out) else {
        return Err(row.decline(
            Code::Resources,
            "workspace=overflow",
            "the workspace size leaves 64 bits; this row serves sizes that fit",
        ));
    };
    if narrow(f) {
        for token in [true, false] {
            out.steps.push(expand(f, bases, token));
        }
    }
    let tiles = (ceil_div(f.routed, TILE[0]) + f.groups).saturating_mul(ceil_div(f.n, TILE[1]));
    let grid = i64::from(sm_count).min(tiles).max(1);
    out.steps.push(launch(MAIN, defines(f), [grid as u32, THREADS], SMEM, main(f, bases)));
    if f.ports.status.is_some() {
        out.steps.push(launch(STATUS, defines(f), [1, STATUS_THREADS], 0, status(f)));
    }
    Ok(out)
}

fn launch(
    [name, source, entry]: [&'static str; 3],
    defines: Vec<(&'static str, i64)>,
    [grid, block]: [u32; 2],
    smem: u32,
    p: Params,
) -> Step {
    let (args, names) = p.done();
    Step::Kernel(Launch {
        name,
        kernel: KernelSpec { source, entry, defines },
        grid: [grid, 1, 1],
        cluster: [1, 1, 1],
        block: [block, 1, 1],
        smem,
        pdl: true,
        args,
        names,
    })
}
