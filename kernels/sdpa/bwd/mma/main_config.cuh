// Defines -> constants of the five-GEMM kernel, its shared-memory map, and the checks that refuse impossible combinations.
#pragma once
#include "common/mma_tile.cuh"
#include "sdpa/bwd/mma/chain.cuh"

#if !defined(FG_BF16) || !defined(FG_D_QK) || !defined(FG_D_V) || !defined(FG_Q_TILE) || !defined(FG_KV_TILE)
#error "main.cu needs FG_BF16, FG_D_QK, FG_D_V, FG_Q_TILE, FG_KV_TILE"
#endif
#if !defined(FG_Q_STAGES) || !defined(FG_DO_STAGES) || !defined(FG_PDS_STAGES)
#error "main.cu needs FG_Q_STAGES, FG_DO_STAGES, FG_PDS_STAGES"
#endif
#if !defined(FG_WM_SDP) || !defined(FG_WM_DKV) || !defined(FG_WM_DQ) || !defined(FG_DKV_SPLIT) || !defined(FG_V_REG_COLS) || !defined(FG_K_REG_COLS)
#error "main.cu needs FG_WM_SDP, FG_WM_DKV, FG_WM_DQ, FG_DKV_SPLIT, FG_V_REG_COLS, FG_K_REG_COLS"
#endif
#if !defined(FG_CAUSAL) || !defined(FG_WINDOW) || !defined(FG_PADDED) || !defined(FG_THD) || !defined(FG_RAGGED_I64)
#error "main.cu needs FG_CAUSAL, FG_WINDOW, FG_PADDED, FG_THD, FG_RAGGED_I64"
#endif
#if !defined(FG_DET) || !defined(FG_BIAS) || !defined(FG_DBIAS) || !defined(FG_DKV_WS) || !defined(FG_DQ_BULK)
#error "main.cu needs FG_DET, FG_BIAS, FG_DBIAS, FG_DKV_WS, FG_DQ_BULK"
#endif

