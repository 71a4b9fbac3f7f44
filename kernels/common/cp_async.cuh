// cp.async copies of matrix tiles from any strided layout into the swizzled shared-memory chunks of mma_tile.cuh. Runs from sm_80 on.
#pragma once
#include "common/mma_tile.cuh"

namespace fg {

// 16 bytes, or 16 zero bytes when `live` is false: a size of 0 reads nothing, so the address may then be anything.
FG_DEV void cp_async16(u32 dst, const void* src, bool live) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(live ? 16 : 0) : "memory");
}
FG_DEV void cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for this thread's own groups only. Bytes copied by other threads are visible after a barrier that follows their wait.
template <int N> FG_DEV void cp_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

FG_DEV void sts_u32(u32 a, u32 v) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(a), "r"(v) : "memory"); }

// How T threads cover a [ROWS][D] tile of 16-bit values: thread t owns 16-byte unit t % UNITS of row t / UNITS, then every
// PASS_ROWS-th row, and the same of every chunk. PASS_ROWS is a multiple of 8, the period of the swizzle, so one shared-memory offset
// serves all passes.
template <int ROWS, int D, int T> struct TileCopy {
  static constexpr int CH = D % 64 == 0 ? 64 : 32;
  static constexpr int UNITS = CH / 8, PASS_ROWS = T / UNITS, PASSES = (ROWS + PASS_ROWS - 1) / PASS_ROWS, CHUNKS = D / CH;
  static_assert(D % 32 == 0 && PASS_ROWS % 8 == 0, "tile copy");

  static FG_DEV i32 row(u32 t) { return (i32)(t / UNITS); }
  static FG_DEV u32 col(u32 t) { return t % UNITS * 8; }
  static FG_DEV u32 offset(u32 t) {
    const u32 r = t / UNITS;
    return r * row_bytes<CH>() + (((t % UNITS) ^ row_swizzle<CH>(r)) << 4);
  }
  // Rows tile_row + [0, ROWS) of a matrix whose row 0 is at `base`; rows outside [lo, hi) and columns from `d` on become zeros.
  static FG_DEV void load(u32 tile, const u16* base, i64 stride, i32 tile_row, i32 lo, i32 hi, i32 d, u32 t) {
    opaque(t);  // the thread's place in the tile is cheap to compute again, and expensive to keep in registers across a loop of tiles
    const i32 r0 = tile_row + row(t);
    const char* src = (const char*)(base + ((i64)r0 * stride + col(t)));
    const i64 step = (i64)PASS_ROWS * stride * 2;
    const u32 dst = tile + offset(t);
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
      const i32 r = r0 + p * PASS_ROWS;
      const bool in = r >= lo && r < hi;
      if (ROWS % PASS_ROWS != 0 && row(t) + p * PASS_ROWS >= ROWS) break;
#pragma unroll
      for (int c = 0; c < CHUNKS; c++)
        cp_async16(dst + c * ROWS * CH * 2 + p * PASS_ROWS * CH * 2, src + c * CH * 2, in && c * CH + (i32)col(t) < d);
      src += step;
    }
  }
};

}  // namespace fg
