// A stand-in for libcuda that runs nothing and writes down every call: the runtime's use of the driver can be tested without a GPU.
// Memory is host memory; two devices of compute capability 9.0. The trace goes to the file named by FAKE_CUDA_TRACE.
// FAKE_CUDA_FAIL=<call> makes that call fail with CUDA_ERROR_ILLEGAL_ADDRESS.
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int R;
typedef struct {
    unsigned grid[3], block[3], smem;
    void *stream, *attrs;
    unsigned count;
} Config;
typedef struct {
    unsigned id;
    char pad[4];
    union { char bytes[64]; int flag; unsigned dim[3]; } value;
} Attribute;

static __thread void *stack[64] = {0};
static __thread int depth = 0;

static R note(const char *call, const char *format, ...) {
    static FILE *f;
    if (!f) f = fopen(getenv("FAKE_CUDA_TRACE"), "a");
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (f) fprintf(f, "%s %s\n", call, text), fflush(f);
    const char *fail = getenv("FAKE_CUDA_FAIL");
    return fail && !strcmp(fail, call) ? 700 : 0;
}
#define NOTE(...) note(__func__, __VA_ARGS__)

R cuInit(unsigned f) { return NOTE("%u", f); }
R cuDriverGetVersion(int *v) { *v = 13000; return 0; }
R cuDeviceGetCount(int *n) { *n = 2; return 0; }
R cuDeviceGet(int *d, int ordinal) { *d = ordinal; return 0; }
R cuDeviceGetName(char *s, int n, int d) { snprintf(s, n, "Fake %d", d); return 0; }
R cuDeviceTotalMem_v2(size_t *n, int d) { *n = 1ull << 37; (void)d; return 0; }
R cuDeviceGetAttribute(int *v, int a, int d) {
    (void)d;
    *v = a == 75 ? 9 : a == 76 ? 0 : a == 16 ? 132 : a == 97 ? 232448 : a == 38 ? 60 << 20 : -1;
    return 0;
}
R cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)(intptr_t)(0x100 + d); return NOTE("%d", d); }
R cuDevicePrimaryCtxRelease_v2(int d) { return NOTE("%d", d); }
R cuCtxGetCurrent(void **c) { *c = depth ? stack[depth - 1] : 0; return 0; }
R cuCtxPushCurrent_v2(void *c) { stack[depth++] = c; return NOTE("%p", c); }
R cuCtxPopCurrent_v2(void **c) { *c = stack[--depth]; return NOTE("%p", *c); }
static void *now(void) { return depth ? stack[depth - 1] : 0; }

R cuMemAlloc_v2(uint64_t *p, size_t n) { *p = (uint64_t)aligned_alloc(256, (n + 255) / 256 * 256); return NOTE("%zu ctx %p", n, now()); }
R cuMemFree_v2(uint64_t p) { free((void *)p); return NOTE("ctx %p", now()); }
R cuMemGetInfo_v2(size_t *f, size_t *t) { *f = *t = 1ull << 37; return 0; }
R cuMemcpyHtoD_v2(uint64_t d, const void *s, size_t n) { memcpy((void *)d, s, n); return NOTE("%zu", n); }
R cuMemcpyDtoDAsync_v2(uint64_t d, uint64_t s, size_t n, void *st) { memcpy((void *)d, (void *)s, n); return NOTE("%zu %p", n, st); }
R cuMemcpyDtoH_v2(void *d, uint64_t s, size_t n) { memcpy(d, (void *)s, n); return NOTE("%zu", n); }
R cuMemsetD8Async(uint64_t d, unsigned char v, size_t n, void *s) { memset((void *)d, v, n); return NOTE("%zu stream %p", n, s); }

