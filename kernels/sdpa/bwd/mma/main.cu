// fg_sdpa_bwd_main: the fused five-GEMM pass of the attention backward. One CTA owns one kv tile of one query head, loads K and V
// once and walks that head's q tiles downwards; dK and dV stay in registers, dQ goes to dq_accum (or dS to ds_ws).
//
//   S = Q K^T;  P = exp2(scale log2e S + bias log2e - lse log2e);  dP = dO V^T;  dS = P o (dP - delta)
//   dV += P^T dO;  dQ += dS K;  dK += dS^T Q
//
// grid (ceil(S_kv, KV_TILE) * H_q * B), kv tile fastest; block 384 = 8 math warps, 1 TMA warp, 1 statistics warp, 1 dQ warp
// (FG_DET=1 or FG_DQ_BULK=1), register donors.
// Dynamic smem: fg_sdpa_bwd_main_smem bytes. Defines and the ordered parameter list: README.md in this folder.
// Writes fully: dk, dv rows < S_kv (THD: < len_kv) and columns < d; zeros where nothing is attended. Adds into: dq_accum, dbias.
#include "common/ptx.cuh"
#include "sdpa/bwd/mma/chain.cuh"
#include "sdpa/bwd/mma/main_config.cuh"
#include "sdpa/bwd/mma/main_load.cuh"
#include "sdpa/bwd/mma/main_math.cuh"
#include "sdpa/bwd/mma/main_store.cuh"

extern "C" __device__ const int fg_sdpa_bwd_main_smem = fg::SMEM_BYTES;

