"""What intervals cover, and that values lie in them."""

import re

import pytest

from results.compare.comparison import Mark, compare, efficiencies, geometric_mean
from results.compare.means import answer_lines, answers, without_outlier
from results.report.comparison import compare_grid, scaling_grid
from results.schema import Mode
from studies import coverage
from tests.unit.results.factory import make_case, make_environment, of_hosts, rates_of, repeats, sides

GPU = make_environment(gpus=8)


def scaled(hosts_of_one, hosts_of_four):
    """Records of one and of four GPUs on hosts by number, with their rates."""
    cases = {count: make_case(device="gpu", num_gpus=count) for count in (1, 4)}
    return [
        record
        for count, hosts in ((1, hosts_of_one), (4, hosts_of_four))
        for host, rate in hosts.items()
        for record in repeats(rate * count, rate * count * 1.001, host=host, case=cases[count], environment=GPU)
    ]


def test_hosts_scale_against_themselves_if_possible_or_their_fleet():
    rates = rates_of(*scaled({"x": 100.0, "y": 120.0, "z": 60.0}, {"x": 90.0, "y": 108.0}))
    (item,) = efficiencies(rates)
    assert item.value == pytest.approx(0.9, rel=1e-3) and item.interval.low <= item.value <= item.interval.high
    assert "† without z (no such case)" in scaling_grid(rates).notes
    (item,) = efficiencies(rates_of(*scaled({"x": 100.0, "y": 104.0}, {"p": 90.0, "q": 94.0})))
    assert item.value == pytest.approx(92 / 102) and item.interval.low < item.value < item.interval.high
    (item,) = efficiencies(rates_of(*scaled({"x": 100.0}, {"y": 95.0})))
    assert item.value == pytest.approx(0.95) and item.interval is None


def test_a_fleet_and_its_baseline_are_compared_on_the_hosts_of_both():
    before = rates_of(*of_hosts("a", 100.0, 110.0, 50.0))
    after = rates_of(*of_hosts("a", 105.0, 115.5))
    (item,) = compare(after, before)
    assert item.value == pytest.approx(1.05) and item.interval.high < 1.06 and item.covers == ""
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
    assert not item.paired and item.interval.half_width > 0.01


MODELS = ("resnet50", "vgg16", "googlenet", "resnet152", "inception_v3", "alexnet")


def test_a_missing_case_of_one_host_does_not_make_its_cases_independent():
    """Hosts that differ by 10 %: what they have in common over six cases must stay in the interval."""
    rates = {"a": (150.0, 165.0, 158.0), "b": (100.0, 110.0, 104.0)}
    full = [r for fleet, of in rates.items() for m in MODELS for r in of_hosts(fleet, *of, case=make_case(m))]
    whole = geometric_mean(compare(*sides(*full)))
    lacking = [r for r in full if (r.origin.host, r.case.model) != ("a1", "vgg16")]
    gap = geometric_mean(compare(*sides(*lacking)))
    assert gap.value == pytest.approx(whole.value, rel=1e-3)
    assert gap.high - gap.low == pytest.approx(whole.high - whole.low, rel=0.02)


def test_the_geometric_mean_against_a_baseline_is_taken_host_by_host():
    before = [r for m in MODELS for r in of_hosts("a", 100.0, 130.0, 115.0, case=make_case(m))]
    after = [r for m in MODELS for r in of_hosts("a", 105.0, 136.6, 120.7, case=make_case(m))]
    mean = geometric_mean(compare(rates_of(*after), rates_of(*before)))
    assert mean.low > 1.045 and mean.high < 1.055


def test_one_host_a_side_speaks_of_two_machines_and_not_of_fleets():
    (item,) = compare(*sides(*of_hosts("a", 150.0), *of_hosts("b", 100.0)))
    assert item.covers == "one machine each"
    said = answer_lines([item])[0]
    assert said.startswith("a is 1.50") and said.endswith("; one machine each.")
    (item,) = compare(*sides(*of_hosts("a", 150.0, 151.0), *of_hosts("b", 100.0, 101.0)))
    assert item.covers == "" and answer_lines([item])[0].endswith(" times as fast as b (resnet50 fp32).")


def test_the_sentence_follows_the_interval():
    small = compare(*sides(*of_hosts("a", 100.49, 100.48, 100.5), *of_hosts("b", 100.0, 100.01, 99.99)))
    assert answer_lines(small)[0].startswith("No significant difference above 1 % in speed: a is 1.00490 ± ")
    same = compare(*sides(*of_hosts("a", 101.0, 99.5, 100.0), *of_hosts("b", 100.0, 100.5, 99.5)))
    assert answer_lines(same)[0].startswith("No significant difference in speed: a is 1.00")
    assert [item.mark for item in (*small, *same)] == [Mark.SMALL, Mark.SAME]


