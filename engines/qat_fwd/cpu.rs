//! The CPU forward of NVFP4 QAT: every tile of query rows walks its keys twice.
//!
//! The first walk is an online softmax without values and ends in the LSE. The second one makes P from that LSE, adds P V^ to the
//! high-precision O, quantises P in place and adds P~ V^ to O. A job owns its rows and walks the keys in ascending order, so results are
//! bitwise equal for any number of threads, and P has the bits that the CPU backward computes from the same LSE.

use super::cpu_tile::{Job, Scratch};
use crate::sdpa::access::{fault, need, scale, Place, Rows};
use crate::sdpa::cpu::arena::{capacity, waves, Side, Wave};
use crate::sdpa::cpu::lower::{checked, host_plan};
use crate::sdpa::cpu::tile::{transpose, Operand};
use crate::sdpa::cpu::{padded, regions, vectorize, BK, BQ};
use crate::sdpa::{Lengths, SdpaFacts};
use crate::{Decline, Facts, HostBuffers, HostCall, HostError, Knobs, LaunchPlan, Target};
use rayon::prelude::*;

/// Name of the row and of its step.
const NAME: &str = "nvfp4_qat_fwd_cpu";

/// Bytes of converted keys and values, and of results, that a wave may hold beyond one batch entry.
const BUDGET: u64 = 64 << 20;

/// Workspace geometry: a function of the graph alone.
struct Sizes {
    cap_q: u64,
    cap_kv: u64,
    k_tile: usize,
    v_tile: usize,
    /// O and the high-precision O, one after the other.
    o_tile: usize,
}

impl Sizes {
    fn new(f: &SdpaFacts) -> Option<Sizes> {
        let (d_qk, d_v) = (usize::try_from(f.d_qk).ok()?, usize::try_from(f.d_v).ok()?);
        // Nothing below needs more than this many bytes a tile, so nothing below overflows.
        d_qk.max(d_v).checked_mul(64 * BQ)?;
        let (k_tile, v_tile, o_tile) = (d_qk * BK, padded(d_v) * BK, 2 * padded(d_v) * BQ);
        let cap_kv = capacity(f.b, f.h_kv, f.s_kv, BK, 4 * (k_tile + v_tile) as u64, BUDGET)?;
        let cap_q = capacity(f.b, f.h_q, f.s_q, BQ, 4 * (o_tile + BQ) as u64, BUDGET)?;
        Some(Sizes { cap_q, cap_kv, k_tile, v_tile, o_tile })
    }

    /// Lengths of the regions in f32: transposed keys, values, both results, log-sum-exp.
    fn regions(&self) -> Option<[u64; 4]> {
        Some([
            self.cap_kv.checked_mul(self.k_tile as u64)?,
            self.cap_kv.checked_mul(self.v_tile as u64)?,
            self.cap_q.checked_mul(self.o_tile as u64)?,
            self.cap_q.checked_mul(BQ as u64)?,
        ])
    }
}

/// Lowers a forward node to one host step.
///
/// # Errors
/// [`Decline`] for an output that overlaps itself and for a workspace beyond 64 bits.
pub fn lower(facts: &Facts, _: &Knobs, _: &Target) -> Result<LaunchPlan, Decline> {
    let f = facts.expect_sdpa();
    let p = &f.ports;
    checked(NAME, &[&p.o, &p.high_precision_o, &p.stats], plan(f))
}

/// Workspace regions and the host step; `None` when the workspace size does not fit 64 bits.
fn plan(f: &SdpaFacts) -> Option<LaunchPlan> {
    host_plan(HostCall { name: NAME, run }, ["k_f32", "v_f32", "o_f32", "lse"], Sizes::new(f)?.regions()?)
}

/// Everything a job reads.
pub(super) struct Context<'a> {
    pub mask: crate::sdpa::Mask,
    pub lens: &'a Lengths,
    pub group: usize,
    pub scale: f32,
    pub q: Operand<'a>,
    pub k: Operand<'a>,
    pub v: Operand<'a>,
}

/// The quantised keys and values of a wave.
pub(super) struct Packed<'a> {
    pub side: &'a Side,
    pub k: &'a [f32],
    pub v: &'a [f32],
}

/// An output of the node.
#[derive(Clone, Copy)]
enum Value {
    O,
    HighPrecisionO,
    Lse,
}

