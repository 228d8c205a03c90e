"""One case on several hosts: processes on loopback ports, each a rank with its own TensorFlow.

The program as such, over several hosts: tests/real/slurm/test_slurm.py and tests/real/test_end_to_end.py.
"""

import contextlib
import json
import os
import signal
import time

import pytest

from results.runs.reading import from_json
from results.schema import Status
from tests.real.training.forks import start_repeat
from tests.support.engines.processes import free_port, wait_until
from tests.support.patience import patience

pytestmark = pytest.mark.tensorflow

SMALL = ("--device=cpu", "--batch_size=2", "--warmup_steps=2", "--nopeaks")

TINY = """
from tests.real.training.tiny import TinyNetwork
from results.schema.networks import NETWORKS
NETWORKS["googlenet"] = TinyNetwork()
"""
"""A network of three layers under that name, where what happens to a rank does not depend on what it trains."""

SHALLOW = "from tests.real.training.small import shrink; shrink('googlenet')"

PLANTED_IN = ("--model=googlenet", "--batch_norm=fused", "--image_size=32")

NOT_REDUCED = """
from tfbench.training.step import Training
Training.__init__.__kwdefaults__["all_reduce"] = list
"""

ONE_RANK_ADDS_A_THOUSANDTH = """
import json, os
from tfbench.training import step
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
def fault(tensors):
    return [tensor * (1 + rank * 1e-3) for tensor in step.sum_over_replicas(tensors)]
step.Training.__init__.__kwdefaults__["all_reduce"] = fault
"""

TWO_REPLICAS_EACH = """
import tensorflow as tf
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
import tfbench.repeat
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
def two(self, resolver, worker):
    return (f"{worker}/device:CPU:0", f"{worker}/device:CPU:1"), "CPU"
CollectiveAllReduceExtended._initialize_local_devices = two
tfbench.repeat.case_refusal = lambda case, network: None
"""

ONE_RANK_IS_FULL = """
import json, os, tfbench.repeat
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
    def full(*_):
        raise MemoryError("planted")
    tfbench.repeat.timing.warm_up = full
"""


class MultiHostJob:
    """Ranks that were started; those with a fault train a small network."""

    def __init__(self, folder, flags, fault, count=2):
        ports = [free_port(2) for _ in range(count)]
        self.records = [folder / f"record-{rank}.json" for rank in range(count)]
        self.logs = [folder / f"rank-{rank}.log" for rank in range(count)]
        self.processes = []
        for rank in range(count):
            cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
            config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
            arguments = [*SMALL, f"--num_hosts={count}", *flags, f"--output={self.records[rank]}"]
            small = PLANTED_IN if fault else ()
            self.processes.append(start_repeat(fault, [*small, *arguments], self.logs[rank], TF_CONFIG=config))

    def exit_code(self, rank, seconds=400):
        """Return how a rank has ended; a failure where it does not end in time."""
        self.processes[rank].join(patience(seconds))
        return self.processes[rank].exitcode

    def exit_codes(self):
        return [self.exit_code(rank) for rank in range(len(self.processes))]

    def record(self, rank=0):
        return from_json(self.records[rank].read_bytes())

    def wait_for(self, text):
        def said() -> bool:
            assert self.processes[0].is_alive(), self.logs[0].read_text()[-2000:]
            return self.logs[0].exists() and text in self.logs[0].read_text()

        wait_until(said, text, 200)

    def end(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):  # it has ended, or has not its own group yet
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()


@pytest.fixture
def start(tmp_path):
    multi_host_jobs = []

    def begin(*flags, fault=""):
        multi_host_jobs.append(MultiHostJob(tmp_path, flags, fault))
        return multi_host_jobs[-1]

    yield begin
    for multi in multi_host_jobs:
        multi.end()


