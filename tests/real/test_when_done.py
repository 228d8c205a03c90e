"""`--when-done` runs however a run ends, also while nobody reads: real controllers over fakes for Docker engines."""

import contextlib
import fcntl
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from results.schema.exit_codes import ExitCode
from studies.fleet.bench_fleet import fake_engines, write_hosts
from tests.support import PROJECT
from tests.support.engines.processes import short_folder, wait_until
from tests.support.patience import patience

COST = "hosts that still answer cost 0.17 USD per hour until returned: fleet-00.node-0000 0.17"
DEADLINE_SECONDS = 120.0


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """Serve one host, whose repeats take two seconds, in a folder with a short name, as a socket needs."""
    with short_folder("tfb-end-") as made, fake_engines(made, 1, seconds=2) as process:
        yield made, process


@pytest.fixture
def folder(served: tuple[Path, subprocess.Popen[str]]) -> Path:
    """Give that folder with a hosts file and without what earlier tests left."""
    made, _ = served
    shutil.rmtree(made / "runs", ignore_errors=True)
    (made / "done").unlink(missing_ok=True)
    hosts = write_hosts(made, 1, cases=1)
    hosts.write_text(hosts.read_text().replace('"suite"', '"usd_per_gpu_hour": 0.17, "suite"'))
    return made


def command_of(folder: Path, *flags: str) -> list[str]:
    """Return the command line of a run whose `--when-done` writes its marker, and fails."""
    command = ["env", f"TFBENCH_RUNS_DIR={folder}/runs", sys.executable, "-m", "orchestrate", "run"]
    command += [f"--hosts={folder / 'hosts.yml'}", "--display=plain", "--no-report", *flags]
    return [*command, f"--when-done=echo machines are gone; touch {folder}/done; : s3cret; exit 7"]


def start(folder: Path, redirect: str = "", *flags: str, **settings: object) -> subprocess.Popen[bytes]:
    """Start a controller by a shell, which may close or redirect its streams; its own output goes to a file."""
    script = f'ulimit -c 0; exec "$@" {redirect}'
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            ["bash", "-c", script, "bash", *command_of(folder, *flags)],
            cwd=PROJECT,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
            **{"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, **settings},
        )


def began(folder: Path) -> bool:
    """Return whether a repeat is running."""
    return any('"starting"' in path.read_text() for path in (folder / "runs").glob("*/events.jsonl"))


@pytest.mark.parametrize(
    ("redirect", "number", "code"),
    [
        pytest.param("", None, ExitCode.OK, id="all measured"),
        pytest.param("2>&1 | head -n 1", None, ExitCode.OK, id="stdout and stderr closed by their reader"),
        pytest.param(">&- 2>&-", None, ExitCode.OK, id="closed before the start"),
        pytest.param("> /dev/full 2> /dev/full", None, ExitCode.OK, id="output to a full disk"),
        pytest.param("", signal.SIGTERM, ExitCode.STOPPED, id="SIGTERM"),
    ],
)
def test_the_command_runs_and_the_run_keeps_its_exit_code(folder: Path, redirect: str, number, code: ExitCode):
    if "|" in redirect:
        redirect += "; exit ${PIPESTATUS[0]}"
    run = start(folder, redirect)
    if number:
        wait_until(lambda: began(folder), "a repeat to run")
        run.send_signal(number)
    assert run.wait(DEADLINE_SECONDS) == code, (folder / "output").read_text()
    wait_until((folder / "done").exists, "the command")
    output = (folder / "output").read_text()
    assert "Traceback" not in output and "s3cret" not in output and "Exception ignored" not in output
    if not redirect:
        lines = [line.strip() for line in output.splitlines()]
        begin = lines.index("--when-done: running the command")
        assert lines[begin + 1] == "machines are gone"
        assert lines[begin + 2].startswith("--when-done FAILED with exit code 7. Check whether your machines")
        assert lines[begin + 3 :] == [COST]
    if number:
        assert "stopping: no new repeats will start; running ones will finish. Press Ctrl-C again" in output
    (run_folder,) = (folder / "runs").iterdir()
    assert run_folder.stat().st_mode & 0o777 == 0o700


def test_the_command_runs_after_the_terminal_was_closed(folder: Path):
    leader, follower = pty.openpty()
    run = start(folder, "", stdin=follower, stdout=follower, stderr=follower, start_new_session=True)
    os.close(follower)
    wait_until(lambda: began(folder), "a repeat to run")
    os.close(leader)
    for _ in range(3):  # the kernel's, if the terminal controlled the session
        run.send_signal(signal.SIGHUP)
        time.sleep(0.5)
    assert run.wait(DEADLINE_SECONDS) == ExitCode.STOPPED
    assert (folder / "done").exists()


def test_the_command_runs_where_the_disk_is_full(folder: Path):
    script = ["bash", "-c", 'ulimit -f 2; exec "$@" 2>&1', "bash"]  # files of 2 KiB at most
    run = subprocess.run([*script, *command_of(folder)], cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert run.returncode != ExitCode.OK
    assert (folder / "done").exists() and COST in " ".join(run.stdout.decode().split())


def test_the_command_runs_where_a_host_freezes_and_ctrl_c_comes_twice(folder: Path, served):
    run, (_, engine) = start(folder), served
    wait_until(lambda: began(folder), "a repeat to run")
    engine.send_signal(signal.SIGSTOP)
    try:
        run.send_signal(signal.SIGINT)
        time.sleep(0.5)
        run.send_signal(signal.SIGINT)
        wait_until((folder / "done").exists, "the command")
    finally:
        engine.send_signal(signal.SIGCONT)
    assert run.wait(DEADLINE_SECONDS) == ExitCode.STOPPED


def test_the_command_does_not_run_after_a_mistake_in_flags_or_files(folder: Path):
    (folder / "hosts.yml").write_text("version: 1\nfleet: {}\n")
    assert start(folder).wait(DEADLINE_SECONDS) == ExitCode.USAGE
    assert "--when-done did not run, because nothing was measured" in (folder / "output").read_text()
    assert start(folder, "", "--no-such-flag").wait(DEADLINE_SECONDS) == ExitCode.USAGE
    assert not (folder / "done").exists()


def full_descriptor(open_pair) -> tuple[int, int]:
    """Return both ends of a pipe or terminal into which nothing more fits."""
    reader, writer = open_pair()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 64)
    os.set_blocking(writer, True)
    return reader, writer


def small_pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    return reader, writer


@pytest.mark.slow
def test_runs_whose_output_is_never_read_end_ok():
    """The benchmark prints a line every second or two for half a minute: a controller that stops reading them fails it."""
    with contextlib.ExitStack() as stack:
        started = {}
        for display, open_pair in (("plain", small_pipe), ("json", small_pipe), ("live", pty.openpty)):
            place = stack.enter_context(short_folder("tfb-unread-"))
            hosts = write_hosts(place, 1, cases=1)
            hosts.write_text(hosts.read_text().replace('"suite"', '"silence_minutes": 0.25, "suite"', 1))
            stack.enter_context(fake_engines(place, 1, seconds=20))
            reader, writer = full_descriptor(open_pair)
            stack.callback(os.close, reader)
            stack.callback(os.close, writer)
            started[place] = start(place, "", f"--display={display}", "--repeats=1", stdout=writer, stderr=writer)
            stack.callback(started[place].kill)
        assert {run.wait(patience(240)) for run in started.values()} == {ExitCode.OK}
        assert all((place / "done").exists() for place in started), "the command was held by its own output"
        for place in started:
            (record,) = place.glob("runs/*/records/*.json")
            assert '"status": "ok"' in record.read_text()
