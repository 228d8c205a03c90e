"""The limits of a device are measured by one repeat of a run on a host; the others are given them."""

import dataclasses

import pytest

from orchestrate.engines.invocation import host_flags
from orchestrate.running.context import DevicePeaks
from results.schema import Case, Device, Precision, Status
from tests.unit.orchestrate.fakes import make_job
from tests.unit.results.factory import make_measurement, make_record
from tfbench.flags import parse

CASE = Case(model="resnet50", num_gpus=2, batch_per_gpu=8, num_steps=4)
JOB = dataclasses.replace(make_job(CASE, image_digest="sha256:1"), gpus=(0, 1), gpu_uuids=("GPU-a", "GPU-b"))


def measured(*, case=CASE, warnings=(), **changes):
    peaks = {"peak_flops_per_second": 2e13, "peak_bytes_per_second": 8e11} | changes
    record = make_record(case=case, warnings=warnings)
    return dataclasses.replace(record, measurement=dataclasses.replace(make_measurement(case, 100.0), **peaks))


def after(*records, job=JOB, first=JOB):
    peaks = DevicePeaks()
    for record in records:
        peaks.add(first, record)
    return peaks.of(job)


def test_the_next_repeat_is_given_the_limits_of_one_device():
    assert after(measured()) == (1e13, 4e11)
    cpu = dataclasses.replace(JOB, case=dataclasses.replace(CASE, device=Device.CPU))
    assert after(measured(case=cpu.case), job=cpu, first=cpu) == (2e13, 8e11), "logical devices are one processor"
    figures = [{"peak_flops_per_second": x, "peak_bytes_per_second": y} for x, y in ((2e13, 8e11), (3e13, 4e11))]
    best = after(*(measured(**figure) for figure in figures))
    assert best == (1.5e13, 4e11), "the best counts: what had to be measured again was too low"


@pytest.mark.parametrize(
    ("job", "record"),
    [
        (dataclasses.replace(JOB, case=dataclasses.replace(CASE, precision=Precision.FP16)), measured()),
        (dataclasses.replace(JOB, gpu_uuids=("GPU-c", "GPU-b")), measured()),
        (dataclasses.replace(JOB, origin=dataclasses.replace(JOB.origin, image_digest="sha256:2")), measured()),
        (dataclasses.replace(JOB, case=dataclasses.replace(CASE, num_hosts=2)), measured()),
        (JOB, measured(warnings=["throttled_power"])),
        (JOB, measured(warnings=["above_peak"])),
        (JOB, measured(peak_bytes_per_second=None)),
        (JOB, measured(peaks_reused=True)),
        (JOB, dataclasses.replace(measured(), status=Status.OOM)),
    ],
)
def test_limits_of_another_device_or_too_low_ones_are_not_passed_on(job, record):
    assert after(record, job=job) is None


def test_the_command_line_carries_them():
    job = dataclasses.replace(JOB, known_peaks=(1.25e13, 4e11))
    (flag,) = host_flags(job, None)
    known = parse(["--model=resnet50", flag]).options.known_peaks
    assert known == (1.25e13, 4e11)
    assert host_flags(JOB, None) == []
