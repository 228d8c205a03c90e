"""The table of what the devices themselves reach, and the tables of inference and of several units."""

from __future__ import annotations

import dataclasses
import json

import pytest

from results.report.comparison import ratio_grids
from results.report.device_table import device_grid
from results.report.page import make_report, report_html, report_markdown
from results.report.tables import WRITERS as EXPORTS
from results.report.tables import results_grid, to_markdown, wide_grids
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
from tests.unit.results.test_tables import printed, render_results


def result(metric, value, unit="B/s", **changes):
    return DeviceResult(metric=metric, unit=unit, amount=value * 0.5, seconds=0.5, value=value, size=1024, **changes)


def device_record(factor, *, host="node-a", repeat=1, **changes):
    product = "matrix_product"
    results = [
        result("memory_add", 400e9 * factor),
        result(product, 19.2e12 * factor, "FLOP/s", arithmetic="fp32"),
        result(product, 0.3e12 * factor, "FLOP/s", arithmetic="fp64"),
        DeviceResult(metric=product, unit="FLOP/s", arithmetic="tf32", reason="needs Ampere"),
        dataclasses.replace(result("all_reduce", 12e9 * factor, devices=2), size=2**24),
        dataclasses.replace(result("all_reduce", 1e9 * factor, devices=2), size=2**20),
    ]
    case = make_case("device", mode=Mode.DEVICE, batch_per_gpu=1, device="gpu", num_gpus=2)
    record = make_record(
        case=case, origin=make_origin(host=host, repeat=repeat), environment=make_environment(gpus=2), **changes
    )
    return dataclasses.replace(record, measurement=None, device_results=results)


def test_golden_device_table():
    records = [device_record(factor, repeat=n) for n, factor in enumerate((1.0, 1.01, 0.99), start=1)]
    records.append(device_record(2.0, host="node-b"))
    assert (
        printed(render_results, merge_records(stored(*records)))
        == """\
Devices

 metric                      unit      a4000/node-a  a4000/node-b
 ────────────────────────────────────────────────────────────────
 matrix product fp64         GFLOP/s        300 ± 7         600.0
 matrix product fp32         TFLOP/s     19.2 ± 0.5         38.40
 matrix product tf32         FLOP/s    not measured  not measured
 memory a += b               GB/s          400 ± 10         800.0
 all-reduce, bus ×2, 1 MiB   GB/s     1.000 ± 0.025         2.000
 all-reduce, bus ×2, 16 MiB  GB/s        12.0 ± 0.3         24.00

best round of each repeat, mean ± 95 % over repeats; for one device, except the all-reduce
all-reduce: bus bandwidth, bytes × 2 (n − 1) / n over seconds, as nccl-tests define it
a4000/node-a: NVIDIA RTX A4000, TensorFlow 2.21.0
a4000/node-b: NVIDIA RTX A4000, TensorFlow 2.21.0
matrix product tf32 on a4000/node-a, a4000/node-b: needs Ampere"""
    )


def test_a_device_that_was_measured_with_two_softwares_has_two_columns():
    other = device_record(1.0, repeat=2)
    other = dataclasses.replace(other, environment=dataclasses.replace(other.environment, tensorflow="2.20.0"))
    grid = device_grid([device_record(1.0), other])
    assert grid.headings == ["metric", "unit", "a4000/node-a (1)", "a4000/node-a (2)"]
    assert any("(2): NVIDIA RTX A4000, TensorFlow 2.20.0" in note for note in grid.notes)


def test_devices_stand_beside_networks_in_every_view():
    merged = merge_records(stored(*repeats(10.0, 11.0), device_record(1.0)))
    assert len(merged.table) == 1 and len(merged.devices) == 1
    assert "Results" in printed(render_results, merged) and "Devices" in printed(render_results, merged)
    assert "matrix product fp64" in report_markdown(make_report(stored(*repeats(10.0, 11.0), device_record(1.0)), "t"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"value": 2.0}, r"value is 2\.0, but amount / seconds is"),
        ({"value": 0.0}, "must be positive"),
        ({"value": None, "reason": None}, "neither a value nor a reason"),
        ({"seconds": None}, "must be positive"),
    ],
)
def test_a_figure_that_does_not_follow_from_its_parts_is_refused(change, said):
    document = json.loads(to_json(device_record(1.0)))
    document["device_results"][0].update(change)
    with pytest.raises(RecordError, match=said):
        from_json(json.dumps(document))


