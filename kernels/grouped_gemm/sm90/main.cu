// main: D, dprob and scales of every tile. Persistent: one CTA per SM, tiles blockIdx.x, + gridDim.x, ... of the table that prep wrote.
//
// grid (SMs), block 512, shared memory fg::SMEM. Parameters: map A (row bytes of k, m), box ROW x 256; map B (row bytes of k, n, experts), box ROW x 128 x 1, or n-major (n, k, experts), box 128 x 128 x 1; both
// with ROW bytes of swizzle (128 for fp8, 64 for E2M1); map C (n, m), box 128 bytes x 128, 128-byte swizzle; then fg::Params in order.
#include "grouped_gemm/sm90/epilogue.cuh"
#include "grouped_gemm/sm90/expand.cuh"
#include "grouped_gemm/sm90/expert_map.cuh"
#include "grouped_gemm/sm90/n_major.cuh"

namespace fg {

FG_DEV void tma_load_2d(u32 dst, const TensorMap* m, u32 bar, i32 c0, i32 c1) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(dst), "l"(m), "r"(bar), "r"(c0), "r"(c1) : "memory");
}

FG_DEV void copy_role(const TensorMap* map_a, const TensorMap* map_b, const TensorMap* map_c, const Params& p, u32 sm, i32 blocks, i32 n_tiles) {
  const u32 bar = sm + AT_BAR;
  const i32 atoms = ceil_div(ceil_div(p.k, SF_VEC), 4), steps = ceil_div(p.k, 128), total = blocks * n_tiles;
  u32 stage = 0, parity = 1, it = 0;
  i32 mapped = -1;  // the expert whose map of B was acquired last
#pragma unroll 1
  for (i32 tile = blockIdx.x; tile < total; tile += gridDim.x, it++) {
    i32 mb, nb;
    locate(tile, blocks, n_tiles, mb, nb);
    const Block blk = p.table[mb];
    const i64 col = (i64)blk.expert * n_tiles + nb;
    const u32 hdr = sm + AT_HDR + (it & 1) * HDR;
    const i32 wide = SF_E4M3 ? 0 : p.row_flag[2 * mb] | p.row_flag[2 * mb + 1] | p.col_flag[col];
    const float alpha = p.alpha[blk.expert];
    const i32 top = SF_E4M3 ? 0 : p.col_top[col];
    mbar_wait(bar + H_EMPTY + 8 * (it & 1), ((it >> 1) & 1) ^ 1);
    sts_u32(hdr + HDR_WORDS, (u32)mb);
    sts_u32(hdr + HDR_WORDS + 4, (u32)nb);
    sts_u32(hdr + HDR_WORDS + 8, (u32)blk.expert);
    sts_u32(hdr + HDR_WORDS + 12, (u32)blk.first);
    sts_u32(hdr + HDR_WORDS + 16, (u32)blk.count);
    sts_u32(hdr + HDR_WORDS + 20, (u32)wide);
    sts_f32(hdr + HDR_WORDS + 24, alpha);
    sts_u32(hdr + HDR_WORDS + 28, (u32)top);
    const u32 hb = bar + H_FULL + 8 * (it & 1);
    mbar_expect(hb, HDR_BYTES);
    bulk_load(hdr + HDR_PROB, p.prob + (i64)mb * M_TILE, 1024, hb);
    bulk_load(hdr + HDR_ROW, p.row_exp + (i64)mb * M_TILE, 256, hb);
    bulk_load(hdr + HDR_COL, p.col_exp + col * N_TILE, 128, hb);
    const u8* sfa = (wide || SF_E4M3 ? p.sfa : p.fields) + (i64)mb * 2 * atoms * 512;
    const u8* sfb = WEIGHT_LIST ? p.sfb_at[blk.expert] + (i64)nb * atoms * 512 : p.sfb + col * atoms * 512;
    if (WEIGHT_LIST) {
      map_b = p.maps + blk.expert;
      if (blk.expert != mapped) acquire_map(map_b);
      mapped = blk.expert;
    }
    const i32 slice = WEIGHT_LIST ? 0 : blk.expert;
#pragma unroll 1
    for (i32 s = 0; s < steps; s++) {
      const u32 at = sm + stage * STAGE, full = bar + FULL + 8 * stage;
      mbar_wait(bar + EMPTY + 8 * stage, parity);
      mbar_expect(full, A_BYTES + B_BYTES + 3 * min2(512u * SF_WORDS, (u32)(atoms - s * SF_WORDS) * 512));
      tma_load_2d(at + STAGE_A, map_a, full, s * (i32)ROW, mb * M_TILE);
      if (N_MAJOR)
        tma_load_3d(at + STAGE_B, map_b, full, nb * N_TILE, s * 128, slice);
      else
        tma_load_3d(at + STAGE_B, map_b, full, s * (i32)ROW, nb * N_TILE, slice);
      // The last step of 16-wide scales may have one atom only; its readers mask what lies behind.
      const u32 sf = 512 * SF_WORDS, left = (u32)(atoms - s * SF_WORDS) * 512, part = min2(sf, left);
      bulk_load(at + STAGE_SFA, sfa + (i64)s * sf, part, full);
      bulk_load(at + STAGE_SFA + sf, sfa + (i64)atoms * 512 + (i64)s * sf, part, full);
      bulk_load(at + STAGE_SFB, sfb + (i64)s * sf, part, full);
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
    }
#pragma unroll 1
    for (u32 i = 0; i < 2 * C_SLOTS; i++) {
      const u32 at = sm + stage * STAGE, full = bar + FULL + 8 * stage;
      mbar_wait(bar + EMPTY + 8 * stage, parity);
      mbar_expect(full, C_PER_SLOT * C_BOX);
#pragma unroll
      for (u32 x = 0; x < C_PER_SLOT; x++) {
        const i32 box = (i32)(i % C_SLOTS * C_PER_SLOT + x);
        tma_load_2d(at + x * C_BOX, map_c, full, nb * N_TILE + box * (128 / width(C_TYPE)), mb * M_TILE + (i32)(i / C_SLOTS) * 128);
      }
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

FG_DEV void dequant_role(const Params& p, u32 sm, i32 total, u32 thread) {
  constexpr int CHUNKS = ROW / 32;  // 16-byte chunks of a row in 64 k
  const u32 bar = sm + AT_BAR, lane = thread & 31, w = thread >> 5;
  const i32 steps = ceil_div(p.k, 128);
  const Tail tail = tail_of(p.k);
  // Column n of the tile and its row in the 16-bit tile: eight neighbouring lanes differ in the low three bits of both, so neither side conflicts.
  const u32 e = lane & 1, i = (lane >> 1) & 3, t = i ^ (lane >> 3), j = i + 4 * w;
  const u32 n = 32 * t + 2 * j + e, row = 8 * j + 2 * t + e;
  const u32 src = STAGE_B + n * ROW, src_x = swizzle(n), dst = AT_B16 + row * 128, dst_x = row & 7;
  const u32 sf_at = STAGE_SFB + (n & 31) * 16 + (n >> 5) * 4;
  u32 stage = 0, parity = 0, bi = 0, it = 0;
#pragma unroll 1
  for (i32 tile = blockIdx.x; tile < total; tile += gridDim.x, it++) {
    const u32 hdr = sm + AT_HDR + (it & 1) * HDR;
    mbar_wait(bar + H_FULL + 8 * (it & 1), (it >> 1) & 1);
    const u32 wide = lds_u32(hdr + HDR_WORDS + 20);
    const i32 most = (i32)(wide ? lds_u8(hdr + HDR_COL + n) : lds_u32(hdr + HDR_WORDS + 28));
#pragma unroll 1
    for (i32 s = 0; s < steps; s++) {
      const u32 at = sm + stage * STAGE;
      mbar_wait(bar + FULL + 8 * stage, parity);
      u32 sf[SF_WORDS], mult[SF_WORDS];
#pragma unroll
      for (int x = 0; x < SF_WORDS; x++) {
        sf[x] = lds_u32(at + sf_at + 512 * x) & (s + 1 == steps ? tail.word[x] : ~0u);
        mult[x] = SF_E4M3 ? sf[x] : exponent_fields(sf[x], most);
      }
#pragma unroll
      for (int half = 0; half < 2; half++, bi++) {
        u32 v[CHUNKS][4];
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) lds_v4(at + src + (((CHUNKS * half + c) ^ src_x) << 4), v[c][0], v[c][1], v[c][2], v[c][3]);
        mbar_wait(bar + B_EMPTY + 8 * (bi % B16), ((bi / B16) & 1) ^ 1);
        const u32 to = sm + dst + (bi % B16) * B16_BYTES;
        if (SF_E4M3 || !wide) {
#pragma unroll
          for (int c = 0; c < CHUNKS; c++) expand<false>(v[c], mult, most, CHUNKS * half + c, to, dst_x, 8 / CHUNKS * c);
        } else {
#pragma unroll
          for (int c = 0; c < CHUNKS; c++) expand<true>(v[c], sf, most, CHUNKS * half + c, to, dst_x, 8 / CHUNKS * c);
        }
        fence_async_smem();
        __syncwarp();
        if (lane == 0) {
          mbar_arrive(bar + B_FULL + 8 * (bi % B16));
          if (half) mbar_arrive(bar + EMPTY + 8 * stage);
        }
      }
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
    }
    for (u32 c = 0; c < 2 * C_SLOTS; c++) {  // C passes by
      mbar_wait(bar + FULL + 8 * stage, parity);
      __syncwarp();
      if (lane == 0) mbar_arrive(bar + EMPTY + 8 * stage);
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
    }
    __syncwarp();
    if (lane == 0) mbar_arrive(bar + H_EMPTY + 8 * (it & 1));
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
    const u32 hdr = sm + AT_HDR + (it & 1) * HDR;
    mbar_wait(bar + H_FULL + 8 * (it & 1), (it >> 1) & 1);
    const i32 wide = (i32)uniform(lds_u32(hdr + HDR_WORDS + 20));
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
    Header h;
    h.mb = (i32)lds_u32(hdr + HDR_WORDS);
    h.nb = (i32)lds_u32(hdr + HDR_WORDS + 4);
    h.expert = (i32)lds_u32(hdr + HDR_WORDS + 8);
    h.first = (i32)lds_u32(hdr + HDR_WORDS + 12);
    h.count = (i32)lds_u32(hdr + HDR_WORDS + 16);
    h.wide = wide;
    h.top = (i32)lds_u32(hdr + HDR_WORDS + 28);
    h.alpha = lds_f32(hdr + HDR_WORDS + 24);
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
      // 2^(row + column - 254 - 2 WIDE) in two halves: neither leaves fp32 when the product does not.
#pragma unroll
      for (int j = 0; j < 16; j++)
#pragma unroll
        for (int x = 0; x < 2; x++) {
          const i32 col = (i32)lds_u8(hdr + HDR_COL + 32 * (lane & 3) + 2 * j + x);
#pragma unroll
          for (int r = 0; r < 4; r++) {
            const i32 e = max2(most[r] + col - 254 - 2 * WIDE, -250), half = e >> 1;
            const bool bad = most[r] == 255 || col == 255;
            const float f1 = bad ? f32_bits(0x7fc00000u) : f32_bits((u32)(half + 127) << 23), f2 = f32_bits((u32)(e - half + 127) << 23);
            float& d = r < 2 ? d0[4 * j + 2 * (r & 1) + x] : d1[4 * j + 2 * (r & 1) + x];
            d = d * f1 * f2;
          }
        }
    } else if (lane == 0) {
      mbar_arrive(bar + B_EMPTY + 8 * ((place.b - 1) % B16));
    }
    epilogue(d0, d1, p.out, h, o, c, w, hdr, most, l, place);
    __syncwarp();
    if (lane == 0) mbar_arrive(bar + H_EMPTY + 8 * (it & 1));
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
    for (u32 s = 0; s < STAGES; s++) {
      mbar_init(bar + FULL + 8 * s, 1);
      mbar_init(bar + EMPTY + 8 * s, MATH_WARPS + DEQUANT_WARPS);
    }
    for (u32 s = 0; s < B16; s++) {
      mbar_init(bar + B_FULL + 8 * s, DEQUANT_WARPS);
      mbar_init(bar + B_EMPTY + 8 * s, MATH_WARPS);
    }
    for (u32 s = 0; s < 2; s++) {
      mbar_init(bar + H_FULL + 8 * s, 1);
      mbar_init(bar + H_EMPTY + 8 * s, MATH_WARPS + DEQUANT_WARPS);
    }
    mbar_init_fence();
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
    if constexpr (N_MAJOR)
      dequant_n_major(p, sm, total, threadIdx.x & 127);
    else
      dequant_role(p, sm, total, threadIdx.x & 127);
  } else {
    regs_inc<MATH_REGS>();
    math_role(p, sm, total, role - 2, threadIdx.x & 127);
  }
}
