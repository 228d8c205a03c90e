"""What tests share: real engines, a registry and an ssh host, started once when a test first asks for them.

`TFBENCH_TEST_ENGINES` decides where they cannot be had: `skip` (the default) skips the tests that need them
and says why, `require` (the default where CI=true) fails them, `off` skips them everywhere.
"""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

import results
from tests.support import PROJECT, locked
from tests.support.engines.docker import DockerEngine, Engines
from tests.support.engines.images import PushedImage, build_image, make_base_image, push_image
from tests.support.engines.processes import missing_requirements, short_folder
from tests.support.engines.required import skip_without
from tests.support.engines.servers import Registry, SshHost
from tests.support.engines.slurm import SlurmCluster, missing_programs
from tests.support.examples import examples

# Tests run side by side, one per core: threads of linear algebra on top wait for each other, and take five times as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Else every process of a session would compile all tests, and rewrite their asserts, anew: 6 s of a processor each.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

hypothesis.settings.register_profile("shared", max_examples=examples(100))
hypothesis.settings.load_profile("shared")

# Starting Python by way of pyenv takes ten times as long.
os.environ["PATH"] = f"{Path(sys.executable).resolve().parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"

# Debian keeps the programs of Slurm and Docker where a user who is not root does not look.
os.environ["PATH"] += f"{os.pathsep}/usr/local/sbin{os.pathsep}/usr/sbin{os.pathsep}/sbin"

CACHE = PROJECT / ".cache" / "engines"

ORDER = (
    ("tests/real/engines/", "images"),
    ("tests/real/test_end_to_end.py", "images"),
    ("tests/real/test_images_end_to_end.py", "images"),
    ("tests/real/faults/", "faults"),
    ("tests/real/test_gpu_validation_containers.py", "faults"),
    ("tests/real/slurm/test_slurm.py::test_one_plan", "faults"),
    ("tests/real/slurm/test_slurm.py", "slurm"),
    ("tests/real/ssh/", "ssh"),
    *((f"tests/real/training/test_{name}.py", "networks") for name in ("networks", "models", "training")),
    ("tests/real/training/", "training"),
    ("tests/unit/tfbench/", "training"),
    ("tests/real/test_w", ""),
    ("tests/real/", ""),
    ("tests/unit/kubernetes/", ""),
)
"""Beginnings of tests' names in the order in which processes take them, the longest first, and the group that shares what it
starts or imports, such as engines or TensorFlow. Others come last; one without a name is a group with the rest of its file."""


def place(nodeid: str) -> tuple[int, str]:
    """Return the place of a test in the order, and its group."""
    file = nodeid.partition("::")[0]
    found = ((rank, group) for rank, (start, group) in enumerate(ORDER) if nodeid.startswith(start))
    rank, group = next(found, (len(ORDER), ""))
    return rank, group or (nodeid if "TFBENCH_TEST_NULL_GPU" in os.environ else file)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: place(item.nodeid)[0])


class Groups(LoadScopeScheduling):
    """Gives each group to one process. xdist's own groups are names appended to tests' ids, which pytest 9.2 ignores."""

    def _split_scope(self, nodeid: str) -> str:
        return place(nodeid)[1]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Groups:
    return Groups(config, log)


def pytest_collection_finish() -> None:
    """Exempt what was imported from garbage collection, which would take longer than many tests."""
    gc.set_threshold(50_000, 20, 100)
    gc.freeze()


@pytest.fixture(scope="session")
def kept_folder() -> Iterator[Path | None]:
    """Give the folder that outlives sessions to the process that builds the real images (`ORDER`), or else None."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        yield CACHE if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0" and locked(lock) else None


@pytest.fixture(scope="session")
def engine_folder() -> Iterator[Path]:
    """Give a folder with a short name: a unix socket's path has at most 107 bytes."""
    skip_without("a Docker engine", missing_requirements)
    with short_folder("tfb-") as folder:
        yield folder


@pytest.fixture(scope="session")
def engines(engine_folder: Path, kept_folder: Path | None) -> Iterator[Engines]:
    """Start two Docker engines; the first keeps its build cache under `.cache/` between sessions."""
    data = kept_folder / "first" if kept_folder else engine_folder / "first-data"
    with DockerEngine("first", engine_folder, data) as first:
        first.remove_containers()
        with DockerEngine("second", engine_folder, engine_folder / "second-data") as second:
            yield Engines(first, second)


@pytest.fixture(scope="session")
def registry(engine_folder: Path, kept_folder: Path | None) -> Iterator[Registry]:
    """Start a registry that both engines reach.

    It is kept where the first engine is: that then compresses a layer for the registry once, not in each session.
    """
    if kept_folder:
        (kept_folder / "registry").mkdir(exist_ok=True)
        (engine_folder / "registry").symlink_to(kept_folder / "registry")
    with Registry(engine_folder) as server:
        yield server


@pytest.fixture(scope="session")
def ssh_host(engine_folder: Path, engines: Engines) -> Iterator[SshHost]:
    """Start an sshd that leads to the second engine."""
    with SshHost(engine_folder, engines.second.socket) as host:
        yield host


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Start a Slurm cluster of two nodes."""
    skip_without("Slurm", missing_programs)
    with short_folder("tfb-slurm-") as folder, SlurmCluster(folder) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def base_image(engines: Engines) -> str:
    """Name the base image, made where it is not there yet."""
    return make_base_image(engines.first, CACHE)


@pytest.fixture(scope="session")
def cpu_image(engines: Engines, registry: Registry, base_image: str) -> PushedImage:
    """Build the `cpu` variant on the first engine and push it; the second has to pull it."""
    reference = f"{registry.address}/tfbench:{results.__version__}-cpu"
    build_image(engines.first, base_image, "cpu", reference)
    return push_image(engines.first, reference)
