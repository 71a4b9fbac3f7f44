// B with n contiguous (FP8): the dequantising warpgroup turns it while it expands it, into the same 16-bit ring as the k-major form.
//
// A raw stage holds 128 rows of k by 128 bytes of n. Warp w takes 16 k of each half stage (k = 64 half + 16 w ..), lane 4 x + t the columns 32 t + 4 x .. + 3: it loads
// their word of 16 rows and transposes 4 x 4 bytes by prmt. In step s a lane stores column s ^ (x & 1): eight neighbouring lanes then meet all eight 16-byte banks.
#pragma once
#include "grouped_gemm/sm90/expand.cuh"
#include "grouped_gemm/sm90/main_config.cuh"

namespace fg {

FG_DEV void dequant_n_major(const Params& p, u32 sm, i32 total, u32 thread) {
  const u32 bar = sm + AT_BAR, lane = thread & 31, w = thread >> 5, t = lane & 3, x = lane >> 2, odd = x & 1;
  const i32 steps = ceil_div(p.k, 128);
  const Tail tail = tail_of(p.k);
  const u32 sel_a = odd ? 0x7632 : 0x5410, sel_b = odd ? 0x5410 : 0x7632;
  // Column of step s and its row in the 16-bit tile (dequant_role's order).
  const u32 n0 = 32 * t + 4 * x, row0 = 16 * x + 2 * t;
  const u32 word = 8 * t + x, src = STAGE_B + w * 16 * 128 + (word & 3) * 4;
  u32 stage = 0, parity = 0, bi = 0, it = 0;
#pragma unroll 1
  for (i32 tile = blockIdx.x; tile < total; tile += gridDim.x, it++) {
    const u32 hdr = sm + AT_HDR + (it & 1) * HDR;
    mbar_wait(bar + H_FULL + 8 * (it & 1), (it >> 1) & 1);
    const u32 wide = lds_u32(hdr + HDR_WORDS + 20);
    const i32 top = (i32)lds_u32(hdr + HDR_WORDS + 28);
#pragma unroll 1
    for (i32 step = 0; step < steps; step++) {
      const u32 at = sm + stage * STAGE;
      mbar_wait(bar + FULL + 8 * stage, parity);
      u32 sf[4][SF_WORDS];
#pragma unroll
      for (u32 s = 0; s < 4; s++) {
        sf[s][0] = lds_u32(at + STAGE_SFB + (4 * x + (s ^ odd)) * 16 + t * 4) & (step + 1 == steps ? tail.word[0] : ~0u);
        if (!wide) sf[s][0] = exponent_fields(sf[s][0], top);
      }
#pragma unroll
      for (int half = 0; half < 2; half++, bi++) {
        u32 v[4][4];
#pragma unroll
        for (int q = 0; q < 4; q++) {
          u32 r[4];
#pragma unroll
          for (u32 k = 0; k < 4; k++) r[k] = lds_u32(at + src + (64 * half + 4 * q + k) * 128 + (((word >> 2) ^ ((4 * q + k) & 7)) << 4));
          const u32 ab = prmt(r[0], r[1], 0x5140), cd = prmt(r[2], r[3], 0x5140), ab2 = prmt(r[0], r[1], 0x7362), cd2 = prmt(r[2], r[3], 0x7362);
          v[0][q] = prmt(ab, cd, sel_a);
          v[1][q] = prmt(ab, cd, sel_b);
          v[2][q] = prmt(ab2, cd2, sel_a);
          v[3][q] = prmt(ab2, cd2, sel_b);
        }
        mbar_wait(bar + B_EMPTY + 8 * (bi % B16), ((bi / B16) & 1) ^ 1);
#pragma unroll
        for (u32 s = 0; s < 4; s++) {
          const u32 row = row0 + 8 * (s / 2) + ((s & 1) ^ odd), to = sm + AT_B16 + (bi % B16) * B16_BYTES + row * 128;
          if (!wide)
            expand<false>(v[s], sf[s], top, 4 * half + w, to, row & 7, 2 * w);
          else
            expand<true>(v[s], sf[s], (i32)lds_u8(hdr + HDR_COL + n0 + (s ^ odd)), 4 * half + w, to, row & 7, 2 * w);
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

}  // namespace fg
