//! Lowers `nvfp4_qat_fwd_sm120`: three launches.
//!
//! Quantised copies of Q, K and V; the plain forward on them, which is the high-precision O and the LSE; then a second walk over the keys
//! that makes the normalised P from that LSE, quantises it and multiplies it with V^. The walks are two launches rather than one, so that
//! the first is the very kernel of the plain forward, and neither carries the other's state in its registers.

use super::quantize::{self, Copies};
use crate::sdpa::arith::{ceil_div, product};
use crate::sdpa::params::{ptr, Params};
use crate::sdpa_fwd::config::{self, Prefill};
use crate::sdpa_fwd::lower::{bounds, launch, lens, scale, Kernel, Shape};
use crate::sdpa_fwd::prefill::{self, Sched};
use crate::{Arg, Base, DType, Decline, DeclineCode as Code, Facts, Knob, Knobs, LaunchPlan, Port, Row, SdpaFacts, Step, Target};

const PV: Kernel = Kernel("quantized_pv", "qat/fwd/mma/quantized_pv.cu", "fg_qat_fwd_quantized_pv");

/// Kernel sources of the row.
pub const SOURCES: &[&str] = &[quantize::SOURCE, prefill::SOURCES[0], PV.1];

/// Query rows and keys of a tile of the second walk: more leave no room for the quantiser beside two slabs of accumulators.
const TILES: (i64, i64) = (128, 64);

/// Least scale. The second walk multiplies masked scores, which are -inf, by it: from here on the product with log2 e stays positive.
const LEAST_SCALE: f32 = 1e-30;

