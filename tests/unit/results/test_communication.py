"""Several hosts in the tables, and cases that were measured without all-reduce."""

import dataclasses

import pytest

from results.compare.comparison import efficiencies
from results.report.comparison import communication_grid, scaling_grid
from results.report.tables import wide_grids
from results.runs.reading import from_json
from results.schema import Rank
from results.schema.record_json import RecordError, to_json
from results.stats import Interval
from results.table.cell_text import value_text
from results.table.merge import merge_records
from results.text_table import markdown
from tests.unit.results.factory import (
    make_case,
    make_environment,
    make_record,
    rates_of,
    ratio_interval,
    repeats,
    stored,
)

GPU = make_environment(gpus=8, gpu="NVIDIA RTX A5000")


def of(hosts, gpus, *rates, host="a", **changes):
    """Build repeats of one case on `hosts` hosts of `gpus` GPUs each, with a part per host."""
    case = make_case(device="gpu", num_gpus=gpus, num_hosts=hosts, **changes)
    made = repeats(*rates, case=case, host=host, environment=GPU)
    if hosts == 1:
        return made
    return [dataclasses.replace(record, measurement=with_ranks(record.measurement, hosts)) for record in made]


def with_ranks(measurement, hosts, bandwidth=1e9):
    samples = measurement.samples // hosts
    rate, step = samples / measurement.seconds, measurement.step_p50_seconds
    common = {"seconds": measurement.seconds, "samples": samples, "samples_per_second": rate, "step_p50_seconds": step}
    ranks = [Rank(rank=rank, host=f"h{rank}", **common) for rank in range(hosts)]
    return dataclasses.replace(measurement, ranks=ranks, all_reduce_bytes_per_second=bandwidth)


def test_a_record_of_several_hosts_survives_its_file_and_must_add_up():
    (record,) = of(2, 4, 700.0)
    assert from_json(to_json(record)) == record

    def spoilt(**changes):
        return to_json(dataclasses.replace(record, measurement=dataclasses.replace(record.measurement, **changes)))

    first, second = record.measurement.ranks
    slower = dataclasses.replace(second, seconds=2 * second.seconds, samples_per_second=second.samples_per_second / 2)
    more, other = (dataclasses.replace(second, **of) for of in ({"samples": 1}, {"samples_per_second": 1.0}))
    for ranks, said in (
        ([], "must have one entry for each of 2 hosts"),
        ([second, first], "must have one entry for each of 2 hosts"),
        ([first, slower], "seconds is .* other figures give"),
        ([first, more], "samples is .* other figures give"),
        ([first, other], r"ranks\[1\].samples is .* but its other"),
    ):
        with pytest.raises(RecordError, match=said):
            from_json(spoilt(ranks=ranks))
    alone = make_record()
    with pytest.raises(RecordError, match="must have one entry for each of 1 hosts"):
        from_json(to_json(dataclasses.replace(alone, measurement=with_ranks(alone.measurement, 2))))


def test_hosts_scale_beside_gpus_from_the_same_baseline():
    records = [
        *of(1, 1, 100.0, 101.0),
        *of(1, 4, 380.0, 384.0),
        *of(2, 4, 700.0, 704.0, host="a+b"),
        *of(4, 4, 1300.0, 1310.0, host="a+b+c+d", communication="ring"),
    ]
    merged = merge_records(stored(*records))
    found = {item.rate.case.replicas: item for item in efficiencies(merged.rates)}
    assert found.keys() == {4, 8, 16}
    expected = ratio_interval([700.0 / 8, 704.0 / 8], [100.0, 101.0])
    assert (found[8].value, found[8].interval.low) == pytest.approx((expected.value, expected.low))
    grid = scaling_grid(merged.rates)
    assert list(grid.headings) == ["fleet", "case", "4", "2×4", "4×4 ring"]
    assert len(grid.rows) == 1
    (wide,) = wide_grids(merged)
    assert [name for name in wide.headings if "GPU" in name] == ["1 GPU", "4 GPUs", "2×4 GPUs", "4×4 ring GPUs"]
    assert len(wide.rows) == 1
    assert merged.table["global_batch"].tolist() == [8 * replicas for replicas in (1, 4, 8, 16)]
    assert merged.table["all_reduce_bytes_per_second"].isna().tolist() == [True, True, False, False]


def test_hosts_that_train_together_are_held_against_what_each_does_alone():
    alone = [*of(1, 1, 100.0, 101.0), *of(1, 1, 110.0, 111.0, host="b")]
    (item,) = efficiencies(rates_of(*alone, *of(2, 4, 700.0, 704.0, host="a+b")))
    assert item.value == pytest.approx(702.0 / 8 / 105.5) and item.interval.contains(item.value)


def test_what_was_measured_without_all_reduce_is_in_no_table_of_speed():
    records = [*of(2, 4, 700.0, 704.0), *of(2, 4, 800.0, 804.0, all_reduce=False)]
    merged = merge_records(stored(*records))
    assert merged.table["all_reduce"].tolist() == [True] and merged.table["samples_per_second"].tolist() == [702.0]
    assert not any("80" in markdown(grid).replace("a4000", "") for grid in wide_grids(merged))
    assert [rate.mean for rate in merged.apart.rates] == [802.0]


def test_the_share_of_communication_has_an_interval():
    merged = merge_records(stored(*of(2, 4, 700.0, 704.0), *of(2, 4, 800.0, 804.0, all_reduce=False)))
    ratio = ratio_interval([700.0, 704.0], [800.0, 804.0])
    share = value_text(
        100 * (1 - 702 / 802), Interval(*(100 * (1 - end) for end in (702 / 802, ratio.high, ratio.low)))
    )
    (row,) = communication_grid(merged).rows
    assert row == ["a4000", "resnet50 fp32", row[2], row[3], f"{share} %", "1.00"]
    assert row[2].startswith("702") and row[3].startswith("802")


def test_without_the_whole_there_is_no_share_of_communication():
    alone = communication_grid(merge_records(stored(*of(2, 4, 800.0, 804.0, all_reduce=False))))
    assert alone.headings == ["fleet", "case", "without"] and alone.rows[0][2].startswith("802")
    assert communication_grid(merge_records(stored(*of(1, 4, 380.0)))) is None
