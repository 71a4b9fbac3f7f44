// The five GEMMs' operands and the pieces of one q-tile step that stand alone: bias, dS, and where dQ tiles go.
#pragma once
#include "sdpa/bwd/mma/main_config.cuh"

namespace fg {

using OpQ = Operand<TQ, CH, SM, false, true>;    // GEMM1 A: Q; GEMM2 A: dO
using OpK = Operand<TK, CH, SN, false, false>;   // GEMM1 B: K; GEMM2 B: V
using OpPt = Operand<TQ, 64, KM, true, true>;    // GEMM3/5 A: P^T, dS^T
using OpDOt = Operand<TQ, CH, KN, true, false>;  // GEMM3/5 B: dO, Q
using OpDS = Operand<TQ, 64, QM, false, true>;   // GEMM4 A: dS
using OpKt = Operand<TK, CH, QN, true, false>;   // GEMM4 B: K
using StashS = Stash<TQ, 64, SM, SN>;

// What feeds dV: P itself. A chain that feeds something else defines FG_P_SINK, a type of the same shape, before it includes main.cu.
// `put` gets each pair of slabs right after its exponentials, between the MMAs of GEMM2; `finish` the whole tile once dS is written.
struct PlainP {
  static constexpr bool CHAIN_INPUTS = false;  // true: the maps of Q, K, V show what main's direct predecessor writes
  FG_DEV void put(u32 base, int i, int j, const float (&lo)[4], const float (&hi)[4]) { StashS::put<BF16>(base, i, j, lo, hi); }
  FG_DEV void finish(u32, const float (&)[S_MT][S_NT][4]) {}
};

// Scheduler fence between GEMMs. Left alone, ptxas pulls the next GEMM's ldmatrix up until every register is full and spills loop
// invariants instead; measured on H200 it is also as fast or faster with the fence (64x64 d128: 4208 vs 4370 us).
FG_DEV void load_fence(i32 qb) { sched_fence(qb); }

// Gives a shared-memory buffer that this warp has read back to whoever refills it. The fence makes every MMA that consumes the reads
// issue first, hence every ldmatrix return. Without it ptxas puts the arrive right behind the last ldmatrix, counting on in-order
// execution; on H200 reads queued behind global adds came later than the arrive, and the refill overtook them: dK was wrong in the first
// 64 columns (the first chunk TMA writes), a few runs in ten, in 32x64 d192/128 only, while every other build happened to pass.
FG_DEV void release(u32 bar, i32 qb, u32 lane) {
  sched_fence(qb);
  if (lane == 0) mbar_arrive(bar);
}
// dQ is computed in column parts when its accumulators would not fit beside dK and dV.
constexpr int ACC_REGS = K_MT * DK_NT * 4 + (SPLIT ? 0 : V_MT * V_NT * 4);
constexpr int DQ_PARTS = (ACC_REGS >= 128 && DQK == 256 && Q_NT % 4 == 0) || (ACC_REGS + Q_MT * Q_NT * 4 > 176 && Q_NT % 4 == 0) ? 2 : 1;
constexpr int P_NT = Q_NT / DQ_PARTS, DQ_TILES = Q_MT * P_NT;

// Order of a step's second half. Two-buffered Q: dQ first, its output spread over the dK GEMM that follows. One buffer: dK first, so
// that the refill hides behind dQ. The split form joins dV and dK, so it puts dQ first only if dO has two buffers as well.
constexpr bool DQ_FIRST = QS == 2 && (!SPLIT || OS == 2);
struct NoHook {
  FG_DEV void operator()(int) const {}
};

// Global-memory operands of the loop that are already offset to this (batch, head).
struct Ptrs {
  float* dq;          // dq_accum at row 0 of (b, h)
  const void* bias;   // row 0, key 0
  float* dbias;
  i64 bias_ss, dbias_ss;
  const TensorMap* tm_ds;
};

// Guarded per element: S_kv need not fit any vector width, and rows past the length may lie outside the buffer.
FG_DEV float load_bias(const Ptrs& g, const Work& w, i32 q, i32 k) {
  if (q >= w.len_q || k >= w.len_kv) return 0.f;
  const i64 at = (i64)q * g.bias_ss + k;
  if (FG_BIAS == 2) return __ldg((const float*)g.bias + at);
  return unpack1<BF16>(__ldg((const u16*)g.bias + at));
}
// Loading the bias tile before GEMM1 hides its latency but holds one register per score; only small tiles have them to spare.
constexpr bool BIAS_EARLY = FG_BIAS && S_MT * S_NT * 4 <= 16;

// Visits the score elements of this thread as f(i, j, e, q, k); rows from row0, keys from col0.
template <class F> FG_DEV void for_scores(i32 row0, i32 col0, F&& f) {
#pragma unroll
  for (int i = 0; i < S_MT; i++)
#pragma unroll
    for (int j = 0; j < S_NT; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) f(i, j, e, row0 + 16 * SM * i + 8 * (e >> 1), col0 + 16 * SN * (j / 2) + 8 * (j & 1) + (e & 1));
}

// Float offset of dQ tile t (of part `part`) of this warp, relative to the warp's first tile; the same in dq_accum and in its staging copy.
FG_DEV constexpr i32 dq_slot(int part, int t) {
  return dq_tile_offset<DQK>(QM * (t / P_NT), 2 * QN * (part * P_NT / 2 + t % P_NT / 2) + (t % P_NT & 1));
}

}  // namespace fg
