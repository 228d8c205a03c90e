# ruff: noqa: T201 (a script prints its progress)
"""Redraw docs/report.png and docs/live.png from a real run on this machine's CPU.

    python -m tests.docs.pictures               # or: make pictures
    python -m tests.docs.pictures --runs FOLDER # keep the runs in FOLDER, or draw those that FOLDER already holds

Two runs, one after the other: a fleet that may use one CPU of this machine, and a fleet that may use two. The report is the
one that `report` writes, without its calculator; the live table is fed with the events of the second run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from orchestrate.display.live import LiveDisplay
from orchestrate.events import NAMES, Event, JobStep
from orchestrate.planning.codec import plan_from_json
from orchestrate.planning.plan import Plan
from results.__main__ import main as results_main
from results.runs.store import RunFolder
from tests.docs.palette import smaller_png

DOCS = Path(__file__).parents[2] / "docs"
MAX_BYTES = 150_000
"""Largest picture in the repository: a README must open fast."""

FLEETS = {"one-cpu": 1, "two-cpus": 2}
"""Fleet and run, and how many CPUs of this machine it may use."""

SUITE = """description: three networks, a small batch, eight steps
repeats: 3
cases:
  - model: [resnet50, googlenet, alexnet]
    batch_per_gpu: 4
    warmup_steps: 2
    num_steps: 8
"""
HOSTS = """version: 1
defaults: {{suite: {suite}, device: cpu}}
fleets:
  {fleet}:
    hosts:
      this-machine: {{process: true, cpus: {cpus}}}
"""

REPORT_SIZE = (1040, 1180)
"""Width and height in CSS pixels: down to the end of the chart of speeds."""

WITHOUT_CALCULATOR = "<style>#cost, #steps, details { display: none }</style></head>"
LIVE_WIDTH = 1120
"""Width of the picture of the live table in CSS pixels."""

LIVE_COLUMNS = 120
"""Width of the terminal in the picture, in characters."""

PIXELS_PER_POINT = 1.5
"""Sharp on a high-resolution display, and below `MAX_BYTES`."""


def measure(runs: Path) -> None:
    """Measure both fleets, one after the other; keep what the run printed as JSON Lines next to the run.

    Args:
        runs: The folder of all runs.
    """
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
    """Write the report of both runs, and photograph what it answers and its first charts."""
    page = runs / "report.html"
    code = results_main(["results", "report", *(str(runs / fleet) for fleet in FLEETS), f"--output={page}"])
    assert code == 0, f"report ended with {code}"
    page.write_text(page.read_text(encoding="utf-8").replace("</head>", WITHOUT_CALCULATOR, 1), encoding="utf-8")
    photograph(page, picture, REPORT_SIZE)


def draw_live(runs: Path, picture: Path) -> None:
    """Show the last run in the live table as it stood in the middle, and photograph it."""
    run = RunFolder(runs / list(FLEETS)[-1])
    page = runs / "live.html"
    svg = live_table(plan_from_json(run.read_plan()), events(runs / f"{run.path.name}.jsonl"))
    page.write_text(f"<!doctype html><meta charset=utf-8><style>body{{margin:0}}</style>{svg}", encoding="utf-8")
    photograph(page, picture, _size(svg))


def events(path: Path) -> list[tuple[float, Event]]:
    """Read the events of a run.

    Returns:
        Each with its seconds since the first one.
    """
    kinds = {name: kind for kind, name in NAMES.items()}
    documents = [document for line in path.read_text(encoding="utf-8").splitlines() if (document := _document(line))]
    began = datetime.fromisoformat(documents[0]["at"])
    found = []
    for document in documents:
        kind, at = kinds[document.pop("event")], datetime.fromisoformat(document.pop("at"))
        if "folder" in document:  # wherever the run was kept for the picture: a user sees this
            document["folder"] = f"runs/{document['run_id']}"
        found.append(((at - began).total_seconds(), kind(**document)))
    return found


def _document(line: str) -> dict[str, Any] | None:
    """Read a line of `--display json`; the tables at the end of the output are no events."""
    with contextlib.suppress(ValueError):
        document = json.loads(line)
        if isinstance(document, dict) and "event" in document:
            return document
    return None


def until_a_step(stream: Sequence[tuple[float, Event]]) -> Sequence[tuple[float, Event]]:
    """Return the events up to the last progress line of a repeat in the middle of the run."""
    steps = [at for at, (_, event) in enumerate(stream) if isinstance(event, JobStep)]
    last = [
        at
        for at, after in zip(steps, [*steps[1:], len(stream)], strict=True)
        if _step(stream, after) <= _step(stream, at)
    ]
    return stream[: last[2 * len(last) // 3] + 1]


def _step(stream: Sequence[tuple[float, Event]], at: int) -> int:
    """Return the number of the step that an event reports; 0: none."""
    event = stream[at][1] if at < len(stream) else None
    return event.step if isinstance(event, JobStep) else 0


def live_table(plan: Plan, stream: Sequence[tuple[float, Event]]) -> str:
    """Return the live table as it stood in the middle of the run, as SVG."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(file=nowhere, record=True, width=LIVE_COLUMNS, force_terminal=True)
        seen = until_a_step(stream)
        display = LiveDisplay(console, began=time.monotonic() - seen[-1][0])
        display.planned(plan)
        for _, event in seen:
            display.show(event)
        console.print(display.render())
        return console.export_svg(title="tfbench run")


def _size(svg: str) -> tuple[int, int]:
    """Return width and height of a drawing in CSS pixels."""
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()
    return LIVE_WIDTH, round(LIVE_WIDTH * float(height) / float(width))


def photograph(page: Path, picture: Path, size: tuple[int, int]) -> None:
    """Let Chromium draw a page without a network.

    Args:
        page: An HTML file.
        picture: The PNG to write, with at most `MAX_BYTES`.
        size: Width and height of the window, in CSS pixels.
    """
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw.png"
        command = [
            *("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=30000", "--hide-scrollbars"),
            f"--force-device-scale-factor={PIXELS_PER_POINT}",
            *(f"--window-size={size[0]},{size[1]}", f"--screenshot={raw}", page.resolve().as_uri()),
        ]
        environment = {**os.environ, "HOME": folder}
        subprocess.run(command, capture_output=True, timeout=300, check=True, env=environment)
        picture.write_bytes(smaller_png(raw.read_bytes()))
    assert picture.stat().st_size <= MAX_BYTES, f"{picture} has {picture.stat().st_size} bytes"
    print(f"{picture}: {picture.stat().st_size} bytes", file=sys.stderr)


@contextlib.contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def main() -> None:
    """Measure where that is needed, then draw both pictures."""
    parser = argparse.ArgumentParser(description="Redraw the pictures of the README from a real run.")
    parser.add_argument("--runs", type=Path, help="keep the runs here; draw those that are already here")
    parsed = parser.parse_args()
    if shutil.which("chromium") is None:
        sys.exit("needs Chromium. On Debian and Ubuntu: apt install chromium")
    with _folder(parsed.runs) as runs:
        if not all((runs / fleet / "results.csv").exists() for fleet in FLEETS):
            measure(runs)
        draw_report(runs, DOCS / "report.png")
        draw_live(runs, DOCS / "live.png")


if __name__ == "__main__":
    main()
