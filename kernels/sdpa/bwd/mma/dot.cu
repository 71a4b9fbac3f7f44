// dot: delta[b,h,q] = sum_d dO[b,h,q,d] * O[b,h,q,d] in fp32, the row term of dS = P * (dP - delta).
//
// It runs first in the chain and owns the chain's clearing: dq_accum (the fp32 workspace that main adds into) and the relay's turn
// counters, so that no memset launch is needed.
//
// grid  (ceil(S_q / 64) * H_q * B, 1, 1): heads fastest, so that neighbouring blocks read neighbouring memory of a (B,S,H,D) tensor and whole
//       64-row pieces of a (B,H,S,D) one. block 256, static shared memory only.
//
// defines
//   FG_BF16        1: bf16 io, 0: f16 io
//   FG_PADDED      1: seq_q is read when it is not null
//   FG_THD         1: Q, O and dO are packed; needs FG_PADDED 1 and a seq_q
//   FG_RAGGED_I64  1: ragged offsets are int64, 0: int32
//
// parameters, in order
//    0 o, 1 d_o        io, head dim stride 1, rows 16-byte aligned, d_v a multiple of 8 up to 256
//    2 delta           fp32, dense [B, H_q, ws_rows], THD [H_q, ws_rows] (chain.cuh: ws_row0)
//    3 dq_accum        fp32 [zero_f32], 16-byte aligned; not read when zero_f32 is 0
//    4 dq_sem          int32 [zero_i32]; not read when zero_i32 is 0
//    5 seq_q           int32 [B] or null
//    6-8 rag_q, rag_o, rag_do        THD: ragged starts; rag_q gives the workspace origin
//    9-11 mul_q, mul_o, mul_do       their multipliers
//   12 q_ss                          THD: Q's token stride
//   13-18 o_sb, o_sh, o_ss, do_sb, do_sh, do_ss
//   19-20 zero_f32, zero_i32         elements to clear; zero_f32 a multiple of 4
//   21-25 batch, heads_q, s_q, d_v, ws_rows
//
// writes fully: delta rows < S_q (dense; 0 at or past the length) or < len_q (THD), dq_accum, dq_sem. O and dO rows at or past the length
// are not read.
#ifndef FG_BF16
#error "FG_BF16"
#endif
#ifndef FG_PADDED
#error "FG_PADDED"
#endif
#ifndef FG_THD
#error "FG_THD"
#endif
#ifndef FG_RAGGED_I64
#error "FG_RAGGED_I64"
#endif
#include "sdpa/bwd/mma/chain.cuh"

namespace fg {

constexpr i32 DOT_ROWS = 64;
constexpr i32 DOT_THREADS = 256;

// O is never read again and dO only much later: keep them out of L1.
FG_DEV void ldg16_stream(const void* p, u32 (&r)[4]) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "l"(p));
}

FG_DEV float dot_pair(u32 a, u32 b, float s) {
  s = fmaf(unpack1<FG_BF16>((u16)a), unpack1<FG_BF16>((u16)b), s);
  return fmaf(unpack1<FG_BF16>((u16)(a >> 16)), unpack1<FG_BF16>((u16)(b >> 16)), s);
}

// The block's 64 row sums: LANES threads share a row and take VECS 16-byte vectors each, vector v of lane l at column 8 * (l + v * LANES).
// All loads of up to UNROLL rows are issued before the first product.
template <i32 LANES, i32 VECS>
FG_DEV void row_sums(const char* o, const char* g, i64 o_ss, i64 g_ss, i32 row0, i32 rows, i32 d_v, float* sums) {
  constexpr i32 PASS = DOT_THREADS / LANES, STEPS = DOT_ROWS / PASS;
  constexpr i32 UNROLL = STEPS < 4 / VECS ? STEPS : 4 / VECS < 1 ? 1 : 4 / VECS;
  static_assert(STEPS % UNROLL == 0, "row split");
  const i32 lane = threadIdx.x % LANES, r0 = threadIdx.x / LANES;
#pragma unroll 1
  for (i32 s = 0; s < STEPS; s += UNROLL) {
    u32 x[UNROLL][VECS][4], y[UNROLL][VECS][4];
#pragma unroll
    for (i32 u = 0; u < UNROLL; ++u) {
      const i32 r = r0 + (s + u) * PASS;
      const i64 q = (i64)row0 + r;
#pragma unroll
      for (i32 v = 0; v < VECS; ++v) {
        const i32 c = (lane + v * LANES) * 8;
#pragma unroll
        for (i32 i = 0; i < 4; ++i) x[u][v][i] = y[u][v][i] = 0;
        // Not loading (rather than multiplying by zero) is what keeps NaN in dead rows and addresses past the tensor out.
        if (row0 + r < rows && c < d_v) {
          ldg16_stream(o + 2 * (q * o_ss + c), x[u][v]);
          ldg16_stream(g + 2 * (q * g_ss + c), y[u][v]);
        }
      }
    }
#pragma unroll
    for (i32 u = 0; u < UNROLL; ++u) {
      float a = 0.f;
#pragma unroll
      for (i32 v = 0; v < VECS; ++v)
#pragma unroll
        for (i32 i = 0; i < 4; ++i) a = dot_pair(x[u][v][i], y[u][v][i], a);
#pragma unroll
      for (i32 m = LANES / 2; m > 0; m /= 2) a += __shfl_xor_sync(0xffffffffu, a, m);
      if (lane == 0) sums[r0 + (s + u) * PASS] = a;
    }
  }
}

}  // namespace fg

