// From accumulators to outputs, in the registers of the thread that holds them: 4 rows x 32 consecutive columns.
//
// Rows 32 w + 16 b + g + 8 h of the warpgroup's 128, columns 32 t .. + 31 of the tile: a row's block of 32 belongs to one thread, a column's block of 32 rows to
// the eight lanes of equal t.
#pragma once
#include "grouped_gemm/sm90/math.cuh"

namespace fg {

FG_DEV float max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
// max(a, |b|) in one piece: as two expressions the compiler keeps |b| beside b, a second set of accumulators.
FG_DEV float max_abs(float a, float b) {
  float r;
  if (D_FP8)  // a block's scale ignores NaN
    asm("{\n\t.reg .f32 t;\n\tabs.f32 t, %2;\n\tmax.f32 %0, %1, t;\n\t}" : "=f"(r) : "f"(a), "f"(b));
  else  // the largest of an expert does not
    asm("{\n\t.reg .f32 t;\n\tabs.f32 t, %2;\n\tmax.NaN.f32 %0, %1, t;\n\t}" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

// One value of C from a 16-byte unit.
constexpr int C_UNIT = 16 / width(C_TYPE);
FG_DEV float c_value(const u32 (&w)[4], int i) {  // i: a constant once unrolled
  if (C_TYPE == T_F32) return f32_bits(w[i % 4]);
  if (C_TYPE == T_BF16) return i & 1 ? f32_bits(w[i / 2 % 4] & 0xffff0000u) : f32_bits(w[i / 2 % 4] << 16);
  if (C_TYPE == T_F16) return unpack1<0>((u16)(w[i / 2 % 4] >> (16 * (i & 1))));
  u32 pair;
  const u16 two = (u16)(w[i / 4 % 4] >> (16 * (i / 2 % 2)));
  if (C_TYPE == T_E4M3)
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(two));
  else
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(pair) : "h"(two));
  return unpack1<0>((u16)(pair >> (16 * (i & 1))));
}

// Four values -> four fp8 bytes, saturating, NaN kept.
FG_DEV u32 pack4(float a, float b, float c, float d) {
  u32 r;
  if (D_TYPE == T_E5M2)
    asm("{\n\t.reg .b16 l, h;\n\tcvt.rn.satfinite.e5m2x2.f32 l, %2, %1;\n\tcvt.rn.satfinite.e5m2x2.f32 h, %4, %3;\n\tmov.b32 %0, {l, h};\n\t}" : "=r"(r) : "f"(a), "f"(b), "f"(c), "f"(d));
  else
    asm("{\n\t.reg .b16 l, h;\n\tcvt.rn.satfinite.e4m3x2.f32 l, %2, %1;\n\tcvt.rn.satfinite.e4m3x2.f32 h, %4, %3;\n\tmov.b32 %0, {l, h};\n\t}" : "=r"(r) : "f"(a), "f"(b), "f"(c), "f"(d));
  return r;
}

// E8M0 of a block's largest magnitude: amax / largest element * norm, rounded up; NaN only from the norm. And the factor that goes with it.
FG_DEV u32 scale_byte(float amax, float norm) {
  const float s = amax * (D_TYPE == T_E5M2 ? 1.f / 128.f : 1.f / 448.f) * norm;
  const u32 bits = __float_as_uint(s) & 0x7fffffffu;
  if (bits > 0x7f800000u) return 255u;
  if (bits <= 0x00400000u) return 0u;  // 2^-127 is the smallest scale
  return min2((bits + 0x7fffffu) >> 23, 254u);
}
FG_DEV float scale_inverse(u32 byte, float norm) {
  if (byte == 255u) return 3.402823466e38f;
  const float r = byte == 254u ? f32_bits(0x00400000u) : f32_bits((254u - byte) << 23);  // 2^(127 - byte)
  const float f = norm * r;
  return f < 3.402823466e38f ? f : 3.402823466e38f;
}

// relu, or its soft clamp b = s tanh(relu / s) with the chain factor 1 - tanh^2.
FG_DEV float activate(float x, float clamp, float inv_clamp, float& chain) {
  const float r = max_nan(x, 0.f);
  chain = 1.f;
  if (!FG_CLAMP) return r;
  const float z = r * inv_clamp, z2 = z * z;
  const float e = ex2(-2.885390082f * z);
  float quotient;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(quotient) : "f"(1.f + e));
  const float large = (1.f - e) * quotient;
  const float small = z * (1.f - z2 * (0.33333333f - z2 * (0.13333333f - z2 * 0.05396825f)));
  const float t = z < 0.25f ? small : large;
  chain = 1.f - t * t;
  return clamp * t;
}

