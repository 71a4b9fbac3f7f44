// How dQ of a deterministic graph gets its order: the CTAs of a head add to a q tile one after the other in the order of the grid, ascending kv tiles.
// The awaited CTA has a lower blockIdx.x, so it is resident or done.
//
// Under a causal mask all kv tiles see the last q tiles: CTAs that start together would queue for the same tile, each one turn behind the one before.
// So sections of the grid (make_tile) take turns. The first walks upwards from the diagonal (Tile::up), shortest work first: its kv tiles descend in the
// grid, and so do the turns, and each CTA comes to a q tile some steps after the CTA it waits for. Its CTAs end one by one; those of the next section
// begin one by one, walk downwards, longest work first, again some steps apart, and all end together: the third section is like the first.
// No CTA waits, a pair of sections keeps all multiprocessors busy to the end, and what one section still needs of its heads and what the other has reached
// of its own are together about one section's Q, dO and dQ in L2. With all sections upwards it was several: 74 instead of 2 GB of memory traffic at
// B1 H64/8 S16384 d128 (PERFORMANCE.md section 12).
#pragma once
#include "sdpa/bwd/sm90/config.cuh"

namespace fg {

// Position of this CTA among those that add to q tile qb.
FG_DEV i32 turn_of(const Tile& t, i32 qb) {
  if (UPWARDS && t.up) return kv_tile_end<FG_CAUSAL, TK>(t.band, (qb + 1) * TQ, t.len_kv) - 1 - t.kv0 / TK;
  return t.kv0 / TK - kv_tile_first<FG_WINDOW, TK>(t.band, qb * TQ);
}

// One lane passes the turns; the math warps add. Neither the wait nor the drain of the release touches a math warp. `turns`: counters of head h0.
FG_DEV void relay(u32 smem, const Tile& t, i32 heads, i32* turns, i32 q_tiles) {
  u32 ph = 0;
#pragma unroll 1
  for (i32 h = 0; h < heads; h++, turns += q_tiles)
#pragma unroll 1
    for (i32 k = 0; k < t.hi - t.lo; k++) {
      const i32 qb = t.q_tile(k);
      const i32 mine = turn_of(t, qb);
      while (ld_acquire(turns + qb) != mine) {
      }
      mbar_arrive(smem + BAR_DQ_GO);
      mbar_wait(smem + BAR_DQ_DONE, ph);
      ph ^= 1;
      st_release(turns + qb, mine + 1);
    }
}

FG_DEV void bulk_store(float* dst, u32 src, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src), "r"(bytes) : "memory");
}
// dQ of a tile to dq_accum. Order 6: it lies over its dS, 8 KB of rows of each warpgroup in each chunk of keys (leave_dq).
FG_DEV void move_dq(u32 smem, float* to, u32 place, bool first) {
  constexpr u32 PIECE = LATE ? 8192 : DQ_BYTES;
#pragma unroll
  for (u32 i = 0; i < DQ_BYTES / PIECE; i++) {
    const u32 from = smem + (LATE ? OFF_DS + place * DS_BYTES + (i & 1) * (TQ * 128) + (i >> 1) * PIECE : OFF_STAGE + place * DQ_BYTES);
    if (first) bulk_store(to + i * (PIECE / 4), from, PIECE);
    else bulk_add(to + i * (PIECE / 4), from, PIECE);
  }
}
// Where the next tile is left; every other one is this lane's.
struct Place {
  u32 at, phase, mine;
  FG_DEV bool next() {
    if (++at == DQ_PLACES) {
      at = 0;
      phase ^= 1;
    }
    mine ^= 1;
    return !mine;
  }
};
// STAGED: the math warps leave dQ in one of several places and go on; two lanes, a tile in two each, wait for the turn and let the bulk engine add. A CTA
// may so be two tiles ahead of its turn, and the drain of one tile runs beside the wait for the next. Whoever comes first stores: dq_accum need not be zero
// where every tile is visited. The fences order the generic-proxy turn and the async-proxy adds in both directions. dq: tile 0 of head h0.
FG_DEV void staged_relay(u32 smem, const Tile& t, i32 heads, i32* turns, i32 q_tiles, float* dq, i64 head_floats, Place& p) {
#pragma unroll 1
  for (i32 h = 0; h < heads; h++, turns += q_tiles, dq += head_floats)
#pragma unroll 1
    for (i32 k = 0; k < t.hi - t.lo; k++) {
      const i32 qb = t.q_tile(k);
      const u32 place = p.at, phase = p.phase;
      if (!p.next()) continue;
      const i32 mine = turn_of(t, qb);
      mbar_wait(smem + BAR_DQ_DONE + 8 * place, phase);
      while (ld_acquire(turns + qb) != mine) {
      }
      fence_async_global();
      move_dq(smem, dq + (i64)qb * TQ * DQK, place, mine == 0);
      tma_commit();
      tma_wait_read<0>();
      mbar_arrive(smem + BAR_DQ_GO + 8 * place);
      tma_wait_all<0>();
      fence_async_global();
      st_release(turns + qb, mine + 1);
    }
}

}  // namespace fg
