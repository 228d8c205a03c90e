/* Stand-ins for cuDNN, cuBLAS and NCCL that report a version, for tests/unit/tfbench/test_loaded_libraries.py.
   Each library is built with one of the macros. */
#include <stddef.h>

#ifdef CUDNN
size_t cudnnGetVersion(void) { return CUDNN; }
#endif

#ifdef CUBLAS
int cublasGetProperty(int kind, int *value) {
    const int parts[] = {CUBLAS};
    if (kind < 0 || kind > 2) return 7; /* CUBLAS_STATUS_INVALID_VALUE */
    *value = parts[kind];
    return 0;
}
#endif

#ifdef NCCL
int ncclGetVersion(int *version) {
    *version = NCCL;
    return 0;
}
#endif
