// main: D, dprob and scales of every tile by mma.sync. Persistent: one CTA per SM, tiles blockIdx.x, + gridDim.x, ... of the table that table.cu wrote; column
// tiles fastest, so that rows of A are read once and an expert's weights stay in L2.
//
// grid (SMs), block 256, shared memory fg::SMEM. Every pointer and row of A, B, C, D is a multiple of 16 bytes.
#include "grouped_gemm/epilogue/columns.cuh"
#include "grouped_gemm/epilogue/rows.cuh"
#include "grouped_gemm/mma/math.cuh"
#include "grouped_gemm/table.cuh"

static_assert(!FG_SRELU, "D_srelu costs 200 bytes of spills here: the row declines it");

namespace fg {

struct Params {
  const u8 *a, *b, *c, *sfa, *sfb;
  WeightList list;
  const Block* table;
  const float *alpha, *prob;
  i32 n_tiles, row_bytes, atoms;
  Outputs out;
};

// Tells the copies where tile (mb, nb) starts.
FG_DEV void write_source(u32 sm, const Params& p, i32 mb, i32 nb, i32 expert) {
  const i64 line = (i64)p.atoms * 512, first = (i64)nb * N_TILE;
  const u8* b = WEIGHT_LIST ? reinterpret_cast<const u8*>(p.list.b_of(expert)) : p.b + (i64)expert * p.out.n * p.row_bytes;
  const u8* sfb = WEIGHT_LIST ? p.list.sfb_of(expert) : p.sfb + (i64)expert * p.n_tiles * line;
  const u64 source[5] = {(u64)(p.a + (i64)mb * M_TILE * p.row_bytes), (u64)(b + first * p.row_bytes), (u64)(p.sfa + (i64)mb * 2 * line), (u64)(sfb + nb * line), (u64)(p.out.n - first)};
#pragma unroll
  for (int i = 0; i < 5; i++) asm volatile("st.shared.u64 [%0], %1;" ::"r"(sm + AT_SOURCE + 8 * i), "l"(source[i]) : "memory");
}

// Rows of a tile for the epilogue, C straight from global memory.
struct GlobalRows {
  float alpha;
  const float* probs;
  const u8* c_at;
  i64 c_row;  // bytes of a row of C
  i32 valid;
  FG_DEV float factor(int) const { return alpha; }
  FG_DEV float prob(int r) const { return ldg_f32(probs + 8 * r); }
  FG_DEV void c(int r, int unit, u32 (&w)[4]) const {
    w[0] = w[1] = w[2] = w[3] = 0u;
    if (unit * C_UNIT < valid) asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(c_at + 8 * r * c_row + unit * 16));
  }
};

FG_DEV void epilogue(float (&d0)[64], float (&d1)[64], const Params& p, i32 tile) {
  const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const i32 mb = tile / p.n_tiles, nb = tile % p.n_tiles;
  const Block block = p.table[mb];
  float alpha = p.alpha[block.expert];
  if (alpha < 0.f) {  // the shared epilogue wants a factor >= 0
    alpha = -alpha;
#pragma unroll
    for (int i = 0; i < 64; i++) {
      d0[i] = -d0[i];
      d1[i] = -d1[i];
    }
  }
  Out o;
  o.t = lane & 3;
  o.g = lane >> 2;
  o.row = (i64)mb * M_TILE + 32 * warp + o.g;
  o.col = nb * (i32)N_TILE + 32 * (i32)o.t;
  o.valid = min2(p.out.n - o.col, 32);
  o.nb = nb;
  o.block = mb * 8 + (i32)warp;
  o.expert = block.expert;
  o.first = block.first;
  o.count = block.count;
  const i64 c_row = (i64)p.out.n * width(C_TYPE);
  const GlobalRows rows{alpha, p.prob + o.row, p.c + o.row * c_row + (i64)o.col * width(C_TYPE), c_row, o.valid};
  float peak = 0.f;
  do_rows(d0, d1, rows, p.out, o, peak);
  do_columns(d0, d1, p.out, o, peak);
}

// The next tile's first stages. All threads are here, and none reads the ring any more.
FG_DEV void begin(u32 sm, const Params& p, i32 tile, i32 steps) {
  if (threadIdx.x == 0) {
    const i32 mb = tile / p.n_tiles, nb = tile % p.n_tiles;
    write_source(sm, p, mb, nb, p.table[mb].expert);
  }
  __syncthreads();
#pragma unroll
  for (i32 i = 0; i < (i32)STAGES - 1; i++) {
    if (i < steps) load_stage(sm, (u32)i, i, p.row_bytes, p.atoms);
    cp_commit();
  }
}

}  // namespace fg

extern "C" __device__ const int fg_grouped_gemm_mma_smem = fg::SMEM;

extern "C" __global__ void __launch_bounds__(fg::THREADS, 1)
    fg_grouped_gemm_mma(const u8* a, const u8* b, const u8* c, const u8* sfa, const u8* sfb, const i64* b_ptrs, const i64* sfb_ptrs, const i32* head, const fg::Block* table, const float* alpha,
                        const float* prob, const float* norm_const, u8* d_row, u8* d_col, u8* sfd_row, u8* sfd_col, float* dprob, float* amax, float* dbias, float clamp, i32 n,
                        i32 k, i64 m) {
  using namespace fg;
  extern __shared__ __align__(16) u8 raw[];
  const u32 sm = smem_addr(raw);
  const i32 scale_blocks = ceil_div(k, SF_VEC), row_bytes = IN == IN_E2M1 ? k / 2 : k, steps = ceil_div(row_bytes, (i32)ROW);
  const Params p{a, b, c, sfa, sfb, WeightList{b, sfb, b_ptrs, sfb_ptrs, 0, 0, 0, 0}, table, alpha, prob, ceil_div(n, (i32)N_TILE), row_bytes, ceil_div(scale_blocks, 4),
                 Outputs{norm_const, d_row, d_col, sfd_row, sfd_col, nullptr, nullptr, dprob, amax, dbias, clamp, n, m}};
  const Lane l = lane_of(threadIdx.x >> 5, threadIdx.x & 31);
  pdl_wait();
  pdl_launch();
  const i32 total = head[0] * p.n_tiles;
  i32 tile = blockIdx.x;
  if (tile >= total) return;
  begin(sm, p, tile, steps);
#pragma unroll 1
  while (true) {
    float d0[64], d1[64];
#pragma unroll
    for (int i = 0; i < 64; i++) d0[i] = d1[i] = 0.f;
    u32 stage = 0;
#pragma unroll 1
    for (i32 i = 0; i < steps; i++) {
      cp_wait<STAGES - 2>();
      __syncthreads();  // the stage is there for all, and all have done with the one that is loaded next
      const i32 ahead = i + (i32)STAGES - 1;
      if (ahead < steps) load_stage(sm, stage == 0 ? STAGES - 1 : stage - 1, ahead, p.row_bytes, p.atoms);
      cp_commit();
      stage_products(d0, d1, l, sm + stage * STAGE, i, scale_blocks);
      stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    // The next tile's first stages are under way while this one's results are made.
    const i32 done = tile;
    tile += gridDim.x;
    __syncthreads();
    if (tile < total) begin(sm, p, tile, steps);
    epilogue(d0, d1, p, done);
    if (tile >= total) return;
  }
}
