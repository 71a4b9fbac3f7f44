//! Lowers `sdpa_bwd_sm90`: the portable chain with its own main kernel, on wgmma. Parameters follow `kernels/sdpa/bwd/sm90/README.md`.

mod args;

use self::args::cvt_t;
pub(crate) use self::args::main;
use super::config::{Config, Partition, ROW_ROUND};
use super::lower::{Chain, DotShare, Inputs, Kernel, CVT, DBIAS_CVT, DOT, DSINK, REDUCE, ZERO};
use super::rules;
use super::sm90_grid::{grid, Grid};
use super::workspace::{self, packed_tokens, round_up, Regions, Route};
use crate::sdpa::arith::{ceil_div, product};
use crate::sdpa::Scale;
use crate::{Decline, DeclineCode as Code, Facts, Feature, Knobs, LaunchPlan, Row, SdpaFacts, Target};

const CVT_T: Kernel = Kernel("cvt_t", "sdpa/bwd/sm90/cvt_t.cu", "fg_sdpa_bwd_sm90_cvt_t");
const MAIN: Kernel = Kernel("main", "sdpa/bwd/sm90/main.cu", "fg_sdpa_bwd_sm90_main");

/// Kernel sources of the chain.
pub const SOURCES: &[&str] = &[CVT.1, DBIAS_CVT.1, DOT.1, DSINK.1, REDUCE.1, ZERO.1, CVT_T.1, MAIN.1];

/// Query rows of a tile at 192/128: no multiple of 64, so its dQ is accumulated transposed.
const TRANSPOSED_TILE: i64 = 48;
/// Loop order over two halves of a query tile: slower, but it leaves registers for a bias and the way to dBias.
const HALVES: i64 = 4;
/// Loop order at head dim 64 in which dQ leaves a tile late, from the place of its dS.
pub(crate) const LATE: i64 = 6;
/// Loop orders at head dim 128: rotated, and two blocks of a cluster that divide dQ of neighbouring key tiles.
pub(crate) const ROTATED: i64 = 2;
pub(crate) const PAIR: i64 = 7;
/// Words of dq_sem before the counters of `LATE`: its blocks stay and take their items by a ticket, on a line of memory of its own.
const TICKET_WORDS: i64 = 32;
/// Keys of a tile where dK and dV of 128 keys fit the accumulators, and above.
const KV_TILE: i64 = 128;
const KV_TILE_WIDE: i64 = 64;

/// Query rows from which a cluster's blocks gain more than they wait for each other, without a mask and with a causal one, where one of them has two dead
/// tiles a head (`kernels/sdpa/bwd/sm90/PERFORMANCE.md`).
const PAIR_ROWS: i64 = 512;
const PAIR_ROWS_CAUSAL: i64 = 8192;

/// What shapes and device decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Padded head dims.
    pub dims: (i64, i64),
    /// Query rows a tile.
    pub q_tile: i64,
    /// Keys a tile.
    pub kv_tile: i64,
    /// Loop order of the kernel.
    pub order: i64,
    /// Query heads that one block sums dK and dV over.
    pub heads_item: i64,
    /// Head groups that take turns in the grid.
    pub interleave: i64,
    /// Blocks of main that stay, one a multiprocessor, and take one item of the grid after the other (`LATE`).
    pub stay: i64,
    /// Sections of the grid between a block and the heads it prepares; 0: `dot` prepares all.
    pub ahead: i64,
    /// dS of a tile is kept in fp32 on its way to dBias.
    pub dbias: bool,
    /// The relay takes dQ from two tiles of shared memory, or from the place of its dS (`LATE`).
    pub staged: bool,
    /// The bulk engine adds dQ from a tile of shared memory beside all others. (At 256/256 half a tile takes the place of the second dO.)
    pub bulk: bool,
}

impl Choice {
    /// Blocks of a cluster.
    pub(crate) fn cluster(&self) -> i64 {
        if self.order == PAIR {
            2
        } else {
            1
        }
    }

