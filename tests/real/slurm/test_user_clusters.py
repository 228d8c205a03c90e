"""Clusters as users see them: login by ssh, a user without rights, and containers by pyxis with enroot, or apptainer.

`make test-pyxis` needs this machine's own Slurm, enroot and pyxis, installed as their projects document it; `make
test-apptainer` makes a root folder of Debian sid, with its Slurm, first.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from results.schema import Status
from tests.conftest import CACHE
from tests.real.slurm.conftest import left_behind
from tests.support import write_program
from tests.support.controller import Runs
from tests.support.engines.one_image import OneImage
from tests.support.engines.processes import find_program, short_folder, wait_until
from tests.support.engines.roots import make_root, roots_folder
from tests.support.engines.slurm import NODES, missing_programs
from tests.support.engines.user_cluster import PACKAGES, UserCluster

PLUGIN = os.environ.get("TFBENCH_TEST_PYXIS")
WITH_APPTAINER = os.environ.get("TFBENCH_TEST_APPTAINER") == "1"

pytestmark = [
    pytest.mark.timeout(2400),  # an image is built, pushed and unpacked, all on few cores
    pytest.mark.skipif(PLUGIN is None and not WITH_APPTAINER, reason="make test-pyxis and make test-apptainer run it"),
]

BENCHMARK = """\
#!/bin/sh
for word; do case $word in --output=*) out=${word#--output=} ;; esac; done
echo "home $HOME in $PWD uid $(id -u)"
echo "gpus $CUDA_VISIBLE_DEVICES"
echo "of the image ${OF_IMAGE-none}, of the hosts file $NCCL_SOCKET_IFNAME, of both $NCCL_DEBUG"
(dd if=/dev/zero of=/tmp/small bs=1M count=100) 2>/dev/null && echo "100 MiB in /tmp"
(dd if=/dev/zero of=/tmp/large bs=1M count=257) 2>/dev/null || echo "no file of 257 MiB"
rm -f /tmp/small /tmp/large
(echo x >/opt/tfbench/x) 2>/dev/null || echo "a root that is read-only"
while read -r name rest; do case $name in *:) echo "network $name" ;; esac; done </proc/net/dev
sleep 5  # so long that it is seen to run: the time of a repeat begins then
echo "{}" >"$out"
"""
"""Says what a benchmark may do, and leaves no record that counts."""

VALUE = "=eth0,eth1 'x' $HOME"
MODULE = "tfbench/1"
TOOL = '#!/bin/sh\necho "$*" >>{log}\n'


@dataclass(frozen=True)
class Site:
    """A cluster whose nodes have one way to start containers.

    Attributes:
        container: As `hosts.yml` names it.
        programs: Where the programs of the images that tests make come from.
        toolkit: What nodes asked NVIDIA's container toolkit for, a line for each container; absent: nothing.
        modules: Without them apptainer pulls nothing from a registry that has no TLS.
    """

    container: str
    cluster: UserCluster
    programs: Path
    toolkit: Path
    modules: tuple[str, ...] = ()

    def fleet(self, image: str, **settings: Any) -> dict[str, Any]:
        """Describe it, for `hosts.yml`."""
        slurm = {"container": self.container, "shared_folder": str(self.cluster.shared), "partition": "gpu"}
        slurm |= {"ssh": "login", "ssh_config": str(self.cluster.login.config_file), "poll_seconds": 0.5}
        slurm |= {"modules": list(self.modules)}
        return {"image": image, "slurm": {**slurm, **settings}}


@pytest.fixture(scope="module", params=["pyxis", "apptainer"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with short_folder("tfb-site-") as folder:
        site = (_pyxis_site if request.param == "pyxis" else _apptainer_site)(folder)
        with site.cluster:
            yield site


def _pyxis_site(folder: Path) -> Site:
    if PLUGIN is None:
        pytest.skip(
            "make test-pyxis PYXIS=…/spank_pyxis.so: needs pyxis, built against this machine's Slurm, and enroot"
        )
    if (reason := missing_programs()) is not None:
        pytest.fail(reason)
    enroot = find_program("enroot")
    assert enroot is not None and Path(PLUGIN).is_file(), f"needs enroot in PATH and pyxis at {PLUGIN}"
    tools, toolkit = folder / "tools", folder / "shared" / ".toolkit"
    write_program(tools / "nvidia-container-cli", TOOL.format(log=toolkit))
    # Where enroot keeps things is a site's to say; a user's variables of XDG's reach enroot by way of pyxis, too.
    paths = {"XDG_DATA_HOME": "LOCAL/data", "XDG_CACHE_HOME": "LOCAL/cache", "XDG_RUNTIME_DIR": "LOCAL/run"}
    cluster = UserCluster(
        folder,
        path=(Path(enroot).parent, tools),
        variables={**paths, "ENROOT_ALLOW_HTTP": "yes"},
        plugin=f"required {PLUGIN} runtime_path=LOCAL/pyxis",
    )
    return Site("pyxis", cluster, Path("/"), toolkit)


def _apptainer_site(folder: Path) -> Site:
    if not WITH_APPTAINER:
        pytest.skip("make test-apptainer builds a root of Debian sid first")
    assert os.geteuid() == 0 and find_program("debootstrap"), "it needs root and debootstrap"
    root = make_root("cluster", "sid", PACKAGES, roots_folder(CACHE / "roots"))
    modules = folder / "modules"
    (modules / MODULE).parent.mkdir(parents=True)
    (modules / MODULE).write_text("#%Module\nsetenv APPTAINER_NOHTTPS 1\n")
    cluster = UserCluster(folder, root=root, variables={"MODULEPATH": str(modules)})
    return Site("apptainer", cluster, root, folder / "none", (MODULE,))


@pytest.fixture
def runs(tmp_path: Path, site: Site) -> Iterator[Runs]:
    """Give the folder of somebody who uses the cluster from another machine."""
    yield Runs(tmp_path, SLURM_CONF="/nowhere")
    site.cluster.command("scancel", "--user=bench")
    wait_until(lambda: not site.cluster.queue(), "an empty queue")


def make_image(site: Site, seconds: float = 0.0) -> contextlib.closing[OneImage]:
    """Make an image whose Python is `BENCHMARK`, in a registry of its own."""
    return contextlib.closing(OneImage(site.programs, BENCHMARK, {"OF_IMAGE": "1", "NCCL_DEBUG": "VERSION"}, seconds))


def logs(runs: Runs) -> list[list[str]]:
    """Return the lines of the repeats' logs."""
    return [path.read_text().splitlines() for path in sorted((runs.path / "logs").iterdir())]


