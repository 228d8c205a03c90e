"""What tables and panels say, and their numbers; how they look: tests/golden and `tests/unit/test_widths.py`."""

import dataclasses
import io
import json

import pytest
from rich.console import Console

from results.compare.comparison import compare
from results.report.page import make_report
from results.report.panels import rate_panels, ratio_panel
from results.report.tables import all_grids, device_grid, exported, readings_grid, results_grid, wide_grids
from results.runs.reading import from_json
from results.runs.time_breakdown import time_breakdown, time_breakdown_grid
from results.schema import DeviceResult, InputLimit, Latency, Mode, Origin, Phase, Status, Telemetry
from results.schema.record_json import RecordError, to_json
from results.stats import Interval
from results.table.columns import CASE_COLUMNS, COLUMNS, SOFTWARE_COLUMNS
from results.table.merge import merge_records
from results.text import significant, value_text, with_interval
from results.text_table import markdown, print_grid
from tests.unit.results.factory import (
    make_case,
    make_environment,
    make_failure,
    make_origin,
    make_record,
    rates_of,
    repeats,
    sides,
    stored,
    write_run,
)


def printed(merged, width=100):
    text = io.StringIO()
    for grid in all_grids(merged, brief=True):
        print_grid(grid, Console(file=text, width=width, color_system=None))
    return text.getvalue().replace("\u00a0", " ")


def test_variables_that_differ_within_a_line_split_it():
    other = make_environment(variables={"TF_XLA_FLAGS": "--tf_xla_auto_jit=2"})
    records = [*repeats(20.0, 21.0), *repeats(10.0, 11.0, environment=other, case=make_case(num_gpus=2))]
    (grid,) = wide_grids(merge_records(stored(*records)))
    found = [(row[grid.headings.index("variables")], *row[-2:]) for row in grid.rows]
    assert found == [("", "20 ± 6", ""), ("TF_XLA_FLAGS=--tf_xla_auto_jit=2", "", "10 ± 6")]


def test_a_host_without_a_number_is_marked_beside_the_number_of_its_fleet():
    lost = make_failure("unreachable", "refused", origin=make_origin(host="node-b"))
    (grid,) = wide_grids(merge_records(stored(*repeats(20.0, 21.0), lost)))
    assert [row[-1] for row in grid.rows] == ["20 ± 6 †"]
    assert "† without node-b (unreachable)" in grid.notes


def test_texts_of_a_host_are_not_read_as_markup_or_control_sequences():
    evil = make_failure("error", "[red]x[/] \x1b[31m | <b>", origin=make_origin(host="[bold]"))
    merged = merge_records(stored(evil, *repeats(1.0, 2.0)))
    assert "[red]x[/]" in printed(merged) and "[bold]" in printed(merged) and "\x1b" not in printed(merged)
    assert "\\[red\\]x" in markdown(results_grid(merged)) and "\\<b\\>" in markdown(results_grid(merged))


def test_no_records_say_so():
    assert "no records" in printed(merge_records([]))


def test_the_table_has_exactly_the_columns_of_the_dictionary():
    assert set(CASE_COLUMNS) | set(SOFTWARE_COLUMNS) <= set(COLUMNS)
    for records in ([], [make_record(100.0)]):
        table = merge_records(stored(*records)).table
        assert list(table.columns) == list(COLUMNS) and len(table) == len(records)
        assert {name: str(dtype) for name, dtype in table.dtypes.items()} == {n: c.dtype for n, c in COLUMNS.items()}


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (9812.4, 14.2, "9 812 ± 14"),
        (1.9412, 0.052, "1.94 ± 0.05"),
        (1.9412, 0.012, "1.941 ± 0.012"),
        (123456.0, 1500.0, "123 500 ± 1 500"),
        (1.5489, 66.9, "2 ± 70"),
        (0.31, 66.9, "0.3 ± 70"),
        (0.0, 66.9, "0 ± 70"),
        (9812.4, None, "9 812"),
        (11.23456, None, "11.23"),
        (5.0, 0.0, "5.000"),
        (0.0, None, "0"),
        (453.2, 5.7e-14, "453.2"),  # the rounding of three equal repeats
    ],
)
def test_the_digits_of_the_error_decide_the_digits_of_the_number(value, error, text):
    interval = None if error is None else Interval(value, value - error, value + error)
    assert value_text(value, interval).replace("\u00a0", " ") == text