extern "C" __global__ void __launch_bounds__(fg::THREADS, 1) fg_sdpa_bwd_main(
    const __grid_constant__ TensorMap tm_q, const __grid_constant__ TensorMap tm_k, const __grid_constant__ TensorMap tm_v,
    const __grid_constant__ TensorMap tm_do, const __grid_constant__ TensorMap tm_ds, const float* lse, const float* delta, float* dq_accum,
    i32* dq_sem, u16* dk_out, u16* dv_out, const void* bias, float* dbias, const i32* seq_q, const i32* seq_kv, const void* rag_q,
    const void* rag_k, const void* rag_v, const void* rag_do, const void* rag_lse, const void* rag_dk, const void* rag_dv, i64 mul_q, i64 mul_k,
    i64 mul_v, i64 mul_do, i64 mul_lse, i64 mul_dk, i64 mul_dv, i64 q_ss, i64 k_ss, i64 v_ss, i64 do_ss, i64 lse_sb, i64 lse_sh, i64 lse_ss,
    i64 dk_sb, i64 dk_sh, i64 dk_ss, i64 dv_sb, i64 dv_sh, i64 dv_ss, i64 bias_sb, i64 bias_sh, i64 bias_ss, i64 dbias_sb, i64 dbias_sh,
    i64 dbias_ss, i32 batch, i32 heads_q, i32 group, i32 s_q, i32 s_kv, i32 d_qk, i32 d_v, i32 ws_rows, i32 window_left, i32 window_right,
    i32 bottom_right, float scale) {
  using namespace fg;
  extern __shared__ __align__(1024) u8 smem_raw[];
  const u32 smem = smem_addr(smem_raw);
  const u32 warp = uniform(threadIdx.x / 32), lane = lane_id();

  if (threadIdx.x == 0) {
    mbar_init(smem + BAR_KV, 1);
    for (int i = 0; i < 2; i++) {
      mbar_init(smem + BAR_Q_FULL + 8 * i, 2);  // the TMA bytes and the statistics warp
      mbar_init(smem + BAR_Q_FREE + 8 * i, MATH_WARPS);
      mbar_init(smem + BAR_DO_FULL + 8 * i, 1);
      mbar_init(smem + BAR_DO_FREE + 8 * i, MATH_WARPS);
    }
    mbar_init(smem + BAR_PDS_FREE, MATH_WARPS);
    mbar_init(smem + BAR_DQ_GO, 1);
    mbar_init(smem + BAR_DQ_FULL, MATH_WARPS);
    mbar_init(smem + BAR_DQ_FREE, 1);
    mbar_init_fence();
  }
  __syncthreads();

  // Every role derives the work description itself, after its register reallocation: values shared across the role branch would
  // have to fit the feeders' 24 registers.
  auto token = [&](const void* rag, i64 mul, i64 ss, i32 b) { return FG_THD ? ragged_offset<FG_RAGGED_I64>(rag, b, mul) / ss : 0ll; };
  if (warp >= MATH_WARPS) {
    regs_dec<AUX_REGS>();
    if (warp > MATH_WARPS + 1 + (DQ_WARP ? 1 : 0)) return;
    const Work w = make_work(s_q, s_kv, heads_q, group, seq_q, seq_kv, bottom_right, window_left, window_right);
    if (w.qb_lo >= w.qb_hi) return;
    if (warp == MATH_WARPS) {
      if (PSink::CHAIN_INPUTS) pdl_wait();
      if (lane == 0)
        producer(smem, w, &tm_q, &tm_k, &tm_v, &tm_do, (i32)token(rag_q, mul_q, q_ss, w.b), (i32)token(rag_k, mul_k, k_ss, w.b),
                 (i32)token(rag_v, mul_v, v_ss, w.b), (i32)token(rag_do, mul_do, do_ss, w.b));
    } else if (DQ_WARP && warp == MATH_WARPS + 2) {
      pdl_wait();
      if (lane == 0)
        dq_warp(smem, w, dq_accum + ws_row0<FG_THD>(token(rag_q, mul_q, q_ss, w.b), w.b, w.h, heads_q, ws_rows) * DQK,
                FG_DET == 1 ? dq_sem + (i64)w.b_h * ceil_div(s_q, TQ) : nullptr);
    } else {
      pdl_wait();
      const i64 origin = FG_THD ? ragged_offset<FG_RAGGED_I64>(rag_lse, w.b, mul_lse) : (i64)w.b * lse_sb;
      stats(smem, w, lse + (origin + (i64)w.h * lse_sh), lse_ss,
            delta + ws_row0<FG_THD>(token(rag_q, mul_q, q_ss, w.b), w.b, w.h, heads_q, ws_rows), lane);
    }
    return;
  }

  regs_inc<MATH_REGS>();
  const Work w = make_work(s_q, s_kv, heads_q, group, seq_q, seq_kv, bottom_right, window_left, window_right);
  const i32 row_limit = FG_THD ? w.len_kv : s_kv;  // rows of dK/dV this launch owns
  pdl_wait();
  const u32 tid = warp * 32 + lane;
  // Output addresses are computed only when they are needed: kept across the loop they cost ten registers.
  auto out_tile = [&](u16* out, const void* rag, i64 mul, i64 sb, i64 sh, i64 ss) {
    i64 row0 = (i64)w.b * sb;
    if (FG_THD) row0 = FG_DKV_WS ? token(rag_k, mul_k, k_ss, w.b) * ss : ragged_offset<FG_RAGGED_I64>(rag, w.b, mul);
    return out + (row0 + (i64)w.h * sh + (i64)w.kv0 * ss);
  };

  if (w.qb_lo >= w.qb_hi) {
    pdl_launch();
    store_zero<DQK>(out_tile(dk_out, rag_dk, mul_dk, dk_sb, dk_sh, dk_ss), dk_ss, row_limit - w.kv0, d_qk, tid);
    store_zero<DV>(out_tile(dv_out, rag_dv, mul_dv, dv_sb, dv_sh, dv_ss), dv_ss, row_limit - w.kv0, d_v, tid);
    return;
  }

  Ptrs g;
  g.dq = FG_DET == 2 ? nullptr : dq_accum + ws_row0<FG_THD>(token(rag_q, mul_q, q_ss, w.b), w.b, w.h, heads_q, ws_rows) * DQK;
  const i64 bias_at = (i64)w.b * bias_sb + (i64)w.h * bias_sh;
  g.bias = FG_BIAS == 2 ? (const void*)((const float*)bias + bias_at) : (const void*)((const u16*)bias + bias_at);
  g.dbias = FG_DBIAS ? dbias + ((i64)w.b * dbias_sb + (i64)w.h * dbias_sh) : nullptr;
  g.bias_ss = bias_ss;
  g.dbias_ss = dbias_ss;
  g.tm_ds = &tm_ds;

  float dk[K_MT][DK_NT][4] = {}, dv[V_MT][V_NT][4] = {};  // SPLIT: warps 0-3 hold dV in `dk`
  math_loop(smem, w, g, scale, warp, lane, dk, dv);
  pdl_launch();

  // Every warp must be done with sK, sQ and the P/dS tiles before they are reused as staging.
  bar_sync<NB_MATH, MATH_THREADS>();
  const u32 lane_out = Stash<TK, CH, KM, KN>::lane_base(warp % KW % KM, warp % KW / KM, lane);
  const bool is_dv = SPLIT && warp < 4;
  stage<K_MT, DK_NT>(smem + (is_dv ? OFF_V : OFF_K) + lane_out, dk, is_dv ? 1.f : scale);
  if (!SPLIT) stage<V_MT, V_NT>(smem + OFF_V + lane_out, dv, 1.f);
  bar_sync<NB_MATH, MATH_THREADS>();
  store_tile<DQK>(smem + OFF_K, out_tile(dk_out, rag_dk, mul_dk, dk_sb, dk_sh, dk_ss), dk_ss, row_limit - w.kv0, d_qk, tid);
  store_tile<DV>(smem + OFF_V, out_tile(dv_out, rag_dv, mul_dv, dv_sb, dv_sh, dv_ss), dv_ss, row_limit - w.kv0, d_v, tid);
  if (FG_DET == 2 && tid == 0) tma_wait_all<0>();
}
