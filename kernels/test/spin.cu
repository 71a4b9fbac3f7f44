// Kernels of the tests and benchmarks: they compute nothing.
//
//   fg_test_spin   one block keeps its SM busy for `ns` nanoseconds (a disturbing stream, a slow predecessor)
//   fg_test_fault  writes to an address that is not mapped (what an error after an illegal access looks like)
//   fg_test_empty  returns at once (the cost of a launch)
//   fg_test_store  stores its parameters
//
// grid any, block any. Every kernel waits for its predecessor, so that the chain rule of programmatic launches holds here too.

typedef unsigned long long u64;

__device__ __forceinline__ void after_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ u64 now_ns() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

extern "C" __global__ void fg_test_spin(u64 ns) {
    after_predecessor();
    const u64 start = now_ns();
    while (now_ns() - start < ns) __nanosleep(1000);
}

extern "C" __global__ void fg_test_fault(u64 address) {
    after_predecessor();
    *reinterpret_cast<volatile int*>(address) = 1;
}

extern "C" __global__ void fg_test_empty() { after_predecessor(); }

// Stores what it was given, one parameter of each kind: whether the host passes what the kernel reads.
struct __attribute__((aligned(64))) TestMap {
    u64 words[16];
};

extern "C" __global__ void fg_test_store(const __grid_constant__ TestMap map, u64* out, int a, long long b, float c, const void* null) {
    after_predecessor();
    if (threadIdx.x < 16) out[threadIdx.x] = map.words[threadIdx.x];
    if (threadIdx.x == 16) out[16] = static_cast<u64>(static_cast<long long>(a));
    if (threadIdx.x == 17) out[17] = static_cast<u64>(b);
    if (threadIdx.x == 18) out[18] = __float_as_uint(c);
    if (threadIdx.x == 19) out[19] = reinterpret_cast<u64>(null);
}
