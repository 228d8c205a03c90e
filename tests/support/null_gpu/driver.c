/* Functions of the CUDA driver with an effect; all others are in names.S and return CUDA_SUCCESS. */
#define _GNU_SOURCE
#include "nullgpu.h"
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int give_pinned(void **p, size_t n);
int pin(void *p, size_t n);
long long the_time(void);
#define OK CUDA_SUCCESS
#define BAD CUDA_ERROR_INVALID_VALUE
#define P(x) ((void *)(uintptr_t)(x))

/* --- devices */
CUresult cuInit(unsigned flags) { HIT(); return flags ? BAD : device_count ? OK : CUDA_ERROR_NO_DEVICE; }
CUresult cuDriverGetVersion(int *version) { HIT(); *version = 12080; return OK; }
CUresult cuDeviceGetCount(int *count) { HIT(); *count = device_count; return OK; }
CUresult cuDeviceGet(CUdevice *d, int ordinal) { HIT(); if (ordinal >= device_count) return CUDA_ERROR_INVALID_DEVICE; *d = ordinal; return OK; }
CUresult cuDeviceGetName(char *name, int n, CUdevice d) { (void)d; HIT(); snprintf(name, (size_t)n, "%s", device_name); return OK; }
CUresult cuDeviceGetUuid(CUuuid *u, CUdevice d) { HIT(); memset(u, 0, sizeof *u); memcpy(u->bytes, "nullgpu", 7); u->bytes[15] = (char)d; return OK; }
CUresult cuDeviceGetUuid_v2(CUuuid *u, CUdevice d) { return cuDeviceGetUuid(u, d); }
CUresult cuDeviceGetPCIBusId(char *s, int n, CUdevice d) { HIT(); snprintf(s, (size_t)n, "0000:%02X:00.0", d + 1); return OK; }
CUresult cuDeviceGetByPCIBusId(CUdevice *d, const char *s) { HIT(); unsigned bus = 1; sscanf(s, "%*x:%x", &bus); *d = (int)bus - 1; return OK; }
CUresult cuDeviceTotalMem(size_t *n, CUdevice d) { (void)d; HIT(); *n = device_memory; return OK; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute a, CUdevice d) { HIT(); *value = attribute((int)a, &devices[d]); return OK; }
CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice d) { (void)d; HIT(); *major = 8; *minor = 6; return OK; }
CUresult cuDeviceCanAccessPeer(int *can, CUdevice a, CUdevice b) { HIT(); *can = a != b && !getenv("NULLGPU_NO_PEER"); return OK; }
CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute a, CUdevice x, CUdevice y) { (void)x; (void)y; HIT(); *value = a != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK; return OK; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { HIT(); *c = (CUcontext)&devices[d]; return OK; }
CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *active) { (void)d; HIT(); *flags = 0; *active = 1; return OK; }
CUresult cuCtxCreate(CUcontext *c, unsigned flags, CUdevice d) { (void)flags; HIT(); *c = (CUcontext)&devices[d]; current = &devices[d]; return OK; }
static _Thread_local device *pushed[16];
static _Thread_local int depth;
CUresult cuCtxSetCurrent(CUcontext c) { HIT(); current = (device *)c; return OK; }
CUresult cuCtxGetCurrent(CUcontext *c) { HIT(); *c = (CUcontext)current; return OK; }
CUresult cuCtxPushCurrent(CUcontext c) { HIT(); if (depth < 16) pushed[depth++] = current; current = (device *)c; return OK; }
CUresult cuCtxPopCurrent(CUcontext *c) { HIT(); if (c) *c = (CUcontext)current; current = depth ? pushed[--depth] : NULL; return OK; }
CUresult cuCtxGetDevice(CUdevice *d) { HIT(); if (!current) return CUDA_ERROR_INVALID_CONTEXT; *d = current->ordinal; return OK; }
CUresult cuCtxGetId(CUcontext c, unsigned long long *id) { HIT(); *id = c ? (unsigned long long)((device *)c)->ordinal + 1 : 1; return OK; }
CUresult cuCtxGetApiVersion(CUcontext c, unsigned *v) { (void)c; HIT(); *v = 12080; return OK; }
CUresult cuCtxGetFlags(unsigned *f) { HIT(); *f = 0; return OK; }
CUresult cuCtxGetLimit(size_t *n, CUlimit l) { (void)l; HIT(); *n = 1 << 20; return OK; }
CUresult cuCtxGetSharedMemConfig(CUsharedconfig *c) { HIT(); *c = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE; return OK; }
CUresult cuCtxGetStreamPriorityRange(int *least, int *most) { HIT(); if (least) *least = 0; if (most) *most = -5; return OK; }
static stream *all_streams[65536];
static atomic_int stream_count;
CUresult cuCtxSynchronize(void) {
    HIT();
    device *d = current ? current : &devices[0];
    wait_for(d->default_stream);
    for (int i = 0; i < stream_count; ++i) if (all_streams[i] && all_streams[i]->d == d) wait_for(all_streams[i]);
    return (CUresult)state();
}

