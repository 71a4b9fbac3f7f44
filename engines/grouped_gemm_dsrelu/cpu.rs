//! The CPU row: a job owns 128 rows of one expert and walks the columns in order, so every sum has one order and results are equal bits for
//! any number of threads.

use super::cpu_tile::{payload, read, scale, write, Panel, Product, TILE};
use crate::grouped_gemm::epilogue::{block_scale, element, encode_fp8, rcp_max};
use crate::grouped_gemm::groups::groups;
use crate::grouped_gemm::scales::{in_atom, ColumnScales, ScaleMatrix, ATOM_BYTES};
use crate::grouped_gemm::{GemmPort, GroupedGemmFacts, Weights};
use crate::sdpa::access::{bytes_of, fault};
use crate::{
    DType, Decline, DeclineCode, Facts, Feature, HostBuffers, HostCall, HostError, Knobs, LaunchPlan, Step, Target, Uid,
};
use half::bf16;
use rayon::prelude::*;
use std::ops::Range;

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

fn need<'a>(port: &'a Option<GemmPort>, what: &str) -> Result<&'a GemmPort, HostError> {
    port.as_ref().ok_or_else(|| fault(what, "the node does not have this operand", "it to be present"))
}

fn floats(bytes: &[u8], at: usize) -> f32 {
    read(DType::F32, bytes, at)
}

/// Inputs of one execution.
struct Inputs<'a> {
    f: &'a GroupedGemmFacts,
    a: &'a [u8],
    sfa: &'a [u8],
    c: &'a [u8],
    alpha: &'a [u8],
    prob: &'a [u8],
    norm: f32,
    /// Payload and scales of B by expert; empty for an expert without rows.
    b: Vec<[&'a [u8]; 2]>,
    groups: Vec<Range<usize>>,
    /// Expert of each 128-row block; `None` past the last expert.
    owner: Vec<Option<usize>>,
}

impl<'a> Inputs<'a> {
    fn new(f: &'a GroupedGemmFacts, buffers: &HostBuffers<'a>, groups: Vec<Range<usize>>) -> Result<Inputs<'a>, HostError> {
        let p = &f.ports;
        let bytes = |port: &Option<GemmPort>, what: &str| {
            let port = need(port, what)?;
            bytes_of(&buffers.inputs, port.uid, &port.name)
        };
        let norm = if p.norm_const.is_some() { floats(bytes(&p.norm_const, "norm_const")?, 0) } else { 1.0 };
        let mut owner = vec![None; (f.m as usize).div_ceil(TILE)];
        for (expert, rows) in groups.iter().enumerate() {
            owner[rows.start / TILE..rows.end / TILE].fill(Some(expert));
        }
        Ok(Inputs {
            a: bytes(&p.a, "A")?,
            sfa: bytes(&p.sfa, "SFA")?,
            c: bytes(&p.c, "C")?,
            alpha: bytes(&p.alpha, "alpha")?,
            prob: bytes(&p.prob, "prob")?,
            norm,
            b: weights(f, &bytes, &groups)?,
            groups,
            owner,
            f,
        })
    }
}

/// Bytes of one expert's payload and scales of B.
fn expert_bytes(f: &GroupedGemmFacts) -> [usize; 2] {
    let values = f.n as usize * f.k as usize;
    let payload = if f.ab == DType::F4E2M1 { values / 2 } else { values };
    [payload, ScaleMatrix::of(f.n as usize, f.k as usize, f.sf_vec as usize).bytes()]
}

/// B of every expert: slices of the dense tensors, or of the pools at the given byte offsets, each checked to lie inside.
fn weights<'a>(
    f: &GroupedGemmFacts,
    bytes: &impl Fn(&Option<GemmPort>, &str) -> Result<&'a [u8], HostError>,
    groups: &[Range<usize>],
) -> Result<Vec<[&'a [u8]; 2]>, HostError> {
    let p = &f.ports;
    let pools = [bytes(&p.b, "B")?, bytes(&p.sfb, "SFB")?];
    let sizes = expert_bytes(f);
    let offsets = match f.weights {
        Weights::Dense => None,
        Weights::Pool | Weights::Addresses => Some([bytes(&p.b_ptrs, "B_ptrs")?, bytes(&p.sfb_ptrs, "SFB_ptrs")?]),
    };
    let mut out = Vec::with_capacity(groups.len());
    for (expert, rows) in groups.iter().enumerate() {
        let mut both: [&[u8]; 2] = [&[], &[]];
        for (i, slot) in both.iter_mut().enumerate().filter(|_| !rows.is_empty()) {
            let name = ["B_ptrs", "SFB_ptrs"][i];
            let start = match offsets {
                None => Some(expert * sizes[i]),
                Some(lists) => {
                    let entry = lists[i].get(expert * 8..expert * 8 + 8);
                    entry.and_then(|e| usize::try_from(i64::from_ne_bytes(e.try_into().ok()?)).ok())
                }
            };
            let part = start.and_then(|s| pools[i].get(s..s.checked_add(sizes[i])?));
            *slot = part.ok_or_else(|| {
                let given = format!("offset {} of expert {expert}", start.map_or("below 0".into(), |s| s.to_string()));
                fault(name, given, format!("{} bytes of it inside a pool of {} bytes", sizes[i], pools[i].len()))
            })?;
        }
        out.push(both);
    }
    Ok(out)
}

