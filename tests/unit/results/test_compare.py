"""Two fleets, case by case: ratios, their intervals and what these cover, marks, scaling, prices."""

import dataclasses
import math
import re

import numpy as np
import pytest
import scipy

from results.compare.comparison import Mark, compare, efficiencies, mark_of, mean_ratio, regressions, unmatched
from results.compare.summary import answer_lines, means_of_kinds, unchecked_lines, unknown_line
from results.report.comparison import compare_grid, scaling_grid
from results.report.tables import results_grid, wide_grids
from results.runs.reading import from_json
from results.schema import Mode, Rank
from results.schema.record_json import RecordError, to_json
from results.table.merge import merge_records
from results.text_table import markdown
from studies import coverage
from tests.unit.results.factory import (
    make_case,
    make_environment,
    make_failure,
    make_origin,
    make_record,
    of_hosts,
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
    assert (dataclasses.astuple(item.ratio) if item.ratio.known else None) == expected
    assert bool(unchecked_lines([item])) == (mark is Mark.UNKNOWN)
    assert unknown_line("a", "b", [item]).startswith("a is 1.99 × as fast as b, from one") == (mark is Mark.UNKNOWN)


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


@pytest.mark.parametrize(("runs", "repeats_of_run"), [(1, 5), (5, 1), (5, 2)])
def test_the_mean_ratio_is_uncertain_by_what_rounds_or_runs_differ(runs, repeats_of_run):
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
    mean = mean_ratio(compared(*records))
    half = scipy.stats.t.ppf(0.975, 4) * scipy.stats.sem(np.mean(relative, axis=0))
    assert mean.high / mean.value == pytest.approx(math.exp(half), rel=1e-4)


def test_a_round_that_one_case_lacks_is_still_the_same_round_of_the_others():
    first, second = (both([100.0, 90.0, 101.0], [50.0] * 3, case=make_case(m)) for m in ("resnet50", "vgg16"))
    a, b = sides(*first, *second[:1], *second[2:])  # the slow round of one case failed
    assert [rate.rounds["node-a"]["run-1"] for rate in a] == [[1, 2, 3], [1, 3]]
    whole = mean_ratio(compared(*first, *second))
    assert mean_ratio(compare(a, b)).half_width == pytest.approx(whole.half_width, rel=0.15)


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
    assert sorted(item.a.case.model for item in worse) == ["alexnet", "resnet152", "resnet50"]


def on_hosts(hosts, gpus, *rates, host="a", **changes):
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


def test_scaling_efficiency_compares_with_the_same_settings_on_one_gpu():
    records = [*on_hosts(1, 1, 100.0, 101.0), *on_hosts(1, 4, 380.0, 384.0), *on_hosts(1, 1, 120.0, 121.0, xla="auto")]
    (item,) = efficiencies(rates_of(*records))
    expected = ratio_interval([380.0 / 4, 384.0 / 4], [100.0, 101.0])
    found = (item.ratio.value, item.ratio.low, item.ratio.high)
    assert found == pytest.approx((expected.value, expected.low, expected.high))
    grid = scaling_grid(rates_of(*on_hosts(1, 1, 100.0, 100.1), *on_hosts(1, 2, 220.0, 220.1)))
    assert grid.rows[0][-1].startswith("110.0 ± ") and grid.rows[0][-1].endswith(" !")
    assert any(note.startswith("! above 105 %") for note in grid.notes)


WITHOUT_PRICES = "Without both prices, no samples per dollar: set usd_per_gpu_hour of a5000 and a4000 in hosts.yml."


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (0.36, 0.17, "Rent a4000, which gives more samples per dollar, at 0.36 (a5000) and 0.17 (a4000) USD"),
        (0.157, 0.1, "No difference above 1 % in samples per dollar, at 0.157"),
        (0.156, 0.1, "No difference above 1 % in samples per dollar, at 0.156"),
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


def scaled(hosts_of_one, hosts_of_four):
    """Records of one and of four GPUs on hosts by number, with their rates."""
    return [
        record
        for count, hosts in ((1, hosts_of_one), (4, hosts_of_four))
        for host, rate in hosts.items()
        for record in on_hosts(1, count, rate * count, rate * count * 1.001, host=host)
    ]


def test_hosts_scale_against_themselves_if_possible_or_their_fleet():
    rates = rates_of(*scaled({"x": 100.0, "y": 120.0, "z": 60.0}, {"x": 90.0, "y": 108.0}))
    (item,) = efficiencies(rates)
    assert item.ratio.value == pytest.approx(0.9, rel=1e-3) and item.ratio.low <= item.ratio.value <= item.ratio.high
    assert "† without z (not on both sides)" in scaling_grid(rates).notes
    (item,) = efficiencies(rates_of(*scaled({"x": 100.0, "y": 104.0}, {"p": 90.0, "q": 94.0})))
    assert item.ratio.value == pytest.approx(92 / 102) and item.ratio.low < item.ratio.value < item.ratio.high
    (item,) = efficiencies(rates_of(*scaled({"x": 100.0}, {"y": 95.0})))
    assert item.ratio.value == pytest.approx(0.95) and not item.ratio.known


def test_a_fleet_and_its_baseline_are_compared_on_the_hosts_of_both():
    before = rates_of(*of_hosts("a", 100.0, 110.0, 50.0))
    after = rates_of(*of_hosts("a", 105.0, 115.5))
    (item,) = compare(after, before)
    assert item.ratio.value == pytest.approx(1.05) and item.ratio.high < 1.06 and item.covers == ""
    assert "† without a2 (not on both sides)" in compare_grid([item], "a", "a, baseline").notes


@pytest.mark.parametrize("gpu", ["A4000", "A5000"])
def test_hosts_of_one_name_in_two_fleets_are_not_one_machine(gpu):
    """Paired by their names, these two fleets would have a ratio of exactly 1.5."""
    case = make_case(device="gpu")
    records = [
        *of_hosts("a", 150.0, 153.0, prefix="node-", case=case, environment=make_environment(1, f"NVIDIA RTX {gpu}")),
        *of_hosts("b", 100.0, 102.0, prefix="node-", case=case, environment=make_environment(1, "NVIDIA RTX A4000")),
    ]
    (item,) = compare(*sides(*records))
    assert not item.paired and item.ratio.half_width > 0.01


MODELS = ("resnet50", "vgg16", "googlenet", "resnet152", "inception_v3", "alexnet")


@pytest.mark.parametrize("others", [(100.2, 99.9), (100.2, 99.9, 100.1)])
def test_a_bad_host_among_a_few_is_named_once_for_all_cases(others):
    a = [r for m in MODELS[:2] for r in of_hosts("a", 150.0, 150.3, 149.8, case=make_case(m))]
    b = [r for m in MODELS[:2] for r in of_hosts("b", 80.0, *others, case=make_case(m))]
    found = compare(*sides(*a, *b))
    speed, outlier, _ = answer_lines(found)
    assert speed.startswith("No significant difference") or re.match(
        r"a is 1\.\d+ (\(\w+ fp32\) to 1\.\d+ )?times ", speed
    )
    whose = f"b/b0 is 20.{len(others) - 2}% slower than the {len(others)} other hosts of its fleet"
    assert answer_lines(found, prices=False) == [speed, outlier]
    assert outlier.startswith(f"{whose}; an equal host would be within -") and outlier.endswith("neighbours.")


def test_a_host_that_is_slow_on_both_days_is_no_outlier_of_its_baseline():
    found = compare(rates_of(*of_hosts("a", 80.0, 105.0, 105.2)), rates_of(*of_hosts("a", 76.2, 100.0, 100.1)))
    assert len(answer_lines(found, baseline=True)) == 1
    now, before = of_hosts("a", 60.0, 105.0, 105.2), of_hosts("a", 76.2, 100.0, 100.1)
    _, outlier = answer_lines(compare(rates_of(*now), rates_of(*before)), baseline=True)
    assert outlier.startswith("a/a0 is 25.0% slower than the 2 other hosts")


def test_hosts_of_different_prices_are_named():
    records = [
        *repeats(100.0, 101.0, fleet="a", host="x", usd_per_gpu_hour=0.1),
        *(record for host in "stuv" for record in repeats(100.0, fleet="a", host=host, usd_per_gpu_hour=0.3)),
        *repeats(100.0, 101.0, fleet="b", host="z"),
        *repeats(100.0, 101.0, fleet="b", host="w", usd_per_gpu_hour=0.2),
    ]
    (item,) = compare(*sides(*records))
    assert item.a.usd_per_gpu_hour == pytest.approx(0.26)
    notes = compare_grid([item], "a", "b").notes
    assert "a: 0.1 to 0.3 USD per GPU-hour; the mean of its hosts is used" in notes
    assert "at 0.26 (a) and 0.2 (b) USD per GPU-hour." in answer_lines([item])[-1]


def test_unlike_kinds_of_work_have_no_common_mean():
    records = [
        record
        for mode, factor in ((Mode.TRAIN, 1.5), (Mode.INFER, 0.8))
        for case in (make_case(model, mode=mode) for model in MODELS[:3])
        for fleet, base in (("a", 100.0 * factor), ("b", 100.0))
        for record in of_hosts(fleet, base, base * 1.01, base * 0.99, case=case)
    ]
    found = compare(*sides(*records))
    kinds = {kind: (mark_of(ratio), cases) for kind, (ratio, cases) in means_of_kinds(found).items()}
    assert kinds == {"inference, fp32, 1 CPU": (Mark.SLOWER, 3), "training, fp32, 1 CPU": (Mark.FASTER, 3)}
    assert answer_lines(found)[0].startswith("Which is faster depends on the case: a is 0.800 (")


DRAWS = 100
DRAWN = ["1 × 3, these machines", "3 × 3, one host lacks one case", "the same 3 hosts against their baseline"]
DRAWN += ["3 × 3, mixed drivers", "one machine of 9 against 2 hosts that spread by 2 %"]


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.slow
def test_intervals_hold_the_truth_as_often_as_they_say(name):
    """Few draws of `python -m studies.coverage`: three standard errors around 95 %."""
    (design,) = [item for item in coverage.DESIGNS if item.name == name]
    for column, held in coverage.covered(design, DRAWS).items():
        assert len(held) == DRAWS, column
        assert sum(held) / DRAWS == pytest.approx(0.95, abs=0.065), column


def test_a_record_of_several_hosts_survives_its_file_and_must_add_up():
    (record,) = on_hosts(2, 4, 700.0)
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


def test_hosts_scale_beside_gpus_from_the_same_baseline_each_alone():
    records = [
        *on_hosts(1, 1, 100.0, 101.0),
        *on_hosts(1, 4, 380.0, 384.0),
        *on_hosts(2, 4, 700.0, 704.0, host="a+b"),
        *on_hosts(4, 4, 1300.0, 1310.0, host="a+b+c+d", communication="ring"),
    ]
    merged = merge_records(stored(*records))
    found = {item.a.case.replicas: item for item in efficiencies(merged.rates)}
    assert found.keys() == {4, 8, 16}
    expected = ratio_interval([700.0 / 8, 704.0 / 8], [100.0, 101.0])
    assert (found[8].ratio.value, found[8].ratio.low) == pytest.approx((expected.value, expected.low))
    grid = scaling_grid(merged.rates)
    assert list(grid.headings) == ["fleet", "case", "4", "2×4", "4×4 ring"]
    assert len(grid.rows) == 1
    (wide,) = wide_grids(merged)
    assert [name for name in wide.headings if "GPU" in name] == ["1 GPU", "4 GPUs", "2×4 GPUs", "4×4 ring GPUs"]
    assert len(wide.rows) == 1
    assert merged.table["global_batch"].tolist() == [8 * replicas for replicas in (1, 4, 8, 16)]
    assert merged.table["all_reduce_bytes_per_second"].isna().tolist() == [True, True, False, False]
    alone = [*on_hosts(1, 1, 100.0, 101.0), *on_hosts(1, 1, 110.0, 111.0, host="b")]
    (item,) = efficiencies(rates_of(*alone, *on_hosts(2, 4, 700.0, 704.0, host="a+b")))
    assert item.ratio.value == pytest.approx(702.0 / 8 / 105.5) and item.ratio.contains(item.ratio.value)


def test_what_has_no_all_reduce_is_no_speed_and_stands_in_a_note():
    merged = merge_records(stored(*on_hosts(2, 4, 700.0, 704.0), *on_hosts(2, 4, 800.0, 804.0, all_reduce=False)))
    assert merged.table["all_reduce"].tolist() == [True] and merged.table["samples_per_second"].tolist() == [702.0]
    assert not any("80" in markdown(grid).replace("a4000", "") for grid in wide_grids(merged))
    assert [row.samples_per_second for row in merged.without_all_reduce] == [802.0]
    (note,) = [note for note in results_grid(merged).notes if "no-all-reduce" in note]
    assert "802 ± 25 images/s, trains nothing" in note
