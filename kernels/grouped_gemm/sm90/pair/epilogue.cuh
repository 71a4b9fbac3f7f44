// The cluster kernel's side of the epilogue: a warp holds 16 rows x 256 columns, so a column's block of 32 rows belongs to two warps.
// Half h of the columns has its own accumulators; lane 4g + t: rows g, g + 8 (R = 0, 1) and columns 128 h + 32 t .. + 31.
#pragma once
#include "grouped_gemm/epilogue/columns.cuh"
#include "grouped_gemm/epilogue/rows.cuh"
#include "grouped_gemm/sm90/pair/math.cuh"

namespace fg {

static_assert(!FG_SRELU, "the cluster kernel has no D_srelu");

// Rows of one half for the shared epilogue.
struct HalfRows {
  const i32 (&most)[2];  // exponents of the rows
  i32 wide, top;
  float alpha;
  u32 c_base, c_unit, c_xor, probs;
  FG_DEV float factor(int r) const { return (wide ? 1.f : power_back(most[r], top)) * alpha; }
  FG_DEV float prob(int r) const { return lds_f32(probs + 32 * r); }
  FG_DEV void c(int r, int unit, u32 (&w)[4]) const { lds_v4(c_base + 1024 * r + (((c_unit + unit) ^ c_xor) << 4), w[0], w[1], w[2], w[3]); }
};
struct TwoRows {
  const float (&d)[64];
  template <bool MAX> FG_DEV float at(int i) const {
    static_assert(!MAX, "sums only");
    return d[4 * (i / 2) + i % 2] + d[4 * (i / 2) + i % 2 + 2];
  }
};

FG_DEV Out other_half(Out o, i32 n) {
  o.col += 128;
  o.valid = min2(n - o.col, 32);
  o.nb++;
  return o;
}

// Adds what the two warps of a block of 32 rows have for the same columns: the even warp (of the CTA's eight) gets those of half 0, the odd one of half 1.
FG_DEV void join_half(const float (&own)[2][4], float (&sum)[4], u32 sm, u32 warp, u32 lane) {
  const u32 at = sm + AT_SWAP + warp * 512 + lane * 16, other = sm + AT_SWAP + (warp ^ 1) * 512 + lane * 16;
  const bool second = warp & 1;
  u32 x[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    sum[i] = second ? own[1][i] : own[0][i];
    x[i] = __float_as_uint(second ? own[0][i] : own[1][i]);
  }
  sts_v4(at, x[0], x[1], x[2], x[3]);
  bar_sync_at<64>(1 + warp / 2);
  lds_v4(other, x[0], x[1], x[2], x[3]);
#pragma unroll
  for (int i = 0; i < 4; i++) sum[i] += f32_bits(x[i]);
  bar_sync_at<64>(1 + warp / 2);  // both have read
}

// D leaves through the shared memory that C came in, in C's places, by TMA: 16-byte stores of a thread fill half a sector each, and a warp waits for them. A warp's
// rows of every box are its own, so no other warp is waited for.
static_assert(!D_FP8 && width(C_TYPE) == width(D_TYPE), "D has the places of C");
static_assert(!(FG_CLAMP && FG_DBIAS), "no registers for it");

struct Boxes {
  u32 slot[C_SLOTS];  // addresses of the slots of C
  FG_DEV u32 rows(u32 box, u32 warp) const { return slot[box / C_PER_SLOT] + box % C_PER_SLOT * C_BOX + warp * 16 * 128; }
};
FG_DEV void tma_store_2d(const TensorMap* m, u32 src, i32 c0, i32 c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(m), "r"(src), "r"(c0), "r"(c1) : "memory");
}
template <int R> FG_DEV void staged_row(float (&d)[64], const HalfRows& src, const Outputs& p, const Out& o, float inv_clamp, float& peak) {
  row_values<R>(d, src, p, o, inv_clamp, peak);
#pragma unroll
  for (int i = 0; i < 32 / EACH; i++) {
    u32 w[4];
    pack_wide<R>(d, i, w);
    sts_v4(src.c_base + 1024 * R + (((src.c_unit + i) ^ src.c_xor) << 4), w[0], w[1], w[2], w[3]);
  }
}
struct OutMaps {
  const TensorMap *row, *col;
};
// One lane: the warp's rows of all boxes, to both outputs.
FG_DEV void send(const OutMaps& maps, const Boxes& boxes, u32 warp, i32 col, i32 row, i32 n) {
#pragma unroll
  for (u32 i = 0; i < C_BOXES; i++) {
    const i32 at = col + (i32)(i * (128 / width(D_TYPE)));
    const u32 from = boxes.rows(i, warp);
    if (at < n) {
      tma_store_2d(maps.row, from, at, row);
      tma_store_2d(maps.col, from, at, row);
    }
  }
  tma_commit();
}

