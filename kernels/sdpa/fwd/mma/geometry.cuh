// Geometry shared by the forward kernels: lengths, ragged origins, the band of kept keys, the parts of a softmax row at its end.
#pragma once
#include "common/ptx.cuh"

namespace fg {

constexpr float LOG2E = 1.44269504088896340736f, LN2 = 0.69314718055994530942f;
constexpr i32 BAND_MAX = 1 << 29;  // window bounds are clamped here so that q + diag + band never leaves int32 (S < 2^29)
FG_DEV float neg_inf() { return __int_as_float(0xff800000); }
FG_DEV float pos_inf() { return __int_as_float(0x7f800000); }

// Lengths come from the device and are clamped to the planned extent: a wrong length may give wrong numbers, never a wrong address.
// CUMULATIVE: lens holds batch + 1 running totals.
template <int CUMULATIVE> FG_DEV i32 seq_len(const i32* lens, i32 b, i32 s_max) {
  if (lens == nullptr) return s_max;
  const i32 n = CUMULATIVE ? __ldg(lens + b + 1) - __ldg(lens + b) : __ldg(lens + b);
  return max2(0, min2(n, s_max));
}
// Element offset of sequence b on a ragged port. The product is 64-bit (S7).
template <int I64> FG_DEV i64 ragged_offset(const void* offs, i32 b, i64 multiplier) {
  const i64 v = I64 ? __ldg((const i64*)offs + b) : (i64)__ldg((const i32*)offs + b);
  return v * multiplier;
}

// Key k of query q is kept iff  q + diag - left <= k <= q + diag + right,  k < len_kv,  q < len_q.
// diag = 0 (top left) or len_kv - len_q (bottom right), with the sequence's actual lengths.
struct Band {
  i32 diag, left, right;
};
FG_DEV Band make_band(i32 bottom_right, i32 len_q, i32 len_kv, i32 left, i32 right) {
  return {bottom_right ? len_kv - len_q : 0, max2(-BAND_MAX, min2(left, BAND_MAX)), max2(-BAND_MAX, min2(right, BAND_MAX))};
}

// Scores are made exponents of two: exp(x) = ex2(x log2e). The plain path leaves scores raw and folds the factor into the FMA that
// subtracts the row maximum, which needs a positive factor: the maximum of raw scores must be the maximum of scaled ones, and a
// dead score of -inf must stay -inf. Otherwise (bias, scale <= 0, a scale so small that it may flush) scores are multiplied first.
FG_DEV bool plain_scale(float scale) { return scale > 1e-30f; }

// One finished row. m: the exponent that l and the O accumulator are relative to, in log2 units, -inf when no key was kept.
struct RowEnd {
  float mul;    // O = accumulator * mul
  float stats;  // natural-log LSE
  bool dead;    // O is exactly 0, whatever the accumulator holds
};
// The sink is one more logit that carries no value. Its product with log2e may overflow to +-inf while the sink is finite; the sink
// itself is then the LSE to fp32 accuracy.
template <int SINK> FG_DEV RowEnd finish_row(float m, float l, float sink) {
  RowEnd r;
  if (SINK) {
    const float s2 = sink * LOG2E;
    if (m == neg_inf() || s2 == pos_inf()) return {0.f, sink, true};
    const float top = max2(m, s2), w = ex2(m - top), total = fmaf(l, w, ex2(s2 - top));
    r.mul = w / total;
    r.stats = (top + log2f(total)) * LN2;
    r.dead = false;
  } else {
    r.dead = m == neg_inf();
    r.mul = 1.f / l;
    r.stats = r.dead ? neg_inf() : (m + log2f(l)) * LN2;
  }
  return r;
}

}  // namespace fg
