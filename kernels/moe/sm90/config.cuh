// Plain grouped product on Hopper: switches, tile, shared memory, and what is behind a routed row.
#pragma once
#include "common/cp_async.cuh"
#include "common/hopper.cuh"
#include "common/wgmma.cuh"

#if !defined(FG_BF16) || !defined(FG_OUT) || !defined(FG_MODE) || !defined(FG_OFFSET64) || !defined(FG_END) || !defined(FG_NMAJOR)
#error "needs FG_BF16, FG_OUT, FG_MODE, FG_OFFSET64, FG_END, FG_NMAJOR"
#endif

namespace fg {

// Tokens and weights are bf16 (1) or f16 (0). Output: 0 f32, 1 bf16, 2 f16.
constexpr int BF16 = FG_BF16, OUT = FG_OUT, T_F32 = 0, T_BF16 = 1;
// Rows are read and written in order (0), read through token_index (1), written through token_index and token_ks (2).
constexpr int MODE = FG_MODE, NONE = 0, GATHER = 1, SCATTER = 2;
// Offsets are 64-bit integers; they end with a boundary of their own.
constexpr bool OFFSET64 = FG_OFFSET64, EXPLICIT_END = FG_END;
// Weights lie with n contiguous instead of k.
constexpr bool NMAJOR = FG_NMAJOR;

// Warpgroups: 0 copies, 1 and 2 multiply 64 rows each.
constexpr int THREADS = 384, COPY_REGS = 72, MATH_REGS = 216, MATH_WARPS = 8;
static_assert(COPY_REGS + 2 * MATH_REGS <= 504, "the pool is what launch_bounds grants");

// A tile of the output, and k of a stage: one 128-byte row of either operand.
constexpr int M_TILE = 128, N_TILE = 256, K_TILE = 64;
constexpr u32 A_BYTES = M_TILE * 128, B_BYTES = N_TILE * 128, STAGE = A_BYTES + B_BYTES, STAGES = 4;
// A gathered stage is announced this many stages late: its copies have then landed without a wait of their own.
constexpr int LAG = 2;
static_assert(LAG + 2 <= (int)STAGES, "the last announced stage must not hold up the next one");
// A tile's description travels through a ring; deeper than the lag by two, or short tiles would wait for each other.
constexpr u32 HDR = 16, HDRS = LAG + 2;
// 16 rows by 64 columns of 16-bit results for each warp, twice.
constexpr u32 STAGING = 16 * 128, AT_STAGING = STAGES * STAGE, AT_HDR = AT_STAGING + MATH_WARPS * 2 * STAGING, AT_BAR = AT_HDR + HDR * HDRS;
constexpr u32 FULL = 0, EMPTY = FULL + 8 * STAGES, H_FULL = EMPTY + 8 * STAGES, H_EMPTY = H_FULL + 8 * HDRS;
constexpr u32 SMEM = AT_BAR + 256 + 1024;
static_assert(H_EMPTY + 8 * HDRS <= 256 && SMEM <= 232448, "shared memory");

// Row tiles of a group that are computed side by side before the next columns: what they share of the weights stays in L2.
#ifndef FG_BAND
#define FG_BAND 8
#endif
constexpr i32 BAND = FG_BAND;

constexpr i32 DECREASING = 1 << 16, BEYOND = 1 << 17, INDEX = 1 << 18;

struct Routing {
  const void* offsets;
  const i32 *index, *ks;
  i32 tokens, routed, groups, experts, top_k;
};

FG_DEV i64 boundary(const Routing& p, i32 i) {
  if (!EXPLICIT_END && i == p.groups) return p.routed;
  return OFFSET64 ? static_cast<const i64*>(p.offsets)[i] : (i64) static_cast<const i32*>(p.offsets)[i];
}
// What is wrong with the boundaries of group g, given that those before it are good.
FG_DEV i32 fault(const Routing& p, i32 g, i64 from, i64 to) {
  const i32 first = g == 0 ? (from < 0 ? DECREASING : 0) | (from > p.routed ? BEYOND : 0) : 0;
  return first ? first : (to < from ? DECREASING : 0) | (to > p.routed ? BEYOND : 0);
}
// The row of the token that routed row r reads; -1 where its index is out of range.
FG_DEV i32 source(const Routing& p, i32 r) {
  if (MODE != GATHER) return r;
  const i32 at = p.index[r];
  return at >= 0 && at < p.tokens ? at : -1;
}
// The row of the output that routed row r is written to; -1 where its index is out of range.
FG_DEV i32 target(const Routing& p, i32 r) {
  if (MODE == NONE) return r;
  if (MODE == GATHER) return source(p, r) < 0 ? -1 : r;
  const i32 at = p.index[r], slot = p.ks[r];
  return at >= 0 && at < p.routed / p.top_k && slot >= 0 && slot < p.top_k ? at * p.top_k + slot : -1;
}

// A tile: rows [row, row + rows) of the routed ones, columns from `col` on, weights of `expert`. No rows: there is no further tile.
struct Tile {
  i32 row, rows, col, expert;
};

// Finds tiles by their number, ascending. A warp looks at 32 groups at a time: lane l knows group `first` + l and how many tiles the groups up
// to it have. The numbers run group by group, within a group in bands of row tiles, row tile fastest.
struct Walk {
  i32 first, base, end, count;  // end: tiles of this lane's group and all lanes below; count: of all lanes
  i32 from, rows;
  bool dead;

  FG_DEV void load(const Routing& p, i32 n_tiles, u32 lane) {
    const i32 g = first + (i32)lane;
    const bool there = g < p.groups;
    const i64 a = there ? boundary(p, g) : 0, b = there ? boundary(p, g + 1) : 0;
    const u32 bad = __ballot_sync(~0u, there && fault(p, g, a, b));
    const bool good = there && !dead && (bad == 0 || (i32)lane < __ffs(bad) - 1);
    dead = dead || bad;
    from = good ? (i32)a : 0;
    rows = good ? (i32)(b - a) : 0;
    end = ceil_div(rows, M_TILE) * n_tiles;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const i32 below = __shfl_up_sync(~0u, end, d);
      if ((i32)lane >= d) end += below;
    }
    count = __shfl_sync(~0u, end, 31);
  }
  FG_DEV void start(const Routing& p, i32 n_tiles, u32 lane) {
    first = base = 0;
    dead = false;
    load(p, n_tiles, lane);
  }
  FG_DEV Tile find(const Routing& p, i32 number, i32 n_tiles, u32 lane) {
    while (number >= base + count) {
      base += count;
      first += 32;
      if (first >= p.groups || dead) return Tile{0, 0, 0, 0};
      load(p, n_tiles, lane);
    }
    const u32 at = __ffs(__ballot_sync(~0u, number < base + end)) - 1;
    const i32 all = __shfl_sync(~0u, rows, at), begin = __shfl_sync(~0u, from, at), upto = __shfl_sync(~0u, end, at);
    const i32 m_tiles = ceil_div(all, M_TILE), in = number - base - (upto - m_tiles * n_tiles);
    const i32 band = in / (BAND * n_tiles), left = in - band * BAND * n_tiles, high = min2(BAND, m_tiles - band * BAND);
    const i32 nb = left / high, mb = band * BAND + left - nb * high;
    return Tile{begin + mb * M_TILE, min2(M_TILE, all - mb * M_TILE), nb * N_TILE, (first + (i32)at) % p.experts};
  }
};

}  // namespace fg
