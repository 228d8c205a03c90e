"""`tfbench`: one program with every command, and what all programs share: exit codes, spellings, the name in hints."""

import argparse
import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrate import cli, commands
from orchestrate.errors import NoUsableHost
from orchestrate.project import command_line as command_line_of
from results import commands as results_commands
from results.errors import UserError
from results.program import run_main
from results.schema.exit_codes import ExitCode
from results.schema.version import __version__
from tests.support import PROJECT, write_program
from tests.support.patience import patience
from tests.unit.results.factory import repeats, write_run

HEAVY = ("tensorflow", "pandas", "scipy", "numpy", "docker", "kubernetes", "pydantic", "rich", "tfbench")


ORDER = [name for *_, names in cli.GROUPS for name in names]

HERE = "version: 1\ndefaults: {suite: quick}\nfleets: {here: {hosts: {this-machine: {process: true}}}}\n"


def tfbench(*arguments: str, folder: Path = PROJECT, module: str = "orchestrate.cli", **variables: str):
    """Run orchestrate/cli.py, which is the installed command, or another module, with the folder's hosts and runs."""
    folders = {"TFBENCH_RUNS_DIR": str(folder / "runs"), "TFBENCH_HOSTS": str(folder / "hosts.yml")}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={**os.environ, **folders, "PYTHONPATH": str(PROJECT), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience(900),
    )


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    records = [*repeats(10.0, 10.1, fleet="slow"), *repeats(20.0, 20.1, fleet="fast")]
    write_run(tmp_path / "elsewhere", records).write_plan("{}")
    return tmp_path / "elsewhere"


def test_help_lists_every_command_once_in_the_order_of_work():
    listed = re.findall(r"^    ([a-z][a-z-]+)\b", tfbench("--help").stdout, re.MULTILINE)
    assert listed == ORDER
    names = {function.__name__ for function in (*commands.COMMANDS, *results_commands.COMMANDS)}
    assert set(listed) == {*names, *cli.MODULES, "completion"}
    text = tfbench("show", "--help").stdout
    assert all(word in text for word in ("samples/s:", "p50 ms:", "CV percent:", "b1:", "1gpu", "w10s50", "min10s"))


@pytest.mark.slow
def test_help_and_version_import_nothing_heavy():
    for line in ("--help", "show --help", "compare --help", "export --help", "validate --help", "--version"):
        code = (
            f"import sys; sys.argv = ['tfbench', *{line.split()!r}]\nfrom orchestrate.cli import main\n"
            "import results.__main__\ntry: main()\nexcept SystemExit as stopped: assert not stopped.code\n"
            f"print([name for name in {HEAVY!r} if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"
    assert done.stdout.splitlines()[0] == f"tfbench {__version__}"


@pytest.mark.slow
def test_measure_is_the_module_and_takes_flags_in_both_spellings():
    done = tfbench("measure", "--model=no_such_network", "--num-gpus=1")
    module = tfbench("--model=no_such_network", "--num_gpus=1", module="tfbench")
    assert (done.returncode, done.stderr) == (module.returncode, module.stderr)
    assert done.returncode == ExitCode.USAGE and "no_such_network" in done.stderr
    assert "--num_gpus" in tfbench("measure", "--help").stdout
    assert "usage: tfbench doctor" in tfbench("doctor", "--help").stdout


@pytest.mark.slow
def test_a_folder_named_tfbench_in_the_current_folder_is_not_what_measures(tmp_path: Path):
    (tmp_path / "tfbench").mkdir()
    (tmp_path / "tfbench" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    assert "the wrong one" not in tfbench("measure", "--help", folder=tmp_path).stderr


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (UserError("a mistake"), ExitCode.USAGE),
        (NoUsableHost("nothing"), ExitCode.NO_HOST),
        (KeyboardInterrupt(), ExitCode.STOPPED),
        (OSError(errno.ENOSPC, "No space left on device"), ExitCode.NO_HOST),
        (ModuleNotFoundError("No module named 'rich'", name="rich"), ExitCode.USAGE),
        (ModuleNotFoundError("No module named 'results.rich'", name="results.rich"), ExitCode.BUG),
        (ZeroDivisionError("planted"), ExitCode.BUG),
    ],
)
def test_what_a_command_raises_becomes_its_exit_code(raised: BaseException, code: ExitCode, monkeypatch, capsys):
    def command(_parsed: object) -> int:
        raise raised

    monkeypatch.delenv("TFBENCH_DEBUG", raising=False)
    assert run_main(argparse.Namespace(command=command)) == code
    assert "Traceback (most" not in capsys.readouterr().err


def test_ctrl_c_while_a_library_is_imported_is_no_bug(capsys):
    class Field:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    def command(_parsed: object) -> int:
        type("Imported", (), {"field": Field()})  # Python 3.11 makes a RuntimeError of it
        return 0

    assert run_main(argparse.Namespace(command=command)) == ExitCode.STOPPED
    assert capsys.readouterr().err == "stopped\n"


INTERRUPTED = """
import argparse, os, signal, socket, time
from orchestrate import loop
from results.program import run_main
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
made = socket.socketpair
def interrupted(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
    return made(*arguments)
socket.socketpair = interrupted
raise SystemExit(run_main(argparse.Namespace(command=lambda _: loop.wait_for(loop.in_thread(int)))))
"""


