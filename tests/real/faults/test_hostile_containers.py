"""Benchmarks that hang, flood and lie: each gets its status, and the controller stays small."""

import json
import re
import unicodedata
from pathlib import Path

import pytest

from results.schema import Status
from tests.real.faults.benchmark import HOSTILE
from tests.real.faults.relay import Relay, http_answer
from tests.support.controller import Finished, Runs, folder_bytes, ours
from tests.support.engines.docker import Engines

pytestmark = pytest.mark.docker

MAX_CONTROLLER_BYTES = 300_000_000
MAX_RUN_BYTES = 20_000_000
LIMITS = {"silence_minutes": 0.2, "memory_gb": 0.25}

CONTAINERS = {
    **HOSTILE,
    "good": ("work", Status.OK, ""),
    "hangs": ("hang", Status.TIMEOUT, "printed nothing for 0.2 minutes"),
    "evil-cause": ("evil_cause", Status.ERROR, "failed"),
    "eats-memory": ("eat_memory", Status.OOM, "memory"),
    "floods": ("chatter", Status.OK, ""),
    "one-line": ("one_line", Status.OK, ""),
}
"""Likewise of containers."""


def assert_harmless(runs: Runs, done: Finished) -> None:
    """Check memory, disk, and that nothing that a terminal would obey came through."""
    assert "Traceback" not in done.stderr and "A bug" not in done.stderr
    assert done.memory_peak_bytes < MAX_CONTROLLER_BYTES
    assert folder_bytes(runs.path) < MAX_RUN_BYTES
    texts = {"stdout": done.stdout, "stderr": done.stderr}
    texts |= {str(path): path.read_text() for path in runs.path.rglob("*") if path.is_file()}
    for name, text in texts.items():
        harmful = {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
        assert not harmful, f"{name} holds {harmful}"


def test_every_misbehaviour_has_its_status_and_does_no_harm(
    engines: Engines, fake_images, runs: Runs, short_path: Path
):
    hosts = {}
    for name, (does, _, _) in CONTAINERS.items():  # each has a socket's name of its own, and looks like a host
        socket = short_path / f"{name}.sock"
        socket.symlink_to(engines.first.socket)
        # A busy engine takes long to pass a flood on, and a huge record does not fit into the memory.
        limits = {} if name in ("floods", "one-line", "huge-record") else LIMITS
        hosts[name] = {"docker": f"unix://{socket}", "image": fake_images.image(does), **limits}
    done = runs.measure({"all": {"hosts": hosts}}, 1, "--max-parallel=4", expect=3, seconds=840)
    records = runs.by_host()
    for name, (_, status, words) in CONTAINERS.items():
        assert records[name].status is status and words in (records[name].cause or ""), name
    left = [container.labels["tfbench.job"] for container in ours(engines.first)]
    unsaid = [
        job for job in left if not re.search(rf"clean up after {job}|{job}: .*did not respond in time", done.stderr)
    ]
    assert unsaid == [], "a busy engine may be given up, but not without a word"
    runs.run("stop", expect=0)
    assert ours(engines.first) == [], "containers were left behind"
    assert_harmless(runs, done)


def test_what_an_engine_tells_about_itself_cannot_write_on_the_terminal(engines, fake_images, runs: Runs, short_path):
    reported = engines.first.client.info()
    evil = "\x1b]0;owned\x07\x1b[2J\u202e[bold]evil[/bold]\u2028\x9b31m"
    reported |= {"KernelVersion": evil, "OperatingSystem": evil, "ServerVersion": evil, "Name": evil}
    reported |= {"NCPU": "many", "MemTotal": -1, "SystemTime": evil, "DiscoveredDevices": [{"ID": evil}]}

    def answer(request: str) -> bytes | None:
        return http_answer(json.dumps(reported).encode()) if request == "GET /info" else None

    with Relay(short_path / "r.sock", engines.first.socket, answer=answer) as relay:
        hosts = runs.hosts({"evil": {"hosts": {"one": {"docker": relay.url, "image": fake_images.image()}}}})
        done = runs.run("run", f"--hosts={hosts}", "--display=plain", expect=0)
    assert "evil" in (runs.path / "plan.json").read_text(), "the engine's words were not even read"
    assert_harmless(runs, done)
