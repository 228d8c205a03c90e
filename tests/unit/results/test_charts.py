import re

from results.report import charts
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


def test_a_ratio_of_two_fleets_needs_no_legend_and_of_three_has_one():
    rates = rates_of_fleets({"slow": 1.0, "quick": 1.5, "third": 2.0})
    pairs = pairs_of(rates, ("quick", "slow"), ("third", "slow"), ("third", "quick"))
    assert legend_of(charts.ratio_chart(pairs[:1])) == []
    assert legend_of(charts.ratio_chart(pairs)) == ["quick / slow", "third / slow"]


def test_names_of_cases_take_no_width_from_the_values():
    rates = rates_of_fleets({"slow": 1.0, "quick": 1.5}, unfit="slow")
    svg = charts.ratio_chart(pairs_of(rates, ("quick", "slow"))).svg
    assert float(re.search(r'<svg[^>]* width="([\d.]+)"', svg)[1]) < charts.WIDTH + 30


def test_a_name_of_control_characters_does_not_abort_drawing():
    assert legend_of(charts.speed_chart(rates_of_fleets({"\x1b[31mred": 1.0, "b": 2.0}))) == ["[31mred", "b"]