def test_an_unknown_uncertainty_is_not_written_as_a_number():
    assert with_interval(Interval(2.0)) == "2.000"


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (1.51, 1.078, 2.114, "1.51 (1.08–2.11)"),
        (1.5699, 1.5666, 1.5731, "1.570 ± 0.003"),
        (1.141, 1.1276, 1.1554, "1.141 ± 0.014"),  # less than a unit of the last place
        (5652.0, 5632.0, 5687.0, "5 652 (5 632–5 687)"),
        (1.05, 1.004, 1.096, "1.050 ± 0.046"),  # significant: 1.05 ± 0.05 would include 1
        (1.05, 0.996, 1.104, "1.05 ± 0.05"),
        (0.97, 0.94, 0.9997, "0.9700 (0.9400–0.9997)"),
    ],
)
def test_an_interval_is_printed_with_both_ends_unless_its_sides_are_equal(value, low, high, text):
    assert with_interval(Interval(value, low, high)).replace("\u00a0", " ") == text


def test_significant_digits_are_written_without_exponent():
    assert [significant(value) for value in (1493.4, 0.01234, 26.61)] == ["1\u00a0493", "0.0123", "26.6"]


def test_bars_of_speed_start_at_zero_and_a_failed_case_has_its_status():
    failed = make_failure("oom", case=make_case("vgg16"), origin=make_origin("slow"))
    fits = [*repeats(99.0, 100.0, fleet="slow"), *repeats(150.0, 151.0, fleet="quick")]
    (speed,) = rate_panels(rates_of(*fits, failed, *repeats(70.0, fleet="quick", case=make_case("vgg16"))))
    slow, quick = speed.bars[:2]
    assert speed.place(quick.value) / speed.place(slow.value) == pytest.approx(quick.value / slow.value, rel=1e-3)
    assert speed.place(0.0) == 0.0
    assert [row[1:] for row, bar in zip(speed.rows, speed.bars, strict=True) if not bar] == [["slow", "oom"]]


def test_a_ratio_is_drawn_within_its_interval_or_names_what_does_not_fit():
    failed = make_failure("oom", case=make_case("vgg16"), origin=make_origin("b"))
    vgg = repeats(70.0, 70.1, fleet="a", case=make_case("vgg16"))
    found = compare(*sides(*repeats(150.0, 150.3, fleet="a"), *repeats(100.0, 100.2, fleet="b"), *vgg, failed))
    panel = ratio_panel([("a", "b", found)])
    (bar,) = (bar for bar in panel.bars if bar)
    assert panel.place(1.0) < panel.place(bar.low) < panel.place(bar.value) < panel.place(bar.high) <= 100
    assert [row[-1] for row in panel.rows if "vgg16" in row[0]] == ["b: oom"]


def filled(part, **changes):
    """Return a part of a record with a number for each value that is missing."""
    missing = [field.name for field in dataclasses.fields(part) if getattr(part, field.name) is None]
    return dataclasses.replace(part, **{**dict.fromkeys(missing, 1.5), **changes})


def test_every_figure_of_a_record_is_a_column_or_among_the_readings():
    record, *_ = repeats(20.0)
    limit = InputLimit(**{field.name: 1 for field in dataclasses.fields(InputLimit)})
    environment, telemetry = filled(record.environment), filled(Telemetry())
    measured = filled(record.measurement, input_limit=limit)
    full = dataclasses.replace(record, environment=environment, measurement=measured, telemetry=telemetry)
    grid = readings_grid(stored(full, full))
    known = {*COLUMNS, *(heading.replace(" ", "_") for heading in grid.headings)}
    elsewhere = {"utilisation", "latency", "ranks", "step_seconds", "gpus", "wheel_compute_capabilities", "variables"}
    recorded = {field.name for part in (environment, measured, telemetry, limit) for field in dataclasses.fields(part)}
    assert recorded - known - elsewhere == {"input_limit"}, "whose fields are there"
    assert dict(zip(grid.headings, grid.rows[0], strict=True))["loss first"] == "6.90"
    assert readings_grid([]) is None


