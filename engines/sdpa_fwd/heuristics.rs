//! Ranks the forward rows. Pure: facts, target and offered rows only.

use super::config::{default_tiles, flavour, tiles};
use super::config_sm90::{bias, Bias};
use super::prefill::Sched;
use super::split::{self, Launch, Problem};
use crate::caps::Candidate;
use crate::sdpa::arith::ceil_div;
use crate::sdpa::ranking;
use crate::{Facts, Feature, Knob, Knobs, Mode, Row, SdpaFacts, Target};

/// Plans of each eligible row, in row order, best first (facts §7.3): a base, then one axis changed at a time.
pub fn recommend(facts: &Facts, target: &Target, rows: &[&'static Row], mode: Mode) -> Vec<Candidate> {
    let Facts::Sdpa(f) = facts else { return Vec::new() };
    let mut rows = rows.to_vec();
    if portable_leads(f, target) {
        // Stable: only these two change places.
        rows.sort_by_key(|r| r.id == super::rows::PREFILL_SM90_ID);
        rows.sort_by_key(|r| matches!(r.caps, crate::Caps::Sdpa(c) if c.arch == crate::Arch::Cpu));
    }
    ranking::rank(facts, target, &rows, super::mismatch, |row| knob_sets(row, f, target, mode))
}

/// Where the portable prefill row is ahead of the wgmma one. With a bias that has boxes (on an H200, portable : wgmma, `kernels/PERFORMANCE.md` section 18) only at
/// d 64 and S 64, and there in a chain of executions alone: 0.89 to 0.96, one execution 1.00 to 1.10; elsewhere one takes 1.13 to 1.56 times as long up to S 128,
/// 1.37 to 1.99 at S 256, up to 3.99 beyond.
fn portable_leads(f: &SdpaFacts, target: &Target) -> bool {
    match bias(f, false) {
        Bias::None => tiny(f),
        Bias::Boxes(_) => f.d_qk.max(f.d_v) <= 64 && f.s_q.max(f.s_kv) <= 64,
        Bias::Direct => tiny(f) || !wgmma_leads_with_bias(f, target),
    }
}

/// Where the portable prefill row is ahead without a bias: a launch that is over before the latter's start has paid. On an H200, portable : wgmma, one
/// execution as a graph, three sets of heads (`kernels/PERFORMANCE.md` section 18): d 64 at S 64 0.89 to 0.91, at S 128 1.00 to 1.02 without a mask and 0.93
/// to 0.99 with a causal one, from S 256 on 0.99 and more; d 128 and above from S 64 on 0.98 and more.
fn tiny(f: &SdpaFacts) -> bool {
    f.d_qk.max(f.d_v) <= 64 && f.s_q.max(f.s_kv) <= 128
}

/// Where the wgmma row is ahead of the portable one with a bias that its threads read: its tiles of 64 rows while one round of them does, under a mask two. On an H200, portable :
/// wgmma, one execution (`kernels/PERFORMANCE.md` section 18): those 0.97 to 1.20 from S 128 on; S 64 0.70 to 0.85; tiles of 128 rows 0.64 to 0.92 up
/// to 192/128 and 0.65 to 0.99 at d 256, where the bias takes the registers of the scores and tiles have fewer keys.
fn wgmma_leads_with_bias(f: &SdpaFacts, target: &Target) -> bool {
    let rows = super::heuristics_sm90::sets(f, target, false).first().and_then(|best| best.get(Knob::TileM));
    rows == Some(64) && f.s_q > 64 && one_round(f, target, 64)
}

/// Whether all tiles of so many rows run at once. Half of a banded grid's work is masked away, so it counts half.
fn one_round(f: &SdpaFacts, target: &Target, rows: i64) -> bool {
    let Target::Cuda { sm_count, .. } = target else { return false };
    let all = ceil_div(f.s_q, rows).saturating_mul(f.h_q).saturating_mul(f.b);
    let blocks = if f.mask.is_bounded() { ceil_div(all, 2) } else { all };
    blocks <= i64::from(*sm_count)
}

fn knob_sets(row: &Row, f: &SdpaFacts, target: &Target, mode: Mode) -> Vec<Knobs> {
    let fallback = match mode {
        Mode::A | Mode::B | Mode::OpenSource => false,
        Mode::Fallback => true,
    };
    if row.domain(Knob::SplitKv).is_some() {
        let splits = if fallback { vec![1] } else { splits(f, target) };
        return splits.into_iter().map(|s| Knobs::new(&[(Knob::SplitKv, s)])).collect();
    }
    if row.domain(Knob::TileN).is_some() {
        return prefill_sets(f, target, fallback);
    }
    if row.domain(Knob::TileM).is_some() {
        return super::heuristics_sm90::sets(f, target, fallback);
    }
    if row.domain(Knob::SchedPolicy).is_some() {
        let order = |s: &Sched| Knobs::new(&[(Knob::SchedPolicy, *s as i64)]);
        return if fallback { vec![order(&Sched::Natural)] } else { scheds(f).iter().map(order).collect() };
    }
    vec![Knobs::NONE]
}

/// One point of the prefill row.
#[derive(Clone, Copy)]
struct Point {
    tiles: (i64, i64),
    sched: Sched,
    packed: bool,
}

impl Point {
    fn knobs(self) -> Knobs {
        Knobs::new(&[
            (Knob::TileM, self.tiles.0),
            (Knob::TileN, self.tiles.1),
            (Knob::SchedPolicy, self.sched as i64),
            (Knob::PackGqa, i64::from(self.packed)),
        ])
    }
}

fn prefill_sets(f: &SdpaFacts, target: &Target, fallback: bool) -> Vec<Knobs> {
    let Some(padded) = flavour(f.d_qk, f.d_v) else { return Vec::new() };
    if fallback {
        return vec![Point { tiles: (64, 64), sched: Sched::Natural, packed: false }.knobs()];
    }
    let best = best_tiles(f, padded, target);
    let scheds = scheds(f);
    let grouped = f.h_q != f.h_kv;
    // Packing pays where one head's rows do not fill a tile; elsewhere it is offered last.
    let base = Point { tiles: best, sched: scheds[0], packed: grouped && f.s_q < best.0 };
    let mut points = vec![base];
    // The orders come before the tiles: the list of the specification for this row is its orders alone.
    points.extend(scheds[1..].iter().map(|&sched| Point { sched, ..base }));
    if grouped {
        points.push(Point { packed: !base.packed, ..base });
    }
    points.extend(tiles(padded.1).iter().filter(|t| **t != best).map(|&tiles| Point { tiles, ..base }));
    points.into_iter().map(Point::knobs).collect()
}

/// The measured tiles, or tiles of 64 rows where those of 128 leave multiprocessors idle: there a problem takes as long as its longest
/// tile (facts §7.4 has such a rule for another row).
///
/// On an H200, us with 128 rows against 64x64 and 64x128: H8 S1024 d64 24.0, 18.0, 16.8; H16 S512 d128 23.5, 15.6, 16.1; causal H8
/// S2048 d128 62.6, 51.3, 44.0; causal H32/8 S1024 d128 46.0, 39.4. At 2,048 blocks (causal H64/8 S4096 d128) 128 rows lead by 14 %.
fn best_tiles(f: &SdpaFacts, padded: (i64, i64), target: &Target) -> (i64, i64) {
    const LONG: i64 = 1024;
    const MEASURED_ON: u32 = 90;
    let (bias, best) = (f.ports.bias.is_some(), default_tiles(padded, f.ports.bias.is_some()));
    let Target::Cuda { cc, .. } = target else { return best };
    let fits = |rows: i64| one_round(f, target, rows);
    if !fits(best.0) {
        return best;
    }
    // 128 keys a tile leave room for one block a multiprocessor: they pay where there is no second one, and enough keys to stream.
    let wide = fits(64) && f.s_kv >= LONG && !bias && *cc == MEASURED_ON && tiles(padded.1).contains(&(64, 128));
    (64, if wide { 128 } else { 64 })
}

/// Orders of the tiles, best first (facts §7.4). Equal tiles need no order; packed sequences end at different places, so their longest
/// tiles are not the last ones.
pub(crate) fn scheds(f: &SdpaFacts) -> &'static [Sched] {
    // One head's keys and values beyond this leave the cache whatever the order is.
    const CACHED: i64 = 50 << 20;
    if !f.mask.is_bounded() {
        return &[Sched::Natural];
    }
    if f.features.has(Feature::Thd) {
        return &[Sched::Natural, Sched::Lpt, Sched::LptL2];
    }
    if f.s_kv.saturating_mul(f.d_qk + f.d_v).saturating_mul(2) <= CACHED {
        &[Sched::LptL2, Sched::Lpt, Sched::Natural]
    } else {
        &[Sched::Lpt, Sched::LptL2, Sched::Natural]
    }
}

