// main: D, dprob and scales of every tile. Persistent: one CTA per SM, tiles blockIdx.x, + gridDim.x, ... of the table that prep wrote.
//
// grid (SMs), block 512, shared memory fg::SMEM. Parameters: map A (row bytes of k, m), box ROW x 256; map B (row bytes of k, n, experts), box ROW x 128 x 1, or n-major (n, k, experts), box 128 x 128 x 1; both
// with ROW bytes of swizzle (128 for fp8, 64 for E2M1); map C (n, m), box 128 bytes x 128, 128-byte swizzle; then fg::Params in order.
#include "grouped_gemm/sm90/epilogue.cuh"
#include "grouped_gemm/sm90/expand_role.cuh"
#include "grouped_gemm/sm90/k_major.cuh"
#include "grouped_gemm/sm90/n_major.cuh"

namespace fg {

FG_DEV void copy_role(const TensorMap* map_a, const TensorMap* map_b, const TensorMap* map_c, const Params& p, u32 sm, i32 blocks, i32 n_tiles) {
  const u32 bar = sm + AT_BAR;
  const i32 atoms = ceil_div(ceil_div(p.k, SF_VEC), 4), steps = ceil_div(p.k, 128), total = blocks * n_tiles;
  Raw ring;
  u32 it = 0;
  i32 mapped = -1;
#pragma unroll 1
  for (i32 tile = blockIdx.x; tile < total; tile += gridDim.x, it++) {
    i32 mb, nb;
    locate(tile, blocks, n_tiles, mb, nb);
    const Block blk = p.table[mb];
    const i64 col = (i64)blk.expert * n_tiles + nb;
    const u32 hdr = sm + AT_HDR + (it & 1) * HDR;
    const i32 wide = SF_E4M3 ? 0 : p.row_flag[2 * mb] | p.row_flag[2 * mb + 1] | p.col_flag[col];
    const Header h{mb, nb, blk.expert, blk.first, blk.count, wide, p.alpha[blk.expert], SF_E4M3 ? 0 : p.col_top[col]};
    mbar_wait(bar + H_EMPTY + 8 * (it & 1), ((it >> 1) & 1) ^ 1);
    write_header(hdr + HDR_WORDS, h);
    const u32 hb = bar + H_FULL + 8 * (it & 1);
    mbar_expect(hb, HDR_BYTES);
    bulk_load(hdr + HDR_PROB, p.prob + (i64)mb * M_TILE, 1024, hb);
    bulk_load(hdr + HDR_ROW, p.row_exp + (i64)mb * M_TILE, 256, hb);
    bulk_load(hdr + HDR_COL, p.col_exp + col * N_TILE, 128, hb);
    const u8* sfa = (wide || SF_E4M3 ? p.sfa : p.fields) + (i64)mb * 2 * atoms * 512;
    const u8* sfb = WEIGHT_LIST ? p.sfb_at[blk.expert] + (i64)nb * atoms * 512 : p.sfb + col * atoms * 512;
    if (WEIGHT_LIST) map_b = listed_map(p, blk.expert, mapped);
    const i32 slice = WEIGHT_LIST ? 0 : blk.expert;
#pragma unroll 1
    for (i32 s = 0; s < steps; s++) {
      const u32 at = sm + ring.slot() * STAGE, full = bar + FULL + 8 * ring.slot();
      // The last step of 16-wide scales may have one atom only; its readers mask what lies behind.
      const u32 sf = 512 * SF_WORDS, part = min2(sf, (u32)(atoms - s * SF_WORDS) * 512);
      mbar_wait(bar + EMPTY + 8 * ring.slot(), ring.parity() ^ 1);
      mbar_expect(full, A_BYTES + B_BYTES + 3 * part);
      tma_load_2d(at + STAGE_A, map_a, full, s * (i32)ROW, mb * M_TILE);
      if (N_MAJOR)
        tma_load_3d(at + STAGE_B, map_b, full, nb * N_TILE, s * 128, slice);
      else
        tma_load_3d(at + STAGE_B, map_b, full, s * (i32)ROW, nb * N_TILE, slice);
      bulk_load(at + STAGE_SFA, sfa + (i64)s * sf, part, full);
      bulk_load(at + STAGE_SFA + sf, sfa + (i64)atoms * 512 + (i64)s * sf, part, full);
      bulk_load(at + STAGE_SFB, sfb + (i64)s * sf, part, full);
      ring.next();
    }
    copy_c(map_c, sm, ring, nb * N_TILE, mb * M_TILE);
  }
}

FG_DEV void row_exponents(i32 (&most)[4], u32 hdr, u32 c, u32 w, u32 lane) {
#pragma unroll
  for (int i = 0; i < 4; i++) most[i] = (i32)lds_u8(hdr + HDR_ROW + 128 * c + 32 * w + 8 * i + (lane >> 2));
}

FG_DEV void math_role(const Params& p, u32 sm, i32 total, u32 c, u32 thread) {
  const u32 bar = sm + AT_BAR, lane = thread & 31, w = uniform(thread >> 5);
  const i32 steps = ceil_div(p.k, 128);
  const Tail tail = tail_of(p.k);
  const u32 row = c * 128 + w * 32 + (IN == IN_E2M1 ? lane : lane & 15);
  const MathLane l{sm, row * ROW, swizzle(row), c * 512 * SF_WORDS + (lane >> 2) * 16 + w * 4, lane};
  const u64 desc = wgmma_desc(sm + AT_B16, 16);
  float d0[64], d1[64];
  Place place;
  u32 it = 0;
#pragma unroll 1
  for (i32 tile = blockIdx.x; tile < total; tile += gridDim.x, it++) {
    const u32 hdr = wait_header(sm, it);
    const i32 wide = (i32)uniform(lds_u32(hdr + HDR_WORDS + WORD_WIDE));
    // Zeroed by hand and not by the first product's predicate: undefined registers at the join of the two loops make ptxas serialise every wgmma (C7515).
#pragma unroll
    for (int i = 0; i < 64; i++) d0[i] = d1[i] = 0.f;
    pin(d0);
    pin(d1);
    if (!SF_E4M3 && wide) {
      i32 most[4];
      row_exponents(most, hdr, c, w, lane);
      wide_loop(d0, d1, l, place, desc, steps, tail, most);
    } else {
      fast_loop(d0, d1, l, place, desc, steps, tail);
    }
    const Header h = read_header(hdr + HDR_WORDS, wide);
    Out o;
    o.t = lane & 3;
    o.g = lane >> 2;
    o.row = (i64)h.mb * M_TILE + c * 128 + w * 32 + o.g;
    o.col = h.nb * N_TILE + 32 * o.t;
    o.valid = min2(p.n - o.col, 32);
    o.nb = h.nb;
    o.block = h.mb * 8 + c * 4 + w;
    o.expert = h.expert;
    o.first = h.first;
    o.count = h.count;
    wgmma_wait<0>();
    pin(d0);
    pin(d1);
    i32 most[4];
    row_exponents(most, hdr, c, w, lane);
    if (!SF_E4M3 && wide) {
#pragma unroll
      for (int j = 0; j < 16; j++)
#pragma unroll
        for (int x = 0; x < 2; x++) {
          const i32 col = (i32)lds_u8(hdr + HDR_COL + 32 * (lane & 3) + 2 * j + x);
#pragma unroll
          for (int r = 0; r < 4; r++) wide_power_back(r < 2 ? d0[4 * j + 2 * (r & 1) + x] : d1[4 * j + 2 * (r & 1) + x], most[r], col);
        }
    } else if (lane == 0) {
      mbar_arrive(bar + B_EMPTY + 8 * place.b.before());
    }
    epilogue(d0, d1, p.out, h, o, c, w, hdr, most, l, place);
    free_header(sm, it, lane);
  }
}

}  // namespace fg

