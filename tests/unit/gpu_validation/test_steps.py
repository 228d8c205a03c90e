"""The table of steps: what it runs is understood by what it calls; and what is read from records, probes and peers."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from results.schema import Check, DeviceResult, Mode, Record, Status, Telemetry, Validity
from results.schema.case import case_refusal
from results.schema.networks import NETWORKS
from results.schema.record_json import to_json
from studies.gpu_validation.figures import Ended, Figure, NoFigure, read_step
from studies.gpu_validation.steps import STEPS, Machine, refusal, runs_of
from tests.unit.results.factory import make_case, make_failure, make_record
from tfbench.flags import parse


def gpus(count: int, gib: float = 80.0) -> Machine:
    return Machine(gpus=[{"name": "NVIDIA H100", "memory_bytes": int(gib * 2**30)}] * count, peer=Path())


@pytest.mark.parametrize(("machine", "at_least"), [(gpus(0), 7), (gpus(1), 55), (gpus(8), 60)])
def test_every_benchmark_of_the_table_is_a_case_that_can_run(machine: Machine, at_least: int):
    commands = [
        [part.replace("{gpus}", "8").replace("{seconds}", "60") for part in run.command]
        for step in STEPS
        if refusal(step, machine) is None
        for run in runs_of(step, machine, 1)
    ]
    asked = [parse(command[command.index("tfbench") + 1 :]).case for command in commands if "tfbench" in command]
    assert len(asked) >= at_least and all(case_refusal(case, NETWORKS.get(case.model)) is None for case in asked)
    assert {case.device for case in asked} == {"gpu" if machine.gpus else "cpu"}


@pytest.mark.parametrize(
    ("gib", "name", "batch"),
    [(23.6875, "throughput.bert_large-fp32-xla-replica", "32"), (16, "peer.resnet50-fp32-b256", "128")],
)
def test_batches_are_halved_until_they_fit_the_gpu_on_both_sides(gib: float, name: str, batch: str):
    (step,) = [step for step in STEPS if step.name == name]
    commands = " ".join(" ".join(run.command) for run in runs_of(step, gpus(1, gib), 1))
    assert set(re.findall(r"--batch_size=(\d+)", commands)) == {batch}


def ended(folder: Path, record: Record | str = "", *, name: str = "run", exit_code: int | None = 0, log="") -> Ended:
    files = folder / f"{name}.json", folder / f"{name}.log"
    files[1].write_text(log)
    if record:
        files[0].write_text(record if isinstance(record, str) else to_json(record))
    return Ended(name=name, command=[], seconds=12.0, exit_code=exit_code, record=files[0], log=files[1])


def cause_of(answer: str, *runs: Ended) -> str:
    with pytest.raises(NoFigure) as error:
        read_step(answer, runs)
    return f"{error.value.outcome}: {error.value.cause}"


OFF = Check(name="update_equals_one_device", passed=False, detail="too far", value=0.07, limit=0.05)
CHECKS = [Check(name="loss_finite", passed=True, detail=""), OFF, Check(name="equal", passed=None, detail="")]
FAILED = {"validity": Validity(valid=False, checks=CHECKS), "measurement": None, "cause": "a check failed"}
DEVICE = [
    DeviceResult(metric="matrix_product", unit="FLOP/s", arithmetic="fp16", value=9.9e14, amount=9.9e14, seconds=1.0),
    DeviceResult(metric="memory_add", unit="B/s", value=4.1e12, amount=4.1e12, seconds=1.0),
    DeviceResult(metric="matrix_product", unit="FLOP/s", arithmetic="fp64", reason="too slow"),
]
ON_DEVICE = make_record(case=make_case("device", mode=Mode.DEVICE, batch_norm="none"), device_results=DEVICE)
UNFIT = '{"verdict": "not ready", "summary": "not ready: a product was wrong",\n "findings": [{}]}\n'
DOCTOR = 'loading {libraries}\n{"summary": "warning: 1 finding",\n "findings": [{"code": "power_cap"}]}\n'


@pytest.mark.parametrize(
    ("record", "figures", "details", "note"),
    [
        (
            make_record(250.0, telemetry=Telemetry(power_mean_watts=640.0), warnings=("high_cv",)),
            {"throughput": Figure(250.0, "images/s")},
            {"power_mean_watts": 640.0},
            "high_cv",
        ),
        (
            replace(make_record(), status=Status.INVALID, **FAILED),
            {"checks_passed": Figure(1, "of 2 checks"), OFF.name: Figure(0.07, "", 0.05)},
            {},
            "FAILED update_equals_one_device: too far",
        ),
        (
            replace(ON_DEVICE, measurement=None),
            {"matrix_product-fp16": Figure(990.0, "TFLOP/s"), "memory_add": Figure(4100.0, "GB/s")},
            {"matrix_product-fp64_not_measured": "too slow"},
            "",
        ),
        (DOCTOR, {"findings": Figure(1, "findings")}, {}, "warning: 1 finding"),
    ],
    ids=["throughput", "failed check", "device", "doctor"],
)
def test_figures_come_from_what_a_program_left_whatever_its_exit_code(tmp_path, record, figures, details, note):
    reading = read_step(next(iter(figures)), [ended(tmp_path, record, exit_code=3, log="9999 images/s")])
    assert reading.figures.items() >= figures.items() and reading.note == note
    assert reading.details.items() >= details.items() and None not in reading.details.values()


@pytest.mark.parametrize(
    ("answer", "left", "cause"),
    [
        (
            "checks_passed",
            {"record": replace(make_record(), status=Status.OOM, **FAILED)},
            "failed: oom: a check failed",
        ),
        ("throughput", {"record": make_failure("timeout", "not finished")}, "timeout: timeout: not finished"),
        (
            "throughput",
            {"log": "Segmentation fault\n\n", "exit_code": -11},
            "failed: exit code -11: Segmentation fault",
        ),
        ("findings", {"record": UNFIT, "exit_code": 4}, "failed: not ready: a product was wrong"),
    ],
)
def test_what_measured_nothing_gives_its_cause(tmp_path: Path, answer: str, left: dict, cause: str):
    assert cause_of(answer, ended(tmp_path, **{"exit_code": 3, **left})) == cause


def test_a_comparison_that_breaks_keeps_its_whole_pairs(tmp_path: Path):
    records = {"ours-1": make_record(300.0, warnings=("drift",)), "ours-2": make_record(330.0)}
    runs = [ended(tmp_path, record, name=name) for name, record in records.items()]
    peer = ended(tmp_path, "Step 1\ntotal images/sec: 200.00\n", name="peer-1")
    cut = ended(tmp_path, name="peer-2", exit_code=None)
    reading = read_step("throughput", [runs[0], peer, runs[1], cut])
    assert (reading.figures["throughput"].value, reading.figures["throughput"].unit) == (1.5, "× peer")
    assert reading.note == "1 pair(s): 1.500 to 1.500; then peer-2: cut after 12 s; ours-1: drift"
    assert cause_of("throughput", runs[0], cut) == "timeout: peer-2: cut after 12 s"
