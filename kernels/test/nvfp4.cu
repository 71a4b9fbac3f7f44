// Kernels that put the NVFP4 conversions of common/nvfp4.cuh in front of a test: bits in, bits out.
//
//   fg_test_nvfp4_signed    every pair of neighbouring bf16 values under every positive E4M3 scale; grid (126, 128), block 256;
//                           out[126][32768] packed pairs
//   fg_test_nvfp4_positive  fp32 values at least 0 with a scale each
//   fg_test_nvfp4_floor     fp32 values of blocks whose scale is the floor
//   fg_test_nvfp4_scales    largest magnitudes to scales
//   fg_test_nvfp4_blocks    whole blocks of 16 bf16 values
// The last four: grid any, block any, one element (or block of 16) a thread, n in all. Every kernel waits for its predecessor.
#include "common/nvfp4.cuh"
using namespace fg;

static FG_DEV void after_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
static FG_DEV int index() { return blockIdx.x * blockDim.x + threadIdx.x; }

// Value of a positive E4M3 code, by the definition of the format.
static FG_DEV float e4m3(u32 code) {
  const u32 e = code >> 3, m = code & 7;
  return e ? f32_bits(((e + 120) << 23) | (m << 20)) : m * 0x1p-9f;
}

extern "C" __global__ void fg_test_nvfp4_signed(u32* out) {
  after_predecessor();
  const u32 code = blockIdx.x + 1, pair = blockIdx.y * 256 + threadIdx.x;
  const u32 x = 2 * pair | (2 * pair + 1) << 16;
  out[blockIdx.x * 32768 + pair] = fp4_fake_bf16x2(x, fp4_reciprocal(e4m3(code)));
}

extern "C" __global__ void fg_test_nvfp4_positive(const float* x, const float* s, float* out, int n) {
  after_predecessor();
  if (index() < n) out[index()] = fp4_fake(x[index()], fp4_reciprocal(s[index()]));
}

extern "C" __global__ void fg_test_nvfp4_floor(const float* x, float* out, int n) {
  after_predecessor();
  if (index() < n) out[index()] = fp4_fake_floor(x[index()]);
}

extern "C" __global__ void fg_test_nvfp4_scales(const float* amax, float* out, int n) {
  after_predecessor();
  if (index() < n) out[index()] = fp4_scale(amax[index()]).s;
}

extern "C" __global__ void fg_test_nvfp4_blocks(const u32* in, u32* out, int n) {
  after_predecessor();
  if (index() >= n) return;
  u32 x[8];
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] = in[index() * 8 + i];
  const Fp4Scale k = fp4_scale(bf16x2_amax(x));
#pragma unroll
  for (int i = 0; i < 8; i++) out[index() * 8 + i] = fp4_fake_bf16x2(x[i], k);
}
