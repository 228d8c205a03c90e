"""The image trains with every privilege taken away, and a new release of tfbench is a small pull."""

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from orchestrate.engines.ssh.software import image_software
from results import schema
from results.runs import reading
from results.schema.progress import RecordReader
from results.schema.record_json import MAX_RECORD_BYTES
from tests.support import PROJECT
from tests.support.engines.containers import (
    RECORD_PATH,
    file_of_image,
    output_of_python,
    successful_container,
)
from tests.support.engines.docker import Engines
from tests.support.engines.images import PushedImage, build_image
from tests.unit.test_locks import locked

pytestmark = pytest.mark.docker

SBOM_PATH = "/opt/sbom.cdx.json"
ABOUT_ITSELF = """
import json, os, pathlib, socket
def refuses(path):
    try:
        pathlib.Path(path, "probe").write_text("")
    except OSError:
        return True
    return False
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "capabilities": int(status["CapEff"], 16),
    "no_new_privileges": status["NoNewPrivs"], "interfaces": [name for _, name in socket.if_nameindex()],
    "refuses": [p for p in ("/", "/opt", "/opt/tfbench", "/usr", "/etc", "/tmp", "/out") if refuses(p)],
}))
"""


INSTALLED = """
import json
from importlib.metadata import distributions
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any
from packaging.requirements import Requirement
found = {item.metadata["Name"]: item for item in distributions(path=["/opt/site"])}
versions = {name.lower().replace("_", "-"): item.version for name, item in found.items()}
missing = []
for line in [line for item in found.values() for line in item.requires or ()]:
    wanted = Requirement(line)
    if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
        if not wanted.specifier.contains(versions.get(wanted.name.lower().replace("_", "-"), "0")):
            missing.append(line)
modules = [path for name in ("tensorflow", "keras") for path in Path("/opt/site", name).rglob("*.py")]
print(json.dumps({
    "packages": {name: item.version for name, item in found.items()},
    "missing": missing,
    "modules": len(modules),
    "not_compiled": [str(path) for path in modules if not Path(cache_from_source(path)).exists()],
}))
"""


def test_the_image_runs_as_a_user_without_rights(engines: Engines, cpu_image: PushedImage):
    seen = json.loads(output_of_python(engines.first.client, cpu_image.reference, ABOUT_ITSELF))
    assert seen == {
        "uid": 10001,
        "gid": 10001,
        "capabilities": 0,
        "no_new_privileges": "1",
        "interfaces": ["lo"],
        "refuses": ["/", "/opt", "/opt/tfbench", "/usr", "/etc"],
    }


def test_a_user_that_the_image_does_not_know_trains_and_gives_its_record(engines: Engines, cpu_image, tmp_path: Path):
    """`images verify` trains as the image's own user; OpenShift chooses another."""
    case = schema.Case(
        model="alexnet", batch_per_gpu=2, device=schema.Device.CPU, image_size=64, warmup_steps=1, num_steps=2
    )
    given = tmp_path / "out"  # as a cluster gives it: an empty folder that all may write
    given.mkdir()
    given.chmod(0o777)
    command = [*case.flags(), f"--output={RECORD_PATH}", "--print_record"]
    options: dict[str, Any] = {"user": "1000660000:0", "volumes": {str(given): {"bind": "/out"}}}
    with successful_container(engines.first.client, cpu_image.reference, command, **options) as container:
        output = container.logs().decode()
    record = reading.from_json((given / "record.json").read_bytes())
    reader = RecordReader(MAX_RECORD_BYTES)
    for line in output.splitlines():
        reader.take(line)
    payload = reader.payload()
    assert payload is not None and reading.from_json(payload) == record, output
    assert (record.status, record.case) == (schema.Status.OK, case)
    assert record.measurement is not None and record.measurement.samples == 4
    assert "Traceback" not in output and "KeyError" not in output


