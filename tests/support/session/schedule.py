"""Which tests stay together in a process of `make test`, and which begin first."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

FIRST = ("images", "faults", "slurm", "wheel", "slurm training", "ssh")
"""Groups that mostly wait for engines, queues and connections. Each stays in one process, which starts what it needs once."""

BY_FILE = ("training", "null_gpu", "browser", "processes", "contact")
"""Folders of `tests/real` that share nothing between their files."""

SLURM_TRAINING = "tests/real/slurm/test_training.py"
"""Needs a cluster of its own, which starts in a second: what trains does not wait for what waits."""

WHEEL = "tests/real/test_wheel.py"
"""Needs no engine: it installs environments, while the images are built."""

LONG_FILES = ("networks", "main", "models", "several_hosts", "inference", "large_batches", "tfrecords", "training")
"""Of `tests/real/training`, the longest first, so that none of them is what all processes wait for in the end."""

SLOW_WITHOUT_WORK = (
    "tests/unit/orchestrate/test_slurm_simulation.py",
    "tests/unit/kubernetes/test_life_cycle.py",
    "tests/unit/tfbench/test_supervisor.py",
    "tests/unit/gpu_validation/test_session.py",
)
"""They wait for clocks and fakes: beside what trains, and not when nothing else is left."""

BY_TEST = ("tests/real/training/test_networks.py",)
"""Files so long that each test of them, with all its parameters, is a group."""


class Groups(LoadScopeScheduling):
    """Hands out whole groups of tests, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """Name the group that a test belongs to: a kind of real tests, or its file."""
    file = nodeid.partition("::")[0]
    parts = file.split("/")
    if file in BY_TEST:
        return nodeid.partition("[")[0]
    if parts[:2] != ["tests", "real"] or parts[2] in BY_FILE:
        return file
    if file == SLURM_TRAINING:
        return "slurm training"
    if file == WHEEL:
        return "wheel"
    return parts[2] if parts[2] in FIRST else "images"


def rank_of(nodeid: str) -> int:
    """Return when a test's group begins: what waits, then what trains, then the rest; the lowest first."""
    group = group_of(nodeid)
    if group in FIRST:
        return FIRST.index(group)
    if group in SLOW_WITHOUT_WORK or group.startswith("tests/real/null_gpu/"):
        return len(FIRST)
    if not group.startswith("tests/real/training/"):
        return 100
    name = group.partition("::")[0].rpartition("/test_")[2].removesuffix(".py")
    return 10 + (LONG_FILES.index(name) if name in LONG_FILES else len(LONG_FILES))
