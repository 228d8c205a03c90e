import time

import pytest

from results.schema import Status
from tfbench import failures as module
from tfbench.findings import Phases


def named(name):
    """Return a class with the name of one of TensorFlow's errors."""
    return type(name, (Exception,), {})


ResourceExhaustedError, InternalError, InvalidArgumentError = map(
    named, ("ResourceExhaustedError", "InternalError", "InvalidArgumentError")
)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError(), Status.OOM),
        (RuntimeError("CUDA driver version is insufficient for CUDA runtime version"), Status.DRIVER_TOO_OLD),
        (RuntimeError("TensorFlow was not built with CUDA kernel binaries compatible with 12.0"), Status.UNSUPPORTED),
        (InvalidArgumentError("Trying to access resource Variable located in device CPU:1"), Status.UNSUPPORTED),
        (module.CaseFailedError(Status.NO_GPU, "none"), Status.NO_GPU),
        (ValueError("the BOOM of the OOMPH"), Status.ERROR),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_exception_becomes_the_word_that_a_user_can_act_on(error, status):
    outcome = module.outcome_of(error)
    assert outcome.status is status
    assert outcome.cause


def test_a_gpu_that_the_driver_gave_up_is_an_error_with_its_remedy():
    found = module.outcome_of(RuntimeError("'cuLaunchKernel(f)' failed with 'CUDA_ERROR_UNKNOWN' [Op:Mul] name: "))
    assert found.status is Status.ERROR
    assert "'CUDA_ERROR_UNKNOWN'. The GPU failed" in found.cause and "dmesg" in found.cause


NO_ALGORITHM = "No algorithm worked!  Error messages:\n  Profiling failure on CUDNN engine "


@pytest.mark.parametrize(
    "text",
    [
        "Failed copying input tensor from CPU:0 to GPU:0 in order to run _EagerConst: Dst tensor is not initialized.",
        "failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "CUDNN_STATUS_ALLOC_FAILED\nin external/xla/xla/stream_executor/cuda/cuda_dnn.cc(6784): 'status'",
        "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "failed to create cublas handle: CUBLAS_STATUS_ALLOC_FAILED",
        "cuSolverDN call failed with status =2 [Op:Svd]",
        "RET_CHECK failure: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
        f"{NO_ALGORITHM}1#TC: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 95420720 bytes.",
        f"{NO_ALGORITHM}eng28{{k2=1,k3=0}}: UNKNOWN: CUDNN_STATUS_ALLOC_FAILED",
    ],
)
def test_memory_that_ended_outside_of_tensorflow_is_oom(text, monkeypatch):
    monkeypatch.setattr(module, "free_gpu_memory_bytes", lambda _: 100 * 2**30)
    found = module.outcome_of(InternalError(text))
    assert found.status is Status.OOM
    assert module.DOCTOR not in found.cause, "nothing else can be meant"


@pytest.mark.parametrize(
    "text",
    [
        "failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED",
        "Attempting to perform BLAS operation using StreamExecutor without BLAS support [Op:MatMul]",
        "Blas GEMM launch failed : a.shape=(128, 2048), b.shape=(2048, 1000), m=128, n=1000, k=2048",
        "Blas xGEMM launch failed : a.shape=[1,128,2048], b.shape=[1,2048,1000], m=128, n=1000, k=2048",
        "Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR",
        "Failed to get convolution algorithm. This is probably because cuDNN failed to initialize",
        "DNN library is not found.",
        "DNN library initialization failed. Look at the errors above for more details.",
        "No algorithm worked!",
        "cuSolverDN call failed with status =1",
        "CUSOLVER_STATUS_NOT_INITIALIZED",
        "Collective ops is aborted by: Error invoking NCCL: unhandled cuda error",
    ],
)
def test_a_failure_of_a_library_is_oom_where_the_gpus_are_full(text, monkeypatch):
    for free, status, words, pointed in (
        (300 * 2**20, Status.OOM, "GPU memory was full (300 MiB free)", False),
        (module.NEARLY_FULL_BYTES, Status.ERROR, "GPU memory was not full (1,024 MiB free)", True),
        (None, Status.OOM, "Most often GPU memory is full", True),
    ):
        monkeypatch.setattr(module, "free_gpu_memory_bytes", lambda _, free=free: free)
        found = module.outcome_of(InternalError(text))
        assert (found.status, module.DOCTOR in found.cause) == (status, pointed)
        assert found.cause.startswith("InternalError: ") and words in found.cause


