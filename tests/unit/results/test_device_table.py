"""The table of what the devices themselves reach, and the tables of inference and of several units."""

import dataclasses
import itertools
import json

import pytest

from results.report.device_table import device_grid
from results.report.page import make_report, report_html
from results.report.tables import all_grids, exported, results_grid, wide_grids
from results.runs.reading import from_json
from results.schema import DeviceResult, Latency, Mode
from results.schema.record_json import RecordError, to_json
from results.table.merge import merge_records
from tests.unit.results.factory import (
    make_case,
    make_environment,
    make_failure,
    make_origin,
    make_record,
    repeats,
    stored,
)


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
    assert rows["matrix product fp64"] == ["GFLOP/s", "300 ± 7", "600.0", "300.0"]
    assert rows["matrix product tf32"] == ["FLOP/s", *["not measured"] * 3]
    assert rows["all-reduce, bus ×2, 1 MiB"] == ["GB/s", "1.000 ± 0.025", "2.000", "1.000"]
    assert "a4000/node-a (2): NVIDIA RTX A4000, TensorFlow 2.20.0" in grid.notes
    assert grid.notes[-1].startswith("matrix product tf32 on ") and grid.notes[-1].endswith(": needs Ampere")


def test_devices_stand_beside_networks_or_alone_in_every_view():
    alone, both = ([device_record(1.0), *more] for more in ([], repeats(10.0, 11.0)))
    assert [grid.title for grid in all_grids(merge_records(stored(*alone)))] == ["Devices"]
    merged = merge_records(stored(*both))
    assert [grid.title for grid in all_grids(merged)][:2] == ["Results of a4000/node-a", "Devices"]
    assert len(merged.table) == len(merged.devices) == 1
    assert "matrix product fp32" in exported(merged, "markdown")
    assert "matrix product fp32" in report_html(make_report(stored(*alone), "t"))
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
    if change is None:
        document["device_results"] = []
    else:
        document["device_results"][0].update(change)
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


def test_the_table_of_aime_has_the_shape_of_its_source():
    """The suite `aime`: two networks of two units, two precisions, compiled or not, 1 and 2 GPUs."""
    records = []
    networks = (("bert_large", "sequences", 20.0), ("resnet50_v1.5", "images", 400.0))
    factors = (("fp32", 1.0), ("fp16", 2.0)), (("off", 1.0), ("replica", 1.5)), ((1, 1.0), (2, 1.9))
    for (model, unit, rate), *settings in itertools.product(networks, *factors):
        (precision, faster), (xla, compiled), (count, scale) = settings
        case = make_case(model, precision=precision, xla=xla, num_gpus=count, device="gpu")
        base = rate * faster * compiled * scale
        for record in repeats(base, base * 1.01, base * 0.99, case=case, environment=make_environment(gpus=2)):
            measurement = dataclasses.replace(record.measurement, unit=unit)
            records.append(dataclasses.replace(record, measurement=measurement))
    (grid,) = wide_grids(merge_records(stored(*records)))
    assert grid.headings == ["network", "precision", "batch", "xla", "unit", "1 GPU", "2 GPUs"]
    assert len(grid.rows) == 8
    rows = {tuple(row[:4]): row[4:] for row in grid.rows}
    assert rows["bert_large", "fp16", "8", "replica"] == ["sequences/s", "60.0 ± 1.5", "114.0 ± 2.8"]
    assert rows["resnet50_v1.5", "fp32", "8", "off"] == ["images/s", "400 ± 10", "760 ± 19"]


def test_a_device_that_failed_is_a_row_with_its_cause():
    failed = make_failure("no_gpu", "none seen", case=make_case("device", mode=Mode.DEVICE))
    grid = results_grid(merge_records(stored(failed)))
    assert "no_gpu" in grid.rows[0] and any("none seen" in note for note in grid.notes)
