"""The report in a real browser without a network: it fits the screen, and its script answers."""

import html
import json
import os
import re
import shutil
import subprocess

import pytest

from tests.unit.results.report_page import write_page

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium (Debian package chromium)")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_page(tmp_path_factory.mktemp("runs"))


def browse(page, folder, size="1200,2000"):
    """Let Chromium draw a page without a network and without an error; return the page as it then is."""
    command = [
        *("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--virtual-time-budget=30000"),
        *(f"--window-size={size}", "--dump-dom", page.as_uri()),
    ]
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=environment)
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


def test_a_small_browser_without_a_network_shows_the_page_without_an_error(page, tmp_path):
    shown = browse(page, tmp_path, "400,2000")
    assert shown.count("<svg") >= 12
    assert "significant differences only: a4000 in 4, a5000 in 0 of 4 cases." in shown


ASK = """
const answers = {};
const isAsked = (item) => item.label.startsWith("resnet50") && item.label.endsWith("1 GPU");
const ask = (name, unit, amount, prices) => {
  prices.forEach((usd, at) => { numbers[at].value = usd; });
  byId("job-case").value = cases.findIndex(isAsked);
  byId("job-unit").value = unit; byId("job-amount").value = amount; update();
  const rows = [...byId("job-rows").rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim()));
  answers[name] = { rows, sentence: byId("job-answer").textContent.trim() };
};
const [[one, of_one]] = Object.entries(cases.find(isAsked).limits), [[low, high]] = Object.values(of_one);
const even = 0.2 * Math.sqrt(low * high);
ask("samples", "samples", 3600000, [0.17, 0.36]);
ask("hours", "hours", 2.5, [0.17, 0.36]);
ask("usd", "usd", 0.425, [0.17, 0.36]);
ask("even", "hours", 1, fleets.map((fleet) => fleet === one ? even : 0.2));
ask("unpriced", "usd", 1, ["", 0.36]);
answers.folded = ["beforeprint", "afterprint"].map((name) => {
  dispatchEvent(new Event(name));
  return document.querySelectorAll("details:not([open])").length > 0;
});
document.documentElement.dataset.answers = JSON.stringify(answers);
"""


@pytest.fixture(scope="module")
def answers(page, tmp_path_factory):
    """Ask the page's own script about several jobs of ResNet50 on one GPU: 404 images/s at 0.17 USD, 1.55 × at 0.36."""
    folder = tmp_path_factory.mktemp("job")
    path = folder / "page.html"
    path.write_text(page.read_text(encoding="utf-8").replace("</script>\n</body>", f"{ASK}</script>\n</body>"))
    found = re.search(r'data-answers="([^"]*)"', browse(path, folder))[1]
    return json.loads(html.unescape(found).replace("\u00a0", " "))


def test_my_job_of_n_images_takes_time_and_money_on_each_fleet(answers):
    (a4000, time, usd, images), (a5000, faster, dearer, _) = answers["samples"]["rows"]
    assert (a4000, a5000, images) == ("a4000", "a5000", "3 600 000")
    for text, value in ((time, 2.47), (usd, 0.42), (faster, 1.6), (dearer, 0.575)):
        interval = r"(± 0\.\d+|\(\d\.\d+–\d\.\d+\))( h)?"
        assert re.fullmatch(rf"\d\.\d+ {interval}", text) and float(text.split()[0]) == pytest.approx(value, abs=0.02)
    assert "–" in time, "the interval of a time is longer above"
    assert answers["samples"]["sentence"] == "Cheapest: a4000. Fastest: a5000."


def test_my_job_of_n_hours_or_dollars_gives_images_and_asks_for_prices(answers):
    hours, usd = answers["hours"]["rows"][0], answers["usd"]["rows"][0]
    assert hours[1:] == usd[1:] and hours[1:3] == ["2.500 h", "0.4250"]
    assert re.match(r"3 600 000 ± \d00 000$", hours[3])
    assert answers["even"]["sentence"].startswith("Cheapest: no significant difference between a")
    assert answers["unpriced"]["rows"][0][1] == "enter a price"
    assert answers["unpriced"]["sentence"].startswith("Only one fleet has a figure and a price: a5000.")
    assert answers["folded"] == [False, True], "what is folded on the screen is printed"
