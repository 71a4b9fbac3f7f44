// The arithmetic of one block of keys in one warp, and the sum over the warps of a CTA.
#pragma once
#include "sdpa/fwd/mma/decode_config.cuh"
#include "sdpa/fwd/mma/softmax.cuh"

namespace fg {

using OpK = Operand<KEYS, K_CH, 1, false, false>;
using OpV = Operand<KEYS, V_CH, 1, true, false>;

// Q as A fragments, straight from global memory: 16 rows are too few to be worth a trip through shared memory. Rows that are not live
// and columns from d_qk on are zeros.
FG_DEV void load_q(u32 (&f)[QK_STEPS][4], const u16* q, i64 q_sh, i64 q_ss, const Work& w, i32 group, i32 d_qk, u32 lane) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const i32 p = w.row0 + (i32)(lane >> 2) + 8 * h, tok = p / group, head = w.h * group + (p - tok * group);
    const bool live = tok < w.len_q;
    const u16* row = q + ((i64)head * q_sh + (i64)tok * q_ss + 2 * (i32)(lane & 3));
#pragma unroll
    for (int ks = 0; ks < QK_STEPS; ks++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        u32 x = 0;
        if (live && 16 * ks + 8 * c < d_qk) x = __ldg((const u32*)(row + 16 * ks + 8 * c));
        f[ks][2 * c + h] = x;
      }
  }
}

FG_DEV void attend(float (&acc)[1][O_NT][4], Rows<1>& r, const u32 (&qf)[QK_STEPS][4], u32 stage, const Work& w, i32 kv0, bool plain, float pre,
                   float mul, u32 lane) {
  const u32 k = stage + OpK::lane_base(0, lane), v = stage + KB_BYTES + OpV::lane_base(0, lane);
  // Two partial sums over the head dim: with 16 keys a single one would be a chain of dependent MMAs with nothing beside it.
  float s[1][S_NT][4] = {}, s1[S_NT][4] = {};
#pragma unroll
  for (int ks = 0; ks < QK_STEPS; ks++)
#pragma unroll
    for (int j = 0; j < S_NT / 2; j++) {
      u32 b[2][2];
      ldsm4(OpK::addr(k, j, ks), b[0][0], b[0][1], b[1][0], b[1][1]);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float(&d)[4] = ks & 1 ? s1[2 * j + h] : s[0][2 * j + h];
        mma_16816<BF16>(d, qf[ks], b[h], d[0], d[1], d[2], d[3]);
      }
    }
#pragma unroll
  for (int j = 0; j < S_NT; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) s[0][j][e] = plain ? s[0][j][e] + s1[j][e] : (s[0][j][e] + s1[j][e]) * pre;

  bool edge = kv0 + KEYS > w.len_kv;
  if (FG_CAUSAL || FG_WINDOW) edge = true;  // a few keys at either end of a long walk: not worth finding out which
  if (edge) mask_scores<FG_CAUSAL, FG_WINDOW>(s, r, w.band, w.len_kv, kv0 + 2 * (i32)(lane & 3));
  softmax<false>(s, acc, r, mul);

#pragma unroll
  for (int ks = 0; ks < PV_STEPS; ks++) {
    const u32 a[4] = {pack2<BF16>(s[0][2 * ks][0], s[0][2 * ks][1]), pack2<BF16>(s[0][2 * ks][2], s[0][2 * ks][3]),
                      pack2<BF16>(s[0][2 * ks + 1][0], s[0][2 * ks + 1][1]), pack2<BF16>(s[0][2 * ks + 1][2], s[0][2 * ks + 1][3])};
#pragma unroll
    for (int j = 0; j < O_NT / 2; j++) {
      u32 b[2][2];
      ldsm4t(OpV::addr(v, j, ks), b[0][0], b[0][1], b[1][0], b[1][1]);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float(&d)[4] = acc[0][2 * j + h];
        mma_16816<BF16>(d, a, b[h], d[0], d[1], d[2], d[3]);
      }
    }
  }
}

FG_DEV void store_part(u32 smem, u32 warp, u32 lane, const float (&acc)[O_NT][4], const Rows<1>& r) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const u32 row = (lane >> 2) + 8 * h;
    const float l = quad_sum(r.l[0][h]);
    if ((lane & 3) == 0) sts_f32x2(smem + OFF_ML + (warp * ROWS + row) * 8, r.m[0][h], l);
    const u32 at = smem + warp * PART_BYTES + row * PART_ROW + (lane & 3) * 8;
#pragma unroll
    for (int j = 0; j < O_NT; j++) sts_f32x2(at + j * 32, acc[j][2 * h], acc[j][2 * h + 1]);
  }
}

// Columns c .. c + 7 of a row, its maximum and its sum, over the warps in ascending order. A warp that saw no key has m = -inf and weight
// exactly 0; its accumulators are zeros, never garbage.
FG_DEV void sum_parts(u32 smem, i32 row, i32 c, float (&sum)[8], float& m, float& l) {
  float wm[WARPS], wl[WARPS];
  m = neg_inf();
#pragma unroll
  for (int x = 0; x < WARPS; x++) {
    lds_f32x2(smem + OFF_ML + (x * ROWS + row) * 8, wm[x], wl[x]);
    m = fmaxf(m, wm[x]);
  }
  l = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) sum[i] = 0.f;
#pragma unroll
  for (int x = 0; x < WARPS; x++) {
    const float f = wm[x] == neg_inf() ? 0.f : ex2(wm[x] - m);
    l = fmaf(wl[x], f, l);
    const u32 at = smem + x * PART_BYTES + row * PART_ROW + c * 4;
#pragma unroll
    for (int q = 0; q < 2; q++) {
      u32 v[4];
      lds_v4(at + 16 * q, v[0], v[1], v[2], v[3]);
#pragma unroll
      for (int i = 0; i < 4; i++) sum[4 * q + i] = fmaf(f32_bits(v[i]), f, sum[4 * q + i]);
    }
  }
}

}  // namespace fg
