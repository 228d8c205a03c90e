"""A benchmark that shares its CPUs with other programs says so, and one on an idle machine never does."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from results.schema import Case, Data, Device, InputLimit, Telemetry
from tests.support import PROJECT
from tests.support.patience import patience
from tests.unit.results.factory import make_environment, make_measurement
from tfbench.machine.host import CPUUse, other_cpu_share, read_cpu_use
from tfbench.measuring.soft_warnings import soft_warnings

BURN = "while True: pass"

BESIDE_OTHERS = """
import json, threading, time
from tfbench.machine.nvml import GPUs
from tfbench.machine.telemetry import Observer
observer = Observer(GPUs(0))
observer.start()
end = time.monotonic() + 3
own = [threading.Thread(target=lambda: [None for _ in iter(lambda: time.monotonic() > end, True)]) for _ in range(8)]
[thread.start() for thread in own]
[thread.join() for thread in own]
print(json.dumps(observer.stop().other_cpu_share))
"""


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


@pytest.mark.slow
def test_other_programs_are_seen_and_our_own_threads_are_not():
    cpus = len(os.sched_getaffinity(0))
    others = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(2 * cpus)]
    try:
        done = subprocess.run(
            [sys.executable, "-c", BESIDE_OTHERS],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=patience(120),
            check=True,
        )
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert 0.05 < json.loads(done.stdout) <= 1.0


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