/* --- memory */
CUresult cuMemGetInfo(size_t *left, size_t *total) { HIT(); device *d = current ? current : &devices[0]; *total = device_memory; *left = device_memory - d->used; return OK; }
CUresult cuMemAlloc(CUdeviceptr *p, size_t n) { HIT_AS("cuMemAlloc", n, NULL); return (CUresult)give_memory((void **)p, n); }
CUresult cuMemAllocManaged(CUdeviceptr *p, size_t n, unsigned f) { (void)f; HIT_AS("cuMemAllocManaged", n, NULL); return (CUresult)give_memory((void **)p, n); }
CUresult cuMemFree(CUdeviceptr p) { HIT(); return (CUresult)take_memory(P(p)); }
CUresult cuMemAllocAsync(CUdeviceptr *p, size_t n, CUstream s) { HIT_AS("cuMemAllocAsync", n, s); return (CUresult)give_memory((void **)p, n); }
CUresult cuMemFreeAsync(CUdeviceptr p, CUstream s) { (void)s; HIT(); return (CUresult)take_memory(P(p)); }
CUresult cuMemHostAlloc(void **p, size_t n, unsigned f) { (void)f; HIT_AS("cuMemHostAlloc", n, NULL); return (CUresult)give_pinned(p, n); }
CUresult cuMemAllocHost(void **p, size_t n) { HIT_AS("cuMemAllocHost", n, NULL); return (CUresult)give_pinned(p, n); }
CUresult cuMemHostRegister(void *p, size_t n, unsigned f) { (void)f; HIT_AS("cuMemHostRegister", n, NULL); return (CUresult)pin(p, n); }
CUresult cuMemHostGetDevicePointer(CUdeviceptr *d, void *p, unsigned f) { (void)f; HIT(); *d = (CUdeviceptr)p; return OK; }
CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *n, CUdeviceptr p) { HIT(); if (base) *base = p; if (n) *n = 1; return OK; }
static CUresult about(void *value, CUpointer_attribute a, const void *p) {
    device *d = device_of(p);
    if (!d && !pinned(p)) return BAD;
    switch (a) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(void **)value = d ? d : &devices[0]; return OK;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)value = d ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST; return OK;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: case CU_POINTER_ATTRIBUTE_HOST_POINTER: *(const void **)value = p; return OK;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)value = 0; return OK;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = d ? d->ordinal : 0; return OK;
    default: return BAD;
    }
}
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute a, CUdeviceptr p) { HIT(); return about(value, a, P(p)); }
CUresult cuPointerGetAttributes(unsigned n, CUpointer_attribute *a, void **values, CUdeviceptr p) { HIT(); for (unsigned i = 0; i < n; ++i) about(values[i], a[i], P(p)); return OK; }

