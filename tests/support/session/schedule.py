"""Groups tests into processes of `make test` (`--dist=loadgroup`) and orders the groups."""

import os

FIRST = ("images", "faults", "slurm", "wheel", "slurm training", "ssh")
"""Groups that mostly wait for engines, queues and connections. Each runs in one process, which starts these once."""

BY_FILE = ("training", "null_gpu", "browser", "processes", "contact")
"""Folders of `tests/real` whose files share nothing."""

SLURM_TRAINING = "tests/real/slurm/test_training.py"
"""Has its own cluster, which starts in a second, so that training does not wait for other Slurm tests."""

WHEEL = "tests/real/test_wheel.py"
"""Needs no engine; installs environments while images are built."""

LONG_FILES = ("networks", "main", "models", "several_hosts", "inference", "large_batches", "tfrecords", "training")
"""Files of `tests/real/training` that run first, the longest first, so that none delays the end of the session."""

SLOW_WITHOUT_WORK = (
    "tests/unit/orchestrate/test_slurm_simulation.py",
    "tests/unit/kubernetes/test_life_cycle.py",
    "tests/unit/tfbench/test_supervisor.py",
    "tests/unit/gpu_validation/test_session.py",
)
"""Tests that wait for clocks and fakes, and run in parallel with training."""

BY_TEST = ("tests/real/training/test_networks.py",)
"""Long files in which each test, with all its parameters, is a group."""

BY_PARAMETER = ("tests/real/null_gpu/test_counts.py",) if "TFBENCH_TEST_NULL_GPU" in os.environ else ()
"""Files of hundreds of long tests, each of which is a group."""


def group_of(nodeid: str) -> str:
    """Return the group of a test: a kind of real tests, or its file."""
    file = nodeid.partition("::")[0]
    parts = file.split("/")
    if file in BY_PARAMETER:
        return nodeid
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
    """Return the rank of a test's group, lowest first: tests that wait, then training, then the rest."""
    group = group_of(nodeid)
    if group in FIRST:
        return FIRST.index(group)
    if group in SLOW_WITHOUT_WORK or group.startswith("tests/real/null_gpu/"):
        return len(FIRST)
    if not group.startswith("tests/real/training/"):
        return 100
    name = group.partition("::")[0].rpartition("/test_")[2].removesuffix(".py")
    return 10 + (LONG_FILES.index(name) if name in LONG_FILES else len(LONG_FILES))
