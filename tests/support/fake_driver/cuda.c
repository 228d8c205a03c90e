/* A fake libcuda.so.1: the working devices of the table in the order of FAKE_CUDA_ORDER ("2,0", or "6/1" for the
 * second slice of GPU 6), else all of them, or a single slice if a GPU is in MIG mode.
 *
 * FAKE_CUDA_INIT is the error code of cuInit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "machine.h"

static struct { int gpu, slice; } devices[COUNT * MAX_SLICES];
static int count;

static void add(int gpu, int slice) { devices[count].gpu = gpu; devices[count].slice = slice; ++count; }

int cuInit(unsigned flags) {
    if (flags) return 1;
    if (getenv("FAKE_CUDA_INIT")) return atoi(getenv("FAKE_CUDA_INIT"));
    count = 0;
    const char *order = getenv("FAKE_CUDA_ORDER");
    for (int i = 0; !order && i < COUNT; ++i) if (gpus[i].mig == 1 && gpus[i].slice_count && !gpus[i].lost) { add(i, 0); return 0; }
    for (int i = 0; !order && i < COUNT; ++i) if (!gpus[i].lost && gpus[i].mig != 1) add(i, NOT_THERE);
    while (order && *order) {
        int gpu = (int)strtol(order, (char **)&order, 10), slice = NOT_THERE;
        if (*order == '/') slice = (int)strtol(order + 1, (char **)&order, 10);
        if (*order) ++order;
        add(gpu, slice);
    }
    return 0;
}
int cuDeviceGetCount(int *found) { *found = count; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetUuid_v2(unsigned char digits[16], int device) {
    Gpu *gpu = &gpus[devices[device].gpu];
    int slice = devices[device].slice;
    memcpy(digits, slice == NOT_THERE ? gpu->digits : gpu->slices[slice].digits, 16);
    return 0;
}
int cuDeviceGetPCIBusId(char *text, int length, int device) {
    snprintf(text, (size_t)length, "%s", gpus[devices[device].gpu].bus_id);
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = gpus[devices[device].gpu].multiprocessors;
    return attribute == 16 ? 0 : 1;
}
int cuDeviceGetName(char *text, int length, int device) {
    snprintf(text, (size_t)length, "%s", gpus[devices[device].gpu].name);
    return 0;
}
int cuGetErrorName(int code, const char **name) {
    *name = code == 802 ? "CUDA_ERROR_SYSTEM_NOT_READY" : "CUDA_ERROR_UNKNOWN";
    return 0;
}
