"""Two fleets, case by case: ratios, marks, scaling, prices, and what may not be compared."""

import dataclasses
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy

from results.compare.comparison import Mark, compare, efficiencies, geometric_mean, regressions, unmatched
from results.compare.means import answer_lines, comparison_row, unchecked_lines, unknown_line
from results.number_format import with_interval
from results.report.comparison import compare_grid, scaling_grid
from results.schema import Telemetry
from results.table.cell_text import WARNINGS, fleet_notes
from results.table.fleets import unambiguous
from results.table.merge import merge_records
from tests.unit.results.factory import (
    make_case,
    make_environment,
    make_failure,
    make_origin,
    rates_of,
    ratio_interval,
    repeats,
    sides,
    stored,
)

GPU = make_environment(gpus=8)


def compared(*records, **options):
    return compare(*sides(*records), **options)


def both(a, b, **changes):
    """Return repeats of fleet a and of fleet b."""
    return [*repeats(*a, fleet="a", **changes), *repeats(*b, fleet="b", **changes)]


@pytest.mark.parametrize(
    ("a", "b", "mark"),
    [
        ([20.0, 21.0, 20.5], [10.0, 10.2, 10.1], Mark.FASTER),
        ([10.0, 10.1], [20.0, 20.1], Mark.SLOWER),
        ([10.0, 14.0], [10.0, 13.0], Mark.SAME),
        ([100.0, 100.001], [100.4, 100.401], Mark.SMALL),  # certain, and below 1 %
        ([20.0], [10.0, 10.1], Mark.UNKNOWN),  # one repeat says nothing about its own uncertainty
    ],
)
def test_a_ratio_is_fiellers_and_marks_need_significance_and_size(a, b, mark):
    (item,) = compared(*both(a, b))
    assert item.mark is mark
    expected = None if len(a) < 2 else pytest.approx(dataclasses.astuple(ratio_interval(a, b)))
    assert (item.interval and dataclasses.astuple(item.interval)) == expected
    assert bool(unchecked_lines([item], [], [item.a])) == (mark is Mark.UNKNOWN)
    assert unknown_line("a", "b", [item]).startswith("a is 1.99 × as fast as b, from one") == (mark is Mark.UNKNOWN)


@pytest.mark.parametrize(("fleet", "other", "mark"), [("a", "b", Mark.FAILED), ("b", "a", Mark.WORKS)])
def test_a_failure_on_one_side_has_a_mark_and_its_status(fleet, other, mark):
    failed = make_failure("oom", "out of memory", origin=make_origin(fleet))
    (item,) = compared(failed, *repeats(10.0, 11.0, fleet=other))
    assert (item.mark, item.reason, item.value) == (mark, "oom", None)


def test_other_software_and_cases_of_one_side_are_named():
    records = [
        *repeats(20.0, 21.0, fleet="a", environment=make_environment(tensorflow="2.21.0", driver="570.1")),
        *repeats(10.0, 11.0, fleet="b", environment=make_environment(tensorflow="2.16.2", cpu="Other CPU")),
        *repeats(5.0, 6.0, fleet="a", case=make_case("resnet152")),
    ]
    a, b = sides(*records)
    found = compare(a, b)
    grid = compare_grid(found, "a", "b", unmatched(a, b), unmatched(b, a))
    assert found[0].differs == ("tensorflow", "driver")
    assert grid.rows[0][-1] == "tensorflow 2.21.0 / 2.16.2; driver 570.1 / none"
    assert grid.notes[-1] == "measured on a only: resnet152 fp32"
    assert unknown_line("a", "b", []) == "a and b have no measured case in common, so it is unknown which is faster."
    alone = compare_grid([], "a", "b", [], b)
    assert (alone.columns, alone.notes) == ([], ["measured on b only: resnet50 fp32"])


def test_warnings_about_compared_figures_stand_below_their_ratio():
    warned = {"a": ("host_bound",), "b": ("host_bound", "drift")}
    (item,) = found = compared(*(record for key in warned for record in repeats(20.0, fleet=key, warnings=warned[key])))
    assert f"host_bound (a/node-a and b/node-a): {WARNINGS['host_bound']}" in compare_grid(found, "a", "b").notes
    assert comparison_row(item, [item.a, item.b])["warnings"] == "drift (b/node-a); host_bound (a/node-a, b/node-a)"


