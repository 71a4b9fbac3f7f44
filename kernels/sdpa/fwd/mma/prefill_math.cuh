// The arithmetic of one kv tile: scores, bias, P V (softmax.cuh has the rest). A warp owns 16 or 32 rows and all keys of the tile, so the
// score accumulators, packed to 16 bits, are the A operand of P V: P never leaves registers and no row statistic crosses warps.
#pragma once
#include "sdpa/fwd/mma/prefill_config.cuh"
#include "sdpa/fwd/mma/softmax.cuh"

namespace fg {

using OpQ = Operand<TQ, QCopy::CH, WARPS, false, true>;
using OpK = Operand<TK, KCopy::CH, 1, false, false>;
using OpV = Operand<TK, VCopy::CH, 1, true, false>;

// B fragments are read one 16-column slab at a time, RING - 1 slabs ahead of the MMAs that use them: the whole lookahead costs 8 to 12
// registers, where double-buffered k-steps would cost 4 per slab of the tile's width.
constexpr int RING = DQK > 192 || DV > 192 ? 4 : 3;  // 4 measured 1-2 % faster at 256, the same elsewhere

// C[MT][2 SLABS] += A(step) B(step): load_b(step, slab, regs) in flight ahead; a_of(step) returns fragments already in registers.
template <int SLABS, int STEPS, bool ZERO, class LoadB, class FragA>
FG_DEV void stream_gemm(float (&c)[MT][2 * SLABS][4], LoadB&& load_b, FragA&& a_of) {
  u32 b[RING][4];
#pragma unroll
  for (int x = 0; x < RING - 1 && x < SLABS * STEPS; x++) load_b(x / SLABS, x % SLABS, b[x]);
#pragma unroll
  for (int x = 0; x < SLABS * STEPS; x++) {
    const int ks = x / SLABS, j = x % SLABS, n = x + RING - 1;
    if (n < SLABS * STEPS) load_b(n / SLABS, n % SLABS, b[n % RING]);
    const u32(&a)[MT][4] = a_of(ks, j);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const u32 bh[2] = {b[x % RING][2 * h], b[x % RING][2 * h + 1]};
#pragma unroll
      for (int i = 0; i < MT; i++) {
        float(&d)[4] = c[i][2 * j + h];
        if (ZERO && ks == 0)
          mma_16816<BF16>(d, a[i], bh, 0.f, 0.f, 0.f, 0.f);
        else
          mma_16816<BF16>(d, a[i], bh, d[0], d[1], d[2], d[3]);
      }
    }
  }
}

struct QFrags {
  u32 f[Q_REGS ? QK_STEPS : 2][MT][4];
};

// S = Q K^T, raw. q: lane address of the Q tile (smem form) or unused.
FG_DEV void scores(float (&s)[MT][S_NT][4], QFrags& qf, u32 q, u32 k) {
  if (!Q_REGS) OpQ::load_a<MT>(q, 0, qf.f[0]);
  stream_gemm<S_NT / 2, QK_STEPS, true>(
      s,
      [&](int ks, int j, u32(&b)[4]) { ldsm4(OpK::addr(k, j, ks), b[0], b[1], b[2], b[3]); },
      [&](int ks, int j) -> const u32(&)[MT][4] {
        if (!Q_REGS && j == 0 && ks + 1 < QK_STEPS) OpQ::load_a<MT>(q, ks + 1, qf.f[(ks + 1) & 1]);
        return qf.f[Q_REGS ? ks : ks & 1];
      });
}

struct BiasPtr {
  const void* base;
  i64 row[MT][2];  // element offset of the row
  i64 sk;
};

FG_DEV float load_bias(const void* base, i64 at) {
  if (FG_BIAS == 2) return __ldg((const float*)base + at);
  return unpack1<BF16>(__ldg((const u16*)base + at));
}

// Scores into log2 units: scale and bias applied. Bias is read only where a live row meets a key below the length, so nothing past
// the end of a bias row or of the tensor is touched.
FG_DEV void prescale(float (&s)[MT][S_NT][4], const BiasPtr& bias, const Work& w, i32 col0, u32 row_live, float mul) {
#pragma unroll
  for (int i = 0; i < MT; i++)
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int j = 0; j < S_NT; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float& x = s[i][j][2 * h + e];
          if (FG_BIAS) {
            const i32 k = col0 + 8 * j + e;
            float b = 0.f;
            if ((row_live >> (2 * i + h) & 1) && k >= w.k_lo && k < w.k_hi) b = load_bias(bias.base, bias.row[i][h] + (i64)k * bias.sk);
            x = fmaf(x, mul, b * LOG2E);
          } else {
            x *= mul;
          }
        }
}

// Does the tile of keys kv0.. straddle a mask edge for any row of the q tile? Uniform. Interior tiles skip mask_scores.
FG_DEV bool tile_has_edge(const Work& w, i32 kv0) {
  bool e = kv0 + TK > w.len_kv;
  if (FG_CAUSAL) e |= kv0 + TK - 1 > w.tok0 + w.band.diag + w.band.right;
  if (FG_WINDOW) e |= kv0 < w.tok1 - 1 + w.band.diag - w.band.left;
  return e;
}
// O += P V. The accumulators of key slab ks, packed, are exactly the A fragment of k-step ks.
FG_DEV void values(float (&o)[MT][O_NT][4], const float (&s)[MT][S_NT][4], u32 v) {
  u32 a[MT][4];
  stream_gemm<O_NT / 2, PV_STEPS, false>(
      o,
      [&](int ks, int j, u32(&b)[4]) { ldsm4t(OpV::addr(v, j, ks), b[0], b[1], b[2], b[3]); },
      [&](int ks, int j) -> const u32(&)[MT][4] {
        if (j == 0) {
#pragma unroll
          for (int i = 0; i < MT; i++) {
            a[i][0] = pack2<BF16>(s[i][2 * ks][0], s[i][2 * ks][1]);
            a[i][1] = pack2<BF16>(s[i][2 * ks][2], s[i][2 * ks][3]);
            a[i][2] = pack2<BF16>(s[i][2 * ks + 1][0], s[i][2 * ks + 1][1]);
            a[i][3] = pack2<BF16>(s[i][2 * ks + 1][2], s[i][2 * ks + 1][3]);
          }
        }
        return a;
      });
}

}  // namespace fg