/* --- copies */
#define COPY(to, from, n, s, async) do { HIT(); if (state()) return (CUresult)state(); return (CUresult)copy(P(to), P(from), n, s, async); } while (0)
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t n) { COPY(to, from, n, NULL, false); }
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t n) { COPY(to, from, n, NULL, false); }
CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t n) { COPY(to, from, n, NULL, false); }
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t n) { COPY(to, from, n, NULL, false); }
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t n, CUstream s) { COPY(to, from, n, s, true); }
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t n, CUstream s) { COPY(to, from, n, s, true); }
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) { COPY(to, from, n, s, true); }
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) { COPY(to, from, n, s, true); }
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext a, CUdeviceptr from, CUcontext b, size_t n) { (void)a; (void)b; COPY(to, from, n, NULL, false); }
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext a, CUdeviceptr from, CUcontext b, size_t n, CUstream s) { (void)a; (void)b; COPY(to, from, n, s, true); }
#define SET(p, v, width, n, s, async) do { HIT(); return (CUresult)set(P(p), v, width, n, s, async); } while (0)
CUresult cuMemsetD8(CUdeviceptr p, unsigned char v, size_t n) { SET(p, v, 1, n, NULL, false); }
CUresult cuMemsetD16(CUdeviceptr p, unsigned short v, size_t n) { SET(p, v, 2, n, NULL, false); }
CUresult cuMemsetD32(CUdeviceptr p, unsigned v, size_t n) { SET(p, v, 4, n, NULL, false); }
CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, CUstream s) { SET(p, v, 1, n, s, true); }
CUresult cuMemsetD16Async(CUdeviceptr p, unsigned short v, size_t n, CUstream s) { SET(p, v, 2, n, s, true); }
CUresult cuMemsetD32Async(CUdeviceptr p, unsigned v, size_t n, CUstream s) { SET(p, v, 4, n, s, true); }

/* --- streams and events */
CUresult cuStreamCreateWithPriority(CUstream *s, unsigned f, int priority) {
    (void)f; HIT();
    stream *x = calloc(1, sizeof *x);
    x->d = current ? current : &devices[0];
    x->priority = priority;
    int i = atomic_fetch_add(&stream_count, 1);
    if (i < 65536) all_streams[i] = x; else atomic_store(&stream_count, 65536);
    *s = (CUstream)x;
    return OK;
}
CUresult cuStreamCreate(CUstream *s, unsigned f) { return cuStreamCreateWithPriority(s, f, 0); }
CUresult cuStreamDestroy(CUstream s) { (void)s; HIT(); return OK; }
CUresult cuStreamSynchronize(CUstream s) { HIT_AS("cuStreamSynchronize", 0, s); wait_for(of(s)); return (CUresult)state(); }
CUresult cuStreamQuery(CUstream s) { HIT(); stream *x = of(s); return the_time() >= x->busy && x->host_done == x->host_enqueued ? OK : CUDA_ERROR_NOT_READY; }
CUresult cuStreamGetPriority(CUstream s, int *p) { HIT(); *p = of(s)->priority; return OK; }
CUresult cuStreamGetCtx(CUstream s, CUcontext *c) { HIT(); *c = (CUcontext)of(s)->d; return OK; }
CUresult cuStreamGetFlags(CUstream s, unsigned *f) { (void)s; HIT(); *f = 1; return OK; }
CUresult cuStreamGetId(CUstream s, unsigned long long *id) { HIT(); *id = (unsigned long long)(uintptr_t)of(s); return OK; }
CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *status) { (void)s; HIT(); *status = CU_STREAM_CAPTURE_STATUS_NONE; return OK; }
CUresult cuStreamGetCaptureInfo(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *g, const CUgraphNode **deps, size_t *n) { (void)s; (void)g; (void)deps; HIT(); *status = CU_STREAM_CAPTURE_STATUS_NONE; if (id) *id = 0; if (n) *n = 0; return OK; }
CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned f) {
    (void)f; HIT();
    stream *x = of(s);
    long long before = x->busy, at = ((event *)e)->at;
    while (before < at && !atomic_compare_exchange_weak(&x->busy, &before, at)) {}
    return OK;
}
CUresult cuStreamAddCallback(CUstream s, CUstreamCallback f, void *x, unsigned flags) {
    (void)flags; HIT();
    void **three = malloc(3 * sizeof *three);
    three[0] = (void *)f; three[1] = s; three[2] = x;
    void call(void *p) { void **t = p; ((CUstreamCallback)t[0])(t[1], OK, t[2]); free(t); }
    return (CUresult)call_later(s, call, three);
}
CUresult cuLaunchHostFunc(CUstream s, CUhostFn f, void *x) { HIT_AS("cuLaunchHostFunc", 0, s); return (CUresult)call_later(s, f, x); }
CUresult cuEventCreate(CUevent *e, unsigned f) { (void)f; HIT(); *e = calloc(1, sizeof(event)); return OK; }
CUresult cuEventDestroy(CUevent e) { HIT(); free(e); return OK; }
CUresult cuEventRecord(CUevent e, CUstream s) { HIT_AS("cuEventRecord", 0, s); stream *x = of(s); *(event *)e = (event){x->busy, x->host_enqueued, x, true}; return OK; }
CUresult cuEventQuery(CUevent handle) { HIT(); event *e = (event *)handle; if (state()) return (CUresult)state(); return !e->recorded || (the_time() >= e->at && e->s->host_done >= e->host) ? OK : CUDA_ERROR_NOT_READY; }
CUresult cuEventSynchronize(CUevent handle) { HIT(); event *e = (event *)handle; if (e->recorded) wait_until(e->at); return OK; }
CUresult cuEventElapsedTime(float *ms, CUevent a, CUevent b) { HIT(); double d = (double)(((event *)b)->at - ((event *)a)->at) / 1e6; *ms = d > 0.001 ? (float)d : 0.001f; return OK; }
CUresult cuEventElapsedTime_v2(float *ms, CUevent a, CUevent b) { return cuEventElapsedTime(ms, a, b); }

