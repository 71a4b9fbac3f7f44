// PTX primitives shared by every kernel: integer names, mbarriers, TMA, ldmatrix/stmatrix, mma.sync, named barriers, PDL.
// NVRTC is given no toolkit headers, so this file is the whole vocabulary. Nothing here knows about attention.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

// The driver's 128-byte tensor map. Passed by value as `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
  u64 words[16];
};

#define FG_DEV __device__ __forceinline__

namespace fg {

template <class T> FG_DEV T min2(T a, T b) { return a < b ? a : b; }
template <class T> FG_DEV T max2(T a, T b) { return a > b ? a : b; }
FG_DEV constexpr i32 ceil_div(i32 a, i32 b) { return (a + b - 1) / b; }
FG_DEV constexpr i32 round_up(i32 a, i32 b) { return (a + b - 1) / b * b; }

FG_DEV u32 smem_addr(const void* p) { return (u32)__cvta_generic_to_shared(p); }
FG_DEV u32 lane_id() {
  u32 l;
  asm("mov.u32 %0, %%laneid;" : "=r"(l));
  return l;
}
// A warp index that ptxas knows to be warp-uniform: role branches on it compile to uniform jumps, which setmaxnreg needs.
FG_DEV u32 uniform(u32 x) { return __shfl_sync(0xffffffffu, x, 0); }
// Hides a value's origin from the optimiser (stops hoisting what is computed from it out of a loop).
FG_DEV void opaque(u32& x) { asm volatile("" : "+r"(x)); }
// A conditional exit that is never taken (x >= 0). ptxas schedules within basic blocks only, so this is a fence for its scheduler:
// nothing (ldmatrix above all) moves up across it. bar.warp.sync was tried first and is removed when the warp is known to be converged.
FG_DEV void sched_fence(i32 x) { asm volatile("{\n\t.reg .pred P;\n\tsetp.lt.s32 P, %0, 0;\n\t@P exit;\n\t}" ::"r"(x) : "memory"); }
FG_DEV float f32_bits(u32 x) { return __uint_as_float(x); }

// ---- programmatic dependent launch ------------------------------------------------------------------------------------
// Chain rule: every kernel executes pdl_wait() before pdl_launch(). A kernel that has started therefore knows that
// everything before its direct predecessor is complete and flushed, so it may read the *inputs* of the call before its own wait.
FG_DEV void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
FG_DEV void pdl_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---- named barriers, register reallocation ----------------------------------------------------------------------------
template <int ID, int N> FG_DEV void bar_sync() { asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(N) : "memory"); }
template <int ID, int N> FG_DEV void bar_arrive() { asm volatile("bar.arrive %0, %1;" ::"n"(ID), "n"(N) : "memory"); }
template <int R> FG_DEV void regs_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(R)); }
template <int R> FG_DEV void regs_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(R)); }

FG_DEV void fence_cta() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }

// ---- mbarriers --------------------------------------------------------------------------------------------------------
FG_DEV void mbar_init(u32 bar, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory"); }
FG_DEV void mbar_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
FG_DEV void mbar_arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
FG_DEV void mbar_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
// The retry loop stays inside one asm block: as a C++ loop in the math role it cost hundreds of spilled bytes.
FG_DEV void mbar_wait(u32 bar, u32 parity) {
  asm volatile(
      "{\n\t.reg .pred P;\n"
      "W_%=:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1;\n\t"
      "@P bra D_%=;\n\t"
      "bra W_%=;\n"
      "D_%=:\n\t}" ::"r"(bar),
      "r"(parity)
      : "memory");
}

// ---- TMA --------------------------------------------------------------------------------------------------------------
FG_DEV void tma_prefetch_map(const TensorMap* m) { asm volatile("prefetch.tensormap [%0];" ::"l"(m) : "memory"); }
// Destination .shared::cta, not .shared::cluster: on sm_120a the cluster form compiles to a system call for foreign CTAs, and any
// call in the kernel makes ptxas ignore setmaxnreg (C7506).
FG_DEV void tma_load_4d(u32 dst, const TensorMap* m, u32 bar, i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(dst),
               "l"(m), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}
FG_DEV void tma_load_3d(u32 dst, const TensorMap* m, u32 bar, i32 c0, i32 c1, i32 c2) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst),
               "l"(m), "r"(bar), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}
FG_DEV void tma_store_3d(const TensorMap* m, u32 src, i32 c0, i32 c1, i32 c2) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(m), "r"(src), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}
FG_DEV void tma_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> FG_DEV void tma_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
template <int N> FG_DEV void tma_wait_all() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory"); }
// global[0..bytes) += shared[0..bytes), fp32; both 16-byte aligned, bytes a multiple of 16.
FG_DEV void bulk_add(float* dst, u32 src, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(dst), "r"(src), "r"(bytes) : "memory");
}
// Generic-proxy writes that a TMA engine touches next (a store from, or a refill of, the same bytes) need this from the writer.
FG_DEV void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
FG_DEV void fence_async_smem() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- shared memory ----------------------------------------------------------------------------------------------------
// No "memory" clobber on the matrix loads: all shared-memory traffic is volatile asm, which keeps program order among itself,
// and a clobber would pin every cached global scalar around each load.
FG_DEV void ldsm4(u32 a, u32& r0, u32& r1, u32& r2, u32& r3) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(a));
}
FG_DEV void ldsm4t(u32 a, u32& r0, u32& r1, u32& r2, u32& r3) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(a));
}
FG_DEV void stsm4(u32 a, u32 r0, u32 r1, u32 r2, u32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(a), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}
FG_DEV float lds_f32(u32 a) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(a));
  return v;
}
FG_DEV void sts_f32(u32 a, float v) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(a), "f"(v) : "memory"); }
FG_DEV void lds_f32x2(u32 a, float& x, float& y) { asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(a)); }
FG_DEV void sts_f32x2(u32 a, float x, float y) { asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(a), "f"(x), "f"(y) : "memory"); }
FG_DEV void lds_v4(u32 a, u32& x, u32& y, u32& z, u32& w) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(a));
}
FG_DEV void sts_v4(u32 a, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(a), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// ---- global memory ----------------------------------------------------------------------------------------------------
FG_DEV void stg_v4(void* p, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
FG_DEV void ldg_v4f(const float* p, float& x, float& y, float& z, float& w) {
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "l"(p));
}
FG_DEV float ldg_f32(const float* p) {
  float v;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(p));
  return v;
}
FG_DEV void red_v4(float* p, float x, float y, float z, float w) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
FG_DEV void red_f32(float* p, float x) { asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(p), "f"(x) : "memory"); }
FG_DEV i32 ld_acquire(const i32* p) {
  i32 v;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
FG_DEV void st_release(i32* p, i32 v) { asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }

// ---- arithmetic -------------------------------------------------------------------------------------------------------
FG_DEV float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 16-bit float traits: BF16 = 1 selects bf16, 0 selects f16. `lo` lands in the low half, as every fragment wants it.
template <int BF16> FG_DEV u32 pack2(float lo, float hi) {
  u32 r;
  if (BF16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
template <int BF16> FG_DEV float unpack1(u16 x) {
  if (BF16) return f32_bits((u32)x << 16);
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x));
  return f;
}

// D = A(16x16, row) * B(16x8, col) + C. Not volatile: a pure function of registers, so the scheduler may move it freely.
template <int BF16>
FG_DEV void mma_16816(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], float c0, float c1, float c2, float c3) {
  if (BF16)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c0), "f"(c1), "f"(c2), "f"(c3));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c0), "f"(c1), "f"(c2), "f"(c3));
}

}  // namespace fg