/// Keys of one unit of the split cost model: what the four warps of a CTA take at a time. On an H200 (heads 32/8, d 128) one unit takes
/// 0.48 us. With it the choice is one CTA a multiprocessor, and of the 17 points in `benches/results/h200-sdpa_fwd.json` no other count is
/// more than 2 % faster; at batch 1 and 8,192 keys 8, 16 and 32 splits take 19.5, 18.7 and 19.4 us.
const KEYS_A_TILE: i64 = 64;

/// What the cost model is asked, for the split launch and the unsplit one alike.
fn split_inputs(f: &SdpaFacts, target: &Target) -> Option<(Launch, Problem)> {
    let Target::Cuda { sm_count, .. } = target else { return None };
    let group = f.h_q / f.h_kv;
    let count = |x: i64| u64::try_from(x).ok();
    let launch = Launch {
        q_tiles: count(ceil_div(f.s_q * group, super::config::DECODE_ROWS))?,
        heads: count(f.h_kv)?,
        batch: count(f.b)?,
        ctas_per_tile: 1,
    };
    let problem = Problem {
        kv_tiles: count(ceil_div(visible_keys(f), KEYS_A_TILE))?,
        sm_count: u64::from(*sm_count),
        rows: count(f.s_q.saturating_mul(f.h_q).saturating_mul(f.b))?,
        partial_floor: 0.35,
        min_tiles: 2,
        serial: if f.s_q >= 3 { 0.1 } else { 0.0 },
    };
    Some((launch, problem))
}

/// Keys that any query row of the longest sequence keeps: from the first row's first to the last row's last.
pub(super) fn visible_keys(f: &SdpaFacts) -> i64 {
    let first = f.mask.kept(0, f.s_q, f.s_kv).0;
    let last = f.mask.kept(f.s_q - 1, f.s_q, f.s_kv).1;
    (last.min(f.s_kv) - first).max(0)
}

/// The cheapest split, no split, and the neighbours of the cheapest.
fn splits(f: &SdpaFacts, target: &Target) -> Vec<i64> {
    splits_by(f, target, &mut |split, unsplit, problem| split::choose(split, unsplit, problem).0)
}

/// As [`splits`] with the chooser given by the caller.
pub(super) fn splits_by(f: &SdpaFacts, target: &Target, choose: &mut dyn FnMut(&Launch, &Launch, &Problem) -> u64) -> Vec<i64> {
    let Some((launch, problem)) = split_inputs(f, target) else { return vec![1] };
    // One kernel is both legs, so their geometry is one.
    let best = i64::try_from(choose(&launch, &launch, &problem)).unwrap_or(1);
    let mut list = vec![best];
    if best > 1 {
        list.extend([1, best / 2, best * 2]);
    }
    list
}
