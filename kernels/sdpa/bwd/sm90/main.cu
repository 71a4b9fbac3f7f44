// fg_sdpa_bwd_sm90_main: the five GEMMs of the attention backward on wgmma (sm_90a). A CTA keeps one 128-key tile of K and V, walks the q
// tiles of all query heads of its item downwards, accumulates dK and dV in registers and adds dQ to dq_accum.
//
// grid kv tiles x head items; block 384: warpgroup 0 feeds (warp 0 TMA, warp 1 LSE and
// delta, warp 2 the turns of FG_DET), 1 and 2 compute.
// Dynamic smem: fg_sdpa_bwd_sm90_main_smem bytes. Defines and the ordered parameter list: README.md in this folder.
// Writes fully: dk, dv rows < S_kv (THD: < len_kv) and columns < d; zeros where nothing is attended. Adds into dq_accum.
#include "common/ptx.cuh"
#include "sdpa/bwd/sm90/config.cuh"
#include "sdpa/bwd/sm90/items.cuh"
#include "sdpa/bwd/sm90/load.cuh"
#if FG_D_V > 128
#include "sdpa/bwd/sm90/wide.cuh"
#else
#include "sdpa/bwd/sm90/math.cuh"
#if FG_ORDER == 7
#include "sdpa/bwd/sm90/pair.cuh"
#endif
#endif
#if FG_ORDER == 6
#include "sdpa/bwd/sm90/late.cuh"
#endif
#include "sdpa/bwd/sm90/store.cuh"
#include "sdpa/bwd/sm90/turns.cuh"
#if FG_AHEAD
#include "sdpa/bwd/sm90/ahead.cuh"
#endif

namespace fg {

// What a math warpgroup does: the loop, then its part of dK and dV. A template, not a generic lambda: that would be a host function.
template <class M, class W, class K, class V>
FG_DEV void run(M& m, u32 zero, u32 smem, u32 wg, u32 warp, u32 lane, u32 tid, float scale, i32 rows, i32 d_qk, i32 d_v, i64 dk_ss, i64 dv_ss,
                const W& walk, const K& dk_at, const V& dv_at) {
  m.init(zero, smem, wg, warp, lane, scale);
  mbar_wait(smem + BAR_KV_FULL, 0);
  m.loop(walk(m.dq_lane()));
  pdl_launch();
  // Both warpgroups have read dS for the last time; its buffers become the staging. Wide: the second's are those of P, which only it has read.
  if (WIDE && wg == 1)
    bar_arrive<NB_DS, MATH_THREADS>();
  else
    bar_sync<NB_DS, MATH_THREADS>();
  const u32 stage = smem + OFF_DS + (PAIR ? DS_BYTES : 0) + wg * STAGE_BYTES;  // PAIR: what was sent may still be read
  store_rows<M::VN>(stage, m.dv, 1.f, dv_at() + M::V0 * 64, dv_ss, rows, d_v - M::V0 * 64, wg, tid);
  store_rows<M::KN>(stage, m.dk, scale, dk_at() + M::K0 * 64, dk_ss, rows, d_qk - M::K0 * 64, wg, tid);
#if FG_ORDER == 7
  await_taken(m);
#endif
}

}  // namespace fg

extern "C" __device__ const int fg_sdpa_bwd_sm90_main_smem = fg::SMEM_BYTES;

