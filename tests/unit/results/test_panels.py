"""Panels of a report: ratios, speeds, scaling."""

import re
from dataclasses import replace

import pytest

from results.report.panels import rate_panels, ratio_panel
from results.table.merge import merge_records
from tests.unit.results.factory import make_case, pairs_of, rates_of_fleets, repeats, stored


def ratios_of(fleets, *pairs, **changes):
    return ratio_panel(pairs_of(rates_of_fleets(fleets, **changes), *pairs))


def columns_of(panel, name):
    """Return the cells of a column, without no-break spaces."""
    return [row[panel.headings.index(name)].replace("\u00a0", " ") for row in panel.rows]


def test_each_unit_has_an_axis_of_its_own():
    images = rates_of_fleets({"a": 1.0})
    sequences = [replace(rate, unit="sequences", case=replace(rate.case, model="bert_large")) for rate in images]
    headings = [panel.headings[-1] for panel in rate_panels([*images, *sequences])]
    assert headings == ["sequences/s", "images/s"], "by network"


def test_bars_of_speed_start_at_zero_and_a_failed_case_has_its_status():
    (speed,) = rate_panels(rates_of_fleets({"slow": 1.0, "quick": 1.5}, unfit="slow"))
    assert speed.place(0.0) == 0.0
    assert [row[1:] for row in speed.rows if "vgg16" in row[0] and row[1] == "slow"] == 2 * [["slow", "oom"]]
    assert [bar is None for bar in speed.bars] == [text == "oom" for text in columns_of(speed, "images/s")]
    slow, quick = (bar.value for bar in speed.bars[:2])
    assert speed.place(quick) / speed.place(slow) == pytest.approx(quick / slow, rel=1e-3)


def test_a_ratio_is_drawn_within_its_interval_and_beside_equal_speed():
    panel = ratios_of({"slow": 1.0, "quick": 1.5}, ("quick", "slow"))
    for bar in panel.bars:
        low, value, high = map(panel.place, (bar.low, bar.value, bar.high))
        assert panel.place(1.0) < low < value < high <= 100
    assert all(re.match(r"1\.49\d* ± 0\.0\d+$", text) for text in columns_of(panel, "times as fast"))
    assert panel.shown.headings == ["case", "times as fast"], "the title names the only pair"


def test_a_network_that_does_not_fit_names_the_fleet_instead_of_a_ratio():
    panel = ratios_of({"slow": 1.0, "quick": 1.5}, ("quick", "slow"), unfit="slow")
    assert {row[-1] for row in panel.rows if "vgg16" in row[0]} == {"slow: oom"}


def test_a_ratio_within_the_noise_is_marked():
    panel = ratios_of({"a": 1.0, "b": 1.0005}, ("b", "a"))
    assert all(text.endswith(" ~") for text in columns_of(panel, "times as fast"))


def test_a_long_panel_says_how_much_of_it_is_in_the_csv():
    (speed,) = rate_panels(rates_of_fleets({f"f{number}": 1.0 for number in range(5)}))
    short = speed.first(3)
    assert len(short.rows) == len(short.bars) == 3
    assert short.notes == [f"{len(speed.rows) - 3} more rows in results.csv"]
    assert speed.first(len(speed.rows)).rows == speed.rows


def test_utilisation_of_the_measured_peaks_is_shown_if_it_was_measured():
    def used(flops, bandwidth, host):
        (record,) = repeats(100.0, fleet="a", host=host)
        measurement = replace(record.measurement, flops_utilisation=flops, bandwidth_utilisation=bandwidth)
        return replace(record, measurement=measurement)

    rates = merge_records(stored(used(0.2, 0.9, "one"), used(0.4, 0.8, "two"))).rates
    assert [row[2:] for row in rate_panels(rates)[1].rows] == [["30 %", "85 %"]], "the mean of the hosts"
    assert [panel.name for panel in rate_panels(merge_records(stored(*repeats(100.0))).rates)] == ["speed-images"]


def test_a_case_on_a_cpu_and_on_a_gpu_has_two_names():
    records = [r for of in ("cpu", "gpu") for r in repeats(9.0, 10.0, case=make_case(device=of), fleet=of)]
    (speed,) = rate_panels(merge_records(stored(*records)).rates)
    assert [row[0] for row in speed.rows] == ["resnet50 fp32, 1 CPU", "resnet50 fp32, 1 GPU"]
