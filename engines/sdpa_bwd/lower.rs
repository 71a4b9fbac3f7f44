//! Lowers `sdpa_bwd_sm120` to its chain. Parameter lists follow `kernels/sdpa/bwd/mma/README.md`, in its order.

use super::config::dq2k_smem;
use super::config::{dq2k_tile, ROW_ROUND};
use super::rules::{self, Choice};
use super::workspace::{self, dbias_planes, Regions, Route};
use crate::sdpa::arith::ceil_div;
use crate::sdpa::params::{narrow, ptr, tile_map, Params};
use crate::sdpa::Scale;
use crate::{
    Arg, Base, DType, Decline, DeclineCode, Facts, Feature, KernelSpec, Knobs, Launch, LaunchPlan, Port, Row, SdpaFacts, Step,
    Target,
};

/// Name in the plan text, source, entry point.
#[derive(Clone, Copy)]
pub(crate) struct Kernel(pub(crate) &'static str, pub(crate) &'static str, pub(crate) &'static str);

pub(crate) const CVT: Kernel = Kernel("cvt", "sdpa/bwd/mma/cvt.cu", "fg_sdpa_bwd_cvt");
pub(super) const DBIAS_CVT: Kernel = Kernel("dbias_cvt", "sdpa/bwd/mma/dbias_cvt.cu", "fg_sdpa_bwd_dbias_cvt");
pub(crate) const DOT: Kernel = Kernel("dot", "sdpa/bwd/mma/dot.cu", "fg_sdpa_bwd_dot");
const DQ2K: Kernel = Kernel("dq2k", "sdpa/bwd/mma/dq2k.cu", "fg_sdpa_bwd_dq2k");
pub(crate) const DSINK: Kernel = Kernel("dsink", "sdpa/bwd/mma/dsink.cu", "fg_sdpa_bwd_dsink");
const MAIN: Kernel = Kernel("main", "sdpa/bwd/mma/main.cu", "fg_sdpa_bwd_main");
/// The same pass over quantised copies, with P fake-quantised where it feeds dV.
pub(crate) const QAT_MAIN: Kernel = Kernel("main", "qat/bwd/mma/main.cu", "fg_sdpa_bwd_main");
pub(crate) const REDUCE: Kernel = Kernel("reduce", "sdpa/bwd/mma/reduce.cu", "fg_sdpa_bwd_reduce");
pub(super) const ZERO: Kernel = Kernel("zero", "sdpa/bwd/mma/zero.cu", "fg_sdpa_bwd_zero");

/// Kernel sources of the chain.
pub const SOURCES: &[&str] = &[CVT.1, DBIAS_CVT.1, DOT.1, DQ2K.1, DSINK.1, MAIN.1, REDUCE.1, ZERO.1];

/// The chain for these facts: [zero] dot main [dq2k] [reduce] [cvt] [dbias_cvt] [dsink].
pub fn lower(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Result<LaunchPlan, Decline> {
    let f = facts.expect_sdpa();
    let choice = rules::choose(row, f, knobs, target)?;
    let Scale::Static(scale) = f.scale else {
        return Err(row.decline(DeclineCode::Feature, "attn_scale=tensor", "attn_scale is a tensor; this row serves a number"));
    };
    let mut plan = LaunchPlan::default();
    let overflow = || {
        row.decline(
            DeclineCode::Geometry,
            "workspace=overflow",
            "the workspace size leaves 64 bits; this row serves sizes that fit",
        )
    };
    let regions = workspace::carve(f, &choice.config, choice.route, &mut plan).ok_or_else(overflow)?;
    let ws_rows = workspace::ws_rows(f).ok_or_else(overflow)?;
    let inputs = Inputs::Tensors;
    let total_rows = workspace::ws_total_rows(f).ok_or_else(overflow)?;
    let thd = f.features.has(Feature::Thd);
    let mut chain = Chain { f, choice, inputs, regions, scale, ws_rows, total_rows, thd, steps: Vec::new() };
    if f.ports.dbias.is_some() {
        chain.zero();
    }
    chain.dot();
    chain.main();
    if choice.route == Route::TwoKernel {
        chain.dq2k();
    }
    if f.h_q != f.h_kv {
        chain.reduce(1);
    }
    if choice.route != Route::TwoKernel {
        chain.cvt();
    }
    if regions.dbias.is_some() {
        chain.dbias_cvt();
    }
    if f.ports.dsink.is_some() {
        chain.dsink();
    }
    plan.steps = chain.steps;
    Ok(plan)
}

/// Where main finds Q, K and V.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Inputs {
    /// In the operands.
    Tensors,
    /// In copies that a kernel before it makes: compact `[B, H, S, D]`, in these regions.
    Copies([usize; 3]),
}

impl Inputs {
    /// Regions of the copies, if that is what main reads.
    pub(crate) fn copies(self) -> [Option<usize>; 3] {
        match self {
            Inputs::Tensors => [None; 3],
            Inputs::Copies(regions) => regions.map(Some),
        }
    }
}

/// What `dot` does for main: the row sums of the first heads (batches first), of which it has either whole batches or a part of the first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DotShare {
    /// Heads, over all batches.
    pub(crate) heads: i64,
    /// Their part of dq_accum is cleared.
    pub(crate) accum: bool,
    /// Counters to clear.
    pub(crate) counters: i64,
}