struct Out {
  i64 row;  // first of this thread's rows: + 16 b + 8 h
  i32 col;  // first of its 32 columns
  bool cols;
  i32 w, c, g, t;
};

// One row: D in place of the accumulators, dprob, the largest |D|. G = acc * fac, fac >= 0 (or NaN). What is the same for the whole row is
// multiplied in once: D = (u relu(acc)) (2 prob fac) and dprob = fac^2 sum u relu(acc)^2 when G is the pre-activation, D = (acc relu(c)) (2 prob fac) when C is.
template <int H>
FG_DEV void finish_row(float (&d)[64], u32 c_row, u32 c_unit, u32 c_xor, float fac, float prob, const Params& p, float inv_clamp, float& dprob, float& amax) {
  constexpr bool G_IS_X = FG_READING == 0, EARLY = G_IS_X && FG_CLAMP;  // a clamp needs the true G
  const float by = EARLY ? 2.f * prob : fac * (2.f * prob);
  float sum = 0.f, most = 0.f;
  u32 c[4];
#pragma unroll
  for (int i = 0; i < 32; i++) {
    const int at = 4 * (i / 2) + 2 * H + i % 2;
    if (i % C_UNIT == 0) lds_v4(c_row + (((c_unit + i / C_UNIT) ^ c_xor) << 4), c[0], c[1], c[2], c[3]);
    const float g = EARLY ? d[at] * fac : d[at], cv = c_value(c, i);
    float chain;
    const float r = activate(G_IS_X ? g : cv, p.clamp, inv_clamp, chain);
    const float ur = (G_IS_X ? cv : g) * r;
    sum += ur * r;
    const float v = (FG_CLAMP ? ur * chain : ur) * by;
    d[at] = v;
    most = max_abs(most, v);
  }
  dprob = EARLY ? sum : G_IS_X ? sum * fac * fac : sum * fac;
  amax = most;
}

template <int H> FG_DEV void store_fp8(const float (&d)[64], float f, u8* p) {
  u32 w[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int at = 8 * i + 2 * H;
    w[i] = pack4(d[at] * f, d[at + 1] * f, d[at + 4] * f, d[at + 5] * f);
  }
  stg_v4(p, w[0], w[1], w[2], w[3]);
  stg_v4(p + 16, w[4], w[5], w[6], w[7]);
}
// The same values to D_row and D_col.
template <int H> FG_DEV void store_wide(const float (&d)[64], u8* row, u8* col) {
  constexpr int EACH = D_TYPE == T_F32 ? 4 : 8;  // values in 16 bytes
#pragma unroll
  for (int i = 0; i < 32 / EACH; i++) {
    u32 w[4];
#pragma unroll
    for (int x = 0; x < 4; x++) {
      const int first = EACH * i + EACH / 4 * x, at = 4 * (first / 2) + 2 * H + first % 2;
      w[x] = D_TYPE == T_F32 ? __float_as_uint(d[at]) : pack2<D_TYPE == T_BF16>(d[at], d[at + 1]);
    }
    stg_v4(row + 16 * i, w[0], w[1], w[2], w[3]);
    stg_v4(col + 16 * i, w[0], w[1], w[2], w[3]);
  }
}

// Column i of this thread over its four rows, and over two partial results: the largest magnitude or the sum.
template <bool MAX> FG_DEV float column_value(const float (&d0)[64], const float (&d1)[64], int i) {
  const int at = 4 * (i / 2) + i % 2;
  if (MAX) return max_abs(max_abs(max_abs(max_abs(0.f, d0[at]), d0[at + 2]), d1[at]), d1[at + 2]);
  return (d0[at] + d0[at + 2]) + (d1[at] + d1[at + 2]);
}
template <bool MAX> FG_DEV float join(float a, float b) { return MAX ? max_abs(a, b) : a + b; }
// Folds columns over the eight lanes of equal t by halving: lane g ends with columns 4 g .. 4 g + 3 of the thread's 32.
template <bool MAX> FG_DEV void fold_columns(const float (&d0)[64], const float (&d1)[64], u32 g, float (&own)[4]) {
  float a[16], b[8];
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const float lo = column_value<MAX>(d0, d1, i), hi = column_value<MAX>(d0, d1, 16 + i);
    a[i] = join<MAX>(g & 4 ? hi : lo, __shfl_xor_sync(~0u, g & 4 ? lo : hi, 16));
  }
