//! Knob sets of the wgmma forward: rows of a tile, order, packed heads.

use super::config_sm90::Bias;
use super::heuristics::scheds;
use super::prefill::Sched;
use super::prefill_sm90::{bias, config, padded, tile_rows};
use crate::sdpa::arith::ceil_div;
use crate::{Knob, Knobs, SdpaFacts, Target};

/// One point.
#[derive(Clone, Copy)]
struct Point {
    rows: i64,
    sched: Sched,
    packed: bool,
}

impl Point {
    fn knobs(self) -> Knobs {
        let packed = i64::from(self.packed);
        Knobs::new(&[(Knob::TileM, self.rows), (Knob::SchedPolicy, self.sched as i64), (Knob::PackGqa, packed)])
    }
}

/// The best set, then one axis changed at a time; the fallback is the best one in the plain order.
pub(super) fn sets(f: &SdpaFacts, target: &Target, fallback: bool) -> Vec<Knobs> {
    let Some((d_qk, _)) = padded(f.d_qk, f.d_v) else { return Vec::new() };
    let rows = |packed| tile_rows(d_qk, bias(f, packed));
    let scheds = scheds(f);
    let grouped = f.h_q != f.h_kv;
    let best = |packed| {
        let point = |&rows| Point { rows, sched: scheds[0], packed };
        rows(packed).iter().map(point).filter_map(|p| Some((cost(f, target, p)?, p))).min_by_key(|(cost, _)| *cost)
    };
    let plain = best(false);
    // Packing reads the keys once a group; it leads where that is a gain beyond what the model is sure of, because one head's rows do not fill a tile. It costs a bias
    // its boxes, and with them half of the speed (B1 32/4 S512 d 64, causal: 33.9 us packed, 17.8 not).
    let boxes = matches!(bias(f, false), Bias::Boxes(_));
    let packed = best(true).filter(|(c, _)| grouped && !boxes && plain.is_none_or(|(p, _)| *c < p - p / 10));
    let base = packed.or(plain).map_or(Point { rows: rows(false)[0], sched: scheds[0], packed: false }, |(_, p)| p);
    if fallback {
        return vec![Point { sched: Sched::Natural, ..base }.knobs()];
    }
    let mut points = vec![base];
    points.extend(scheds[1..].iter().map(|&sched| Point { sched, ..base }));
    points.extend(rows(base.packed).iter().filter(|r| **r != base.rows).map(|&rows| Point { rows, ..base }));
    if grouped && rows(!base.packed).contains(&base.rows) {
        points.push(Point { packed: !base.packed, ..base });
    }
    points.into_iter().map(Point::knobs).collect()
}

/// Tiles a head beyond which a problem is long: the largest tiles are the best.
const LONG: i64 = 1024;

/// Time of a launch in hundredths of what the largest tile takes for a key. Tiles cost their visible keys and a start; equal tiles go round by round, others
/// longest first. Fitted to 32 shapes of up to 4096 tokens on an H200, of which it chooses the fastest in 25 and one within 5 % in the others
/// (`kernels/PERFORMANCE.md` section 11).
fn cost(f: &SdpaFacts, target: &Target, at: Point) -> Option<i64> {
    let Target::Cuda { sm_count, .. } = target else { return None };
    let (sms, c) = (i64::from(*sm_count), config(f, &at.knobs())?);
    let tiles = ceil_div(f.s_q, c.tokens());
    let largest = at.rows == tile_rows(c.d_qk, bias(f, at.packed))[0];
    if tiles > LONG && !largest {
        return None;
    }
    let bounded = f.mask.is_bounded();
    // Two warpgroups that share rows: a tile is short, its start and the exchange are not, and at the diagonal it computes more of what is masked.
    // With a bias that has boxes the two tiles of d 64 have as many keys (46: 18 shapes of the crossover with a bias).
    let (weight, start, edge) = match (c.d_qk, at.rows) {
        (64, 64) if c.bias_stages > 0 => (46, 256, 150),
        (64, 64) => (43, 256, 150),
        (_, 64) => (62, 200, 150),
        (64, 128) => (89, 200, 64),
        (_, _) => (100, 200, 64),
    };
    let keys = |t: i64| {
        let (first, last) = (t * c.tokens(), ((t + 1) * c.tokens()).min(f.s_q) - 1);
        let (lo, hi) = (f.mask.kept(first, f.s_q, f.s_kv).0, f.mask.kept(last, f.s_q, f.s_kv).1);
        (hi.min(f.s_kv) - lo).max(0) + start + if bounded { edge } else { 0 }
    };
    let heads = f.b.saturating_mul(f.h_q / c.pack);
    let units = if !bounded {
        ceil_div(tiles.saturating_mul(heads), sms).saturating_mul(keys(0))
    } else if tiles > LONG {
        tiles.saturating_mul(heads).saturating_mul(keys(tiles - 1)) / sms
    } else {
        let (sum, longest) = (0..tiles).map(keys).fold((0, 0), |(sum, most), k| (sum + k, k.max(most)));
        longest.max(heads.saturating_mul(sum) / sms)
    };
    Some(units.saturating_mul(weight))
}
