// Order 7 (d128, no order of the adds): two CTAs of a cluster work on neighbouring kv tiles of one head and on the same q tiles, two at a time. Of every two
// q tiles each owns one. dS of the other's tile comes first and leaves for it through distributed shared memory; dS of its own stays, and dQ of that tile is
// the product of both kv tiles' dS with both kv tiles' keys. So dq_accum takes half as many bytes, which are what the adds cost (PERFORMANCE.md).
//
//   dS(other's) | send, S(own), dK | dS(own), dV | dQ(own; 256 keys), S(other's), dK, dQ added | ...
//
// What a CTA multiplies its partner sent a tile ago, so neither waits for the transfer unless they are a tile apart.
//
// Shared memory: three buffers of dS (sent, own, received) and K of both kv tiles. Barriers, whose partner's arrivals are remote: DS_GOT, the received dS is
// complete; DS_TAKEN, the partner has multiplied what it got, so the buffers of what was sent, here and there, may be written again. The last DS_TAKEN is
// awaited before the end: then nothing of this CTA is under way and nothing more comes.
#pragma once
#include "sdpa/bwd/sm90/math.cuh"
#include "sdpa/fwd/sm90/cluster.cuh"

namespace fg {

constexpr u32 BAR_DS_GOT = BAR_DQ_GO, BAR_DS_TAKEN = BAR_DQ_DONE;
constexpr u32 DS_SENT = 0, DS_OWN = 1, DS_RECEIVED = 2;  // buffers: the first of two q tiles is in Q and dO buffer 0, the second in 1

FG_DEV void bulk_send(u32 dst, u32 src, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst), "r"(src), "r"(bytes), "r"(bar)
               : "memory");
}
// One thread of the math warps. Read where it is used: a predicate kept over the loop is a register too many.
FG_DEV bool sender() {
  u32 tid;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(tid)::"memory");
  return tid == 128;
}
FG_DEV u32 partner() { return cluster_rank() ^ 1; }
FG_DEV void expect_ds(const Math& m) {
  if (sender()) mbar_expect(m.smem + BAR_DS_GOT, DS_BYTES);
}
FG_DEV void arrive_taken(const Math& m) {
  if (m.lane == 0) arrive_remote(at_rank(m.smem + BAR_DS_TAKEN, partner()));
}
// The partner has taken what was sent before `turn` last changed.
FG_DEV void await_taken(const Math& m) { mbar_wait(m.smem + BAR_DS_TAKEN, m.turn ^ 1); }

// In the registers of dP, which is dead then: an accumulator that only every second tile has would be kept over the other.
FG_DEV void issue_dq_of_two(Math& m) {
  const u64 own = at_buffer(m.d_ds, DS_OWN * DS_BYTES), received = at_buffer(m.d_ds, DS_RECEIVED * DS_BYTES), k2 = at_buffer(m.d_kt, OFF_K2 - OFF_K);
  static_assert(NQ == NP, "dQ takes the registers of dP");
  pin(m.dp), wgmma_fence();
#pragma unroll
  for (int k = 0; k < TK / 16; k++) Wgmma<BF16, 64, 1>::ss(m.dp, own + kstep(k, QCH), m.d_kt + k * 128, k != 0);
#pragma unroll
  for (int k = 0; k < TK / 16; k++) Wgmma<BF16, 64, 1>::ss(m.dp, received + kstep(k, QCH), k2 + k * 128, 1);
  wgmma_commit();
}
FG_DEV void add_dq_of_two(const Math& m, float* to) {
#pragma unroll
  for (int j = 0; j < NQ / 4; j++) red_v4(to + j * 128, m.dp[4 * j], m.dp[4 * j + 1], m.dp[4 * j + 2], m.dp[4 * j + 3]);
}

// dS of the first of two tiles leaves; from there to dS of the second, and to what the partner sent of it.
FG_DEV void second_of_two(Math& m, Walk& w) {
  if (sender())
    bulk_send(at_rank(m.smem + OFF_DS + DS_RECEIVED * DS_BYTES, partner()), m.smem + OFF_DS + DS_SENT * DS_BYTES, DS_BYTES,
              at_rank(m.smem + BAR_DS_GOT, partner()));
  m.wait_q(1);
  m.issue_s(1);
  m.issue_dk(0);
  m.wait_do(1);
  m.issue_dp(1);
  wgmma_wait<1>(), pin(m.s), pin(m.dk);
  m.free_q(0);
  w.qb += 2 * (i32)cluster_rank() - 1;
  m.head(w, 1);
  mbar_wait(m.smem + BAR_DS_GOT, m.turn);
}

FG_DEV void pair_loop(Math& m, Walk w) {
  expect_ds(m);
  m.wait_q(0);
  m.issue_s(0);
  m.wait_do(0);
  m.issue_dp(0);
  wgmma_wait<1>(), pin(m.s);
  m.head(w, 0);
#pragma unroll 1
  for (i32 i = 0; i < w.n / 2 - 1; i++) {
    second_of_two(m, w);
    expect_ds(m);
    issue_dq_of_two(m);
    m.wait_q(0);
    m.issue_s(0);
    m.issue_dk(1);
    wgmma_wait<2>(), pin(m.dp);
    arrive_taken(m);
    add_dq_of_two(m, w.dq);
    m.wait_do(0);
    m.issue_dp(0);
    wgmma_wait<1>(), pin(m.s), pin(m.dk);
    m.free_q(1);
    next_two(w, (i32)cluster_rank());
    m.turn ^= 1;
    await_taken(m);
    m.head(w, 0);
  }
  second_of_two(m, w);
  issue_dq_of_two(m);
  m.issue_dk(1);
  wgmma_wait<1>(), pin(m.dp);
  arrive_taken(m);
  add_dq_of_two(m, w.dq);
  wgmma_wait<0>(), pin(m.dk);
  m.free_q(1);
  m.turn ^= 1;
}

}  // namespace fg