def containers(site: Site) -> list[str]:
    """Return what nodes keep of containers: enroot unpacks one for each step."""
    return [path.name for node in NODES for path in (site.cluster.local[node] / "data/enroot").glob("*")]


def test_an_image_is_fetched_once_without_the_limits_of_a_benchmark(site: Site, runs: Runs):
    variables = {"NCCL_SOCKET_IFNAME": VALUE, "NCCL_DEBUG": "WARN"}
    with make_image(site, seconds=25) as image:
        lab = site.fleet(f"{image.repository}:1@{image.digest}", max_jobs=1)
        runs.measure({"lab": {**lab, "environment": variables}}, 2, expect=3)
    records = runs.records().values()
    assert {record.status for record in records} == {Status.BAD_RESULT}, "what the fake leaves is no record"
    assert {record.origin.image_digest for record in records if record.origin} == {image.digest}
    first, second = logs(runs)
    assert set(first) == set(second)
    assert {"home /tmp in /opt/tfbench uid 1001", "gpus -1"} <= set(first)
    assert f"of the image 1, of the hosts file {VALUE}, of both WARN" in first
    assert {"100 MiB in /tmp", "no file of 257 MiB", "a root that is read-only"} <= set(first)
    networks = [line for line in first if line.startswith("network ")]
    assert "network lo:" in networks and (site.container == "pyxis" or len(networks) == 1)
    assert image.pulls <= 3, "the second repeat starts the file that the first one brought"
    seconds = [event["seconds"] for event in runs.events("job_result")]
    assert max(seconds) < 25, "what its image takes to come is no time of a repeat"
    assert left_behind(site.cluster) == [] and containers(site) == []


def test_gpus_of_a_job_reach_the_container_by_way_of_nvidias_toolkit(site: Site, runs: Runs):
    with make_image(site) as image:
        lab = site.fleet(f"{image.repository}:1", gpus_per_node="a4000:2", max_jobs=1)
        runs.measure({"lab": lab}, case={"num_gpus": [1, 2], "device": "auto"}, device="auto", expect=3)
    visible = {line for log in logs(runs) for line in log if line.startswith("gpus ")}
    assert visible == {"gpus 0", "gpus 0,1"}
    if site.container == "pyxis":
        asked = site.toolkit.read_text().splitlines()
        site.toolkit.unlink()
        assert len(asked) == 2, "enroot's hook asks for each container"
        assert all("--device=all" in line.split() for line in asked)


@pytest.mark.docker
@pytest.mark.tensorflow
def test_the_projects_own_image_trains_alone_and_over_two_nodes_with_pyxis(site: Site, runs: Runs, cpu_image):
    one_host = site.container == "apptainer"
    fleets = {"lab": site.fleet(f"{cpu_image.reference}@{cpu_image.digest}")}
    case = {"model": "resnet50", "num_hosts": [1, 2], "batch_per_gpu": 1}
    runs.measure(fleets, case=case, expect=3 if one_host else 0, seconds=1500)
    alone, together = sorted(runs.records().values(), key=lambda record: record.case.num_hosts)
    assert alone.status is Status.OK and alone.measurement is not None and alone.origin is not None
    assert alone.origin.host in NODES and alone.origin.image_digest == cpu_image.digest
    if one_host:
        assert together.status is Status.UNSUPPORTED
    else:
        assert together.origin is not None and together.origin.host == "n1+n2"
        assert together.measurement is not None and len(together.measurement.ranks) == 2
    assert left_behind(site.cluster) == [] and containers(site) == []
