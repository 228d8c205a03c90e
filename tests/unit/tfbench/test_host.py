import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import PROJECT, write_files
from tests.support.patience import patience
from tfbench.machine.host import cpu_limit, memory_limit_bytes, out_of_memory_kills

GROUP = {"proc/self/cgroup": "0::/\n"}
NESTED = {"proc/self/cgroup": "0::/user.slice/job\n", "sys/fs/cgroup/user.slice/job/cpu.max": "max 100000\n"}
VERSION_1 = {
    "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
}


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, 16.0),
        (GROUP | {"sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2.5),
        (NESTED | {"sys/fs/cgroup/user.slice/cpu.max": "300000 100000\n"}, 3.0),
        (VERSION_1, 1.5),
    ],
)
def test_cpus_are_those_of_the_affinity_or_the_tightest_quota(tmp_path, monkeypatch, files, limit):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    write_files(tmp_path, files)
    assert cpu_limit(tmp_path) == limit


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, 16 * 1024),
        (GROUP | {"sys/fs/cgroup/memory.max": "4096\n"}, 4096),
        (VERSION_1 | {"sys/fs/cgroup/memory/memory.limit_in_bytes": "1000\n"}, 1000),
    ],
)
def test_memory_is_the_machines_or_the_containers(tmp_path, files, limit):
    write_files(tmp_path, {"proc/meminfo": "MemTotal:       16 kB\nMemFree: 1 kB\n", **files})
    assert memory_limit_bytes(tmp_path) == limit


def test_processes_that_the_kernel_killed_for_memory_are_counted(tmp_path):
    events = "low 1\noom 2\noom_kill 3\n"
    write_files(tmp_path, {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.events": events})
    assert out_of_memory_kills(tmp_path) == 3
    assert out_of_memory_kills(tmp_path / "proc") is None


@pytest.mark.slow
def test_the_probe_prints_one_object_without_tensorflow():
    code = (
        "import sys; from tfbench.probe import main; code = main(); "
        "assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=patience())
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert reported.pop("disk_free_bytes") > 0
    assert 0.0 <= reported.pop("other_cpu_share") <= 1.0 and reported.pop("load") >= 0.0
    reported.pop("boot_id")
    assert reported["gpu_states"] is not None
    if not reported["gpus"]:
        assert reported.pop("cpu_flops_per_second") > 1e6 and reported.pop("cpu_loop_seconds") > 1e-6
        flags = re.findall(r"^flags\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.M)[:1]
        widest = [bits for flag, bits in (("avx512f", 512), ("avx2", 256)) if flag in " ".join(flags).split()]
        assert reported.pop("cpu_vector_bits") == next(iter(widest), None)
    assert reported["python"] == ".".join(map(str, sys.version_info[:3]))
    assert 0 < reported["cpu_limit"] <= reported["cpu_count"]
    assert all(reported[name] for name in ("cpu", "kernel", "operating_system", "tensorflow", "memory_bytes"))
