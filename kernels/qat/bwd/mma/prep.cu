// fg_qat_bwd_prep: everything the fused backward needs before it starts, in one pass over memory.
//   Q, K, V -> NVFP4 fake-quantised bf16 copies (blocks of 16 along the head dim), compact [B, H, S, D] in the workspace
//   delta[b,h,q] = sum_d dO O in fp32, from the high-precision O
//   dq_accum, dq_sem -> 0
//
// grid ((ceil(S_q, ROWS) * H_q + 2 * ceil(S_kv, ROWS) * H_kv) * B), ROWS = 8192 / D; block 256. Blocks of Q first, then of K, then of V.
// Defines FG_D (64, 128), FG_PADDED. Parameters: README.md in this folder.
// Writes fully: the copies' rows < S (FG_PADDED: < length; main clears the rest of a tile itself), delta rows < S_q (0 past the length),
// dq_accum, dq_sem. Rows of the inputs past a length are not read.
#include "common/nvfp4.cuh"
#include "sdpa/bwd/mma/chain.cuh"
#if !defined(FG_D) || !defined(FG_PADDED)
#error "prep.cu needs FG_D, FG_PADDED"
#endif

namespace fg {

constexpr int D = FG_D, LANES = D / 8, STEPS = 4, PASS = 256 / LANES, ROWS = PASS * STEPS;  // a lane takes 16 bytes of a row
static_assert(D == 64 || D == 128, "head dim");

// Read once: not worth a line of L1.
FG_DEV void ldg16_once(const u16* p, u32 (&r)[4]) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "l"(p));
}
FG_DEV float dot2(u32 a, u32 b, float s) {
  s = fmaf(f32_bits(a << 16), f32_bits(b << 16), s);
  return fmaf(f32_bits(a & 0xffff0000u), f32_bits(b & 0xffff0000u), s);
}

// This thread's STEPS vectors of a block of ROWS rows: rows r0 + PASS * i, columns c .. c + 7.
struct Slice {
  i32 r0, c, rows;
  FG_DEV bool has(int i) const { return r0 + PASS * i < rows; }
  // Zeros where there is no row: every lane takes part in the shuffles, and dead rows may hold anything.
  FG_DEV void load(const u16* base, i64 stride, u32 (&x)[STEPS][4]) const {
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0;
      if (has(i)) ldg16_once(base + (i64)(r0 + PASS * i) * stride + c, x[i]);
    }
  }
  // A block of 16 is two neighbouring lanes' vectors.
  FG_DEV void quantise(u16* out, u32 (&x)[STEPS][4]) const {
#pragma unroll
    for (int i = 0; i < STEPS; i += 2) {
      float a0 = bf16x2_amax(x[i]), a1 = bf16x2_amax(x[i + 1]);
      a0 = fmaxf(a0, __shfl_xor_sync(0xffffffffu, a0, 1));
      a1 = fmaxf(a1, __shfl_xor_sync(0xffffffffu, a1, 1));
      Fp4Scale k[2];
      fp4_scales(a0, a1, k[0], k[1]);
#pragma unroll
      for (int t = 0; t < 2; t++)
        if (has(i + t)) {
          const u32(&y)[4] = x[i + t];
          stg_v4(out + (i64)(r0 + PASS * (i + t)) * D + c, fp4_fake_bf16x2(y[0], k[t]), fp4_fake_bf16x2(y[1], k[t]),
                 fp4_fake_bf16x2(y[2], k[t]), fp4_fake_bf16x2(y[3], k[t]));
        }
    }
  }
};

}  // namespace fg

extern "C" __global__ void __launch_bounds__(256)
fg_qat_bwd_prep(const u16* q, const u16* k, const u16* v, const u16* o, const u16* d_o, u16* q_fake, u16* k_fake, u16* v_fake, float* delta,
                float* dq_accum, i32* dq_sem, const i32* seq_q, const i32* seq_kv, i64 q_sb, i64 q_sh, i64 q_ss, i64 k_sb, i64 k_sh, i64 k_ss,
                i64 v_sb, i64 v_sh, i64 v_ss, i64 o_sb, i64 o_sh, i64 o_ss, i64 do_sb, i64 do_sh, i64 do_ss, i64 zero_f32, i64 zero_i32,
                i32 batch, i32 heads_q, i32 heads_kv, i32 s_q, i32 s_kv, i32 ws_rows) {
  using namespace fg;
  // The workspace may still be in use by the stream's earlier work.
  pdl_wait();
  pdl_launch();

  // Stores go first: they need no answer while the loads below are in flight.
  const i64 me = (i64)blockIdx.x * 256 + threadIdx.x, all = (i64)gridDim.x * 256;
#pragma unroll 4
  for (i64 i = me; i < zero_f32 / 4; i += all) stg_v4(dq_accum + 4 * i, 0, 0, 0, 0);
  for (i64 i = me; i < zero_i32; i += all) dq_sem[i] = 0;

  const u32 tiles_q = (u32)ceil_div(s_q, ROWS), tiles_kv = (u32)ceil_div(s_kv, ROWS);
  const u32 blocks_q = tiles_q * (u32)(heads_q * batch), blocks_kv = tiles_kv * (u32)(heads_kv * batch);
  Slice t;
  t.c = (i32)(threadIdx.x % LANES) * 8;

  if (blockIdx.x < blocks_q) {
    const u32 bh = blockIdx.x / tiles_q;
    const i32 b = (i32)(bh / (u32)heads_q), h = (i32)(bh - (u32)b * (u32)heads_q);
    t.r0 = (i32)(blockIdx.x - bh * tiles_q) * ROWS + (i32)(threadIdx.x / LANES);
    t.rows = FG_PADDED ? seq_len(seq_q, b, s_q) : s_q;
    u32 x[STEPS][4], y[STEPS][4], z[STEPS][4];
    t.load(q + b * q_sb + h * q_sh, q_ss, x);
    t.load(o + b * o_sb + h * o_sh, o_ss, y);
    t.load(d_o + b * do_sb + h * do_sh, do_ss, z);
    t.quantise(q_fake + (i64)bh * s_q * D, x);
    float* out = delta + (i64)bh * ws_rows;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      float a = 0.f;
#pragma unroll
      for (int e = 0; e < 4; e++) a = dot2(y[i][e], z[i][e], a);
#pragma unroll
      for (int m = LANES / 2; m > 0; m /= 2) a += __shfl_xor_sync(0xffffffffu, a, m);
      if (t.c == 0 && t.r0 + PASS * i < s_q) out[t.r0 + PASS * i] = a;
    }
  } else {
    const u32 n = blockIdx.x - blocks_q, at = n < blocks_kv ? n : n - blocks_kv, bh = at / tiles_kv;
    const i32 b = (i32)(bh / (u32)heads_kv), h = (i32)(bh - (u32)b * (u32)heads_kv);
    t.r0 = (i32)(at - bh * tiles_kv) * ROWS + (i32)(threadIdx.x / LANES);
    t.rows = FG_PADDED ? seq_len(seq_kv, b, s_kv) : s_kv;
    const bool is_k = n < blocks_kv;
    u32 x[STEPS][4];
    t.load(is_k ? k + b * k_sb + h * k_sh : v + b * v_sb + h * v_sh, is_k ? k_ss : v_ss, x);
    t.quantise((is_k ? k_fake : v_fake) + (i64)bh * s_kv * D, x);
  }
}
