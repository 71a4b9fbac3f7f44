//! Tiles of the wgmma forward: what head dims, a bias, short problems and packed heads choose (`kernels/sdpa/fwd/sm90/README.md`).

use super::prefill::Sched;
use crate::caps::HeadDims;
use crate::sdpa::arith::ceil_div;
use crate::sdpa::layout::aligned_16_ok;
use crate::sdpa::matching::{head_dim_fit, HeadDimFit};
use crate::{DType, Feature, Knob, Knobs, SdpaFacts, Target};

/// Head dims that tiles are tuned for; others run zero-padded on the smallest of them that holds both.
pub const HEAD_DIMS: HeadDims =
    HeadDims { native: &[(64, 64), (128, 128), (192, 128), (256, 256)], pad_multiple: 8, dqk_ge_dv: false };

/// Query rows of a math warpgroup.
pub const GROUP_ROWS: i64 = 64;

/// The kernel's switches that tiles decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Padded head dims of Q and K.
    pub d_qk: i64,
    /// Padded head dim of V and O.
    pub d_v: i64,
    /// Math warpgroups.
    pub groups: i64,
    /// Keys a tile.
    pub kv_tile: i64,
    /// K buffers.
    pub stages: i64,
    /// V buffers.
    pub v_stages: i64,
    /// The warpgroups share 64 query rows and take the kv tiles in turn; otherwise each has 64 of its own.
    pub key_split: bool,
    /// Query heads of a key head whose rows share a tile, 1 where each head has tiles of its own.
    pub pack: i64,
    /// CTAs of a cluster, that take neighbouring tiles and share what is loaded of K and V.
    pub cluster: i64,
    /// Buffers of the bias of each math warpgroup, each of [`GROUP_ROWS`] rows and the keys of a tile; 0 where threads read it from memory themselves.
    pub bias_stages: i64,
    /// Bytes of an element of a bias that has buffers.
    pub bias_item: i64,
}

impl Config {
    /// Rows of a CTA.
    pub fn q_tile(&self) -> i64 {
        if self.key_split {
            GROUP_ROWS
        } else {
            GROUP_ROWS * self.groups
        }
    }

    /// Query tokens of 64 rows: packed rows are (token, head) pairs.
    pub fn group_tokens(&self) -> i64 {
        GROUP_ROWS / self.pack
    }

    /// Query tokens of a CTA.
    pub fn tokens(&self) -> i64 {
        self.q_tile() / GROUP_ROWS * self.group_tokens()
    }

    /// Query tokens of a cluster.
    pub fn cluster_tokens(&self) -> i64 {
        self.cluster * self.tokens()
    }

    /// Clusters that a device holds at a time.
    fn workers(&self, sm_count: u32) -> i64 {
        i64::from(sm_count) / self.cluster
    }

    /// Threads of a CTA: one more warpgroup loads.
    pub fn threads(&self) -> i64 {
        128 * (self.groups + 1)
    }

    /// Bytes of a row of a box of the bias: the widest swizzle that divides a tile's.
    pub fn bias_row(&self) -> i64 {
        let tile = self.kv_tile * self.bias_item;
        [128, 64].into_iter().find(|row| tile % row == 0).unwrap_or(32)
    }

    /// Q, the rings of K and V, those of the bias, what warpgroups that split keys exchange, barriers.
    pub fn smem(&self) -> i64 {
        let elements = self.q_tile() * self.d_qk + self.kv_tile * (self.stages * self.d_qk + self.v_stages * self.d_v);
        let exchange = if self.key_split { self.groups * 128 * 4 * (self.d_v / 4 + 4) } else { 0 };
        let bias = self.groups * self.bias_stages;
        let barriers = self.q_tile() / GROUP_ROWS + self.stages + self.v_stages + bias;
        2 * elements + bias * GROUP_ROWS * self.kv_tile * self.bias_item + exchange + 16 * barriers
    }
}

/// How the bias comes to the threads that have its scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    /// There is none.
    None,
    /// Each thread reads its elements from memory: any strides.
    Direct,
    /// By boxes of a tensor map through shared memory, elements of so many bytes.
    Boxes(i64),
}

/// How the bias comes. A map needs keys next to each other, and strides and a base that are multiples of 16 bytes; an extent of 1 broadcasts, a stride of 0
/// does not. Rows of packed heads have no boxes.
pub fn bias(f: &SdpaFacts, packed: bool) -> Bias {
    /// Elements; strides of a map are below 2^40 bytes.
    const FAR: i64 = 1 << 38;
    let Some(p) = &f.ports.bias else { return Bias::None };
    let keys = p.dim[3] == 1 || p.stride[3] == 1;
    let legal = (0..3).all(|a| p.dim[a] == 1 || (1..FAR).contains(&p.stride[a]));
    if packed || !keys || !legal || !aligned_16_ok(p) {
        Bias::Direct
    } else {
        Bias::Boxes(if p.dtype == DType::F32 { 4 } else { 2 })
    }
}

