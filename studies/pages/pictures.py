# ruff: noqa: T201 (a script prints its progress)
"""Draws the pictures of the documentation from committed records: `python -m studies.pages.pictures`.

They are the report of an H100 against an H200, the live table in the middle of the H200's run, that run on a time axis,
and an explanation of intervals.
"""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.sax.saxutils
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from unittest import mock

from rich.console import Console

from orchestrate.display.display import LiveDisplay
from orchestrate.events import Event, stored_event
from orchestrate.planning.plan import Plan, plan_from_json
from orchestrate.running.state import RunState
from results.__main__ import main as results_main
from results.runs.reading import from_json
from results.runs.store import RunFolder
from results.schema import Record
from results.stats import estimate, ratio_of_estimates

PROJECT = Path(__file__).parents[2]
PICTURES, README = PROJECT / "docs" / "pictures", PROJECT / "README.md"
COMPARED = re.compile(r"(<!-- compared.*?-->).*?(<!-- /compared -->)", re.DOTALL)
"""The front page's table."""

MAX_BYTES = 300_000
"""Largest picture, so that the README opens fast."""

MEASURED = PROJECT / "results" / "reference" / "measured"
RUNS = {"h100": MEASURED / "h100-sxm-2026-11-26-b/runs/h100", "h200": MEASURED / "h200-sxm-2026-11-26/runs/h200"}
"""Folders of the runs by fleet."""

COLOURS = ("#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#ff9da7", "#9c755f")
"""Of phases and fleets. Source: Tableau 10."""

WIDTH, LEFT = 800, 120
"""Of a drawing, and of its labels, in pixels."""

REPORT_SIZE = (1040, 860)
"""Width and height in CSS pixels: the verdict, the ratios and the first speeds."""

WITHOUT_CALCULATOR = "<style>#cost, nav { display: none }</style></head>"
LIVE_COLUMNS = 120
"""Width of the terminal in the picture, in characters."""

PHASES = ("starting", "building", "compiling", "checking", "cooling", "warming", "timing", "peaks", "writing")
"""Phases of a repeat in order."""

FONTS_OF_THE_NET = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Web fonts in rich's SVG, removed so that pictures work offline."""


def draw_report(picture: Path) -> None:
    """Write the report of both runs and capture its top."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        code = results_main(["results", "report", *map(str, RUNS.values()), f"--output={page}"])
        assert code == 0, f"report ended with {code}"
        page.write_text(page.read_text(encoding="utf-8").replace("</head>", WITHOUT_CALCULATOR, 1), encoding="utf-8")
        photograph(page, picture, REPORT_SIZE)


def draw_live(picture: Path) -> None:
    """Draw the live table in the middle of the last run."""
    run = RunFolder(RUNS["h200"])
    keep(live_table(plan_from_json(run.read_plan()), events(run.path / "events.jsonl")), picture)


def draw_timeline(picture: Path) -> None:
    """Draw the phases of each repeat of the last run on a time axis."""
    records = sorted(records_of(RUNS["h200"]), key=lambda record: record.started_at)
    times = [datetime.fromisoformat(record.started_at) for record in records]
    last = records[-1]
    seconds = (times[-1] - times[0]).total_seconds() + sum(phase.seconds for phase in last.phases)
    cases = list(dict.fromkeys(f"{record.case.model} {record.case.precision}" for record in records))
    scale = (WIDTH - LEFT - 10) / seconds
    parts = []
    for record, started in zip(records, times, strict=True):
        at = (started - times[0]).total_seconds()
        y = 34 + 24 * cases.index(f"{record.case.model} {record.case.precision}")
        for phase in record.phases:
            colour = COLOURS[PHASES.index(phase.name)] if phase.name in PHASES else "#999"
            parts.append(
                f'<rect x="{LEFT + at * scale:.1f}" y="{y}" width="{phase.seconds * scale:.2f}" height="16" fill="{colour}"/>'
            )
            at += phase.seconds
    parts += [text(LEFT - 8, 46 + 24 * at, case, anchor="end") for at, case in enumerate(cases)]
    bottom = 34 + 24 * len(cases)
    for tick in range(0, int(seconds) + 1, 60):
        parts.append(text(LEFT + tick * scale, bottom + 14, f"{tick} s", anchor="middle", size=11))
    for at, phase in enumerate(PHASES):
        x = LEFT + at * 74
        parts.append(f'<rect x="{x}" y="{bottom + 26}" width="10" height="10" fill="{COLOURS[at]}"/>')
        parts.append(text(x + 14, bottom + 35, phase, size=11))
    title = text(0, 18, "A run: three rounds of four cases on an H200", size=15, weight="bold")
    keep(svg([title, *parts], bottom + 46), picture)


def draw_interval(picture: Path) -> None:
    """Draw the repeats of ResNet50 in fp16 on both GPUs, their means with 95 % intervals, and the ratio."""
    repeats = {
        fleet: [
            record.measurement.samples_per_second
            for record in records_of(run)
            if record.measurement and (record.case.model, record.case.precision) == ("resnet50", "fp16")
        ]
        for fleet, run in RUNS.items()
    }
    intervals = {fleet: estimate(rates).interval() for fleet, rates in repeats.items()}
    ratio = ratio_of_estimates(estimate(repeats["h200"]), estimate(repeats["h100"]))
    values = [value for found in intervals.values() for value in (found.low, found.high)]
    low, high = min(values), max(values)

    def x(value: float) -> float:
        return LEFT + 20 + (value - low) / (high - low) * (WIDTH - LEFT - 60)

    heading = f"ResNet50, fp16: an H200 is {ratio.value:.3f} times as fast as an H100 (95 % interval {ratio.low:.3f} to {ratio.high:.3f})"
    parts = [
        text(0, 18, heading, size=15, weight="bold"),
        text(0, 36, "dots: repeats, each a fresh process; tick: their mean; line: its 95 % t-interval", size=12),
    ]
    for at, (fleet, found) in enumerate(intervals.items()):
        y, colour = 66 + 46 * at, COLOURS[at]
        parts += [
            text(LEFT - 8, y + 4, fleet, anchor="end"),
            f'<line x1="{x(found.low):.1f}" x2="{x(found.high):.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="3"/>',
            f'<line x1="{x(found.value):.1f}" x2="{x(found.value):.1f}" y1="{y - 12}" y2="{y + 12}" stroke="{colour}" stroke-width="3"/>',
            *(f'<circle cx="{x(v):.1f}" cy="{y + 18}" r="5" fill="{colour}" opacity="0.6"/>' for v in repeats[fleet]),
        ]
    for value in (5600, 5900, 6200, 6500, 6800):
        parts.append(text(x(value), 168, f"{value:,} images/s".replace(",", "\u00a0"), anchor="middle", size=11))
    keep(svg(parts, 176), picture)


def text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12, weight: str = "normal") -> str:
    """Return a text element of SVG."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}"'
    return f"<text {place}>{xml.sax.saxutils.escape(words)}</text>"