    /// Shared memory of main: K, V, two Q, two dO, two dS tiles and two of P in the wide form (later the staging of dK and dV), the other block's K,
    /// row statistics, barriers, dS in fp32, staged dQ, rows of O and dO for later heads.
    pub(crate) fn smem(&self) -> i64 {
        let (d_qk, d_v) = self.dims;
        let rows = self.kv_tile + 2 * self.q_tile;
        let (late, pair) = (self.order == LATE, self.order == PAIR);
        let exchanged = match self.kv_tile {
            KV_TILE_WIDE => 4,
            _ if late => 3 + i64::from(self.staged),
            _ if pair => 3,
            _ => 2,
        };
        let to_dbias = i64::from(self.dbias && self.kv_tile == KV_TILE) * 4 * self.q_tile * self.kv_tile;
        let staged = (2 * i64::from(self.staged && !late) + i64::from(self.bulk)) * 4 * self.q_tile * d_qk;
        let rows_and_barriers = 16 * self.q_tile
            + match (late || pair, self.staged) {
                // Barriers and the items under way.
                (true, true) => 512,
                // Behind the barriers lie more than 2048 bytes of rows of O and dO.
                (true, false) if pair && self.ahead > 0 => 24 * self.q_tile + 256 + 128,
                // -delta as three bf16 of eight, then what multiplies them: 256 bytes, which its descriptor repeats with strides of 0. The barriers (and
                // items) lie behind. 2048 bytes is that operand with packed rows, the extent that compute-sanitizer's memcheck takes it to have.
                (true, false) => 24 * self.q_tile + 2048,
                (false, _) => 128,
            };
        let ahead = i64::from(self.ahead > 0) * if pair || late { 128 } else { 256 } * d_v;
        // K of the cluster's other block, or of the next item.
        let others_k = i64::from(pair || (late && !self.staged)) * 2 * self.kv_tile * d_qk;
        2 * rows * (d_qk + d_v)
            + (2 * exchanged * self.q_tile * self.kv_tile).max(32_768)
            + rows_and_barriers
            + to_dbias
            + staged
            + ahead
            + others_k
    }

    /// What the kernels shared with the portable row read of its choice: padded head dims, tiles, route.
    pub(crate) fn shared(&self, f: &SdpaFacts) -> rules::Choice {
        let config = Config {
            d_qk: self.dims.0,
            d_v: self.dims.1,
            q_tile: self.q_tile,
            kv_tile: self.kv_tile,
            q_stages: 2,
            do_stages: 2,
            pds_stages: 2,
            v_reg_cols: 0,
            k_reg_cols: 0,
            warps: Partition { sdp: 1, dkv: 1, dq: 1 },
            dkv_split: false,
            dq_bulk: false,
            smem: self.smem(),
        };
        let route = if f.features.has(Feature::Deterministic) { Route::Relay } else { Route::Atomic };
        rules::Choice { config, route }
    }

    /// Sections of main's grid; each has a counter where blocks prepare later ones.
    fn sections(&self, f: &SdpaFacts) -> i64 {
        ceil_div(f.b * (f.h_q / self.heads_item), self.interleave)
    }

    /// Words of dq_sem before the counters.
    fn ticket(&self) -> i64 {
        if self.order == LATE {
            TICKET_WORDS
        } else {
            0
        }
    }

    /// Blocks of main for so many items.
    fn blocks(&self, items: i64) -> i64 {
        if self.order == LATE {
            items.min(self.stay)
        } else {
            items
        }
    }

    /// Rows that delta and dq_accum hold for each head, see [`workspace::ws_rows`]; whole query tiles as well.
    pub(crate) fn ws_rows(&self, f: &SdpaFacts) -> Option<i64> {
        if f.features.has(Feature::Thd) {
            return workspace::ws_rows(f);
        }
        round_up(round_up(f.s_q, self.q_tile)?, ROW_ROUND)
    }

    /// The same rows of all heads.
    pub(crate) fn total_rows(&self, f: &SdpaFacts) -> Option<i64> {
        let heads = if f.features.has(Feature::Thd) { f.h_q } else { f.b.checked_mul(f.h_q)? };
        heads.checked_mul(self.ws_rows(f)?)
    }
}

/// The row's `extra` hook.
pub fn extra(row: &Row, facts: &Facts, _knobs: &Knobs, target: &Target) -> Option<Decline> {
    choose(row, facts.expect_sdpa(), target).err()
}

