"""The doctor names what is wrong with a machine, why it matters and what helps; here with a driver of our own."""

import ctypes
import json
from dataclasses import replace

import pytest

from results.runs.reading import checked
from results.schema.health import GPUFacts, Moment, driver_fix, health_warnings
from tests.real.training.conftest import run_tfbench
from tests.support import PROJECT, write_files
from tests.support.fake_driver import FakeGPU, FakeMachine, build, eight_h100, run_python
from tfbench.doctor.__main__ import render
from tfbench.doctor.checks import DoctorFinding, Level, judge, verdict_line
from tfbench.doctor.facts import DRIVER_STAGES, TRIAL_STAGES, DoctorFacts, DriverFacts, ask, driver_from
from tfbench.doctor.trial import Trial, all_reduces
from tfbench.machine.host import MachineFacts, read_machine
from tfbench.machine.nvml import NO_LIBRARY

MACHINE = MachineFacts(
    cpu_count=128,
    cpu_limit=128.0,
    load=0.5,
    governors={"performance": 128},
    memory_bytes=1 << 40,
    memory_available_bytes=1 << 39,
    shm_bytes=1 << 36,
    disk_free_bytes=1 << 40,
)
GPU = GPUFacts(index=0, bus_id="0000:18:00.0", name="NVIDIA H100 80GB HBM3", compute_capability="9.0")
DRIVER = DriverFacts(version="550.54.14", cuda="12.4", gpus=[GPU, replace(GPU, index=1)], cuda_devices=["H100"] * 2)
TRIAL = Trial(
    tensorflow="2.21.0",
    keras="3.15.1",
    cuda="12.5.1",
    cudnn="9",
    capabilities=["sm_80", "sm_90", "compute_90"],
    gpus=["NVIDIA H100 80GB HBM3"] * 2,
    right=["GPU:0", "GPU:1"],
    all_reduce=True,
)
GOOD = DoctorFacts(machine=MACHINE, driver=DRIVER, trial=TRIAL)


def doctor(*arguments, **variables):
    done = run_tfbench(*arguments, module="tfbench.doctor", **variables)
    assert done.stderr == ""
    return done


