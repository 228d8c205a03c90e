"""Lies that are cheap to see are in no mean, and named; so are hosts and repeats that differ by more than noise."""

import dataclasses

import pytest

import results.__main__ as program
from results.reference import all_published
from results.reference.gpus import specified_gpus
from results.reference.networks import networks
from results.schema import SoftWarning, Status
from results.schema.enums import SUSPECT
from results.table.columns import Software
from results.table.fleets import FleetRate, outliers
from results.table.merge import highest_rate, merge_records
from tests.support import PROJECT
from tests.unit.results.factory import make_case, make_environment, make_record, repeats, stored, write_run

GPU_CASE = make_case(device="gpu", precision="fp16", batch_per_gpu=64)
MEASURED = PROJECT / "results" / "reference" / "measured"


def with_figures(record, **changes):
    return dataclasses.replace(record, measurement=dataclasses.replace(record.measurement, **changes))


@pytest.mark.parametrize(
    ("rate", "case", "gpu", "suspect"),
    [
        (2e6, make_case(), None, False),  # a CPU's peak is unknown
        (535.0, GPU_CASE, "NVIDIA RTX A4000", False),
        (1e4, GPU_CASE, "NVIDIA RTX A4000", True),
        (3e4, dataclasses.replace(GPU_CASE, num_gpus=4), "NVIDIA RTX A4000", False),
        (4e4, dataclasses.replace(GPU_CASE, num_gpus=4), "NVIDIA RTX A4000", True),
        (1e7, GPU_CASE, "a GPU of tomorrow", True),
        (1e7, dataclasses.replace(GPU_CASE, model="a_network_of_mine"), "NVIDIA RTX A4000", False),
    ],
)
def test_a_rate_above_the_roofline_of_its_hardware_is_suspect(rate, case, gpu, suspect):
    environment = make_environment(gpus=1, gpu=gpu) if gpu else make_environment()
    merged = merge_records(stored(make_record(rate, case=case, environment=environment)))
    (row,) = merged.rows
    assert (merged.suspects, row.status) == ((1, "invalid") if suspect else (0, "ok"))
    assert not suspect or f"{rate:.3g} images/s, but its hardware can compute at most" in row.cause


def test_published_rates_are_below_the_roofline():
    known = [
        row
        for row in all_published()
        if not row["suspect"] and row["precision"] in ("fp32", "fp16", "tf32") and specified_gpus(row["gpu"])
        if row["model"] in networks() and not networks()[row["model"]]["sequences"]
    ]
    assert len(known) > 100
    for row in known:
        case = make_case(row["model"], precision=row["precision"], device="gpu", num_gpus=int(row["num_gpus"]))
        rate = float(row["samples_per_second"])
        record = make_record(rate, case=case, environment=make_environment(gpus=case.num_gpus, gpu=row["gpu"]))
        assert rate < highest_rate(record), row


def test_the_same_step_times_in_two_repeats_are_a_copy():
    first, second, third, honest = repeats(10.0, 10.0, 10.0, 10.5)
    copies = [with_figures(record, step_seconds=[0.71, 0.72, 0.73, 0.74]) for record in (first, second, third)]
    merged = merge_records(stored(*copies, with_figures(honest, step_seconds=[0.71, 0.72, 0.73, 0.75])))
    (row,) = merged.rows
    assert (row.repeats_ok, row.repeats, row.samples_per_second) == (1, 4, pytest.approx(10.5))
    assert "exactly the same step times" in row.cause and "suspect (3 of 4)" in row.warnings
    assert merged.suspects == 3 and any("3 suspect, in no mean" in problem for problem in merged.problems)


@pytest.mark.parametrize(("fast", "suspects"), [(100.0, set()), (120.0, {"b"})])
def test_a_host_at_ten_times_its_fleets_rate_is_suspect(fast, suspects):
    rates = {"a": 10.0, "b": fast, "c": 11.0}
    rows = merge_records(stored(*(r for host, rate in rates.items() for r in repeats(rate, rate + 1, host=host)))).rows
    assert {row.host for row in rows if row.repeats_ok == 0} == suspects
    assert all("× the median of the fleet's other hosts" in row.cause for row in rows if row.host in suspects)
    assert merge_records(stored(*repeats(10.0, host="a"), *repeats(500.0, host="b"))).suspects == 0, "which one lies?"


