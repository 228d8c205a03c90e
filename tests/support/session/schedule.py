"""Which tests stay together in a process of `make test`, and which begin first."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

FIRST = ("images", "faults", "slurm", "wheel", "ssh")
"""Groups that mostly wait for engines, queues and connections. Each stays in one process, which starts what it needs once."""

BY_FILE = ("training", "browser", "processes")
"""Folders of `tests/real` that share nothing between their files."""

WITH_FAULTS = "tests/real/slurm/test_containers.py"
"""Needs the engines and stand-in images of `tests/real/faults`, and a Slurm cluster, which starts faster than they do."""

WHEEL = "tests/real/test_wheel.py"
"""Needs no engine: it installs environments, while the images are built."""

LONG_FILES = ("several_hosts", "networks", "inference", "models", "limits", "large_batches", "main")
"""Of `tests/real/training`, the longest first, so that none of them is what all processes wait for in the end."""


class Groups(LoadScopeScheduling):
    """Hands out whole groups of tests, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """Name the group that a test belongs to: a kind of real tests, or its file."""
    file = nodeid.partition("::")[0]
    parts = file.split("/")
    if parts[:2] != ["tests", "real"] or parts[2] in BY_FILE:
        return file
    if file == WITH_FAULTS:
        return "faults"
    if file == WHEEL:
        return "wheel"
    return parts[2] if parts[2] in FIRST else "images"


def rank_of(nodeid: str) -> int:
    """Return when a test's group begins: what waits for engines, then what trains, then the rest; the lowest first."""
    group = group_of(nodeid)
    if group in FIRST:
        return FIRST.index(group)
    if not group.startswith("tests/real/training/"):
        return 100
    name = group.rpartition("/test_")[2].removesuffix(".py")
    return 10 + (LONG_FILES.index(name) if name in LONG_FILES else len(LONG_FILES))