@pytest.mark.slow
def test_every_faulty_gpu_of_eight_is_named_with_its_fault(tmp_path):
    done = doctor("--format=json", LD_LIBRARY_PATH=str(build(eight_h100(), tmp_path)))
    document = json.loads(done.stdout)
    by_gpu, found = {}, {finding["code"]: finding for finding in document["findings"]}
    for finding in document["findings"]:
        if finding["subject"].startswith("GPU "):
            by_gpu.setdefault(int(finding["subject"].split()[1]), set()).add(finding["code"])
    assert by_gpu == {
        1: {"power_cap"},
        2: {"pcie_width"},
        3: {"gpu_unusable"},
        4: {"ecc_errors", "row_remap_pending"},
        5: {"gpu_shared"},
        6: {"mig_slice"},
        7: {"nvlink_down", "persistence_off"},
    }
    seen = {
        "gpu_unusable": "is lost",
        "power_cap": "capped at 400 W (default 700 W)",
        "pcie_width": "PCIe ×8 of ×16, generation 4 of 5 at this moment",
        "mig_slice": "MIG mode is on, slices: 1g.10gb, 3g.40gb, 1c.2g.20gb",
        "gpu_shared": "busy, 96% used, 42.9 GB taken, 2 processes (9999001, 9999002)",
        "nvlink_down": "16 NVLinks are up, 2 down; others here have 18 up",
    }
    assert {code: found[code]["seen"] for code in seen} == seen
    assert found["power_cap"]["fix"] == "sudo nvidia-smi -i 0000:2A:00.0 -pl 700"
    assert found["persistence_off"]["fix"] == "sudo nvidia-smi -pm 1"

    assert document["doctor_version"] == 2
    assert document["exit_code"] == done.returncode and document["verdict"] in ("not ready", "warning")
    assert list(document["facts"]) == ["device", "machine", "driver", "trial"]
    page = (PROJECT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    rows = [line for line in page.partition("## JSON")[2].splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in rows] == list(document), "what is documented"

    facts = checked(DoctorFacts, document["facts"])
    text = render(facts, judge(facts))
    assert "GPU 3 (0000:3B:00.0)   is lost" in text
    assert "slice 3g.40gb, 39.4 GiB, MIG-8c4c5a27-e508-5556-b2ea-7e5494657401" in text
    assert "75 of 400 W, 345 MHz, 34 °C; PCIe ×16 of ×16; NVLink 18 up, 0 down" in text
    assert text.splitlines()[-1].startswith("verdict: ")
    findings = judge(replace(facts, machine=MACHINE, trial=TRIAL))  # with a TensorFlow that works
    assert verdict_line(findings) == "warning: 9 findings"


def test_a_machine_without_a_fault_is_ready():
    assert judge(GOOD) == []
    assert verdict_line([]) == "ready"
    notes = [DoctorFinding(level=n, code="x", subject="x", seen="x", why="x") for n in (Level.NOTE, Level.WARNING)]
    assert (verdict_line(notes[:1]), verdict_line(notes)) == ("ready", "warning: 1 finding")
    assert render(GOOD, []).endswith("verdict: ready\n")
    on_cpu = DoctorFacts(device="cpu", machine=MACHINE, trial=replace(TRIAL, cuda=None, gpus=[], right=["CPU:0"]))
    assert judge(on_cpu) == [] and "driver" not in render(on_cpu, [])


@pytest.mark.tensorflow
def test_on_this_machine_it_ends_with_a_verdict_and_its_exit_code():
    done = doctor("--device=gpu")
    verdict = done.stdout.splitlines()[-1]
    expected = {0: "verdict: ready", 3: "verdict: warning", 4: "verdict: not ready"}[done.returncode]
    assert verdict.startswith(expected)
    assert "multiplied two matrices correctly on" in done.stdout
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        assert done.returncode == 4
        assert "no NVIDIA driver (NVML Shared Library Not Found)" in verdict
        assert verdict.endswith("; CPU cases can run")


def changed(gpu=None, driver=None, machine=None, trial=None):
    """Return the facts of the good machine with changes; those of `gpu` are of the first of its two GPUs."""
    gpus = [replace(GPU, **gpu or {}), replace(GPU, index=1)]
    of_driver = replace(DRIVER, **{"gpus": gpus} | (driver or {}))
    return replace(
        GOOD, driver=of_driver, machine=replace(MACHINE, **machine or {}), trial=replace(TRIAL, **trial or {})
    )


NO_CUDA = {"cuda": None, "gpus": [], "right": ["CPU:0"], "all_reduce": None}
CRASHED = {"problem": "crashed with SIGSEGV while summing over all GPUs"}


@pytest.mark.parametrize(
    ("part", "changes", "code", "level"),
    [
        ("gpu", {"temperature_celsius": 78.0}, "hot", Level.WARNING),
        ("gpu", {"name": "NVIDIA A100"}, "gpus_differ", Level.WARNING),
        ("machine", {"governors": {"powersave": 64, "performance": 64}}, "governor", Level.WARNING),
        ("machine", {"cpu_limit": 3.0}, "few_cpus", Level.WARNING),
        ("machine", {"other_cpu_share": 0.5}, "cpu_shared", Level.WARNING),
        ("machine", {"memory_available_bytes": 1 << 30}, "little_memory", Level.WARNING),
        ("machine", {"disk_free_bytes": 1 << 20}, "disk_full", Level.WARNING),
        ("machine", {"shm_bytes": 64 << 20}, "little_shm", Level.WARNING),
        ("machine", {"variables": {"CUDA_LAUNCH_BLOCKING": "1"}}, "variable", Level.WARNING),
        ("trial", NO_CUDA, "cpu_build", Level.BLOCKER),
        ("trial", {"missing": {"libcudnn.so.9": "not found"}}, "libraries_missing", Level.WARNING),
        ("trial", {"gpus": []}, "gpus_not_seen", Level.BLOCKER),
        ("trial", {"gpus": ["H100"]}, "gpus_not_seen", Level.WARNING),
        ("trial", {"capabilities": ["sm_80", "compute_80"]}, "ptx_jit", Level.WARNING),
        ("trial", {"wrong": ["GPU:1"]}, "wrong_product", Level.BLOCKER),
        ("trial", {"all_reduce": False, "all_reduce_reason": "off by 0.5"}, "all_reduce_wrong", Level.BLOCKER),
        ("trial", CRASHED, "tensorflow_failed", Level.BLOCKER),
    ],
)
def test_a_fault_is_found_with_its_reason(part, changes, code, level):
    (finding,) = judge(changed(**{part: changes}))
    assert (finding.code, finding.level) == (code, level) and finding.why and finding.seen
    assert finding.fix or part != "machine"


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": {"variables": {"CUDA_LAUNCH_BLOCKING": "0", "LD_LIBRARY_PATH": "/usr/lib"}}},
        {"machine": {"governors": {"performance": 64, "schedutil": 64}}},
        {"driver": {"gpus": [replace(GPU, index=index, nvlinks_down=4) for index in (0, 1)]}},  # without a bridge
        {
            "machine": {"shm_bytes": 64 << 20},  # limits of several GPUs
            "driver": {"gpus": [GPU], "cuda_devices": ["H100"]},
            "trial": {"gpus": ["H100"]},
        },
    ],
)
def test_a_setting_that_costs_nothing_is_no_finding(changes):
    assert judge(changed(**changes)) == []