def svg(parts: Sequence[str], height: int) -> str:
    """Return a drawing on white, so that it is readable on a dark page."""
    style = 'font-family="system-ui, sans-serif" fill="#1a1a1a"'
    body = "\n".join(parts)
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'


def records_of(run: Path) -> list[Record]:
    """Read the records of a run."""
    return [from_json(path.read_bytes()) for path in sorted((run / "records").iterdir())]


def keep(svg: str, picture: Path) -> None:
    """Write a drawing without web fonts."""
    picture.write_text(FONTS_OF_THE_NET.sub("", svg).rstrip() + "\n", encoding="utf-8")
    print(f"{picture}: {picture.stat().st_size} bytes", file=sys.stderr)


def events(path: Path) -> list[tuple[float, Event]]:
    """Read the events of a run, with seconds since the first one."""
    documents = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for document in documents:
        if "folder" in document:  # show the usual folder, not that of --runs
            document["folder"] = f"runs/{document['run_id']}"
    found = [*filter(None, map(stored_event, documents))]
    return [(at - found[0][1], event) for event, at in found]


def live_table(plan: Plan, stream: Sequence[tuple[float, Event]]) -> str:
    """Return the live table in the middle of the run as SVG."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(file=nowhere, record=True, width=LIVE_COLUMNS, force_terminal=True)
        seen = stream[: len(stream) // 2]
        state = RunState(plan)
        display = LiveDisplay(console, state, began=time.monotonic() - seen[-1][0])
        for _, event in seen:
            state.note(event)
            display.show(event)
        console.print(display.get_renderable())
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


def compared() -> str:
    """Return the front page's comparison of both runs, as a terminal of 80 columns shows it."""
    command = "compare h200 h100 examples/h100 examples/h200"
    printed = io.StringIO()
    terminal = {"COLUMNS": "80", "TERM": "dumb", "TTY_COMPATIBLE": "1"}
    with mock.patch.dict(os.environ, terminal), contextlib.chdir(PROJECT), contextlib.redirect_stdout(printed):
        code = results_main(["results", *command.split()])
    assert code == 0, f"{command} ended with {code}"
    lines = "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())
    return f"```\n$ tfbench {command}\n{lines}\n```"


def with_compared(page: str) -> str:
    """Return the front page with the present output of the comparison."""
    return COMPARED.sub(lambda found: f"{found[1]}\n{compared()}\n{found[2]}", page)


def main() -> None:
    """Draw all pictures, and write the front page's table."""
    if shutil.which("chromium") is None:
        sys.exit("needs Chromium. On Debian and Ubuntu: apt install chromium")
    README.write_text(with_compared(README.read_text(encoding="utf-8")), encoding="utf-8")
    draw_report(PICTURES / "report.png")
    draw_live(PICTURES / "live.svg")
    draw_timeline(PICTURES / "run.svg")
    draw_interval(PICTURES / "interval.svg")


if __name__ == "__main__":
    main()
