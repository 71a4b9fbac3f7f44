//! The CPU forward: online softmax over key tiles, one job for each tile of query rows.
//!
//! Keys and values are converted once into the workspace. A job owns its rows and walks the keys in ascending order, so results
//! are bitwise equal for any number of threads, and independent of batch neighbours and declared maxima (field report 70).

use crate::sdpa::access::{bytes_of, fault, need, scale, Inputs, Place, Rows};
use crate::sdpa::cpu::arena::{capacity, waves, Side, Wave};
use crate::sdpa::cpu::lower::{checked, host_plan};
use crate::sdpa::cpu::tile::{transpose, Operand};
use crate::sdpa::cpu::{padded, regions, vectorize, BK, BQ};
use crate::sdpa::{Lengths, SdpaFacts};
use crate::{Decline, Facts, HostBuffers, HostCall, HostError, Knobs, LaunchPlan, Port, Target};
use rayon::prelude::*;

use super::cpu_tile::{Job, Scratch};

/// Name of the row and of its step.
const NAME: &str = "sdpa_fwd_cpu";

/// Bytes of converted keys and values, and of results, that a wave may hold beyond one batch entry.
const BUDGET: u64 = 64 << 20;

/// Values kept of each query row: log-sum-exp, maximum, sum of exponentials.
pub(super) const ROW_VALUES: usize = 3;

/// Workspace geometry: a function of the graph alone.
struct Sizes {
    cap_q: u64,
    cap_kv: u64,
    k_tile: usize,
    v_tile: usize,
    o_tile: usize,
}

impl Sizes {
    fn new(f: &SdpaFacts) -> Option<Sizes> {
        let (d_qk, d_v) = (usize::try_from(f.d_qk).ok()?, usize::try_from(f.d_v).ok()?);
        // Nothing below needs more than this many bytes a tile, so nothing below overflows.
        d_qk.max(d_v).checked_mul(64 * BQ)?;
        let (k_tile, v_tile, o_tile) = (d_qk * BK, padded(d_v) * BK, padded(d_v) * BQ);
        let cap_kv = capacity(f.b, f.h_kv, f.s_kv, BK, 4 * (k_tile + v_tile) as u64, BUDGET)?;
        let cap_q = capacity(f.b, f.h_q, f.s_q, BQ, 4 * (o_tile + ROW_VALUES * BQ) as u64, BUDGET)?;
        Some(Sizes { cap_q, cap_kv, k_tile, v_tile, o_tile })
    }

    /// Lengths of the regions in f32: transposed keys, values, results, row values.
    fn regions(&self) -> Option<[u64; 4]> {
        Some([
            self.cap_kv.checked_mul(self.k_tile as u64)?,
            self.cap_kv.checked_mul(self.v_tile as u64)?,
            self.cap_q.checked_mul(self.o_tile as u64)?,
            self.cap_q.checked_mul((ROW_VALUES * BQ) as u64)?,
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
    checked(NAME, &[&p.o, &p.stats, &p.score_max, &p.score_sum_exp], plan(f))
}

/// Workspace regions and the host step; `None` when the workspace size does not fit 64 bits.
fn plan(f: &SdpaFacts) -> Option<LaunchPlan> {
    host_plan(HostCall { name: NAME, run }, ["k_f32", "v_f32", "o_f32", "rows"], Sizes::new(f)?.regions()?)
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
    pub bias: Option<Operand<'a>>,
    pub sink: Option<Vec<f32>>,
}

/// The packed keys and values of a wave.
pub(super) struct Packed<'a> {
    pub side: &'a Side,
    pub k: &'a [f32],
    pub v: &'a [f32],
    /// Rows of each tile that were not finite, in K and in V.
    pub bad: Vec<[u64; 2]>,
}

fn keys<'a>(port: &Port, table: &Option<Port>, lens: &Lengths, inputs: &Inputs<'a>) -> Result<Operand<'a>, HostError> {
    let Some(table) = table else { return Operand::of(port, Rows::Key, lens, inputs) };
    let bytes = bytes_of(inputs, port.uid, &port.name)?;
    Ok(Operand { place: Place::paged(port, table, lens, inputs, bytes.len())?, bytes, nvfp4: false })
}

