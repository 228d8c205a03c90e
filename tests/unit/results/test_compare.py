import math
from dataclasses import replace

import numpy as np
import pytest
import scipy

from results.compare.cost import break_even, samples_per_usd
from results.compare.overall import answer_lines
from results.compare.pairs import Mark, compare, geometric_mean, regressions, unmatched
from results.compare.scaling import efficiencies
from results.digits import with_interval
from results.errors import MixedIdentities
from results.report.comparison import compare_grid, scaling_grid
from results.schema import Telemetry
from results.table.fleets import fleet_rates, refuse_mixed
from results.table.merge import merge_records
from tests.unit.results.factory import (
    make_case,
    make_environment,
    make_failure,
    make_origin,
    ratio_interval,
    repeats,
    stored,
)

GPU = make_environment(gpus=8)


def sides(*records, a="a", b="b"):
    rates = fleet_rates(merge_records(stored(*records)))
    return [rate for rate in rates if rate.fleet == a], [rate for rate in rates if rate.fleet == b]


def compared(*records, **options):
    return compare(*sides(*records), **options)


def test_the_ratio_of_two_hosts_is_fieller_over_their_repeats():
    (item,) = compared(*repeats(20.0, 21.0, 20.5, fleet="a"), *repeats(10.0, 10.2, 10.1, fleet="b", host="node-b"))
    assert item.interval == ratio_interval([20.0, 21.0, 20.5], pytest.approx([10.0, 10.2, 10.1]).expected)
    assert item.mark is Mark.FASTER


@pytest.mark.parametrize(
    ("a", "b", "mark"),
    [
        ([20.0, 20.1], [10.0, 10.1], Mark.FASTER),
        ([10.0, 10.1], [20.0, 20.1], Mark.SLOWER),
        ([10.0, 14.0], [10.0, 13.0], Mark.SAME),
        ([100.0, 100.001], [100.4, 100.401], Mark.SMALL),  # certain, and below 1 %
        ([20.0], [10.0, 10.1], Mark.SAME),  # one repeat says nothing about its own uncertainty
    ],
)
def test_marks_need_significance_and_size(a, b, mark):
    (item,) = compared(*repeats(*a, fleet="a"), *repeats(*b, fleet="b"))
    assert item.mark is mark


def test_a_failure_on_one_side_has_a_mark_and_its_status():
    failed = make_failure("oom", "out of memory", origin=make_origin("a"))
    (item,) = compared(failed, *repeats(10.0, 11.0, fleet="b"))
    assert (item.mark, item.reason, item.value) == (Mark.FAILED, "oom", None)
    failed = make_failure("timeout", "too slow", origin=make_origin("b"))
    (item,) = compared(failed, *repeats(10.0, 11.0, fleet="a"))
    assert (item.mark, item.reason) == (Mark.WORKS, "timeout")


def test_other_software_is_compared_and_named():
    records = [
        *repeats(20.0, 21.0, fleet="a", environment=make_environment(tensorflow="2.21.0", driver="570.1")),
        *repeats(10.0, 11.0, fleet="b", environment=make_environment(tensorflow="2.16.2", cpu="Other CPU")),
    ]
    found = compared(*records)
    assert found[0].differs == ("tensorflow", "driver")
    assert compare_grid(found, "a", "b").rows[0][-1] == "tensorflow 2.21.0 / 2.16.2; driver 570.1 / none"


def test_cases_of_one_side_only_are_named():
    records = [
        *repeats(20.0, 21.0, fleet="a", case=make_case("resnet50")),
        *repeats(5.0, 6.0, fleet="a", case=make_case("resnet152")),
        *repeats(10.0, 11.0, fleet="b", case=make_case("resnet50")),
    ]
    a, b = sides(*records)
    grid = compare_grid(compare(a, b), "a", "b", unmatched(a, b))
    assert grid.notes[-1] == "measured on one side only: resnet152 fp32 1×cpu"


def test_several_runs_of_one_host_are_what_is_repeated():
    records = [
        *repeats(100.0, 100.1, fleet="a", run_id="1"),
        *repeats(110.0, 110.1, fleet="a", run_id="2"),
        *repeats(105.0, 105.1, fleet="a", run_id="3"),
    ]
    (rate,), _ = sides(*records)
    low, high = scipy.stats.t.interval(0.95, 2, *[105.05, scipy.stats.sem([100.05, 110.05, 105.05])])
    assert rate.repeated == "runs"
    assert (rate.interval.low, rate.interval.high) == pytest.approx((low, high))


def test_the_geometric_mean_is_uncertain_by_what_rounds_differ_over_all_cases():
    """Cases of a round run next to each other: as independent values they would look √3 times as certain."""
    random = np.random.default_rng(3)
    rounds = 0.02 * random.standard_normal(5)
    records, relative = [], []
    for model in ("resnet50", "vgg16", "googlenet"):
        values = 150 * (1 + rounds + 0.001 * random.standard_normal(5))
        relative.append(values / values.mean())
        records += [*repeats(*values, fleet="a", case=make_case(model)), *repeats(*[100.0] * 5, fleet="b", case=make_case(model))]  # fmt: skip
    mean = geometric_mean(compared(*records))
    half = scipy.stats.t.ppf(0.975, 4) * scipy.stats.sem(np.mean(relative, axis=0))
    assert mean.high / mean.value == pytest.approx(math.exp(half), rel=1e-9)


