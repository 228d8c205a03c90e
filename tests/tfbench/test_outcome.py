from __future__ import annotations

import pytest

from results.schema import Status
from tfbench.outcome import MAX_CAUSE_LENGTH, CaseFailedError, outcome_of, tells_of_memory


class ResourceExhaustedError(Exception):
    """Named as TensorFlow's."""


class InvalidArgumentError(Exception):
    """Named as TensorFlow's."""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ResourceExhaustedError("OOM when allocating tensor with shape[128,64,112,112]"), Status.OOM),
        (MemoryError(), Status.OOM),
        (RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"), Status.OOM),
        (RuntimeError("CUDA driver version is insufficient for CUDA runtime version"), Status.DRIVER_TOO_OLD),
        (RuntimeError("TensorFlow was not built with CUDA kernel binaries compatible with 12.0"), Status.UNSUPPORTED),
        (InvalidArgumentError("Trying to access resource Variable located in device CPU:1"), Status.UNSUPPORTED),
        (CaseFailedError(Status.NO_GPU, "none"), Status.NO_GPU),
        (ValueError("nobody foresaw this"), Status.ERROR),
        (ValueError("the BOOM of the OOMPH"), Status.ERROR),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_exception_becomes_the_word_that_a_user_can_act_on(error, status):
    outcome = outcome_of(error)
    assert outcome.status is status
    assert outcome.cause


def test_a_cause_leaves_the_graphs_nodes_out():
    error = ResourceExhaustedError("OOM when allocating\n\t [[{{node resnet50/conv1}}]]\nHint: report_tensor")
    assert outcome_of(error).cause == "ResourceExhaustedError: OOM when allocating"


def test_a_cause_has_a_limit():
    assert len(outcome_of(ValueError("x" * 100_000)).cause) == MAX_CAUSE_LENGTH


@pytest.mark.tensorflow
def test_an_error_while_a_graph_is_traced_says_what_went_wrong_and_not_where_it_began(tensorflow):
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
        assert outcome_of(caught.value).cause == cause


@pytest.mark.tensorflow
def test_an_error_of_a_graph_says_what_went_wrong_and_not_where_it_was_defined(tensorflow):
    @tensorflow.function
    def step(values):
        return tensorflow.raw_ops.CheckNumerics(tensor=tensorflow.math.log(values), message="planted")

    with pytest.raises(tensorflow.errors.InvalidArgumentError) as caught:
        step(tensorflow.constant([-1.0]))
    assert outcome_of(caught.value).cause == "InvalidArgumentError: planted : Tensor had NaN values"


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        ("W0000 00:00:17952.3 7 bfc_allocator.cc:502] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2GiB", "Al"),
        ("F1121 08:15:00.123456 7 x.cc:1] Check failed: CUBLAS_STATUS_ALLOC_FAILED", "Check failed"),
        ("Allocator (GPU_0_bfc) ran out of memory trying to allocate 2GiB. The caller indicates that this is not a failure", None),
        ("Fatal Python error: Aborted", None),
    ],
)  # fmt: skip
def test_the_line_in_which_an_allocator_gave_up_is_found(printed, found):
    told = tells_of_memory(f"tfbench: state timing\n{printed}\nFatal Python error: Aborted\n")
    assert (told is None) == (found is None)
    assert found is None or told.startswith(found)