def test_table_and_report_name_what_the_controller_doubted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    dated = SoftWarning(code=SUSPECT, message="it is dated 1999-01-01,\x1b[31m but this controller's clock shows 2026")
    lies = [dataclasses.replace(lie, warnings=[dated]) for lie in repeats(9000.0, 9100.0, fleet="a5000", host="liar")]
    honest = [record for host in "xy" for record in repeats(150.0, 151.0, fleet="a5000", host=host)]
    folder = write_run(tmp_path, [*repeats(100.0, 101.0, warnings=("drift",)), *honest, *lies])
    page = tmp_path / "page.html"
    for command in (["show", "run-1"], ["report", "run-1", f"--output={page}"]):
        assert program.main(["results", *command]) == 0
        said = " ".join([*capsys.readouterr(), page.read_text() if page.exists() else ""])
        said = " ".join(said.split())
        assert "suspect" in said and "dated 1999-01-01" in said and "\x1b" not in said, command
        assert not any(figure in said for figure in ("9050", "9000 ±", "9100 ±")), command
    assert program.main(["results", "validate", "run-1"]) == 3
    out, err = capsys.readouterr()
    assert "liar: 2 suspect, in" in out and "drift (a4000/node-a): " in out and err == "6 good, 2 suspect, 0 bad\n"
    (row,) = [row for row in merge_records(folder.records()).rows if row.host == "liar"]
    assert (row.status, row.valid, row.repeats_ok, row.unit) == (Status.INVALID, False, 0, None)


def fleet(*means: float) -> FleetRate:
    rates = {f"host-{i}": {"run": [mean * 0.999, mean, mean * 1.001]} for i, mean in enumerate(means)}
    return FleetRate("a4000", GPU_CASE, Software(), rates)


def test_a_slow_host_among_equal_ones_is_named_with_its_figures():
    (found,) = outliers([fleet(100, 100.3, 99.8, 100.1, 88)])
    slower = "a4000/host-4 is 12.0% slower than the 4 other hosts of its fleet; an equal host would be within "
    assert found.startswith(f"{slower}-1.3% to +1.4%.")
    assert outliers([fleet(100, 100.01, 99.99, 100, 102)]) == [], "certain, but small: not worth a word"


def test_a_process_that_chose_another_algorithm_is_named_by_every_command(capsys):
    name = "process-h100, resnet50 fp32, batch 128: repeat 1 (1\u00a0069 images/s) differs by -3.5% from the 1 other"
    run = str(MEASURED / "h100-container-2026-11-28" / "runs" / "main")
    for command in ("show", "compare", "export", "validate"):
        assert program.main(["results", command, run]) == 0
        text = " ".join(" ".join(capsys.readouterr()).replace("\u00a0", " ").split())
        assert text.count(name.replace("\u00a0", " ")) == 1, command


@pytest.mark.parametrize(
    ("rates", "cv", "named"),
    [
        ((100.0, 100.1, 96.6), 0.001, "differs by -3.4% from the 2 others"),
        ((100.0, 99.9, 100.2, 100.1, 103.5), 0.001, "differs by +3.4% from the 4 others"),
        ((100.0, 100.1, 96.6), 0.05, ""),  # its steps vary, too
        ((100.0, 100.1, 98.5), 0.001, ""),  # little
        ((100.0, 103.0, 97.0, 104.0, 95.0), 0.001, ""),  # none agree
        ((96.6,), 0.001, ""),
    ],
)
def test_only_a_repeat_that_differs_by_more_than_its_steps_is_named(tmp_path, capsys, rates, cv, named):
    folder = write_run(tmp_path, [with_figures(record, step_cv=cv) for record in repeats(*rates)])
    assert program.main(["results", "show", str(folder.path)]) == 0
    text = " ".join(" ".join(capsys.readouterr()).split())
    assert (f"repeat {len(rates)} ({rates[-1]:.4g}" in text and named in text) if named else "algorithm" not in text
