"""Which of a process's environment variables a record keeps as part of what was measured."""

from __future__ import annotations

import pytest

from orchestrate.inventory.environment import environment_problems
from results.schema import Case

pytestmark = pytest.mark.tensorflow

SETTINGS = {"NCCL_SOCKET_IFNAME": "=eth0", "XLA_FLAGS": "--xla_gpu_autotune_level=4"}


def variables_kept() -> dict[str, str]:
    from tfbench.environment import read_environment
    from tfbench.setup.devices import Threads

    return read_environment(Case(model="resnet50"), Threads(intra_op=1, inter_op=1)).variables


def test_what_the_hosts_file_can_set_is_in_the_record(monkeypatch: pytest.MonkeyPatch):
    assert environment_problems(SETTINGS) == []
    for name, value in {**SETTINGS, "CUDA_MODULE_LOADING": "LAZY"}.items():
        monkeypatch.setenv(name, value)
    kept = variables_kept()
    assert {**SETTINGS, "CUDA_MODULE_LOADING": "LAZY"}.items() <= kept.items()


def test_which_gpus_are_visible_and_where_a_cache_lies_are_no_difference_between_hosts(monkeypatch: pytest.MonkeyPatch):
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_CACHE_PATH", "CUDA_CACHE_MAXSIZE"):
        monkeypatch.setenv(name, "1")
    kept = variables_kept()
    assert not {"CUDA_VISIBLE_DEVICES", "CUDA_CACHE_PATH", "CUDA_CACHE_MAXSIZE"} & kept.keys()
