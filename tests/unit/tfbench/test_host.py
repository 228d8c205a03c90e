"""What is read of a machine: its CPUs, memory and GPUs, and the share of its CPUs that other programs use."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from results.schema import Case, Data, Device, InputLimit, Telemetry
from tests.support import PROJECT, write_files
from tests.support.patience import patience
from tests.unit.results.factory import make_environment, make_measurement
from tfbench.machine.host import (
    CPUUse,
    cpu_limit,
    memory_limit_bytes,
    other_cpu_share,
    out_of_memory_kills,
    read_cpu_use,
)
from tfbench.measuring.soft_warnings import soft_warnings

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


def use(seconds, used=0.0, own=0.0, cpus=2):
    return CPUUse(at=seconds, cpus=cpus, all_seconds=1000.0 + used, own_seconds=own)


@pytest.mark.parametrize(
    ("used", "own", "cpus", "limit", "share"),
    [
        (200.0, 200.0, 2, 2.0, 0.0),  # nobody else
        (200.0, 100.0, 2, 2.0, 0.4999),  # another benchmark
        (200.0, 16.0, 2, 2.0, 0.9199),  # 23 programs on two CPUs
        (800.0, 200.0, 8, 2.0, 0.0),  # six of eight CPUs are busy, and two are ours
        (120.0, 110.0, 2, 2.0, 0.0360),  # ticks are a sample where not all CPUs are busy
    ],
)
def test_the_share_of_other_programs_is_what_is_left_after_our_own(used, own, cpus, limit, share):
    found = other_cpu_share(use(0.0, cpus=cpus), use(100.0, used, own, cpus), limit)
    assert found == pytest.approx(share, abs=1e-4)


def test_a_short_interval_proves_nothing():
    seen = [other_cpu_share(use(0.0), use(seconds, 1.2 * seconds, seconds), 2.0) for seconds in (0.1, 1.0, 10.0, 100.0)]
    assert seen == sorted(seen) and seen[0] == 0.0 and 0.05 < seen[-1] < 0.1, "another 10 % of two CPUs"


def test_the_counters_are_those_of_the_cpus_that_this_process_may_use(tmp_path):
    (tmp_path / "proc").mkdir()
    allowed = sorted(os.sched_getaffinity(0))
    rows = [f"cpu{cpu} 100 20 30 5000 60 700 800 9 10 11" for cpu in (*allowed, 4000)]
    (tmp_path / "proc/stat").write_text("\n".join(["cpu 9 9 9 9 9 9 9 9 9 9", *rows, "intr 5 6", "ctxt 7"]))
    found = read_cpu_use(tmp_path)
    ticks = len(allowed) * (100 + 20 + 30 + 9)
    assert (found.cpus, found.all_seconds) == (len(allowed), ticks / os.sysconf("SC_CLK_TCK"))
    times = os.times()
    assert found.own_seconds == pytest.approx(sum(times[:4]), abs=0.5), "user and system, with ended children"


@pytest.mark.parametrize("text", ["", "cpu 0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n"])
def test_a_kernel_that_reports_nothing_is_no_finding(text, tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(text)
    before, after = read_cpu_use(tmp_path), read_cpu_use(tmp_path)
    assert other_cpu_share(before, replace(after, at=after.at + 1), 2.0) is None


LIMITED = InputLimit(
    synthetic_step_seconds=0.1, step_ratio=2.0, limit=1.1, limited=True, wait_share=0.5, read_bytes_per_second=1e6, files=1
)  # fmt: skip


@pytest.mark.parametrize(
    ("case", "measured", "matters"),
    [
        ({"device": Device.CPU}, {}, True),
        ({}, {}, False),
        ({}, {"lead_p50_seconds": 0.0}, True),
        ({"data": Data.TFRECORD}, {"input_limit": LIMITED}, True),
        ({"model": "device", "device": Device.CPU}, None, True),
    ],
)
def test_shared_cpus_are_a_warning_where_the_cpu_sets_the_speed(case, measured, matters):
    case = Case(**{"model": "resnet50", **case})
    measurement = None if measured is None else replace(make_measurement(case, 100.0), warmup_settled=True, **measured)
    for share, exceeds in ((None, False), (0.0, False), (0.5, True)):
        found = soft_warnings(
            case, make_environment(tf32_observed=False), measurement, Telemetry(other_cpu_share=share)
        )
        said = [warning.message for warning in found if warning.code == "cpu_shared"]
        assert said == ["other programs used 50% of the benchmark's CPUs while timing"] * (matters and exceeds)