#if FG_ORDER == 7
#define FG_CLUSTER_DIMS __cluster_dims__(2, 1, 1)
#else
#define FG_CLUSTER_DIMS
#endif
extern "C" __global__ void FG_CLUSTER_DIMS __launch_bounds__(fg::THREADS, 1) fg_sdpa_bwd_sm90_main(
    const __grid_constant__ TensorMap tm_q, const __grid_constant__ TensorMap tm_k, const __grid_constant__ TensorMap tm_v,
    const __grid_constant__ TensorMap tm_do, const float* lse, float* delta, float* dq_accum, i32* dq_sem, u16* dk_out, u16* dv_out,
    const i32* seq_q, const i32* seq_kv, const void* rag_q, const void* rag_k, const void* rag_v, const void* rag_do, const void* rag_lse,
    const void* rag_dk, const void* rag_dv, i64 mul_q, i64 mul_k, i64 mul_v, i64 mul_do, i64 mul_lse, i64 mul_dk, i64 mul_dv, i64 q_ss, i64 k_ss,
    i64 v_ss, i64 do_ss, i64 lse_sb, i64 lse_sh, i64 lse_ss, i64 dk_sb, i64 dk_sh, i64 dk_ss, i64 dv_sb, i64 dv_sh, i64 dv_ss, i32 batch,
    i32 heads_q, i32 heads_item, i32 group, i32 s_q, i32 s_kv, i32 d_qk, i32 d_v, i32 ws_rows, i32 window_left, i32 window_right, i32 bottom_right,
    i32 interleave, float scale, const void* bias, float* dbias, i64 bias_sb, i64 bias_sh, i64 bias_ss, i64 dbias_sb, i64 dbias_sh, i64 dbias_ss,
    const u16* ahead_o, const u16* ahead_do, i64 ao_sb, i64 ao_sh, i64 ao_ss, i64 ado_sb, i64 ado_sh, i64 ado_ss, i32 ahead) {
  using namespace fg;
  extern __shared__ __align__(1024) u8 smem_raw[];
  const u32 smem = smem_addr(smem_raw);
  const u32 warp = uniform(threadIdx.x / 32), wg = uniform(threadIdx.x / 128), lane = lane_id();

  if (threadIdx.x == 0) {
    for (int i = 0; i < K_BUFS; i++) {
      mbar_init(smem + BAR_KV_FULL + 8 * i, 1);
      mbar_init(smem + BAR_KV_EDGE + 8 * i, 1);
    }
    mbar_init(smem + BAR_Q_EDGE, 1);
    mbar_init(smem + BAR_DO_EDGE, 1);
    mbar_init(smem + BAR_DQ_GO, 1);
    mbar_init(smem + BAR_DQ_DONE, MATH_WARPS);
    if (STAY) init_items(smem);
    for (int i = 1; FG_STAGED && i < DQ_PLACES; i++) {
      mbar_init(smem + BAR_DQ_GO + 8 * i, 1);
      mbar_init(smem + BAR_DQ_DONE + 8 * i, MATH_WARPS);
    }
    if (DBIAS_RING) {
      mbar_init(smem + BAR_DS32_FULL, MATH_WARPS);
      mbar_init(smem + BAR_DS32_FREE, 1);
    }
    for (int i = 0; i < ST; i++) {
      mbar_init(smem + BAR_Q_FULL + 8 * i, 2);  // the TMA bytes and the statistics warp
      mbar_init(smem + BAR_Q_FREE + 8 * i, MATH_WARPS);
      mbar_init(smem + BAR_DO_FULL + 8 * i, 2);
      mbar_init(smem + BAR_DO_FREE + 8 * i, MATH_WARPS);
    }
    mbar_init_fence();
  }
  if (DELTA_STEP && threadIdx.x < 16) {
    const u32 one = threadIdx.x < 8 ? 0x3f80u : 0u;
    sts_v4(smem + OFF_ONES + threadIdx.x * 16, one << 16 | one, one, 0, 0);
    fence_async_smem();
  }
  __syncthreads();
#if FG_ORDER == 7
  cluster_enter();
#endif

  const Shape shape = {heads_q, heads_item, group, s_q, s_kv, interleave, seq_q, seq_kv, bottom_right, window_left, window_right};
  auto token = [&](const void* rag, i64 mul, i64 ss, i32 b) { return FG_THD ? ragged_offset<FG_RAGGED_I64>(rag, b, mul) / ss : 0ll; };

  const u32 items = STAY ? (u32)(batch * (heads_q / heads_item) * ceil_div(s_kv, TK)) : gridDim.x;
  i32* const sem = dq_sem + (STAY ? TICKET_WORDS : 0);

  // Every role derives the work description itself, after its register reallocation: shared across the branch it would have to fit 24 registers.
  if (wg == 0) {
    regs_dec<AUX_REGS>();
    const Maps maps = {&tm_q, &tm_k, &tm_v, &tm_do};
    auto produce = [&](const Tile& t, Ring& r, u32 k) {
      producer(smem, t, heads_item, maps, (i32)token(rag_q, mul_q, q_ss, t.b), (i32)token(rag_k, mul_k, k_ss, t.b), (i32)token(rag_v, mul_v, v_ss, t.b),
               (i32)token(rag_do, mul_do, do_ss, t.b), r, k);
    };
#if FG_ORDER == 6
    if (warp == 0) {
      pdl_wait();  // for the ticket
      if (lane != 0) return;
      Ring r = {0, 1};
      u32 k = 0;  // items with tiles
#pragma unroll 1
      for (u32 n = 0;; n++) {
        const u32 item = take_ticket(dq_sem);
        Tile t = {};
        t.kv0 = -1;
        if (item < items) t = make_tile(shape, item, items);
        post_item(smem, n, t);
        if (item >= items) return;
        if (t.lo >= t.hi) continue;
        prefetch_kv(t, maps, (i32)token(rag_k, mul_k, k_ss, t.b), (i32)token(rag_v, mul_v, v_ss, t.b));
        produce(t, r, k++);
      }
    }
#endif
#if FG_AHEAD
    if (warp >= 2) {
      pdl_wait();
      auto ahead_of = [&](u32 item) {
        prepare(shape, item, items, {ahead_o, ao_sb, ao_sh, ao_ss}, {ahead_do, ado_sb, ado_sh, ado_ss}, delta, dq_accum, sem, ahead, ws_rows, d_v, smem, warp - 2,
                lane);
      };
      if (STAY) each_item<false, true>(smem, Tile(), lane, [&](const Tile& t) { ahead_of(t.item); });
      else ahead_of(blockIdx.x);
      return;
    }
#endif
    if (warp > (DBIAS_RING || FG_STAGED ? 3 : FG_DET ? 2 : 1)) return;
    Tile own;
    if (!STAY) {
      own = make_tile(shape, blockIdx.x, gridDim.x);
      if (own.lo >= own.hi) return;
    }
    if (warp == 0) {
      if (PSink::CHAIN_INPUTS) pdl_wait();
      if (lane == 0)
        each_item<true, false>(smem, own, lane, [&](const Tile& t) {
          Ring r = {0, 1};
          produce(t, r, 0);
        });
#if FG_DBIAS && FG_D_V <= 128
    } else if (warp == 3) {
      pdl_wait();
      each_item<false, false>(smem, own, lane, [&](const Tile& t) {
        dbias_role(smem, t, heads_item, dbias + ((i64)t.b * dbias_sb + (i64)t.h0 * dbias_sh), dbias_sh, dbias_ss, lane);
      });
    } else if (!FG_DET && warp == 2) {
#endif
#if FG_STAGED
    } else if (warp >= 2) {
      pdl_wait();
      const i32 q_tiles = ceil_div(s_q, TQ);
      Place place = {0, 0, 3 - warp};
      if (lane == 0)
        each_item<true, false>(smem, own, lane, [&](const Tile& t) {
          staged_relay(smem, t, heads_item, sem + ((i64)t.b * heads_q + t.h0) * q_tiles, q_tiles,
                       dq_accum + dq_row0<FG_THD, TQ>(token(rag_q, mul_q, q_ss, t.b), t.b, t.h0, heads_q, ws_rows) * DQK, (i64)ws_rows * DQK, place);
        });
#endif
    } else if (FG_DET && warp == 2) {
      pdl_wait();
      const i32 q_tiles = ceil_div(s_q, TQ);
      if (lane == 0)
        each_item<true, false>(smem, own, lane,
                               [&](const Tile& t) { relay(smem, t, heads_item, sem + ((i64)t.b * heads_q + t.h0) * q_tiles, q_tiles); });
    } else {
      pdl_wait();
      Ring r = {0, 1};
      u32 edges = 0, k = 0;
      each_item<false, false>(smem, own, lane, [&](const Tile& t) {
#if FG_AHEAD
        await_section(shape, t.item, items, sem, ahead, lane);
#endif
        stats(smem, t, heads_item, lse_ss, lane, r, edges, k++ % K_BUFS, [&](i32 h, const float*& l, const float*& d) {
          u32 b = (u32)t.b;
          if (FG_AHEAD) opaque(b);  // else the batch's part of an address is kept across the heads, a register pair too many
          l = lse + ((FG_THD ? ragged_offset<FG_RAGGED_I64>(rag_lse, t.b, mul_lse) : (i64)b * lse_sb) + (i64)h * lse_sh);
          d = delta + ws_row0<FG_THD>(token(rag_q, mul_q, q_ss, t.b), (i32)b, h, heads_q, ws_rows);
        });
      });
    }
    return;
  }

  regs_inc<MATH_REGS>();
  // Output addresses are computed only when they are needed: kept across the loop they cost registers.
  auto out_at = [&](const Tile& t, i32 row0, u16* base, const void* rag, i64 mul, i64 sb, i64 sh, i64 ss) {
    i64 at = (i64)t.b * sb;
    if (FG_THD) at = FG_DKV_WS ? token(rag_k, mul_k, k_ss, t.b) * ss : ragged_offset<FG_RAGGED_I64>(rag, t.b, mul);
    return base + (at + (i64)(FG_DKV_WS ? t.h0 / heads_item : t.h_kv) * sh + (i64)row0 * ss);
  };
  auto walk_of = [&](const Tile& t, i32 lane_floats) {
    return make_walk(t, heads_item, ws_rows,
                     dq_accum + dq_row0<FG_THD, TQ>(token(rag_q, mul_q, q_ss, t.b), t.b, t.h0, heads_q, ws_rows) * DQK + lane_floats);
  };
  const u32 zero = (u32)batch >> 31;
#if FG_ORDER == 6
  pdl_wait();
  Math m;
  m.init(zero, smem, wg - 1, warp & 3, lane, scale);
  auto dk_at = [&](const Tile& t, i32 row) { return out_at(t, t.kv0 + row, dk_out, rag_dk, mul_dk, dk_sb, dk_sh, dk_ss); };
  auto dv_at = [&](const Tile& t, i32 row) { return out_at(t, t.kv0 + row, dv_out, rag_dv, mul_dv, dv_sb, dv_sh, dv_ss); };
  late_items(
      m, [&](const Tile& t) { return walk_of(t, m.dq_lane()); },
      [&](const Tile& t) {
        const i32 row = (i32)(wg * 64 + (warp & 3) * 16) - 64, rows = (FG_THD ? t.len_kv : s_kv) - t.kv0 - row;
        store_own<DV>(m.dv, 1.f, dv_at(t, row), dv_ss, rows, d_v, lane);
        store_own<DQK>(m.dk, scale, dk_at(t, row), dk_ss, rows, d_qk, lane);
      },
      [&](const Tile& t) {
        const i32 row = (i32)(wg - 1) * 64, rows = (FG_THD ? t.len_kv : s_kv) - t.kv0 - row;
        store_zero<DQK>(dk_at(t, row), dk_ss, rows, d_qk, threadIdx.x & 127);
        store_zero<DV>(dv_at(t, row), dv_ss, rows, d_v, threadIdx.x & 127);
      });
#else
  const Tile t = make_tile(shape, blockIdx.x, gridDim.x);
  pdl_wait();
  const u32 tid = threadIdx.x & 127;
  const i32 row0 = t.kv0 + (WIDE ? 0 : (i32)(wg - 1) * 64), row_limit = (FG_THD ? t.len_kv : s_kv) - row0;  // rows of dK/dV this warpgroup owns
  auto out = [&](u16* base, const void* rag, i64 mul, i64 sb, i64 sh, i64 ss) { return out_at(t, row0, base, rag, mul, sb, sh, ss); };
  if (t.lo >= t.hi) {
    pdl_launch();
    if (!WIDE || wg == 1) store_zero<DQK>(out(dk_out, rag_dk, mul_dk, dk_sb, dk_sh, dk_ss), dk_ss, row_limit, d_qk, tid);
    if (!WIDE || wg == 2) store_zero<DV>(out(dv_out, rag_dv, mul_dv, dv_sb, dv_sh, dv_ss), dv_ss, row_limit, d_v, tid);
    return;
  }
  auto walk = [&](i32 lane_floats) { return walk_of(t, lane_floats); };
  auto dv_at = [&]() { return out(dv_out, rag_dv, mul_dv, dv_sb, dv_sh, dv_ss); };
  auto dk_at = [&]() { return out(dk_out, rag_dk, mul_dk, dk_sb, dk_sh, dk_ss); };
#if FG_D_V > 128
  if (wg == 1) {
    Wide<0> m;
#if FG_BIAS
    m.bias = {bias, bias_sb, bias_sh, bias_ss, t.b, t.kv0, t.len_q};
#endif
    run(m, zero, smem, wg - 1, warp & 3, lane, tid, scale, row_limit, d_qk, d_v, dk_ss, dv_ss, walk, dk_at, dv_at);
  } else {
    Wide<1> m;
#if FG_BIAS
    m.bias = {bias, bias_sb, bias_sh, bias_ss, t.b, t.kv0, t.len_q};
    m.dbias = {dbias, dbias_sb, dbias_sh, dbias_ss, t.b, t.kv0, t.len_q};
#endif
    run(m, zero, smem, wg - 1, warp & 3, lane, tid, scale, row_limit, d_qk, d_v, dk_ss, dv_ss, walk, dk_at, dv_at);
  }
#else
  Math m;
#if FG_BIAS
  m.bias = {bias, bias_sb, bias_sh, bias_ss, t.b, t.kv0, t.len_q};
  m.ds32 = 0;
#endif
  run(m, zero, smem, wg - 1, warp & 3, lane, tid, scale, row_limit, d_qk, d_v, dk_ss, dv_ss, walk, dk_at, dv_at);
#endif
#endif
}