/// The configuration, or the first rule that refuses.
pub(super) fn choose(row: &Row, f: &SdpaFacts, target: &Target) -> Result<Choice, Decline> {
    rules::graph_rules(f).map_err(|(code, fact, reason)| row.decline(code, fact, reason))?;
    let Target::Cuda { sm_count, smem_optin, total_memory, .. } = target else {
        return Err(row.decline(Code::Arch, "device=cpu", "the device is cpu; this row serves CUDA devices"));
    };
    let mut choice = configure(f, i64::from(*sm_count));
    choice.staged = f.features.has(Feature::Deterministic) && !f.features.has(Feature::Bias) && choice.dims.0 <= 128;
    if choice.smem() > i64::from(*smem_optin) {
        let reason = format!("the tiles need {} bytes of shared memory; the device has {smem_optin}", choice.smem());
        return Err(row.decline(Code::Resources, format!("smem={}", choice.smem()), reason));
    }
    let mut trial = LaunchPlan::default();
    match carve(f, &choice, &mut trial).map(|_| trial.workspace_bytes) {
        Some(bytes) if bytes <= *total_memory => Ok(choice),
        Some(bytes) => {
            let reason = format!("the chain needs a workspace of {bytes} bytes; the device has {total_memory} bytes in all");
            Err(row.decline(Code::Resources, format!("workspace={bytes}"), reason))
        }
        None => Err(overflow(row)),
    }
}

fn overflow(row: &Row) -> Decline {
    row.decline(Code::Geometry, "workspace=overflow", "the workspace size leaves 64 bits; this row serves sizes that fit")
}

/// Tiles, order of the kernel and share of a group of each block.
pub(crate) fn configure(f: &SdpaFacts, sm_count: i64) -> Choice {
    let order_64 = if f.features.has(Feature::Bias) { HALVES } else { LATE };
    let (dims, q_tile, kv_tile, order) = match f.d_qk {
        ..=64 => ((64, 64), 128, KV_TILE, order_64),
        65..=128 => ((128, 128), 64, KV_TILE, if pairs(f, sm_count) { PAIR } else { ROTATED }),
        129..=192 if f.d_v <= 128 => ((192, 128), TRANSPOSED_TILE, KV_TILE, 0),
        129..=192 => ((192, 192), 64, KV_TILE_WIDE, 0),
        _ => ((256, 256), 64, KV_TILE_WIDE, 0),
    };
    let Grid { heads_item, interleave, ahead } =
        grid(f, (q_tile, kv_tile), 6 * dims.0 + 2 * dims.1, sm_count, idle_warps(f, dims));
    let bulk = dims == (192, 192) && !f.features.has(Feature::Deterministic);
    Choice {
        dims,
        q_tile,
        kv_tile,
        order,
        heads_item,
        interleave,
        stay: sm_count,
        ahead,
        dbias: f.ports.dbias.is_some(),
        staged: false,
        bulk,
    }
}

/// Whether two blocks of a cluster share dQ at 128/128.
fn pairs(f: &SdpaFacts, sm_count: i64) -> bool {
    let plain = idle_warps(f, (128, 128)) && f.mask.left.is_none();
    let tiles = ceil_div(f.s_kv, KV_TILE);
    let rows = if f.mask.right.is_some() { PAIR_ROWS_CAUSAL } else { PAIR_ROWS };
    plain && sm_count >= 2 && tiles % 2 == 0 && f.s_q >= rows
}

/// Whether two warps of main have nothing to do and lengths do not matter: they can then prepare later heads.
fn idle_warps(f: &SdpaFacts, dims: (i64, i64)) -> bool {
    let lengths = f.ports.seq_len_q.is_some() || f.ports.seq_len_kv.is_some() || f.features.has(Feature::Thd);
    !lengths && !f.features.has(Feature::Deterministic) && f.ports.bias.is_none() && dims.1 <= 128
}

