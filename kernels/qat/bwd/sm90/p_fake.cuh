// What feeds dV in the NVFP4 backward on wgmma: P fake-quantised in blocks of 16 consecutive keys. dS keeps P itself (straight-through).
//
// Scores are transposed, so the 16 keys of a warp are one block of every query column: two values in each of the eight lanes that share a column.
// One decision a warp and tile, by its largest probability:
//   low      P <= 2.25 * 2^-9: the scale is the floor, and so far the grid is even: 2 instructions a value, packing included
//   floor    P <= 6 * 2^-9: the scale is the floor: 3 instructions, and packing
//   general  the blocks' maxima and scales; 6 instructions, packing, and a product a pair
// Where several apply they give the same bits. N(0,1) scores: 99.9 % of the tiles are low at 16k keys; at 4k 70 % are low and 99.4 % at most floor.
#pragma once
#include "common/nvfp4.cuh"
#include "sdpa/bwd/sm90/config.cuh"

namespace fg {

struct FakeP {
  static constexpr bool BLOCKWISE = false;    // one decision a tile
  static constexpr bool CHAIN_INPUTS = true;  // Q, K, V are the copies that `prep` has just written
  static constexpr int COLS = TQ / 4;         // columns of a lane
  static constexpr u32 ALL = 0xffffffffu;
  static_assert(BF16, "the copies and dO are bf16");

  i32 top;  // largest P so far, as the bits of a float: they compare as integers, and a NaN is the largest

  FG_DEV void put(const float (&s)[2 * COLS], u32 (&)[COLS], int j) {
    if (j == 0) top = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) top = max(top, __float_as_int(s[4 * j + e]));
  }
  FG_DEV void finish(const float (&s)[2 * COLS], u32 (&p)[COLS], u32 lane) {
    const i32 most = __reduce_max_sync(ALL, top);
    if (most <= __float_as_int(2.25f * FP4_FLOOR))
      low(s, p);
    else if (most <= __float_as_int(FP4_FLOOR_AMAX))
      floor(s, p);
    else
      general(s, p, lane);
  }

  // Multiples of 2^-10, ties to even: what an addition to 2^13 rounds to. The low half of the sum is the bf16 number 128 + n. Checked over every fp32
  // of the domain.
  static FG_DEV void low(const float (&s)[2 * COLS], u32 (&p)[COLS]) {
    const float base = __uint_as_float(0x46004300u);  // 2^13, with the bf16 number 128 in its low half
#pragma unroll
    for (int j = 0; j < COLS; j++) {
      const u32 n = __byte_perm(__float_as_uint(s[2 * j] + base), __float_as_uint(s[2 * j + 1] + base), 0x5410);
      asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(p[j]) : "r"(n), "r"(0x3a803a80u), "r"(0xbe00be00u));  // (128 + n) 2^-10 - 2^-3
    }
  }
  static FG_DEV void floor(const float (&s)[2 * COLS], u32 (&p)[COLS]) {
#pragma unroll
    for (int j = 0; j < COLS; j++) p[j] = pack2<1>(fp4_fake_floor(s[2 * j]), fp4_fake_floor(s[2 * j + 1]));
  }

  // 16 columns of a lane at a time. Lane 4g + t ends up with the maxima of columns 2g and 2g + 1, makes their scales and hands both on in one word.
  static FG_DEV void general(const float (&s)[2 * COLS], u32 (&p)[COLS], u32 lane) {
#pragma unroll
    for (int c = 0; c < COLS; c += 16) {
      float v[16];
#pragma unroll
      for (int i = 0; i < 16; i++) {
        const float* column = s + 2 * (c + i) - i % 2;  // its keys g and g + 8
        v[i] = fmaxf(column[0], column[2]);
      }
      halve<8>(v, lane, 16);
      halve<4>(v, lane, 8);
      halve<2>(v, lane, 4);
      Fp4Scale a, b;
      fp4_scales(v[0], v[1], a, b);
      const u32 both = pack2<1>(a.s, b.s);  // four significant bits, six in a product with a grid value: exact
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const u32 scales = __shfl_sync(ALL, both, 4 * i + (lane & 3));
        const Fp4Scale x = fp4_reciprocal(f32_bits(scales << 16)), y = fp4_reciprocal(f32_bits(scales & 0xffff0000u));
        const float* t = s + 2 * c + 4 * i;
        p[c + 2 * i] = scaled(grid(t[0], x), grid(t[1], y), scales);
        p[c + 2 * i + 1] = scaled(grid(t[2], x), grid(t[3], y), scales);
      }
    }
  }
  // Lanes `bit` apart: each keeps the maxima of one half of the columns. A conditional expression would become two branches with a shuffle in each, and
  // the warp would fall apart: the tile then took 2.5 times as long.
  template <int N> static FG_DEV void halve(float (&v)[16], u32 lane, u32 bit) {
#pragma unroll
    for (int i = 0; i < N; i++) {
      const float mine = choose(lane & bit, v[N + i], v[i]), other = choose(lane & bit, v[i], v[N + i]);
      v[i] = fmaxf(mine, __shfl_xor_sync(ALL, other, bit));
    }
  }
  static FG_DEV float choose(u32 which, float a, float b) {
    float r;
    asm("{.reg .pred q; setp.ne.u32 q, %1, 0; selp.f32 %0, %2, %3, q;}" : "=f"(r) : "r"(which), "f"(a), "f"(b));
    return r;
  }
  // fp4_fake without its last product. Values above 6 scales exist: the scale's rounding is coarse near the floor.
  static FG_DEV float grid(float x, const Fp4Scale& k) { return fp4_grid(fminf(fmaf(x, k.r, x * k.lo), 6.f), 1.f); }
  static FG_DEV u32 scaled(float a, float b, u32 scales) {
    u32 r;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(pack2<1>(a, b)), "r"(scales));
    return r;
  }
};

}  // namespace fg
#define FG_P_SINK fg::FakeP
