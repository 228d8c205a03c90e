"""Charts and ratio tables of a report."""

import itertools
import re
from dataclasses import replace

import pytest

from results.report import charts
from results.report.comparison import ratio_tables
from tests.unit.results.factory import pairs_of, rates_of_fleets


def legend_of(chart):
    """Return the texts of a chart's legends, as drawn."""
    return sorted(re.findall(r'class="mark-text role-legend-label".*?<text[^>]*>([^<]*)</text>', chart.svg, re.S))


def test_a_fleet_stands_in_the_legend_once_and_a_failed_case_in_the_chart():
    rates = rates_of_fleets({"slow": 1.0, "quick": 1.5}, unfit="slow")
    for chart in (charts.speed_chart(rates), charts.scaling_chart(rates)):
        assert chart.svg.count('class="mark-group role-legend"') == 1
        assert legend_of(chart) == ["quick", "slow"]
    assert ">slow: oom</text>" in charts.speed_chart(rates).svg


def test_the_axis_of_speed_has_the_unit_of_all_networks():
    images = rates_of_fleets({"a": 1.0})
    sequences = [replace(rate, unit="sequences") for rate in images]
    charted = [charts.speed_chart(rates).description.split(" by ")[0] for rates in (images, images + sequences)]
    assert charted == ["images per second", "samples per second"]


def test_a_ratio_of_two_fleets_needs_no_legend_and_of_three_has_one():
    rates = rates_of_fleets({"slow": 1.0, "quick": 1.5, "third": 2.0})
    pairs = pairs_of(rates, ("quick", "slow"), ("third", "slow"), ("third", "quick"))
    assert legend_of(charts.ratio_chart(pairs[:1])) == []
    assert legend_of(charts.ratio_chart(pairs)) == ["quick / slow", "third / slow"]


def width_of(chart):
    return float(re.search(r'<svg[^>]* width="([\d.]+)"', chart.svg)[1])


def test_names_of_cases_take_no_width_from_the_values():
    rates = rates_of_fleets({"slow": 1.0, "quick": 1.5}, unfit="slow")
    assert width_of(charts.ratio_chart(pairs_of(rates, ("quick", "slow")))) < charts.WIDTH + 30


@pytest.mark.parametrize(("name", "fleets"), [("runpod-a4000-secure-eu-ro-", 3), ("secure-a4000-", 3), ("f", 40)])
def test_a_legend_has_every_name_in_full_and_is_no_wider_than_its_chart(name, fleets):
    names = [f"{name}{number:02}" for number in range(fleets)]
    chart = charts.speed_chart(rates_of_fleets(dict.fromkeys(names, 1.0)))
    assert legend_of(chart) == names and width_of(chart) < charts.WIDTH + 30
    columns = sorted({float(x) for x in re.findall(r"role-scope.*?translate\(([\d.]+),", chart.svg)})
    assert all(right - left > 7.5 * len(names[0]) for left, right in itertools.pairwise(columns))


def test_a_name_of_control_characters_does_not_abort_drawing():
    assert legend_of(charts.speed_chart(rates_of_fleets({"\x1b[31mred": 1.0, "b": 2.0}))) == ["[31mred", "b"]


def tables_of(fleets, *pairs, **changes):
    return ratio_tables(pairs_of(rates_of_fleets(fleets, **changes), *pairs))


def plain(rows):
    return [[cell.replace("\u00a0", " ") for cell in row] for row in rows]


def test_a_cell_is_the_ratio_of_a_network_with_its_interval():
    (speed,) = tables_of({"slow": 1.0, "quick": 1.5}, ("quick", "slow"))
    assert speed.headings == ["work", "network", "1 GPU", "2 GPUs"]
    row = plain(speed.rows)[0]
    assert row[:2] == ["training, fp32, batch 8", "resnet50"]
    assert re.match(r"1\.49\d* ± 0\.0\d+$", row[2]) and re.match(r"1\.49\d* ± 0\.0\d+$", row[3])


def test_a_network_that_does_not_fit_names_the_fleet_instead_of_a_ratio():
    (speed,) = tables_of({"slow": 1.0, "quick": 1.5}, ("quick", "slow"), unfit="slow")
    assert plain(speed.rows)[1][1:] == ["vgg16", "slow: oom", "slow: oom"]


def test_a_ratio_within_the_noise_is_marked():
    (speed,) = tables_of({"a": 1.0, "b": 1.0005}, ("b", "a"))
    assert all(cell.endswith(" ~") for row in speed.rows for cell in row[2:])


def test_prices_give_a_table_of_samples_per_dollar_with_intervals():
    _, worth = tables_of({"slow": 1.0, "quick": 1.5}, ("quick", "slow"), prices={"slow": 0.2, "quick": 0.4})
    assert worth.title.startswith("Samples per dollar") and re.match(r"0\.7[45]\d* ± 0\.0\d+$", plain(worth.rows)[0][2])


def test_of_more_than_two_fleets_each_stands_against_the_first():
    (speed,) = tables_of({"a": 1.0, "b": 2.0, "c": 3.0}, ("b", "a"), ("c", "a"), ("c", "b"))
    assert [row[1:3] for row in speed.rows] == [[m, f"{f} / a"] for m in ("resnet50", "vgg16") for f in "bc"]


def test_fleets_that_share_no_case_with_numbers_have_no_table():
    assert ratio_tables([]) == []