def test_two_hosts_give_one_record_that_passes_all_checks(start):
    multi = start("--image_size=64", "--num_steps=6", "--batch_norm=none", "--communication=ring", fault=SHALLOW)
    assert multi.exit_codes() == [0, 0], multi.logs[0].read_text()[-3000:]
    record = multi.record()
    assert record.status is Status.OK
    checks = {check.name: check for check in record.validity.checks if check.passed}
    assert {"ranks_equal", "update_equals_one_device", "loss_equals_one_device"} <= checks.keys()
    assert checks["ranks_equal"].value == 0.0
    m = record.measurement
    assert (m.replicas, m.global_batch, m.samples) == (2, 4, 24)
    assert [(rank.rank, rank.samples) for rank in m.ranks] == [(0, 12), (1, 12)]
    assert m.seconds == max(rank.seconds for rank in m.ranks)
    assert m.samples_per_second == pytest.approx(24 / m.seconds)
    assert m.all_reduce_bytes_per_second > 0
    assert record.case.name == "googlenet-fp32-b2-2x1cpu-ring-64px-w2s6"
    assert not multi.records[1].exists()  # one record for the case: the chief's


def test_replicas_of_several_devices_and_hosts_train_as_one(start):
    multi = start("--num_steps=4", "--num_gpus=2", "--precision=fp16", "--data=host", fault=TINY + TWO_REPLICAS_EACH)
    assert multi.exit_codes() == [0, 0], multi.logs[0].read_text()[-3000:]
    record = multi.record()
    passed = {check.name for check in record.validity.checks if check.passed}
    assert {"ranks_equal", "replicas_equal", "update_equals_one_device", "loss_equals_one_device"} <= passed
    assert (record.measurement.replicas, record.measurement.samples) == (4, 32)


@pytest.mark.parametrize(
    ("fault", "check"), [(NOT_REDUCED, "update_equals"), (ONE_RANK_ADDS_A_THOUSANDTH, "ranks_equal")]
)
def test_a_broken_all_reduce_between_hosts_is_caught(start, fault, check):
    multi = start("--num_steps=4", fault=TINY + fault)
    assert multi.exit_codes() == [3, 3]
    for rank in (0, 1):
        assert multi.record(rank).status is Status.INVALID
        assert check in multi.record(rank).cause
    assert multi.record().measurement is None


def test_without_all_reduce_the_checks_are_skipped_and_recorded(start):
    multi = start("--num_steps=4", "--noall_reduce", fault=TINY)
    assert multi.exit_codes() == [0, 0], multi.logs[0].read_text()[-3000:]
    record = multi.record()
    assert not record.case.all_reduce and "no-all-reduce" in record.case.name
    skipped = [check for check in record.validity.checks if check.passed is None]
    assert {check.name for check in skipped} == {"loss_equals_one_device", "update_equals_one_device", "replicas_equal"}
    assert all("no all-reduce was asked for" in check.detail for check in skipped)


@pytest.mark.parametrize(("victim", "number"), [(1, signal.SIGKILL), (0, signal.SIGSTOP)])
def test_a_rank_that_is_killed_or_hangs_ends_the_other_with_its_name(start, victim, number):
    multi = start("--num_steps=100000", fault=TINY)
    multi.wait_for("state timing")
    began = time.monotonic()
    os.killpg(multi.processes[victim].pid, number)
    other = 1 - victim
    assert multi.exit_code(other, patience()) == 3
    assert time.monotonic() - began < patience()
    assert multi.record(other).status is Status.LOST
    assert f"rank {victim} (127.0.0.1:" in multi.record(other).cause


def test_the_failure_of_one_rank_is_the_status_of_the_case(start):
    multi = start("--num_steps=4", fault=TINY + ONE_RANK_IS_FULL)
    assert multi.exit_codes() == [3, 3]
    assert multi.record(1).status is Status.OOM
    assert multi.record(0).status is Status.OOM
    assert multi.record(0).cause.startswith("rank 1 (127.0.0.1:")
