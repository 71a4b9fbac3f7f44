//! Values that a case asks for: shaped logits, prefix sums, block tables.

use crate::build::forward::{pool_pages, table_entries};
use crate::build::{K, Q, SINK, V};
use crate::cases::{Case, Logits, Pages};
use crate::rng::Rng;

/// [`Logits::FarScales`]: factors of Q, and of K and V, that leave the logits at their usual size.
pub const FAR_Q: f64 = 1.5e-3;
/// See [`FAR_Q`].
pub const FAR_KV: f64 = 700.0;

/// Bends the random values of an operand to what the case asks for.
pub fn bend(case: &Case, uid: i64, [_, _, s, d]: [usize; 4], dense: &mut [f64]) {
    if case.fwd.logits == Logits::Loud && uid == V {
        dense.iter_mut().for_each(|x| *x *= 1e30);
    }
    if case.fwd.extreme_sinks && uid == SINK {
        let sinks = [f64::NEG_INFINITY, f64::INFINITY, 2e38, 2.4e38];
        dense.iter_mut().zip(sinks.iter().cycle()).for_each(|(x, s)| *x = *s);
    }
    if nvfp4(case, uid, s, d, dense) || (uid != Q && uid != K) {
        return;
    }
    for (i, x) in dense.iter_mut().enumerate() {
        let (column, row) = (i % d, i / d % s);
        match case.fwd.logits {
            Logits::Normal | Logits::Loud => {}
            Logits::ZeroBlocks | Logits::Ties | Logits::FarScales | Logits::Tiny | Logits::Peaked => {}
            // The first column alone makes the logit; the others stir it.
            Logits::About(_) if column > 0 => *x *= 0.1,
            Logits::About(c) => *x = if uid == Q { 1.0 } else { -c as f64 * (d as f64).sqrt() },
            Logits::Growing if uid == K => *x *= 1.5f64.powi((row / 64) as i32),
            Logits::Growing => {}
        }
    }
}

/// Values that meet the corners of an NVFP4 quantiser; whether the case asks for any.
fn nvfp4(case: &Case, uid: i64, s: usize, d: usize, dense: &mut [f64]) -> bool {
    // Midpoints of E2M1 and a value beside them, in units of the scale.
    const TIES: [f64; 8] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 0.5];
    for (i, x) in dense.iter_mut().enumerate().filter(|_| [Q, K, V].contains(&uid)) {
        let (lane, block, row) = (i % d % 16, i % d / 16, i / d % s);
        match case.fwd.logits {
            Logits::Normal | Logits::Loud | Logits::About(_) | Logits::Growing => return false,
            Logits::ZeroBlocks => {
                if block % 3 == 1 || row == 0 {
                    *x = 0.0_f64.copysign(*x);
                }
            }
            // The scale is 3/8 exactly, so that the quotients are ties exactly.
            Logits::Ties => {
                let edge = if (row + block) % 2 == 0 { 0 } else { 15 };
                let unit = if lane == edge { 6.0 } else { TIES[(lane + row) % 8] };
                *x = (unit * 0.375).copysign(*x);
            }
            Logits::FarScales => *x *= if uid == Q { FAR_Q } else { FAR_KV },
            Logits::Tiny => *x *= 1.2e-3,
            Logits::Peaked => *x *= if uid == V { 1.0 } else { 2.5 },
        }
    }
    true
}

/// Running totals, B + 1 of them.
pub fn prefix_sums(lens: &[i64]) -> Vec<i64> {
    let mut at = vec![0];
    for len in lens {
        at.push(at[at.len() - 1] + len);
    }
    at
}

/// A block table whose used entries are shuffled pages. The entries behind them are garbage: an index far outside the pool, or a page
/// that nobody owns and that holds NaN (report 13).
pub fn block_table(case: &Case, pages: Pages, kv: &[i64], rng: &mut Rng) -> Vec<i64> {
    let n = pool_pages(case, pages) as usize;
    let mut order: Vec<i64> = (0..n as i64).collect();
    for i in (1..n).rev() {
        order.swap(i, (rng.next() % (i as u64 + 1)) as usize);
    }
    let unowned = order[n - 1];
    let garbage = if rng.unit() < 0.5 { 0x7fff_ffff } else { unowned };
    let mut free = order.into_iter();
    let mut table = Vec::new();
    for &len in kv {
        let used = (len + pages.rows - 1) / pages.rows;
        table.extend((0..table_entries(case, pages)).map(|i| if i < used { free.next().unwrap_or(garbage) } else { garbage }));
    }
    table
}
