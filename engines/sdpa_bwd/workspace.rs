//! Workspace of the mma.sync backward chain: the regions of facts §6.2, in that order, in checked 64-bit.

use super::config::{Config, ROW_ROUND};
use crate::sdpa::arith::product;
use crate::{Facts, Feature, LaunchPlan, SdpaFacts};

/// How dQ is summed over the key tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// fp32 atomic adds; the order, and so the last bits, vary.
    Atomic,
    /// The adds of a query tile take turns in ascending key-tile order.
    Relay,
    /// dS goes to memory and a second kernel walks it in order.
    TwoKernel,
}

impl Route {
    /// The kernels' `FG_DET`.
    pub fn det(self) -> i64 {
        match self {
            Route::Atomic => 0,
            Route::Relay => 1,
            Route::TwoKernel => 2,
        }
    }
}

/// Region indices of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Regions {
    /// fp32 row sums of dO·O.
    pub delta: usize,
    /// fp32 dQ in fragment order.
    pub dq_accum: Option<usize>,
    /// dS in the io type.
    pub ds: Option<usize>,
    /// Turn counters; present whenever dq_accum is.
    pub dq_sem: Option<usize>,
    /// fp32 dBias.
    pub dbias: Option<usize>,
    /// Per-query-head dK.
    pub dk: Option<usize>,
    /// Per-query-head dV.
    pub dv: Option<usize>,
}

/// `x` rounded up to a multiple of `to`; `None` on overflow.
pub(super) fn round_up(x: i64, to: i64) -> Option<i64> {
    u64::try_from(x).ok()?.checked_next_multiple_of(to as u64).and_then(|r| i64::try_from(r).ok())
}

/// Bound on the packed tokens of one side: what was declared, else every sequence at its maximum.
pub fn packed_tokens(b: i64, s: i64, declared: Option<i64>) -> Option<i64> {
    match declared {
        Some(t) => Some(t),
        None => b.checked_mul(s),
    }
}

/// Rows that delta and dq_accum hold for each (b, h), or for each h when packed: there every sequence keeps 128-row blocks of its own.
pub fn ws_rows(f: &SdpaFacts) -> Option<i64> {
    if f.features.has(Feature::Thd) {
        let tokens = packed_tokens(f.b, f.s_q, f.max_total_seq_len_q)?;
        round_up(tokens.checked_add(ROW_ROUND.checked_mul(f.b)?)?, ROW_ROUND)
    } else {
        round_up(f.s_q, ROW_ROUND)
    }
}

/// Heads times rows of delta: `[B, H_q, ws_rows]`, or `[H_q, ws_rows]` when packed.
pub fn ws_total_rows(f: &SdpaFacts) -> Option<i64> {
    let blocks = if f.features.has(Feature::Thd) { f.h_q } else { f.b.checked_mul(f.h_q)? };
    blocks.checked_mul(ws_rows(f)?)
}

/// fp32 planes of the dBias accumulator, or 0 when the output is the accumulator itself.
///
/// An fp32 dBias of the bias's own batch extent accumulates in place. In deterministic mode a batch-broadcast bias keeps one plane a
/// batch, because adds of several batches to one element have no order; a second pass sums them.
pub fn dbias_planes(f: &SdpaFacts) -> i64 {
    let Some(d) = &f.ports.dbias else { return 0 };
    let per_batch = f.features.has(Feature::Deterministic) && d.dim[0] == 1 && f.b > 1;
    if per_batch {
        f.b
    } else if d.dtype == crate::DType::F32 {
        0
    } else {
        d.dim[0]
    }
}