/// A chain under construction; shared with the NVFP4 backward, which puts another kernel in front of the same ones.
pub(crate) struct Chain<'a> {
    pub(crate) f: &'a SdpaFacts,
    pub(crate) choice: Choice,
    pub(crate) inputs: Inputs,
    pub(crate) regions: Regions,
    pub(crate) scale: f32,
    /// Rows of delta and dq_accum for each head, and in all.
    pub(crate) ws_rows: i64,
    pub(crate) total_rows: i64,
    pub(crate) thd: bool,
    pub(crate) steps: Vec<Step>,
}

impl Chain<'_> {
    pub(crate) fn launch(
        &mut self,
        kernel: Kernel,
        defines: &[(&'static str, i64)],
        grid: i64,
        (block, smem): (u32, i64),
        p: Params,
    ) {
        let Kernel(name, source, entry) = kernel;
        let mut defines = defines.to_vec();
        defines.sort_unstable();
        let (args, names) = p.done();
        self.steps.push(Step::Kernel(Launch {
            name,
            kernel: KernelSpec { source, entry, defines },
            // Every kernel of the chain folds its work into x: batches and heads above 65,535 need no other path.
            grid: [u32::try_from(grid).unwrap_or(u32::MAX), 1, 1],
            cluster: [1, 1, 1],
            block: [block, 1, 1],
            smem: u32::try_from(smem).unwrap_or(u32::MAX),
            pdl: true,
            args,
            names,
        }));
    }

    pub(crate) fn bf16(&self) -> i64 {
        i64::from(self.f.dtype == DType::BF16)
    }

    pub(crate) fn padded(&self) -> i64 {
        i64::from(self.f.ports.seq_len_kv.is_some())
    }

    pub(crate) fn ragged_i64(&self) -> i64 {
        let q = self.f.ports.q.as_ref().and_then(|p| p.ragged);
        i64::from(self.thd && q.is_some_and(|r| r.dtype == DType::I64))
    }

    pub(crate) fn rows(&self, per_block: i64) -> i64 {
        ceil_div(self.f.s_q, per_block) * self.f.h_q * self.f.b
    }

    pub(crate) fn region(&self, r: Option<usize>) -> Arg {
        r.map_or(Arg::Null, |i| Arg::Ptr(Base::Region(i)))
    }

    /// Map of an operand, or of its copy.
    pub(crate) fn map(&self, port: &Option<Port>, copy: Option<usize>, chunk: i64, rows: i64, swizzle: i64) -> Arg {
        match copy {
            Some(region) => copy_map(port, region, chunk, rows, swizzle),
            None => tile_map(port, self.thd, chunk, rows, swizzle),
        }
    }

    /// A length tensor that only packed variants read.
    fn packed_len(&self, p: &Option<Port>) -> Arg {
        if self.thd {
            ptr(p)
        } else {
            Arg::Null
        }
    }

    pub(crate) fn rag(&self, p: &Option<Port>) -> Arg {
        match p.as_ref().and_then(|p| p.ragged).filter(|_| self.thd) {
            Some(r) => Arg::Ptr(Base::Tensor(r.uid)),
            None => Arg::Null,
        }
    }

    pub(crate) fn mul(&self, p: &Option<Port>) -> i64 {
        p.as_ref().and_then(|p| p.ragged).filter(|_| self.thd).map_or(0, |r| r.multiplier)
    }

    /// What a main kernel reads beside its tensor maps and what it adds to or writes; dK and dV go to the workspace where they are `partial`.
    pub(crate) fn push_sums(&self, p: &mut Params, partial: bool) {
        let ports = &self.f.ports;
        p.push("lse", ptr(&ports.stats));
        p.push("delta", self.region(Some(self.regions.delta)));
        p.push("dq_accum", self.region(self.regions.dq_accum));
        p.push("dq_sem", self.region(self.regions.dq_sem));
        p.push("dk_out", if partial { self.region(self.regions.dk) } else { ptr(&ports.dk) });
        p.push("dv_out", if partial { self.region(self.regions.dv) } else { ptr(&ports.dv) });
    }

    /// Where packed operands begin and how far their rows are apart. `partial` dK and dV are dense (B, S_kv, heads, d) sums in the workspace
    /// of so many heads, with these head dims.
    pub(crate) fn push_rows(&self, p: &mut Params, partial: Option<(i64, i64, i64)>) {
        let (f, ports) = (self.f, &self.f.ports);
        // Sums in the workspace follow K's token origin, so their own offsets are not read.
        let none = None;
        let (rag_dk, rag_dv) = if partial.is_some() { (&none, &none) } else { (&ports.dk, &ports.dv) };
        let ragged = [
            ("rag_q", "mul_q", &ports.q),
            ("rag_k", "mul_k", &ports.k),
            ("rag_v", "mul_v", &ports.v),
            ("rag_do", "mul_do", &ports.d_o),
            ("rag_lse", "mul_lse", &ports.stats),
            ("rag_dk", "mul_dk", rag_dk),
            ("rag_dv", "mul_dv", rag_dv),
        ];
        for (name, _, port) in ragged {
            p.push(name, self.rag(port));
        }
        for (_, name, port) in ragged {
            p.i64(name, self.mul(port));
        }
        for (name, port) in [("q_ss", &ports.q), ("k_ss", &ports.k), ("v_ss", &ports.v), ("do_ss", &ports.d_o)] {
            p.i64(name, self.token_stride(port));
        }
        p.strides(["lse_sb", "lse_sh", "lse_ss"], &ports.stats);
        let (dk, dv) = (["dk_sb", "dk_sh", "dk_ss"], ["dv_sb", "dv_sh", "dv_ss"]);
        if let Some((heads, d_qk, d_v)) = partial {
            for (names, d) in [(dk, d_qk), (dv, d_v)] {
                for (name, stride) in names.into_iter().zip([f.s_kv * heads * d, d, heads * d]) {
                    p.i64(name, stride);
                }
            }
        } else {
            p.strides(dk, &ports.dk);
            p.strides(dv, &ports.dv);
        }
    }

    /// Token stride of a packed operand; 0 where the variant does not read it.
    pub(crate) fn token_stride(&self, p: &Option<Port>) -> i64 {
        p.as_ref().filter(|_| self.thd).map_or(0, |p| p.stride[2])
    }

    pub(crate) fn bounds(&self, p: &mut Params) {
        p.i32("window_left", narrow(self.f.mask.left.unwrap_or(0)));
        p.i32("window_right", narrow(self.f.mask.right.unwrap_or(0)));
        p.i32("bottom_right", i32::from(self.f.mask.bottom_right));
    }

    pub(crate) fn mask_defines(&self) -> [(&'static str, i64); 2] {
        [("FG_CAUSAL", i64::from(self.f.mask.right.is_some())), ("FG_WINDOW", i64::from(self.f.mask.left.is_some()))]
    }

    /// Where main adds dBias: base, elements, batch stride.
    pub(super) fn dbias_target(&self) -> (Arg, i64, i64) {
        let Some(d) = &self.f.ports.dbias else { return (Arg::Null, 0, 0) };
        let plane = d.dim[1] * d.dim[2] * d.dim[3];
        let planes = match self.regions.dbias {
            Some(_) => dbias_planes(self.f),
            None => d.dim[0],
        };
        let base = self.regions.dbias.map_or(Base::Tensor(d.uid), Base::Region);
        (Arg::Ptr(base), planes * plane, if planes > 1 { plane } else { 0 })
    }

    /// The kernels' `FG_BIAS`: 0 none, 1 io type, 2 fp32.
    pub(super) fn bias_kind(&self) -> i64 {
        self.f.ports.bias.as_ref().map_or(0, |b| if b.dtype == DType::F32 { 2 } else { 1 })
    }

    /// Strides of the bias and of the dBias accumulator, whose batch stride is `dbias_sb`.
    pub(super) fn push_bias_strides(&self, p: &mut Params, dbias_sb: i64) {
        let ports = &self.f.ports;
        let bias_stride = |a: usize| ports.bias.as_ref().filter(|b| b.dim[a] > 1).map_or(0, |b| b.stride[a]);
        for (name, a) in [("bias_sb", 0), ("bias_sh", 1), ("bias_ss", 2)] {
            p.i64(name, bias_stride(a));
        }
        let plane = ports.dbias.as_ref().map_or([0; 2], |d| [d.dim[2] * d.dim[3], d.dim[3]]);
        for (name, stride) in [("dbias_sb", dbias_sb), ("dbias_sh", plane[0]), ("dbias_ss", plane[1])] {
            p.i64(name, stride);
        }
    }

    pub(super) fn zero(&mut self) {
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

    fn dq2k(&mut self) {
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

    pub(super) fn dbias_cvt(&mut self) {
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

/// Map of a compact `[B, H, S, D]` copy of an operand, boxed as the operand's own map would be.
fn copy_map(port: &Option<Port>, region: usize, chunk: i64, rows: i64, swizzle: i64) -> Arg {
    let Some(p) = port else { return Arg::NoMap };
    let ([b, h, s, d], bytes) = (p.dim, 2);
    let strides = [bytes * d, bytes * d * s, bytes * d * s * h];
    Params::map(Base::Region(region), p.dtype, &[d, s, h, b], &strides, &[chunk, rows, 1, 1], swizzle)
}

/// Blocks of a grid-stride kernel over `count` elements.
fn elementwise_grid(count: i64) -> i64 {
    ceil_div(count, 1024).clamp(1, 65_535 * 8)
}