@pytest.mark.parametrize(("runs", "repeats_of_run"), [(1, 5), (5, 1), (5, 2)])
def test_the_geometric_mean_is_uncertain_by_what_rounds_or_runs_differ(runs, repeats_of_run):
    """Cases of a round run next to each other: as independent values they would look √3 times as certain."""
    random = np.random.default_rng(3)
    groups = 0.02 * random.standard_normal(5)
    records, relative = [], []
    for model in ("resnet50", "vgg16", "googlenet"):
        noise = 0.001 * random.standard_normal((runs, repeats_of_run))
        values = 150 * (1 + np.repeat(groups, runs * repeats_of_run // 5).reshape(runs, repeats_of_run) + noise)
        relative.append(values.reshape(5, -1).mean(axis=1) / values.mean())
        for number, of_run in enumerate(values):
            records += both(of_run, [100.0] * len(of_run), case=make_case(model), run_id=str(number))
    mean = geometric_mean(compared(*records))
    half = scipy.stats.t.ppf(0.975, 4) * scipy.stats.sem(np.mean(relative, axis=0))
    assert mean.high / mean.value == pytest.approx(math.exp(half), rel=1e-4)


def test_cases_that_share_no_host_have_no_common_mean():
    one = both([100.0, 101.0], [50.0, 51.0], case=make_case("vgg16"), host="x")
    other = both([100.0, 101.0], [50.0, 51.0], case=make_case("resnet50"), host="y")
    assert geometric_mean(compared(*one, *other)) is None


def test_a_round_that_one_case_lacks_is_still_the_same_round_of_the_others():
    first, second = (both([100.0, 90.0, 101.0], [50.0] * 3, case=make_case(m)) for m in ("resnet50", "vgg16"))
    a, b = sides(*first, *second[:1], *second[2:])  # the slow round of one case failed
    assert [rate.rounds["node-a"]["run-1"] for rate in a] == [[1, 2, 3], [1, 3]]
    whole = geometric_mean(compared(*first, *second))
    assert geometric_mean(compare(a, b)).half_width == pytest.approx(whole.half_width, rel=0.15)


def test_the_answer_over_one_case_has_the_interval_of_that_case():
    (item,) = compared(*both([57.0, 83.0, 70.0], [42.0, 43.0, 42.5]))
    assert geometric_mean([item]) == item.interval
    assert with_interval(item.interval) == "1.65 (1.04–2.61)"
    assert any("a is 1.65 (1.04–2.61) times as fast as b" in line for line in answer_lines([item]))


def test_regressions_are_losses_beyond_the_tolerance_and_new_failures():
    records = [
        *both([90.0, 90.1], [100.0, 100.1], case=make_case("resnet50")),
        *both([98.0, 98.1], [100.0, 100.1], case=make_case("vgg16")),
        *both([60.0, 140.0], [120.0, 122.0], case=make_case("googlenet")),
        make_failure(case=make_case("resnet152"), origin=make_origin("a")),
        *repeats(10.0, 10.1, fleet="b", case=make_case("resnet152")),
        *both([98.0, 98.1], [98.0, 98.1], case=make_case("alexnet")),
        make_failure(case=make_case("alexnet"), origin=make_origin("a", repeat=3)),
        *(make_failure(case=make_case("vgg16"), origin=make_origin(fleet, repeat=3)) for fleet in "ab"),
    ]
    worse = regressions(compared(*records), 0.05)
    assert sorted(item.case.model for item in worse) == ["alexnet", "resnet152", "resnet50"]


def of_gpus(count, *rates, **changes):
    return repeats(*rates, case=make_case(device="gpu", num_gpus=count, **changes), environment=GPU)


def test_scaling_efficiency_compares_with_the_same_settings_on_one_gpu():
    records = [*of_gpus(1, 100.0, 101.0), *of_gpus(4, 380.0, 384.0), *of_gpus(1, 120.0, 121.0, xla="auto")]
    (item,) = efficiencies(rates_of(*records))
    expected = ratio_interval([380.0 / 4, 384.0 / 4], [100.0, 101.0])
    found = (item.value, item.interval.low, item.interval.high)
    assert found == pytest.approx((expected.value, expected.low, expected.high)) and not item.suspect
    grid = scaling_grid(rates_of(*of_gpus(1, 100.0, 100.1), *of_gpus(2, 220.0, 220.1)))
    assert grid.rows[0][-1].startswith("110.0 ± ") and grid.rows[0][-1].endswith(" !")
    assert any(note.startswith("! above 105 %") for note in grid.notes)


WITHOUT_PRICES = "Without both prices, no samples per dollar: set usd_per_gpu_hour of a5000 and a4000 in hosts.yml."


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (0.36, 0.17, "Rent a4000: a5000 gives 0.7414 ± 0.0016 times the samples per dollar of a4000 at 0.36 and 0.17"),
        (0.157, 0.1, "No significant difference in samples per dollar: a5000 gives 1.0000 ± 0.0022 times"),
        (0.156, 0.1, "No difference above 1 % in samples per dollar: a5000 gives 1.0064 ± 0.0022 times"),
        (0.36, None, WITHOUT_PRICES),
        (None, None, WITHOUT_PRICES),
    ],
)
def test_the_faster_is_worth_the_ratio_of_throughputs_times_the_price(a, b, words):
    measured = {"case": make_case(device="gpu", num_gpus=4), "environment": GPU}  # a price is that of each GPU
    records = [
        *repeats(156.9, 157.0, 157.1, fleet="a5000", usd_per_gpu_hour=a, **measured),
        *repeats(99.9, 100.0, 100.1, fleet="a4000", usd_per_gpu_hour=b, **measured),
    ]
    (item,) = compare(*sides(*records, a="a5000", b="a4000"))
    speed, price = answer_lines([item])
    assert speed == "a5000 is 1.570 ± 0.003 times as fast as a4000 (resnet50 fp32); one machine each."
    assert price.startswith(words)
    grid = compare_grid([item], "a5000", "a4000")
    cells = dict(zip(grid.headings, grid.rows[0], strict=True))
    assert ("worth up to, USD/h" in cells) is (b is not None)
    assert b is None or float(cells["worth up to, USD/h"].split()[0]) == pytest.approx(1.57 * b, rel=1e-3)


