"""Every command line of README and docs/start.md, as written, in an empty folder at 80 columns.

Names of the network lead to this machine: the clone comes from this checkout, the hosts are an sshd on loopback whose
benchmark only pretends to train. Images: tests/real/engines. Renting tools: tests/real/renting and test_sources.py.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.real.ssh.rented import Rented, make_fake_project
from tests.support import PROJECT, write_program
from tests.support.engines.processes import short_folder
from tests.support.engines.servers import skip_without_sshd

SUITE = "repeats: 1\ncases: [{model: alexnet, batch_per_gpu: 1, image_size: 64, warmup_steps: 1, num_steps: 3, device: cpu}]"

MAY_FAIL = {"tfbench doctor": (0, 4), "tfbench run --suite first": (0, 4), "tfbench show": (0, 2)}
"""Exit codes of what needs a GPU in this machine, and of what shows its results."""


def commands(page: str) -> list[str]:
    """Return the commands of a page: lines of its blocks without a language."""
    text = (PROJECT / page).read_text(encoding="utf-8")
    found: list[str] = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        lines = [re.sub(r"\s+# .*", "", line).strip() for line in block.splitlines()]
        if not language and re.match(r"(git clone|make|tfbench|\. )", next(iter(lines), "")):
            found += filter(None, lines)
    return [line for line in found if not line.startswith("tfbench images")]


@pytest.fixture
def place() -> Iterator[Path]:
    """Give a folder with a short name: sockets of ssh have at most 107 bytes."""
    with short_folder("tfb-hour-") as folder:
        yield folder


@pytest.fixture
def rented(place: Path) -> Iterator[Rented]:
    skip_without_sshd()
    made = Rented(place / "rented", make_fake_project(place / "project"), place / "home")
    with made.host:
        yield made


def prepare(place: Path) -> dict[str, str]:
    """Make the programs that a bare machine would have; return the environment."""
    tfbench = f'PYTHONPATH={PROJECT} exec {sys.executable} -P -m orchestrate.cli "$@"'
    write_program(place / "bin" / "tfbench", f"#!/bin/sh\n{tfbench}\n")
    write_program(place / "tiny.yml", SUITE)
    venv = place / "venv"
    # `make run` measures a tiny network, and `make test` collects one file: the rest is what other tests do.
    short = f'[ "$1" != run ] || set -- "$@" --suite={place}/tiny.yml'
    write_program(venv / "bin" / "tfbench", f"#!/bin/sh\n{short}\n{tfbench}\n")
    collect = f"exec {sys.executable} -m pytest --collect-only -q tests/unit/test_documentation.py"
    python = f'#!/bin/sh\ncase "$*" in *pytest*) {collect} ;; esac\nexec {sys.executable} "$@"\n'
    write_program(venv / "bin" / "python", python)
    for name in ("bin/pip", "bin/activate", "cpu.stamp", "cuda.stamp", "dev.stamp"):
        write_program(venv / name, "")
        os.utime(venv / name, (4e9, 4e9))  # newer than the locks of any clone
    return {
        "PATH": f"{place}/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": str(place / "home"),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "MAKEFLAGS": f"VENV={venv}",
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": f"url.{PROJECT}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/tfbench/tfbench",
        "GIT_CONFIG_KEY_1": "safe.directory",
        "GIT_CONFIG_VALUE_1": "*",
    }


def type_in(command: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Type a command in a terminal of 80 columns; return its exit code and what the terminal showed."""
    done = subprocess.run(
        ["script", "-qec", f"stty cols 80 rows 24; {command}", "/dev/null"],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done.returncode, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", done.stdout)


def listed_hosts(rented: Rented, place: Path) -> str:
    """Return README's hosts file, with hosts on loopback and a network that a processor trains."""
    yaml = YAML()
    document: Any = yaml.load((PROJECT / "README.md").read_text().split("```yaml\n")[1].split("```")[0])
    document["defaults"] |= {"suite": str(place / "tiny.yml"), "device": "cpu"}
    for fleet in document["fleets"].values():
        fleet["hosts"] = {name: rented.entry() for name in fleet["hosts"]}
    with (place / "listed.yml").open("w") as file:
        yaml.dump(document, file)
    return (place / "listed.yml").read_text()


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("page", ["README.md", pytest.param("docs/start.md", marks=pytest.mark.rare)])
def test_every_command_of_a_page_works_as_written(page: str, place: Path, rented: Rented):
    environment, folder = prepare(place), place / "empty"
    listed, typed = listed_hosts(rented, place), commands(page)
    folder.mkdir()
    (folder / "examples").symlink_to(PROJECT / "examples")
    assert len(typed) > 6 and "make run" in typed
    for command in typed:
        hosts = folder / "hosts.yml"
        hosts.unlink(missing_ok=True)
        if command not in MAY_FAIL:
            hosts.write_text(listed)
        where = folder / "tfbench" if command.startswith("make") else folder
        code, shown = type_in(command.replace(" .venv", f" {place / 'venv'}"), where, environment)
        assert code in MAY_FAIL.get(command, (0,)), (command, shown)
        assert command != "make run" or "alexnet" in shown, "a run ends with its table"
        assert "Traceback" not in shown and "bug in tfbench" not in shown, (command, shown)
        if command.startswith("tfbench") and command not in MAY_FAIL:  # the terminal wraps sentences of errors
            too_long = [line for line in shown.splitlines() if len(line) > 80 and " " in line.strip()]
            assert too_long == [], command
