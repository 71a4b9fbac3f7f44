// Defines -> constants of the wgmma forward kernel, its shared-memory map, and which tile a CTA works on.
#pragma once
#include "common/hopper.cuh"
#include "common/wgmma.cuh"
#include "sdpa/fwd/sm90/cluster.cuh"
#include "sdpa/fwd/mma/geometry.cuh"

#if !defined(FG_BF16) || !defined(FG_D_QK) || !defined(FG_D_V) || !defined(FG_KV_TILE) || !defined(FG_MATH_GROUPS) || !defined(FG_STAGES)
#error "prefill.cu needs FG_BF16, FG_D_QK, FG_D_V, FG_KV_TILE, FG_MATH_GROUPS, FG_STAGES"
#endif
#if !defined(FG_BIAS) || !defined(FG_BIAS_STAGES)
#error "prefill.cu needs FG_BIAS, FG_BIAS_STAGES"
#endif
#if !defined(FG_V_STAGES) || !defined(FG_KEY_SPLIT) || !defined(FG_PACK_GQA) || !defined(FG_CLUSTER) || !defined(FG_CAUSAL) || !defined(FG_WINDOW)
#error "prefill.cu needs FG_V_STAGES, FG_KEY_SPLIT, FG_PACK_GQA, FG_CLUSTER, FG_CAUSAL, FG_WINDOW"
#endif

