"""`check` prints problems and warnings of a host, with their remedies."""

import dataclasses
import io

import pytest
from rich.console import Console

from orchestrate.display.tables import check_grid, plan_grid
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.planning.facts import Facts, Image
from orchestrate.planning.host_warnings import has_nvidia_card, host_warnings
from orchestrate.planning.plan import make_plan
from orchestrate.suites import read_suite
from results.schema import GPU, Device, Status
from results.schema.health import GPUFacts, GPUSlice
from results.text_table import Grid, print_grid

SSH = DockerAddress(scheme="ssh", target="bench@node-a", port=2222)
A4000 = GPU(index=0, name="NVIDIA RTX A4000", compute_capability="8.6", memory_bytes=16 << 30, power_limit_watts=140.0)
GOOD = Facts(
    cpu="EPYC", cpu_limit=32.0, memory_bytes=128_000_000_000, driver="550.127.05", gpus=(A4000,), gpu_runtime="CDI"
)


def host(address: DockerAddress | None = SSH, **settings: object) -> Host:
    return Host(fleet="a4000", name="node-a", docker=address, **settings)


def test_a_good_host_has_no_warning():
    assert not [*host_warnings(host(), GOOD), *host_warnings(host(None, device=Device.CPU), Facts())]
    without = dataclasses.replace(GOOD, gpus=(), gpu_runtime=None)
    queue = SlurmQueue(partition="cpu", container="none", shared_folder="/home/x")
    assert not [*host_warnings(host(device=Device.CPU), without), *host_warnings(host(None, slurm=queue), without)]
    idle = GPUFacts(index=0, utilisation=0.0, memory_used_bytes=400_000_000, processes=0, temperature_celsius=41.0)
    other = GPUFacts(index=1, processes=7)
    assert not [*host_warnings(host(gpus=(0,)), dataclasses.replace(GOOD, gpu_states=(idle, other)))]


@pytest.mark.parametrize(("vendor", "there"), [("10de", True), ("1002", False)])
def test_this_machine_without_gpus_warns_only_if_an_nvidia_gpu_is_in_it(tmp_path, monkeypatch, vendor, there):
    devices = tmp_path / "devices"
    devices.write_text(f"0000\t80860d57\t0\n0100\t{vendor}2204\t2a\n")
    monkeypatch.setattr("orchestrate.planning.host_warnings.has_nvidia_card", lambda: has_nvidia_card(devices))
    found = host_warnings(host(address=None), dataclasses.replace(GOOD, gpu_runtime=None, gpus=(), gpu_states=()))
    assert [text.partition(". Without")[0] for text in found] == ["no GPU was found. Run nvidia-smi there"] * there


def states(**changes: object) -> dict[str, object]:
    return {"gpu_states": (GPUFacts(index=0, **changes),)}


BUSY = {"utilisation": 0.87, "memory_used_bytes": 12_300_000_000, "processes": 3}


@pytest.mark.parametrize(
    ("settings", "changes", "said"),
    [
        ({"address": DockerAddress(scheme="tcp", target="h:2375")}, {}, "without TLS"),
        ({"device": Device.GPU}, {"gpu_runtime": None, "gpus": ()}, "Install the NVIDIA container toolkit"),
        ({}, {"gpus": ()}, "its engine gives GPUs (CDI), but no GPU was found. Run nvidia-smi there"),
        ({}, {"gpu_runtime": None, "gpus": ()}, "the CPU is measured. To do that on purpose, set device: cpu"),
        ({}, {"disk_free_bytes": 3_000_000_000}, "only 3 GB of disk space is free"),
        ({}, states(**BUSY), "GPU 0: busy, 87% used, 12.3 GB taken, 3 processes: a benchmark shares its time, memory"),
        ({}, states(utilisation=0.0, temperature_celsius=78.0), "GPU 0: 78 °C without work"),
        ({}, states(power_limit_watts=140.0, power_limit_default_watts=200.0), "sudo nvidia-smi -i 0 -pl 200"),
        ({}, states(mig=True, slices=[GPUSlice(profile="1g.10gb")]), "MIG mode is on, slices: 1g.10gb: a process uses"),
        ({}, {"gpu_states": [GPUFacts(index=i, persistence=False) for i in (0, 1)]}, "GPUs 0, 1: persistence mode"),
        ({}, {"gpu_problems": ("GPU 3 (0000:3B:00.0) is lost",)}, "is lost. Run python -m tfbench.doctor there"),
        ({}, {"other_cpu_share": 0.97, "load": 23.1}, "other programs take 97% of its CPU time (load 23), and"),
        ({}, states(name="NVIDIA A10-24Q", virtual=True, licensed=False), "NVIDIA A10-24Q is a vGPU, unlicensed"),
        ({"gpus": (0, 5)}, {}, "gpus: names [5], but this host has only [0]"),
        ({}, {"gpus": (A4000, GPU(index=1, name="NVIDIA RTX A5000"))}, "its GPUs differ"),
    ],
)
def test_each_warning_has_a_remedy(settings: dict, changes: dict, said: str):
    (found,) = host_warnings(host(**settings), dataclasses.replace(GOOD, **changes))
    assert said in found


def drawn(grid: Grid) -> str:
    stream = io.StringIO()
    print_grid(grid, Console(file=stream, width=400))
    return stream.getvalue()


def test_hosts_that_are_one_machine_are_named_by_check_and_plan():
    hosts = [host(), Host(fleet="here", name="me"), Host(fleet="here", name="other", docker=SSH)]
    facts = [dataclasses.replace(GOOD, boot_id="x"), Facts(boot_id="x"), Facts(boot_id="y")]
    probed = {one.place: found for one, found in zip(hosts, facts, strict=True)}
    plan = make_plan(hosts, probed, read_suite, run_id="r", seed=1)
    for grid in (check_grid(hosts, probed), plan_grid(plan)):
        assert "a4000.node-a, here.me are one machine" in drawn(grid)


def test_a_host_with_fewer_gpus_than_its_fleet_mates_has_a_warning():
    two = dataclasses.replace(GOOD, gpus=(A4000, dataclasses.replace(A4000, index=1)))
    (found,) = host_warnings(host(), GOOD, [GOOD, two])
    assert found.startswith("1 of 2 GPUs found (other hosts of the fleet have 2): one may have fallen off the bus")
    assert not [*host_warnings(host(), two, [GOOD, two])]
    assert not [*host_warnings(host(gpus=(0,)), GOOD, [GOOD, two])], "whoever names GPUs means these"
    hosts = [host(), Host(fleet="a4000", name="node-b", docker=SSH)]
    text = drawn(check_grid(hosts, {hosts[0].place: GOOD, hosts[1].place: two}))
    assert "a4000.node-a: 1 of 2 GPUs" in text and "a4000.node-b: 2" not in text and text.count("warning") == 1


def test_the_table_names_what_is_unusable_by_plain_text():
    """The rest of it is golden, in test_widths."""
    bad = Image(variant=None, reference="x", status=Status.DRIVER_TOO_OLD, reason="driver 470 is too old")
    hosts = [Host(fleet="f", name="old", docker=SSH), Host(fleet="f", name="[bold]gone", docker=SSH)]
    probed = {("f", "old"): Facts(images=(bad,)), ("f", "[bold]gone"): "ssh node: connection refused"}
    text = drawn(check_grid(hosts, probed))
    assert text.count("unusable") == 2 and "f.old: x: driver 470 is too old" in text
    assert "f.[bold]gone: cannot be measured now: ssh node: connection refused" in text
