# ruff: noqa: T201 (a script prints its progress)
"""Draws the pictures of the documentation from runs on this machine's CPU.

    python -m tests.docs.pictures
    python -m tests.docs.pictures --runs FOLDER # keep the runs in FOLDER, or draw those already in FOLDER

There are two runs, with one and two CPUs of this machine. The pictures are the report (without its calculator), the live
table in the middle of the second run, that run on a time axis, and an explanation of intervals.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert
from rich.console import Console

from orchestrate.display.live import LiveDisplay
from orchestrate.events import Event, JobStep, event_name
from orchestrate.planning.codec import plan_from_json
from orchestrate.planning.plan import Plan
from results.__main__ import main as results_main
from results.report.charts import COLOURS
from results.runs.reading import from_json
from results.runs.store import RunFolder
from results.schema import Record
from results.stats import estimate, ratio_of_estimates

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
MAX_BYTES = 300_000
"""Largest picture, so that the README opens fast."""

FLEETS = {"one-cpu": 1, "two-cpus": 2}
"""Number of CPUs by name of fleet and run."""

SUITE = """description: three networks, a small batch, five seconds
repeats: 4
cases:
  - model: [resnet50, googlenet, alexnet]
    batch_per_gpu: 4
    warmup_steps: 2
    num_steps: 10
    min_seconds: 5
"""
HOSTS = """version: 1
defaults: {{suite: {suite}, device: cpu}}
fleets:
  {fleet}:
    hosts:
      this-machine: {{process: true, cpus: {cpus}}}
"""

REPORT_SIZE = (1040, 1180)
"""Width and height in CSS pixels, including the speed chart."""

WITHOUT_CALCULATOR = "<style>#cost, #steps, details { display: none }</style></head>"
LIVE_COLUMNS = 120
"""Width of the terminal in the picture, in characters."""

PHASES = ("starting", "building", "compiling", "checking", "cooling", "warming", "timing", "peaks", "writing")
"""Phases of a repeat in order."""

FONTS_OF_THE_NET = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Web fonts in rich's SVG, removed so that pictures work offline."""


def measure(runs: Path) -> None:
    """Measure both fleets, one after the other; write the output as JSON Lines next to each run."""
    suite = runs / "suite.yml"
    suite.write_text(SUITE, encoding="utf-8")
    for fleet, cpus in FLEETS.items():
        hosts = runs / f"{fleet}.yml"
        hosts.write_text(HOSTS.format(suite=suite, fleet=fleet, cpus=cpus), encoding="utf-8")
        command = [sys.executable, "-m", "orchestrate", "run", f"--hosts={hosts}", f"--runs-dir={runs}"]
        print(f"measuring {fleet}", file=sys.stderr)
        with (runs / f"{fleet}.jsonl").open("wb") as lines:
            subprocess.run([*command, f"--run-id={fleet}", "--display=json", "--no-report"], stdout=lines, check=True)


def draw_report(runs: Path, picture: Path) -> None:
    """Write the report of both runs and capture its top."""
    page = runs / "report.html"
    code = results_main(["results", "report", *(str(runs / fleet) for fleet in FLEETS), f"--output={page}"])
    assert code == 0, f"report ended with {code}"
    page.write_text(page.read_text(encoding="utf-8").replace("</head>", WITHOUT_CALCULATOR, 1), encoding="utf-8")
    photograph(page, picture, REPORT_SIZE)


def draw_live(runs: Path, picture: Path) -> None:
    """Draw the live table in the middle of the last run."""
    run = RunFolder(runs / list(FLEETS)[-1])
    keep(live_table(plan_from_json(run.read_plan()), events(runs / f"{run.path.name}.jsonl")), picture)


def draw_timeline(runs: Path, picture: Path) -> None:
    """Draw the phases of each repeat of the last run on a time axis."""
    records = records_of(runs / list(FLEETS)[-1])
    began = min(datetime.fromisoformat(record.started_at) for record in records)
    rows = []
    for record in sorted(records, key=lambda record: record.started_at):
        at = (datetime.fromisoformat(record.started_at) - began).total_seconds()
        for phase in record.phases:
            part = {"network": record.case.model, "phase": phase.name, "from": at, "to": at + phase.seconds}
            rows.append(part)
            at += phase.seconds
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(height=16)
        .encode(
            x=alt.X("from:Q", title="seconds since the first repeat started"),
            x2="to:Q",
            y=alt.Y("network:N", title=None),
            color=alt.Color("phase:N", sort=list(PHASES), scale=alt.Scale(scheme="tableau10"), title="phase"),
        )
    )
    keep(drawn(chart.properties(width=720, height=100, title="A run: four rounds of three networks")), picture)


