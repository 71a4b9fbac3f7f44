//! The walks of `nvfp4_qat_fwd_sm120`: mma.sync, one source for compute capability 9.0 to 12.x.

use super::chain::{Second, Walks};
use super::quantize;
use crate::sdpa::arith::ceil_div;
use crate::sdpa::params::{ptr, Params};
use crate::sdpa_fwd::lower::{bounds, launch, lens, Kernel, Shape};
use crate::sdpa_fwd::prefill::{self, Sched};
use crate::sdpa_fwd::{config, rules};
use crate::{Arg, Decline, Knob, Knobs, Step};

const PV: Kernel = Kernel("quantized_pv", "qat/fwd/mma/quantized_pv.cu", "fg_qat_fwd_quantized_pv");

/// Kernel sources of the row.
pub const SOURCES: &[&str] = &[quantize::SOURCE, prefill::SOURCES[0], PV.1];

/// The walks.
pub const WALKS: Walks = Walks { first: prefill::lower, second };

/// Query rows and keys of a tile of the second walk: more leave no room for the quantiser beside two slabs of accumulators.
const TILES: (i64, i64) = (128, 64);

fn second(s: &Second<'_>) -> Result<Step, Decline> {
    let Second { row, f, plain, knobs, scale, target } = *s;
    let tiles = Knobs::new(&[(Knob::TileM, TILES.0), (Knob::TileN, TILES.1)]);
    let c = &config::prefill(row, (f.d_qk, f.d_v), false, &tiles, rules::smem(row, target)?)?;
    let sched = knobs.get(Knob::SchedPolicy).unwrap_or(Sched::Natural as i64);
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
    Ok(launch(PV, &prefill::defines(plain, c, false, sched), &shape, p, target))
}