#pragma unroll
  for (int i = 0; i < 8; i++) b[i] = join<MAX>(g & 2 ? a[8 + i] : a[i], __shfl_xor_sync(~0u, g & 2 ? a[i] : a[8 + i], 8));
#pragma unroll
  for (int i = 0; i < 4; i++) own[i] = join<MAX>(g & 1 ? b[4 + i] : b[i], __shfl_xor_sync(~0u, g & 1 ? b[i] : b[4 + i], 4));
}

// 2^(row + column - 254 - 2 SHIFT), the power of two that the fast loop took out. The exponents of a fast tile keep it normal unless one is 0: then nothing was added up.
FG_DEV float power_back(i32 row, i32 top) {
  if (SF_E4M3) return (float)(1 << (-2 * PAYLOAD));
  return row == 255 ? f32_bits(0x7fc00000u) : f32_bits((u32)max2(row + top - 127 - 2 * SHIFT, 1) << 23);
}

FG_DEV void pass_c(const MathLane& l, Place& place) {
  const u32 bar = l.sm + AT_BAR;
#pragma unroll 1
  for (u32 i = 0; i < C_SLOTS; i++) {
    mbar_wait(bar + FULL + 8 * place.stage, place.parity);
    __syncwarp();
    if (l.lane == 0) mbar_arrive(bar + EMPTY + 8 * place.stage);
    next(place);
  }
}

// What the rows of a tile share.
struct RowArgs {
  float norm, inv_clamp, alpha;
  u32 c_base, c_unit, probs;
  i32 kn;  // atoms along N
};
// Row R of the thread: 16 (R / 2) + 8 (R % 2) below its first.
template <int R> FG_DEV void do_row(float (&d)[64], const Params& p, const Header& h, const Out& o, i32 most, const RowArgs& s, float& all) {
  constexpr int H = R % 2;
  sched_fence(h.nb);
  const i64 row = o.row + 8 * R, at = row * p.n + o.col;
  const float fac = (h.wide ? 1.f : power_back(most, h.top)) * s.alpha;
  float dprob, amax;
  finish_row<H>(d, s.c_base + 1024 * R, s.c_unit, o.g, fac, lds_f32(s.probs + 32 * R), p, s.inv_clamp, dprob, amax);
  if (!o.cols) dprob = amax = 0.f;
  dprob += __shfl_xor_sync(~0u, dprob, 1);
  dprob += __shfl_xor_sync(~0u, dprob, 2);
  if (o.t == 0) {
    if (FG_DET)
      p.dprob[(i64)h.nb * p.m + row] = dprob;
    else
      red_f32(p.dprob + row, dprob);
  }
  if (D_FP8) {
    const u32 e = scale_byte(amax, s.norm);
    if (o.cols) store_fp8<H>(d, scale_inverse(e, s.norm), p.d_row + at);
    p.sfd_row[((row >> 7) * s.kn + h.nb) * 512 + (row & 31) * 16 + ((row >> 5) & 3) * 4 + o.t] = o.cols ? (u8)e : 0;  // the atom's padding is zero
  } else {
    all = max_nan(all, amax);
    if (o.cols) store_wide<H>(d, p.d_row + at * width(D_TYPE), p.d_col + at * width(D_TYPE));
  }
}

