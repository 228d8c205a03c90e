"""What a host left becomes a record; a record that cannot be believed does not."""

import dataclasses
import itertools
import json
import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest

from orchestrate.engines.base import Ending
from orchestrate.engines.invocation import benchmark_flags
from orchestrate.inventory.hosts import Host
from orchestrate.planning.durations import clock_seconds
from orchestrate.running.context import DevicePeaks
from orchestrate.running.judge import Attempt, contradictions, judge
from results.schema import Case, Device, Precision, Record, Status
from results.schema.enums import SUSPECT
from results.schema.record_json import MAX_RECORD_BYTES, to_json
from tests.unit.orchestrate.fakes import NOW, make_job, ok_record
from tests.unit.results.factory import make_measurement, make_record
from tfbench.flags import parse

CASE = Case(model="resnet50", batch_per_gpu=2, num_steps=4)
JOB = make_job(CASE)
DONE = Ending(exit_code=0)


def judged(payload: bytes | None, ending: Ending = DONE, **options: object) -> Record:
    ending = dataclasses.replace(ending, record=payload)
    return judge(JOB, Attempt(ending=ending, started_at=NOW, **{"reattached": True, **options}))


def changed(**changes: object) -> bytes:
    return json.dumps({**json.loads(to_json(ok_record(CASE))), **changes}).encode()


def test_a_good_record_gets_its_origin_from_us_and_may_have_a_key_more():
    lied = dataclasses.asdict(dataclasses.replace(JOB.origin, fleet="other", usd_per_gpu_hour=0.01))
    record = judged(changed(origin=lied, surprise=1))
    assert record.status is Status.OK and record.origin == JOB.origin


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"", "not JSON"),
        (b"{}", "schema_version"),
        (b'{"schema_version": 99}', "Received: 99"),
        (b"x" * (MAX_RECORD_BYTES + 1), "larger than"),
        (changed(case=None), "case: must be an object"),
        (changed(status="great"), "status: must be 'ok', 'oom'"),
        (changed(validity=None), "validity is missing"),
        (changed(validity={"valid": True, "checks": []}), "no validity check was made"),
        (b'{"schema_version": 1, "measurement": NaN}', "not JSON"),
    ],
)
def test_a_record_that_cannot_be_believed_is_a_bad_result_with_its_reason(payload: bytes, said: str):
    record = judged(payload)
    assert record.status is Status.BAD_RESULT
    assert said in (record.cause or "")
    assert record.measurement is None and record.case == CASE


def test_a_record_of_another_case_or_a_failed_process_is_bad_result():
    other = judged(to_json(ok_record(dataclasses.replace(CASE, batch_per_gpu=4))).encode())
    assert other.status is Status.BAD_RESULT and "another case" in (other.cause or "")
    assert judged(changed(), Ending(exit_code=1)).status is Status.BAD_RESULT


def test_every_text_of_a_good_record_is_cleaned_and_no_figure_is_lost():
    good = ok_record(CASE)
    assert good.environment is not None
    hostile = dataclasses.replace(good, environment=dataclasses.replace(good.environment, cpu="\x1b[2Jcpu \u202e9"))
    record = judged(to_json(hostile).encode())
    assert record.environment == dataclasses.replace(good.environment, cpu="cpu 9")
    assert record.measurement == good.measurement and record.validity == good.validity


@pytest.mark.parametrize(
    ("ending", "status", "said"),
    [
        (Ending(exit_code=137, out_of_memory=True), Status.OOM, "memory"),
        (Ending(exit_code=137), Status.ERROR, "SIGKILL"),
        (Ending(exit_code=1, detail="engine's word"), Status.ERROR, "engine's word"),
        (Ending(exit_code=0), Status.BAD_RESULT, "left no record"),
        (Ending(exit_code=None), Status.LOST, "while no controller was following it"),
    ],
)
def test_without_a_record_the_ending_decides(ending: Ending, status: Status, said: str):
    record = judged(None, ending, last_line="last words")
    assert record.status is status and said in (record.cause or "")
    assert status is Status.OOM or "last words" in (record.cause or "")
    assert ("kernel may have" in (record.cause or "")) is (said == "SIGKILL")


def test_what_we_ended_says_why_and_what_others_ended_is_lost():
    reason = (Status.TIMEOUT, "took too long")
    assert judged(None, Ending(exit_code=143), stopped_for=reason).status is Status.TIMEOUT
    own = Record(status=Status.STOPPED, case=CASE, cause="SIGTERM", started_at=NOW, finished_at=NOW)
    assert judged(to_json(own).encode(), Ending(exit_code=3), stopped_for=reason).cause == "took too long"
    record = judged(to_json(own).encode(), Ending(exit_code=3))
    assert record.status is Status.LOST and "not ended by tfbench" in (record.cause or "")