def test_an_image_describes_itself_to_whoever_comes_by_ssh(engines: Engines, cpu_image: PushedImage):
    reported = json.loads(file_of_image(engines.first.client, cpu_image.reference, "/opt/tfbench/image.json"))
    labels = engines.first.client.images.get(cpu_image.reference).labels
    assert labels["tfbench.variant"] == "cpu"
    assert labels["org.opencontainers.image.version"] in cpu_image.reference
    assert {key: reported[key] for key in ("variant", "version")} == {
        key: labels[f"tfbench.{key}"] for key in ("variant", "version")
    }
    assert image_software("/root/.tfbench", reported).environment["PYTHONPATH"] == "/opt/tfbench:/opt/site"


def test_an_image_holds_the_packages_of_its_lock_and_lists_them(engines: Engines, cpu_image: PushedImage):
    seen = json.loads(output_of_python(engines.first.client, cpu_image.reference, INSTALLED))
    listed = json.loads(file_of_image(engines.first.client, cpu_image.reference, SBOM_PATH))
    lock = locked(PROJECT / "containers/requirements/cpu.txt")
    assert {canonicalize_name(name): version for name, version in seen["packages"].items()} == lock
    python, debian = (
        [item for item in listed["components"] if item["purl"].startswith(f"pkg:{kind}/")] for kind in ("pypi", "deb")
    )
    assert {canonicalize_name(item["name"]): item["version"] for item in python} == lock
    assert {"libc6", "dpkg"} <= {item["name"] for item in debian}
    assert seen["missing"] == [], "the lock lacks what its packages need"
    assert seen["modules"] > 1000 and seen["not_compiled"] == [], "every container would compile them anew"
    image = engines.first.client.images.get(cpu_image.reference)
    assert "PIP_" not in json.dumps([image.history(), image.attrs["Config"]]), "how packages were fetched"


TENSORFLOW = re.compile(r"^tensorflow-cpu==.*(\n +--hash=.*)+\n", re.MULTILINE)


def copy_context(folder: Path) -> Path:
    """Copy what an image is built from."""
    for name in ("containers", "results", "tfbench"):
        shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / ".dockerignore", folder)
    return folder


def layers(engines: Engines, reference: str) -> list[str]:
    return engines.first.client.images.get(reference).attrs["RootFS"]["Layers"]


@pytest.mark.rare
def test_builds_from_one_lock_have_the_same_packages_and_layers(engines: Engines, base_image: str, cpu_image, tmp_path):
    """Without TensorFlow, which takes more than half of a build's time."""
    context, again = copy_context(tmp_path), "tfbench-test:again"
    lock = context / "containers/requirements/cpu.txt"
    text, removed = TENSORFLOW.subn("", lock.read_text())
    assert removed == 1
    lock.write_text(f"{text}# {time.time_ns()}: no cache has this step, and none of the others is replaced\n")
    build_image(engines.first, base_image, "cpu", again, context=context)
    client = engines.first.client
    try:
        names = (cpu_image.reference, again)
        listed = [json.loads(file_of_image(client, name, SBOM_PATH))["components"] for name in names]
        assert [item for item in listed[0] if item["name"] != "tensorflow_cpu"] == listed[1]
        of_both = zip(layers(engines, names[0]), layers(engines, again), strict=True)
        *_, common, of_tensorflow, cuda, sbom, records, _ = [first == second for first, second in of_both]
        assert common and cuda and records and not of_tensorflow and not sbom  # the runner's has times of the build
    finally:
        client.images.remove(again, force=True)


def test_a_changed_line_in_tfbench_is_a_pull_of_less_than_a_megabyte(engines, base_image: str, cpu_image, tmp_path):
    changed, again, client = copy_context(tmp_path), "tfbench-test:changed", engines.first.client
    with (changed / "tfbench" / "__init__.py").open("a") as file:
        file.write("# changed\n")
    build_image(engines.first, base_image, "cpu", again, context=changed)
    images = [client.images.get(name) for name in (cpu_image.reference, again)]
    update, *others = (step["Size"] for step in images[1].history() if step["Size"])
    first, second = layers(engines, cpu_image.reference), layers(engines, again)
    client.images.remove(again)
    assert first[:-1] == second[:-1] and first[-1] != second[-1], "an engine pulls the layers that it lacks"
    assert 0 < update < 1_000_000 < 50_000_000 < sum(others)
