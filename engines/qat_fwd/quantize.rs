//! The first launch of the CUDA row: fake-quantised copies of Q, K and V in the workspace.
//!
//! Every later kernel reads the copies many times, so quantising once and reading bf16 is cheaper than quantising in each of them.

use crate::sdpa::arith::{ceil_div, product};
use crate::sdpa::params::{ptr, Params};
use crate::sdpa_fwd::lower::{launch, Kernel, Shape};
use crate::{Arg, Base, LaunchPlan, Port, SdpaFacts, Step, Target};

const QUANTIZE: Kernel = Kernel("quantize", "qat/fwd/mma/quantize.cu", "fg_qat_fwd_quantize");

/// Source of the kernel.
pub const SOURCE: &str = QUANTIZE.1;

/// Threads of a block, each with this many 16-byte units.
const THREADS: i64 = 256;
const UNITS: i64 = 4;

/// Region indices of the copies, each contiguous bf16 `[B, H, S, d]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copies {
    /// Of Q.
    pub q: usize,
    /// Of K.
    pub k: usize,
    /// Of V.
    pub v: usize,
}

impl Copies {
    /// Appends the regions; `None` for a size beyond 64 bits.
    pub fn carve(f: &SdpaFacts, plan: &mut LaunchPlan) -> Option<Copies> {
        let mut add = |name, dims: &[i64]| plan.region(name, u64::try_from(product(dims)?).ok()?);
        Some(Copies {
            q: add("q_hat", &[2, f.b, f.h_q, f.s_q, f.d_qk])?,
            k: add("k_hat", &[2, f.b, f.h_kv, f.s_kv, f.d_qk])?,
            v: add("v_hat", &[2, f.b, f.h_kv, f.s_kv, f.d_v])?,
        })
    }

    /// The copies in place of the operands of these names.
    pub fn base(&self, name: &str) -> Option<Base> {
        match name {
            "q" | "tm_q" => Some(Base::Region(self.q)),
            "k" | "tm_k" => Some(Base::Region(self.k)),
            "v" | "tm_v" => Some(Base::Region(self.v)),
            _ => None,
        }
    }
}

/// A port with the strides of its copy.
pub fn contiguous(port: &Option<Port>) -> Option<Port> {
    port.as_ref().map(|p| {
        let [_, h, s, d] = p.dim;
        Port { stride: [h * s * d, s * d, d, 1], ..p.clone() }
    })
}

/// Blocks of the launch; `None` beyond 64 bits.
pub fn grid(f: &SdpaFacts) -> Option<i64> {
    let tiles = |rows: i64, d: i64| ceil_div(rows, THREADS * UNITS / (d / 8));
    let keys = tiles(f.s_kv, f.d_qk).checked_add(tiles(f.s_kv, f.d_v))?;
    f.b.checked_mul(product(&[f.h_q, tiles(f.s_q, f.d_qk)])?.checked_add(product(&[f.h_kv, keys])?)?)
}

/// The launch. Head dims are multiples of 16 and the grid is within 32 bits: the rows see to both.
pub fn step(f: &SdpaFacts, copies: &Copies, grid: i64, target: &Target) -> Step {
    let ports = &f.ports;
    let mut p = Params::default();
    for (name, port) in [("q", &ports.q), ("k", &ports.k), ("v", &ports.v)] {
        p.push(name, ptr(port));
    }
    for (name, region) in [("q_hat", copies.q), ("k_hat", copies.k), ("v_hat", copies.v)] {
        p.push(name, Arg::Ptr(Base::Region(region)));
    }
    p.strides(["q_sb", "q_sh", "q_ss"], &ports.q);
    p.strides(["k_sb", "k_sh", "k_ss"], &ports.k);
    p.strides(["v_sb", "v_sh", "v_ss"], &ports.v);
    p.sizes(&[("batch", f.b), ("heads_q", f.h_q), ("heads_kv", f.h_kv), ("s_q", f.s_q), ("s_kv", f.s_kv)]);
    let shape = Shape { grid, block: THREADS, smem: 0, waits: false };
    launch(QUANTIZE, &[("FG_D_QK", f.d_qk), ("FG_D_V", f.d_v)], &shape, p, target)
}