def lacking():
    """Return the facts of a machine without a driver."""
    return replace(GOOD, driver=DriverFacts(problem=NO_LIBRARY))


AT_IMPORT = Trial(problem="ended with exit code 1 while importing TensorFlow")


@pytest.mark.parametrize(
    ("facts", "fix"),
    [
        (changed(trial=CRASHED), "NCCL_DEBUG=INFO"),
        (changed(trial={"problem": "crashed with SIGSEGV while listing its GPUs"}), "TF_CPP_MIN_LOG_LEVEL=0"),
        (replace(GOOD, trial=AT_IMPORT), "install TensorFlow"),
        (lacking(), "start a container with --gpus all"),
    ],
)
def test_what_stops_every_case_has_the_remedy_of_its_cause(facts, fix):
    (finding,) = judge(facts)
    assert finding.level is Level.BLOCKER and finding.fix.startswith(fix)
    if finding.code == "no_driver":
        assert verdict_line([finding]) == f"not ready: no NVIDIA driver ({NO_LIBRARY}); CPU cases can run"


@pytest.fixture(scope="module")
def one_gpu(tmp_path_factory):
    """Return the folder of a driver with a single GPU."""
    return build(FakeMachine(gpus=[FakeGPU(bus_id="0000:18:00.0", uuid="GPU-a")]), tmp_path_factory.mktemp("one"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "words", "fix"),
    [
        ("18", "Driver/library version mismatch", "restart the machine"),
        ("9", "planted", "sudo modprobe nvidia"),
        ("4", "planted", "access to /dev/nvidia*"),
        ("999", "planted", "restart the machine"),
    ],
)
def test_a_driver_that_does_not_work_has_its_own_words_and_a_remedy(code, words, fix, one_gpu):
    variables = {"LD_LIBRARY_PATH": str(one_gpu), "FAKE_NVML_INIT": code}
    facts = driver_from(*ask(["tfbench.doctor.facts"], DRIVER_STAGES, 60.0, **variables))
    (finding,) = judge(replace(GOOD, driver=facts, trial=replace(TRIAL, gpus=[])))
    assert (finding.code, finding.level) == ("no_driver", Level.BLOCKER)
    assert finding.seen == f"the NVIDIA driver does not work ({words} (NVML {code}))" and fix in finding.fix
    probed = run_python(one_gpu, "-m", "tfbench.probe", FAKE_NVML_INIT=code)
    assert (probed["driver_problem"], probed["gpus"]) == (f"{words} (NVML {code})", [])
    assert fix in driver_fix(probed["driver_problem"])
    assert run_python(one_gpu, "-m", "tfbench.probe")["driver_problem"] is None