/// Rows of a tile at these padded head dims, the best for long problems first. 64 rows are what two warpgroups share.
pub fn tile_rows(d_qk: i64, bias: Bias) -> &'static [i64] {
    match (d_qk, bias) {
        (64, Bias::None) => &[192, 128, 64],
        (64 | 128 | 192, _) => &[128, 64],
        (_, _) => &[128],
    }
}

/// Padded head dims.
pub fn padded(d_qk: i64, d_v: i64) -> Option<(i64, i64)> {
    head_dim_fit(&HEAD_DIMS, d_qk, d_v).map(|fit| match fit {
        HeadDimFit::Native => (d_qk, d_v),
        HeadDimFit::Envelope(q, v) => (q, v),
    })
}

/// The measured configuration (H200, `kernels/sdpa/fwd/sm90/README.md`), none for rows a tile that these head dims do not have. A left bound cuts rows
/// short, so that smaller tiles waste less at its edges. A bias that is read from memory takes as many registers as the scores, one with boxes the shared
/// memory of buffers of K and V.
pub fn config(f: &SdpaFacts, knobs: &Knobs) -> Option<Config> {
    let (d_qk, d_v) = padded(f.d_qk, f.d_v)?;
    let packed = knobs.get(Knob::PackGqa) == Some(1);
    let (bias, window) = (bias(f, packed), f.mask.left.is_some());
    let list = tile_rows(d_qk, bias);
    let rows = knobs.get(Knob::TileM).unwrap_or(list[0]);
    if !list.contains(&rows) {
        return None;
    }
    let (groups, kv_tile, stages, bias_stages) = match bias {
        Bias::None => plain_tile(d_qk, rows, window),
        Bias::Direct => direct_bias_tile(d_qk, rows),
        Bias::Boxes(item) => boxed_bias_tile(d_qk, rows, item),
    };
    let pack = if packed { f.h_q / f.h_kv } else { 1 };
    if packed && !(2..=GROUP_ROWS).contains(&pack) {
        return None;
    }
    let bias_item = if let Bias::Boxes(item) = bias { item } else { 0 };
    let key_split = rows == GROUP_ROWS;
    Some(Config { d_qk, d_v, groups, kv_tile, stages, v_stages: stages, key_split, pack, cluster: 1, bias_stages, bias_item })
}

/// Math warpgroups, keys a tile, buffers of K and of V, buffers of a bias. Where warpgroups split the keys the buffers of K and of V are even in number, so that each
/// is read by one of them: otherwise a warpgroup may wait for a buffer two turns ahead, which one bit does not tell from the turn before.
type Tile = (i64, i64, i64, i64);

fn plain_tile(d_qk: i64, rows: i64, window: bool) -> Tile {
    match (d_qk, rows) {
        (64, 64) => (2, 128, 6, 0),
        (128, 64) => (2, 64, 4, 0),
        (192, 64) => (2, 64, 4, 0),
        (64, 192) if window => (3, 64, 4, 0),
        (64, 192) => (3, 96, 3, 0),
        (64, _) if window => (2, 64, 6, 0),
        (64, _) => (2, 128, 5, 0),
        (128, _) => (2, 128, 3, 0),
        (192, _) => (2, 128, 2, 0),
        (_, _) => (2, 64, 2, 0),
    }
}

fn direct_bias_tile(d_qk: i64, rows: i64) -> Tile {
    match (d_qk, rows) {
        (64, 64) => (2, 64, 8, 0),
        (128, 64) => (2, 64, 4, 0),
        (192, 64) => (2, 64, 4, 0),
        (64, _) => (2, 64, 6, 0),
        (128, _) => (2, 64, 4, 0),
        (192, _) => (2, 64, 3, 0),
        (_, _) => (2, 32, 4, 0),
    }
}

fn boxed_bias_tile(d_qk: i64, rows: i64, item: i64) -> Tile {
    match (d_qk, rows, item) {
        (64, 64, 2) => (2, 128, 4, 2),
        (64, 64, _) => (2, 64, 6, 3),
        (64, _, 2) => (2, 128, 3, 2),
        (64, _, _) => (2, 128, 2, 2),
        (128, 64, 2) => (2, 64, 4, 2),
        (128, 64, _) => (2, 64, 2, 3),
        (128, _, 2) => (2, 128, 2, 2),
        (128, _, _) => (2, 64, 3, 3),
        (192, 64, 2) => (2, 64, 2, 4),
        (192, 64, _) => (2, 64, 2, 2),
        (192, _, 2) => (2, 96, 2, 2),
        (192, _, _) => (2, 64, 2, 3),
        (_, _, 2) => (2, 64, 2, 2),
        (_, _, _) => (2, 64, 2, 1),
    }
}