/* --- modules and kernels */
kernel *named_kernel(const char *name);
CUresult cuModuleLoadDataEx(CUmodule *m, const void *data, unsigned n, CUjit_option *o, void **v) { (void)data; (void)n; (void)o; (void)v; HIT(); *m = fresh(); return OK; }
CUresult cuModuleLoadData(CUmodule *m, const void *data) { (void)data; HIT(); *m = fresh(); return OK; }
CUresult cuModuleLoadFatBinary(CUmodule *m, const void *data) { (void)data; HIT(); *m = fresh(); return OK; }
CUresult cuModuleLoad(CUmodule *m, const char *path) { (void)path; HIT(); *m = fresh(); return OK; }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) { (void)m; HIT(); *f = (CUfunction)named_kernel(name); return OK; }
CUresult cuModuleGetGlobal(CUdeviceptr *p, size_t *n, CUmodule m, const char *name) {
    (void)m; (void)name; HIT();
    size_t size = 1 << 24;  /* XLA refuses a constant whose symbol is smaller, e.g. the mask of 1024 tokens */
    if (n) *n = size;
    return p ? (CUresult)give_memory((void **)p, size) : OK;
}
CUresult cuLibraryLoadData(CUlibrary *l, const void *code, CUjit_option *a, void **b, unsigned c, CUlibraryOption *d, void **e, unsigned f) { (void)code; (void)a; (void)b; (void)c; (void)d; (void)e; (void)f; HIT(); *l = fresh(); return OK; }
CUresult cuLibraryGetKernel(CUkernel *k, CUlibrary l, const char *name) { (void)l; HIT(); *k = (CUkernel)named_kernel(name); return OK; }
CUresult cuLibraryGetModule(CUmodule *m, CUlibrary l) { (void)l; HIT(); *m = fresh(); return OK; }
CUresult cuKernelGetFunction(CUfunction *f, CUkernel k) { HIT(); *f = (CUfunction)k; return OK; }
CUresult cuFuncGetName(const char **name, CUfunction f) { HIT(); *name = ((kernel *)f)->name; return OK; }
CUresult cuFuncGetModule(CUmodule *m, CUfunction f) { (void)f; HIT(); *m = fresh(); return OK; }
CUresult cuFuncGetAttribute(int *v, CUfunction_attribute a, CUfunction f) {
    (void)f; HIT();
    switch (a) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *v = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *v = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *v = 86; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *v = 49152; break;
    default: *v = 0;
    }
    return OK;
}
CUresult cuLaunchKernel(CUfunction f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned shared, CUstream s, void **p, void **x) {
    (void)a; (void)b; (void)c; (void)d; (void)e; (void)g; (void)shared; (void)p; (void)x;
    HIT_AS("launch", 0, s);
    work(s, "driver", (kernel *)f);
    return (CUresult)state();
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **p, void **x) { (void)p; (void)x; HIT_AS("launch", 0, config->hStream); work(config->hStream, "driver", (kernel *)f); return (CUresult)state(); }
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned shared, CUstream s, void **p) { return cuLaunchKernel(f, a, b, c, d, e, g, shared, s, p, NULL); }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, CUfunction f, int block, size_t shared) { (void)f; (void)shared; HIT(); *n = block > 0 && 1536 / block > 0 ? 1536 / block : 1; return OK; }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, CUfunction f, int block, size_t shared, unsigned flags) { (void)flags; return cuOccupancyMaxActiveBlocksPerMultiprocessor(n, f, block, shared); }
CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction f, CUoccupancyB2DSize g, size_t shared, int limit) { (void)f; (void)g; (void)shared; (void)limit; HIT(); *grid = 48; *block = 1024; return OK; }

