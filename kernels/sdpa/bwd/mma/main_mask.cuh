// Edge handling of the score tile: masks in registers, and clearing of invalid rows in shared memory.
#pragma once
#include "sdpa/bwd/mma/main_config.cuh"

namespace fg {

// Does the tile (q0.., kv0..) straddle a mask edge? Uniform. Interior tiles skip mask_scores altogether.
FG_DEV bool tile_has_edge(const Work& w, i32 q0) {
  bool e = w.kv0 + TK > w.len_kv;
  if (FG_CAUSAL) e |= w.kv0 + TK - 1 > q0 + w.band.diag + w.band.right;
  if (FG_WINDOW) e |= w.kv0 < q0 + TQ - 1 + w.band.diag - w.band.left;
  return e;
}

// Sets dead scores to `dead`, the value whose exponent argument is -inf for the sign of the scale at hand. Must happen before the
// exponential: with a very negative LSE a zero-filled key would give exp2(+large) = inf, and inf * 0 = NaN in dK.
FG_DEV void mask_scores(float (&s)[S_MT][S_NT][4], const Work& w, i32 row0, i32 col0, float dead) {
#pragma unroll
  for (int i = 0; i < S_MT; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const i32 q = row0 + 16 * SM * i + 8 * h + w.band.diag;
      i32 hi = w.len_kv - 1;
      if (FG_CAUSAL) hi = min2(hi, q + w.band.right);
      hi -= col0;
      const i32 lo = q - w.band.left - col0;
#pragma unroll
      for (int j = 0; j < S_NT; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const i32 off = 16 * SN * (j / 2) + 8 * (j & 1) + e;
          bool out = off > hi;
          if (FG_WINDOW) out |= off < lo;
          s[i][j][2 * h + e] = out ? dead : s[i][j][2 * h + e];
        }
    }
}

// Zeroes rows [first, ROWS) of a loaded tile. Rows past a sequence's length hold whatever the caller left there (or a neighbour's
// tokens); P = dS = 0 does not neutralise a NaN in the other MMA operand. Edge tiles only. The proxy fence orders these writes
// before the TMA refill of the same buffer.
template <int ROWS, int D> FG_DEV void scrub_rows(u32 tile, i32 first, u32 tid) {
  constexpr u32 UNITS = CH / 8;
  first = max2(first, 0);
  for (i32 r = first + (i32)(tid / UNITS); r < ROWS; r += MATH_THREADS / UNITS)
#pragma unroll
    for (int c = 0; c < D / CH; c++) sts_v4(tile + c * ROWS * CH * 2 + r * CH * 2 + (tid % UNITS) * 16, 0, 0, 0, 0);
  fence_async_smem();
}

}  // namespace fg