namespace fg {

constexpr int BF16 = FG_BF16;
constexpr int DQK = FG_D_QK, DV = FG_D_V, TQ = FG_Q_TILE, TK = FG_KV_TILE;
constexpr int CH = (DQK % 64 == 0 && DV % 64 == 0) ? 64 : 32;
constexpr int QS = FG_Q_STAGES, OS = FG_DO_STAGES, PS = FG_PDS_STAGES;
constexpr int VREG = FG_V_REG_COLS, KREG = FG_BIAS ? 0 : FG_K_REG_COLS;  // the bias needs K's registers
constexpr int MATH_WARPS = 8, MATH_THREADS = 256, THREADS = 384;
constexpr int MATH_REGS = 240, AUX_REGS = 24;  // 2*240 + 24 = 504 = 3*168: the pool is what launch_bounds(384) grants

// Warp grids: SM x SN over S/dP (q x kv), KM x KN over dK/dV (kv x d), QM x QN over dQ (q x d).
// SPLIT: warps 0-3 compute all of dV and warps 4-7 all of dK instead of 8 warps sharing each. Same accumulators per thread, but warp
// tiles twice as large, so a quarter less shared memory is read by these two GEMMs. Needs d_qk = d_v.
constexpr bool SPLIT = FG_DKV_SPLIT;
constexpr int KW = SPLIT ? 4 : 8;  // warps per dK/dV GEMM
constexpr int SM = FG_WM_SDP, SN = 8 / SM, KM = FG_WM_DKV, KN = KW / KM, QM = FG_WM_DQ, QN = 8 / QM;
constexpr int S_MT = TQ / (16 * SM), S_NT = TK / (8 * SN);
constexpr int K_MT = TK / (16 * KM), DK_NT = DQK / (8 * KN), DV_NT = DV / (8 * KN);
constexpr int V_MT = SPLIT ? 1 : K_MT, V_NT = SPLIT ? 2 : DV_NT;  // the separate dV accumulator shrinks to an unused stub
constexpr int Q_MT = TQ / (16 * QM), Q_NT = DQK / (8 * QN);

static_assert(DQK >= DV && DV % 32 == 0 && DQK <= 256, "head dims");
static_assert(DQK == DV || (DQK % 64 == 0 && DV % 64 == 0), "unequal head dims need 64-column chunks on both sides");
static_assert(CH == 64 || (DQK == 32 && DV == 32), "32-column chunks serve only 32/32");
static_assert(TQ == 32 || TQ == 64 || TQ == 128, "q tile must divide 128");
static_assert(TK == 64 || TK == 128, "kv tile");
static_assert(TQ % (16 * SM) == 0 && TK % (16 * SN) == 0, "S/dP warp grid");
static_assert(!SPLIT || DQK == DV, "the split dK/dV form needs equal head dims");
static_assert(KM <= KW && TK % (16 * KM) == 0 && DQK % (16 * KN) == 0 && DV % (16 * KN) == 0, "dK/dV warp grid");
static_assert(TQ % (16 * QM) == 0 && DQK % (16 * QN) == 0, "dQ warp grid");
static_assert(VREG % CH == 0 && VREG <= DV && KREG % 16 == 0 && KREG <= DQK, "register-resident columns");
static_assert(!FG_THD || FG_PADDED, "THD takes its lengths from the length tensors");
static_assert(!FG_THD || (!FG_BIAS && !FG_DBIAS), "no bias with THD");
static_assert(!FG_DBIAS || FG_BIAS, "dBias needs bias");
static_assert(FG_DET != 2 || CH == 64, "dS streaming uses the 128-byte swizzle of its tensor map");
static_assert(!FG_THD || FG_DET != 2, "the two-kernel route is dense");

// ---- shared memory ----
constexpr u32 Q_BYTES = TQ * DQK * 2, DO_BYTES = TQ * DV * 2, K_BYTES = TK * DQK * 2, V_BYTES = TK * DV * 2;
constexpr u32 PT_BYTES = TQ * TK * 2;  // one P or dS tile, always 64-column chunks
constexpr u32 OFF_Q = 0, OFF_DO = OFF_Q + QS * Q_BYTES, OFF_K = OFF_DO + OS * DO_BYTES, OFF_V = OFF_K + K_BYTES;
// Register-resident columns of V are its last chunks, so the P/dS tiles start right after the part that stays.
constexpr u32 OFF_P = OFF_V + TK * (DV - VREG) * 2, OFF_DS = OFF_P + PS * PT_BYTES;
constexpr u32 OFF_DQ = (OFF_DS + PS * PT_BYTES > OFF_V + V_BYTES) ? OFF_DS + PS * PT_BYTES : OFF_V + V_BYTES;
constexpr u32 DQ_BYTES = TQ * DQK * 4;  // fp32 dQ tile in dq_accum's own order: one contiguous block there, so one bulk copy adds it
constexpr bool DQ_BULK = FG_DQ_BULK && FG_DET != 2;  // the two-kernel route has no dQ to stage
constexpr u32 OFF_STATS = OFF_DQ + (DQ_BULK ? DQ_BYTES : 0);
constexpr u32 OFF_BAR = OFF_STATS + QS * TQ * 8;
constexpr u32 SMEM_BYTES = OFF_BAR + 128;

// barrier slots, 8 bytes each
constexpr u32 BAR_KV = OFF_BAR, BAR_Q_FULL = OFF_BAR + 8, BAR_Q_FREE = OFF_BAR + 24, BAR_DO_FULL = OFF_BAR + 40, BAR_DO_FREE = OFF_BAR + 56,
              BAR_PDS_FREE = OFF_BAR + 72, BAR_DQ_GO = OFF_BAR + 88, BAR_DQ_FULL = OFF_BAR + 96,
              BAR_DQ_FREE = OFF_BAR + 104;
constexpr int NB_MATH = 1;  // named barrier of the 256 math threads

// CTA order, see make_work. Relay: always worth it (d64 causal 1308 -> 1028 us). Otherwise it balances causal work: 2-5 % up to d192,
// a loss at d256, where few heads fit.
constexpr bool INTERLEAVE = FG_DET == 1 || (FG_CAUSAL && !FG_WINDOW && DQK < 256);
constexpr u32 L2_GROUP_ROWS = (40u << 20) / (DQK * 6 + DV * 2);  // rows of Q, dO (io) and dQ (fp32) in 40 MB; 12-80 MB measured

// What one CTA works on. Everything here is uniform over the CTA.
struct Work {
  i32 b, h, h_kv, b_h;    // b_h = b * heads_q + h
  i32 kv0, kv_tile;       // first key, tile index
  i32 len_q, len_kv;      // actual lengths
  i32 qb_lo, qb_hi;       // q tiles [lo, hi) visited, walked downwards
  Band band;
};
FG_DEV Work make_work(i32 s_q, i32 s_kv, i32 heads_q, i32 group, const i32* seq_q, const i32* seq_kv, i32 bottom_right, i32 left, i32 right) {
  Work w;
  const u32 tiles = (u32)ceil_div(s_kv, TK);
  u32 bh;
  if (INTERLEAVE) {
    // Groups of `g` (batch, head) pairs; inside a group the head runs fastest, then the kv tile. Each CTA then starts well after the one
    // whose turn precedes its own, instead of queueing behind it at the first q tile: with kv fastest the queue (up to 64 turns of about
    // 4000 clk) idled half of a causal kernel. Still ascending in kv for every head. A group's Q, dO and dQ stay within L2.
    const u32 all = gridDim.x / tiles, fit = max2(1u, min2(all, L2_GROUP_ROWS / (u32)s_q));
    const u32 g = blockIdx.x / (tiles * fit), r = blockIdx.x - g * tiles * fit, n = min2(fit, all - g * fit);
    w.kv_tile = (i32)(r / n);
    bh = g * fit + (r - (u32)w.kv_tile * n);
  } else {
    bh = blockIdx.x / tiles;
    w.kv_tile = (i32)(blockIdx.x - bh * tiles);
  }
  w.kv0 = w.kv_tile * TK;
  w.b_h = (i32)bh;
  w.b = (i32)(bh / (u32)heads_q);
  w.h = (i32)(bh - (u32)w.b * (u32)heads_q);
  w.h_kv = w.h / group;
  w.len_q = FG_PADDED ? seq_len(seq_q, w.b, s_q) : s_q;
  w.len_kv = FG_PADDED ? seq_len(seq_kv, w.b, s_kv) : s_kv;
  w.band = make_band(bottom_right, w.len_q, w.len_kv, left, right);
  w.qb_lo = q_first<FG_CAUSAL>(w.band, w.kv0) / TQ;
  w.qb_hi = w.kv0 < w.len_kv ? ceil_div(q_end<FG_WINDOW>(w.band, min2(w.kv0 + TK, w.len_kv) - 1, w.len_q), TQ) : 0;
  return w;
}

}  // namespace fg
