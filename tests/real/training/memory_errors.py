"""Errors of TensorFlow on a full GPU: classes named as its own, texts as it prints them or with a library's status."""

ResourceExhaustedError, InternalError, UnknownError, NotFoundError, InvalidArgumentError = (
    type(name, (Exception,), {})
    for name in ("ResourceExhaustedError", "InternalError", "UnknownError", "NotFoundError", "InvalidArgumentError")
)
UnimplementedError, FailedPreconditionError = (
    type(name, (Exception,), {}) for name in ("UnimplementedError", "FailedPreconditionError")
)


MEMORY = [
    InternalError(
        "Failed copying input tensor from /job:localhost/replica:0/task:0/device:CPU:0 to "
        "/job:localhost/replica:0/task:0/device:GPU:0 in order to run _EagerConst: Dst tensor is not initialized."
    ),
    InternalError("failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    UnknownError("CUDNN_STATUS_ALLOC_FAILED\nin external/xla/xla/stream_executor/cuda/cuda_dnn.cc(6784): 'status'"),
    UnknownError("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    InternalError("failed to create cublas handle: CUBLAS_STATUS_ALLOC_FAILED"),
    InternalError("CUSOLVER_STATUS_ALLOC_FAILED"),
    InternalError("cuSolverDN call failed with status =2 [Op:Svd]"),
    ResourceExhaustedError("Out of memory while trying to allocate 17179869184 bytes."),
    InternalError("RET_CHECK failure: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."),
    NotFoundError(
        "No algorithm worked!  Error messages:\n"
        "  Profiling failure on CUDNN engine 1#TC: RESOURCE_EXHAUSTED: Out of memory while trying to allocate "
        "95420720 bytes.\n"
        "  Profiling failure on CUDNN engine 0: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 16777216 bytes."
    ),
    NotFoundError(
        "No algorithm worked!  Error messages:\n"
        "  Profiling failure on CUDNN engine eng28{k2=1,k3=0}: UNKNOWN: CUDNN_STATUS_ALLOC_FAILED"
    ),
]
"""Memory, and nothing else."""

PERHAPS_MEMORY = [
    InternalError("failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED"),
    InternalError("Attempting to perform BLAS operation using StreamExecutor without BLAS support [Op:MatMul]"),
    InternalError("Blas GEMM launch failed : a.shape=(128, 2048), b.shape=(2048, 1000), m=128, n=1000, k=2048"),
    InternalError("Blas xGEMM launch failed : a.shape=[1,128,2048], b.shape=[1,2048,1000], m=128, n=1000, k=2048"),
    UnknownError("Could not create cudnn handle: CUDNN_STATUS_NOT_INITIALIZED"),
    UnknownError("Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR"),
    UnknownError(
        "Failed to get convolution algorithm. This is probably because cuDNN failed to initialize, so try looking to "
        "see if a warning log message was printed above."
    ),
    UnimplementedError("DNN library is not found."),
    FailedPreconditionError("DNN library initialization failed. Look at the errors above for more details."),
    NotFoundError("No algorithm worked!"),
    InternalError("cuSolverDN call failed with status =1"),
    InternalError("CUSOLVER_STATUS_NOT_INITIALIZED"),
    InternalError("NCCL: unhandled cuda error. Set NCCL_DEBUG=WARN for detail."),
    UnknownError("Collective ops is aborted by: Error invoking NCCL: unhandled cuda error"),
]
"""Memory, or a broken driver or library: the words are the same."""
