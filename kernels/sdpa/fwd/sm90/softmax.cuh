// Masks and the online softmax on one warpgroup's accumulators: this lane holds rows g and g + 8 of its warp's 16, columns 8j + 2t + e.
#pragma once
#include "sdpa/fwd/sm90/config.cuh"

namespace fg {

// Two rows of a lane. m: reference exponent in log2 units, -inf before any key; l: sum of this lane's columns relative to m.
struct Rows {
  float m[2], l[2];
};

// A whole tile's exponentials are taken relative to the running reference without looking for the tile's maximum. Its partial sums tell
// whether that was safe: terms are not negative, so a sum within the bound bounds every term. 2^14 fits f16 and leaves fp32 sums exact enough. Rows
// without a reference have m = -inf, so their sums are inf and the tile is done again. This drops the maximum (64 of 350 instructions a tile at
// 128 columns), which counts: beside a busy tensor core other instructions issue at 0.3 a clock only.
constexpr float LAZY_BOUND = 16384.f;

FG_DEV float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
FG_DEV float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Masks of scores by bits, which become predicates seven at a time, instead of by a comparison for each: for causal d 128 without a bias alone, where it
// was measured to gain (kernels/PERFORMANCE.md section 11).
constexpr bool MASK_BITS = FG_CAUSAL && !FG_WINDOW && !KEY_SPLIT && DQK == 128 && TK == 128;
// A lane's columns 8j + e below `end`, as bits 2j + e - 32 word.
FG_DEV u32 columns_below(i32 end, i32 word) {
  const i32 n = 2 * (end >> 3) + min2(end & 7, 2) - 32 * word;
  u32 bits;
  asm("shr.b32 %0, %1, %2;" : "=r"(bits) : "r"(0xffffffffu), "r"(32 - max2(0, min2(n, 32))));  // by 32 leaves 0
  return bits;
}
FG_DEV void mask_by_bits(float (&s)[S_REGS], const i32 (&at)[2], const Band& band, i32 len_kv, i32 col0) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    i32 end = len_kv;
    if (FG_CAUSAL) end = min2(end, at[h] + band.right + 1);
    end -= col0;
#pragma unroll
    for (int word = 0; word < (S_REGS / 2 + 31) / 32; word++) {
      const u32 keep = columns_below(end, word);
#pragma unroll
      for (int i = 0; i < 32; i++) {
        const int j = (32 * word + i) / 2, e = i % 2;
        if (4 * j + 2 * h + e < S_REGS) s[4 * j + 2 * h + e] = keep >> i & 1 ? s[4 * j + 2 * h + e] : neg_inf();
      }
    }
  }
}
// Dead scores are selected away: whatever K held there (NaN included) is gone. at: where the band of each row sits (row + diag).
FG_DEV void mask_scores(float (&s)[S_REGS], const i32 (&at)[2], const Band& band, i32 len_kv, i32 col0) {
  if constexpr (MASK_BITS) {
    mask_by_bits(s, at, band, len_kv, col0);
  } else {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      i32 hi = len_kv - 1;
      if (FG_CAUSAL) hi = min2(hi, at[h] + band.right);
      hi -= col0;
      const i32 lo = at[h] - band.left - col0;
#pragma unroll
      for (int j = 0; j < S_REGS / 4; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          bool out = 8 * j + e > hi;
          if (FG_WINDOW) out |= 8 * j + e < lo;
          s[4 * j + 2 * h + e] = out ? neg_inf() : s[4 * j + 2 * h + e];
        }
    }
  }
}

// P = exp2(mul s - m) packed as the A operand of the next product; the lane's sums come back.
FG_DEV void exponentials(const float (&s)[S_REGS], u32 (&p)[P_REGS], const float (&neg_m)[2], float mul, float (&sum)[2]) {
  float part[2][2] = {};
#pragma unroll
  for (int j = 0; j < S_REGS / 4; j++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float x = ex2(fmaf(s[4 * j + 2 * h], mul, neg_m[h])), y = ex2(fmaf(s[4 * j + 2 * h + 1], mul, neg_m[h]));
      part[h][0] += x;
      part[h][1] += y;
      p[2 * j + h] = pack2<BF16>(x, y);
    }
  sum[0] = part[0][0] + part[0][1];
  sum[1] = part[1][0] + part[1][1];
}

// The tile's maximum joins the reference; alpha: what sums and O so far are multiplied with.
FG_DEV void softmax_exact(const float (&s)[S_REGS], u32 (&p)[P_REGS], Rows& r, float mul, float (&alpha)[2]) {
  float neg_m[2], sum[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float x = fmaxf(s[2 * h], s[2 * h + 1]);
#pragma unroll
    for (int j = 1; j < S_REGS / 4; j++) x = fmaxf(x, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
    const float m = fmaxf(r.m[h], quad_max(x) * mul);
    alpha[h] = m == neg_inf() ? 1.f : ex2(r.m[h] - m);  // no key so far: nothing to scale, and -inf - -inf is NaN
    neg_m[h] = m == neg_inf() ? 0.f : -m;
    r.m[h] = m;
  }
  exponentials(s, p, neg_m, mul, sum);
  r.l[0] = fmaf(r.l[0], alpha[0], sum[0]);
  r.l[1] = fmaf(r.l[1], alpha[1], sum[1]);
}

// False: the bound was left, nothing is changed but p. Uniform over the warp; depends on the data only, so results repeat bit for bit.
FG_DEV bool softmax_lazy(const float (&s)[S_REGS], u32 (&p)[P_REGS], Rows& r, float mul) {
  const float neg_m[2] = {-r.m[0], -r.m[1]};
  float sum[2];
  exponentials(s, p, neg_m, mul, sum);
  if (!__all_sync(0xffffffffu, sum[0] <= LAZY_BOUND && sum[1] <= LAZY_BOUND)) return false;
  r.l[0] += sum[0];
  r.l[1] += sum[1];
  return true;
}

// P of the plain forward, relative to a running reference.
struct Online {
  static constexpr bool CLEAN_V = true, EDGES = true;
  float scale;  // scores to log2 units, with a bias to its own; may have any sign, also none, with FG_PRESCALE
  Rows r;

  // Scores are multiplied first where their maximum need not be that of their products (scale <= 0) or something is added to these.
  FG_DEV float pre() const { return scale; }
  FG_DEV float mul() const { return FG_BIAS ? LOG2E : FG_PRESCALE ? 1.f : scale; }
  FG_DEV void begin() {
#pragma unroll
    for (int h = 0; h < 2; h++) r.m[h] = neg_inf(), r.l[h] = 0.f;
  }
  FG_DEV void first(const float (&s)[S_REGS], u32 (&p)[P_REGS]) {
    float alpha[2];
    softmax_exact(s, p, r, mul(), alpha);
  }
  // The score maximum is an output with FG_MAX_SUM: then the reference is the maximum itself.
  FG_DEV bool lazy(const float (&s)[S_REGS], u32 (&p)[P_REGS]) { return !FG_MAX_SUM && softmax_lazy(s, p, r, mul()); }
  FG_DEV void exact(const float (&s)[S_REGS], u32 (&p)[P_REGS], float (&alpha)[2]) { softmax_exact(s, p, r, mul(), alpha); }
};

}  // namespace fg