@pytest.mark.slow
def test_ctrl_c_while_the_event_loop_is_made_leaves_no_traceback():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == ExitCode.STOPPED and done.stderr.startswith("stopped\n")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["export --format=json", "show", "gpus A4000 A5000"])
@pytest.mark.parametrize(("sink", "code", "said"), [("| true", 0, r""), ("> /dev/full", 4, r"the disk is full.*\n")])
def test_a_closed_pipe_is_no_error_but_a_full_disk_is(command: str, sink: str, code: int, said: str, runs_dir: Path):
    script = (
        f"TFBENCH_RUNS_DIR={runs_dir} {sys.executable} -m orchestrate.cli {command} {sink}; echo ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", script], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.stdout == f"{code}\n" and re.fullmatch(said, done.stderr)


@pytest.mark.slow
def test_a_plan_is_of_hosts_yml_or_else_of_this_machine_and_writes_nothing(tmp_path: Path):
    planned = tfbench("plan", "--format=json", folder=tmp_path, TFBENCH_HOSTS="")
    assert planned.returncode == 0 and "no hosts.yml here: measuring this machine" in planned.stderr
    assert len(json.loads(planned.stdout)["hosts"][0]["jobs"]) == 12
    done = tfbench("plan", folder=tmp_path, TFBENCH_HOSTS="mine.yml")
    assert done.returncode == ExitCode.USAGE and "mine.yml" in done.stderr
    (tmp_path / "hosts.yml").write_text(HERE)
    shown = tfbench("plan", "--limit=this-machine", folder=tmp_path).stdout
    assert "resnet152-fp32-b4-1cpu-w3s10-min15s" in shown and "12 repeats on 1 host," in shown
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_priced_host_without_a_gpu_is_refused_unless_its_cpu_is_meant(tmp_path: Path):
    priced = HERE.replace("{hosts", "{usd_per_gpu_hour: 0.17, hosts")
    (tmp_path / "hosts.yml").write_text(priced)
    for name in ("plan", "run"):
        done = tfbench(name, folder=tmp_path)
        assert done.returncode == ExitCode.NO_HOST and "estimate:" not in done.stdout + done.stderr
        assert "here.this-machine: the case needs 1 GPU, the host offers 0; it has a price" in done.stderr
    checked = tfbench("check", folder=tmp_path)
    assert checked.returncode == ExitCode.NO_HOST
    assert "no GPU was found. Run nvidia-smi there; it has a price" in checked.stdout
    assert not (tmp_path / "runs").exists()
    (tmp_path / "hosts.yml").write_text(priced.replace("quick", "quick, device: cpu"))
    assert tfbench("plan", folder=tmp_path).returncode == 0


@pytest.mark.parametrize("name", [name for name in ORDER if name not in cli.MODULES])
def test_each_command_has_an_example_that_is_a_command_line(name: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        cli.parse(["tfbench", name, "--help"], "tfbench")
    (example,) = re.findall(r"^Example: (.*)\n\Z", capsys.readouterr().out, re.MULTILINE)  # in one line, to be pasted
    words = shlex.split(example)
    assert words[:2] == ["tfbench", name]
    cli.parse(words)


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("chekc", "'chekc' does not exist. Did you mean check?"),
        ("run --display=jso", "'jso' does not exist. Did you mean json?"),
        ("compare --price A4000=1", "unrecognized arguments: --price"),
        ("run --repeats=0", "must be a whole number, more than 0. Received: 0"),
        ("run --max-cost=nan", "must be a number, more than 0. Received: nan"),
        ("resume --again=ok", "must be among oom, "),
        ("", "the following arguments are required"),
    ],
)
def test_a_mistake_is_answered_with_what_was_meant(typed: str, answer: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        cli.parse(["tfbench", *typed.split()])
    assert stopped.value.code == ExitCode.USAGE and answer in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("", ORDER),
        ("su", ["suites"]),
        ("run --stop", ["--stop-early"]),
        ("run --suite q", ["quick"]),
        ("run --display pl", ["plain"]),
        ("status ", ["run-1"]),
        ("recommend --model resnet1", ["resnet152", "resnet152_v1.5"]),
        ("no-such-command x", []),
    ],
)
def test_completion_offers_what_can_stand_there(typed: str, offered, runs_dir: Path, monkeypatch):
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(runs_dir))
    assert cli.candidates(cli.described(), f"tfbench  {typed}") == list(offered)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "ask"),
    [
        ("bash", "complete -p tfbench; COMP_LINE='tfbench run --suite qu' tfbench"),
        ("zsh", "autoload -U compinit && compinit && eval $script && COMP_LINE='tfbench run --suite qu' tfbench"),
        ("fish", "complete --do-complete 'tfbench run --suite qu'"),
    ],
)
def test_each_shell_takes_its_completion_script(shell: str, ask: str, tmp_path: Path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    write_program(tmp_path / "tfbench", f'#!/bin/sh\nexec {sys.executable} -m orchestrate.cli "$@"\n')
    script = tfbench("completion", shell).stdout
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(PROJECT), "HOME": str(tmp_path)}
    first = "" if shell == "zsh" else script
    done = subprocess.run(
        [shell, "-c", f"{first}\n{ask}"], env={**environment, "script": script}, capture_output=True, text=True
    )
    assert done.stdout.split()[-1] == "quick", done.stderr
    assert shell != "bash" or done.stdout.replace("'", "").startswith(script)


@pytest.mark.parametrize(
    ("typed", "printed"),
    [
        (".venv/bin/tfbench", ".venv/bin/tfbench show"),
        ("{path}/tfbench", "tfbench show"),
        ("/usr/lib/python3/orchestrate/__main__.py", "python -m results show"),
    ],
)
def test_hints_work_when_they_are_pasted(typed: str, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_program(tmp_path / "tfbench", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [typed.format(path=tmp_path)])
    assert command_line_of("results", "show") == printed
    assert command_line_of("results", "show", "my runs/one") == f"{printed} 'my runs/one'"