/// (Batch, query head)s of a section, (batch, key head)s where heads are packed. At least four CTAs read the same keys at a time: with fewer the reads of
/// 132 multiprocessors are more than the memory delivers. Within that, whole groups whose tiles come out even over two rounds of the CTAs, forwards and
/// backwards, because a round is what the order balances (192/128, S 4096: 33 heads, eight rounds, 682 TFLOP/s; 8 heads, 0.97 of two rounds, 472).
pub fn section(f: &SdpaFacts, c: &Config, sched: i64, target: &Target) -> i64 {
    let all = f.b * f.h_q / c.pack;
    let Target::Cuda { sm_count, .. } = target else { return all };
    let (sms, group) = (c.workers(*sm_count), f.h_q / f.h_kv / c.pack);
    if sched != Sched::LptL2 as i64 || f.b * f.h_kv <= sms / 4 {
        return all;
    }
    let (tiles, round) = (ceil_div(f.s_q, c.cluster_tokens()), 2 * sms);
    let heads = (1..=sms / 4).map(|n| n * group).filter(|n| n * tiles >= round - round / 8);
    // Idle places of the last round, a share of the section's tiles.
    let idle = |n: &i64| (round - n * tiles % round) % round * 10_000 / (n * tiles);
    heads.min_by_key(|n| (idle(n), *n)).unwrap_or(all).min(all)
}

/// Double rounds of the CTAs in which each takes a head's t-th longest and its t-th shortest tile, head after head, so that few heads are read at a time; at
/// least one double round of tiles is left to come longest first, which evens out. For heads with keys of their own that the L2 cache does not hold together
/// (1.01 to 1.10 of the speed on an H200, 0.98 to 1.0 at 192/128 S 2048); heads that share keys lose 2 to 4 % (`kernels/PERFORMANCE.md` section 11). None: sections.
pub fn pair_rounds(f: &SdpaFacts, c: &Config, sched: i64, target: &Target) -> Option<i64> {
    let Target::Cuda { l2_bytes, sm_count, .. } = target else { return None };
    let (heads, q_tiles) = (f.b * f.h_kv, ceil_div(f.s_q, c.cluster_tokens()));
    let bytes = f.s_kv.saturating_mul(f.d_qk + f.d_v).saturating_mul(2).saturating_mul(heads);
    let triangle = f.mask.right.is_some() && f.mask.left.is_none() && !f.features.has(Feature::Thd) && q_tiles % 2 == 0;
    let own = !c.key_split && f.h_q / f.h_kv == c.pack && u64::try_from(bytes).is_ok_and(|n| n > *l2_bytes);
    let rounds = heads.saturating_mul(q_tiles / 2).checked_div(c.workers(*sm_count))? - 1;
    (sched == Sched::LptL2 as i64 && triangle && own && rounds > 0).then_some(rounds)
}

/// The configuration with clusters of two CTAs where they were measured to gain: where tiles go in pairs, whose CTAs otherwise read a head's keys at
/// different times: on an H200 1.01 to 1.05 of the speed from 4096 tokens on, 0.99 at 2048 (`kernels/PERFORMANCE.md` section 11). The kernel has none of packed heads.
pub fn clustered(f: &SdpaFacts, c: Config, sched: i64, target: &Target) -> Config {
    let two = Config { cluster: 2, ..c };
    let served = c.groups == 2 && c.pack == 1 && c.d_qk >= 128 && f.s_q >= 4096 && f.ports.bias.is_none();
    if served && pair_rounds(f, &two, sched, target).is_some() {
        two
    } else {
        c
    }
}

/// Tiles of the launch, those of a cluster taken as one.
pub fn tiles(f: &SdpaFacts, c: &Config) -> i64 {
    ceil_div(f.s_q, c.cluster_tokens()) * (f.h_q / c.pack) * f.b
}

/// CTAs of the launch: one a multiprocessor, which takes several tiles in turn and loads the next one's queries under the end of the last.
pub fn grid(f: &SdpaFacts, c: &Config, target: &Target) -> i64 {
    let workers = match target {
        Target::Cuda { sm_count, .. } => c.workers(*sm_count),
        Target::Cpu => 1,
    };
    tiles(f, c).min(workers) * c.cluster
}