def test_samples_per_joule_are_shown_where_both_sides_measured_energy():
    def of(fleet, rate, watts):
        joules = [watts * make_case().num_steps * 8 / rate + noise for noise in (0.0, 0.01)]
        made = repeats(rate, rate, fleet=fleet)
        return [
            replace(one, telemetry=Telemetry(energy_joules=of_one)) for one, of_one in zip(made, joules, strict=True)
        ]

    merged = merge_records(stored(*of("a", 160.0, 200.0), *of("b", 100.0, 140.0)))
    (a, b), table = merged.rates, merged.table
    assert table["samples_per_joule"].tolist() == pytest.approx([160 / 200, 100 / 140], rel=1e-3)
    assert table["power_mean_watts"].isna().all()
    grid = compare_grid(compare([a], [b]), "a", "b")
    assert grid.rows[0][grid.headings.index("per joule")].startswith("1.12"), "0.8 over 0.714"


def test_a_case_with_several_softwares_is_left_out_in_a_line():
    first = make_environment(keras="3.15.1", variables={"A": "1", "B": "x,y", "C": ""})
    second = make_environment(keras="3.12.0", variables={"A": "1", "B": "x"})
    records = [*repeats(20.0, 21.0, environment=first), *repeats(10.0, 11.0, environment=second, run_id="run-2")]
    records += repeats(10.0, 11.0, case=make_case("vgg16"))
    kept, (line,) = unambiguous(rates_of(*records))
    assert [rate.case.model for rate in kept] == ["vgg16"]
    why = "several keras (3.12.0, 3.15.1), B (x, x,y), C (empty, unset)"
    assert line == f"left out: a4000, resnet50 fp32: measured with {why}; compare --by keras,variables splits them"
    assert unambiguous(rates_of(*records), ["keras", "variables"])[1] == []


def of_host(host, run_id="run-1", **changes):
    environment = make_environment(gpus=8, **changes)
    return repeats(20.0, 21.0, host=host, case=make_case(device="gpu"), environment=environment, run_id=run_id)


def test_drivers_and_processors_of_a_fleets_hosts_are_spread_between_hosts():
    for first, second in ({"cpu": "EPYC"}, {"cpu": "Xeon"}), ({"driver": "550.54"}, {"driver": "570.86"}):
        rates = rates_of(*of_host("x", **first), *of_host("y", **second))
        assert unambiguous(rates)[1] == []
        apart = rates_of(*of_host("x", **first), *of_host("y", **second), apart=list(first))
        assert [list(rate.rates) for rate in apart] == [["x"], ["y"]]
        assert [list(rate.rates) for rate in rates] == [["x", "y"]]
        ((name, value),) = first.items()
        (note,) = fleet_notes(rates)
        assert note.startswith("a4000: ") and f" {value} on x, {second[name]} on y; that is part of" in note
    rates = rates_of(*of_host("x", driver="550.54"), *of_host("x", driver="570.86", run_id="run-2"))
    assert "measured with several driver (550.54, 570.86)" in unambiguous(rates)[1][0]


def test_by_pairs_only_equal_software():
    rates = {("a", "3.15.1"): 20.0, ("a", "3.12.0"): 30.0, ("b", "3.15.1"): 10.0, ("b", "3.12.0"): 10.0}
    of = {keras: {"environment": make_environment(keras=keras), "run_id": keras} for _, keras in rates}
    records = [r for (fleet, keras), rate in rates.items() for r in repeats(rate, rate + 1, fleet=fleet, **of[keras])]
    (item,) = compared(*records)
    assert (item.mark, item.value) == (Mark.NOT_COMPARABLE, None)
    assert item.reason == "measured with several keras (3.12.0, 3.15.1): split with --by keras"
    assert unchecked_lines([item], [], [item.a])[0].startswith(f"b, resnet50 fp32: {item.reason}; measure both sides")
    assert unknown_line("a", "b", [item]).startswith("a and b have no comparable case in common")
    assert sorted(round(item.value) for item in compared(*records, by=["keras"])) == [2, 3]


@pytest.mark.parametrize(
    ("fp16", "said"),
    [
        (2.0, "a is 2.00 times as fast as b in each of 2 cases"),
        (1.0, "a is 1.00 (resnet50 fp16) to 2.00 times (resnet50 fp32) as fast as b, a clear difference in 1 of 2"),
    ],
)
def test_the_first_sentence_counts_the_cases_that_differ(fp16, said):
    kinds = (("fp32", 2.0), ("fp16", fp16))
    records = [r for p, f in kinds for r in both([100 * f, 101 * f], [100.0, 101.0], case=make_case(precision=p))]
    assert said in answer_lines(compared(*records))[0]