// `most`: the rows' exponents. `place` stands at the first slot of C.
FG_DEV void epilogue(float (&d0)[64], float (&d1)[64], const Params& p, const Header& h, const Out& o, u32 hdr, const i32 (&most)[4], const MathLane& l, Place& place) {
  const float inv_clamp = FG_CLAMP ? 1.f / p.clamp : 0.f;
  const float norm = D_FP8 ? *p.norm_const : 1.f;
  const u32 probs = hdr + HDR_PROB + 4 * (128 * o.c + 32 * o.w + o.g);
  const i64 n = p.n;
  const i32 n_tiles = ceil_div(p.n, N_TILE);
  float alpha = h.alpha;
  if (alpha < 0.f) {
    alpha = -alpha;
#pragma unroll
    for (int i = 0; i < 64; i++) {
      d0[i] = -d0[i];
      d1[i] = -d1[i];
    }
  }
  float all = 0.f;
  const i32 kn = ceil_div(ceil_div(p.n, 32), 4);
  // This thread's 32 columns of a row of C: in one box, from unit c_unit on.
  const u32 bytes = 32 * width(C_TYPE) * o.t, box = bytes / 128, c_unit = bytes % 128 / 16, bar = l.sm + AT_BAR;
  // The other warpgroup's slots pass by in ring order. Together they may exceed the ring, so warpgroup 0 first frees its own.
  if (o.c) pass_c(l, place);
  const u32 mine = place.stage;
  u32 c_base = 0;
#pragma unroll
  for (u32 i = 0; i < C_SLOTS; i++) {
    mbar_wait(bar + FULL + 8 * place.stage, place.parity);
    if (i == box / C_PER_SLOT) c_base = l.sm + place.stage * STAGE + box % C_PER_SLOT * C_BOX + (32 * o.w + o.g) * 128;
    next(place);
  }
  const RowArgs row{norm, inv_clamp, alpha, c_base, c_unit, probs, kn};
  do_row<0>(d0, p, h, o, most[0], row, all);
  do_row<1>(d0, p, h, o, most[1], row, all);
  do_row<2>(d1, p, h, o, most[2], row, all);
  do_row<3>(d1, p, h, o, most[3], row, all);
  // dprob needed every value of C, and the store of it stands in a basic block of its own: the loads of C are complete here.
  __syncwarp();
  if (l.lane == 0)
#pragma unroll
    for (u32 i = 0; i < C_SLOTS; i++) mbar_arrive(bar + EMPTY + 8 * ((mine + i) % STAGES));
  if (!o.c) pass_c(l, place);
  if (D_FP8) {
    float own[4], inv[4];
    fold_columns<true>(d0, d1, o.g, own);
    // Rows of this warp are block (mb * 8 + c * 4 + w) of every column.
    const i64 kb = FG_COMPACT ? (i64)(h.mb - h.first) * 8 + o.c * 4 + o.w : (i64)h.mb * 8 + o.c * 4 + o.w;
    const i64 km = FG_COMPACT ? (i64)h.count * 2 : (i64)((p.m + 127) / 128);
    u8* sfd = p.sfd_col + (FG_COMPACT ? (i64)h.first * 2 * n_tiles * 512 : 0) + ((i64)h.nb * km + (kb >> 2)) * 512 + o.t * 4 + (kb & 3);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const u32 e = scale_byte(own[i], norm);
      inv[i] = scale_inverse(e, norm);
      sfd[(4 * o.g + i) * 16] = o.cols ? (u8)e : 0;
    }
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
    if (o.cols) {
#pragma unroll
      for (int r = 0; r < 4; r++) {
        u8* at = p.d_col + (o.row + 8 * r) * n + o.col;
        stg_v4(at, out[r][0], out[r][1], out[r][2], out[r][3]);
        stg_v4(at + 16, out[r][4], out[r][5], out[r][6], out[r][7]);
      }
    }
  } else if (FG_AMAX) {
    u32 bits = __float_as_uint(all);
    bits = __reduce_max_sync(~0u, bits);
    if ((o.g | o.t) == 0) atomicMax(reinterpret_cast<i32*>(p.amax) + h.expert, (i32)bits);
  }
  if constexpr (FG_DBIAS) {
    float own[4];
    fold_columns<false>(d0, d1, o.g, own);
    if (o.cols) stg_v4(p.dbias + ((i64)h.mb * 8 + o.c * 4 + o.w) * n + o.col + 4 * o.g, __float_as_uint(own[0]), __float_as_uint(own[1]), __float_as_uint(own[2]), __float_as_uint(own[3]));
  }
}

}  // namespace fg
