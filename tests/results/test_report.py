import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

import results.__main__ as program
from results.store import RunFolder
from tests.results.factory import make_case, make_environment, make_failure, make_origin, repeats

for module in ("altair", "jinja2", "vl_convert"):
    pytest.importorskip(module, reason=f"the report needs {module}")

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>\u202e\x1b[31m"
MAX_BYTES = 1_500_000


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Write the report of two runs of two fleets, with failures, prices, warnings and a name that is markup."""
    folder = tmp_path_factory.mktemp("runs")
    for run_id, drift in (("run-1", 1.0), ("run-2", 1.02)):
        run = RunFolder.create(folder, run_id)
        records = []
        for fleet, factor, price in (("a4000", 1.0, 0.17), ("a5000", 1.55, 0.36)):
            for model, rate in (("resnet50", 400.0), ("googlenet", 900.0)):
                for count in (1, 2):
                    case = make_case(model, device="gpu", precision="fp16", num_gpus=count)
                    rates = [rate * factor * count**0.97 * drift * noise for noise in (1.0, 1.004, 0.997)]
                    records += repeats(
                        *rates, fleet=fleet, host=f"{fleet}-1", case=case, run_id=run_id, usd_per_gpu_hour=price,
                        environment=make_environment(gpus=2, cpu=EVIL), warnings=("high_cv",),
                        started_at=f"2026-11-0{run_id[-1]}T10:00:00Z",
                    )  # fmt: skip
        records.append(make_failure("error", EVIL, case=make_case("vgg16"), origin=make_origin(EVIL, EVIL)))
        for i, record in enumerate(records):
            run.write_record(f"job-{i}", record)
    path = folder / "report.html"
    names = [str(folder / "run-1"), str(folder / "run-2")]
    assert program.main(["results", "report", *names, "--output", str(path)]) == 0
    return path


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
    assert elements.tags.count("script") == 3 and "img" not in elements.tags
    assert "&lt;script&gt;alert" in text and "\x1b" not in text and "\u202e" not in text
    specs = re.search(r'<script type="application/json" id="specs">(.*?)</script>', text, re.S)[1]
    assert set(json.loads(specs)) == {"speed", "ratio", "scaling", "history", "steps"}


def test_the_verdict_names_the_faster_its_ratio_and_what_it_is_worth(page):
    text = page.read_text(encoding="utf-8").replace("\u00a0", " ")
    verdict = re.search(r'aria-label="Verdict">(.*?)</section>', text, re.S)[1]
    assert "a5000/a5000-1 is faster than a4000/a4000-1 in both kinds of work: 1.55 ×" in verdict
    assert re.search(r"a4000-1 \(training, fp16, 1 GPU; geometric mean of 2 cases, 95 % interval\)", verdict)
    assert re.search(r"it costs 2.12 ×: a4000/a4000-1 gives 1\.37\d* ± 0\.\d+ × the samples per dollar", verdict)


def test_every_chart_has_a_fallback_without_scripts_and_a_sentence(page):
    text = page.read_text(encoding="utf-8")
    assert len(re.findall(r"<noscript><div class=\"chart\"><svg", text)) == 5
    assert len(re.findall(r'role="img" aria-label="[^"]{20,}"', text)) == 5


def test_commands_to_reproduce_are_those_that_measured(page):
    assert "python -m tfbench --model=resnet50 --precision=fp16 --batch_size=8 --num_gpus=2" in page.read_text()


def test_markdown_is_for_a_pull_request(page, capsys):
    assert program.main(["results", "report", str(page.parent / "run-1"), "--format", "md"]) == 0
    out = capsys.readouterr().out
    assert (
        out.startswith("## Results of run-1\n") and "* a5000/a5000-1 is" in out and "| + |" in out.replace("\\+", "+")
    )


def test_the_report_of_a_run_goes_into_its_folder(page):
    assert program.main(["results", "report", str(page.parent / "run-1")]) == 0
    assert (page.parent / "run-1" / "report.html").stat().st_size > 100_000


def test_a_page_that_would_be_too_large_leaves_out_what_the_csv_has_and_says_so(page, monkeypatch):
    from results import report

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
    assert "nothing to compare it with yet" in run.report_path.read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium (Debian package chromium)")
@pytest.mark.parametrize("size", ["1200,2000", "400,2000"])
def test_a_browser_without_a_network_draws_every_chart_without_an_error(page, tmp_path, size):
    command = [
        *("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--virtual-time-budget=30000"),
        *(f"--window-size={size}", "--dump-dom", page.as_uri()),
    ]
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=environment)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert console == []
    assert 'data-charts="5"' in done.stdout
    assert "At these prices a dollar buys most: a4000 in 4, a5000 in 0 cases." in done.stdout
