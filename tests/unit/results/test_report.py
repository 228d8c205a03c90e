import json
import re
from html.parser import HTMLParser

import pytest

import results.__main__ as program
from results.runs.store import RunFolder
from tests.unit.results.factory import make_case, make_environment, make_failure, repeats
from tests.unit.results.report_page import write_page

for module in ("altair", "jinja2", "vl_convert"):
    pytest.importorskip(module, reason=f"the report needs {module}")

MAX_BYTES = 1_500_000


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_page(tmp_path_factory.mktemp("runs"))


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.addresses = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href", "action")]


def test_the_page_is_one_file_of_at_most_one_and_a_half_megabytes_without_outside_references(page):
    assert page.stat().st_size <= MAX_BYTES
    elements = Elements(page.read_text(encoding="utf-8"))
    assert elements.addresses and all(address.startswith(("#", "data:")) for address in elements.addresses)
    assert not {"iframe", "object", "embed"} & set(elements.tags)


def test_nothing_that_a_host_sent_is_read_as_markup(page):
    text = page.read_text(encoding="utf-8")
    elements = Elements(text)
    assert elements.tags.count("script") == 4 and "img" not in elements.tags
    assert "&lt;script&gt;alert" in text and "\x1b" not in text and "\u202e" not in text
    specs = re.search(r'<script type="application/json" id="chart-data">(.*?)</script>', text, re.S)[1]
    assert set(json.loads(specs)) == {"speed", "ratio", "scaling", "history", "steps"}


def verdict_of(path):
    text = path.read_text(encoding="utf-8").replace("\u00a0", " ")
    section = re.search(r'aria-label="Verdict">(.*?)</section>', text, re.S)[1]
    return re.findall(r"<p>(.*?)</p>", section)


def test_the_first_sentence_says_what_to_rent_up_to_which_price_with_its_interval(page):
    first = verdict_of(page)[0]
    assert first.startswith("Rent a4000 in all 4 settings; the closest one: ")
    assert re.search(r"a5000 is 1\.5\d ± 0\.\d+ times as fast as (2 × )?a4000", first)
    assert re.search(r"the cheapest per sample below 0\.\d+ USD/h\.$", first)


def test_the_verdict_says_who_is_faster_after_what_to_rent(page):
    assert verdict_of(page)[1].startswith("a5000/a5000-1 is faster than a4000/a4000-1 in both kinds of work: 1.55 ×")


def test_tables_of_every_case_are_folded_and_the_ratios_are_not(page):
    text = page.read_text(encoding="utf-8")
    why = re.search(r'<section id="why">(.*?)<details>', text, re.S)[1]
    tables = re.search(r'<section id="tables">(.*?)</section>', text, re.S)[1]
    assert '<table class="answer">' in why and "Speed: a5000 / a4000" in why
    assert tables.count("<table>") == tables.count("<details>") > 2


def test_the_cards_stand_side_by_side_by_specification(page):
    cards = re.search(r'<section id="specifications">(.*?)</section>', page.read_text(encoding="utf-8"), re.S)[1]
    assert "memory bandwidth" in cards and "RTX A4000" in cards


def test_every_chart_has_a_fallback_without_scripts_and_a_sentence(page):
    text = page.read_text(encoding="utf-8")
    assert len(re.findall(r"<noscript><div class=\"chart\"><svg", text)) == 5
    assert len(re.findall(r'role="img" aria-label="[^"]{20,}"', text)) == 5


def test_commands_to_reproduce_are_those_that_measured(page):
    assert "python -m tfbench --model=resnet50 --precision=fp16 --batch_size=8 --num_gpus=2" in page.read_text()


def test_markdown_is_for_a_pull_request(page, capsys):
    by = "--measured-by=Ada <b>"
    assert program.main(["results", "report", str(page.parent / "run-1"), "--format", "md", by]) == 0
    out = capsys.readouterr().out
    assert "; measured by Ada" in out and "<b>" not in out
    assert (
        out.startswith("## a4000 and a5000: googlenet, resnet50\n\nResults of run-1: 2026-11-01 10:00 UTC")
        and "\n**Rent a4000 in all" in out
        and "* a5000/a5000-1 is" in out
        and "| + |" in out
    )


