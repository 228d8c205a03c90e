import re

from results.compare.pairs import compare
from results.report import charts
from results.table.fleets import fleet_rates
from results.table.merge import merge_records
from tests.unit.results.factory import make_case, make_environment, make_failure, make_origin, repeats, stored


def rates_of(fleets):
    """Two hosts and two repeats of ResNet50 on 1 and 2 GPUs for each fleet; VGG16 does not fit on the first."""
    records, environment = [], make_environment(gpus=2)
    for place, (fleet, factor) in enumerate(fleets.items()):
        for host, own in (("x", 1.0), ("y", 1.002)):
            where = {"fleet": fleet, "host": f"{fleet}-{host}", "environment": environment}
            for count in (1, 2):
                values = [100 * factor * own * count * noise for noise in (0.999, 1.001)]
                records += repeats(*values, case=make_case(device="gpu", num_gpus=count), **where)
            vgg = make_case("vgg16", device="gpu")
            if place:
                records += repeats(70.0, 70.1, case=vgg, **where)
            else:
                origin = make_origin(fleet, where["host"])
                records.append(make_failure("oom", case=vgg, origin=origin, environment=environment))
    return fleet_rates(merge_records(stored(*records)))


def ratio_chart(rates, *pairs):
    of = {rate.fleet: [other for other in rates if other.fleet == rate.fleet] for rate in rates}
    return charts.ratio_chart([(a, b, compare(of[a], of[b])) for a, b in pairs])


def legend_of(chart):
    """Return the texts of a chart's legends, as drawn."""
    return sorted(re.findall(r'class="mark-text role-legend-label".*?<text[^>]*>([^<]*)</text>', chart.svg, re.S))


def test_a_fleet_stands_in_the_legend_once_and_a_failed_case_in_the_chart():
    rates = rates_of({"slow": 1.0, "quick": 1.5})
    for chart in (charts.speed_chart(rates), charts.scaling_chart(rates)):
        assert chart.svg.count('class="mark-group role-legend"') == 1
        assert legend_of(chart) == ["quick", "slow"]
    assert ">slow: oom</text>" in charts.speed_chart(rates).svg


def test_a_ratio_of_two_fleets_needs_no_legend_and_of_three_has_one():
    rates = rates_of({"slow": 1.0, "quick": 1.5, "third": 2.0})
    assert legend_of(ratio_chart(rates, ("quick", "slow"))) == []
    pairs = [("quick", "slow"), ("third", "slow"), ("third", "quick")]
    assert legend_of(ratio_chart(rates, *pairs)) == ["quick / slow", "third / slow"]


def test_names_of_cases_take_no_width_from_the_values():
    svg = ratio_chart(rates_of({"slow": 1.0, "quick": 1.5}), ("quick", "slow")).svg
    assert float(re.search(r'<svg[^>]* width="([\d.]+)"', svg)[1]) < charts.WIDTH + 30


def test_a_name_of_control_characters_does_not_abort_drawing():
    assert legend_of(charts.speed_chart(rates_of({"\x1b[31mred": 1.0, "b": 2.0}))) == ["[31mred", "b"]