def test_a_round_that_one_case_lacks_is_still_the_same_round_of_the_others():
    first, second = (
        [
            *repeats(100.0, 90.0, 101.0, fleet="a", case=make_case(m)),
            *repeats(*[50.0] * 3, fleet="b", case=make_case(m)),
        ]
        for m in ("resnet50", "vgg16")
    )
    lost = [*first, *second[:1], *second[2:]]  # the slow round of one case failed
    a, b = sides(*lost)
    assert [rate.rounds["node-a"]["run-1"] for rate in a] == [[1, 2, 3], [1, 3]]
    assert geometric_mean(compare(a, b)).half_width == pytest.approx(
        geometric_mean(compared(*first, *second)).half_width, rel=0.15
    )


def test_the_answer_over_one_case_has_the_interval_of_that_case():
    (item,) = compared(*repeats(57.0, 83.0, 70.0, fleet="a"), *repeats(42.0, 43.0, 42.5, fleet="b"))
    assert geometric_mean([item]) == item.interval
    error = with_interval(item.interval)
    assert error == "1.6 ± 0.8"
    assert any(f"a/node-a is {error} × as fast as b/node-a" in line for line in answer_lines([item]))


def test_regressions_are_certain_losses_beyond_the_tolerance_and_new_failures():
    records = [
        *repeats(90.0, 90.1, fleet="a", case=make_case("resnet50")),
        *repeats(100.0, 100.1, fleet="b", case=make_case("resnet50")),
        *repeats(98.0, 98.1, fleet="a", case=make_case("vgg16")),
        *repeats(100.0, 100.1, fleet="b", case=make_case("vgg16")),
        *repeats(60.0, 140.0, fleet="a", case=make_case("googlenet")),
        *repeats(120.0, 122.0, fleet="b", case=make_case("googlenet")),
        make_failure(case=make_case("resnet152"), origin=make_origin("a")),
        *repeats(10.0, 10.1, fleet="b", case=make_case("resnet152")),
    ]
    worse = regressions(compared(*records), 0.05)
    assert sorted(item.case.model for item in worse) == ["resnet152", "resnet50"]


def test_scaling_efficiency_compares_with_the_same_settings_on_one_gpu():
    def of(count, xla, *rates):
        case = make_case(device="gpu", num_gpus=count, xla=xla)
        return repeats(*rates, case=case, environment=GPU)

    records = [*of(1, "off", 100.0, 101.0), *of(4, "off", 380.0, 384.0), *of(1, "auto", 120.0, 121.0)]
    (item,) = efficiencies(fleet_rates(merge_records(stored(*records))))
    expected = ratio_interval([380.0 / 4, 384.0 / 4], [100.0, 101.0])
    assert (item.value, item.interval.low, item.interval.high) == pytest.approx(
        (expected.value, expected.low, expected.high)
    )
    assert not item.suspect


def test_an_efficiency_above_105_percent_is_marked():
    records = [
        *repeats(100.0, 100.1, case=make_case(device="gpu", num_gpus=1), environment=GPU),
        *repeats(220.0, 220.1, case=make_case(device="gpu", num_gpus=2), environment=GPU),
    ]
    grid = scaling_grid(fleet_rates(merge_records(stored(*records))))
    assert grid.rows[0][-1].startswith("110.0 ± ") and grid.rows[0][-1].endswith(" !")
    assert any(note.startswith("! above 105 %") for note in grid.notes)


def priced(a, b):
    return [
        *repeats(156.9, 157.0, 157.1, fleet="a5000", usd_per_gpu_hour=a),
        *repeats(99.9, 100.0, 100.1, fleet="a4000", usd_per_gpu_hour=b),
    ]


def test_the_break_even_price_ratio_is_the_ratio_of_throughputs():
    (item,) = compare(*sides(*priced(0.36, 0.17), a="a5000", b="a4000"))
    assert break_even(item) == item.interval
    _, line = answer_lines([item])
    assert line == (
        "a5000/node-a is worth up to 1.570 ± 0.003 × the price of a4000/node-a; it costs 2.12 × as much: "
        "a4000/node-a gives 1.349 ± 0.003 × the samples per dollar."
    )
    assert samples_per_usd(item.a).samples_per_usd == pytest.approx(157.0 * 3600 / 0.36)


def test_without_prices_one_line_says_what_the_faster_is_worth():
    found = compare(*sides(*priced(None, None), a="a5000", b="a4000"))
    speed, worth = answer_lines(found)
    assert speed.startswith(
        "These two machines: a5000/node-a is 1.570 ± 0.003 × as fast as a4000/node-a (training, fp32, 1 CPU; one case"
    )
    assert worth.startswith("a5000/node-a is worth up to 1.570 ± 0.003 × the price of a4000/node-a; set usd_per_gpu")


