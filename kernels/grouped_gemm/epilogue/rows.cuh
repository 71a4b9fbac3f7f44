// Rows of D: dprob, D_row and its scales (or D_row and D_col of a wide type), the largest magnitude.
#pragma once
#include "grouped_gemm/epilogue/values.cuh"

namespace fg {

// What a row leaves behind: its share of dprob, the largest magnitude of its block, and that of the expert so far (NaN kept).
struct RowSums {
  float dprob, most, peak;
};

// One row: D in place of the accumulators. What is the same for the whole row is multiplied in once:
// D = (u relu(acc)) (2 prob fac) and dprob = fac^2 sum u relu(acc)^2 when G is the pre-activation, D = (acc relu(c)) (2 prob fac) when C is.
template <int R, class S> FG_DEV RowSums finish_row(float (&d)[64], const S& src, const Outputs& p, const Out& o, float inv_clamp, float peak) {
  constexpr bool EARLY = G_IS_X && FG_CLAMP;  // a clamp needs the true G
  const float fac = src.factor(R), by = EARLY ? 2.f * src.prob(R) : fac * (2.f * src.prob(R));
  float sum = 0.f, most = 0.f;
  u32 c[4];
#pragma unroll
  for (int i = 0; i < 32; i++) {
    const int at = 4 * (i / 2) + 2 * (R % 2) + i % 2;
    if (i % C_UNIT == 0) src.c(R, i / C_UNIT, c);
    const float g = EARLY ? d[at] * fac : d[at], cv = c_value(c, i);
    float chain;
    const float r = activate(G_IS_X ? g : cv, p.clamp, inv_clamp, chain);
    const float ur = (G_IS_X ? cv : g) * r;
    float share = ur * r, v = (FG_CLAMP ? ur * chain : ur) * by;
    if (EDGE && i >= o.valid) share = v = 0.f;
    sum += share;
    d[at] = v;
    most = max_abs(most, v);
    if (FG_AMAX && D_FP8) peak = max_abs_nan(peak, v);
  }
  return {EARLY ? sum : G_IS_X ? sum * fac * fac : sum * fac, most, peak};
}

// Row R as fp8: 32 bytes.
template <int R> FG_DEV void pack_fp8(const float (&d)[64], float f, u32 (&w)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int at = 8 * i + 2 * (R % 2);
    w[i] = pack4(d[at] * f, d[at + 1] * f, d[at + 4] * f, d[at + 5] * f);
  }
}
template <int R> FG_DEV void store_fp8(const float (&d)[64], float f, u8* p, i32 valid) {
  u32 w[8];
  pack_fp8<R>(d, f, w);
  stg_v4(p, w[0], w[1], w[2], w[3]);
  if (!EDGE || valid > 16) stg_v4(p + 16, w[4], w[5], w[6], w[7]);
}
// The 16 bytes of unit i of row R of a wide type.
constexpr int EACH = D_TYPE == T_F32 ? 4 : 8;  // values in them
template <int R> FG_DEV void pack_wide(const float (&d)[64], int i, u32 (&w)[4]) {
#pragma unroll
  for (int x = 0; x < 4; x++) {
    const int first = EACH * i + EACH / 4 * x, at = 4 * (first / 2) + 2 * (R % 2) + first % 2;
    w[x] = D_TYPE == T_F32 ? __float_as_uint(d[at]) : pack2<D_TYPE == T_BF16>(d[at], d[at + 1]);
  }
}
// The same values to D_row and D_col.
template <int R> FG_DEV void store_wide(const float (&d)[64], u8* row, u8* col, i32 valid) {
#pragma unroll
  for (int i = 0; i < 32 / EACH; i++) {
    u32 w[4];
    pack_wide<R>(d, i, w);
    if (!EDGE || EACH * i < valid) {
      stg_v4(row + 16 * i, w[0], w[1], w[2], w[3]);
      stg_v4(col + 16 * i, w[0], w[1], w[2], w[3]);
    }
  }
}

// Row R without its stores: D in place of the accumulators, dprob added up, and the largest magnitude of the row's block; adds to `peak`.
template <int R, class S> FG_DEV float row_values(float (&d)[64], const S& src, const Outputs& p, const Out& o, float inv_clamp, float& peak) {
  sched_fence(o.nb);
  const i64 row = o.row + 8 * R;
  RowSums s = finish_row<R>(d, src, p, o, inv_clamp, peak);
  if (o.valid <= 0) s.dprob = s.most = 0.f;
  if (FG_AMAX && D_FP8 && o.valid > 0) peak = s.peak;
  if (!D_FP8) peak = max_nan(peak, s.most);
  float dprob = s.dprob;
  dprob += __shfl_xor_sync(~0u, dprob, 1);
  dprob += __shfl_xor_sync(~0u, dprob, 2);
  if (o.t == 0) {
    if (FG_DET)
      p.dprob[(i64)o.nb * p.m + row] = dprob;
    else
      red_f32(p.dprob + row, dprob);
  }
  return s.most;
}
FG_DEV void store_row_scale(i64 row, u32 scale, const Outputs& p, const Out& o) {
  const i32 atoms = ceil_div(ceil_div(p.n, 32), 4);
  p.sfd_row[((row >> 7) * atoms + o.nb) * 512 + (row & 31) * 16 + ((row >> 5) & 3) * 4 + o.t] = o.valid > 0 ? (u8)scale : 0;  // the atom's padding is zero
}

template <int R, class S> FG_DEV void do_row(float (&d)[64], const S& src, const Outputs& p, const Out& o, float norm, float inv_clamp, float& peak) {
  const i64 row = o.row + 8 * R, at = row * p.n + o.col;
  const float most = row_values<R>(d, src, p, o, inv_clamp, peak);
  if (D_FP8) {
    const u32 e = scale_byte(most, norm);
    if (o.valid > 0) store_fp8<R>(d, scale_inverse(e, norm), p.d_row + at, o.valid);
    store_row_scale(row, e, p, o);
  } else if (o.valid > 0) {
    store_wide<R>(d, p.d_row + at * width(D_TYPE), p.d_col + at * width(D_TYPE), o.valid);
  }
}

// All four rows; adds to `peak`, the largest magnitude so far.
template <class S> FG_DEV void do_rows(float (&d0)[64], float (&d1)[64], const S& src, const Outputs& p, const Out& o, float& peak) {
  const float inv_clamp = FG_CLAMP ? 1.f / p.clamp : 0.f, norm = D_FP8 ? *p.norm_const : 1.f;
  do_row<0>(d0, src, p, o, norm, inv_clamp, peak);
  do_row<1>(d0, src, p, o, norm, inv_clamp, peak);
  do_row<2>(d1, src, p, o, norm, inv_clamp, peak);
  do_row<3>(d1, src, p, o, norm, inv_clamp, peak);
}

}  // namespace fg