@pytest.mark.parametrize(
    ("status", "cause", "on_gpu", "pointed"),
    [
        (Status.NO_GPU, "none", True, True),
        (Status.ERROR, "nobody foresaw this", True, True),
        (Status.ERROR, "nobody foresaw this", False, False),
        (Status.ERROR, f"run {module.DOCTOR}", True, False),
        (Status.OOM, "OOM when allocating", True, False),
    ],
)
def test_a_failure_that_may_be_the_machines_names_the_doctor_once(status, cause, on_gpu, pointed):
    hint = module.hint_after(module.Failure(status, cause), on_gpu=on_gpu)
    assert (hint is not None and module.DOCTOR in hint) == pointed


@pytest.mark.parametrize(
    ("printed", "status", "words"),
    [
        ("F0000 00:00:17952.3 7 x.cc:1] Dst tensor is not initialized.", Status.OOM, "after: Dst tensor"),
        ("node-a:7:9 [0] enqueue.cc:1085 NCCL WARN Cuda failure 2 'out of memory'", Status.OOM, "NCCL WARN"),
        (
            "F0000 00:00:1.3 7 cuda_solvers.cc:115] Check failed: cusolverDnCreate(&cusolver_dn_handle) == "
            "CUSOLVER_STATUS_SUCCESS Failed to create cuSolverDN instance.",
            Status.OOM,
            f"Failed to create cuSolverDN instance.. Most often GPU memory is full; a broken driver or library gives "
            f"the same error: run {module.DOCTOR}",
        ),
        ("Fatal Python error: Segmentation fault", Status.ERROR, "stderr shows where"),
        ("Allocator ran out of memory. The caller indicates that this is not a failure", Status.ERROR, "stderr shows"),
    ],
)
def test_a_crash_is_known_by_what_was_printed_before_it(printed, status, words):
    found = module.outcome_of_crash("SIGABRT", f"tfbench: state timing\n{printed}\n")
    assert found.status is status
    assert found.cause.startswith("the process crashed in native code (SIGABRT)") and words in found.cause


def test_a_cause_has_no_graph_nodes_and_a_limit():
    error = ResourceExhaustedError("OOM when allocating\n\t [[{{node resnet50/conv1}}]]\nHint: report_tensor")
    assert module.outcome_of(error).cause == "ResourceExhaustedError: OOM when allocating"
    assert len(module.outcome_of(ValueError("x" * 100_000)).cause) == module.MAX_CAUSE_LENGTH


@pytest.mark.tensorflow
def test_an_error_of_a_graph_is_reported_without_traceback_and_definition(tensorflow):
    class Faulty(tensorflow.keras.layers.Layer):
        def call(self, inputs):
            return [inputs][3]

    @tensorflow.function
    def step(values):
        return [values][3]

    layer = Faulty()
    for function, cause in (
        (step, "IndexError: list index out of range"),
        (tensorflow.function(lambda values: layer(values)), "IndexError: list index out of range (in Faulty.call())"),
    ):
        with pytest.raises(Exception) as caught:
            function(tensorflow.zeros((2, 2)))
        assert module.outcome_of(caught.value).cause == cause


def test_a_phase_is_announced_and_measured_until_the_next_and_counts_once(capsys):
    phases = Phases()
    for name in ("checking", "compiling", "checking", "writing"):
        phases.enter(name)
        spun = time.process_time()
        while name == "compiling" and time.process_time() - spun < 0.02:
            pass
        time.sleep(0.01)
    assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == [
        *("checking", "compiling", "checking", "writing")
    ]
    checking, compiling = phases.ended()
    assert (checking.name, compiling.name) == ("checking", "compiling")
    assert checking.seconds >= 0.02 and compiling.cpu_seconds >= 0.02 > checking.cpu_seconds
