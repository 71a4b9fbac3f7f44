//! Lowers `nvfp4_qat_bwd_sm90`: prep main [reduce] cvt. The portable row's chain with the wgmma main kernel of the SDPA backward, what it feeds
//! to dV replaced (`kernels/qat/bwd/sm90/README.md`).

use super::lower::{graph_rules, prep, PREP};
use super::workspace;
use crate::sdpa::Scale;
use crate::sdpa_bwd::lower::{Chain, Inputs, Kernel, CVT, REDUCE};
use crate::sdpa_bwd::sm90::{carve, configure, main, split, Choice, LATE, PAIR, ROTATED};
use crate::sdpa_bwd::workspace::Regions;
use crate::{Decline, DeclineCode as Code, Facts, Feature, Knobs, LaunchPlan, Row, SdpaFacts, Target};

const MAIN: Kernel = Kernel("main", "qat/bwd/sm90/main.cu", "fg_sdpa_bwd_sm90_main");

/// Kernel sources of the chain.
pub const SOURCES: &[&str] = &[PREP.1, MAIN.1, CVT.1, REDUCE.1];

/// What the rules settle on.
struct Plan {
    choice: Choice,
    copies: [usize; 3],
    regions: Regions,
    launches: LaunchPlan,
}

/// The row's `extra` hook.
pub fn extra(row: &Row, facts: &Facts, _knobs: &Knobs, target: &Target) -> Option<Decline> {
    choose(row, facts.expect_sdpa(), target).err()
}

fn overflow(row: &Row) -> Decline {
    row.decline(Code::Geometry, "workspace=overflow", "the workspace size leaves 64 bits; this row serves sizes that fit")
}

fn choose(row: &Row, f: &SdpaFacts, target: &Target) -> Result<Plan, Decline> {
    graph_rules(f).map_err(|(code, fact, reason)| row.decline(code, fact, reason))?;
    let Target::Cuda { sm_count, smem_optin, total_memory, .. } = target else {
        return Err(row.decline(Code::Arch, "device=cpu", "the device is cpu; this row serves CUDA devices"));
    };
    let staged = f.features.has(Feature::Deterministic);
    // `prep` does what blocks of the plain backward do for later heads.
    let choice = configure(f, i64::from(*sm_count));
    // The orders that quantise between dS and dV, for every mask.
    let order = match choice.order {
        LATE => 0,
        PAIR => ROTATED,
        order => order,
    };
    let choice = Choice { staged, order, ahead: 0, ..choice };
    let smem = choice.smem();
    if smem > i64::from(*smem_optin) {
        let reason = format!("the tiles need {smem} bytes of shared memory; the device has {smem_optin}");
        return Err(row.decline(Code::Resources, format!("smem={smem}"), reason));
    }
    let mut launches = LaunchPlan::default();
    let copies = workspace::copies(f, &mut launches).ok_or_else(|| overflow(row))?;
    let regions = carve(f, &choice, &mut launches).ok_or_else(|| overflow(row))?;
    let bytes = launches.workspace_bytes;
    if bytes > *total_memory {
        let reason = format!("the chain needs a workspace of {bytes} bytes; the device has {total_memory} bytes in all");
        return Err(row.decline(Code::Resources, format!("workspace={bytes}"), reason));
    }
    Ok(Plan { choice, copies, regions, launches })
}

/// The chain for these facts.
pub fn lower(row: &Row, facts: &Facts, _knobs: &Knobs, target: &Target) -> Result<LaunchPlan, Decline> {
    let f = facts.expect_sdpa();
    let Plan { choice: c, copies, regions, mut launches } = choose(row, f, target)?;
    let Scale::Static(scale) = f.scale else {
        return Err(row.decline(Code::Feature, "attn_scale=tensor", "attn_scale is a tensor; this row serves a number"));
    };
    let (ws_rows, total_rows) = c.ws_rows(f).zip(c.total_rows(f)).ok_or_else(|| overflow(row))?;
    let (choice, inputs) = (c.shared(f), Inputs::Copies(copies));
    let mut chain = Chain { f, choice, inputs, regions, scale, ws_rows, total_rows, thd: false, steps: Vec::new() };
    prep(&mut chain, copies);
    main(&mut chain, &c, MAIN, c.smem());
    if split(f, &c) {
        chain.reduce(c.heads_item);
    }
    chain.cvt();
    launches.steps = chain.steps;
    Ok(launches)
}
