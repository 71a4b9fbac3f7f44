//! Split-KV: how many CTAs share one query tile's keys (facts §7.5). Pure arithmetic on launch geometry.
//!
//! More splits fill idle multiprocessors; each costs a partial result to write and combine. Costs are in units of one key tile of work.

/// Fixed work of a CTA besides its key tiles. The value is the reference's; on an H200 it stands for 10 us, where launch, ramp and the
/// second kernel were measured at 9 (batch 1, 8,192 keys, 16 splits).
const CTA_OVERHEAD: f64 = 21.0;
/// Combining one row of one partial (the reference's value; on an H200 a partial more cost 0.1 to 0.2 units from 32 splits on), where every multiprocessor combines one row at a time.
const COMBINE_ROW: f64 = 0.1;

/// One launch of the main kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Query tiles a head.
    pub q_tiles: u64,
    /// Heads of the launch; packed heads count once.
    pub heads: u64,
    /// Batches.
    pub batch: u64,
    /// Physical CTAs a tile.
    pub ctas_per_tile: u64,
}

impl Launch {
    fn ctas(&self) -> u64 {
        self.q_tiles.saturating_mul(self.heads).saturating_mul(self.batch).saturating_mul(self.ctas_per_tile)
    }
}

/// What the cost of a split depends on besides its launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Problem {
    /// Key tiles that a query tile visits at most.
    pub kv_tiles: u64,
    /// Multiprocessors.
    pub sm_count: u64,
    /// Rows of the graph: S_q·H_q·B.
    pub rows: u64,
    /// Least cost of one partial: 0.35, or 0.1 for half precision on SM120.
    pub partial_floor: f64,
    /// Fewest key tiles a split may keep: 2, or 1 for half precision on SM120.
    pub min_tiles: u64,
    /// Serial cost of one more partial where S_q >= 3: 0.1 in half precision, 0.03 quantised; 0 below.
    pub serial: f64,
}

/// Powers of two from 1, up to what the device can fill and what leaves each split `min_tiles` key tiles.
pub fn candidates(sm_count: u64, kv_tiles: u64, min_tiles: u64) -> Vec<u64> {
    let fill = sm_count.max(1).checked_next_power_of_two().unwrap_or(1 << 63);
    let keep = (kv_tiles / min_tiles.max(1)).max(1);
    (0..63).map(|p| 1u64 << p).take_while(|s| *s <= fill.min(keep)).collect()
}

/// Cost of `splits`; the unsplit launch may have a geometry of its own.
pub fn cost(splits: u64, split: &Launch, unsplit: &Launch, p: &Problem) -> f64 {
    let sms = p.sm_count.max(1);
    let waves = |l: &Launch| l.ctas().saturating_mul(splits).div_ceil(sms) as f64;
    if splits <= 1 {
        return waves(unsplit) * (p.kv_tiles as f64 + CTA_OVERHEAD);
    }
    let partial = (p.rows.div_ceil(sms).max(1) as f64 * COMBINE_ROW).max(p.partial_floor);
    let s = splits as f64;
    waves(split) * (p.kv_tiles.div_ceil(splits) as f64 + CTA_OVERHEAD) + s * partial + s * p.serial
}

/// The cheapest candidate and its cost; ties go to fewer splits.
pub fn choose(split: &Launch, unsplit: &Launch, p: &Problem) -> (u64, f64) {
    cheapest(candidates(p.sm_count, p.kv_tiles, p.min_tiles), |s| cost(s, split, unsplit, p))
}

fn cheapest(candidates: Vec<u64>, cost: impl Fn(u64) -> f64) -> (u64, f64) {
    let first = (1, cost(1));
    candidates.into_iter().map(|s| (s, cost(s))).fold(first, |best, c| if c.1 < best.1 { c } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Launch (query tiles, heads, batch), then key tiles, multiprocessors, rows; floor, fewest tiles, serial; how many candidates, choice, cost.
    type Vector = ((u64, u64, u64), (u64, u64, u64), (f64, u64, f64), (usize, u64, f64));

    #[test]
    fn check_vectors_of_facts_7_7() {
        let table: [Vector; 6] = [
            ((1, 2, 1), (256, 148, 16), (0.35, 2, 0.0), (8, 32, 40.20)),
            ((1, 4, 1), (32, 148, 64), (0.35, 2, 0.0), (5, 8, 27.80)),
            ((1, 4, 1), (256, 148, 64), (0.35, 2, 0.0), (8, 32, 40.20)),
            ((16, 32, 4), (32, 148, 65_536), (0.35, 2, 0.1), (5, 1, 742.00)),
            ((2, 8, 1), (64, 188, 1600), (0.1, 1, 0.1), (7, 8, 37.00)),
            ((1, 8, 1), (64, 188, 8), (0.1, 1, 0.0), (7, 16, 26.60)),
        ];
        for ((q_tiles, heads, batch), (kv_tiles, sm_count, rows), (partial_floor, min_tiles, serial), want) in table {
            let l = Launch { q_tiles, heads, batch, ctas_per_tile: 1 };
            let p = Problem { kv_tiles, sm_count, rows, partial_floor, min_tiles, serial };
            let powers: Vec<u64> = (0..want.0).map(|i| 1 << i).collect();
            assert_eq!(candidates(sm_count, kv_tiles, min_tiles), powers, "{p:?}");
            let (s, cost) = choose(&l, &l, &p);
            assert_eq!((s, format!("{cost:.2}")), (want.1, format!("{:.2}", want.2)), "{p:?}");
        }
    }

    #[test]
    fn an_unsplit_launch_of_its_own_is_weighed_against_the_split_one() {
        let narrow = Launch { q_tiles: 1, heads: 1, batch: 1, ctas_per_tile: 1 };
        let wide = Launch { q_tiles: 1000, ..narrow };
        let p = Problem { kv_tiles: 4, sm_count: 148, rows: 1, partial_floor: 0.35, min_tiles: 2, serial: 0.0 };
        assert_eq!(choose(&narrow, &narrow, &p).0, 2);
        assert_eq!(choose(&wide, &narrow, &p).0, 1);
    }

    /// Report #20: a planner never counts zero pieces, even over no keys, and no split is left without keys.
    #[test]
    fn no_split_is_empty_report_20() {
        for kv_tiles in 0..200u64 {
            for min_tiles in [1, 2] {
                let c = candidates(148, kv_tiles, min_tiles);
                assert_eq!(c[0], 1);
                assert!(c.iter().all(|s| *s == 1 || kv_tiles / s >= min_tiles), "{kv_tiles} tiles: {c:?}");
            }
        }
    }
}