def draw_interval(runs: Path, picture: Path) -> None:
    """Draw the repeats of one network in both fleets, their means with 95 % intervals, and the ratio."""
    model = "resnet50"
    repeats = {
        fleet: [
            record.measurement.samples_per_second
            for record in records_of(runs / fleet)
            if record.measurement and record.case.model == model
        ]
        for fleet in FLEETS
    }
    dots = [{"fleet": fleet, "rate": rate} for fleet, rates in repeats.items() for rate in rates]
    means = []
    for fleet, rates in repeats.items():
        interval = estimate(rates).interval()
        means.append({"fleet": fleet, "mean": interval.value, "low": interval.low, "high": interval.high})
    ratio = ratio_of_estimates(estimate(repeats["two-cpus"]), estimate(repeats["one-cpu"]), alike=True)
    colour = alt.Color("fleet:N", scale=alt.Scale(range=COLOURS[:2]), legend=None)
    y = alt.Y("fleet:N", title=None)
    chart = alt.layer(
        alt.Chart(alt.Data(values=means))
        .mark_rule(strokeWidth=3)
        .encode(x=alt.X("low:Q", title="images per second"), x2="high:Q", y=y, color=colour),
        alt.Chart(alt.Data(values=means)).mark_tick(thickness=3, size=26).encode(x="mean:Q", y=y, color=colour),
        alt.Chart(alt.Data(values=dots))
        .mark_circle(size=90, opacity=0.6, yOffset=14)
        .encode(x="rate:Q", y=y, color=colour),
    )
    title = {
        "text": f"{model}: two CPUs are {ratio.value:.2f} times as fast as one (95 % interval {ratio.low:.2f} to {ratio.high:.2f})",
        "subtitle": "dots: repeats, each a fresh process; tick: their mean; line: its 95 % t-interval",
    }
    keep(drawn(chart.properties(width=720, height=130, title=title)), picture)


def records_of(run: Path) -> list[Record]:
    """Read the records of a run."""
    return [from_json(path.read_bytes()) for path in sorted((run / "records").iterdir())]


def drawn(chart: Any) -> str:
    """Draw a chart with a white background, readable on a dark page."""
    return str(vl_convert.vegalite_to_svg(chart.configure(background="white").to_dict()))


def keep(svg: str, picture: Path) -> None:
    """Write a drawing without web fonts."""
    picture.write_text(FONTS_OF_THE_NET.sub("", svg).rstrip() + "\n", encoding="utf-8")
    print(f"{picture}: {picture.stat().st_size} bytes", file=sys.stderr)


def events(path: Path) -> list[tuple[float, Event]]:
    """Read the events of a run, with seconds since the first one."""
    kinds = {event_name(kind): kind for kind in Event.__subclasses__()}
    lines = path.read_text(encoding="utf-8").splitlines()  # the output ends with tables
    documents = [json.loads(line) for line in lines if line.startswith('{"') and '"event"' in line]
    began = datetime.fromisoformat(documents[0]["at"])
    found = []
    for document in documents:
        kind, at = kinds[document.pop("event")], datetime.fromisoformat(document.pop("at"))
        if "folder" in document:  # show the usual folder, not that of --runs
            document["folder"] = f"runs/{document['run_id']}"
        found.append(((at - began).total_seconds(), kind(**document)))
    return found


def live_table(plan: Plan, stream: Sequence[tuple[float, Event]]) -> str:
    """Return the live table in the middle of the run as SVG."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(file=nowhere, record=True, width=LIVE_COLUMNS, force_terminal=True)
        steps = [place for place, (_, event) in enumerate(stream) if isinstance(event, JobStep)]
        seen = stream[: steps[2 * len(steps) // 3] + 1]  # up to a progress line
        display = LiveDisplay(console, began=time.monotonic() - seen[-1][0])
        display.planned(plan)
        for _, event in seen:
            display.show(event)
        console.print(display.render())
        return console.export_svg(title="tfbench run")


def photograph(page: Path, picture: Path, size: tuple[int, int]) -> None:
    """Capture a page with Chromium, offline, in a window of `size` CSS pixels."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=30000", "--hide-scrollbars"),
            *(f"--window-size={size[0]},{size[1]}", f"--screenshot={picture.resolve()}", page.resolve().as_uri()),
        ]
        environment = {**os.environ, "HOME": folder}
        subprocess.run(command, capture_output=True, timeout=300, check=True, env=environment)
    assert picture.stat().st_size <= MAX_BYTES, f"{picture} has {picture.stat().st_size} bytes"
    print(f"{picture}: {picture.stat().st_size} bytes", file=sys.stderr)


def main() -> None:
    """Measure if needed, then draw all pictures."""
    parser = argparse.ArgumentParser(description="Draw the pictures of the documentation from runs on this machine.")
    parser.add_argument("--runs", type=Path, help="keep the runs here; draw those that are already here")
    parsed = parser.parse_args()
    if shutil.which("chromium") is None:
        sys.exit("needs Chromium. On Debian and Ubuntu: apt install chromium")
    with tempfile.TemporaryDirectory() as folder:
        runs = (parsed.runs or Path(folder)).resolve()
        runs.mkdir(parents=True, exist_ok=True)
        if not all((runs / fleet / "results.csv").exists() for fleet in FLEETS):
            measure(runs)
        draw_report(runs, PICTURES / "report.png")
        draw_live(runs, PICTURES / "live.svg")
        draw_timeline(runs, PICTURES / "run.svg")
        draw_interval(runs, PICTURES / "interval.svg")


if __name__ == "__main__":
    main()
