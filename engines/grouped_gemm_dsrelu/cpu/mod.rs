//! The CPU row: a job owns 128 rows of one expert and walks the columns in order, so every sum has one order and results are equal bits for
//! any number of threads.

mod inputs;
mod job;
mod quantise;

use super::cpu_tile::TILE;
use crate::grouped_gemm::scales::{ScaleMatrix, ATOM_BYTES};
use crate::grouped_gemm::{GemmPort, GroupedGemmFacts};
use crate::sdpa::access::fault;
use crate::{Decline, DeclineCode, Facts, HostBuffers, HostCall, HostError, Knobs, LaunchPlan, Step, Target, Uid};
use half::bf16;
use inputs::Inputs;
use job::{job, larger, Part, Scratch};
use quantise::place_columns;
use rayon::prelude::*;

/// Name of the row and of its step.
const NAME: &str = "grouped_gemm_dsrelu_cpu";

/// Results and scales of a block of 32.
const BLOCK: usize = 32;

/// The plan: one host step. Workspace: the column scales of D and of D_srelu by 128-row block, and the column sums of each block for dbias.
///
/// # Errors
/// D14 where sizes leave the address space.
pub fn lower(facts: &Facts, _knobs: &Knobs, _target: &Target) -> Result<LaunchPlan, Decline> {
    let f = facts.expect_grouped_gemm();
    let plan = || {
        let mut plan = LaunchPlan::default();
        let [cols, sums] = region_bytes(f)?;
        let srelu = if f.ports.sfd_col_d_srelu.is_some() { cols } else { 0 };
        // A region of no bytes takes no room, so the offsets are those of `carve` with or without it.
        for (name, bytes) in [("column_scales", cols), ("column_scales_d_srelu", srelu), ("dbias_blocks", sums)] {
            if bytes > 0 {
                plan.region(name, bytes)?;
            }
        }
        plan.steps.push(Step::Host(HostCall { name: NAME, run }));
        Some(plan)
    };
    plan().ok_or_else(|| Decline {
        engine: NAME,
        code: DeclineCode::Resources,
        reason: "the workspace size does not fit 64 bits".into(),
        fact: "workspace=overflow".into(),
    })
}

/// Bytes of one set of column scales and of the column sums.
fn region_bytes(f: &GroupedGemmFacts) -> Option<[u64; 2]> {
    let (m, n) = (u64::try_from(f.m).ok()?, u64::try_from(f.n).ok()?);
    let blocks = m.div_ceil(TILE as u64);
    let atoms = blocks.checked_mul(n.div_ceil(TILE as u64))?.checked_mul(ATOM_BYTES as u64)?;
    let sums = blocks.checked_mul(n)?.checked_mul(4)?;
    Some([if f.quantised { atoms } else { 0 }, if f.ports.dbias.is_some() { sums } else { 0 }])
}

