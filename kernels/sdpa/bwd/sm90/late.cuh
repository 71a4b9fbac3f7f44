// Order 6 (d64 without a bias): dQ of a tile leaves one tile late, so the two warpgroups need not meet at dS. A warpgroup announces its half of dS, goes on
// with dV and dK, and multiplies what both wrote a tile ago: then the other half has been there for long.
//
//   dS(i) | dV(i), dK(i), dQ(i-1) | S(i+1), dQ left | exponentials beside dP(i+1)
//
// The warpgroups take turns with the second part, so that one's products run beside the other's exponentials: left alone they drift together.
//
// dQ of a tile is as large as its dS, and a warpgroup's half of dQ as the rows of dS that only this warpgroup multiplies. So dQ is left there, over the dead
// dS, and the bulk engine takes it to dq_accum: behind the exponentials (three buffers of dS), or when its turn in the relay has come (turns.cuh, four buffers).
#pragma once
#include "sdpa/bwd/sm90/items.cuh"
#include "sdpa/bwd/sm90/math.cuh"

namespace fg {

// Named barriers: a warpgroup's half of dS of an even or odd tile is there. The half's owner arrives, the other waits.
FG_DEV void half_there(u32 wg, u32 odd) {
  fence_async_smem();
  bar_arrive_at<MATH_THREADS>(NB_HALF + 2 * wg + odd);
}
FG_DEV void await_half(u32 wg, u32 odd) { bar_sync_at<MATH_THREADS>(NB_HALF + 2 * (wg ^ 1) + odd); }
// A warpgroup's turn: it waits, the other one has arrived.
FG_DEV void await_turn(u32 wg) { bar_sync_at<MATH_THREADS>(NB_TURN + wg); }
FG_DEV void end_turn(u32 wg) { bar_arrive_at<MATH_THREADS>(NB_TURN + (wg ^ 1)); }

// Relay: what was left in this buffer of dS has been taken away.
FG_DEV void await_buffer(Math& m, u32 buffer) {
  if (!FG_DET) return;
  mbar_wait(m.smem + BAR_DQ_GO + 8 * buffer, ((m.turn >> buffer) & 1) ^ 1);
  m.turn ^= 1u << buffer;
}
// Without an order: what this warp left a tile ago has been read. The other warpgroup learns it with the half of dS that is announced next, this one's other
// warps at the barrier of `leave_dq`.
FG_DEV void await_read(Math& m) {
  if (FG_DET) return;
  if (m.lane == 0) tma_wait_read<0>();
  __syncwarp();
}
// dQ of this warp's 16 rows, in fragment order: 4 KB of the 8 KB that are the warpgroup's rows in a chunk of keys. All four warps have multiplied them.
FG_DEV u32 dq_place(const Math& m, u32 buffer) { return m.smem + OFF_DS + buffer * DS_BYTES + (m.warp >> 1) * QCH + m.wg * (QCH / 2) + (m.warp & 1) * 4096; }
FG_DEV void leave_dq(Math& m, u32 buffer) {
  bar_sync_at<128>(NB_OUT + m.wg);
  const u32 place = dq_place(m, buffer) + m.lane * 16;
#pragma unroll
  for (int j = 0; j < NQ / 4; j++)
    sts_v4(place + j * 512, __float_as_uint(m.dq[4 * j]), __float_as_uint(m.dq[4 * j + 1]), __float_as_uint(m.dq[4 * j + 2]), __float_as_uint(m.dq[4 * j + 3]));
}
// After a fence of every lane: the bulk engine may read what was left, by this warp's own add or by the lanes of turns.cuh.
FG_DEV void hand_over_dq(Math& m, u32 buffer, [[maybe_unused]] float* to) {
  __syncwarp();
  if (m.lane != 0) return;
  if (FG_DET) {
    mbar_arrive(m.smem + BAR_DQ_DONE + 8 * buffer);
  } else {
    bulk_add(to, dq_place(m, buffer), 4096);
    tma_commit();
  }
}

// A turn ends with dQ, or with S of the next tile, which then has the tensor core to itself.
constexpr bool TURN_WITH_S = STATS_AHEAD;

// From S under way, with dP behind it, to P.
FG_DEV void late_head(Math& m, const Walk& w, u32 at, bool my_turn) {
  if (STATS_AHEAD) m.stats_ahead(lse_at(at));
  wgmma_wait<1>(), pin(m.s);
  if (TURN_WITH_S && my_turn) end_turn(m.wg);
  m.scores(w);
  m.softmax(at);
  pin(m.s);
}
// To dP. ptxas moves the wait for it up before the exponentials, unless a jump stands between: the second wait for dO.
FG_DEV void late_dp(Math& m, u32 at) {
  if (STATS_AHEAD) m.stats_ahead(delta_at(at));
  m.wait_do(at);
  wgmma_wait<0>(), pin(m.dp);
}
// From P and dP to dV and dK under way. Relay: the fence of dS serves as well the dQ that was left a tile ago (left: there was one); the relay has time.
FG_DEV void late_tail(Math& m, u32 at, u32 buffer, bool left) {
  await_buffer(m, buffer);
  m.dsoftmax(at, 0, buffer);
  m.sink.finish(m.s, m.p, m.lane);
  await_turn(m.wg);
  m.issue_dv(at);
  await_read(m);
  half_there(m.wg, at);
  if (FG_DET && left) hand_over_dq(m, (buffer + DS_BUFS - 2) % DS_BUFS, nullptr);
  m.issue_dk(at);
}

// The tiles of an item. A buffer of dS is written again three tiles on (relay: four, and when it is empty). Before that this warpgroup awaits the other's half of the
// tile between, which the other announces after it has waited for its dQ out of the buffer, and for the bulk engine to have read it. An item ends with its
// last dQ handed over: what others await in the relay never waits for this CTA's next item.
// at, buffer: parity and dS buffer of the first tile, then of the next item's. store: what becomes of dK and dV, beside the other warpgroup's products.
template <class S> FG_DEV void late_loop(Math& m, Walk w, u32& at, u32& buffer, const S& store) {
  const i32 n = w.n;
  float* dq = w.dq;  // of the tile before
  u32 last = buffer == 0 ? DS_BUFS - 1 : buffer - 1;
  m.wait_q(at);
  if (!FG_DET) fence_async_global();  // the zeros that the bulk engine adds to
  m.issue_s(at);
  m.wait_do(at);
  m.issue_dp(at);
  late_head(m, w, at, false);
  late_dp(m, at);
#pragma unroll 1
  for (i32 i = 0; i < n - 1; i++) {
    const u32 nx = at ^ 1;
    if (i > 0) await_half(m.wg, nx);
    late_tail(m, at, buffer, i > 1);
    m.issue_dq(last);  // before the first tile: of whatever is there, and left nowhere
    wgmma_wait<2>(), pin(m.dv);
    m.free_do(at);
    wgmma_wait<1>(), pin(m.dk);
    m.free_q(at);
    m.wait_q(nx);
    m.issue_s(nx);
    wgmma_wait<1>(), pin(m.dq);
    if (!TURN_WITH_S) end_turn(m.wg);
    if (i > 0) leave_dq(m, last);
    float* to = dq;
    dq = w.dq;
    m.wait_do(nx);
    m.issue_dp(nx);
    next_tile(w);
    late_head(m, w, nx, true);
    // Behind the exponentials, where the fence has nothing to wait for any more. Relay: with the next dS (late_tail).
    if (!FG_DET && i > 0) fence_async_smem(), hand_over_dq(m, last, to);
    late_dp(m, nx);
    last = buffer;
    buffer = buffer == DS_BUFS - 1 ? 0 : buffer + 1;
    at = nx;
  }
  if (m.lane == 0) mbar_arrive(m.smem + BAR_V_FREE);
  if (n > 1) await_half(m.wg, at ^ 1);
  late_tail(m, at, buffer, n > 2);
  end_turn(m.wg);
  m.issue_dq(last);
  wgmma_wait<2>(), pin(m.dv);
  m.free_do(at);
  wgmma_wait<1>(), pin(m.dk);
  m.free_q(at);
  wgmma_wait<0>(), pin(m.dq);
  if (n > 1) {
    leave_dq(m, last);
    fence_async_smem(), hand_over_dq(m, last, dq);
  }
  store();
  await_half(m.wg, at);
  m.issue_dq(buffer);
  wgmma_wait<0>(), pin(m.dq);
  if (m.lane == 0) mbar_arrive(m.smem + BAR_K_FREE + m.k_off / (K_BYTES / 8));
  leave_dq(m, buffer);
  fence_async_smem(), hand_over_dq(m, buffer, w.dq);
  buffer = buffer == DS_BUFS - 1 ? 0 : buffer + 1;
  at ^= 1;
}

// A math warp: the items of its CTA. walk: of an item; store: its dK and dV; zeros: in their place.
template <class W, class O, class Z> FG_DEV void late_items(Math& m, const W& walk, const O& store, const Z& zeros) {
  const u32 smem = m.smem, wg = m.wg, lane = m.lane;
  // Before the first tile of an item another one is multiplied as well, and left nowhere: whatever is there, numbers at first.
  for (u32 i = threadIdx.x & 127; i < QCH / 16; i += 128) sts_v4(smem + OFF_DS + (DS_BUFS - 1) * DS_BYTES + wg * QCH + i * 16, 0, 0, 0, 0);
  if (wg == 1) end_turn(1);        // the first turn is the first warpgroup's
  u32 at = 0, buffer = 0, full = 0;  // full: parities of the barriers of K
#pragma unroll 1
  for (u32 n = 0;; n++) {
    Tile t;
    if (!read_item(smem, n, t)) break;
    if (t.lo >= t.hi) {
      zeros(t);
    } else {
      const u32 kb = m.k_off / K_BYTES;
      mbar_wait(smem + BAR_KV_FULL + 8 * kb, full >> kb & 1);
      full ^= 1u << kb;
      m.clear();
      late_loop(m, walk(t), at, buffer, [&]() {
        read_item(smem, n, t);  // again: kept across the loop it would cost registers
        store(t);
      });
      if (K_BUFS == 2) m.k_off ^= K_BYTES;
    }
    __syncwarp();
    if (lane == 0) free_item(smem, n);
  }
  if (wg == 0) await_turn(0);  // the last turn of all has ended
  pdl_launch();
  if (!FG_DET && lane == 0) tma_wait_all<0>();  // this warp's adds are in memory
}

}  // namespace fg