def test_an_ok_of_a_device_without_results_is_refused():
    record = dataclasses.replace(device_record(1.0), device_results=[])
    with pytest.raises(RecordError, match="measurement, environment or validity is missing"):
        from_json(to_json(record))


def inference(rate, milliseconds):
    record = make_record(rate, case=make_case(mode=Mode.INFER))
    seconds = [milliseconds / 1000] * 100
    latency = Latency(p50_seconds=seconds[0], p95_seconds=seconds[0], p99_seconds=seconds[0] * 2, step_seconds=seconds)
    return dataclasses.replace(record, measurement=dataclasses.replace(record.measurement, latency=latency))


def test_latency_has_columns_where_something_was_inferred():
    grid = results_grid(merge_records(stored(inference(100.0, 3.5))))
    cells = dict(zip(grid.headings, grid.rows[0], strict=True))
    assert (cells["b1 p50 ms"], cells["b1 p99 ms"]) == ("3.50", "7.00")
    assert not any("b1" in heading for heading in results_grid(merge_records(stored(make_record(1.0)))).headings)


def test_training_and_inference_never_share_a_row():
    merged = merge_records(stored(inference(100.0, 3.5), make_record(30.0)))
    assert sorted(merged.table["mode"]) == ["infer", "train"]
    (grid,) = wide_grids(merged)
    assert [row[grid.headings.index("mode")] for row in grid.rows] == ["infer", "train"]


def source_table():
    """What the suite `aime` gives: two networks of two units, two precisions, compiled or not, 1 and 2 GPUs."""
    records = []
    for model, unit, rate in (("bert_large", "sequences", 20.0), ("resnet50_v1.5", "images", 400.0)):
        for precision, faster in (("fp32", 1.0), ("fp16", 2.0)):
            for xla, compiled in (("off", 1.0), ("replica", 1.5)):
                for count in (1, 2):
                    case = make_case(model, precision=precision, xla=xla, num_gpus=count, device="gpu")
                    base = rate * faster * compiled * (1.9 if count == 2 else 1.0)
                    found = repeats(base, base * 1.01, base * 0.99, case=case, environment=make_environment(gpus=2))
                    records += [
                        dataclasses.replace(r, measurement=dataclasses.replace(r.measurement, unit=unit)) for r in found
                    ]
    return merge_records(stored(*records))


def test_the_table_of_aime_has_the_shape_of_its_source():
    (grid,) = wide_grids(source_table())
    assert grid.headings == ["network", "precision", "batch", "xla", "unit", "1 GPU", "2 GPU", "×2 scales"]
    assert len(grid.rows) == 8
    rows = {tuple(row[:4]): row[4:] for row in grid.rows}
    assert rows["bert_large", "fp16", "8", "replica"] == ["sequences/s", "60.0 ± 1.5", "114.0 ± 2.8", "95%"]
    assert rows["resnet50_v1.5", "fp32", "8", "off"] == ["images/s", "400 ± 10", "760 ± 19", "95%"]


def test_scaling_that_no_hardware_does_is_marked():
    records = [
        *repeats(10.0, 10.1, case=make_case(num_gpus=1)),
        *repeats(25.0, 25.1, case=make_case(num_gpus=2)),
    ]
    (grid,) = wide_grids(merge_records(stored(*records)))
    assert grid.rows[0][grid.headings.index("×2 scales")].startswith("! 12")


def test_a_run_of_devices_alone_has_every_view(tmp_path):
    merged = merge_records(stored(device_record(1.0)))
    assert wide_grids(merged) == [] and ratio_grids(merged) == []
    assert printed(render_results, merged).startswith("Devices")
    assert "matrix product fp32" in to_markdown(merged)
    report = make_report(stored(device_record(1.0)), "t")
    assert "matrix product fp32" in report_html(report)
    devices = json.loads(EXPORTS["json"](merged))["devices"]
    assert [(row["host"], row["metric"]) for row in devices[:1]] == [("node-a", "memory_add")]


def test_a_device_that_failed_is_a_row_with_its_cause():
    merged = merge_records(stored(make_failure("no_gpu", "none seen", case=make_case("device", mode=Mode.DEVICE))))
    assert "no_gpu" in printed(render_results, merged) and "none seen" in printed(render_results, merged)
