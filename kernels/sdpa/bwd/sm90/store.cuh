// Epilogue: dK and dV leave the accumulators once, through the dead dS buffers, as 16-byte row-major stores.
#pragma once
#include "common/hopper.cuh"
#include "sdpa/bwd/sm90/config.cuh"

namespace fg {

// One warpgroup stages its 64 rows in pieces of at most 128 columns (16 KB: its half of the dS buffers) and copies them out.
template <int D> FG_DEV void store_rows(u32 stage, const float (&acc)[D / 2], float mul, u16* out, i64 row_stride, i32 rows, i32 d, u32 wg, u32 tid) {
  constexpr int PIECE = D % 128 == 0 ? 128 : 64;
  const u32 lane = tid & 31, warp = tid >> 5;
  const u32 row = warp * 16 + (lane & 15), unit = lane >> 4;
#pragma unroll
  for (int c0 = 0; c0 < D; c0 += PIECE) {
    constexpr int U = PIECE / 8;
#pragma unroll
    for (int j = 0; j < PIECE / 16; j++) {
      const float* a = acc + (c0 / 8 + 2 * j) * 4;
      const u32 u = 2 * j + unit;
      stsm4(stage + (u / 8) * 8192 + row * 128 + (((u % 8) ^ (row & 7)) << 4), pack2<BF16>(a[0] * mul, a[1] * mul), pack2<BF16>(a[2] * mul, a[3] * mul),
            pack2<BF16>(a[4] * mul, a[5] * mul), pack2<BF16>(a[6] * mul, a[7] * mul));
    }
    bar_sync_at<128>(NB_OUT + wg);
#pragma unroll 4
    for (u32 n = tid; n < 64 * U; n += 128) {
      const u32 r = n / U, u = n % U;
      if ((i32)r < rows && (i32)(c0 + u * 8) < d) {
        u32 x, y, z, t;
        lds_v4(stage + (u / 8) * 8192 + r * 128 + (((u % 8) ^ (r & 7)) << 4), x, y, z, t);
        stg_v4(out + ((i64)r * row_stride + c0 + u * 8), x, y, z, t);
      }
    }
    bar_sync_at<128>(NB_OUT + wg);
  }
}
template <int D> FG_DEV void store_zero(u16* out, i64 row_stride, i32 rows, i32 d, u32 tid) {
  constexpr u32 U = D / 8;
#pragma unroll 1
  for (u32 n = tid; n < 64 * U; n += 128) {
    const u32 r = n / U, u = n % U;
    if ((i32)r < rows && (i32)(u * 8) < d) stg_v4(out + ((i64)r * row_stride + u * 8), 0, 0, 0, 0);
  }
}

}  // namespace fg
