//! The kernels that multiply: main, and the second pass of the two-kernel route.

use super::super::config::{dq2k_smem, dq2k_tile, ROW_ROUND};
use super::{Chain, Inputs, DQ2K, MAIN, QAT_MAIN};
use crate::sdpa::arith::ceil_div;
use crate::sdpa::params::{ptr, tile_map, Params};
use crate::{Arg, Base};

impl Chain<'_> {
    pub(crate) fn main(&mut self) {
        let (f, c, ports) = (self.f, self.choice.config, &self.f.ports);
        let chunk = if c.d_qk % 64 == 0 && c.d_v % 64 == 0 { 64 } else { 32 };
        let swizzle = 2 * chunk;
        let gqa = f.h_q != f.h_kv;
        let mut p = Params::default();
        let kernel = match self.inputs {
            Inputs::Tensors => MAIN,
            Inputs::Copies(_) => QAT_MAIN,
        };
        let copies = self.inputs.copies();
        for (name, port, rows, copy) in [
            ("tm_q", &ports.q, c.q_tile, copies[0]),
            ("tm_k", &ports.k, c.kv_tile, copies[1]),
            ("tm_v", &ports.v, c.kv_tile, copies[2]),
            ("tm_do", &ports.d_o, c.q_tile, None),
        ] {
            p.push(name, self.map(port, copy, chunk, rows, swizzle));
        }
        p.push("tm_ds", self.ds_map(c.q_tile));
        self.push_sums(&mut p, gqa);
        let (dbias, _, dbias_sb) = self.dbias_target();
        p.push("bias", ptr(&ports.bias));
        p.push("dbias", dbias);
        p.push("seq_q", ptr(&ports.seq_len_q));
        p.push("seq_kv", ptr(&ports.seq_len_kv));
        self.push_rows(&mut p, gqa.then_some((f.h_q, c.d_qk, c.d_v)));
        self.push_bias_strides(&mut p, dbias_sb);
        p.sizes(&[
            ("batch", f.b),
            ("heads_q", f.h_q),
            ("group", f.h_q / f.h_kv),
            ("s_q", f.s_q),
            ("s_kv", f.s_kv),
            ("d_qk", f.d_qk),
            ("d_v", f.d_v),
            ("ws_rows", self.ws_rows),
        ]);
        self.bounds(&mut p);
        p.push("scale", Arg::F32(self.scale));
        let bias = self.bias_kind();
        let [causal, window] = self.mask_defines();
        let defines = [
            ("FG_BF16", self.bf16()),
            ("FG_D_QK", c.d_qk),
            ("FG_D_V", c.d_v),
            ("FG_Q_TILE", c.q_tile),
            ("FG_KV_TILE", c.kv_tile),
            ("FG_Q_STAGES", c.q_stages),
            ("FG_DO_STAGES", c.do_stages),
            ("FG_PDS_STAGES", c.pds_stages),
            ("FG_DKV_SPLIT", i64::from(c.dkv_split)),
            ("FG_DQ_BULK", i64::from(c.dq_bulk)),
            ("FG_WM_SDP", c.warps.sdp),
            ("FG_WM_DKV", c.warps.dkv),
            ("FG_WM_DQ", c.warps.dq),
            ("FG_V_REG_COLS", c.v_reg_cols),
            ("FG_K_REG_COLS", c.k_reg_cols),
            causal,
            window,
            ("FG_PADDED", self.padded()),
            ("FG_THD", i64::from(self.thd)),
            ("FG_RAGGED_I64", self.ragged_i64()),
            ("FG_DET", self.choice.route.det()),
            ("FG_BIAS", bias),
            ("FG_DBIAS", i64::from(ports.dbias.is_some())),
            ("FG_DKV_WS", i64::from(gqa)),
        ];
        let grid = ceil_div(f.s_kv, c.kv_tile) * f.h_q * f.b;
        self.launch(kernel, &defines, grid, (384, c.smem), p);
    }

    /// Map of the dS workspace, `(columns, rows, heads)`, with boxes of 64 columns by `rows` rows.
    fn ds_map(&self, rows: i64) -> Arg {
        let Some(r) = self.regions.ds else { return Arg::NoMap };
        let columns = ceil_div(self.f.s_kv, ROW_ROUND) * ROW_ROUND;
        Params::map(
            Base::Region(r),
            self.f.dtype,
            &[columns, self.f.s_q, self.f.b * self.f.h_q],
            &[2 * columns, 2 * columns * self.f.s_q],
            &[64, rows, 1],
            128,
        )
    }

    pub(super) fn dq2k(&mut self) {
        let (f, c) = (self.f, self.choice.config);
        let tile = dq2k_tile(c.d_qk);
        let mut p = Params::default();
        p.push("tm_ds", self.ds_map(tile));
        p.push("tm_k", tile_map(&f.ports.k, false, 64, 64, 128));
        p.push("dq", ptr(&f.ports.dq));
        p.strides(["dq_sb", "dq_sh", "dq_ss"], &f.ports.dq);
        p.sizes(&[
            ("batch", f.b),
            ("heads_q", f.h_q),
            ("group", f.h_q / f.h_kv),
            ("s_q", f.s_q),
            ("s_kv", f.s_kv),
            ("d_qk", f.d_qk),
        ]);
        self.bounds(&mut p);
        p.push("scale", Arg::F32(self.scale));
        let [causal, window] = self.mask_defines();
        let defines = [
            ("FG_BF16", self.bf16()),
            ("FG_D_QK", c.d_qk),
            ("FG_Q_TILE", c.q_tile),
            ("FG_KV_TILE", c.kv_tile),
            ("FG_Q2_TILE", tile),
            causal,
            window,
        ];
        let grid = self.rows(tile);
        let block = ((tile / 16 + 1) * 32) as u32;
        self.launch(DQ2K, &defines, grid, (block, dq2k_smem(c.d_qk)), p);
    }
}
