// dbias_cvt: dst[i] = sum over b < batch, ascending, of src[b * batch_stride + i], rounded once to the output type.
//
// batch 1 converts the fp32 dBias accumulator to the io dtype. batch B is the second pass of a deterministic dBias whose bias is broadcast
// over the batch: main accumulates one fp32 plane per batch (dbias_sb = the plane), and this sum has a fixed order where atomics would not.
//
// grid  (min(ceil(count / 1024), 65535 * 8), 1, 1), block 256, no shared memory.
//
// defines
//   FG_BF16     1: bf16 io, 0: f16 io
//   FG_OUT_F32  1: dst is fp32 (the second pass of an fp32 dBias), 0: dst is io
//
// parameters, in order
//   0 src fp32, 1 dst io or fp32, both compact and only element aligned; 2 count i64; 3 batch_stride i64 (elements); 4 batch i32
// writes fully: dst [count]. src and dst do not overlap.
#ifndef FG_BF16
#error "FG_BF16"
#endif
#ifndef FG_OUT_F32
#error "FG_OUT_F32"
#endif
#include "common/ptx.cuh"

namespace fg {

FG_DEV void put1(void* dst, i64 i, float x) {
#if FG_OUT_F32
  ((float*)dst)[i] = x;
#else
  ((u16*)dst)[i] = (u16)pack2<FG_BF16>(x, 0.f);
#endif
}
FG_DEV void put4(void* dst, i64 v, const float (&x)[4]) {
#if FG_OUT_F32
  stg_v4((float*)dst + 4 * v, __float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
#else
  ((u64*)dst)[v] = (u64)pack2<FG_BF16>(x[2], x[3]) << 32 | pack2<FG_BF16>(x[0], x[1]);
#endif
}

}  // namespace fg

extern "C" __global__ void __launch_bounds__(256, 4) fg_sdpa_bwd_dbias_cvt(const float* src, void* dst, i64 count, i64 batch_stride, i32 batch) {
  using namespace fg;
  pdl_wait();
  pdl_launch();
  const i64 me = (i64)blockIdx.x * 256 + threadIdx.x, all = (i64)gridDim.x * 256;
  constexpr u64 DST_ALIGN = FG_OUT_F32 ? 16 : 8;
  const bool aligned = ((u64)src & 15) == 0 && ((u64)dst & (DST_ALIGN - 1)) == 0 && (batch == 1 || (batch_stride & 3) == 0);
  const i64 vecs = aligned ? count / 4 : 0;
#pragma unroll 1
  for (i64 v = me; v < vecs; v += all) {
    float a[4];
    ldg_v4f(src + 4 * v, a[0], a[1], a[2], a[3]);
    for (i32 b = 1; b < batch; ++b) {
      float x[4];
      ldg_v4f(src + b * batch_stride + 4 * v, x[0], x[1], x[2], x[3]);
#pragma unroll
      for (i32 i = 0; i < 4; ++i) a[i] += x[i];
    }
    put4(dst, v, a);
  }
#pragma unroll 1
  for (i64 i = 4 * vecs + me; i < count; i += all) {
    float a = src[i];
    for (i32 b = 1; b < batch; ++b) a += src[b * batch_stride + i];
    put1(dst, i, a);
  }
}
