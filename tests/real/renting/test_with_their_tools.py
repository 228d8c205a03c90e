"""Files for SkyPilot, dstack and Vast, checked with these tools' own packages.

Opt-in (`make test-renting`): the first run downloads 300 MB from PyPI into environments of their own, under `.cache/`.
RunPod has no schema on PyPI: its files follow the documentation of its REST API, and are checked in `tests/unit` only.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import PROJECT

pytestmark = pytest.mark.skipif(not os.environ.get("TFBENCH_TEST_RENTING"), reason="opt-in: make test-renting")

CHECKS = Path(__file__).parent / "checks"
RENT = PROJECT / "containers" / "rent"
CACHE = PROJECT / ".cache" / "renting"

TOOLS = {"sky": "skypilot==0.14.1", "dstack": "dstack==0.22.5", "vast": "vastai==1.9.1"}


def environment(tool: str) -> Path:
    """Return the folder of a tool's programs, installed once."""
    folder = CACHE / TOOLS[tool].replace("==", "-")
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", TOOLS[tool]], check=True)
        (folder / "complete").touch()
    return folder / "bin"


@pytest.mark.parametrize(
    ("tool", "files", "accepted"),
    [
        ("sky", ("skypilot.yml",), "3 commands"),
        ("dstack", ("dstack-fleet.yml", "dstack-task.yml"), "2 configurations"),
        ("vast", ("vast-template.json",), "1 template"),
    ],
)
def test_a_tool_accepts_our_files_and_the_commands_in_their_comments(tool: str, files: tuple[str, ...], accepted: str):
    command = [environment(tool) / "python", CHECKS / f"{tool}_check.py", *(RENT / name for name in files)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, accepted), done.stderr[-3000:]
