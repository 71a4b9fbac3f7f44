// Order 6 (d64 without a mask, by atomic adds): dQ of a tile leaves one tile late, so the two warpgroups need not meet at dS. A warpgroup announces its half of
// dS, goes on with dV and dK, and multiplies what both wrote a tile ago: then the other half has been there for long. Three buffers of dS.
//
//   dS(i) | dV(i), dK(i), dQ(i-1) | S(i+1) beside the rest of dQ, dQ added | exponentials beside dP(i+1)
#pragma once
#include "sdpa/bwd/sm90/math.cuh"

namespace fg {

// Named barriers: a warpgroup's half of dS of an even or odd tile is there. The half's owner arrives, the other waits.
FG_DEV void half_there(u32 wg, u32 odd) {
  fence_async_smem();
  bar_arrive_at<MATH_THREADS>(NB_HALF + 2 * wg + odd);
}
FG_DEV void await_half(u32 wg, u32 odd) { bar_sync_at<MATH_THREADS>(NB_HALF + 2 * (wg ^ 1) + odd); }

// From S and dP under way to P and dP. ptxas moves the wait for dP up before the exponentials, unless a jump stands between: the second wait for dO.
FG_DEV void late_head(Math& m, const Walk& w, u32 at) {
  wgmma_wait<1>(), pin(m.s);
  m.scores(w);
  m.softmax(at);
  pin(m.s);
  m.wait_do(at);
  wgmma_wait<0>(), pin(m.dp);
}
// From P and dP to dV and dK under way.
FG_DEV void late_tail(Math& m, u32 at, u32 buffer) {
  m.dsoftmax(at, 0, buffer);
  m.sink.finish(m.s, m.p, m.lane);
  m.issue_dv(at);
  half_there(m.wg, at);
  m.issue_dk(at);
}

// A buffer of dS is written again three tiles on. Before that this warpgroup awaits the other's half of the tile between, which the other announces
// after it has waited for its dQ out of the buffer.
FG_DEV void late_loop(Math& m, Walk w) {
  const i32 n = w.n;
  float* dq = w.dq;
  u32 buffer = 0, last = DS_BUFS - 1;
  m.wait_q(0);
  m.issue_s(0);
  m.wait_do(0);
  m.issue_dp(0);
  // The tile before the first one: zeros.
  for (u32 i = threadIdx.x & 127; i < QCH / 16; i += 128) sts_v4(m.smem + OFF_DS + last * DS_BYTES + m.wg * QCH + i * 16, 0, 0, 0, 0);
  half_there(m.wg, 1);
  late_head(m, w, 0);
#pragma unroll 1
  for (i32 i = 0; i < n - 1; i++) {
    const u32 at = i & 1, nx = at ^ 1;
    await_half(m.wg, nx);
    late_tail(m, at, buffer);
    m.issue_dq(last);
    wgmma_wait<2>(), pin(m.dv);
    m.free_do(at);
    wgmma_wait<1>(), pin(m.dk);
    m.free_q(at);
    m.wait_q(nx);
    m.issue_s(nx);
    wgmma_wait<1>(), pin(m.dq);
    if (i > 0) m.add_dq(dq, nx);
    dq = w.dq;
    m.wait_do(nx);
    m.issue_dp(nx);
    next_tile(w);
    late_head(m, w, nx);
    last = buffer;
    buffer = buffer == DS_BUFS - 1 ? 0 : buffer + 1;
  }
  const u32 at = (n - 1) & 1;
  await_half(m.wg, at ^ 1);
  late_tail(m, at, buffer);
  m.issue_dq(last);
  wgmma_wait<0>(), pin(m.dv), pin(m.dk), pin(m.dq);
  if (n > 1) m.add_dq(dq, at ^ 1);
  await_half(m.wg, at);
  m.issue_dq(buffer);
  wgmma_wait<0>(), pin(m.dq);
  m.add_dq(w.dq, at);
}

}  // namespace fg
