// The helper warps that bring data: `producer` issues every TMA load, `stats` brings LSE and delta rows and zeroes rows past the lengths. Both walk the
// math warps' list of tiles and run ahead of them by the ring depth.
#pragma once
#include "sdpa/bwd/sm90/config.cuh"
#include "sdpa/bwd/sm90/stats.cuh"

namespace fg {

struct Maps {
  const TensorMap *q, *k, *v, *d_o;
};
template <int D> FG_DEV void load_tile(u32 dst, int rows, const TensorMap* map, u32 bar, i32 row, i32 head, i32 batch) {
#pragma unroll
  for (int c = 0; c < D / 64; c++) tma_load_4d(dst + c * rows * 128, map, bar, c * 64, row, head, batch);
}

// Rows past a sequence's end hold whatever the caller left there, or a neighbour's tokens. A zero probability does not neutralise a NaN
// in the other operand, so tiles with such rows are cleaned before the math warps see them. Dense graphs need none of it: TMA fills zeros.
FG_DEV bool q_edge(const Tile& t, i32 qb) { return FG_PADDED && (qb + 1) * TQ > t.len_q; }
FG_DEV bool kv_edge(const Tile& t) { return FG_PADDED && t.kv0 + TK > t.len_kv; }

// k: items before this one. K and V complete one barrier. A CTA that stays reads V for the last time a tile before K: K comes first where it has a second
// buffer, else last.
constexpr bool V_FIRST = STAY && K_BUFS == 1;
FG_DEV u32 kv_barrier(u32 smem, const Tile& t, u32 k) { return smem + (kv_edge(t) ? BAR_KV_EDGE : BAR_KV_FULL) + 8 * (k % K_BUFS); }
FG_DEV void load_k(u32 smem, const Tile& t, const Maps& m, i32 row_k, u32 k) {
  if (STAY) mbar_wait(smem + BAR_K_FREE + 8 * (k % K_BUFS), (k / K_BUFS & 1) ^ 1);
  if (!V_FIRST) mbar_expect(kv_barrier(smem, t, k), CLUSTER * K_BYTES + V_BYTES);
  load_tile<DQK>(smem + OFF_K + k % K_BUFS * K_BYTES, TK, m.k, kv_barrier(smem, t, k), row_k + t.kv0, t.h_kv, FG_THD ? 0 : t.b);
}
FG_DEV void load_v(u32 smem, const Tile& t, const Maps& m, i32 row_v, u32 k) {
  if (STAY) mbar_wait(smem + BAR_V_FREE, (k & 1) ^ 1);
  if (V_FIRST) mbar_expect(kv_barrier(smem, t, k), K_BYTES + V_BYTES);
  load_tile<DV>(smem + OFF_V, TK, m.v, kv_barrier(smem, t, k), row_v + t.kv0, t.h_kv, FG_THD ? 0 : t.b);
}
// K and V of an item to come: into L2.
FG_DEV void prefetch_tile(const TensorMap* map, i32 row, i32 head, i32 batch) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(0), "r"(row), "r"(head), "r"(batch) : "memory");
}
FG_DEV void prefetch_kv(const Tile& t, const Maps& m, i32 row_k, i32 row_v) {
  const i32 batch = FG_THD ? 0 : t.b;
  prefetch_tile(m.k, row_k + t.kv0, t.h_kv, batch);
  prefetch_tile(m.v, row_v + t.kv0, t.h_kv, batch);
}
// One lane. Reads only the call's inputs, so it runs before griddepcontrol.wait (chain rule of ptx.cuh). r: place in the rings, at first {0, 1}: parity 1
// passes on a fresh barrier, the buffers start free. k: items before this one. STAY: V, and K without a second buffer, come after the first Q and dO, for
// which there is room earlier.
FG_DEV void producer(u32 smem, const Tile& t, i32 heads, const Maps& m, i32 row_q, i32 row_k, i32 row_v, i32 row_do, Ring& r, u32 k) {
  const i32 batch = FG_THD ? 0 : t.b;
  if (!V_FIRST) load_k(smem, t, m, row_k, k);
  if (!STAY) load_v(smem, t, m, row_v, k);
  if (PAIR) load_tile<DQK>(smem + OFF_K2, TK, m.k, kv_barrier(smem, t, k), row_k + (t.kv0 ^ TK), t.h_kv, batch);
  [[maybe_unused]] bool first = STAY;
#pragma unroll 1
  for (i32 h = t.h0; h < t.h0 + heads; h++)
#pragma unroll 1
    for (i32 i = 0; i < t.hi - t.lo; i++) {
      const i32 qb = t.q_tile(i);
      const bool edge = q_edge(t, qb);
      u32 full = smem + BAR_Q_FULL + 8 * r.s, bar = edge ? smem + BAR_Q_EDGE : full;
      mbar_wait(smem + BAR_Q_FREE + 8 * r.s, r.ph);
      mbar_expect(bar, Q_BYTES);
      if (FG_PADDED && edge) mbar_arrive(full);
      load_tile<DQK>(smem + OFF_Q + r.s * Q_BYTES, TQ, m.q, bar, row_q + qb * TQ, h, batch);
      full = smem + BAR_DO_FULL + 8 * r.slot_do(), bar = edge ? smem + BAR_DO_EDGE : full;
      mbar_wait(smem + BAR_DO_FREE + 8 * r.slot_do(), r.parity_do());
      mbar_expect(bar, DO_BYTES);
      if (FG_PADDED && edge) mbar_arrive(full);
      load_tile<DV>(smem + OFF_DO + r.slot_do() * DO_BYTES, TQ, m.d_o, bar, row_do + qb * TQ, h, batch);
      r.next();
      if (first) {
        load_v(smem, t, m, row_v, k);
        if (V_FIRST) load_k(smem, t, m, row_k, k);
        first = false;
      }
    }
}