def result(metric, value, unit="B/s", *, size=1024, **changes):
    return DeviceResult(metric=metric, unit=unit, amount=value * 0.5, seconds=0.5, value=value, size=size, **changes)


def device_record(factor, *, host="node-a", repeat=1, tensorflow="2.21.0"):
    product = "matrix_product"
    results = [
        result("memory_add", 400e9 * factor),
        result(product, 19.2e12 * factor, "FLOP/s", arithmetic="fp32"),
        result(product, 0.3e12 * factor, "FLOP/s", arithmetic="fp64"),
        DeviceResult(metric=product, unit="FLOP/s", arithmetic="tf32", reason="needs Ampere"),
        result("all_reduce", 12e9 * factor, devices=2, size=2**24),
        result("all_reduce", 1e9 * factor, devices=2, size=2**20),
    ]
    case = make_case("device", mode=Mode.DEVICE, batch_per_gpu=1, device="gpu", num_gpus=2)
    environment = make_environment(gpus=2, tensorflow=tensorflow)
    record = make_record(case=case, origin=make_origin(host=host, repeat=repeat), environment=environment)
    return dataclasses.replace(record, measurement=None, device_results=results)


def test_a_cell_is_the_mean_over_repeats_of_a_host_and_software():
    again = [device_record(factor, repeat=n) for n, factor in enumerate((1.0, 1.01, 0.99), start=1)]
    grid = device_grid([*again, device_record(2.0, host="node-b"), device_record(1.0, repeat=4, tensorflow="2.20.0")])
    assert grid.headings == ["metric", "unit", "a4000/node-a (1)", "a4000/node-b", "a4000/node-a (2)"]
    rows = {row[0]: row[1:] for row in grid.rows}
    assert rows["matrix product fp64"] == ["TFLOP/s", "0.300 ± 0.007", "0.6000", "0.3000"]
    assert rows["matrix product tf32"] == ["TFLOP/s", *["not measured"] * 3]
    assert rows["all-reduce, bus ×2, 1 MiB"] == ["GB/s", "1.000 ± 0.025", "2.000", "1.000"]
    assert "a4000/node-a (2): NVIDIA RTX A4000, power limit 140 W, TensorFlow 2.20.0" in grid.notes
    assert grid.notes[-1].startswith("matrix product tf32 on ") and grid.notes[-1].endswith(": needs Ampere")


def test_devices_stand_beside_networks_or_alone_in_every_view():
    alone, both = ([device_record(1.0), *more] for more in ([], repeats(10.0, 11.0)))
    assert [grid.title for grid in all_grids(merge_records(stored(*alone)))] == ["Devices"]
    merged = merge_records(stored(*both))
    assert [grid.title for grid in all_grids(merged)][:2] == ["Results of a4000/node-a", "Devices"]
    assert len(merged.table) == len(merged.devices) == 1
    assert "matrix product fp32" in exported(merged, "markdown")
    assert "matrix product fp32" in make_report(stored(*alone), "t").page
    devices = json.loads(exported(merged, "json"))["devices"]
    assert [(row["host"], row["metric"]) for row in devices[:1]] == [("node-a", "memory_add")]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"value": 2.0}, r"amount is .*, but its other figures give"),
        ({"value": 0.0}, "must be a number between 1e-30 and"),
        ({"value": None, "reason": None}, "neither a value nor a reason"),
        ({"seconds": None}, "but its other figures give 0.0"),
        (None, "measurement, environment or validity is missing"),
    ],
)
def test_a_device_without_a_figure_that_follows_from_its_parts_is_refused(change, said):
    document = json.loads(to_json(device_record(1.0)))
    document["device_results"] = [document["device_results"][0] | change] if change else []
    with pytest.raises(RecordError, match=said):
        from_json(json.dumps(document))


def inference(rate, milliseconds):
    record = make_record(rate, case=make_case(mode=Mode.INFER))
    seconds = [milliseconds / 1000] * 100
    latency = Latency(p50_seconds=seconds[0], p95_seconds=seconds[0], p99_seconds=seconds[0] * 2, step_seconds=seconds)
    return dataclasses.replace(record, measurement=dataclasses.replace(record.measurement, latency=latency))


