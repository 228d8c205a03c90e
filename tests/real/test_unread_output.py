"""A reader that stalls harms no run: a pipe or terminal that is full from the start, and is never read."""

import fcntl
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from results.schema.exit_codes import ExitCode
from studies.fleet.bench_fleet import fake_engines, write_hosts
from tests.support import PROJECT
from tests.support.engines.processes import short_folder

DEADLINE_SECONDS = 240.0
PIPE_BYTES = 4096


def full_pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reader, writer


def full_terminal() -> tuple[int, int]:
    return pty.openpty()


def fill(descriptor: int) -> None:
    """Write until nothing more fits."""
    os.set_blocking(descriptor, False)
    try:
        while True:
            os.write(descriptor, b"x" * 64)
    except BlockingIOError:
        os.set_blocking(descriptor, True)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder with a host whose benchmark prints a line every second or two for 10 to 30 s."""
    with short_folder("tfb-unread-") as made:
        hosts = write_hosts(made, 1, cases=1)
        hosts.write_text(hosts.read_text().replace('"suite"', '"silence_minutes": 0.15, "suite"', 1))
        with fake_engines(made, 1, seconds=20):
            yield made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("display", "full", "streams"),
    [
        ("plain", full_pipe, ("stderr",)),
        ("plain", full_pipe, ("stdout", "stderr")),
        ("json", full_pipe, ("stdout", "stderr")),
        ("live", full_terminal, ("stdout", "stderr")),
    ],
)
def test_a_run_whose_output_is_never_read_ends_ok(
    folder: Path, display: str, full: Callable[[], tuple[int, int]], streams: tuple[str, ...]
):
    reader, writer = full()
    fill(writer)
    command = [sys.executable, "-m", "orchestrate", "run", f"--hosts={folder / 'hosts.yml'}", "--run-id=r"]
    command += [f"--runs-dir={folder / 'runs'}", f"--display={display}", f"--when-done=echo done; touch {folder}/done"]
    settings = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **dict.fromkeys(streams, writer)}
    try:
        run = subprocess.Popen(command, cwd=PROJECT, **settings)
        try:
            assert run.wait(DEADLINE_SECONDS) == ExitCode.OK
        finally:
            run.kill()
    finally:
        os.close(reader)
        os.close(writer)
    records = [json.loads(path.read_text()) for path in (folder / "runs" / "r" / "records").iterdir()]
    assert [record["status"] for record in records] == ["ok"] * 3
    assert (folder / "done").exists(), "the command ran, and was not held by its own output"