/// Appends the chain's regions to a plan; `None` when a size leaves 64 bits.
pub fn carve(f: &SdpaFacts, c: &Config, route: Route, plan: &mut LaunchPlan) -> Option<Regions> {
    let io = 2;
    let mut r = Regions::default();
    let mut add = |name, bytes: i64| plan.region(name, u64::try_from(bytes).ok()?);
    let rows = ws_total_rows(f)?;
    r.delta = add("delta", product(&[4, rows])?)?;
    if route == Route::TwoKernel {
        r.ds = Some(add("ds_ws", product(&[io, f.b, f.h_q, f.s_q, round_up(f.s_kv, ROW_ROUND)?])?)?);
    } else {
        r.dq_accum = Some(add("dq_accum", product(&[4, rows, c.d_qk])?)?);
        r.dq_sem = Some(add("dq_sem", product(&[4, f.b, f.h_q, f.s_q.checked_add(31)? / 32])?)?);
    }
    let planes = dbias_planes(f);
    if planes > 0 {
        r.dbias = Some(add("dbias_accum", product(&[4, planes, f.h_q, f.s_q, f.s_kv])?)?);
    }
    if f.h_q != f.h_kv {
        let tokens = if f.features.has(Feature::Thd) {
            packed_tokens(f.b, f.s_kv, f.max_total_seq_len_kv)?
        } else {
            f.b.checked_mul(f.s_kv)?
        };
        r.dk = Some(add("dk_ws", product(&[io, tokens, f.h_q, c.d_qk])?)?);
        r.dv = Some(add("dv_ws", product(&[io, tokens, f.h_q, c.d_v])?)?);
    }
    Some(r)
}

/// The deterministic route (facts §6.3), `Atomic` when determinism is not asked for.
///
/// Two kernels iff the padded head dims are 128/128, 192/128 or 256/256 with d_qk unpadded, there is no window and no length, K and dQ are
/// compact in (B, S, H, D) order, an explicit query tile divides the dQ kernel's, and the workspace fits the device's total memory.
/// Anything else takes turns; that is never an error. So do 128-key tiles at 128/128, which the reference does not have: with them taking
/// turns is nearly free, and the second kernel and its quadratic workspace are not.
pub fn route(f: &SdpaFacts, c: &Config, explicit_q_tile: Option<i64>, total_memory: u64) -> Route {
    if !f.features.has(Feature::Deterministic) {
        return Route::Atomic;
    }
    let compact = |p: &Option<crate::Port>| p.as_ref().is_some_and(compact_bshd);
    let shape = matches!((c.d_qk, c.d_v), (128, 128) | (192, 128) | (256, 256)) && f.d_qk == c.d_qk;
    let lengths = f.ports.seq_len_q.is_some() || f.ports.seq_len_kv.is_some();
    let tile = explicit_q_tile.is_none_or(|t| super::config::dq2k_tile(c.d_qk) % t == 0);
    let dense = !f.features.has(Feature::Thd) && f.mask.left.is_none() && !lengths;
    let free_turns = (c.d_qk, c.d_v, c.kv_tile) == (128, 128, 128);
    if free_turns || !(shape && dense && tile && compact(&f.ports.k) && compact(&f.ports.dq)) {
        return Route::Relay;
    }
    let mut trial = LaunchPlan::default();
    match carve(f, c, Route::TwoKernel, &mut trial) {
        Some(_) if trial.workspace_bytes <= total_memory => Route::TwoKernel,
        Some(_) | None => Route::Relay,
    }
}

/// Exactly the strides of a contiguous (B, S, H, D) tensor.
fn compact_bshd(p: &crate::Port) -> bool {
    let [_, h, s, d] = p.dim;
    product(&[s, h, d]).is_some_and(|batch| p.stride == [batch, d, h * d, 1])
}

/// Exact workspace bytes of the default plan for these facts on a device with this much shared memory and memory in all.
///
/// `None` for facts of another operation, head dims that no main kernel serves, or a total that leaves 64 bits.
pub fn scratch_workspace_bytes(facts: &Facts, smem_optin: u32, total_memory: u64) -> Option<u64> {
    let f = facts.expect_sdpa();
    let none = crate::Knobs::NONE;
    let c = super::config::resolve(f.d_qk, f.d_v, &none, smem_optin, Route::Atomic).ok()?;
    let mut plan = LaunchPlan::default();
    carve(f, &c, route(f, &c, None, total_memory), &mut plan)?;
    Some(plan.workspace_bytes)
}
