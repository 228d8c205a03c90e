"""Files for SkyPilot, dstack and Vast, checked with these tools' own packages.

Opt-in (`make test-renting`): the first run downloads 300 MB from PyPI into environments of their own, under `.cache/`.
RunPod has no schema on PyPI: its files follow the documentation of its REST API, and are checked in `tests/unit` only.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrate.inventory.hosts import read_hosts
from tests.support import PROJECT

pytestmark = pytest.mark.skipif(not os.environ.get("TFBENCH_TEST_RENTING"), reason="opt-in: make test-renting")

HERE = Path(__file__).parent
RENT = PROJECT / "containers" / "rent"
SAMPLES = PROJECT / "tests" / "unit" / "orchestrate" / "cases" / "sources"
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


def by(tool: str, *arguments: object) -> str:
    """Run a script with a tool's own Python and return what it prints."""
    done = subprocess.run(
        [environment(tool) / "python", *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_skypilot_accepts_the_task_and_the_commands_in_its_comments():
    assert by("sky", HERE / "checks" / "sky_check.py", RENT / "skypilot.yml").split() == ["3", "commands"]


def test_dstack_accepts_the_fleet_the_task_and_the_flags_in_their_comments():
    files = (RENT / "dstack-fleet.yml", RENT / "dstack-task.yml")
    assert by("dstack", HERE / "checks" / "dstack_check.py", *files).split() == ["2", "configurations"]


def test_vast_would_send_the_template_and_names_the_same_addresses(tmp_path: Path):
    urls = json.loads(
        by("vast", HERE / "checks" / "vast_check.py", RENT / "vast-template.json", SAMPLES / "vast.json", tmp_path)
    )
    hosts = {f"ssh://{host.ssh.target}:{host.ssh.port}" for host in read_hosts(SAMPLES / "vast.yml") if host.ssh}
    assert hosts <= set(urls.values()) and len(hosts) == 3
