"""What a record shows of the libraries that TensorFlow loads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfbench.machine.cuda_libraries import LoadedVersions

pytestmark = pytest.mark.tensorflow


def test_what_is_not_loaded_keeps_what_tensorflow_was_built_for(tensorflow, monkeypatch):
    from results.schema import Case, Device
    from tfbench import environment
    from tfbench.setup.devices import Threads

    case = Case(model="resnet50", device=Device.CPU)
    build_info = {"cuda_version": "12.5.1", "cudnn_version": "9"}
    monkeypatch.setattr(tensorflow.sysconfig, "get_build_info", lambda: build_info)
    read = environment.read_environment(case, Threads(intra_op=1, inter_op=1))
    assert (read.cudnn, read.cublas, read.nccl) == ("built for 9", None, None)
    assert environment.with_loaded_libraries(read) == read
    monkeypatch.setattr(environment, "loaded_versions", lambda: LoadedVersions(cudnn="9.3.0", cublas="12.5.3"))
    loaded = environment.with_loaded_libraries(read)
    assert (loaded.cudnn, loaded.cublas, loaded.nccl) == ("9.3.0", "12.5.3", None)


@pytest.mark.parametrize(
    ("libcuda", "driver", "compat"),
    [
        ("570.172.08", "535.183.01", "570.172.08"),
        ("535.183.01", "535.183.01", None),
        ("570.172.08", None, None),
        (None, "535.183.01", None),
    ],
)
def test_a_libcuda_that_is_not_the_drivers_own_is_recorded(tensorflow, monkeypatch, libcuda, driver, compat):
    from results.schema import Case, Device
    from tfbench import environment
    from tfbench.setup.devices import Threads

    case = Case(model="resnet50", device=Device.CPU)
    read = environment.read_environment(case, Threads(intra_op=1, inter_op=1))
    monkeypatch.setattr(environment, "loaded_versions", lambda: LoadedVersions(libcuda=libcuda))
    loaded = environment.with_loaded_libraries(replace(read, driver=driver))
    assert (loaded.driver, loaded.cuda_compat) == (driver, compat)


def test_a_build_for_cpus_has_none(tensorflow):
    from results.schema import Case, Device
    from tfbench.environment import read_environment, with_loaded_libraries
    from tfbench.setup.devices import Threads

    if tensorflow.test.is_built_with_cuda():
        pytest.skip("this TensorFlow is a build for GPUs")
    case = Case(model="resnet50", device=Device.CPU)
    found = with_loaded_libraries(read_environment(case, Threads(intra_op=1, inter_op=1)))
    assert (found.cudnn, found.cublas, found.nccl) == (None, None, None)