/// Where one job writes: 128 rows of every output. Absent outputs are empty.
#[derive(Default)]
struct Part<'a> {
    block: usize,
    d_row: &'a mut [u8],
    d_col: &'a mut [u8],
    d_srelu: &'a mut [u8],
    dprob: &'a mut [u8],
    sfd_row: &'a mut [u8],
    cols: &'a mut [u8],
    cols_srelu: &'a mut [u8],
    sums: &'a mut [f32],
    amax: f32,
}

/// Scratch of a thread.
#[derive(Default)]
struct Scratch {
    a: Panel,
    b: Panel,
    g: Vec<f32>,
    d: Vec<f32>,
    srelu: Vec<f32>,
}

fn run(facts: &Facts, _knobs: &Knobs, buffers: &mut HostBuffers<'_>) -> Result<(), HostError> {
    let f = facts.expect_grouped_gemm();
    let p = &f.ports;
    let ends = need(&p.padded_offsets, "padded_offsets")?;
    let ends: Vec<i32> = bytes_of(&buffers.inputs, ends.uid, &ends.name)?
        .chunks_exact(4)
        .take(f.experts as usize)
        .map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let (groups, status) = groups(&ends, f.m);
    match &p.status {
        Some(port) => output(buffers, port)?[..4].copy_from_slice(&status.0.to_ne_bytes()),
        None if status.is_ok() => {}
        None => {
            let expected = format!("ends that do not decrease, are multiples of 256 and at most {}", f.m);
            return Err(fault("padded_offsets", status.to_string(), expected));
        }
    }
    let inputs = Inputs::new(f, buffers, groups)?;
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

/// The larger magnitude by its bits, as an integer maximum on the device has it: a NaN is larger than everything.
fn larger(a: f32, b: f32) -> f32 {
    if a.is_nan() || (!b.is_nan() && a >= b) {
        a
    } else {
        b
    }
}

/// 128 rows of one expert, all columns.
fn job(x: &Inputs<'_>, scratch: &mut Scratch, part: &mut Part<'_>) {
    let f = x.f;
    let row0 = part.block * TILE;
    let Some(expert) = x.owner[part.block] else {
        // Only dprob is defined where no expert is.
        part.dprob.fill(0);
        return;
    };
    let (n, k, vec) = (f.n as usize, f.k as usize, f.sf_vec as usize);
    let blocks = k.div_ceil(vec);
    let (sa, sb) = (ScaleMatrix::of(f.m as usize, k, vec), ScaleMatrix::of(n, k, vec));
    let Scratch { a, b, g, d, srelu } = scratch;
    a.fill(TILE, [k, blocks], |r, i| payload(f.ab, x.a, (row0 + r) * k + i), |r, i| scale(f.sf, x.sfa[sa.index(row0 + r, i)]));
    for buffer in [&mut *g, &mut *d, &mut *srelu] {
        buffer.resize(TILE * TILE, 0.0);
    }
    let [weights, weight_scales] = x.b[expert];
    let alpha = floats(x.alpha, expert);
    let double = f.features.has(Feature::F64Accumulate);
    let mut dprob = [0.0f64; TILE];
    part.amax = f32::NEG_INFINITY;
    part.sfd_row.fill(0);
    part.cols.fill(0);
    part.cols_srelu.fill(0);
    for col0 in (0..n).step_by(TILE) {
        let cols = TILE.min(n - col0);
        let at = |c: usize, i: usize| if f.b_n_major { i * n + col0 + c } else { (col0 + c) * k + i };
        b.fill(
            cols,
            [k, blocks],
            |c, i| payload(f.ab, weights, at(c, i)),
            |c, i| scale(f.sf, weight_scales[sb.index(col0 + c, i)]),
        );
        Product { a, b, k, vec, double, out: g }.run();
        for r in 0..TILE {
            let prob = floats(x.prob, row0 + r);
            for c in 0..cols {
                let value = alpha * g[r * TILE + c];
                let e = element(f.formula, f.tanh_clamp_scale, value, read(f.c, x.c, (row0 + r) * n + col0 + c), prob);
                d[r * TILE + c] = e.d;
                srelu[r * TILE + c] = e.srelu;
                dprob[r] += f64::from(e.dprob);
                part.amax = larger(part.amax, e.d.abs());
            }
        }
        if let Some(sums) = part.sums.get_mut(col0..col0 + cols) {
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = (0..TILE).map(|r| f64::from(d[r * TILE + c])).sum::<f64>() as f32;
            }
        }
        if f.quantised {
            let q = Quantiser { d: f.d, norm: x.norm, rcp: rcp_max(f.d), n, col0, cols };
            let atom = col0 / TILE * ATOM_BYTES;
            q.rows(d, part.d_row, part.sfd_row);
            q.columns(d, part.d_col, &mut part.cols[atom..atom + ATOM_BYTES]);
            if let Some(atom) = part.cols_srelu.get_mut(atom..atom + ATOM_BYTES) {
                q.columns(srelu, part.d_srelu, atom);
            }
        } else {
            for (values, out) in [(&*d, &mut *part.d_row), (&*d, &mut *part.d_col), (&*srelu, &mut *part.d_srelu)] {
                if out.is_empty() {
                    continue;
                }
                for r in 0..TILE {
                    (0..cols).for_each(|c| write(f.d, out, r * n + col0 + c, values[r * TILE + c]));
                }
            }
        }
    }
    for (slot, sum) in part.dprob.chunks_exact_mut(4).zip(dprob) {
        slot.copy_from_slice(&(sum as f32).to_ne_bytes());
    }
}

