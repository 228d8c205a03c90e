"""`--when-done` runs however a run ends: each end with a real controller, over fakes for Docker engines."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from results.schema.exit_codes import ExitCode
from studies.fleet.bench_fleet import fake_engines, write_hosts
from tests.support import PROJECT
from tests.support.engines.processes import short_folder, wait_until

COST = "1 host still answers and costs 0.17 USD per hour until you return it: fleet-00.node-0000 0.17"
DEADLINE_SECONDS = 120.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder whose sockets have short names: a unix socket's path has at most 107 bytes."""
    with short_folder("tfb-end-") as made:
        hosts = write_hosts(made, 1, cases=1)
        hosts.write_text(hosts.read_text().replace('"suite"', '"usd_per_gpu_hour": 0.17, "suite"'))
        yield made


@pytest.fixture
def engine(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Serve the host of `folder`; a repeat takes two seconds."""
    with fake_engines(folder, 1, seconds=2) as process:
        yield process


def command_of(folder: Path, *flags: str) -> list[str]:
    """Return the command line of a run whose `--when-done` writes its marker, and fails."""
    command = [sys.executable, "-m", "orchestrate", "run", f"--hosts={folder / 'hosts.yml'}"]
    command += [f"--runs-dir={folder / 'runs'}", "--display=plain", "--no-report", *flags]
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


def send(*numbers: signal.Signals) -> Callable[[Path, subprocess.Popen[bytes]], None]:
    """Return what sends signals, half a second apart, once a repeat runs."""

    def act(folder: Path, run: subprocess.Popen[bytes]) -> None:
        wait_until(lambda: began(folder), "a repeat to run")
        for number in numbers:
            run.send_signal(number)
            time.sleep(0.5)

    return act


def nothing(_folder: Path, _run: subprocess.Popen[bytes]) -> None:
    """Let it run to its end."""


@pytest.mark.parametrize(
    ("redirect", "act", "code"),
    [
        pytest.param("", nothing, ExitCode.OK, id="all measured"),
        pytest.param("2>&1 | head -n 1", nothing, ExitCode.OK, id="stdout and stderr closed by their reader"),
        pytest.param("2> >(head -n 1)", nothing, ExitCode.OK, id="stderr closed by its reader"),
        pytest.param("> >(head -n 1)", nothing, ExitCode.OK, id="stdout closed by its reader"),
        pytest.param(">&- 2>&-", nothing, ExitCode.OK, id="closed before the start"),
        pytest.param("> /dev/full 2> /dev/full", nothing, ExitCode.OK, id="output to a full disk"),
        pytest.param("", send(signal.SIGTERM), ExitCode.STOPPED, id="SIGTERM"),
        pytest.param("", send(signal.SIGINT, signal.SIGINT), ExitCode.STOPPED, id="Ctrl-C twice"),
        pytest.param("", send(*[signal.SIGHUP] * 3), ExitCode.STOPPED, id="terminal closed, told three times"),
    ],
)
@pytest.mark.usefixtures("engine")
def test_the_command_runs_and_the_run_keeps_its_exit_code(folder: Path, redirect: str, act, code: ExitCode):
    if "|" in redirect:
        redirect += "; exit ${PIPESTATUS[0]}"
    run = start(folder, redirect)
    act(folder, run)
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
    if act is not nothing:
        assert "stopping: no new repeats will start; running ones will finish. Press Ctrl-C again" in output
    (run_folder,) = (folder / "runs").iterdir()
    assert run_folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("engine")
def test_the_command_runs_after_the_terminal_was_closed(folder: Path):
    leader, follower = pty.openpty()
    run = start(folder, "", stdin=follower, stdout=follower, stderr=follower, start_new_session=True)
    os.close(follower)
    wait_until(lambda: began(folder), "a repeat to run")
    os.close(leader)
    run.send_signal(signal.SIGHUP)  # the kernel's, if the terminal controlled the session
    assert run.wait(DEADLINE_SECONDS) == ExitCode.STOPPED
    assert (folder / "done").exists()


@pytest.mark.usefixtures("engine")
def test_the_command_runs_where_the_disk_is_full(folder: Path):
    script = ["bash", "-c", 'ulimit -f 2; exec "$@" 2>&1', "bash"]  # files of 2 KiB at most
    run = subprocess.run([*script, *command_of(folder)], cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert run.returncode != ExitCode.OK
    assert (folder / "done").exists() and COST in " ".join(run.stdout.decode().split())


def test_the_command_runs_where_a_host_freezes_and_ctrl_c_comes_twice(folder: Path, engine: subprocess.Popen[str]):
    run = start(folder)
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


@pytest.mark.usefixtures("engine")
def test_the_command_does_not_run_after_a_mistake_in_flags_or_files(folder: Path):
    (folder / "hosts.yml").write_text("version: 1\nfleet: {}\n")
    assert start(folder).wait(DEADLINE_SECONDS) == ExitCode.USAGE
    assert "--when-done did not run, because nothing was measured" in (folder / "output").read_text()
    assert start(folder, "", "--no-such-flag").wait(DEADLINE_SECONDS) == ExitCode.USAGE
    assert not (folder / "done").exists()
