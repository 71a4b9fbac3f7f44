// expand: FP8 or packed FP4 values with their block scales -> bf16, row by row. The product of value and scale is exact in bf16 unless it leaves bf16's range.
//
// grid ceil(outers * rows / 8), block 256: a warp takes a row. Parameters: values, their scales (unused without), bf16 [outers][rows][k]; bytes between outers and rows of the
// values; elements between outers, rows and blocks of scales that do not lie in atoms; extents. k is a multiple of 8, rows of values begin at 8 (FP8) or 4 (FP4) bytes.
#include "common/ptx.cuh"

#if !defined(FG_IN) || !defined(FG_SF) || !defined(FG_SF_VEC) || !defined(FG_ATOMS)
#error "expand.cu needs FG_IN, FG_SF, FG_SF_VEC, FG_ATOMS"
#endif

namespace fg {

// Values: 0 E4M3, 1 E5M2, 2 E2M1 packed (low nibble: even k). Scales: 0 none, 1 E8M0, 2 E4M3.
constexpr int IN = FG_IN, IN_E2M1 = 2, SF = FG_SF, SF_VEC = FG_SF_VEC;
constexpr bool ATOMS = FG_ATOMS;

struct alignas(8) Pair {
  u32 x, y;
};

FG_DEV u32 halves(u32 pair) {
  u32 r;
  if (IN == 1)
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(r) : "h"((u16)pair));
  else
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((u16)pair));
  return r;
}
// A scale as fp32.
FG_DEV float scale(u32 code) {
  if (SF == 1) return code == 255 ? f32_bits(0x7fc00000u) : code == 0 ? f32_bits(0x00400000u) : f32_bits(code << 23);
  u32 r;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((u16)code));
  return unpack1<0>((u16)r);
}
// Byte of row r's scale b in atoms of 128 rows by 4 blocks, `atoms` of them side by side.
FG_DEV i64 in_atoms(i32 r, i32 b, i32 atoms) { return ((i64)(r >> 7) * atoms + (b >> 2)) * 512 + (r & 31) * 16 + ((r >> 5) & 3) * 4 + (b & 3); }

// Eight values from consecutive k, unscaled.
FG_DEV void eight(const u8* p, float (&v)[8]) {
  if (IN == IN_E2M1) {
    const u32 w = *reinterpret_cast<const u32*>(p);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      // Exponent and mantissa at their places in f16: the value times 2^-14, subnormals included.
      const u32 c = (w >> (4 * i)) & 15;
      v[i] = unpack1<0>((u16)((c & 7) << 9 | (c & 8) << 12)) * 16384.f;
    }
  } else {
    const Pair w = *reinterpret_cast<const Pair*>(p);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const u32 h = halves((i < 2 ? w.x : w.y) >> (16 * (i & 1)) & 0xffff);
      v[2 * i] = unpack1<0>((u16)h);
      v[2 * i + 1] = unpack1<0>((u16)(h >> 16));
    }
  }
}

}  // namespace fg

extern "C" __global__ void __launch_bounds__(256)
    fg_moe_expand(const u8* values, const u8* scales, u8* out, i64 outer_bytes, i64 row_bytes, i64 sf_outer, i64 sf_row, i64 sf_block, i32 outers, i32 rows, i32 k) {
  using namespace fg;
  pdl_wait();
  pdl_launch();
  const i64 line = (i64)blockIdx.x * 8 + (threadIdx.x >> 5);
  if (line >= (i64)outers * rows) return;
  const i32 e = (i32)(line / rows), r = (i32)(line - (i64)e * rows), units = k / 8;
  const i32 atoms = ceil_div(ceil_div(k, SF_VEC), 4);
  const u8* src = values + e * outer_bytes + r * row_bytes;
  const u8* sf = SF ? scales + (ATOMS ? (i64)e * ceil_div(rows, 128) * atoms * 512 : e * sf_outer + r * sf_row) : nullptr;
  u8* dst = out + line * k * 2;
#pragma unroll 4
  for (i32 unit = threadIdx.x & 31; unit < units; unit += 32) {
    float v[8];
    eight(src + (i64)unit * (IN == IN_E2M1 ? 4 : 8), v);
    const i32 block = unit * 8 / SF_VEC;
    const float s = SF ? scale(sf[ATOMS ? in_atoms(r, block, atoms) : block * sf_block]) : 1.f;
    u32 o[4];
#pragma unroll
    for (int i = 0; i < 4; i++) o[i] = pack2<1>(v[2 * i] * s, v[2 * i + 1] * s);
    stg_v4(dst + (i64)unit * 16, o[0], o[1], o[2], o[3]);
  }
}
