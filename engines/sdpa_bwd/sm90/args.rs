//! Parameters, switches and grids of the launches that this row has of its own.

use super::{split, Choice, CVT_T};
use crate::sdpa::arith::ceil_div;
use crate::sdpa::params::{ptr, Params};
use crate::sdpa_bwd::lower::{Chain, Kernel};
use crate::{Arg, Feature, Port, Step};

/// dQ of the transposed accumulator.
pub(super) fn cvt_t(chain: &mut Chain<'_>, c: &Choice) {
    let f = chain.f;
    let mut p = Params::default();
    p.push("dq_accum", chain.region(chain.regions.dq_accum));
    p.push("dq", ptr(&f.ports.dq));
    p.strides(["dq_sb", "dq_sh", "dq_ss"], &f.ports.dq);
    p.sizes(&[("batch", f.b), ("heads_q", f.h_q), ("s_q", f.s_q), ("d_qk", f.d_qk), ("ws_rows", chain.ws_rows)]);
    p.push("scale", Arg::F32(chain.scale));
    p.push("seq_q", if chain.thd { ptr(&f.ports.seq_len_q) } else { Arg::Null });
    p.push("rag_q", chain.rag(&f.ports.q));
    p.push("rag_dq", chain.rag(&f.ports.dq));
    p.i64("mul_q", chain.mul(&f.ports.q));
    p.i64("mul_dq", chain.mul(&f.ports.dq));
    p.i64("q_ss", chain.token_stride(&f.ports.q));
    let defines = [
        ("FG_BF16", chain.bf16()),
        ("FG_D_QK", c.dims.0),
        ("FG_Q_TILE", c.q_tile),
        ("FG_THD", i64::from(chain.thd)),
        ("FG_RAGGED_I64", chain.ragged_i64()),
    ];
    let grid = ceil_div(f.s_q, c.q_tile) * f.h_q * f.b;
    chain.launch(CVT_T, &defines, grid, (256, 0), p);
}

/// Launches `kernel`, which is main or one with its parameters and switches, over the chain's inputs.
pub(crate) fn main(chain: &mut Chain<'_>, c: &Choice, kernel: Kernel, smem: i64) {
    let (f, ports, thd) = (chain.f, &chain.f.ports, chain.thd);
    let split = split(f, c);
    let mut p = Params::default();
    let copies = chain.inputs.copies();
    for (name, port, rows, copy) in [
        ("tm_q", &ports.q, c.q_tile, copies[0]),
        ("tm_k", &ports.k, c.kv_tile, copies[1]),
        ("tm_v", &ports.v, c.kv_tile, copies[2]),
        ("tm_do", &ports.d_o, c.q_tile, None),
    ] {
        p.push(name, chain.map(port, copy, 64, rows, 128));
    }
    chain.push_sums(&mut p, split);
    p.push("seq_q", ptr(&ports.seq_len_q));
    p.push("seq_kv", ptr(&ports.seq_len_kv));
    chain.push_rows(&mut p, split.then_some((f.h_q / c.heads_item, c.dims.0, c.dims.1)));
    p.sizes(&[
        ("batch", f.b),
        ("heads_q", f.h_q),
        ("heads_item", c.heads_item),
        ("group", f.h_q / f.h_kv),
        ("s_q", f.s_q),
        ("s_kv", f.s_kv),
        ("d_qk", f.d_qk),
        ("d_v", f.d_v),
        ("ws_rows", chain.ws_rows),
    ]);
    chain.bounds(&mut p);
    p.sizes(&[("interleave", c.interleave)]);
    p.push("scale", Arg::F32(chain.scale));
    let (dbias, _, dbias_sb) = chain.dbias_target();
    p.push("bias", ptr(&ports.bias));
    p.push("dbias", dbias);
    chain.push_bias_strides(&mut p, dbias_sb);
    let early = |port: &Option<Port>| port.clone().filter(|_| c.ahead > 0);
    let (o, d_o) = (early(&ports.o), early(&ports.d_o));
    p.push("ahead_o", ptr(&o));
    p.push("ahead_do", ptr(&d_o));
    p.strides(["ao_sb", "ao_sh", "ao_ss"], &o);
    p.strides(["ado_sb", "ado_sh", "ado_ss"], &d_o);
    p.sizes(&[("ahead", c.ahead)]);
    let [causal, window] = chain.mask_defines();
    let defines = [
        ("FG_BF16", chain.bf16()),
        ("FG_D_QK", c.dims.0),
        ("FG_D_V", c.dims.1),
        ("FG_Q_TILE", c.q_tile),
        ("FG_ORDER", c.order),
        causal,
        window,
        ("FG_PADDED", chain.padded()),
        ("FG_THD", i64::from(thd)),
        ("FG_RAGGED_I64", chain.ragged_i64()),
        ("FG_DKV_WS", i64::from(split)),
        ("FG_DET", i64::from(f.features.has(Feature::Deterministic))),
        ("FG_STAGED", i64::from(c.staged)),
        ("FG_AHEAD", i64::from(c.ahead > 0)),
        ("FG_BIAS", chain.bias_kind()),
        ("FG_DBIAS", i64::from(c.dbias)),
    ];
    let items = c.cluster() * ceil_div(f.s_kv, c.cluster() * c.kv_tile) * (f.h_q / c.heads_item) * f.b;
    chain.launch(kernel, &defines, c.blocks(items), (384, smem), p);
    if let Some(Step::Kernel(l)) = chain.steps.last_mut() {
        l.cluster[0] = u32::try_from(c.cluster()).unwrap_or(u32::MAX);
    }
}