/// Runs the forward of a node.
///
/// # Errors
/// [`HostError`] when lengths, offsets or buffers contradict the graph; outputs are untouched then.
pub fn run(facts: &Facts, _: &Knobs, buffers: &mut HostBuffers<'_>) -> Result<(), HostError> {
    let f = facts.expect_sdpa();
    let (p, inputs) = (&f.ports, &buffers.inputs);
    let lens = Lengths::resolve(f, inputs)?;
    let quantised = |port, what, side| Ok(Operand { nvfp4: true, ..Operand::of(need(port, what)?, side, &lens, inputs)? });
    let context = Context {
        mask: f.mask,
        group: (f.h_q / f.h_kv) as usize,
        scale: scale(f, inputs)?,
        q: quantised(&p.q, "Q", Rows::Query)?,
        k: quantised(&p.k, "K", Rows::Key)?,
        v: quantised(&p.v, "V", Rows::Key)?,
        lens: &lens,
    };
    let mut outputs = Vec::new();
    for (port, value) in [(&p.o, Value::O), (&p.high_precision_o, Value::HighPrecisionO), (&p.stats, Value::Lse)] {
        let Some(port) = port else { continue };
        let buffer = buffers.outputs.get(&port.uid).map(|b| b.len());
        let buffer = buffer.ok_or_else(|| fault(&port.name, format!("no buffer is bound to uid {}", port.uid), "a buffer"))?;
        outputs.push((port.uid, value, Place::new(port, Rows::Query, &lens, inputs, buffer)?));
    }

    let sizes = Sizes::new(f).and_then(|s| s.regions().map(|r| (s, r)));
    let (sizes, floats) = sizes.ok_or_else(|| fault("workspace", "a size beyond 64 bits", "a workspace in 64 bits"))?;
    let [k_f32, v_f32, o_f32, lse] = regions(buffers.workspace, floats)?;
    let d_v = f.d_v as usize;
    for wave in waves(&lens, [f.h_q as usize, f.h_kv as usize], [BQ, BK], sizes.cap_q, sizes.cap_kv) {
        pack_keys(&context, &wave, &sizes, k_f32, v_f32);
        let packed = Packed { side: &wave.kv, k: k_f32, v: v_f32 };
        let jobs = wave.q.tiles.par_iter().zip(o_f32.par_chunks_mut(sizes.o_tile)).zip(lse.par_chunks_mut(BQ));
        jobs.for_each_init(Scratch::default, |scratch, ((&tile, o), lse)| {
            let (o, high_precision_o) = o.split_at_mut(sizes.o_tile / 2);
            vectorize(Job { context: &context, packed: &packed, tile, o, high_precision_o, lse, scratch });
        });
        for (uid, value, place) in &outputs {
            let bytes = buffers.outputs.get_mut(uid).expect("checked above");
            let fill = |b: usize, h: usize, s: usize, out: &mut [f32]| {
                let live = (s as i64) < lens.q[b];
                let slot = if live { wave.q.slot(b, h, s) } else { 0 };
                let result = |from: usize, out: &mut [f32]| {
                    let at = slot * sizes.o_tile + from + s % BQ * padded(d_v);
                    out.copy_from_slice(&o_f32[at..at + d_v]);
                };
                match value {
                    Value::O if live => result(0, out),
                    Value::HighPrecisionO if live => result(sizes.o_tile / 2, out),
                    Value::O | Value::HighPrecisionO => out.fill(0.0),
                    Value::Lse if live => out[0] = lse[slot * BQ + s % BQ],
                    // Rows past the length have no keys (field report 75).
                    Value::Lse => out[0] = f32::NEG_INFINITY,
                }
            };
            place.scatter(bytes, wave.batches.clone(), 0..f.h_q as usize, 0..f.s_q as usize, &fill);
        }
    }
    Ok(())
}

/// Quantises the keys and values of a wave.
fn pack_keys(context: &Context<'_>, wave: &Wave, sizes: &Sizes, k: &mut [f32], v: &mut [f32]) {
    let tiles = wave.kv.tiles.par_iter().zip(k.par_chunks_mut(sizes.k_tile)).zip(v.par_chunks_mut(sizes.v_tile));
    tiles.for_each_init(Vec::new, |rows, ((&t, k), v)| {
        let cols = context.k.place.cols();
        rows.resize(BK * padded(cols), 0.0);
        // Quantised values are finite whatever the input was, so no row is ever taken out.
        context.k.pack(t, rows);
        transpose(rows, t.rows, cols, BK, k);
        context.v.pack(t, v);
    });
}
