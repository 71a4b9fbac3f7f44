//! The walks of `nvfp4_qat_fwd_sm90`: wgmma. Parameter list and switches follow `kernels/qat/fwd/sm90/README.md`.

use super::chain::{Second, Walks};
use super::quantize;
use crate::sdpa::params::{ptr, Params};
use crate::sdpa_fwd::lower::{bounds, launch, lens, Kernel};
use crate::sdpa_fwd::prefill::Sched;
use crate::sdpa_fwd::prefill_sm90::{self, Config};
use crate::sdpa_fwd::rules;
use crate::{Arg, Decline, Knob, SdpaFacts, Step};

const PV: Kernel = Kernel("quantized_pv", "qat/fwd/sm90/quantized_pv.cu", "fg_qat_fwd_sm90_pv");

/// Kernel sources of the row.
pub const SOURCES: &[&str] = &[quantize::SOURCE, prefill_sm90::SOURCES[0], PV.1];

/// The walks.
pub const WALKS: Walks = Walks { first: prefill_sm90::lower, second };

/// Tiles of the second walk: the plain forward's, but for fewer keys at d 128. The quantiser, not the tensor core, sets the pace there, and shorter
/// tiles overlap better (S 4096: 641 against 623 TFLOP/s, causal 518 against 476) until the keys are many (S 16384: 684 against 725).
fn tiles(f: &SdpaFacts, plain: Config) -> Config {
    const MANY: i64 = 8192;
    let kv_tile = if plain.d_v == 128 && f.s_kv <= MANY { 96 } else { plain.kv_tile };
    Config { kv_tile, ..plain }
}

fn second(s: &Second<'_>) -> Result<Step, Decline> {
    let Second { row, f, plain, knobs, scale, target } = *s;
    let c = tiles(f, rules::prefill_sm90(row, plain, knobs, target)?);
    let sched = knobs.get(Knob::SchedPolicy).unwrap_or(Sched::Natural as i64);
    let ports = &plain.ports;
    let mut p = Params::default();
    for (name, map) in prefill_sm90::maps(plain, &c) {
        p.push(name, map);
    }
    let pointers = [
        ("o", &f.ports.o),
        ("lse", &ports.stats),
        ("seq_q", lens(&ports.seq_len_q, &ports.cu_seq_len_q)),
        ("seq_kv", lens(&ports.seq_len_kv, &ports.cu_seq_len_kv)),
    ];
    for (name, port) in pointers {
        p.push(name, ptr(port));
    }
    p.strides(["o_sb", "o_sh", "o_ss"], &f.ports.o);
    p.strides(["lse_sb", "lse_sh", "lse_ss"], &ports.stats);
    p.sizes(&[("batch", f.b), ("heads_q", f.h_q), ("group", f.h_q / f.h_kv), ("s_q", f.s_q), ("s_kv", f.s_kv), ("d_v", f.d_v)]);
    bounds(f, &mut p);
    p.sizes(&[
        ("section", prefill_sm90::section(f, &c, sched, target)),
        ("longest_first", i64::from(sched != Sched::Natural as i64)),
    ]);
    p.push("scale", Arg::F32(scale));
    Ok(launch(PV, &prefill_sm90::defines(plain, &c), &prefill_sm90::shape(f, &c, target), p, target))
}
