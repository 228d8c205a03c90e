"""What a record shows of the libraries that TensorFlow loads."""

from dataclasses import replace

import pytest

from results.schema import Case, Device

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def read(environment):
    """Read the environment of a case on the CPU."""
    case = Case(model="resnet50", device=Device.CPU)
    return lambda: environment.read_environment(case, threads=1)


def test_what_is_not_loaded_keeps_what_tensorflow_was_built_for(tensorflow, read, monkeypatch, environment):
    if not tensorflow.test.is_built_with_cuda():
        found = environment.with_loaded_libraries(read())
        assert found.cudnn is found.cublas is found.nccl is None
    build_info = {"cuda_version": "12.5.1", "cudnn_version": "9"}
    monkeypatch.setattr(tensorflow.sysconfig, "get_build_info", lambda: build_info)
    built = read()
    assert (built.cudnn, built.cublas, built.nccl) == ("built for 9", None, None)
    assert environment.with_loaded_libraries(built) == built
    monkeypatch.setattr(environment, "loaded_versions", lambda: {"cudnn": "9.3.0", "cublas": "12.5.3"})
    loaded = environment.with_loaded_libraries(built)
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
def test_a_libcuda_that_is_not_the_drivers_own_is_recorded(read, monkeypatch, libcuda, driver, compat, environment):
    monkeypatch.setattr(environment, "loaded_versions", lambda: {"libcuda": libcuda} if libcuda else {})
    loaded = environment.with_loaded_libraries(replace(read(), driver=driver))
    assert (loaded.driver, loaded.cuda_compat) == (driver, compat)
