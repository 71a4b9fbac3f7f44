// B with n contiguous (FP8): turned while it is expanded, into the same 16-bit ring as the k-major form.
//
// A raw stage holds 128 rows of k by 128 bytes of n. Warp w takes 16 k of each half stage (k = 64 half + 16 w ..), lane 4 x + t the columns 32 t + 4 x .. + 3: it loads
// their word of 16 rows and transposes 4 x 4 bytes by prmt. In step s a lane stores column s ^ (x & 1): eight neighbouring lanes then meet all eight 16-byte banks.
#pragma once
#include "grouped_gemm/sm90/expand.cuh"
#include "grouped_gemm/sm90/main_config.cuh"

namespace fg {

struct NMajor {
  using Scales = u32[4][SF_WORDS];  // by step s
  using Words = u32[4][4];
  u32 sm, w, odd, n0, row0, sel_a, sel_b, word, src, wide, hdr;
  i32 top;

  FG_DEV NMajor(u32 sm, u32 lane, u32 w) : sm(sm), w(w) {
    const u32 t = lane & 3, x = lane >> 2;
    odd = x & 1;
    sel_a = odd ? 0x7632 : 0x5410;
    sel_b = odd ? 0x5410 : 0x7632;
    // Column of step s and its row in the 16-bit tile (KMajor's order): n0 + .., row0 + ..
    n0 = 32 * t + 4 * x;
    row0 = 16 * x + 2 * t;
    word = 8 * t + x;
    src = STAGE_B + w * 16 * 128 + (word & 3) * 4;
  }
  FG_DEV void tile(u32 header, u32 wide_tile) {
    hdr = header;
    wide = wide_tile;
    top = (i32)lds_u32(hdr + HDR_WORDS + WORD_TOP);
  }
  FG_DEV void scales(Scales& sf, u32 at, const Tail& tail, bool last) {
    const u32 t = word >> 3, x = word & 7;
#pragma unroll
    for (u32 s = 0; s < 4; s++) {
      sf[s][0] = lds_u32(at + STAGE_SFB + (4 * x + (s ^ odd)) * 16 + t * 4) & (last ? tail.word[0] : ~0u);
      if (!wide) sf[s][0] = exponent_fields(sf[s][0], top);
    }
  }
  FG_DEV void load(Words& v, u32 at, int half) {
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
  }
  FG_DEV void store(const Words& v, const Scales& sf, u32 slot, int half) {
#pragma unroll
    for (u32 s = 0; s < 4; s++) {
      const u32 row = row0 + 8 * (s / 2) + ((s & 1) ^ odd), to = sm + AT_B16 + slot + row * 128;
      if (!wide)
        expand<false>(v[s], sf[s], top, 4 * half + w, to, row & 7, 2 * w);
      else
        expand<true>(v[s], sf[s], (i32)lds_u8(hdr + HDR_COL + n0 + (s ^ odd)), 4 * half + w, to, row & 7, 2 * w);
    }
  }
};

}  // namespace fg