/// Regions: delta, dq_accum, the relay's counters, the dBias sum, and the partial dK and dV where a group is split. `None` when a size leaves 64 bits.
pub(crate) fn carve(f: &SdpaFacts, c: &Choice, plan: &mut LaunchPlan) -> Option<Regions> {
    let mut r = Regions::default();
    let mut add = |name, bytes: i64| plan.region(name, u64::try_from(bytes).ok()?);
    let rows = c.total_rows(f)?;
    r.delta = add("delta", product(&[4, rows])?)?;
    r.dq_accum = Some(add("dq_accum", product(&[4, rows, c.dims.0])?)?);
    let counters = match (f.features.has(Feature::Deterministic), c.ahead) {
        (true, _) => turns(f)?,
        (false, 0) => 0,
        (false, _) => c.sections(f),
    };
    let words = counters.checked_add(c.ticket())?;
    if words > 0 {
        r.dq_sem = Some(add("dq_sem", product(&[4, words])?)?);
    }
    let planes = workspace::dbias_planes(f);
    if planes > 0 {
        r.dbias = Some(add("dbias_accum", product(&[4, planes, f.h_q, f.s_q, f.s_kv])?)?);
    }
    if split(f, c) {
        let packed = f.features.has(Feature::Thd);
        let tokens = if packed { packed_tokens(f.b, f.s_kv, f.max_total_seq_len_kv)? } else { f.b.checked_mul(f.s_kv)? };
        r.dk = Some(add("dk_ws", product(&[2, tokens, f.h_q / c.heads_item, c.dims.0])?)?);
        r.dv = Some(add("dv_ws", product(&[2, tokens, f.h_q / c.heads_item, c.dims.1])?)?);
    }
    Some(r)
}

/// Counters of the relay: what `dot` clears, one for every 32 query rows of every head.
pub(crate) fn turns(f: &SdpaFacts) -> Option<i64> {
    product(&[f.b, f.h_q, f.s_q.checked_add(31)? / 32])
}

/// Whether several blocks share a kv head's dK and dV.
pub(crate) fn split(f: &SdpaFacts, c: &Choice) -> bool {
    c.heads_item * f.h_kv != f.h_q
}

/// The chain for these facts: [zero] dot main [reduce] cvt|cvt_t [dbias_cvt] [dsink].
pub fn lower(row: &Row, facts: &Facts, _knobs: &Knobs, target: &Target) -> Result<LaunchPlan, Decline> {
    let f = facts.expect_sdpa();
    let c = choose(row, f, target)?;
    let Scale::Static(scale) = f.scale else {
        return Err(row.decline(Code::Feature, "attn_scale=tensor", "attn_scale is a tensor; this row serves a number"));
    };
    let mut plan = LaunchPlan::default();
    let regions = carve(f, &c, &mut plan).ok_or_else(|| overflow(row))?;
    let (ws_rows, total_rows) = c.ws_rows(f).zip(c.total_rows(f)).ok_or_else(|| overflow(row))?;
    let thd = f.features.has(Feature::Thd);
    let (choice, inputs) = (c.shared(f), Inputs::Tensors);
    let mut chain = Chain { f, choice, inputs, regions, scale, ws_rows, total_rows, thd, steps: Vec::new() };
    if f.ports.dbias.is_some() {
        chain.zero();
    }
    chain.dot_for(match c.ahead {
        0 => {
            let whole = chain.whole();
            DotShare { accum: !(c.staged && every_tile_is_visited(f)), counters: c.ticket() + whole.counters, ..whole }
        }
        n => DotShare { heads: n * c.interleave * c.heads_item, accum: true, counters: c.ticket() + c.sections(f) },
    });
    main(&mut chain, &c, MAIN, c.smem());
    if split(f, &c) {
        chain.reduce(c.heads_item);
    }
    if c.q_tile == TRANSPOSED_TILE {
        cvt_t(&mut chain, &c);
    } else {
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

/// Whether the masks leave every query tile at least one key tile, whatever the tensors hold: then a block that comes first to each stores its sum.
fn every_tile_is_visited(f: &SdpaFacts) -> bool {
    let lengths = f.ports.seq_len_q.is_some() || f.ports.seq_len_kv.is_some();
    let diagonal = if f.mask.bottom_right { f.s_kv - f.s_q } else { 0 };
    let first = f.mask.right.is_none_or(|right| right >= 0) && diagonal >= 0;
    let last = f.mask.left.is_none_or(|left| f.s_q - 1 + diagonal - left < f.s_kv);
    !lengths && !f.features.has(Feature::Thd) && first && last
}