@pytest.mark.slow
def test_a_vgpu_is_named_with_its_licence_and_a_whole_gpu_is_none(tmp_path):
    names = ["NVIDIA A10-24Q"] * 3 + ["NVIDIA A10G", "GRID K520"]
    fakes = [
        FakeGPU(bus_id=f"0000:0{place}:00.0", uuid=f"GPU-{place}", name=name, licensed=licensed, power_limit=-1)
        for place, (name, licensed) in enumerate(zip(names, (-1, 0, 1, -1, -1), strict=True))
    ]
    states = run_python(build(FakeMachine(gpus=fakes), tmp_path), "-m", "tfbench.probe")["gpu_states"]
    found = [health_warnings(checked(GPUFacts, state), Moment.IDLE) for state in states]
    assert [[(warning.code, warning.seen) for warning in of_gpu] for of_gpu in found] == [
        [("vgpu", "NVIDIA A10-24Q is a vGPU, its licence unknown")],
        [("vgpu", "NVIDIA A10-24Q is a vGPU, unlicensed")],
        [("vgpu", "NVIDIA A10-24Q is a vGPU, licensed")],
        *[[]] * 2,
    ]
    assert states[0]["power_limit_watts"] is None


def test_without_tensorflow_not_even_the_cpu_is_ready():
    assert not verdict_line(judge(replace(GOOD, trial=AT_IMPORT))).endswith("CPU cases can run")
    on_cpu = DoctorFacts(device="cpu", machine=MACHINE, trial=replace(TRIAL, problem="crashed with SIGILL"))
    assert not verdict_line(judge(on_cpu)).endswith("CPU cases can run")


@pytest.mark.slow
def test_a_machine_without_tensorflow_is_diagnosed(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ModuleNotFoundError(\"No module named 'tensorflow'\")")
    done = doctor("--device=cpu", PYTHONPATH=str(tmp_path))
    assert done.returncode == 4
    assert "No module named 'tensorflow'" in done.stdout and "fix: install TensorFlow" in done.stdout


@pytest.mark.slow
def test_cuda_that_does_not_start_has_the_remedy_of_its_error(one_gpu):
    variables = {"LD_LIBRARY_PATH": str(one_gpu), "FAKE_CUDA_INIT": "802"}
    facts = driver_from(*ask(["tfbench.doctor.facts"], DRIVER_STAGES, 60.0, **variables))
    assert facts.cuda_problem == "cuInit failed with CUDA_ERROR_SYSTEM_NOT_READY (802)"
    findings = judge(replace(GOOD, driver=facts, trial=replace(TRIAL, gpus=[])))
    (finding,) = [finding for finding in findings if finding.code == "cuda_not_ready"]
    assert "restart nvidia-fabricmanager" in (finding.fix or "")


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("hang", "did not answer in 4 s while listing its GPUs"),
        ("crash", "crashed with SIGSEGV while listing its GPUs"),
    ],
)
@pytest.mark.slow
def test_a_child_that_ends_badly_says_where_and_what_it_last_printed(way, words):
    reported, problem = ask(["tests.real.training.misbehaving", way], TRIAL_STAGES, 4.0 if way == "hang" else 60.0)
    assert reported["tensorflow"] == "2.21.0", "what was said before the end counts"
    assert problem == f"{words}: E0000 CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error"


def test_where_cuda_hangs_what_nvml_reported_still_counts():
    reported, problem = {"version": "550.54.14", "gpus": [{"index": 0}]}, "did not answer in 20 s while starting CUDA"
    facts = driver_from(reported, problem)
    assert (facts.version, len(facts.gpus), facts.cuda_problem) == ("550.54.14", 1, problem)
    assert driver_from({}, problem).problem == f"the driver {problem}"


@pytest.mark.tensorflow
def test_an_all_reduce_is_tried_for_real(two_replicas):
    assert all_reduces(["CPU:0", "CPU:1"]) == {"all_reduce": True, "all_reduce_reason": None}
    assert all_reduces(["GPU:0"]) == {"all_reduce": None, "all_reduce_reason": "one GPU"}
    assert all_reduces([]) == {"all_reduce": None, "all_reduce_reason": "no_gpu"}


def test_the_machine_is_read_from_the_kernels_files(tmp_path):
    files = {
        "proc/loadavg": "3.50 2.00 1.00 1/100 42\n",
        "proc/meminfo": "MemTotal: 2000 kB\nMemAvailable:    1000 kB\n",
    }
    for cpu, governor in enumerate(("powersave", "powersave", "performance")):
        files[f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"] = f"{governor}\n"
    write_files(tmp_path, files)
    facts = read_machine(tmp_path)
    assert facts.governors == {"powersave": 2, "performance": 1}
    assert (facts.load, facts.memory_available_bytes) == (3.5, 1_024_000)
    assert facts.shm_bytes is None
