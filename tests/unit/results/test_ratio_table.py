import re

from results.report.comparison import ratio_tables
from tests.unit.results.factory import pairs_of, rates_of_fleets


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
