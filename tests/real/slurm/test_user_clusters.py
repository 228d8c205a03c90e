"""Clusters as users see them: login by ssh, a user without rights, and containers by pyxis with enroot, or apptainer.

`make test-pyxis` needs this machine's own Slurm, enroot and pyxis, installed as their projects document it; `make
test-apptainer` makes a root folder of Debian sid, with its Slurm, first.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from results.schema import Status
from tests.conftest import CACHE
from tests.real.slurm.conftest import busy_nodes, left_behind, measure_quick_suite
from tests.support import write_program
from tests.support.controller import Runs
from tests.support.engines.images import PushedImage
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
trap 'echo "{}" >"$out"; exit 75' TERM
case "$*" in *--num_steps=77*) echo waiting; while :; do sleep 1; done ;; esac
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
        importing: A command that makes the file `$1` of the image `$2`.
        modules: Without them apptainer pulls nothing from a registry that has no TLS.
    """

    container: str
    cluster: UserCluster
    programs: Path
    toolkit: Path
    importing: str
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
    return Site("pyxis", cluster, Path("/"), toolkit, 'enroot import --output "$1" "docker://$2"')


def _apptainer_site(folder: Path) -> Site:
    if not WITH_APPTAINER:
        pytest.skip("make test-apptainer builds a root of Debian sid first")
    assert os.geteuid() == 0 and find_program("debootstrap"), "it needs root and debootstrap"
    root = make_root("cluster", "sid", PACKAGES, roots_folder(CACHE / "roots"))
    modules = folder / "modules"
    (modules / MODULE).parent.mkdir(parents=True)
    (modules / MODULE).write_text("#%Module\nsetenv APPTAINER_NOHTTPS 1\n")
    cluster = UserCluster(folder, root=root, variables={"MODULEPATH": str(modules)})
    importing = f'module load {MODULE} && apptainer pull "$1" "docker://$2"'
    return Site("apptainer", cluster, root, folder / "none", importing, (MODULE,))


@pytest.fixture
def runs(tmp_path: Path, site: Site) -> Iterator[Runs]:
    """Give the folder of somebody who uses the cluster from another machine."""
    yield Runs(tmp_path, SLURM_CONF="/nowhere")
    site.cluster.command("scancel", "--user=bench")
    wait_until(lambda: not site.cluster.queue(), "an empty queue")


MakeImage = Callable[..., OneImage]


@pytest.fixture
def make_image(site: Site) -> Iterator[MakeImage]:
    """Make images whose Python is `BENCHMARK`, in registries of their own."""
    with contextlib.ExitStack() as made:

        def make(seconds: float = 0.0) -> OneImage:
            image = OneImage(site.programs, BENCHMARK, {"OF_IMAGE": "1", "NCCL_DEBUG": "VERSION"}, seconds)
            made.callback(image.close)
            return image

        yield make


@pytest.fixture(scope="module")
def image_file(site: Site, cpu_image: PushedImage) -> str:
    """Have the user make a file of the project's own image on the login host; return its path."""
    file = site.cluster.login.config_file.parent / "home" / "tfbench.image"
    on_login_host(site, f"set -- {file} {cpu_image.reference}; {site.importing}")
    return str(file)


