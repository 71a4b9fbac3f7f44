// reduce: under GQA, dK[b,hk,s,:] = sum over the group's query heads of dk_ws[b,s,hk*group+g,:], in ascending g and in fp32; dV likewise.
//
// main writes one io-dtype partial per query head. A fixed order makes the sum bitwise reproducible. Memory bound.
//
// grid  (ceil(B * S_kv * H_kv * (d_qk/8 + d_v/8) / 256), 1, 1), block 256, no shared memory. One thread makes one 16-byte output vector: all dK
//       vectors first, then all dV vectors; inside, columns fastest, then heads, tokens, batch.
//
// defines
//   FG_BF16         1: bf16 io, 0: f16 io
//   FG_D_QK, FG_D_V padded head dims: row widths of dk_ws and dv_ws
//   FG_THD          1: K, dK, dV and both workspaces are packed by tokens; needs seq_kv
//   FG_RAGGED_I64   1: ragged offsets are int64, 0: int32
//
// parameters, in order
//    0 dk_ws, 1 dv_ws   io, dense [B, S_kv, H_q, D], THD [T_kv, H_q, D] with rows at K's token origin
//    2 dk, 3 dv         io, head dim stride 1, rows 16-byte aligned
//    4 seq_kv           int32 [B], THD only
//    5-7 rag_k, rag_dk, rag_dv     THD: ragged starts; rag_k gives the workspace row origin
//    8-10 mul_k, mul_dk, mul_dv    their multipliers
//   11 k_ss                        THD: K's token stride
//   12-17 dk_sb, dk_sh, dk_ss, dv_sb, dv_sh, dv_ss
//   18-23 batch, heads_q, group, s_kv, d_qk, d_v
//
// writes fully: dK and dV rows < S_kv (dense) or < len_kv (THD), columns < d_qk / d_v and nothing else.
#ifndef FG_BF16
#error "FG_BF16"
#endif
#ifndef FG_D_QK
#error "FG_D_QK"
#endif
#ifndef FG_D_V
#error "FG_D_V"
#endif
#ifndef FG_THD
#error "FG_THD"
#endif
#ifndef FG_RAGGED_I64
#error "FG_RAGGED_I64"
#endif
#include "sdpa/bwd/mma/chain.cuh"

namespace fg {

// The partials are read once.
FG_DEV void ldg16_once(const void* p, u32 (&r)[4]) {
  asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "l"(p));
}

// Adds N partials, `step` bytes apart; all loads are in flight before the first addition.
template <i32 N> FG_DEV void add_partials(const char* p, i32 step, float (&a)[8]) {
  u32 x[N][4];
#pragma unroll
  for (i32 n = 0; n < N; ++n) ldg16_once(p + n * step, x[n]);
#pragma unroll
  for (i32 n = 0; n < N; ++n)
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
      a[2 * i] += unpack1<FG_BF16>((u16)x[n][i]);
      a[2 * i + 1] += unpack1<FG_BF16>((u16)(x[n][i] >> 16));
    }
}

struct Place {
  i64 token;  // b * S_kv + s
  i32 head, col;
};
// 64-bit division is a long call; almost every problem fits 32 bits, and the choice is the same for the whole grid.
FG_DEV Place place(i64 i, bool narrow, i32 heads, i32 vecs) {
  const i32 per_token = heads * vecs;
  Place r;
  i32 j;
  if (narrow) {
    r.token = (u32)i / (u32)per_token;
    j = (u32)i % (u32)per_token;
  } else {
    r.token = i / per_token;
    j = (i32)(i - r.token * per_token);
  }
  r.head = j / vecs;
  r.col = j % vecs * 8;
  return r;
}

}  // namespace fg

extern "C" __global__ void __launch_bounds__(256)
fg_sdpa_bwd_reduce(const void* dk_ws, const void* dv_ws, void* dk, void* dv, const i32* seq_kv, const void* rag_k, const void* rag_dk,
                   const void* rag_dv, i64 mul_k, i64 mul_dk, i64 mul_dv, i64 k_ss, i64 dk_sb, i64 dk_sh, i64 dk_ss, i64 dv_sb, i64 dv_sh,
                   i64 dv_ss, i32 batch, i32 heads_q, i32 group, i32 s_kv, i32 d_qk, i32 d_v) {
  using namespace fg;
  pdl_wait();
  pdl_launch();
  const i32 heads_kv = heads_q / group;
  const i64 tokens = (i64)batch * s_kv;
  const i64 n_k = tokens * heads_kv * (d_qk / 8), n = n_k + tokens * heads_kv * (d_v / 8);
  i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
  if (i >= n) return;
  const bool is_v = i >= n_k;
  if (is_v) i -= n_k;
  const Place at = place(i, n < (1ll << 31), heads_kv, (is_v ? d_v : d_qk) / 8);
  const i32 b = n < (1ll << 31) ? (i32)((u32)at.token / (u32)s_kv) : (i32)(at.token / s_kv);
  const i64 s = at.token - (i64)b * s_kv;
  i64 ws_row = at.token;
#if FG_THD
  if (s >= seq_len(seq_kv, b, s_kv)) return;  // the next row belongs to the next sequence
  ws_row = ragged_offset<FG_RAGGED_I64>(rag_k, b, mul_k) / k_ss + s;
  const i64 base = is_v ? ragged_offset<FG_RAGGED_I64>(rag_dv, b, mul_dv) : ragged_offset<FG_RAGGED_I64>(rag_dk, b, mul_dk);
#else
  const i64 base = b * (is_v ? dv_sb : dk_sb);
#endif
  const i32 width = is_v ? FG_D_V : FG_D_QK;
  const char* src = (const char*)(is_v ? dv_ws : dk_ws) + 2 * ((ws_row * heads_q + (i64)at.head * group) * width + at.col);
  const i32 step = 2 * width;
  float a[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
  i32 g = 0;
  for (; g + 8 <= group; g += 8, src += 8 * step) add_partials<8>(src, step, a);
  for (; g + 2 <= group; g += 2, src += 2 * step) add_partials<2>(src, step, a);
  if (g < group) add_partials<1>(src, step, a);
  const i64 dst = base + at.head * (is_v ? dv_sh : dk_sh) + s * (is_v ? dv_ss : dk_ss) + at.col;
  stg_v4((char*)(is_v ? dv : dk) + 2 * dst, pack2<FG_BF16>(a[0], a[1]), pack2<FG_BF16>(a[2], a[3]), pack2<FG_BF16>(a[4], a[5]),
         pack2<FG_BF16>(a[6], a[7]));
}