/// Runs the forward of a node.
///
/// # Errors
/// [`HostError`] when lengths, offsets, block tables or buffers contradict the graph; outputs are untouched then.
pub fn run(facts: &Facts, _: &Knobs, buffers: &mut HostBuffers<'_>) -> Result<(), HostError> {
    let f = facts.expect_sdpa();
    let (p, inputs) = (&f.ports, &buffers.inputs);
    let lens = Lengths::resolve(f, inputs)?;
    let sink = p.sink.as_ref().map(|s| Operand::of(s, Rows::Declared, &lens, inputs)).transpose()?;
    let context = Context {
        mask: f.mask,
        group: (f.h_q / f.h_kv) as usize,
        scale: scale(f, inputs)?,
        q: Operand::of(need(&p.q, "Q")?, Rows::Query, &lens, inputs)?,
        k: keys(need(&p.k, "K")?, &p.page_table_k, &lens, inputs)?,
        v: keys(need(&p.v, "V")?, &p.page_table_v, &lens, inputs)?,
        bias: p.bias.as_ref().map(|b| Operand::of(b, Rows::Declared, &lens, inputs)).transpose()?,
        sink: sink.map(|s| (0..f.h_q as usize).map(|h| s.place.get(s.bytes, 0, h, 0, 0)).collect()),
        lens: &lens,
    };
    let mut outputs = Vec::new();
    let row_outputs = [(&p.stats, 0), (&p.score_max, 1), (&p.score_sum_exp, 2)];
    for (port, value) in [(&p.o, None)].into_iter().chain(row_outputs.map(|(p, i)| (p, Some(i)))) {
        let Some(port) = port else { continue };
        let buffer = buffers.outputs.get(&port.uid).map(|b| b.len());
        let buffer = buffer.ok_or_else(|| fault(&port.name, format!("no buffer is bound to uid {}", port.uid), "a buffer"))?;
        outputs.push((port.uid, value, Place::new(port, Rows::Query, &lens, inputs, buffer)?));
    }

    let sizes = Sizes::new(f).and_then(|s| s.regions().map(|r| (s, r)));
    let (sizes, floats) = sizes.ok_or_else(|| fault("workspace", "a size beyond 64 bits", "a workspace in 64 bits"))?;
    let [k_f32, v_f32, o_f32, rows] = regions(buffers.workspace, floats)?;
    let d_v = f.d_v as usize;
    for wave in waves(&lens, [f.h_q as usize, f.h_kv as usize], [BQ, BK], sizes.cap_q, sizes.cap_kv) {
        let bad = pack_keys(&context, &wave, &sizes, k_f32, v_f32);
        let packed = Packed { side: &wave.kv, k: k_f32, v: v_f32, bad };
        let jobs = wave.q.tiles.par_iter().zip(o_f32.par_chunks_mut(sizes.o_tile)).zip(rows.par_chunks_mut(ROW_VALUES * BQ));
        jobs.for_each_init(Scratch::default, |scratch, ((&tile, o), rows)| {
            vectorize(Job { context: &context, packed: &packed, tile, o, rows, scratch });
        });
        let log2 = f.features.has(crate::Feature::StatsLog2);
        for (uid, value, place) in &outputs {
            let bytes = buffers.outputs.get_mut(uid).expect("checked above");
            let fill = |b: usize, h: usize, s: usize, out: &mut [f32]| {
                let live = (s as i64) < lens.q[b];
                let slot = if live { wave.q.slot(b, h, s) } else { 0 };
                match value {
                    None if live => {
                        let at = slot * sizes.o_tile + s % BQ * padded(d_v);
                        out.copy_from_slice(&o_f32[at..at + d_v]);
                    }
                    None => out.fill(0.0),
                    Some(i) if live => {
                        let x = rows[(slot * ROW_VALUES + i) * BQ + s % BQ];
                        out[0] = if *i == 0 && log2 { (x as f64 * std::f64::consts::LOG2_E) as f32 } else { x };
                    }
                    // Rows past the length: no keys, so no sum and a maximum and logarithm of -inf (field report 75).
                    Some(2) => out[0] = 0.0,
                    Some(_) => out[0] = f32::NEG_INFINITY,
                }
            };
            place.scatter(bytes, wave.batches.clone(), 0..f.h_q as usize, 0..f.s_q as usize, &fill);
        }
    }
    Ok(())
}

/// Converts the keys and values of a wave; returns the non-finite rows of each tile.
fn pack_keys(context: &Context<'_>, wave: &Wave, sizes: &Sizes, k: &mut [f32], v: &mut [f32]) -> Vec<[u64; 2]> {
    let tiles = wave.kv.tiles.par_iter().zip(k.par_chunks_mut(sizes.k_tile)).zip(v.par_chunks_mut(sizes.v_tile));
    tiles
        .map_init(Vec::new, |rows, ((&t, k), v)| {
            let cols = context.k.place.cols();
            rows.resize(BK * padded(cols), 0.0);
            let bad = context.k.pack(t, rows);
            transpose(rows, t.rows, cols, BK, k);
            [bad, context.v.pack(t, v)]
        })
        .collect()
}
