// Two warpgroups have walked every other kv tile of the same 64 rows: their sums and O join over shared memory. Each hands over the half of the columns that
// the other stores.
#pragma once
#include "sdpa/fwd/sm90/softmax.cuh"

namespace fg {

FG_DEV void merge_halves(u32 smem, u32 group, const float (&o)[O_REGS], Rows& r, float (&half)[O_REGS / 2]) {
  constexpr int H = O_REGS / 2;
  const u32 lane16 = 16 * (threadIdx.x % 128);
  const u32 mine = smem + OFF_X + group * EXCHANGE + lane16, other = smem + OFF_X + (group ^ 1) * EXCHANGE + lane16;
  const bool low = group == 0;
  bar_sync_at<128 * GROUPS>(NB_EXCHANGE);  // what the row block before this one left here was read
#pragma unroll
  for (int j = 0; j < H; j += 4) {
    u32 x[4];
#pragma unroll
    for (int e = 0; e < 4; e++) x[e] = __float_as_uint(low ? o[H + j + e] : o[j + e]);
    sts_v4(mine + 512 * j, x[0], x[1], x[2], x[3]);
  }
  sts_v4(mine + 512 * H, __float_as_uint(r.m[0]), __float_as_uint(r.m[1]), __float_as_uint(r.l[0]), __float_as_uint(r.l[1]));
  bar_sync_at<128 * GROUPS>(NB_EXCHANGE);
  u32 y[4];
  lds_v4(other + 512 * H, y[0], y[1], y[2], y[3]);
  float own[2], theirs[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float m = __uint_as_float(y[h]), l = __uint_as_float(y[2 + h]), top = fmaxf(r.m[h], m);
    own[h] = top == neg_inf() ? 1.f : ex2(r.m[h] - top);
    theirs[h] = top == neg_inf() ? 1.f : ex2(m - top);
    // One order for both, so that both have the same bits.
    const float a = r.l[h] * own[h], b = l * theirs[h];
    r.l[h] = low ? __fadd_rn(a, b) : __fadd_rn(b, a);
    r.m[h] = top;
  }
#pragma unroll
  for (int j = 0; j < H; j += 4) {
    lds_v4(other + 512 * j, y[0], y[1], y[2], y[3]);
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int h = (j + e) / 2 % 2;
      half[j + e] = fmaf(__uint_as_float(y[e]), theirs[h], (low ? o[j + e] : o[H + j + e]) * own[h]);
    }
  }
}

}  // namespace fg