/// The launches for these facts.
///
/// # Errors
/// [`Decline`] for a scale that is a tensor or below 1e-30, for what the plain forward refuses, and for sizes and grids out of range.
pub fn lower(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Result<LaunchPlan, Decline> {
    let f = facts.expect_sdpa();
    let scale = scale(row, f)?;
    if scale.is_nan() || scale <= LEAST_SCALE {
        let reason = format!("attn_scale is {scale:e}; this row serves scales above {LEAST_SCALE:e}");
        return Err(row.decline(Code::Geometry, format!("attn_scale={scale:e}"), reason));
    }
    let Target::Cuda { smem_optin, total_memory, .. } = *target else {
        return Err(row.decline(Code::Arch, "device=cpu", "the device is cpu; this row serves CUDA devices"));
    };
    let too_large =
        |fact: String, what: &str| row.decline(Code::Geometry, fact, format!("{what} is out of the range of this row"));
    let grid = quantize::grid(f).filter(|&g| i32::try_from(g).is_ok());
    let grid = grid.ok_or_else(|| too_large("grid=quantize".into(), "a grid of rows over heads and batches"))?;
    let mut plan = LaunchPlan::default();
    let regions = carve(f, &mut plan).ok_or_else(|| too_large("workspace=overflow".into(), "the workspace size"))?;
    if plan.workspace_bytes > total_memory {
        let bytes = plan.workspace_bytes;
        let reason =
            format!("the quantised copies need a workspace of {bytes} bytes; the device has {total_memory} bytes in all");
        return Err(row.decline(Code::Resources, format!("workspace={bytes}"), reason));
    }

    let plain = plain(f);
    let mut first = prefill::lower(row, &Facts::Sdpa(Box::new(plain.clone())), knobs, target)?;
    for step in &mut first.steps {
        regions.place(step);
    }
    let tiles = Knobs::new(&[(Knob::TileM, TILES.0), (Knob::TileN, TILES.1)]);
    let c = config::prefill(row, (f.d_qk, f.d_v), false, &tiles, smem_optin)?;
    let sched = knobs.get(Knob::SchedPolicy).unwrap_or(Sched::Natural as i64);
    let mut second = second(f, &plain, &c, sched, scale, target);
    regions.place(&mut second);

    plan.steps.push(quantize::step(f, &regions.copies, grid, target));
    plan.steps.append(&mut first.steps);
    plan.steps.push(second);
    Ok(plan)
}

/// Workspace: the copies, and LSE where the graph does not ask for it.
struct Regions {
    copies: Copies,
    stats: Option<usize>,
}

fn carve(f: &SdpaFacts, plan: &mut LaunchPlan) -> Option<Regions> {
    let copies = Copies::carve(f, plan)?;
    let bytes = u64::try_from(product(&[4, f.b, f.h_q, f.s_q])?).ok()?;
    let stats = if stats(f).is_some() { None } else { Some(plan.region("lse", bytes)?) };
    Some(Regions { copies, stats })
}

impl Regions {
    /// Puts regions into the place of the operands that the kernel of `step` reads from the workspace.
    fn place(&self, step: &mut Step) {
        let Step::Kernel(l) = step else { return };
        for (name, arg) in l.names.iter().zip(&mut l.args) {
            let lse = self.stats.filter(|_| ["stats", "lse"].contains(name)).map(Base::Region);
            if let Some(base) = self.copies.base(name).or(lse) {
                *arg = Arg::Ptr(base);
            }
        }
    }
}

fn stats(f: &SdpaFacts) -> Option<&Port> {
    f.ports.stats.as_ref().filter(|_| f.wants_stats)
}

/// The first walk as a plain forward: operands laid out as their copies, O the high-precision one, LSE always.
///
/// A graph without high-precision O leaves it in O, which the second walk overwrites.
fn plain(f: &SdpaFacts) -> SdpaFacts {
    let mut g = f.clone();
    for port in [&mut g.ports.q, &mut g.ports.k, &mut g.ports.v] {
        *port = quantize::contiguous(port);
    }
    g.ports.o = f.ports.high_precision_o.clone().or(g.ports.o);
    g.ports.high_precision_o = None;
    let lse = stats(f).cloned().or_else(|| {
        let dim = [f.b, f.h_q, f.s_q, 1];
        let stride = [f.h_q * f.s_q, f.s_q, 1, 1];
        f.ports.q.as_ref().map(|q| Port { name: "LSE".into(), dim, stride, dtype: DType::F32, ragged: None, ..q.clone() })
    });
    (g.ports.stats, g.wants_stats) = (lse, true);
    g
}

fn second(f: &SdpaFacts, plain: &SdpaFacts, c: &Prefill, sched: i64, scale: f32, target: &Target) -> Step {
    let ports = &plain.ports;
    let mut p = Params::default();
    let pointers = [
        ("q", &ports.q),
        ("k", &ports.k),
        ("v", &ports.v),
        ("o", &f.ports.o),
        ("lse", &ports.stats),
        ("seq_q", lens(&ports.seq_len_q, &ports.cu_seq_len_q)),
        ("seq_kv", lens(&ports.seq_len_kv, &ports.cu_seq_len_kv)),
    ];
    for (name, port) in pointers {
        p.push(name, ptr(port));
    }
    p.strides(["q_sb", "q_sh", "q_ss"], &ports.q);
    p.strides(["k_sb", "k_sh", "k_ss"], &ports.k);
    p.strides(["v_sb", "v_sh", "v_ss"], &ports.v);
    p.strides(["o_sb", "o_sh", "o_ss"], &f.ports.o);
    p.strides(["lse_sb", "lse_sh", "lse_ss"], &ports.stats);
    p.sizes(&[
        ("batch", f.b),
        ("heads_q", f.h_q),
        ("group", f.h_q / f.h_kv),
        ("s_q", f.s_q),
        ("s_kv", f.s_kv),
        ("d_qk", f.d_qk),
        ("d_v", f.d_v),
    ]);
    bounds(f, &mut p);
    p.sizes(&[("section", prefill::section(f, c, false, sched, target))]);
    p.push("scale", Arg::F32(scale));
    let shape = Shape { grid: ceil_div(f.s_q, c.q_tile()) * f.h_q * f.b, block: c.threads(), smem: c.smem, waits: false };
    launch(PV, &prefill::defines(plain, c, false, sched), &shape, p, target)
}
