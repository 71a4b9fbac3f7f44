// main, cluster form: D, dprob and scales of every tile. Persistent: clusters of two CTAs, tiles of 256 x 256 blockIdx.x / 2, + gridDim.x / 2, ... of prep's table.
// The CTA of rank r has rows 128 r .. of a tile, all of its columns, and dequantises columns 128 r .. of B for both.
//
// grid (SMs, even), cluster 2, block 512, shared memory fg::SMEM. Parameters as main.cu's, but for boxes: map A ROW x 128, map C 128 bytes x 64; then
// maps of D_row and D_col (n, m), box 128 bytes x 16, 128-byte swizzle.
#include "grouped_gemm/sm90/pair/copy.cuh"
#include "grouped_gemm/sm90/pair/epilogue.cuh"
#include "grouped_gemm/sm90/pair/expand_role.cuh"

namespace fg {

FG_DEV void math_role(const Params& p, const OutMaps& maps, const Parts& parts, u32 sm, u32 c, u32 thread, u32 rank) {
  const u32 bar = sm + AT_BAR, lane = thread & 31, w = uniform(thread >> 5);
  const Schedule plan(p);
  const Tail tail = tail_of(p.k);
  const u32 row = c * 64 + w * 16 + (lane & 15);
  const MathLane l{sm, at_rank(bar, rank ^ 1), row * ROW, swizzle(row), (16 * (w & 1) + (lane >> 2)) * 16 + (2 * c + (w >> 1)) * 4, lane};
  const u64 made = wgmma_desc(sm + AT_B16, 16);
  const u64 desc = (made & ~0xffffffffull) | uniform((u32)made);  // kept, not made again at every product
  float d0[64], d1[64];
  Place place;
  u32 it = 0;
#pragma unroll 1
  for (i32 item = Schedule::first(); item < plan.items; item += Schedule::stride(), it++) {
    const Work work = plan.at(item);
    const u32 hdr = wait_header(sm, it);
    const i32 wide = (i32)uniform(lds_u32(hdr + HDR_WORDS + WORD_WIDE));
    // Zeroed by hand and not by the first product's predicate: undefined registers at the join of the two loops make ptxas serialise every wgmma (C7515).
#pragma unroll
    for (int i = 0; i < 64; i++) d0[i] = d1[i] = 0.f;
    pin(d0);
    pin(d1);
    i32 most[2];
    if (!SF_E4M3 && wide) {
#pragma unroll
      for (int i = 0; i < 2; i++) most[i] = (i32)lds_u8(hdr + HDR_ROW + 64 * c + 16 * w + 8 * i + (lane >> 2));
      wide_loop(d0, d1, l, place, desc, work, plan.steps, tail, most);
    } else {
      fast_loop(d0, d1, l, place, desc, work, plan.steps, tail);
    }
    const Header h = read_header(hdr + HDR_WORDS, wide);
    const i32 top1 = (i32)lds_u32(hdr + HDR_WORDS + WORD_TOP1);
    // Addresses of the epilogue are made here and not before the first tile: registers for them are not there.
    u32 here = lane;
    opaque(here);
    Out o;
    o.t = here & 3;
    o.g = here >> 2;
    o.row = (i64)h.mb * 256 + rank * 128 + c * 64 + w * 16 + o.g;
    o.col = h.nb * 128 + 32 * o.t;
    o.valid = min2(p.n - o.col, 32);
    o.nb = h.nb;
    o.block = h.mb * 8 + rank * 4 + c * 2 + w / 2;
    o.expert = h.expert;
    o.first = h.first;
    o.count = h.count;
    wgmma_wait<0>();
    pin(d0);
    pin(d1);
    if (lane == 0 && (SF_E4M3 || !wide)) free_b(l, place.b.before());
    if (work.parts > 1 && !join_parts(d0, d1, parts, work, plan.whole, rank, c, thread, hdr + HDR_WORDS + WORD_ARRIVED + 4 * c)) {
      pass_c<C_SLOTS>(sm, place.raw, lane);
      pass_c<C_SLOTS>(sm, place.raw, lane);
      free_header(sm, it, lane);
      continue;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) most[i] = (i32)lds_u8(hdr + HDR_ROW + 64 * c + 16 * w + 8 * i + o.g);
    if (!SF_E4M3 && wide) {
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int j = 0; j < 16; j++)
#pragma unroll
          for (int x = 0; x < 2; x++) {
            const i32 col = (i32)lds_u8(hdr + HDR_COL + 128 * half + 32 * o.t + 2 * j + x);
#pragma unroll
            for (int r = 0; r < 2; r++) wide_power_back(half ? d1[4 * j + 2 * r + x] : d0[4 * j + 2 * r + x], most[r], col);
          }
    }
    epilogue(d0, d1, p.out, maps, h, top1, o, c, w, hdr, most, l, place);
    free_header(sm, it, lane);
  }
}

}  // namespace fg

extern "C" __device__ const int fg_grouped_gemm_main_smem = fg::SMEM;

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(fg::THREADS, 1) fg_grouped_gemm_main(
    const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const __grid_constant__ TensorMap map_c, const __grid_constant__ TensorMap map_d_row, const __grid_constant__ TensorMap map_d_col,
    const u8* sfa, const u8* sfb, const u8* maps, const u8* const* sfb_at,
    const u8* fields, const u8* row_exp, const u8* col_exp, const i32* col_top, const i32* row_flag, const i32* col_flag, const i32* head, const fg::Block* table, const float* alpha,
    const float* prob, const float* norm_const, u8* d_row, u8* d_col, u8* d_srelu, u8* sfd_row, u8* sfd_col, u8* sfd_col_d_srelu, float* dprob, float* amax, float* dbias, float* part_sums, i32* part_count, float clamp, i32 n, i32 k,
    i64 m) {
  using namespace fg;
  extern __shared__ u8 raw[];
  const u32 sm = (smem_addr(raw) + 1023) & ~1023u, bar = sm + AT_BAR, rank = cluster_rank();
  const Outputs out{norm_const, d_row, d_col, sfd_row, sfd_col, d_srelu, sfd_col_d_srelu, dprob, amax, dbias, clamp, n, m};
  const Params p{sfa, sfb, fields, reinterpret_cast<const TensorMap*>(maps), sfb_at, row_exp, col_exp, col_top, row_flag, col_flag, head, table, alpha, prob, n, k, out};
  if (threadIdx.x == 0) {
    init_barriers(bar, 2 * MATH_WARPS);
    tma_prefetch_map(&map_a);
    tma_prefetch_map(&map_b);
    tma_prefetch_map(&map_c);
    tma_prefetch_map(&map_d_row);
    tma_prefetch_map(&map_d_col);
  }
  __syncthreads();
  cluster_sync();  // the peer's barriers exist
  pdl_wait();
  pdl_launch();
  const Parts parts{part_sums, part_count};
  const u32 role = uniform(threadIdx.x >> 7);
  if (role == 0) {
    regs_dec<COPY_REGS>();
    if (threadIdx.x == 0) copy_role(&map_a, &map_b, &map_c, p, sm, rank);
  } else if (role == 1) {
    regs_dec<DEQUANT_REGS>();
    expand_role(p, sm, threadIdx.x & 127, rank);
  } else {
    regs_inc<MATH_REGS>();
    math_role(p, OutMaps{&map_d_row, &map_d_col}, parts, sm, role - 2, threadIdx.x & 127, rank);
  }
  __syncwarp();
  cluster_sync();  // nothing of the peer's arrives here any more
}