def test_a_table_says_how_many_marks_chance_gives():
    cases = [make_case(model, batch_per_gpu=batch) for model in MODELS for batch in (1, 2, 3, 4)]
    found = compare(*sides(*(r for case in cases for f in "ab" for r in of_hosts(f, 100.0, 101.0, case=case))))
    assert "if all cases were equal, about 1.2 would be marked by chance" in compare_grid(found, "a", "b").notes


@pytest.mark.parametrize("others", [(100.2, 99.9), (100.2, 99.9, 100.1)])
def test_a_bad_host_among_a_few_is_named_and_the_ratio_shown_without_it(others):
    a = [r for m in MODELS[:2] for r in of_hosts("a", 150.0, 150.3, 149.8, case=make_case(m))]
    b = [r for m in MODELS[:2] for r in of_hosts("b", 80.0, *others, case=make_case(m))]
    found = compare(*sides(*a, *b))
    speed, outlier, _ = answer_lines(found)
    assert speed.startswith("No significant difference") or re.match(
        r"a is 1\.\d+ (\(\w+ fp32\) to 1\.\d+ )?times ", speed
    )
    whose = f"b/b0 is 20.{len(others) - 2}% slower than the {len(others)} other hosts of its fleet"
    assert answer_lines(found, prices=False) == [speed, outlier]
    assert outlier.startswith(f"{whose}: 1.") and "× without it, 1." in outlier
    assert geometric_mean(found).half_width > 0.2 and geometric_mean(without_outlier(found)[1]).half_width < 0.04


def test_a_host_that_is_slow_on_both_days_is_no_outlier_of_its_baseline():
    found = compare(rates_of(*of_hosts("a", 80.0, 105.0, 105.2)), rates_of(*of_hosts("a", 76.2, 100.0, 100.1)))
    assert without_outlier(found) == ("", found)


def test_a_host_that_is_slow_on_one_day_is_left_out_of_both():
    now, before = of_hosts("a", 60.0, 105.0, 105.2), of_hosts("a", 76.2, 100.0, 100.1)
    outlier, (rest,) = without_outlier(compare(rates_of(*now), rates_of(*before)))
    assert outlier.startswith("a/a0 is ")
    assert list(rest.a.rates) == list(rest.b.rates) == ["a1", "a2"]


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
    spread = "a: USD per GPU-hour 0.3 on s, t, u and 1 more, 0.1 on x; their mean is used, as if each ran equally long"
    assert spread in notes and "at 0.26 and 0.2 USD per GPU-hour, averaged over hosts" in answer_lines([item])[-1]
    assert "b: no price for z; the other hosts' mean is used" in notes


def test_unlike_kinds_of_work_have_no_common_mean():
    records = [
        record
        for mode, factor in ((Mode.TRAIN, 1.5), (Mode.INFER, 0.8))
        for case in (make_case(model, mode=mode) for model in MODELS[:3])
        for fleet, base in (("a", 100.0 * factor), ("b", 100.0))
        for record in of_hosts(fleet, base, base * 1.01, base * 0.99, case=case)
    ]
    found = compare(*sides(*records))
    assert [(item.kind, item.mark, len(item.found)) for item in answers(found)] == [
        ("inference, fp32, 1 CPU", Mark.SLOWER, 3),
        ("training, fp32, 1 CPU", Mark.FASTER, 3),
    ]
    assert re.fullmatch(
        r"Which is faster depends on the case: a is 0\.800 \(\w+ fp32, inference\) to 1\.50 times "
        r"\(\w+ fp32, training\) as fast as b\.",
        answer_lines(found)[0],
    )


DRAWS = 100
DRAWN = ["1 × 3, these machines", "3 × 3, one host lacks one case", "the same 3 hosts against their baseline"]
DRAWN += ["3 × 3, mixed drivers", "one machine of 9 against 2 hosts that spread by 2 %"]


@pytest.mark.parametrize("name", DRAWN)
def test_intervals_hold_the_truth_as_often_as_they_say(name):
    """Few draws of `python -m studies.coverage`: three standard errors around 95 %."""
    (design,) = [item for item in coverage.DESIGNS if item.name == name]
    for column, held in coverage.covered(design, DRAWS).items():
        assert len(held) == DRAWS, column
        assert sum(held) / DRAWS == pytest.approx(0.95, abs=0.065), column