// Zeroes rows [first, ROWS) of a landed tile, then orders the writes before wgmma reads and TMA refills of the same bytes.
template <int ROWS, int D> FG_DEV void scrub_rows(u32 tile, i32 first, u32 lane) {
#pragma unroll 1
  for (i32 r = max2(first, 0) + (i32)(lane / 8); r < ROWS; r += 4)
#pragma unroll 1
    for (int c = 0; c < D / 64; c++) sts_v4(tile + c * ROWS * 128 + r * 128 + (lane % 8) * 16, 0, 0, 0, 0);
  fence_async_smem();
}

// x as three bf16 that add up to it, for wgmma to multiply with ones.
FG_DEV void put_step(u32 row, float x) {
  auto top = [](float y) { return __float_as_uint(y) & 0xffff0000u; };
  const u32 hi = top(x);
  const float r = x - __uint_as_float(hi);
  const u32 mid = top(r), lo = __float_as_uint(r - __uint_as_float(mid));
  sts_v4(row, hi >> 16 | mid, lo >> 16, 0, 0);
}
// One warp. LSE becomes -lse * log2e, delta stays; dead rows (past the length, or LSE = -inf because no key was kept) become (-inf, 0), which makes P
// exactly 0 there whatever the caller left in LSE: no mask is needed on the q axis.
// edges: parities of the tiles with rows past a length, bit 0 on the q axis, bit 1 + buffer on the kv axis; at first 0, as r is {0, 1}. kb: buffer of K.
template <class At> FG_DEV void stats(u32 smem, const Tile& t, i32 heads, i64 lse_ss, u32 lane, Ring& r, u32& edges, u32 kb, At&& rows_at) {
  if (FG_PADDED && kv_edge(t)) {
    mbar_wait(smem + BAR_KV_EDGE + 8 * kb, edges >> (1 + kb) & 1);
    edges ^= 2u << kb;
    scrub_rows<TK, DQK>(smem + OFF_K + kb * K_BYTES, t.len_kv - t.kv0, lane);
    scrub_rows<TK, DV>(smem + OFF_V, t.len_kv - t.kv0, lane);
    fence_cta();
    __syncwarp();
    if (lane == 0) mbar_arrive(smem + BAR_KV_FULL + 8 * kb);
  }
  constexpr int R = (TQ + 31) / 32;
#pragma unroll 1
  for (i32 n = 0; n < heads; n++) {
    const float *lse, *delta;
    rows_at(t.h0 + n, lse, delta);
#pragma unroll 1
    for (i32 k = 0; k < t.hi - t.lo; k++) {
      const i32 qb = t.q_tile(k);
      float l[R], d[R];
#pragma unroll
      for (int i = 0; i < R; i++) {
        const i32 row = qb * TQ + 32 * i + (i32)lane;
        l[i] = __int_as_float(0xff800000);
        d[i] = 0.f;
        if (row < t.len_q) {
          // Tested after the product: a sink of -3e38 leaves a finite LSE on a row without keys, and times log2e it is -inf.
          const float x = ldg_f32(lse + (i64)row * lse_ss) * LOG2E;
          if (x != __int_as_float(0xff800000)) l[i] = -x;
          d[i] = ldg_f32(delta + row);
        }
      }
      const bool edge = q_edge(t, qb);
      const i32 first = t.len_q - qb * TQ;
      mbar_wait(smem + BAR_Q_FREE + 8 * r.s, r.ph);
#pragma unroll
      for (int i = 0; i < R; i++)
        if (32 * i + lane < TQ) sts_f32(smem + lse_at(r.s) + stat_place(32 * i + lane) * 4, l[i]);
      if (FG_PADDED && edge) {
        mbar_wait(smem + BAR_Q_EDGE, edges & 1);
        scrub_rows<TQ, DQK>(smem + OFF_Q + r.s * Q_BYTES, first, lane);
      }
      fence_cta();  // not left to in-order execution: see PERFORMANCE.md section 4
      __syncwarp();
      if (lane == 0) mbar_arrive(smem + BAR_Q_FULL + 8 * r.s);
      mbar_wait(smem + BAR_DO_FREE + 8 * r.slot_do(), r.parity_do());
#pragma unroll
      for (int i = 0; i < R; i++)
        if (32 * i + lane < TQ) {
          const u32 row = 32 * i + lane;
          if (DELTA_STEP) put_step(smem + OFF_DELTA + (r.slot_do() * TQ + row) * 16, -d[i]);
          else sts_f32(smem + delta_at(r.slot_do()) + stat_place(row) * 4, d[i]);
        }
      if (DELTA_STEP) fence_async_smem();
      if (FG_PADDED && edge) {
        mbar_wait(smem + BAR_DO_EDGE, edges & 1);
        scrub_rows<TQ, DV>(smem + OFF_DO + r.slot_do() * DO_BYTES, first, lane);
        edges ^= 1;
      }
      fence_cta();
      __syncwarp();
      if (lane == 0) mbar_arrive(smem + BAR_DO_FULL + 8 * r.slot_do());
      r.next();
    }
  }
}

}  // namespace fg
