// Masks in registers and the online softmax on mma accumulators: row g + 8h of m-slab i, columns 8j + 2t + e of lane 4g + t.
#pragma once
#include "sdpa/fwd/mma/geometry.cuh"

namespace fg {

// Per-lane row state. Relative to m (log2 units, after scaling): l sums this lane's columns only and is reduced over the quad at the end.
template <int MT> struct Rows {
  float m[MT][2], l[MT][2], top[MT][2];  // top: true maximum, kept only for the score-max output
  i32 at[MT][2];                         // q + diag of the row: where the band sits on the key axis
};
template <int MT> FG_DEV void clear(Rows<MT>& r) {
#pragma unroll
  for (int i = 0; i < MT; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      r.m[i][h] = r.top[i][h] = neg_inf();
      r.l[i][h] = 0.f;
    }
}

// Dead scores are selected away before anything is computed from them: whatever K held there (NaN included) is gone.
// col0: key of this lane's first column. k_end: one past the last key of the sequence (or of the split).
template <bool CAUSAL, bool WINDOW, int MT, int S_NT>
FG_DEV void mask_scores(float (&s)[MT][S_NT][4], const Rows<MT>& r, const Band& band, i32 k_end, i32 col0) {
#pragma unroll
  for (int i = 0; i < MT; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      i32 hi = k_end - 1;
      if (CAUSAL) hi = min2(hi, r.at[i][h] + band.right);
      hi -= col0;
      const i32 lo = r.at[i][h] - band.left - col0;
#pragma unroll
      for (int j = 0; j < S_NT; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const i32 off = 8 * j + e;
          bool out = off > hi;
          if (WINDOW) out |= off < lo;
          s[i][j][2 * h + e] = out ? neg_inf() : s[i][j][2 * h + e];
        }
    }
}

FG_DEV float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
FG_DEV float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// The reference m follows the row maximum only when the latter has outgrown it by 2^SLACK: P then stays below 2^SLACK (exact in f16 and
// fp32 sums alike), and after the first tiles almost no tile pays for rescaling O. The choice is uniform over the warp and depends
// on the data only, so results stay reproducible.
constexpr float SLACK = 8.f;

// s: scores -> P (fp32). mul: what turns a score into log2 units. TOP: the true maximum is kept too.
template <bool TOP, int MT, int S_NT, int O_NT> FG_DEV void softmax(float (&s)[MT][S_NT][4], float (&o)[MT][O_NT][4], Rows<MT>& r, float mul) {
  float mx[MT][2];
  bool grow = false;
#pragma unroll
  for (int i = 0; i < MT; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float x = fmaxf(s[i][0][2 * h], s[i][0][2 * h + 1]);
#pragma unroll
      for (int j = 1; j < S_NT; j++) x = fmaxf(x, fmaxf(s[i][j][2 * h], s[i][j][2 * h + 1]));
      mx[i][h] = quad_max(x) * mul;
      if (TOP) r.top[i][h] = fmaxf(r.top[i][h], mx[i][h]);
      grow |= mx[i][h] > r.m[i][h] + SLACK;
    }
  if (__any_sync(0xffffffffu, grow)) {
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const float m = fmaxf(r.m[i][h], mx[i][h]);
        const float alpha = m == neg_inf() ? 1.f : ex2(r.m[i][h] - m);  // no key so far: nothing to scale, and -inf - -inf is NaN
        r.m[i][h] = m;
        r.l[i][h] *= alpha;
#pragma unroll
        for (int j = 0; j < O_NT; j++) o[i][j][2 * h] *= alpha, o[i][j][2 * h + 1] *= alpha;
      }
  }
#pragma unroll
  for (int i = 0; i < MT; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float neg_m = r.m[i][h] == neg_inf() ? 0.f : -r.m[i][h];
      float sum = 0.f;
#pragma unroll
      for (int j = 0; j < S_NT; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const float p = ex2(fmaf(s[i][j][2 * h + e], mul, neg_m));
          s[i][j][2 * h + e] = p;
          sum += p;
        }
      r.l[i][h] += sum;
    }
}

}  // namespace fg
