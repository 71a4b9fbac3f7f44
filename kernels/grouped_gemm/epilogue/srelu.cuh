// D_srelu, the recomputed forward activation prob * act(x)^2, while the accumulators still hold G: before the rows of D take their place.
//
// A wide type is stored row by row. FP8 has scales by column only, so it takes two passes over the rows: the largest magnitude of every column, then the values.
// The second pass computes them again: 128 more registers are not there.
#pragma once
#include "grouped_gemm/epilogue/columns.cuh"

namespace fg {

// Value of column i of row R; c: the 16 bytes of C it stands in (read where C is the pre-activation).
template <int R> FG_DEV float srelu(const float (&d)[64], const u32 (&c)[4], int i, float fac, float prob, const Outputs& p, float inv_clamp) {
  float chain;
  const float x = G_IS_X ? d[4 * (i / 2) + 2 * (R % 2) + i % 2] * fac : c_value(c, i), b = activate(x, p.clamp, inv_clamp, chain);
  return prob * (b * b);
}

struct Columns32 {
  const float (&m)[32];
  template <bool MAX> FG_DEV float at(int i) const { return m[i]; }
};

template <int R, class S> FG_DEV void srelu_most(float (&most)[32], const float (&d)[64], const S& src, const Outputs& p, const Out& o, float inv_clamp) {
  sched_fence(o.nb);
  const float fac = src.factor(R), prob = src.prob(R);
  u32 c[4] = {};
#pragma unroll
  for (int i = 0; i < 32; i++) {
    if (!G_IS_X && i % C_UNIT == 0) src.c(R, i / C_UNIT, c);
    most[i] = max_abs(most[i], srelu<R>(d, c, i, fac, prob, p, inv_clamp));
  }
}

template <int R, class S> FG_DEV void srelu_row(const float (&d)[64], const S& src, const Outputs& p, const Out& o, float inv_clamp, const float (&inv)[4]) {
  sched_fence(o.nb);
  constexpr int EACH = 16 / width(D_TYPE);  // values in 16 bytes
  const float fac = src.factor(R), prob = src.prob(R);
  u8* to = p.d_srelu + ((o.row + 8 * R) * p.n + o.col) * width(D_TYPE);
  u32 c[4] = {}, w[4];
#pragma unroll
  for (int i = 0; i < 32; i += 4) {
    float v[4];
#pragma unroll
    for (int x = 0; x < 4; x++) {
      if (!G_IS_X && (i + x) % C_UNIT == 0) src.c(R, (i + x) / C_UNIT, c);
      v[x] = srelu<R>(d, c, i + x, fac, prob, p, inv_clamp);
      if (D_FP8) v[x] *= __shfl_sync(~0u, inv[x], i + o.t);  // lane 4 (i / 4) + t owns columns i .. i + 3
    }
    if (D_FP8) {
      w[i / 4 % 4] = pack4(v[0], v[1], v[2], v[3]);
    } else if (D_TYPE == T_F32) {
#pragma unroll
      for (int x = 0; x < 4; x++) w[x] = __float_as_uint(v[x]);
    } else {
      w[i / 2 % 4] = pack2<D_TYPE == T_BF16>(v[0], v[1]);
      w[i / 2 % 4 + 1] = pack2<D_TYPE == T_BF16>(v[2], v[3]);
    }
    if ((i + 4) % EACH == 0 && (EDGE ? i + 4 - EACH < o.valid : o.valid > 0)) stg_v4(to + (i + 4 - EACH) * width(D_TYPE), w[0], w[1], w[2], w[3]);
  }
}

template <class S> FG_DEV void do_srelu(const float (&d0)[64], const float (&d1)[64], const S& src, const Outputs& p, const Out& o) {
  const float inv_clamp = FG_CLAMP ? 1.f / p.clamp : 0.f;
  float inv[4] = {};
  if (D_FP8) {
    float most[32], own[4];
#pragma unroll
    for (int i = 0; i < 32; i++) most[i] = 0.f;
    srelu_most<0>(most, d0, src, p, o, inv_clamp);
    srelu_most<1>(most, d0, src, p, o, inv_clamp);
    srelu_most<2>(most, d1, src, p, o, inv_clamp);
    srelu_most<3>(most, d1, src, p, o, inv_clamp);
    fold_columns<true>(Columns32{most}, o.g, own);
    column_scales(own, *p.norm_const, p.sfd_col_d_srelu, p, o, inv);
  }
  srelu_row<0>(d0, src, p, o, inv_clamp, inv);
  srelu_row<1>(d0, src, p, o, inv_clamp, inv);
  srelu_row<2>(d1, src, p, o, inv_clamp, inv);
  srelu_row<3>(d1, src, p, o, inv_clamp, inv);
}

}  // namespace fg