namespace fg {

constexpr int BF16 = FG_BF16;
constexpr int DQK = FG_D_QK, DV = FG_D_V, TK = FG_KV_TILE, GROUPS = FG_MATH_GROUPS, STAGES = FG_STAGES, V_STAGES = FG_V_STAGES;
constexpr bool KEY_SPLIT = FG_KEY_SPLIT, PACK = FG_PACK_GQA;
constexpr int ROW_GROUPS = KEY_SPLIT ? 1 : GROUPS;  // blocks of 64 query rows: one a math warpgroup, or one that all of them share, each with its own kv tiles
constexpr int TQ = 64 * ROW_GROUPS;       // query rows of a CTA
constexpr int CLUSTER = FG_CLUSTER;       // CTAs that share their kv tiles
constexpr int STEP = KEY_SPLIT ? GROUPS : 1;        // from one kv tile of a math warpgroup to its next
constexpr int BIAS_STAGES = FG_BIAS_STAGES;  // buffers of a bias that comes through shared memory, of each math warpgroup
constexpr bool BIAS_TMA = BIAS_STAGES > 0, BIAS_DIRECT = FG_BIAS && !BIAS_TMA;
constexpr int CH = 64;                    // columns of a 128-byte row: every tile is chunks of [rows][64]
constexpr int MATH = 128 * GROUPS, THREADS = 128 + MATH;
// The pool that setmaxnreg deals out is what __launch_bounds__ granted: 3 * 168 = 504 = 24 + 2 * 240 = 40 + 2 * 232, 4 * 128 = 512 = 32 + 3 * 160.
// 24 registers are too few for a thread that loads for a cluster.
constexpr int MATH_REGS = GROUPS == 3 ? 160 : CLUSTER == 2 ? 232 : 240, LOAD_REGS = GROUPS == 3 ? 32 : CLUSTER == 2 ? 40 : 24;
constexpr int S_REGS = TK / 2, O_REGS = DV / 2, P_REGS = TK / 4;

static_assert(GROUPS == 2 || GROUPS == 3, "math warpgroups");
static_assert(DQK % 64 == 0 && DV % 64 == 0 && DQK <= 256 && DV <= 256, "head dims come in chunks of 64 columns");
static_assert(TK % 16 == 0 && TK <= 256, "kv tile");
static_assert(CLUSTER == 1 || (CLUSTER == 2 && GROUPS == 2 && !KEY_SPLIT && !PACK && !FG_WINDOW && TK % 16 == 0), "long problems take clusters");

static_assert(!BIAS_TMA || (FG_BIAS && CLUSTER == 1 && !PACK), "a bias comes by boxes of one head's rows");

// ---- shared memory: Q [row group][chunk][64][64], K and V rings [stage][chunk][TK][64], bias rings [math warpgroup][stage][chunk][64][BIAS_ROW bytes], where keys
// are split what two warpgroups exchange (half of O, reference and sum of two rows a thread), barriers ----
constexpr u32 Q_BYTES = 64 * DQK * 2, K_BYTES = TK * DQK * 2, V_BYTES = TK * DV * 2;
// Rows of a chunk of a bias tile: the widest swizzle that divides the tile's.
constexpr u32 BIAS_ITEM = FG_BIAS == 2 ? 4 : 2, BIAS_ROW = TK * BIAS_ITEM % 128 == 0 ? 128 : TK * BIAS_ITEM % 64 == 0 ? 64 : 32;
constexpr u32 BIAS_CHUNK = 64 * BIAS_ROW, BIAS_BYTES = BIAS_TMA ? 64 * TK * BIAS_ITEM : 0;
constexpr u32 EXCHANGE = KEY_SPLIT ? 128 * 4 * (O_REGS / 2 + 4) : 0;  // bytes a warpgroup
constexpr u32 OFF_Q = 0, OFF_K = OFF_Q + ROW_GROUPS * Q_BYTES, OFF_V = OFF_K + STAGES * K_BYTES, OFF_B = OFF_V + V_STAGES * V_BYTES,
              OFF_X = OFF_B + GROUPS * BIAS_STAGES * BIAS_BYTES, OFF_BAR = OFF_X + GROUPS * EXCHANGE;
constexpr u32 BAR_Q_FULL = OFF_BAR, BAR_Q_FREE = BAR_Q_FULL + 8 * ROW_GROUPS, BAR_K_FULL = BAR_Q_FREE + 8 * ROW_GROUPS,
              BAR_K_FREE = BAR_K_FULL + 8 * STAGES, BAR_V_FULL = BAR_K_FREE + 8 * STAGES, BAR_V_FREE = BAR_V_FULL + 8 * V_STAGES,
              BAR_B_FULL = BAR_V_FREE + 8 * V_STAGES, BAR_B_FREE = BAR_B_FULL + 8 * GROUPS * BIAS_STAGES;
constexpr u32 SMEM_BYTES = OFF_BAR + 16 * (ROW_GROUPS + STAGES + V_STAGES + GROUPS * BIAS_STAGES);
static_assert(OFF_B % 1024 == 0 && BIAS_BYTES % 1024 == 0, "swizzles go by address");
static_assert(SMEM_BYTES <= 232448, "shared memory of sm_90");
static_assert(!KEY_SPLIT || GROUPS == 2, "two warpgroups exchange halves");
// With an odd number a buffer's turns go to both warpgroups, and one that waits for its own while the other's is still being filled takes the phase before for it.
static_assert(!KEY_SPLIT || (STAGES % 2 == 0 && V_STAGES % 2 == 0), "a buffer is read by one warpgroup");
constexpr u32 NB_OWN = 1, NB_EXCHANGE = 1 + GROUPS;  // named barriers from here: one of each math warpgroup's own (0 is __syncthreads), one of all of them

// Keys that rows [row, row + rows) see.
struct Span {
  i32 k_lo, k_hi;        // keys that some row keeps
  i32 n_lo, n_hi;        // their kv tiles [lo, hi), walked downwards; hi = lo when there are none
  i32 full_lo, full_hi;  // tiles in [lo, hi) that every row keeps whole: no mask there
};
FG_DEV Span make_span(const Band& band, i32 row, i32 rows, i32 len_q, i32 len_kv) {
  Span s;
  const i32 first = row + band.diag, last = min2(row + rows, len_q) - 1 + band.diag;
  s.k_lo = FG_WINDOW ? min2(len_kv, max2(0, first - band.left)) : 0;
  s.k_hi = FG_CAUSAL ? min2(len_kv, last + band.right + 1) : len_kv;
  if (row >= len_q || s.k_hi < s.k_lo) s.k_hi = s.k_lo;
  s.n_lo = s.k_lo / TK;
  s.n_hi = s.k_hi > s.k_lo ? ceil_div(s.k_hi, TK) : s.n_lo;
  // Whole tiles between the last row's left bound and the first row's right bound.
  s.full_hi = max2(0, FG_CAUSAL ? min2(len_kv, first + band.right + 1) : len_kv) / TK;
  s.full_lo = FG_WINDOW ? ceil_div(max2(0, last - band.left), TK) : 0;
  return s;
}

// What a launch may have or not. These cost a few instructions a tile, so they are no switches of the compiler: 4 head dims x 2 types x 4 masks is all
// that is ever compiled.
struct Form {
  bool thd, wide, totals, stats_log2, longest_first, pairs;
  FG_DEV explicit Form(i32 bits) : thd(bits & 1), wide(bits & 2), totals(bits & 4), stats_log2(bits & 8), longest_first(bits & 16), pairs(bits & 32) {}
  FG_DEV i32 length(const i32* lens, i32 b, i32 s_max) const { return totals ? seq_len<1>(lens, b, s_max) : seq_len<0>(lens, b, s_max); }
  FG_DEV i64 offset(const void* rag, i32 b, i64 mul) const { return wide ? ragged_offset<1>(rag, b, mul) : ragged_offset<0>(rag, b, mul); }
  // First element of a sequence on an output.
  FG_DEV i64 origin(const void* rag, i64 mul, i32 b, i64 sb) const { return thd ? offset(rag, b, mul) : (i64)b * sb; }
  // First token of a packed sequence on an input.
  FG_DEV i32 token(const void* rag, i64 mul, i32 b, i64 ss) const { return thd ? (i32)(offset(rag, b, mul) / ss) : 0; }
};

// The launch's extents and masks: uniform over the grid.
struct Problem {
  i32 batch, heads_q, group, s_q, s_kv, section;
  const i32 *seq_q, *seq_kv;
  i32 bottom_right, left, right;