fn run(facts: &Facts, _knobs: &Knobs, buffers: &mut HostBuffers<'_>) -> Result<(), HostError> {
    let f = facts.expect_grouped_gemm();
    let p = &f.ports;
    let (inputs, status) = Inputs::new(f, buffers)?;
    if let Some(port) = &p.status {
        output(buffers, port)?[..4].copy_from_slice(&status.0.to_ne_bytes());
    }
    let (m, n) = (f.m as usize, f.n as usize);
    let blocks = m.div_ceil(TILE);
    let size = f.d.bytes().unwrap_or(1) as usize;
    let scale_row = ScaleMatrix::of(m, n, BLOCK).atoms()[1] * ATOM_BYTES;
    let scale_cols = n.div_ceil(TILE) * ATOM_BYTES;

    let [cols_bytes, sum_bytes] = region_bytes(f).ok_or_else(|| fault("workspace", "a size beyond 64 bits", "64 bits"))?;
    let cols_srelu_bytes = if p.sfd_col_d_srelu.is_some() { cols_bytes } else { 0 };
    let workspace = std::mem::take(&mut buffers.workspace);
    let [cols, cols_srelu, sums] = carve(workspace, [cols_bytes, cols_srelu_bytes, sum_bytes])?;
    let sums: &mut [f32] = bytemuck::try_cast_slice_mut(sums)
        .map_err(|_| fault("workspace", "a misaligned workspace", "a workspace aligned to 128 bytes"))?;

    {
        let mut taken: Vec<(Uid, &mut [u8])> = buffers.outputs.iter_mut().map(|(uid, bytes)| (*uid, &mut **bytes)).collect();
        let mut take = |port: &Option<GemmPort>| -> &mut [u8] {
            let at = port.as_ref().and_then(|p| taken.iter().position(|(uid, _)| *uid == p.uid));
            at.map_or(&mut [][..], |at| taken.swap_remove(at).1)
        };
        let mut parts: Vec<Part<'_>> = (0..blocks).map(|block| Part { block, ..Part::default() }).collect();
        let (d_row, d_col, d_srelu) = (take(&p.d_row), take(&p.d_col), take(&p.d_srelu));
        let (dprob, sfd_row) = (take(&p.dprob), take(&p.sfd_row));
        deal(&mut parts, d_row, TILE * n * size, |p, s| p.d_row = s);
        deal(&mut parts, d_col, TILE * n * size, |p, s| p.d_col = s);
        deal(&mut parts, d_srelu, TILE * n * size, |p, s| p.d_srelu = s);
        deal(&mut parts, dprob, TILE * 4, |p, s| p.dprob = s);
        deal(&mut parts, sfd_row, scale_row, |p, s| p.sfd_row = s);
        deal(&mut parts, cols, scale_cols, |p, s| p.cols = s);
        deal(&mut parts, cols_srelu, scale_cols, |p, s| p.cols_srelu = s);
        for (part, s) in parts.iter_mut().zip(sums.chunks_mut(n)) {
            part.sums = s;
        }
        parts.par_iter_mut().for_each_init(Scratch::default, |scratch, part| job(&inputs, scratch, part));
        let peaks: Vec<f32> = parts.iter().map(|p| p.amax).collect();
        drop(parts);
        let (sfd_col, sfd_col_d_srelu) = (take(&p.sfd_col), take(&p.sfd_col_d_srelu));
        place_columns(&inputs, cols, sfd_col);
        place_columns(&inputs, cols_srelu, sfd_col_d_srelu);
        let (dbias, amax) = (take(&p.dbias), take(&p.amax));
        for (expert, rows) in inputs.groups.iter().enumerate() {
            let own = rows.start / TILE..rows.end / TILE;
            if let Some(slot) = amax.get_mut(expert * 4..expert * 4 + 4) {
                let peak = own.clone().fold(f32::NEG_INFINITY, |a, b| larger(a, peaks[b]));
                slot.copy_from_slice(&peak.to_ne_bytes());
            }
            for (col, slot) in dbias.chunks_exact_mut(2).skip(expert * n).take(n).enumerate() {
                let sum: f64 = own.clone().map(|b| f64::from(sums[b * n + col])).sum();
                slot.copy_from_slice(&bf16::from_f32(sum as f32).to_ne_bytes());
            }
        }
    }
    Ok(())
}

fn output<'b>(buffers: &'b mut HostBuffers<'_>, port: &GemmPort) -> Result<&'b mut [u8], HostError> {
    let found = buffers.outputs.get_mut(&port.uid).map(|b| &mut **b);
    found.ok_or_else(|| fault(&port.name, format!("no buffer is bound to uid {}", port.uid), "a buffer"))
}

/// Cuts the workspace into its regions as the plan lays them out.
fn carve(workspace: &mut [u8], lengths: [u64; 3]) -> Result<[&mut [u8]; 3], HostError> {
    let have = workspace.len();
    let mut rest = workspace;
    let mut out: [&mut [u8]; 3] = Default::default();
    for (slot, bytes) in out.iter_mut().zip(lengths) {
        let whole = (bytes as usize).next_multiple_of(crate::launch::WORKSPACE_ALIGN as usize);
        let (mine, tail) = std::mem::take(&mut rest)
            .split_at_mut_checked(whole)
            .ok_or_else(|| fault("workspace", format!("{have} bytes"), "a workspace of the planned size"))?;
        (*slot, rest) = (&mut mine[..bytes as usize], tail);
    }
    Ok(out)
}

/// Hands every job its piece of a buffer that lies row block by row block.
fn deal<'a>(parts: &mut [Part<'a>], bytes: &'a mut [u8], piece: usize, set: impl Fn(&mut Part<'a>, &'a mut [u8])) {
    for (part, slice) in parts.iter_mut().zip(bytes.chunks_mut(piece.max(1))) {
        set(part, slice);
    }
}
