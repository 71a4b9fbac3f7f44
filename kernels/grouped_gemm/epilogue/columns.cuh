// Columns of D: D_col and its scales, partial sums of dbias, the largest magnitude of the expert.
#pragma once
#include "grouped_gemm/epilogue/values.cuh"

namespace fg {

// Column i of this thread over its four rows: the largest magnitude or the sum.
struct FourRows {
  const float (&d0)[64], (&d1)[64];
  template <bool MAX> FG_DEV float at(int i) const {
    const int x = 4 * (i / 2) + i % 2;
    if (MAX) return max_abs(max_abs(max_abs(max_abs(0.f, d0[x]), d0[x + 2]), d1[x]), d1[x + 2]);
    return (d0[x] + d0[x + 2]) + (d1[x] + d1[x + 2]);
  }
};
template <bool MAX> FG_DEV float join(float a, float b) { return MAX ? max_abs(a, b) : a + b; }
// Folds columns over the eight lanes of equal t by halving: lane g ends with columns 4 g .. 4 g + 3 of the thread's 32.
template <bool MAX, class V> FG_DEV void fold_columns(const V& v, u32 g, float (&own)[4]) {
  float a[16], b[8];
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const float lo = v.template at<MAX>(i), hi = v.template at<MAX>(16 + i);
    a[i] = join<MAX>(g & 4 ? hi : lo, __shfl_xor_sync(~0u, g & 4 ? lo : hi, 16));
  }
#pragma unroll
  for (int i = 0; i < 8; i++) b[i] = join<MAX>(g & 2 ? a[8 + i] : a[i], __shfl_xor_sync(~0u, g & 2 ? a[i] : a[8 + i], 8));
#pragma unroll
  for (int i = 0; i < 4; i++) own[i] = join<MAX>(g & 1 ? b[4 + i] : b[i], __shfl_xor_sync(~0u, g & 1 ? b[i] : b[4 + i], 4));
}

// Writes the scales of columns 4 g .. 4 g + 3 from their largest magnitudes; inv: what to multiply those columns by.
FG_DEV void column_scales(const float (&own)[4], float norm, u8* base, const Outputs& p, const Out& o, float (&inv)[4]) {
  // The rows of this warp are one block of every column.
  const i64 kb = FG_COMPACT ? (i64)o.block - (i64)o.first * 8 : o.block;
  const i64 km = FG_COMPACT ? (i64)o.count * 2 : (p.m + 127) / 128;
  u8* sfd = base + (FG_COMPACT ? (i64)o.first * 2 * ceil_div(p.n, 128) * 512 : 0) + ((i64)o.nb * km + (kb >> 2)) * 512 + o.t * 4 + (kb & 3);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const u32 e = scale_byte(own[i], norm);
    inv[i] = scale_inverse(e, norm);
    sfd[(4 * o.g + i) * 16] = (EDGE ? (i32)(4 * o.g) + i < o.valid : o.valid > 0) ? (u8)e : 0;
  }
}

FG_DEV void do_columns(const float (&d0)[64], const float (&d1)[64], const Outputs& p, const Out& o, float peak) {
  const i64 n = p.n;
  const FourRows rows{d0, d1};
  if (D_FP8) {
    const float norm = *p.norm_const;
    float own[4], inv[4];
    fold_columns<true>(rows, o.g, own);
    column_scales(own, norm, p.sfd_col, p, o, inv);
    // Four columns at a time, so that accumulators die as packed words are born.
    u32 out[4][8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int at = 8 * i;
      float f[4];
#pragma unroll
      for (int x = 0; x < 4; x++) f[x] = __shfl_sync(~0u, inv[x], 4 * i + o.t);
      out[0][i] = pack4(d0[at] * f[0], d0[at + 1] * f[1], d0[at + 4] * f[2], d0[at + 5] * f[3]);
      out[1][i] = pack4(d0[at + 2] * f[0], d0[at + 3] * f[1], d0[at + 6] * f[2], d0[at + 7] * f[3]);
      out[2][i] = pack4(d1[at] * f[0], d1[at + 1] * f[1], d1[at + 4] * f[2], d1[at + 5] * f[3]);
      out[3][i] = pack4(d1[at + 2] * f[0], d1[at + 3] * f[1], d1[at + 6] * f[2], d1[at + 7] * f[3]);
    }
    if (o.valid > 0) {
#pragma unroll
      for (int r = 0; r < 4; r++) {
        u8* at = p.d_col + (o.row + 8 * r) * n + o.col;
        stg_v4(at, out[r][0], out[r][1], out[r][2], out[r][3]);
        if (!EDGE || o.valid > 16) stg_v4(at + 16, out[r][4], out[r][5], out[r][6], out[r][7]);
      }
    }
  }
  if (FG_AMAX) {
    // Magnitudes, or NaN with its sign cleared: larger than all of them as an integer.
    const u32 bits = __reduce_max_sync(~0u, __float_as_uint(peak) & 0x7fffffffu);
    if ((o.g | o.t) == 0) atomicMax(reinterpret_cast<i32*>(p.amax) + o.expert, (i32)bits);
  }
  if constexpr (FG_DBIAS) {
    float own[4];
    fold_columns<false>(rows, o.g, own);
    if (EDGE ? (i32)(4 * o.g) < o.valid : o.valid > 0)
      stg_v4(p.dbias + (i64)o.block * n + o.col + 4 * o.g, __float_as_uint(own[0]), __float_as_uint(own[1]), __float_as_uint(own[2]), __float_as_uint(own[3]));
  }
}

}  // namespace fg
