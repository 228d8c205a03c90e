import re

from results.compare.pairs import compare
from results.report.comparison import ratio_tables
from results.table.fleets import fleet_rates
from results.table.merge import merge_records
from tests.unit.results.factory import make_case, make_environment, make_failure, make_origin, repeats, stored


def rates_of(fleets, *, prices=None, unfit=""):
    """Two hosts of each fleet train two networks on 1 and 2 GPUs; VGG16 does not fit on `unfit`."""
    records = []
    for place, (fleet, factor) in enumerate(fleets.items()):
        for host, own in (("x", 1.0), ("y", 1.002 - place / 1000)):
            environment = make_environment(gpus=2)
            for model in ("resnet50", "vgg16"):
                for count in (1, 2):
                    case = make_case(model, device="gpu", num_gpus=count)
                    if model == "vgg16" and fleet == unfit:
                        origin = make_origin(fleet, host)
                        records.append(make_failure("oom", case=case, origin=origin, environment=environment))
                        continue
                    values = [100 * factor * own * count * noise for noise in (0.999, 1.0, 1.001)]
                    price = (prices or {}).get(fleet)
                    records += repeats(
                        *values, fleet=fleet, host=host, case=case, environment=environment, usd_per_gpu_hour=price
                    )
    return fleet_rates(merge_records(stored(*records)))


def tables_of(rates, *pairs):
    of = {rate.fleet: [other for other in rates if other.fleet == rate.fleet] for rate in rates}
    return ratio_tables([(a, b, compare(of[a], of[b])) for a, b in pairs])


def plain(rows):
    return [[cell.replace("\u00a0", " ") for cell in row] for row in rows]


def test_a_cell_is_the_ratio_of_a_network_with_its_interval():
    (speed,) = tables_of(rates_of({"slow": 1.0, "quick": 1.5}), ("quick", "slow"))
    assert speed.headings == ["work", "network", "1 GPU", "2 GPUs"]
    row = plain(speed.rows)[0]
    assert row[:2] == ["training, fp32, batch 8", "resnet50"]
    assert re.match(r"1\.49\d* ± 0\.0\d+$", row[2]) and re.match(r"1\.49\d* ± 0\.0\d+$", row[3])


def test_a_network_that_does_not_fit_names_the_fleet_instead_of_a_ratio():
    (speed,) = tables_of(rates_of({"slow": 1.0, "quick": 1.5}, unfit="slow"), ("quick", "slow"))
    assert plain(speed.rows)[1][1:] == ["vgg16", "slow: oom", "slow: oom"]


def test_a_ratio_within_the_noise_is_marked():
    (speed,) = tables_of(rates_of({"a": 1.0, "b": 1.0005}), ("b", "a"))
    assert all(cell.endswith(" ~") for row in speed.rows for cell in row[2:])


def test_prices_give_a_table_of_samples_per_dollar_with_intervals():
    rates = rates_of({"slow": 1.0, "quick": 1.5}, prices={"slow": 0.2, "quick": 0.4})
    _, worth = tables_of(rates, ("quick", "slow"))
    assert worth.title.startswith("Samples per dollar") and re.match(r"0\.7[45]\d* ± 0\.0\d+$", plain(worth.rows)[0][2])


def test_of_more_than_two_fleets_each_stands_against_the_first():
    rates = rates_of({"a": 1.0, "b": 2.0, "c": 3.0})
    (speed,) = tables_of(rates, ("b", "a"), ("c", "a"), ("c", "b"))
    assert [row[1:3] for row in speed.rows] == [
        ["resnet50", "b / a"],
        ["resnet50", "c / a"],
        ["vgg16", "b / a"],
        ["vgg16", "c / a"],
    ]


def test_fleets_that_share_no_case_with_numbers_have_no_table():
    assert tables_of(rates_of({"a": 1.0, "b": 1.0}), ("b", "a"))
    assert ratio_tables([]) == []