def test_the_price_counts_for_every_gpu():
    case = make_case(device="gpu", num_gpus=4)
    rates = fleet_rates(merge_records(stored(*repeats(400.0, 400.0, case=case, environment=GPU, usd_per_gpu_hour=0.5))))
    assert samples_per_usd(rates[0]).samples_per_usd == pytest.approx(400.0 * 3600 / 2.0)


def test_samples_per_joule_stand_beside_the_ratio_where_both_sides_measured_energy():
    def of(fleet, rate, watts):
        telemetry = [Telemetry(energy_joules=watts * make_case().num_steps * 8 / rate + noise) for noise in (0.0, 0.01)]
        records = repeats(rate, rate, fleet=fleet)
        return [replace(record, telemetry=seen) for record, seen in zip(records, telemetry, strict=True)]

    a, b = sides(*of("a", 160.0, 200.0), *of("b", 100.0, 140.0))
    assert a[0].samples_per_joule.mean == pytest.approx(160.0 / 200.0, rel=1e-3)
    grid = compare_grid(compare(a, b), "a", "b")
    assert [heading for heading in grid.headings if heading.endswith("per J")] == ["a per J", "b per J"]
    table = merge_records(stored(*of("a", 160.0, 200.0))).table
    assert table["samples_per_joule"][0] == pytest.approx(0.8, rel=1e-3)
    assert table["power_mean_watts"].isna().all()


def test_mixed_identities_are_refused_with_what_differs_and_the_remedy():
    records = [
        *repeats(20.0, 21.0, environment=make_environment(keras="3.15.1")),
        *repeats(10.0, 11.0, environment=make_environment(keras="3.12.0"), run_id="run-2"),
    ]
    rates = fleet_rates(merge_records(stored(*records)))
    with pytest.raises(MixedIdentities) as refused:
        refuse_mixed(rates, [])
    assert str(refused.value) == (
        "fleet a4000, 1 cases: several keras (3.12.0, 3.15.1)\n"
        "Numbers from different software cannot share a cell. Split them: --by keras"
    )
    refuse_mixed(rates, ["keras"])


def of_host(host, *rates, fleet="a4000", run_id="run-1", price=None, **changes):
    """Repeats of one GPU host; `changes` are of its environment."""
    environment = make_environment(gpus=8, **changes)
    case = make_case(device="gpu")
    return repeats(
        *rates, fleet=fleet, host=host, case=case, environment=environment, run_id=run_id, usd_per_gpu_hour=price
    )


def rates_of(*records, **options):
    return fleet_rates(merge_records(stored(*records)), **options)


def test_drivers_and_processors_of_a_fleets_hosts_are_spread_between_hosts():
    for changes in ({"cpu": "EPYC"}, {"cpu": "Xeon"}), ({"driver": "550.54"}, {"driver": "570.86"}):
        rates = rates_of(*of_host("x", 20.0, 21.0, **changes[0]), *of_host("y", 20.0, 21.0, **changes[1]))
        refuse_mixed(rates, [])
        assert [list(rate.rates) for rate in rates] == [["x", "y"]]
        ((name, values),) = rates[0].hosts_differ.items()
        assert values == {"x": changes[0][name], "y": changes[1][name]}


def test_drivers_that_one_host_had_one_after_the_other_are_refused():
    rates = rates_of(
        *of_host("x", 20.0, 21.0, driver="550.54"), *of_host("x", 22.0, 23.0, driver="570.86", run_id="run-2")
    )
    with pytest.raises(MixedIdentities, match=r"driver \(550\.54, 570\.86\)"):
        refuse_mixed(rates, [])


def test_by_pairs_only_equal_software():
    def of(fleet, keras, *rates, run):
        return repeats(*rates, fleet=fleet, environment=make_environment(keras=keras), run_id=run)

    records = [
        *of("a", "3.15.1", 20.0, 21.0, run="1"),
        *of("a", "3.12.0", 30.0, 31.0, run="2"),
        *of("b", "3.15.1", 10.0, 11.0, run="1"),
        *of("b", "3.12.0", 10.0, 11.0, run="2"),
    ]
    (item,) = compared(*records)
    assert (item.mark, item.value) == (Mark.NOT_COMPARABLE, None)
    assert item.reason == "measured with several keras: split with --by keras"
    assert sorted(round(item.value) for item in compared(*records, by=["keras"])) == [2, 3]


@pytest.mark.parametrize(("fp16", "said"), [(2.0, "in each of 2 kinds of work"), (1.0, "in 1 of 2 kinds of work")])
def test_the_first_sentence_counts_the_kinds_of_work_that_differ(fp16, said):
    records = [
        record
        for precision, factor in (("fp32", 2.0), ("fp16", fp16))
        for fleet, rate in (("a", 100.0 * factor), ("b", 100.0))
        for record in repeats(rate, rate * 1.01, rate * 0.99, fleet=fleet, case=make_case(precision=precision))
    ]
    assert said in answer_lines(compared(*records))[0]
