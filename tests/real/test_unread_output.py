"""A reader that stalls harms no run: a pipe or terminal that is full from the start, and is never read."""

import contextlib
import fcntl
import json
import os
import pty
import subprocess
import sys

import pytest

from results.schema.exit_codes import ExitCode
from studies.fleet.bench_fleet import fake_engines, write_hosts
from tests.support import PROJECT
from tests.support.engines.processes import short_folder
from tests.support.patience import patience

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


RUNS = {
    "plain, stderr": ("plain", full_pipe, ("stderr",)),
    "plain": ("plain", full_pipe, ("stdout", "stderr")),
    "json": ("json", full_pipe, ("stdout", "stderr")),
    "live": ("live", full_terminal, ("stdout", "stderr")),
}
"""Display, what is full, and the streams that lead there."""


@pytest.mark.slow
def test_runs_whose_output_is_never_read_end_ok():
    """The benchmark prints a line every second or two for half a minute: a controller that stops reading them fails it."""
    with short_folder("tfb-unread-") as folder, contextlib.ExitStack() as stack:
        started = {}
        for name, (display, full, streams) in RUNS.items():
            place = folder / str(len(started))
            place.mkdir()
            hosts = write_hosts(place, 1, cases=1)
            hosts.write_text(hosts.read_text().replace('"suite"', '"silence_minutes": 0.25, "suite"', 1))
            stack.enter_context(fake_engines(place, 1, seconds=20))
            reader, writer = full()
            stack.callback(os.close, reader)
            stack.callback(os.close, writer)
            fill(writer)
            command = [sys.executable, "-m", "orchestrate", "run", f"--hosts={hosts}", "--run-id=r", "--repeats=1"]
            command += [
                f"--runs-dir={place}/runs",
                f"--display={display}",
                f"--when-done=echo done; touch {place}/done",
            ]
            settings = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **dict.fromkeys(streams, writer)}
            started[name] = place, subprocess.Popen(command, cwd=PROJECT, **settings)
            stack.callback(started[name][1].kill)
        assert {name: run.wait(patience(240)) for name, (_, run) in started.items()} == dict.fromkeys(RUNS, ExitCode.OK)
        for name, (place, _) in started.items():
            (record,) = (place / "runs" / "r" / "records").iterdir()
            assert json.loads(record.read_text())["status"] == "ok", name
            assert (place / "done").exists(), "the command ran, and was not held by its own output"