// What columns leave; `two`: the second half lies inside N.
FG_DEV void pair_columns(const float (&d0)[64], const float (&d1)[64], const Outputs& p, const Out& o0, bool two, float peak, u32 sm, u32 warp, u32 lane) {
  if (FG_AMAX) {
    // Magnitudes, or NaN with its sign cleared: larger than all of them as an integer.
    const u32 bits = __reduce_max_sync(~0u, __float_as_uint(peak) & 0x7fffffffu);
    if (lane == 0) atomicMax(reinterpret_cast<i32*>(p.amax) + o0.expert, (i32)bits);
  }
  if constexpr (FG_DBIAS) {
    float own[2][4], sum[4];
    fold_columns<false>(TwoRows{d0}, o0.g, own[0]);
    fold_columns<false>(TwoRows{d1}, o0.g, own[1]);
    join_half(own, sum, sm, warp, lane);
    const Out o = warp & 1 ? other_half(o0, p.n) : o0;
    if ((!(warp & 1) || two) && (EDGE ? (i32)(4 * o.g) < o.valid : o.valid > 0))
      stg_v4(p.dbias + (i64)o.block * p.n + o.col + 4 * o.g, __float_as_uint(sum[0]), __float_as_uint(sum[1]), __float_as_uint(sum[2]), __float_as_uint(sum[3]));
  }
}

// `most`: the rows' exponents; `warp` of warpgroup `c`. `place` stands at the first slot of C.
FG_DEV void epilogue(float (&d0)[64], float (&d1)[64], const Outputs& p, const OutMaps& maps, const Header& h, i32 top1, const Out& o0, u32 c, u32 warp, u32 hdr, const i32 (&most)[2], const MathLane& l, Place& place) {
  float alpha = h.alpha;
  if (alpha < 0.f) {
    alpha = -alpha;
#pragma unroll
    for (int i = 0; i < 64; i++) {
      d0[i] = -d0[i];
      d1[i] = -d1[i];
    }
  }
  const u32 bar = l.sm + AT_BAR;
  // The other warpgroup's slots pass by in ring order. Together they may exceed the ring, so warpgroup 0 first frees its own.
  if (c) pass_c<C_SLOTS>(l.sm, place.raw, l.lane);
  // This thread's 32 columns of a row of C in each half: in one box, from a unit on.
  Boxes boxes;
  u32 slots[C_SLOTS], c_base[2], c_unit[2];
#pragma unroll
  for (u32 i = 0; i < C_SLOTS; i++) {
    mbar_wait(bar + FULL + 8 * place.raw.slot(), place.raw.parity());
    slots[i] = place.raw.slot();
    boxes.slot[i] = l.sm + slots[i] * STAGE;
    place.raw.next();
  }
#pragma unroll
  for (u32 x = 0; x < 2; x++) {
    const u32 bytes = (128 * x + 32 * o0.t) * width(C_TYPE), box = bytes / 128;
    u32 slot = slots[0] + box / C_PER_SLOT;
    if (slot >= STAGES) slot -= STAGES;
    c_base[x] = l.sm + slot * STAGE + box % C_PER_SLOT * C_BOX + (16 * warp + o0.g) * 128;
    c_unit[x] = bytes % 128 / 16;
  }
  const u32 probs = hdr + HDR_PROB + 4 * (64 * c + 16 * warp + o0.g);
  const HalfRows rows0{most, h.wide, h.top, alpha, c_base[0], c_unit[0], o0.g, probs}, rows1{most, h.wide, top1, alpha, c_base[1], c_unit[1], o0.g, probs};
  const bool two = (o0.nb + 1) * 128 < p.n;
  const float inv_clamp = FG_CLAMP ? 1.f / p.clamp : 0.f;
  float peak = 0.f;
  staged_row<0>(d0, rows0, p, o0, inv_clamp, peak);
  staged_row<1>(d0, rows0, p, o0, inv_clamp, peak);
  if (two) {
    const Out o1 = other_half(o0, p.n);
    staged_row<0>(d1, rows1, p, o1, inv_clamp, peak);
    staged_row<1>(d1, rows1, p, o1, inv_clamp, peak);
  }
  fence_async_smem();
  __syncwarp();
  if (l.lane == 0) send(maps, boxes, warp, o0.nb * 128, (i32)o0.row - (i32)o0.g, p.n);
  pair_columns(d0, d1, p, o0, two, peak, l.sm, 4 * c + warp, l.lane);
  if (l.lane == 0) {
    tma_wait_read<0>();
#pragma unroll
    for (u32 i = 0; i < C_SLOTS; i++) mbar_arrive(bar + EMPTY + 8 * slots[i]);
  }
  __syncwarp();
  if (!c) pass_c<C_SLOTS>(l.sm, place.raw, l.lane);
}

}  // namespace fg
