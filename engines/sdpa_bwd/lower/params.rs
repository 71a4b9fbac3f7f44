//! How a launch of the chain is put together, and the runs of parameters that several kernels take.

use super::super::workspace::dbias_planes;
use super::{Chain, Kernel};
use crate::sdpa::arith::ceil_div;
use crate::sdpa::params::{narrow, ptr, tile_map, Params};
use crate::{Arg, Base, DType, KernelSpec, Launch, Port, Step};

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
    pub(super) fn packed_len(&self, p: &Option<Port>) -> Arg {
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
    pub(crate) fn dbias_target(&self) -> (Arg, i64, i64) {
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
    pub(crate) fn bias_kind(&self) -> i64 {
        self.f.ports.bias.as_ref().map_or(0, |b| if b.dtype == DType::F32 { 2 } else { 1 })
    }

    /// Strides of the bias and of the dBias accumulator, whose batch stride is `dbias_sb`.
    pub(crate) fn push_bias_strides(&self, p: &mut Params, dbias_sb: i64) {
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
}

/// Map of a compact `[B, H, S, D]` copy of an operand, boxed as the operand's own map would be.
fn copy_map(port: &Option<Port>, region: usize, chunk: i64, rows: i64, swizzle: i64) -> Arg {
    let Some(p) = port else { return Arg::NoMap };
    let ([b, h, s, d], bytes) = (p.dim, 2);
    let strides = [bytes * d, bytes * d * s, bytes * d * s * h];
    Params::map(Base::Region(region), p.dtype, &[d, s, h, b], &strides, &[chunk, rows, 1, 1], swizzle)
}