def test_inference_has_rows_of_its_own_and_columns_for_its_latency():
    merged = merge_records(stored(inference(100.0, 3.5), make_record(30.0)))
    (grid,) = wide_grids(merged)
    assert [row[grid.headings.index("mode")] for row in grid.rows] == ["infer", "train"]
    grid = results_grid(merged)
    cells = dict(zip(grid.headings, grid.rows[0], strict=True))
    assert (cells["b1 p50 ms"], cells["b1 p99 ms"]) == ("3.50", "7.00")
    assert not any("b1" in heading for heading in results_grid(merge_records(stored(make_record(1.0)))).headings)


CASE = make_case(num_steps=4)
PHASES = {"starting": 4.0, "building": 2.0, "compiling": 6.0, "checking": 1.0}
PHASES |= {"warming": 3.0, "timing": 20.0, "peaks": 5.0}


def run_with(tmp_path, *, status=Status.OK, events=()):
    record = dataclasses.replace(
        make_record(1.6, case=CASE),  # 4 steps of 8 samples: 20 s
        phases=[Phase(name=name, seconds=seconds, cpu_seconds=seconds) for name, seconds in PHASES.items()],
        origin=Origin(run_id="one", fleet="a.b", host="c", launcher="docker", repeat=1),
    )
    if status is not Status.OK:
        record = dataclasses.replace(record, status=status, cause="full", measurement=None, validity=None)
    folder = write_run(tmp_path, [record], "one")
    folder.events_path.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return list(folder.records())


def state(name, second):
    return {"event": "job_state", "job": "job-0", "state": name, "at": f"2026-11-01T10:00:{second:02d}+00:00"}


RESULT = {"event": "job_result", "job": "job-0", "at": "2026-11-01T10:00:50+00:00", "seconds": 47.0}
SECONDS = {"launching": 0, "queued": 1, "on n": 4, "starting": 5, "building": 8, "compiling": 10, "timing": 17}
STATES = [*(state(*pair) for pair in (SECONDS | {"writing": 44, "collecting": 45}).items()), RESULT]
PULL = {"event": "image_ready", "host": "a.b.c", "image": "i", "seconds": 90.5, "at": "2026-11-01T10:00:00+00:00"}


def test_a_records_phases_and_what_the_events_add_are_a_row_of_its_host(tmp_path):
    found = time_breakdown(run_with(tmp_path, events=[PULL, *STATES]))
    wanted = {"timing": 20, "warming": 3, "compiling": 6, "building": 2, "starting": 6, "peaks": 5, "checking": 1}
    assert found == {"a.b/c": {"repeats": 1, **wanted, "waiting": 3, "other": 47 - 43, "pull": 90.5}}


def test_a_failed_repeat_bought_nothing_and_without_time_there_is_no_table(tmp_path):
    assert time_breakdown_grid(time_breakdown([])) is None
    found = time_breakdown(run_with(tmp_path, status=Status.OOM, events=STATES))
    assert found == {"a.b/c": {"repeats": 1, "failed": 47 + 3}}


@pytest.mark.parametrize(
    "events",
    [
        [],
        [{"event": "job_state"}, {"event": "job_result", "job": [], "seconds": "x"}, {"event": ["run_started"]}],
        [STATES[0] | {"at": "never"}, STATES[1] | {"at": "0001-01-01T00:00:00"}, RESULT | {"seconds": float("inf")}],
        [state("launching", 0), {"event": "run_started"}],
        None,
    ],
)
def test_events_that_are_missing_or_damaged_cost_only_what_they_report(tmp_path, events):
    stored = run_with(tmp_path, events=events or ())
    if events is None:  # what is no file
        (tmp_path / "one" / "events.jsonl").unlink()
        (tmp_path / "one" / "events.jsonl").mkdir()
    (spent,) = time_breakdown(stored).values()
    assert spent["timing"] == 20 and sum(spent.values()) < 1e9 and spent["starting"] == PHASES["starting"]
