//! Workspace of the NVFP4 backward chain, in checked 64-bit: the three quantised copies, delta and the fp32 dQ accumulator; turn counters only
//! where dQ is summed in order, per-query-head dK and dV only where heads share keys.

use crate::sdpa::arith::product;
use crate::sdpa_bwd::config::Config;
use crate::sdpa_bwd::workspace::{ws_total_rows, Regions, Route};
use crate::{LaunchPlan, SdpaFacts};

/// Bytes of a bf16.
const IO: i64 = 2;

/// Regions of the copies of Q, K and V; `None` when a size leaves 64 bits.
pub fn copies(f: &SdpaFacts, plan: &mut LaunchPlan) -> Option<[usize; 3]> {
    let mut add = |name, bytes: &[i64]| plan.region(name, u64::try_from(product(bytes)?).ok()?);
    let keys = [IO, f.b, f.h_kv, f.s_kv, f.d_qk];
    Some([add("q_fake", &[IO, f.b, f.h_q, f.s_q, f.d_qk])?, add("k_fake", &keys)?, add("v_fake", &keys)?])
}

/// Regions of the copies, and those that the shared part of the chain uses; `None` when a size leaves 64 bits.
pub fn carve(f: &SdpaFacts, c: &Config, route: Route, plan: &mut LaunchPlan) -> Option<([usize; 3], Regions)> {
    let copies = copies(f, plan)?;
    let mut add = |name, bytes: &[i64]| plan.region(name, u64::try_from(product(bytes)?).ok()?);
    let rows = ws_total_rows(f)?;
    let mut r = Regions { delta: add("delta", &[4, rows])?, ..Regions::default() };
    r.dq_accum = Some(add("dq_accum", &[4, rows, c.d_qk])?);
    if route == Route::Relay {
        r.dq_sem = Some(add("dq_sem", &[4, f.b, f.h_q, f.s_q.checked_add(31)? / 32])?);
    }
    if f.h_q != f.h_kv {
        let partial = [IO, f.b, f.s_kv, f.h_q, c.d_qk];
        (r.dk, r.dv) = (Some(add("dk_ws", &partial)?), Some(add("dv_ws", &partial)?));
    }
    Some((copies, r))
}
