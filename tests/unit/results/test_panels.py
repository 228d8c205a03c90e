"""Panels of a report: ratios, speeds, scaling."""

import re
from dataclasses import replace

import pytest

from results.report.panels import ratio_panel, scaling_panel, speed_panels, utilisation_panel
from results.table.merge import merge_records
from tests.unit.results.factory import pairs_of, rates_of_fleets, repeats, stored


def ratios_of(fleets, *pairs, **changes):
    return ratio_panel(pairs_of(rates_of_fleets(fleets, **changes), *pairs))


def plain(text):
    return text.replace("\u00a0", " ")


def test_each_unit_has_an_axis_of_its_own():
    images = rates_of_fleets({"a": 1.0})
    sequences = [replace(rate, unit="sequences", case=replace(rate.case, model="bert_large")) for rate in images]
    units = [panel.unit for panel in speed_panels([*images, *sequences])]
    assert units == ["images/s", "sequences/s"]


def test_a_failed_case_is_in_the_panel_with_its_status():
    (speed,) = speed_panels(rates_of_fleets({"slow": 1.0, "quick": 1.5}, unfit="slow"))
    failed = {bar.text for case, bars in speed.groups.items() if "vgg16" in case for bar in bars if bar.label == "slow"}
    assert failed == {"oom"}


def test_bars_of_speed_start_at_zero_and_grow_with_it():
    (speed,) = speed_panels(rates_of_fleets({"slow": 1.0, "quick": 1.5}))
    assert speed.place(0.0) == 0.0
    (slow, quick), *_ = speed.groups.values()
    assert speed.place(quick.value) / speed.place(slow.value) == pytest.approx(quick.value / slow.value, rel=1e-3)


def test_a_ratio_is_drawn_within_its_interval_and_beside_equal_speed():
    panel = ratios_of({"slow": 1.0, "quick": 1.5}, ("quick", "slow"))
    for bars in panel.groups.values():
        (bar,) = bars
        assert panel.place(1.0) < panel.place(bar.ends[0]) < panel.place(bar.value) < panel.place(bar.ends[1]) <= 100
        assert re.match(r"1\.49\d* ± 0\.0\d+$", plain(bar.text))
    assert panel.alone and panel.grid().columns[:2] == ["case", "times as fast>"]


def test_a_network_that_does_not_fit_names_the_fleet_instead_of_a_ratio():
    panel = ratios_of({"slow": 1.0, "quick": 1.5}, ("quick", "slow"), unfit="slow")
    assert {bar.text for case, bars in panel.groups.items() if "vgg16" in case for bar in bars} == {"slow: oom"}


def test_a_ratio_within_the_noise_is_marked():
    panel = ratios_of({"a": 1.0, "b": 1.0005}, ("b", "a"))
    assert all(bar.text.endswith(" ~") for bars in panel.groups.values() for bar in bars)


def test_prices_give_samples_per_dollar_and_what_the_other_gpu_is_worth():
    panel = ratios_of({"slow": 1.0, "quick": 1.5}, ("quick", "slow"), prices={"slow": 0.2, "quick": 0.4})
    assert panel.columns == ("worth up to, USD/h", "per dollar")
    worth, per_dollar = map(plain, next(iter(panel.groups.values()))[0].cells)
    assert re.match(r"0\.29\d* ± 0\.00\d+$|0\.30\d* ± 0\.00\d+$", worth)
    assert re.match(r"0\.7[45]\d* ± 0\.0\d+$", per_dollar)
    assert (
        "USD per GPU-hour: slow 0.2, quick 0.4" in panel.notes or "USD per GPU-hour: quick 0.4, slow 0.2" in panel.notes
    )


def test_of_more_than_two_fleets_each_stands_against_the_first():
    panel = ratios_of({"a": 1.0, "b": 2.0, "c": 3.0}, ("b", "a"), ("c", "a"), ("c", "b"))
    assert {tuple(bar.label for bar in bars) for bars in panel.groups.values()} == {("b / a", "c / a")}


def test_fleets_that_share_no_case_with_numbers_have_no_panel():
    assert ratio_panel([]) is None


def test_scaling_is_shown_against_perfect_scaling():
    panel = scaling_panel(rates_of_fleets({"slow": 1.0, "quick": 1.5}))
    assert panel.reference == 100.0
    texts = [plain(bar.text) for bars in panel.groups.values() for bar in bars]
    assert texts and all(re.match(r"(99|100)(\.\d+)?( ± \d.*)? %$", text) for text in texts), texts


def test_a_long_panel_says_how_much_of_it_is_in_the_csv():
    (speed,) = speed_panels(rates_of_fleets({f"f{number}": 1.0 for number in range(5)}))
    count = sum(map(len, speed.groups.values()))
    short = speed.first(3)
    assert sum(map(len, short.groups.values())) == 3 and short.notes == (f"{count - 3} more in results.csv",)
    assert speed.first(count) == speed


def test_utilisation_of_the_measured_peaks_is_shown_if_it_was_measured():
    def used(flops, bandwidth, host):
        (record,) = repeats(100.0, fleet="a", host=host)
        measurement = replace(record.measurement, flops_utilisation=flops, bandwidth_utilisation=bandwidth)
        return replace(record, measurement=measurement)

    rates = merge_records(stored(used(0.2, 0.9, "one"), used(0.4, 0.8, "two"))).rates
    panel = utilisation_panel(rates)
    ((bar,),) = panel.groups.values()
    assert (plain(bar.text), bar.cells) == ("30 %", ("85 %",)), "the mean of the hosts"
    assert utilisation_panel(merge_records(stored(*repeats(100.0))).rates) is None
