// Epilogue: dK and dV leave the accumulators once, through the dead K and V tiles, as 16-byte row-major stores.
#pragma once
#include "sdpa/bwd/mma/main_config.cuh"

namespace fg {

// Copies rows [0, rows) of a staged tile to global memory; columns stop at the real head dim (a multiple of 8, so whole vectors).
template <int D> FG_DEV void store_tile(u32 tile, void* out, i64 row_stride, i32 rows, i32 d, u32 tid) {
  constexpr u32 V = D / 8, U = CH / 8;
#pragma unroll 4
  for (u32 n = tid; n < TK * V; n += MATH_THREADS) {
    const u32 r = n / V, c = n % V;
    if ((i32)r < rows && (i32)(c * 8) < d) {
      u32 x, y, z, t;
      lds_v4(tile + (c / U) * (TK * CH * 2) + r * (CH * 2) + (((c % U) ^ row_swizzle<CH>(r)) << 4), x, y, z, t);
      stg_v4((u16*)out + ((i64)r * row_stride + c * 8), x, y, z, t);
    }
  }
}
template <int D> FG_DEV void store_zero(void* out, i64 row_stride, i32 rows, i32 d, u32 tid) {
  constexpr u32 V = D / 8;
#pragma unroll 1
  for (u32 n = tid; n < TK * V; n += MATH_THREADS) {
    const u32 r = n / V, c = n % V;
    if ((i32)r < rows && (i32)(c * 8) < d) stg_v4((u16*)out + ((i64)r * row_stride + c * 8), 0, 0, 0, 0);
  }
}

template <int MT, int NT> FG_DEV void stage(u32 base, const float (&acc)[MT][NT][4], float mul) {
  using Out = Stash<TK, CH, KM, KN>;
#pragma unroll
  for (int i = 0; i < MT; i++)
#pragma unroll
    for (int j = 0; j < NT; j += 2) Out::template put<BF16>(base, i, j / 2, acc[i][j], acc[i][j + 1], mul);
}

}  // namespace fg