extern "C" __global__ void __launch_bounds__(256)
fg_sdpa_bwd_dot(const void* o, const void* d_o, float* delta, float* dq_accum, i32* dq_sem, const i32* seq_q, const void* rag_q, const void* rag_o,
                const void* rag_do, i64 mul_q, i64 mul_o, i64 mul_do, i64 q_ss, i64 o_sb, i64 o_sh, i64 o_ss, i64 do_sb, i64 do_sh, i64 do_ss,
                i64 zero_f32, i64 zero_i32, i32 batch, i32 heads_q, i32 s_q, i32 d_v, i32 ws_rows) {
  using namespace fg;
  __shared__ float sums[DOT_ROWS];
  const i32 tid = threadIdx.x;
  const i32 blocks = (s_q + DOT_ROWS - 1) / DOT_ROWS;
  const i32 h = blockIdx.x % (u32)heads_q;
  const u32 t = blockIdx.x / (u32)heads_q;
  const i32 b = t / (u32)blocks, row0 = (i32)(t % (u32)blocks) * DOT_ROWS;

  // The workspace may still be in use by the stream's earlier work.
  pdl_wait();
  pdl_launch();

  // Clearing knows no layout: the grid strides over the buffers. Stores go first, they need no answer while the loads below are in flight.
  const i64 me = (i64)blockIdx.x * DOT_THREADS + tid, all = (i64)gridDim.x * DOT_THREADS;
#pragma unroll 4
  for (i64 i = me; i < zero_f32 / 4; i += all) stg_v4(dq_accum + 4 * i, 0, 0, 0, 0);
  for (i64 i = me; i < zero_i32; i += all) dq_sem[i] = 0;

  i32 rows = s_q;
#if FG_PADDED || FG_THD
  rows = seq_len(seq_q, b, s_q);
#endif
#if FG_THD
  if (row0 >= rows) return;  // nothing of the workspace belongs to rows past the length
  const i64 o_base = ragged_offset<FG_RAGGED_I64>(rag_o, b, mul_o) + h * o_sh;
  const i64 g_base = ragged_offset<FG_RAGGED_I64>(rag_do, b, mul_do) + h * do_sh;
  const i64 token0 = ragged_offset<FG_RAGGED_I64>(rag_q, b, mul_q) / q_ss;
#else
  const i64 o_base = b * o_sb + h * o_sh, g_base = b * do_sb + h * do_sh;
  const i64 token0 = 0;
#endif
  const char* op = (const char*)o + 2 * o_base;
  const char* gp = (const char*)d_o + 2 * g_base;
  if (d_v <= 32) row_sums<4, 1>(op, gp, o_ss, do_ss, row0, rows, d_v, sums);
  else if (d_v <= 64) row_sums<8, 1>(op, gp, o_ss, do_ss, row0, rows, d_v, sums);
  else if (d_v <= 128) row_sums<16, 1>(op, gp, o_ss, do_ss, row0, rows, d_v, sums);
  else if (d_v <= 192) row_sums<8, 3>(op, gp, o_ss, do_ss, row0, rows, d_v, sums);
  else row_sums<16, 2>(op, gp, o_ss, do_ss, row0, rows, d_v, sums);
  __syncthreads();
  // One 256-byte run instead of a float per row group.
  const i32 end = FG_THD ? rows : s_q;
  if (tid < DOT_ROWS && row0 + tid < end) delta[ws_row0<FG_THD>(token0, b, h, heads_q, ws_rows) + row0 + tid] = sums[tid];
}