/* --- graphs: a launch takes the time of one kernel */
CUresult cuGraphCreate(CUgraph *g, unsigned f) { (void)f; HIT(); *g = fresh(); return OK; }
CUresult cuGraphInstantiateWithFlags(CUgraphExec *e, CUgraph g, unsigned long long f) { (void)g; (void)f; HIT(); *e = fresh(); return OK; }
CUresult cuGraphGetNodes(CUgraph g, CUgraphNode *nodes, size_t *n) { (void)g; HIT(); if (nodes && *n) nodes[0] = fresh(); *n = 1; return OK; }
CUresult cuGraphGetRootNodes(CUgraph g, CUgraphNode *nodes, size_t *n) { return cuGraphGetNodes(g, nodes, n); }
CUresult cuStreamEndCapture(CUstream s, CUgraph *g) { (void)s; HIT(); *g = fresh(); return OK; }
CUresult cuGraphExecUpdate(CUgraphExec e, CUgraph g, CUgraphExecUpdateResultInfo *info) { (void)e; (void)g; HIT(); info->result = CU_GRAPH_EXEC_UPDATE_SUCCESS; return OK; }
CUresult cuGraphNodeGetType(CUgraphNode n, CUgraphNodeType *t) { (void)n; HIT(); *t = CU_GRAPH_NODE_TYPE_KERNEL; return OK; }
CUresult cuGraphLaunch(CUgraphExec e, CUstream s) { (void)e; HIT(); work(s, "graph", NULL); return OK; }

CUresult cuGetErrorName(CUresult e, const char **s) { *s = e == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : e ? "CUDA_ERROR_UNKNOWN" : "CUDA_SUCCESS"; return OK; }
CUresult cuGetErrorString(CUresult e, const char **s) { *s = e == 2 ? "out of memory" : e ? "unknown error" : "no error"; return OK; }
CUresult cuGetProcAddress(const char *name, void **p, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *found) {
    (void)version; (void)flags; HIT_AS("cuGetProcAddress", 0, NULL);
    char newer[128];
    snprintf(newer, sizeof newer, "%s_v2", name);
    *p = dlsym(RTLD_DEFAULT, newer);
    if (!*p) *p = dlsym(RTLD_DEFAULT, name);
    if (found) *found = *p ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *p ? OK : CUDA_ERROR_NOT_FOUND;
}
CUresult cuGetExportTable(const void **t, const CUuuid *id) { (void)id; HIT(); *t = NULL; return CUDA_ERROR_NOT_FOUND; }

/* --- functions of NVML for XLA, missing in tests/support/fake_driver/nvml.c */
extern int nvmlInitWithFlags(unsigned), nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
    const char *colon = strchr(bus, ':');
    return nvmlDeviceGetHandleByIndex_v2(colon ? (unsigned)(colon[2] - '1') : 0, device);
}
int nvmlDeviceGetGpuFabricInfoV(void *device, void *info) { (void)device; (void)info; return 3; }
