"""What may be compared with what."""

import json
from dataclasses import replace

import pytest

from results.compare.comparison import compare
from results.report.comparison import compare_grid
from results.report.page import make_report
from results.report.tables import all_grids
from results.runs.reading import checked
from results.schema import Mode, Record
from results.schema.record_json import to_json
from results.table.cell_text import fleet_notes
from results.table.comparable import by_setting, match, setting_of, setting_text
from results.table.merge import merge_records
from tests.unit.results.factory import make_case, make_environment, rates_of, repeats, stored


def rate(fleet="a", **changes):
    """Return a rate of records that were read from files: equal texts in them are not one object."""
    records = repeats(20.0, 21.0, fleet=fleet, **changes)
    (found,) = rates_of(*(checked(Record, json.loads(to_json(record))) for record in records))
    return found


@pytest.mark.parametrize(
    "change",
    [
        {"case": make_case(mode=Mode.INFER)},
        {"case": make_case(image_size=299)},
        {"case": make_case(batch_norm="keras")},
        {"case": make_case(optimizer="adamw")},
        {"case": make_case(xla="replica")},
        {"case": make_case(batch_per_gpu=16)},
        {"case": make_case(data="host")},
        {"case": make_case(num_steps=8)},
        {"method_version": 7},
        {"parameters": 26_000_000},
        {"environment": make_environment(tf32_enabled=True)},
    ],
)
def test_whatever_changes_what_is_measured_makes_another_setting(change):
    a, b = rate("a"), rate("b", **change)
    assert setting_of(a) != setting_of(b) and len(by_setting([a, b])) == 2
    found = match(a, b)
    assert found.reason.endswith("differ, so different things are measured")


def launched(launcher, *, digest=None, **where):
    """Build repeats that a launcher started."""
    return [
        replace(record, origin=replace(record.origin, launcher=launcher, image_digest=digest))
        for record in repeats(20.0, 21.0, **where)
    ]


DIGEST = "sha256:" + "0" * 64


def test_containers_and_processes_are_comparable_and_the_launcher_named():
    docker, bare = rates_of(*launched("docker", digest=DIGEST, fleet="a"), *launched("ssh", fleet="b"))
    found = match(docker, bare)
    assert not found.reason and found.differs == ("launcher", "image_digest")
    assert "launcher docker / ssh" in compare_grid(compare([docker], [bare]), "a", "b").rows[0][-1]
    records = [*launched("docker", digest=DIGEST, host="node-a"), *launched("ssh", host="node-b")]
    (mixed,) = rates_of(*records)
    assert mixed.of_fleet and mixed.software.launcher == "docker + ssh"
    note = "a4000: launchers docker on node-a, ssh on node-b; that is part of the spread between hosts"
    assert note in fleet_notes([mixed]) and len(rates_of(*records, apart=("launcher",))) == 2


def test_one_host_with_two_launchers_has_two_numbers():
    records = [*launched("docker", digest=DIGEST), *launched("ssh", run_id="run-2")]
    assert [rate.software.launcher for rate in rates_of(*records)] == ["docker", "ssh"]


def test_across_precisions_the_switch_for_tf32_is_part_of_what_is_compared():
    a, b = rate(), rate(case=make_case(precision="tf32"), environment=make_environment(tf32_enabled=True))
    assert match(a, b).reason
    assert match(a, b, across=("precision",)) == match(a, a)


def test_across_networks_their_own_choices_are_equal():
    resnet, vgg = rate(), rate(case=make_case("vgg16"), parameters=138_000_000)
    assert setting_of(resnet) != setting_of(vgg)
    assert setting_of(resnet, across=("model",)) == setting_of(vgg, across=("model",))
    trained_otherwise = rate(case=make_case("vgg16", optimizer="adamw"), parameters=138_000_000)
    assert setting_of(resnet, across=("model",)) != setting_of(trained_otherwise, across=("model",))


def test_a_setting_is_named_by_what_a_reader_must_know():
    assert setting_text(rate()) == "training, fp32, batch 8, 1 CPU"
    inferred = rate(case=make_case(mode=Mode.INFER, xla="replica", batch_norm="keras", num_hosts=2, num_gpus=4))
    text = "inference, fp32, batch 8, 2 hosts of 4 CPUs, num hosts 2, xla replica, batch norm keras"
    assert setting_text(inferred) == text


def test_fleets_of_different_methods_have_no_ratio_in_any_table_or_verdict():
    records = stored(*repeats(20.0, 21.0, fleet="a"), *repeats(10.0, 11.0, fleet="b", host="node-b", method_version=7))
    (grid,) = [compare_grid(found, a, b) for a, b, found in make_report(records, "title").pairs]
    assert grid.rows[0][0] == "x" and "method_version differ" in grid.rows[0][-1]
    assert not any("/" in grid.title for grid in all_grids(merge_records(records)))
    verdict = make_report(records, "title").verdict
    assert verdict[0].endswith("so it is unknown which is faster.")
    assert verdict[1] == "No two fleets have figures of one setting, so nothing is ranked: a, b."