R cuStreamCreate(void **s, unsigned f) { static intptr_t next = 0x1000; *s = (void *)(next += 16); return NOTE("%u", f); }
R cuStreamDestroy_v2(void *s) { return NOTE("%p", s); }
R cuStreamSynchronize(void *s) { return NOTE("%p", s); }
R cuStreamWaitEvent(void *s, void *e, unsigned f) { (void)e; (void)f; return NOTE("%p", s); }
R cuStreamBeginCapture_v2(void *s, int mode) { return NOTE("%p mode %d", s, mode); }
R cuStreamEndCapture(void *s, void **g) { *g = (void *)0x200; return NOTE("%p", s); }
R cuThreadExchangeStreamCaptureMode(int *m) { static __thread int mode = 0; int old = mode; mode = *m; *m = old; return NOTE("%d", mode); }
R cuGraphInstantiateWithFlags(void **e, void *g, unsigned long long f) { (void)g; (void)f; *e = (void *)0x300; return NOTE("%s", ""); }
R cuGraphDestroy(void *g) { (void)g; return NOTE("%s", ""); }
R cuGraphExecDestroy(void *e) { (void)e; return NOTE("%s", ""); }
R cuGraphLaunch(void *e, void *s) { (void)e; return NOTE("%p", s); }
R cuEventCreate(void **e, unsigned f) { *e = (void *)0x400; return NOTE("%u", f); }
R cuEventDestroy_v2(void *e) { (void)e; return NOTE("%s", ""); }
R cuEventRecord(void *e, void *s) { (void)e; return NOTE("%p", s); }
R cuEventSynchronize(void *e) { (void)e; return NOTE("%s", ""); }
R cuEventElapsedTime(float *ms, void *a, void *b) { (void)a; (void)b; *ms = 1.5f; return 0; }
R cuEventElapsedTime_v2(float *ms, void *a, void *b) { return cuEventElapsedTime(ms, a, b); }

R cuModuleLoadData(void **m, const void *image) { *m = malloc(64); return NOTE("%.3s ctx %p", (const char *)image + 1, now()); }
R cuModuleUnload(void *m) { free(m); return NOTE("ctx %p", now()); }
R cuModuleGetFunction(void **f, void *m, const char *name) { snprintf(m, 64, "%s", name); *f = m; return NOTE("%s", name); }
R cuFuncSetAttribute(void *f, int a, int v) { return NOTE("%s %d %d", (char *)f, a, v); }
R cuFuncGetAttribute(int *v, int a, void *f) { *v = 0; return NOTE("%s %d", (char *)f, a); }

R cuTensorMapEncodeTiled(uint64_t *map, int type, unsigned rank, void *base, const uint64_t *dim, const uint64_t *stride,
                         const unsigned *box, const unsigned *step, int interleave, int swizzle, int l2, int oob) {
    memset(map, 0, 128);
    map[0] = (uint64_t)base;
    map[15] = rank;
    (void)step; (void)interleave; (void)l2; (void)oob;
    return NOTE("type %d rank %u dim %llu %llu stride %llu box %u %u swizzle %d aligned %d", type, rank, (unsigned long long)dim[0],
                (unsigned long long)dim[1], (unsigned long long)stride[0], box[0], box[1], swizzle, (int)((uint64_t)map % 64 == 0));
}

R cuLaunchKernelEx(const Config *c, void *f, void **params, void **extra) {
    char attrs[128] = "";
    for (unsigned i = 0; i < c->count; i++) {
        const Attribute *a = (const Attribute *)c->attrs + i;
        size_t at = strlen(attrs);
        if (a->id == 4) snprintf(attrs + at, sizeof attrs - at, " cluster %ux%ux%u", a->value.dim[0], a->value.dim[1], a->value.dim[2]);
        if (a->id == 6) snprintf(attrs + at, sizeof attrs - at, " pdl %d", a->value.flag);
    }
    char values[128] = "";
    if (!strcmp(f, "fg_test_store"))
        snprintf(values, sizeof values, " map %d out %d values %d %lld %g %p", *(uint64_t *)params[0] != 0, **(uint64_t **)params[1] == 7,
                 *(int *)params[2], *(long long *)params[3], *(float *)params[4], *(void **)params[5]);
    return NOTE("%s grid %ux%ux%u block %u smem %u stream %p ctx %p extra %d%s%s", (char *)f, c->grid[0], c->grid[1], c->grid[2], c->block[0],
                c->smem, c->stream, now(), extra != 0, attrs, values);
}

R cuGetErrorName(R e, const char **s) { *s = e == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_FAKE"; return 0; }
R cuGetErrorString(R e, const char **s) { (void)e; *s = "an illegal memory access was encountered"; return 0; }