def on_login_host(site: Site, script: str) -> str:
    """Run a script as the user."""
    login = ["ssh", "-F", str(site.cluster.login.config_file), "login", "sh -l -s"]
    done = subprocess.run(login, input=script, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


def logs(runs: Runs) -> list[list[str]]:
    """Return the lines of the repeats' logs."""
    return [path.read_text().splitlines() for path in sorted((runs.path / "logs").iterdir())]


def waits(site: Site) -> bool:
    """Return whether a benchmark has come to where it waits for its end."""
    return any("waiting" in path.read_text() for path in site.cluster.shared.glob("tfbench-*.lab/jobs/*/output.log"))


def containers(site: Site) -> list[str]:
    """Return what nodes keep of containers: enroot unpacks one for each step."""
    return [path.name for node in NODES for path in (site.cluster.local[node] / "data/enroot").glob("*")]


def test_an_image_is_fetched_once_without_the_limits_of_a_benchmark(site: Site, runs: Runs, make_image: MakeImage):
    image = make_image(seconds=25)
    lab = site.fleet(f"{image.repository}:1@{image.digest}", max_jobs=1)
    variables = {"NCCL_SOCKET_IFNAME": VALUE, "NCCL_DEBUG": "WARN"}
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


def test_a_benchmark_that_the_user_ends_leaves_its_record_and_a_clean_node(site: Site, runs: Runs, make_image):
    fleets = {"lab": site.fleet(f"{make_image().repository}:1")}
    with runs.begin(fleets, case={"num_steps": 77}) as controller:
        wait_until(lambda: waits(site), "a benchmark that waits")
        controller.send_signal(signal.SIGINT)
        wait_until(lambda: "no new repeats" in runs.stderr, "the first answer")
        controller.send_signal(signal.SIGINT)
        assert controller.wait(180) == 3
    (record,) = runs.records().values()
    assert record.cause is not None and record.cause.startswith("the record is malformed"), "it came back with the job"
    wait_until(lambda: not site.cluster.queue(), "an empty queue")
    assert containers(site) == [] and left_behind(site.cluster) == []


def test_an_image_that_is_not_there_is_a_failed_pull_with_its_reason(site: Site, runs: Runs):
    runs.measure({"lab": site.fleet("127.0.0.1:1/nothing:here")}, expect=3)
    (record,) = runs.records().values()
    assert record.status is Status.PULL_FAILED
    assert "refused" in "\n".join(*logs(runs)) or "Failed to connect" in "\n".join(*logs(runs))
    assert left_behind(site.cluster) == []


def test_gpus_of_a_job_reach_the_container_by_way_of_nvidias_toolkit(site: Site, runs: Runs, make_image: MakeImage):
    image = make_image()
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
def test_the_quick_suite_trains_in_the_projects_own_image(site: Site, runs: Runs, cpu_image: PushedImage):
    records, _ = measure_quick_suite(runs, {"lab": site.fleet(f"{cpu_image.reference}@{cpu_image.digest}")}, 1500)
    assert {record.origin.image_digest for record in records if record.origin} == {cpu_image.digest}
    assert left_behind(site.cluster) == [] and containers(site) == []


@pytest.mark.docker
@pytest.mark.tensorflow
def test_a_dead_nodes_repeat_is_lost_and_resumed_from_an_image_file(site: Site, runs: Runs, cpu_image, image_file: str):
    lab = site.fleet(cpu_image.reference, image_file=image_file)
    with runs.begin({"lab": lab}, 3, case={"image_size": 75, "num_steps": 60}) as controller:
        wait_until(lambda: busy_nodes(runs) == set(NODES), "a job on each node", 600)
        site.cluster.kill_node("n2")
        try:
            assert controller.wait(600) == 3
        finally:
            site.cluster.start_node("n2")
    lost = [record for record in runs.records().values() if record.status is not Status.OK]
    assert lost and {record.status for record in lost} == {Status.LOST}
    assert {record.origin.host for record in lost if record.origin} == {"n2"}
    runs.resume(seconds=900)
    records = runs.records().values()
    assert [record.status for record in records] == [Status.OK] * 3
    assert all(record.measurement and record.measurement.samples_per_second > 0 for record in records)
    assert left_behind(site.cluster) == []


@pytest.mark.docker
@pytest.mark.tensorflow
def test_a_step_over_two_nodes_needs_containers_with_their_network(site: Site, runs: Runs, cpu_image, image_file: str):
    before = containers(site)  # of a node that died, nobody removes what was unpacked
    one_host = site.container == "apptainer"
    fleets = {"lab": site.fleet(cpu_image.reference, image_file=image_file)}
    runs.measure(fleets, case={"num_hosts": 2, "batch_per_gpu": 1}, expect=3 if one_host else 0, seconds=900)
    (record,) = runs.records().values()
    if one_host:
        assert record.status is Status.UNSUPPORTED
        return
    assert record.origin is not None and record.origin.host == "n1+n2"
    assert record.measurement is not None and len(record.measurement.ranks) == 2
    assert containers(site) == before and left_behind(site.cluster) == []
