import json
import re

import pytest

from results.compare.pairs import compare
from results.table.fleets import fleet_rates
from results.table.merge import merge_records
from tests.unit.results.factory import make_case, make_environment, make_failure, make_origin, repeats, stored

vl_convert = pytest.importorskip("vl_convert", reason="the report needs vl-convert-python")
charts = pytest.importorskip("results.report.charts", reason="the report needs altair", exc_type=ModuleNotFoundError)

COUNTS = (1, 2, 4)


def rates_of(fleets):
    """Two hosts and three repeats of ResNet50 on 1, 2 and 4 GPUs for each fleet; VGG16 does not fit on the first."""
    records = []
    for place, (fleet, factor) in enumerate(fleets.items()):
        for host, own in (("x", 1.0), ("y", 1.002)):
            environment = make_environment(gpus=4)
            for count in COUNTS:
                case = make_case(device="gpu", num_gpus=count)
                values = [100 * factor * own * count * noise for noise in (0.999, 1.0, 1.001)]
                records += repeats(*values, fleet=fleet, host=f"{fleet}-{host}", case=case, environment=environment)
            vgg = make_case("vgg16", device="gpu")
            if place:
                records += repeats(70.0, 70.1, fleet=fleet, host=f"{fleet}-{host}", case=vgg, environment=environment)
            else:
                origin = make_origin(fleet, f"{fleet}-{host}")
                records.append(make_failure("oom", case=vgg, origin=origin, environment=environment))
    return fleet_rates(merge_records(stored(*records)))


def pair(rates, a, b):
    of = {name: [rate for rate in rates if rate.fleet == name] for name in (a, b)}
    return (a, b, compare(of[a], of[b]))


def legend_of(chart):
    """Return the texts of a chart's legends, as drawn."""
    svg = vl_convert.vegalite_to_svg({**chart.spec, "width": 600})
    return re.findall(r'class="mark-text role-legend-label".*?<text[^>]*>([^<]*)</text>', svg, re.S)


def texts_of(chart):
    return re.findall(r"<text[^>]*>([^<]*)</text>", vl_convert.vegalite_to_svg({**chart.spec, "width": 600}))


TWO = {"slow": 1.0, "quick": 1.5}


@pytest.mark.parametrize("name", ["speed", "scaling"])
@pytest.mark.slow
def test_a_fleet_stands_in_the_legend_once(name):
    chart = getattr(charts, f"{name}_chart")(rates_of(TWO))
    svg = vl_convert.vegalite_to_svg({**chart.spec, "width": 600})
    assert svg.count('class="mark-group role-legend"') == 1
    assert sorted(legend_of(chart)) == ["quick", "slow"]


def test_a_ratio_of_two_fleets_needs_no_legend_and_of_three_has_one():
    two, three = rates_of(TWO), rates_of({**TWO, "third": 2.0})
    assert legend_of(charts.ratio_chart([pair(two, "quick", "slow")])) == []
    pairs = [pair(three, "quick", "slow"), pair(three, "third", "slow"), pair(three, "third", "quick")]
    assert sorted(legend_of(charts.ratio_chart(pairs))) == ["quick / slow", "third / slow"]


def test_what_does_not_fit_is_in_the_chart_of_speed():
    assert "slow: oom" in texts_of(charts.speed_chart(rates_of(TWO)))


def test_names_of_cases_take_no_width_from_the_values():
    narrow = {**charts.ratio_chart([pair(rates_of(TWO), "quick", "slow")]).spec, "width": 360}
    svg = vl_convert.vegalite_to_svg(narrow)
    assert float(re.search(r'<svg[^>]* width="([\d.]+)"', svg)[1]) < 390
    assert '"axis": null' in json.dumps(narrow)


def test_a_name_of_control_characters_does_not_abort_drawing():
    chart = charts.speed_chart(rates_of({"\x1b[31mred": 1.0, "b": 2.0}))
    assert legend_of(chart) == ["[31mred", "b"]


def test_a_case_that_failed_in_every_run_has_no_history():
    origins = [make_origin(run_id=run) for run in ("run-1", "run-2")]
    environment = make_environment()
    failed = [make_failure("oom", "out of memory", origin=origin, environment=environment) for origin in origins]
    assert charts.history_chart(merge_records(stored(*failed))) is None