def test_the_report_of_a_run_goes_into_its_folder(page):
    assert program.main(["results", "report", str(page.parent / "run-1")]) == 0
    assert (page.parent / "run-1" / "report.html").stat().st_size > 100_000


def test_a_page_that_would_be_too_large_leaves_out_what_the_csv_has_and_says_so(page, monkeypatch):
    from results.report import page as report

    monkeypatch.setattr(report, "MAX_BYTES", 900_000)
    monkeypatch.setattr(report, "SHORT_ROWS", 3)
    assert program.main(["results", "report", str(page.parent / "run-1"), "--output", str(page.parent / "x.html")]) == 0
    text = (page.parent / "x.html").read_text(encoding="utf-8")
    assert "more rows in results.csv" in text
    assert len(text) < page.stat().st_size


def test_a_run_of_one_fleet_without_numbers_still_gives_a_page(tmp_path):
    run = RunFolder.create(tmp_path, "run-1")
    run.write_record("job", make_failure())
    assert program.main(["results", "report", str(run.path)]) == 0
    assert "No two fleets have figures of one setting" in run.report_path.read_text(encoding="utf-8")


def test_sliders_follow_the_prices_that_were_given(page):
    sliders = re.findall(r'<input type="range" min="([\d.]+)" max="([\d.]+)"', page.read_text(encoding="utf-8"))
    assert [(float(low), float(high)) for low, high in sliders] == [(0.043, 0.68), (0.09, 1.44)]


def test_a_run_without_prices_has_sliders_at_the_prices_that_the_answer_counts_with(tmp_path):
    run = RunFolder.create(tmp_path, "run-1")
    for fleet, card, rate in (("a4000", "NVIDIA RTX A4000", 400.0), ("mine", "Test GPU", 300.0)):
        case = make_case(device="gpu")
        records = repeats(rate, rate * 1.01, fleet=fleet, case=case, environment=make_environment(1, card))
        for i, record in enumerate(records):
            run.write_record(f"{fleet}-{i}", record)
    assert program.main(["results", "report", str(run.path), "--price", "mine=0.25"]) == 0
    text = run.report_path.read_text(encoding="utf-8")
    inputs = dict(re.findall(r'value="([\d.]*)" data-fleet="(\w+)"', text))
    assert inputs["0.25"] == "mine" and set(inputs.values()) == {"a4000", "mine"}
    assert re.search(r"a4000 \(\w+, [^)]*20\d\d[^)]*\)", text)


def test_several_softwares_of_a_fleet_give_no_recommendation_but_a_page(tmp_path):
    run = RunFolder.create(tmp_path, "run-1")
    for place, version in enumerate(("2.20.0", "2.21.0")):
        environment = make_environment(tensorflow=version)
        for i, record in enumerate(repeats(99.0, 100.0, run_id=f"run-{place}", environment=environment)):
            run.write_record(f"job-{place}-{i}", record)
    assert program.main(["results", "report", str(run.path)]) == 0
    first = verdict_of(run.report_path)[0]
    assert first.startswith("No recommendation: fleet a4000, 1 cases: several tensorflow (2.20.0, 2.21.0)")


def test_a_name_that_cannot_be_drawn_leaves_out_the_drawing_and_not_the_page(tmp_path):
    run = RunFolder.create(tmp_path, "run-1")
    for place, fleet in enumerate(("\U0001f600" * 50, "plain")):
        for i, record in enumerate(repeats(99.0, 100.0, fleet=fleet)):
            run.write_record(f"job-{place}-{i}", record)
    assert program.main(["results", "report", str(run.path)]) == 0
    assert "its numbers are in the tables" in run.report_path.read_text(encoding="utf-8")


def test_names_in_markdown_are_not_read_as_markup(tmp_path, capsys):
    run = RunFolder.create(tmp_path, "run-1")
    for fleet, rate in (("**a**|<b>", 100.0), ("c", 150.0)):
        for i, record in enumerate(repeats(rate, rate * 1.01, fleet=fleet)):
            run.write_record(f"{len(fleet)}-{i}", record)
    assert program.main(["results", "report", str(run.path), "--format", "md"]) == 0
    out = capsys.readouterr().out
    assert "**a**" not in out and "<b>" not in out.replace("\\<b\\>", "") and "\\*\\*a\\*\\*" in out
