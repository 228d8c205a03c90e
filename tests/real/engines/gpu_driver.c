/* A driver that reports one GPU and can do nothing with it: enough for TensorFlow to open the CUDA libraries that it
   needs by name, which it does before it accepts a GPU. Stands for libcuda.so.1 and libnvidia-ml.so.1. */
#include <stddef.h>
#include <string.h>
#ifndef CUDA
#define CUDA 13000
#define DRIVER "580.00"
#endif

enum { SUCCESS = 0, NOT_FOUND = 500, MAJOR = 75, MINOR = 76 };
static int context;

int cuInit(unsigned flags) { return SUCCESS; }
int cuDriverGetVersion(int *version) { *version = CUDA; return SUCCESS; }
int cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
int cuDeviceGet(int *device, int index) { *device = index; return SUCCESS; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "Fake", size); return SUCCESS; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == MAJOR ? 8 : attribute == MINOR ? 6 : 64;
  return SUCCESS;
}
int cuDeviceComputeCapability(int *major, int *minor, int device) { *major = 8; *minor = 6; return SUCCESS; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)16 << 30; return SUCCESS; }
int cuDeviceGetPCIBusId(char *id, int size, int device) { strncpy(id, "0000:01:00.0", size); return SUCCESS; }
int cuDeviceGetUuid(void *uuid, int device) { memset(uuid, 1, 16); return SUCCESS; }
int cuDeviceGetUuid_v2(void *uuid, int device) { memset(uuid, 1, 16); return SUCCESS; }
int cuDevicePrimaryCtxRetain(void **c, int device) { *c = &context; return SUCCESS; }
int cuDevicePrimaryCtxRelease(int device) { return SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int device) { return SUCCESS; }
int cuDevicePrimaryCtxSetFlags(int device, unsigned flags) { return SUCCESS; }
int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) { return SUCCESS; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 1; return SUCCESS; }
int cuCtxGetCurrent(void **c) { *c = &context; return SUCCESS; }
int cuCtxSetCurrent(void *c) { return SUCCESS; }
int cuCtxGetDevice(int *device) { *device = 0; return SUCCESS; }
int cuCtxPushCurrent_v2(void *c) { return SUCCESS; }
int cuCtxPopCurrent_v2(void **c) { *c = &context; return SUCCESS; }
int cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -1; return SUCCESS; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = &context; return SUCCESS; }
int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) { *stream = &context; return SUCCESS; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = *total = (size_t)16 << 30; return SUCCESS; }
int cuDeviceCanAccessPeer(int *can, int device, int peer) { *can = 0; return SUCCESS; }
int cuGetErrorName(int error, const char **name) { *name = "fake"; return SUCCESS; }
int cuGetErrorString(int error, const char **text) { *text = "fake"; return SUCCESS; }
int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags) {
  *function = NULL;
  return NOT_FOUND;
}
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, void *status) {
  *function = NULL;
  return NOT_FOUND;
}

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlSystemGetDriverVersion(char *version, unsigned size) { strncpy(version, DRIVER, size); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &context; return SUCCESS; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) { *device = &context; return SUCCESS; }
const char *nvmlErrorString(int error) { return "fake"; }
