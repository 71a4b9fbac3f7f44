//! The kernels before and behind the products: what they clear, sum up and round.

use super::super::workspace::{dbias_planes, Route};
use super::{Chain, DotShare, CVT, DBIAS_CVT, DOT, DSINK, REDUCE, ZERO};
use crate::sdpa::arith::ceil_div;
use crate::sdpa::params::{narrow, ptr, Params};
use crate::{Arg, Base, DType};

impl Chain<'_> {
    pub(crate) fn zero(&mut self) {
        let (dst, count, _) = self.dbias_target();
        let mut p = Params::default();
        p.push("dst", dst);
        p.i64("count", count);
        let grid = elementwise_grid(count);
        self.launch(ZERO, &[], grid, (256, 0), p);
    }

    /// All heads, all of dq_accum, and the relay's counters.
    pub(crate) fn whole(&self) -> DotShare {
        let f = self.f;
        let counters = if self.choice.route == Route::Relay { f.b * f.h_q * ceil_div(f.s_q, 32) } else { 0 };
        DotShare { heads: f.b * f.h_q, accum: true, counters }
    }

    pub(crate) fn dot(&mut self) {
        self.dot_for(self.whole());
    }

    pub(crate) fn dot_for(&mut self, share: DotShare) {
        let f = self.f;
        let (o, d_o, q) = (&f.ports.o, &f.ports.d_o, &f.ports.q);
        let all = share.heads == f.b * f.h_q;
        let rows = if all { self.total_rows } else { share.heads * self.ws_rows };
        let accum = if share.accum && self.regions.dq_accum.is_some() { rows * self.choice.config.d_qk } else { 0 };
        let (batch, heads) = if share.heads < f.h_q { (1, share.heads) } else { (share.heads / f.h_q, f.h_q) };
        let mut p = Params::default();
        p.push("o", ptr(o));
        p.push("d_o", ptr(d_o));
        p.push("delta", self.region(Some(self.regions.delta)));
        p.push("dq_accum", self.region(self.regions.dq_accum));
        p.push("dq_sem", self.region(self.regions.dq_sem));
        p.push("seq_q", ptr(&f.ports.seq_len_q));
        for (name, port) in [("rag_q", q), ("rag_o", o), ("rag_do", d_o)] {
            p.push(name, self.rag(port));
        }
        for (name, port) in [("mul_q", q), ("mul_o", o), ("mul_do", d_o)] {
            p.i64(name, self.mul(port));
        }
        p.i64("q_ss", self.token_stride(q));
        p.strides(["o_sb", "o_sh", "o_ss"], o);
        p.strides(["do_sb", "do_sh", "do_ss"], d_o);
        p.i64("zero_f32", accum);
        p.i64("zero_i32", share.counters);
        p.sizes(&[("batch", batch), ("heads_q", heads), ("s_q", f.s_q), ("d_v", f.d_v), ("ws_rows", self.ws_rows)]);
        let defines = [
            ("FG_BF16", self.bf16()),
            ("FG_PADDED", self.padded()),
            ("FG_THD", i64::from(self.thd)),
            ("FG_RAGGED_I64", self.ragged_i64()),
        ];
        let grid = ceil_div(f.s_q, 64) * share.heads;
        self.launch(DOT, &defines, grid, (256, 0), p);
    }

    /// `heads`: query heads that main summed into each partial.
    pub(crate) fn reduce(&mut self, heads: i64) {
        let (f, c, ports) = (self.f, self.choice.config, &self.f.ports);
        let mut p = Params::default();
        p.push("dk_ws", self.region(self.regions.dk));
        p.push("dv_ws", self.region(self.regions.dv));
        p.push("dk", ptr(&ports.dk));
        p.push("dv", ptr(&ports.dv));
        p.push("seq_kv", self.packed_len(&ports.seq_len_kv));
        for (name, port) in [("rag_k", &ports.k), ("rag_dk", &ports.dk), ("rag_dv", &ports.dv)] {
            p.push(name, self.rag(port));
        }
        for (name, port) in [("mul_k", &ports.k), ("mul_dk", &ports.dk), ("mul_dv", &ports.dv)] {
            p.i64(name, self.mul(port));
        }
        p.i64("k_ss", self.token_stride(&ports.k));
        p.strides(["dk_sb", "dk_sh", "dk_ss"], &ports.dk);
        p.strides(["dv_sb", "dv_sh", "dv_ss"], &ports.dv);
        p.sizes(&[
            ("batch", f.b),
            ("heads_q", f.h_q / heads),
            ("group", f.h_q / f.h_kv / heads),
            ("s_kv", f.s_kv),
            ("d_qk", f.d_qk),
            ("d_v", f.d_v),
        ]);
        let defines = [
            ("FG_BF16", self.bf16()),
            ("FG_D_QK", c.d_qk),
            ("FG_D_V", c.d_v),
            ("FG_THD", i64::from(self.thd)),
            ("FG_RAGGED_I64", self.ragged_i64()),
        ];
        let vectors = ceil_div(f.d_qk, 8) + ceil_div(f.d_v, 8);
        let grid = ceil_div(f.b * f.s_kv * f.h_kv * vectors, 256);
        self.launch(REDUCE, &defines, grid, (256, 0), p);
    }

    pub(crate) fn cvt(&mut self) {
        let (f, ports) = (self.f, &self.f.ports);
        let mut p = Params::default();
        p.push("dq_accum", self.region(self.regions.dq_accum));
        p.push("dq", ptr(&ports.dq));
        p.push("seq_q", self.packed_len(&ports.seq_len_q));
        p.push("rag_q", self.rag(&ports.q));
        p.push("rag_dq", self.rag(&ports.dq));
        p.i64("mul_q", self.mul(&ports.q));
        p.i64("mul_dq", self.mul(&ports.dq));
        p.i64("q_ss", self.token_stride(&ports.q));
        p.strides(["dq_sb", "dq_sh", "dq_ss"], &ports.dq);
        p.sizes(&[("batch", f.b), ("heads_q", f.h_q), ("s_q", f.s_q), ("d_qk", f.d_qk), ("ws_rows", self.ws_rows)]);
        p.push("scale", Arg::F32(self.scale));
        let defines = [
            ("FG_BF16", self.bf16()),
            ("FG_D_QK", self.choice.config.d_qk),
            ("FG_THD", i64::from(self.thd)),
            ("FG_RAGGED_I64", self.ragged_i64()),
        ];
        let grid = self.rows(64);
        self.launch(CVT, &defines, grid, (256, 0), p);
    }

    pub(crate) fn dbias_cvt(&mut self) {
        let Some(d) = &self.f.ports.dbias else { return };
        let (src, _, stride) = self.dbias_target();
        let plane = d.dim[1] * d.dim[2] * d.dim[3];
        let count = d.dim[0] * plane;
        // More accumulator planes than output planes: the batch is summed here, in order.
        let summed = dbias_planes(self.f) / d.dim[0];
        let mut p = Params::default();
        p.push("src", src);
        p.push("dst", Arg::Ptr(Base::Tensor(d.uid)));
        p.i64("count", count);
        p.i64("batch_stride", if summed > 1 { stride } else { 0 });
        p.i32("batch", narrow(summed));
        let defines = [("FG_BF16", self.bf16()), ("FG_OUT_F32", i64::from(d.dtype == DType::F32))];
        let grid = elementwise_grid(count);
        self.launch(DBIAS_CVT, &defines, grid, (256, 0), p);
    }

    pub(crate) fn dsink(&mut self) {
        let (f, ports) = (self.f, &self.f.ports);
        let mut p = Params::default();
        p.push("lse", ptr(&ports.stats));
        p.push("delta", self.region(Some(self.regions.delta)));
        p.push("sink", ptr(&ports.sink));
        p.push("dsink", ptr(&ports.dsink));
        p.push("seq_q", ptr(&ports.seq_len_q));
        p.push("rag_q", self.rag(&ports.q));
        p.push("rag_lse", self.rag(&ports.stats));
        p.i64("mul_q", self.mul(&ports.q));
        p.i64("mul_lse", self.mul(&ports.stats));
        p.i64("q_ss", self.token_stride(&ports.q));
        p.strides(["lse_sb", "lse_sh", "lse_ss"], &ports.stats);
        p.sizes(&[("batch", f.b), ("heads_q", f.h_q), ("s_q", f.s_q), ("ws_rows", self.ws_rows)]);
        let defines = [("FG_PADDED", self.padded()), ("FG_THD", i64::from(self.thd)), ("FG_RAGGED_I64", self.ragged_i64())];
        let grid = f.h_q;
        self.launch(DSINK, &defines, grid, (256, 0), p);
    }
}

/// Blocks of a grid-stride kernel over `count` elements.
fn elementwise_grid(count: i64) -> i64 {
    ceil_div(count, 1024).clamp(1, 65_535 * 8)
}