AT = datetime.now(UTC)


def stamp(**ago: float) -> str:
    return (AT - timedelta(**ago)).isoformat(timespec="seconds")


@pytest.mark.parametrize(
    ("started", "finished", "observed", "said"),
    [
        (stamp(seconds=30), stamp(), 30.0, ""),
        (stamp(hours=-5), stamp(hours=-5), 30.0, ""),
        ("1999-01-01T00:00:00+00:00", stamp(), 30.0, "dated 1999-01-01"),
        (stamp(days=-400), stamp(days=-400), 30.0, "but this controller's clock shows"),
        (stamp(), stamp(seconds=30), 30.0, "before it started"),
        (stamp(seconds=30), stamp(), 5.0, "104 s of work, but its process ran for 5 s"),
    ],
    ids=itertools.count(),  # no times in names: every worker must collect the same ones
)
def test_a_record_that_contradicts_the_controllers_clock_is_suspect(started, finished, observed, said):
    seconds = 2.0 if observed == 30.0 else 100.0
    record = dataclasses.replace(ok_record(CASE, seconds), started_at=started, finished_at=finished)
    found = contradictions(record, observed)
    assert (said in found[0] and len(found) == 1) if said else found == []
    warned = judged(to_json(record).encode(), reattached=False, began=clock_seconds() - observed).warnings
    assert [warning.code for warning in warned] == [SUSPECT] * bool(said)


def test_a_record_of_few_bytes_and_many_values_takes_no_memory():
    payload = b'{"schema_version": 1, "a": [' + b"{}," * 2_700_000 + b"{}]}"
    tracemalloc.start()
    record = judged(payload)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert record.status is Status.BAD_RESULT
    assert most < 50e6, "the parsed values would take 200 MB"


# ---- limits of a device, measured by one repeat of a run on a host; the others are given them

PEAKS_CASE = Case(model="resnet50", num_gpus=2, batch_per_gpu=8, num_steps=4)
PEAKS_JOB = dataclasses.replace(
    make_job(PEAKS_CASE, image_digest="sha256:1"), gpus=(0, 1), gpu_uuids=("GPU-a", "GPU-b")
)


def measured(*, case=PEAKS_CASE, warnings=(), **changes):
    peaks = {"peak_flops_per_second": 2e13, "peak_bytes_per_second": 8e11} | changes
    record = make_record(case=case, warnings=warnings)
    return dataclasses.replace(record, measurement=dataclasses.replace(make_measurement(case, 100.0), **peaks))


def after(*records, job=PEAKS_JOB, first=PEAKS_JOB):
    peaks = DevicePeaks()
    for record in records:
        peaks.add(first, record)
    return peaks.of(job)


def test_the_next_repeat_is_given_the_limits_of_one_device():
    assert after(measured()) == (1e13, 4e11)
    cpu = dataclasses.replace(PEAKS_JOB, case=dataclasses.replace(PEAKS_CASE, device=Device.CPU))
    assert after(measured(case=cpu.case), job=cpu, first=cpu) == (2e13, 8e11), "logical devices are one processor"
    best = after(measured(), measured(peak_flops_per_second=3e13, peak_bytes_per_second=4e11))
    assert best == (1.5e13, 4e11), "the best counts: what had to be measured again was too low"


@pytest.mark.parametrize(
    ("job", "record"),
    [
        (dataclasses.replace(PEAKS_JOB, case=dataclasses.replace(PEAKS_CASE, precision=Precision.FP16)), measured()),
        (dataclasses.replace(PEAKS_JOB, gpu_uuids=("GPU-c", "GPU-b")), measured()),
        (
            dataclasses.replace(PEAKS_JOB, origin=dataclasses.replace(PEAKS_JOB.origin, image_digest="sha256:2")),
            measured(),
        ),
        (dataclasses.replace(PEAKS_JOB, case=dataclasses.replace(PEAKS_CASE, num_hosts=2)), measured()),
        (PEAKS_JOB, measured(warnings=["throttled_power"])),
        (PEAKS_JOB, measured(peaks_reused=True)),
        (PEAKS_JOB, dataclasses.replace(measured(), status=Status.OOM)),
    ],
)
def test_limits_of_another_device_or_too_low_ones_are_not_passed_on(job, record):
    assert after(record, job=job) is None


def test_the_command_line_carries_them():
    for known in ((1.25e13, 4e11), None):
        flags = benchmark_flags(dataclasses.replace(PEAKS_JOB, known_peaks=known), Host(fleet="f", name="h"), None)
        assert parse(flags).options.known_peaks == known
