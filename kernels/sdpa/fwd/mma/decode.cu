// fg_sdpa_fwd_decode: attention forward of few query rows against many keys, bound by the bytes of K and V. One CTA owns up to 16 rows
// (all query heads of one kv head and a few tokens, so each key is read once for the whole group) and one split of the keys. Its warps
// share nothing until the end: each streams every WARPS-th block of keys through its own cp.async ring and keeps its own softmax state.
//
// FG_SPLIT=0: writes O and Stats. FG_SPLIT=1: writes the split's normalised O in fp32 and its natural-log LSE (S4: whatever base the
// final Stats have), -inf for a split without keys, whose O is then left unwritten; fg_sdpa_fwd_combine finishes.
//
// grid: 1-D, splits * H_kv * ceil(S_q * H_q / H_kv, 16) * B; block 32 * FG_WARPS. Dynamic smem: fg_sdpa_fwd_decode_smem bytes.
// Defines and the ordered parameter list: README.md in this folder.
#include "sdpa/fwd/mma/decode_config.cuh"
#include "sdpa/fwd/mma/decode_load.cuh"
#include "sdpa/fwd/mma/decode_math.cuh"

extern "C" __device__ const int fg_sdpa_fwd_decode_smem = fg::SMEM_BYTES;

extern "C" __global__ void __launch_bounds__(fg::THREADS, FG_MIN_CTAS) fg_sdpa_fwd_decode(
    const u16* q, const u16* k, const u16* v, u16* o, float* stats, float* part_o, float* part_lse, const float* sink, const i32* seq_q,
    const i32* seq_kv, const i32* table_k, const i32* table_v, i64 q_sb, i64 q_sh, i64 q_ss, i64 k_sb, i64 k_sh, i64 k_ss, i64 v_sb, i64 v_sh,
    i64 v_ss, i64 o_sb, i64 o_sh, i64 o_ss, i64 stats_sb, i64 stats_sh, i64 stats_ss, i64 table_k_sb, i64 table_k_ss, i64 table_v_sb,
    i64 table_v_ss, i32 batch, i32 heads_q, i32 group, i32 s_q, i32 s_kv, i32 d_qk, i32 d_v, i32 page_size, i32 splits, i32 window_left,
    i32 window_right, i32 bottom_right, float scale) {
  using namespace fg;
  extern __shared__ __align__(1024) u8 smem_raw[];
  const u32 smem = smem_addr(smem_raw), tid = threadIdx.x, warp = uniform(tid / 32), lane = lane_id();
#if __CUDA_ARCH__ >= 900
  pdl_wait();
  pdl_launch();
#endif
  const Work w = make_work(s_q, s_kv, heads_q / group, group, splits, seq_q, seq_kv, bottom_right, window_left, window_right);

  Source src;
  src.k = k + ((FG_PAGED ? 0ll : (i64)w.b * k_sb) + (i64)w.h * k_sh);
  src.v = v + ((FG_PAGED ? 0ll : (i64)w.b * v_sb) + (i64)w.h * v_sh);
  src.k_sb = k_sb, src.k_ss = k_ss, src.v_sb = v_sb, src.v_ss = v_ss;
  src.table_k = FG_PAGED ? table_k + (i64)w.b * table_k_sb : nullptr;
  src.table_v = FG_PAGED ? table_v + (i64)w.b * table_v_sb : nullptr;
  src.table_k_ss = table_k_ss, src.table_v_ss = table_v_ss;
  src.page_size = page_size;
  src.page_shift = FG_PAGED && (page_size & (page_size - 1)) == 0 ? 31 - __clz(page_size) : -1;
  src.k_lo = w.k_lo, src.k_hi = w.k_hi, src.d_qk = d_qk, src.d_v = d_v;

  float acc[1][O_NT][4] = {};
  Rows<1> r;
  clear(r);
#pragma unroll
  for (int h = 0; h < 2; h++) r.at[0][h] = (w.row0 + (i32)(lane >> 2) + 8 * h) / group + w.band.diag;

  const u32 ring = smem + warp * RING_BYTES;
  i32 blk = w.blk_lo + (i32)warp;  // this warp's next block to use
  i32 ahead = blk;                 // and to copy
  if (blk < w.blk_hi) {
    Pages g;
    fetch_pages(g, src, ahead, w.blk_hi, lane);
    auto copy_next = [&](u32 st) {
      if (ahead < w.blk_hi) load_block(ring + st * STAGE_BYTES, src, g, ahead, lane);
      cp_commit();  // an empty group at the end keeps the count of groups per block
      ahead += WARPS;
      fetch_pages(g, src, ahead, w.blk_hi, lane);
    };
#pragma unroll
    for (int st = 0; st < STAGES - 1; st++) copy_next(st);

    u32 qf[QK_STEPS][4];
    load_q(qf, q + ((i64)w.b * q_sb), q_sh, q_ss, w, group, d_qk, lane);
    const bool plain = plain_scale(scale);
    const float pre = scale * LOG2E, mul = plain ? pre : 1.f;
    u32 st = 0, fill = STAGES - 1;
#pragma unroll 1
    for (; blk < w.blk_hi; blk += WARPS) {
      cp_wait<STAGES - 2>();
      __syncwarp();  // publishes the block, and every lane is done with the block before it, whose stage is filled next
      copy_next(fill);
      attend(acc, r, qf, ring + st * STAGE_BYTES, w, blk * KEYS, plain, pre, mul, lane);
      st = st + 1 == STAGES ? 0 : st + 1;
      fill = fill + 1 == STAGES ? 0 : fill + 1;
    }
    cp_wait<0>();
  }

  // The rings are dead once every warp is here; the partial rows go over them.
  __syncthreads();
  store_part(smem, warp, lane, acc[0], r);
  __syncthreads();
  const i32 rows = s_q * group;
#pragma unroll 1
  for (u32 x = tid; x < ROWS * (DV / 8); x += THREADS) {
    const i32 row = (i32)(x / (DV / 8)), c = (i32)(x % (DV / 8)) * 8, p = w.row0 + row;
    if (p >= rows) continue;
    const i32 tok = p / group, head = w.h * group + (p - tok * group);
    const bool past = tok >= w.len_q;
    if (FG_SPLIT && past) continue;
    float sum[8], m, l;
    sum_parts(smem, row, c, sum, m, l);
    if (FG_SPLIT) {
      const i64 at = ((i64)w.split * batch + w.b) * heads_q * s_q + (i64)head * s_q + tok;
      const RowEnd e = finish_row<0>(m, l, 0.f);
      if (c == 0) part_lse[at] = e.stats;
      if (!e.dead) {
        float* dst = part_o + (at * DV + c);
        stg_v4(dst, __float_as_uint(sum[0] * e.mul), __float_as_uint(sum[1] * e.mul), __float_as_uint(sum[2] * e.mul), __float_as_uint(sum[3] * e.mul));
        stg_v4(dst + 4, __float_as_uint(sum[4] * e.mul), __float_as_uint(sum[5] * e.mul), __float_as_uint(sum[6] * e.mul), __float_as_uint(sum[7] * e.mul));
      }
    } else {
      const RowEnd e = finish_row<FG_SINK>(m, l, FG_SINK ? __ldg(sink + head) : 0.f);
      if (FG_STATS && c == 0 && stats != nullptr)
        stats[(i64)w.b * stats_sb + (i64)head * stats_sh + (i64)tok * stats_ss] = past ? neg_inf() : FG_STATS == 2 ? e.stats * LOG2E : e.stats;
      u32 v4[4];
#pragma unroll
      for (int i = 0; i < 4; i++) v4[i] = past || e.dead ? 0u : pack2<BF16>(sum[2 * i] * e.mul, sum[2 * i + 1] * e.mul);
      if (c < d_v) stg_v4(o + ((i64)w.b * o_sb + (i64)head * o_sh + (i64)tok * o_ss + c), v4[0], v4[1], v4[2], v4[3]);
    }
  }
}
