"""Every `docker run` line of the documentation works as it is written, for an ordinary user."""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from results import schema
from results.runs import reading
from results.schema.exit_codes import ExitCode
from tests.support import PROJECT, write_program
from tests.support.engines.docker import Engines
from tests.support.engines.images import PushedImage
from tests.support.engines.required import skip_without

ORDINARY_USER = 51_234
"""Without a name, a home or a right anywhere."""

BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
IMAGE = re.compile(r"\S*\btfbench:\S+")
DOCTORS_NOT_READY = 4


@dataclass(frozen=True)
class Documented:
    """A command of the documentation."""

    page: str
    command: str

    def __str__(self) -> str:
        return f"{self.page}: {self.command[:40]}"


def documented(root: Path = PROJECT) -> list[Documented]:
    """Return the `docker run` commands of all pages, lines that end with a backslash joined."""
    pages = [*sorted(root.glob("*.md")), *sorted(root.glob("docs/*.md")), *sorted(root.glob("containers/**/*.md"))]
    found = []
    for page in pages:
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            commands = re.sub(r"\\\n\s*", "", block).splitlines()
            found += [Documented(page.name, line.strip()) for line in commands if re.search(r"\bdocker run\b", line)]
    return found


@dataclass(frozen=True)
class User:
    """Who types the commands.

    Attributes:
        folder: Where; it belongs to the user.
        socket: Of the engine; the user may use it, as members of the group `docker` may.
    """

    folder: Path
    socket: Path

    def types(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "DOCKER_HOST": f"unix://{self.socket}", "HOME": str(self.folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            user=ORDINARY_USER,
            group=ORDINARY_USER,
            extra_groups=[],
        )


@pytest.fixture(scope="module")
def gpu_engine(engines: Engines, cpu_image: PushedImage) -> Iterator[Engines]:
    """Start the first engine again with what makes it accept `--gpus`; there is no GPU behind it.

    Docker takes `--gpus` where it finds NVIDIA's hook, which runs before the benchmark does.
    """
    skip_without("the docker command", lambda: None if shutil.which("docker") else "not installed")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        write_program(Path(folder) / "nvidia-container-runtime-hook", "#!/bin/sh\nexit 0\n")
        engines.first.stop()
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        engines.first.start()
        yield engines
        engines.first.stop()
    engines.first.start()


@pytest.fixture(scope="module")
def user(gpu_engine: Engines) -> Iterator[User]:
    folder = Path(tempfile.mkdtemp(prefix="tfb-user-"))
    socket = folder / "docker.sock"
    os.link(gpu_engine.first.socket, socket)  # its own folder is root's
    before = socket.stat()
    for path in (folder, socket):
        os.chown(path, ORDINARY_USER, ORDINARY_USER)
    yield User(folder, socket)
    os.chown(socket, before.st_uid, before.st_gid)
    shutil.rmtree(folder)


def test_commands_are_found_in_blocks_over_several_lines(tmp_path: Path):
    (tmp_path / "README.md").write_text(
        "Use `docker run` so:\n```\nls\ndocker run a \\\n    -m b > c\n```\n```sh\n$(docker run d)\n```\n"
    )
    assert [found.command for found in documented(tmp_path)] == ["docker run a -m b > c", "$(docker run d)"]


@pytest.mark.docker
@pytest.mark.parametrize("page", documented(), ids=str)
def test_a_documented_command_works_as_written(user: User, cpu_image: PushedImage, page: Documented):
    command, images = IMAGE.subn(cpu_image.reference, page.command)
    assert images == 1, f"names no image of ours: {page.command}"
    done = user.types(command)
    if "tfbench.doctor" in command:
        assert (done.returncode, done.stdout.splitlines()[-1][:18]) == (DOCTORS_NOT_READY, "verdict: not ready"), done
        return
    assert done.returncode == ExitCode.SOME_FAILED, done
    if " -t " in command:  # the table of a terminal, which has one stream
        assert "status       no_gpu" in done.stdout.replace("\r\n", "\n"), done
        return
    output = user.folder / shlex.split(command)[-1]
    record = reading.from_json(output.read_bytes())
    assert record.status is schema.Status.NO_GPU, record.cause
    assert record.case.model in command and output.stat().st_uid == ORDINARY_USER
    assert "tfbench: no_gpu" in done.stderr, "what a person reads stays on the terminal"
