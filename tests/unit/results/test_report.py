import itertools
import json
import re
from html.parser import HTMLParser

import pytest

import results.__main__ as program
from results.stats import difference_of
from tests.unit.results.factory import make_case, make_environment, make_failure, make_origin, repeats, write_run
from tests.unit.results.report_page import write_page


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_page(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def text(page):
    return page.read_text(encoding="utf-8").replace("\u00a0", " ")


@pytest.fixture
def report_of(tmp_path):
    """Return the text of the report of some records."""

    def written(records, *arguments):
        run = write_run(tmp_path, records)
        assert program.main(["results", "report", str(run.path), *arguments]) == 0
        return run.report_path.read_text(encoding="utf-8") if run.report_path.exists() else ""

    return written


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.addresses = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href", "action")]


def section(text, name):
    return re.search(rf'<section id="{name}">(.*?)</section>', text, re.S)[1]


def verdict_of(text):
    return re.findall(r"<p>(.*?)</p>", re.search(r'aria-label="Verdict">(.*?)</section>', text, re.S)[1])


def test_the_page_is_one_small_file_in_which_nothing_of_a_host_is_markup(text):
    assert len(text) <= 200_000
    elements = Elements(text)
    assert elements.addresses and all(address.startswith(("#", "data:")) for address in elements.addresses)
    assert not {"iframe", "object", "embed", "img"} & set(elements.tags) and elements.tags.count("script") == 2
    assert "&lt;script&gt;alert" in text and "\x1b" not in text and "\u202e" not in text


def test_tables_of_every_case_are_folded_and_the_ratios_are_not(text):
    ratio, settings, tables = (section(text, name) for name in ("ratio", "why", "tables"))
    assert "<details>" not in ratio and "<h2>a5000 / a4000</h2>" in ratio and "worth up to, USD/h" in ratio
    assert "<h3>googlenet fp16, training, measured, 2 GPUs</h3>" in settings.partition("<details>")[2]
    assert tables.count("<table>") == tables.count("<details>") >= 3
    assert "memory bandwidth" in section(text, "specifications") and "RTX A4000" in section(text, "specifications")


@pytest.mark.parametrize("name", ["ratio", "speed-images"])
def test_every_value_has_a_bar_and_stands_next_to_it(text, name):
    rows = re.findall(r'<td class="bar">(.*?)</td><td class="number">(.*?)</td>', section(text, name))
    assert rows and all(bar.startswith("<svg") == bool(re.search(r"\d", value)) for bar, value in rows)


def test_the_page_names_who_measured(page):
    path, by = page.parent / "measured.html", "--measured-by=Ada <b>"
    assert program.main(["results", "report", str(page.parent / "run-1"), f"--output={path}", by]) == 0
    assert "; measured by Ada &lt;b&gt;" in path.read_text()


def test_a_long_table_says_how_much_of_it_is_in_the_csv(report_of, monkeypatch):
    from results.report import page

    monkeypatch.setattr(page, "MAX_ROWS", 3)
    hosts = [record for host in "abcde" for record in repeats(99.0, 100.0, host=host, warnings=("high_cv",))]
    origins = [make_origin(host=host) for host in "abcde"]
    text = report_of(
        [*hosts, *(make_failure("error", "x" * 5000, case=make_case("vgg16"), origin=of) for of in origins)]
    )
    assert "7 more rows in results.csv" in text and "3 more in the records" in text
    assert "x" * 1001 not in text


def test_a_run_of_one_fleet_without_numbers_still_gives_a_page(report_of):
    text = report_of([make_failure()])
    assert "No GPU was measured" in text and "My job" not in text


def test_the_calculator_starts_with_the_users_prices_alone(report_of, capsys):
    case, mine = make_case(device="gpu"), make_environment(1, "Test GPU")
    known = repeats(9.0, 10.0, case=case, environment=make_environment(1))
    known += repeats(9.0, 10.0, fleet="mine", case=case, environment=mine)
    text = report_of(known, "--price=mine=0.25", "--price=B200=1")
    assert "! price not used: 1 USD for B200: the answer has no row of this GPU\n" in capsys.readouterr().err
    prices = re.findall(r'value="([\d.]*)" data-fleet="(\w+)"', text)
    assert sorted(prices) == [("", "a4000"), ("0.25", "mine")], "no example of a price is anybody's price"


def test_several_softwares_of_a_fleet_give_no_recommendation_but_a_page(report_of):
    softwares = {version: make_environment(tensorflow=version) for version in ("2.20.0", "2.21.0")}
    records = [r for version, of in softwares.items() for r in repeats(99.0, 100.0, run_id=version, environment=of)]
    text = report_of([*records, *repeats(49.0, 50.0, fleet="b")])
    (case,) = json.loads(re.search(r'id="job-data">(.*?)</script>', text)[1])
    assert case["fleets"]["a4000"] == {"failed": "several tensorflow"} and case["fleets"]["b"]["rate"] == 49.5
    assert case["limits"] == {}, "there is no winner to name"
    left = [line for line in verdict_of(text) if line.startswith("left out: ")]
    assert left == [
        "left out: a4000, resnet50 fp32: measured with several tensorflow (2.20.0, 2.21.0); compare --by tensorflow splits them"
    ]


def test_a_gpu_without_a_rival_is_not_the_fastest_at_the_given_prices(report_of):
    both, oom, lost = (make_case(model, device="gpu") for model in ("resnet50", "resnet152", "googlenet"))
    sides = {"a4000": (0.17, 100.0, (both, lost)), "a5000": (0.36, 150.0, (both, oom))}
    gpus = {fleet: make_environment(1, f"NVIDIA RTX {fleet.upper()}") for fleet in sides}
    failed = (("oom", oom, "a4000"), ("unreachable", lost, "a5000"))
    records = [make_failure(status, case=case, origin=make_origin(fleet)) for status, case, fleet in failed]
    for fleet, (usd, rate, cases) in sides.items():
        where = {"fleet": fleet, "environment": gpus[fleet], "usd_per_gpu_hour": usd}
        records += [r for case in cases for r in repeats(rate, rate * 1.001, case=case, **where)]
    text = report_of(records, "--price", "a4000=0.30").replace("\u00a0", " ")
    for choice in ("Rent a5000", "only a4000 has a figure", "only a5000 has a figure"):
        assert f"{choice} in 1 of 3 settings" in verdict_of(text)[1]
    (prices,) = re.findall("USD per GPU-hour: ([^<]*)", text)
    assert sorted(prices.split(", ")) == ["a4000 0.3 (your price)", "a5000 0.36"]
    assert 'together">1.250</span>' in text and 'value="0.3" data-fleet="a4000"' in text


@pytest.mark.slow
def test_a_report_of_48_rates_compares_each_pair_once(report_of):
    environment, noise = make_environment(1), itertools.count()
    records = [
        record
        for fleet, case in itertools.product(range(8), [make_case(num_steps=steps, device="gpu") for steps in range(4, 10)])
        for record in repeats(
            *(100.0 + 10 * fleet + 0.01 * next(noise) for _ in range(3)),
            fleet=f"f{fleet}", case=case, environment=environment, usd_per_gpu_hour=0.2 + 0.02 * fleet,
        )
    ]  # fmt: skip
    difference_of.cache_clear()
    report_of(records)
    assert difference_of.cache_info().misses <= 2 * (6 + 1) * 28, "cases and their mean, once in each direction"