/// Quantises one 128-column tile of results.
struct Quantiser {
    d: DType,
    norm: f32,
    rcp: f32,
    n: usize,
    col0: usize,
    cols: usize,
}

impl Quantiser {
    /// One scale for each row and 32 consecutive columns; a last block of fewer columns has the largest of those.
    fn rows(&self, tile: &[f32], out: &mut [u8], scales: &mut [u8]) {
        let matrix = ScaleMatrix::of(TILE, self.n, BLOCK);
        for r in 0..TILE {
            for c0 in (0..self.cols).step_by(BLOCK) {
                let values = &tile[r * TILE + c0..r * TILE + self.cols.min(c0 + BLOCK)];
                let (code, by) = block_scale(values.iter().fold(0.0, |a: f32, v| a.max(v.abs())), self.rcp, self.norm);
                scales[matrix.index(r, (self.col0 + c0) / BLOCK)] = code;
                for (i, v) in values.iter().enumerate() {
                    out[r * self.n + self.col0 + c0 + i] = encode_fp8(self.d, v * by);
                }
            }
        }
    }

    /// One scale for each column and 32 consecutive rows, into one atom: its rows are columns of D.
    fn columns(&self, tile: &[f32], out: &mut [u8], atom: &mut [u8]) {
        for c in 0..self.cols {
            for r0 in (0..TILE).step_by(BLOCK) {
                let values = || (r0..r0 + BLOCK).map(|r| (r, tile[r * TILE + c]));
                let (code, by) = block_scale(values().fold(0.0, |a: f32, (_, v)| a.max(v.abs())), self.rcp, self.norm);
                atom[in_atom(c, r0 / BLOCK)] = code;
                for (r, v) in values() {
                    out[r * self.n + self.col0 + c] = encode_fp8(self.d, v * by);
                }
            }
        }
    }
}

/// Copies the atoms of column scales from row-block order to their place in the output.
fn place_columns(x: &Inputs<'_>, from: &[u8], out: &mut [u8]) {
    if out.is_empty() {
        return;
    }
    let n = x.f.n as usize;
    let layout = ColumnScales { m: x.f.m as usize, n, discrete: x.f.discrete_col_sfd };
    for (block, owner) in x.owner.iter().enumerate() {
        let Some(expert) = owner else { continue };
        for (atom, bytes) in
            from[block * n.div_ceil(TILE) * ATOM_BYTES..].chunks_exact(ATOM_BYTES).take(n.div_ceil(TILE)).enumerate()
        {
            let at = layout.atom(atom, block * TILE, &x.groups[*expert]);
            out[at..at + ATOM_BYTES].copy_from_slice(bytes);
        }
    }
}