extern "C" __device__ const int fg_grouped_gemm_main_smem = fg::SMEM;

extern "C" __global__ void __launch_bounds__(fg::THREADS, 1) fg_grouped_gemm_main(
    const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const __grid_constant__ TensorMap map_c, const u8* sfa, const u8* sfb, const u8* maps, const u8* const* sfb_at,
    const u8* fields, const u8* row_exp, const u8* col_exp, const i32* col_top, const i32* row_flag, const i32* col_flag, const i32* head, const fg::Block* table, const float* alpha,
    const float* prob, const float* norm_const, u8* d_row, u8* d_col, u8* d_srelu, u8* sfd_row, u8* sfd_col, u8* sfd_col_d_srelu, float* dprob, float* amax, float* dbias, float clamp, i32 n, i32 k,
    i64 m) {
  using namespace fg;
  extern __shared__ u8 raw[];
  const u32 sm = (smem_addr(raw) + 1023) & ~1023u, bar = sm + AT_BAR;
  const Outputs out{norm_const, d_row, d_col, sfd_row, sfd_col, d_srelu, sfd_col_d_srelu, dprob, amax, dbias, clamp, n, m};
  const Params p{sfa, sfb, fields, reinterpret_cast<const TensorMap*>(maps), sfb_at, row_exp, col_exp, col_top, row_flag, col_flag, head, table, alpha, prob, n, k, out};
  if (threadIdx.x == 0) {
    init_barriers(bar, MATH_WARPS);
    tma_prefetch_map(&map_a);
    if (!WEIGHT_LIST) tma_prefetch_map(&map_b);
    tma_prefetch_map(&map_c);
  }
  __syncthreads();
  pdl_wait();
  pdl_launch();
  const i32 blocks = head[0], n_tiles = ceil_div(n, N_TILE), total = blocks * n_tiles;
  const u32 role = uniform(threadIdx.x >> 7);
  if (role == 0) {
    regs_dec<COPY_REGS>();
    if (threadIdx.x == 0) copy_role(&map_a, &map_b, &map_c, p, sm, blocks, n_tiles);
  } else if (role == 1) {
    regs_dec<DEQUANT_REGS>();
    const u32 lane = threadIdx.x & 31, warp = (threadIdx.x & 127) >> 5;
    if constexpr (N_MAJOR)
      expand_role(total, k, sm, lane, NMajor(sm, lane, warp));
    else
      expand_role(total, k, sm, lane, KMajor(sm, lane, warp));
  } else {
    regs_inc<MATH_REGS>();
    math_role(p, sm, total, role - 2, threadIdx.x & 127);
  }
}