  // Tokens that 64 rows hold. Packed: rows are (token, query head of the group) pairs, heads fastest; where the group does not divide 64 the last rows are idle.
  FG_DEV i32 tokens() const { return PACK ? 64 / group : 64; }
  FG_DEV u32 heads() const { return (u32)(PACK ? heads_q / group : heads_q); }
  // Tiles of a head, those of a cluster taken as one.
  FG_DEV u32 tiles() const { return (u32)ceil_div(s_q, CLUSTER * ROW_GROUPS * tokens()); }
};

// The CTA's tile in the order of the grid. Everything is uniform over the CTA.
struct Work {
  i32 b, h, h_kv, row0;   // h: query head, the group's first when packed; row0: first query token
  i32 len_q, len_kv;
  Band band;
  Span keys;              // k_lo, k_hi: of all the CTA's rows; n_lo, n_hi: what is loaded, of all the cluster's
};

// Where a launch of many heads takes pairs of tiles: t and tiles - 1 - t of a head, which a causal mask makes as long together as any other two, one after the
// other by one CTA. So head after head can be taken, and few heads' keys are read at a time.
constexpr bool PAIRS = FG_CAUSAL && !FG_WINDOW && !KEY_SPLIT;
struct Pick {
  u32 bh, t;
};
FG_DEV u32 clusters() { return gridDim.x / CLUSTER; }
// The index-th tile of the list whose first 2 * `section` rounds are pairs (an even number of tiles a head); what remains comes longest first.
FG_DEV Pick paired(const Problem& p, u32 index) {
  const u32 g = clusters(), tiles = p.tiles(), half = tiles / 2, pairs = (u32)p.section * g;
  if (index < 2 * pairs) {
    const u32 k = index / (2 * g), r = index - k * (2 * g), pair = k * g + (r < g ? r : 2 * g - 1 - r), bh = pair / half, t = pair - bh * half;
    return {bh, r < g ? tiles - 1 - t : t};
  }
  index -= 2 * pairs;
  // Of the head at which the pairs broke off, the `done` longest and shortest tiles are taken already.
  const u32 broken = pairs / half, done = pairs - broken * half, whole = (u32)p.batch * p.heads() - broken - 1;
  const u32 longer = done * whole, middle = (tiles - 2 * done) * (whole + 1);
  u32 first = broken + 1, heads = whole, level = 0;
  if (index >= longer + middle) {
    index -= longer + middle;
    level = tiles - done;
  } else if (index >= longer) {
    index -= longer;
    level = done;
    first = broken;
    heads = whole + 1;
  }
  const u32 q = index / heads;
  return {first + (index - q * heads), tiles - 1 - (level + q)};
}

// Tiles of a launch, in an order: query tiles of a head ascending, head after head; or longest first: in sections of `section` (batch, head)s the last
// query tiles (the longest with a causal mask) of all its heads first; or pairs.
FG_DEV Work make_work(const Form& form, const Problem& p, u32 index, u32 side) {
  const u32 tiles = p.tiles(), heads = p.heads();
  u32 bh, t;
  if (PAIRS && form.pairs) {
    const Pick x = paired(p, index);
    bh = x.bh;
    t = x.t;
  } else if (!form.longest_first) {
    bh = index / tiles;
    t = index - bh * tiles;
  } else {
    const u32 all = (u32)p.batch * heads, first = index / (tiles * (u32)p.section) * (u32)p.section, n = min2((u32)p.section, all - first);
    const u32 r = index - first * tiles;
    t = r / n;
    bh = first + (r - t * n);
    t = tiles - 1 - t;
  }
  Work w;
  w.b = (i32)(bh / heads);
  w.h = (i32)(bh - (u32)w.b * heads);
  w.h_kv = PACK ? w.h : w.h / p.group;
  if (PACK) w.h *= p.group;
  const i32 tokens = ROW_GROUPS * p.tokens();
  const i32 first = (i32)t * (CLUSTER * tokens);
  w.row0 = first + (i32)side * tokens;
  w.len_q = form.length(p.seq_q, w.b, p.s_q);
  w.len_kv = form.length(p.seq_kv, w.b, p.s_kv);
  w.band = make_band(p.bottom_right, w.len_q, w.len_kv, p.left, p.right);
  w.keys = make_span(w.band, w.row0, tokens, w.len_q, w.len_kv);
  if (CLUSTER == 2) {
    const Span all = make_span(w.band, first, CLUSTER * tokens, w.len_q, w.len_kv);
    w.keys.n_lo = all.n_lo;
    w.keys.n_hi = all.n_hi;
  }
  return w;
}

// Round r of CTA c of g: forwards and backwards in turn, so that with tiles in descending order of length no CTA gets the longer one each time.
FG_DEV u32 nth_tile(const Form& form, u32 r) {
  const u32 g = clusters(), c = blockIdx.x / CLUSTER;
  return r * g + ((form.longest_first && (r & 1)) ? g - 1 - c : c);
}

// This CTA's tiles, one after the other.
struct Tiles {
  u32 round = 0;
  // False: there are no more. Nothing past a packed sequence's end belongs to it: such tiles are passed over.
  FG_DEV bool next(const Form& form, const Problem& p, Work& w) {
    const u32 total = p.tiles() * ((u32)p.batch * p.heads());
#pragma unroll 1
    while (true) {
      const u32 i = nth_tile(form, round), first = round * clusters();
      if (first >= total) return false;
      round++;
      if (i >= total) continue;
      // The two of a cluster change places, because the later rows see more keys.
      w = make_work(form, p, i, CLUSTER == 2 ? (blockIdx.x ^ round) & 1 : 0);
      if (!form.thd || w.row0 < w.len_q) return true;
    }
  }
};

}  // namespace fg
