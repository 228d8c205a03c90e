"""Two thousand spoilt hosts files: each is refused with the line of every mistake, or understood in every word."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from orchestrate.errors import DocumentError
from orchestrate.inventory.addresses import DockerAddress, HostKeys, SSHAddress
from orchestrate.inventory.form import Settings
from orchestrate.inventory.hosts import Host, read_hosts
from orchestrate.inventory.queues import QUEUES
from orchestrate.suites import read_suite
from orchestrate.text import plain_text
from orchestrate.yaml_files import read_document
from results.schema import Device
from tests.support.examples import examples
from tests.unit.orchestrate.mutations import spoilt_texts, spoilt_trees

PROJECT = Path(__file__).parents[3]
EXAMPLE = re.sub(r" +#.*", "", (PROJECT / "hosts.example.yml").read_text())
SUITE = """description: mine
repeats: 3
cases:
  - {model: [resnet50, googlenet], precision: [fp32, fp16], batch_per_gpu: {fp32: 128, fp16: 256}, num_gpus: [1, 2]}
  - {model: vgg16, batch_per_gpu: 64, xla: [off, auto], image_size: 96, device: cpu, warmup_steps: 3, num_steps: 20}
"""

MANY = settings(
    max_examples=examples(1000),
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with the files that the example names."""
    made = tmp_path_factory.mktemp("hosts")
    for name in ("ca.pem", "cert.pem", "key.pem", "ssh_config"):
        (made / name).write_text("")
    (made / "my.yml").write_text(SUITE)
    return made


@MANY
@given(text=spoilt_trees(EXAMPLE))
def test_a_file_of_another_structure_is_refused_by_line_or_understood_in_every_word(folder: Path, text: str):
    check(folder, text.encode("utf-8", "surrogatepass"))


@MANY
@given(data=spoilt_texts(EXAMPLE))
def test_a_file_of_other_characters_is_refused_by_line_or_understood_in_every_word(folder: Path, data: bytes):
    check(folder, data)


@settings(MANY, max_examples=examples(300))
@given(text=spoilt_trees(SUITE))
def test_a_spoilt_suite_is_refused_by_line_or_gives_cases_with_names_that_files_can_have(folder: Path, text: str):
    path = folder / "spoilt.yml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        suite = read_suite(str(path))
    except DocumentError as error:
        check_problems(error.problems, path, text.encode())
        return
    for case in suite.cases(Device.GPU):
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,100}", case.name), case.name


def check(folder: Path, data: bytes) -> None:
    path = folder / "hosts.yml"
    path.write_bytes(data)
    try:
        hosts = read_hosts(path)
    except DocumentError as error:
        check_problems(error.problems, path, data)
        return
    document = read_document(path).data
    with contextlib.suppress(YAMLError):  # it is stricter with tabs, and with a tag that is not its own
        assert leaves(document) == leaves(YAML(typ="safe", pure=True).load(data.decode())), "lost while parsing"
    assert hosts == list(expected_hosts(folder, document))
    assert len({host.key for host in hosts}) == len(hosts), "two hosts of one name would write the same records"


def check_problems(problems: list[str], path: Path, data: bytes) -> None:
    last = len(re.split(rb"\r\n|[\n\r]|\xc2\x85|\xe2\x80[\xa8\xa9]", data)) + 1
    assert problems
    for problem in problems:
        place = re.match(rf"{re.escape(str(path))}:(\d+): \S", problem)
        assert place, problem
        assert 1 <= int(place[1]) <= last, problem
        assert problem == plain_text(problem, 10_000), "a message must not move the cursor"
        assert len(problem) < 1500, problem


def leaves(node: Any) -> int:
    """Count scalars that say something, and empty lists."""
    if isinstance(node, dict):
        return sum(map(leaves, node.values()))
    if isinstance(node, list):
        return sum(map(leaves, node))
    return 0 if node is None else 1


def expected_hosts(folder: Path, document: dict[str, Any]) -> Iterator[Host]:
    """Resolve a valid document the plain way: every value is taken from it, so that none can be forgotten."""
    rest = dict(document)
    assert rest.pop("version") == 1 and type(document["version"]) is int
    defaults = rest.pop("defaults", None) or {}
    fleets = rest.pop("fleets")
    assert rest == {}
    for fleet_name, fleet in fleets.items():
        places = {"hosts", *QUEUES}
        fleet_level = {key: value for key, value in fleet.items() if key not in places}
        assert sum(fleet.get(place) is not None for place in places) == 1
        if fleet.get("hosts") is None:
            yield expected_queue(folder, fleet_name, fleet, [defaults, fleet_level])
            continue
        for name, entry in fleet["hosts"].items():
            connection = {key: value for key, value in entry.items() if key not in Settings.model_fields}
            entry_level = {key: value for key, value in entry.items() if key in Settings.model_fields}
            said = innermost(defaults, fleet_level, entry_level)
            address = connection.pop("address", None)
            python = connection.pop("python", None)
            where = expected_address(folder, connection)
            docker, ssh = (None, where) if isinstance(where, SSHAddress) else (where, None)
            assert python is None or ssh is not None
            if (via := said.pop("docker_via", None)) and docker is not None and docker.scheme != "tcp":
                docker = dataclasses.replace(docker, via=via)
            reached = {"docker": docker, "ssh": ssh, "python": python, "address": address}
            yield Host(fleet=fleet_name, name=name, **reached, **resolved(folder, fleet_name, said))


def innermost(*levels: dict[str, Any]) -> dict[str, Any]:
    """Let the innermost level win that says something."""
    said: dict[str, Any] = {}
    for level in levels:
        assert not (level.get("image") and (level.get("variant") or level.get("registry")))
        if level.get("image") is not None:
            said = {key: value for key, value in said.items() if key not in ("variant", "registry")}
        elif level.get("variant") is not None or level.get("registry") is not None:
            said.pop("image", None)
        joined = {**said.get("environment", {}), **(level.get("environment") or {})}
        said |= {key: value for key, value in level.items() if value is not None} | {"environment": joined}
    return said


def expected_queue(folder: Path, fleet_name: str, fleet: dict[str, Any], levels: list[dict[str, Any]]) -> Host:
    """Translate a queue; it has no GPUs to choose, and without containers no image."""
    (kind,) = [kind for kind in QUEUES if fleet.get(kind) is not None]
    said = innermost(*levels)
    assert fleet.get("gpus") is None and fleet.get("image_source") is None
    for key in ("gpus", "image_source", "docker_via"):
        said.pop(key, None)
    entry = dict(fleet[kind])
    if kind == "slurm":
        names_image = any(level.get("image") or level.get("variant") not in (None, "auto") for level in levels)
        assert (entry["container"] == "none") or names_image
        if entry["container"] == "none":
            said = {key: value for key, value in said.items() if key not in ("image", "registry", "variant")}
        if entry.get("ssh_config") is not None:
            entry["ssh_config"] = str(folder / entry["ssh_config"])
        assert all(not re.match("--(array|requeue|time)", option) for option in entry.get("options", ()))
    if kind == "kubernetes":
        assert any(level.get("image") or level.get("registry") for level in levels)
        if entry.get("kubeconfig") is not None:
            entry["kubeconfig"] = str(folder / entry["kubeconfig"])
    return Host(
        fleet=fleet_name, name=kind, docker=None, queue=QUEUES[kind](**entry), **resolved(folder, fleet_name, said)
    )


def resolved(folder: Path, fleet_name: str, said: dict[str, Any]) -> dict[str, Any]:
    """Translate settings into the fields of `Host`."""
    fields = dict(said)
    known = str((folder / f"hosts.{fleet_name}.known_hosts").absolute())
    fields["host_keys"] = HostKeys(policy=said.get("host_keys"), file=known)
    if "suite" in fields:
        fields["suite"] = str(folder / said["suite"]) if said["suite"].endswith((".yml", ".yaml")) else said["suite"]
    for name, value in said["environment"].items():
        assert re.fullmatch("NCCL_[A-Z0-9_]+|XLA_FLAGS", name) and not name.endswith("_FILE")
        assert isinstance(value, str | int) and not isinstance(value, bool) and re.fullmatch("[ -~]*", str(value))
    fields["environment"] = {name: str(value) for name, value in said["environment"].items()}
    fields["gpus"] = None if said.get("gpus", "all") == "all" else tuple(said["gpus"])
    fields["device"] = None if said.get("device", "auto") == "auto" else Device(said["device"])
    variants = fields.pop("variant", "auto")
    fields["variants"] = () if variants == "auto" else tuple([variants] if isinstance(variants, str) else variants)
    assert fields.keys() <= {field.name for field in dataclasses.fields(Host)}
    return fields


def expected_address(folder: Path, connection: dict[str, Any]) -> DockerAddress | SSHAddress | None:
    """Translate how a host is reached; every part of the address must be somewhere."""
    said = {key: value for key, value in connection.items() if value is not None}
    insecure, process = said.pop("insecure", False), said.pop("process", False)
    if process:
        assert said == {} and not insecure
        return None
    if "ssh" in said:
        target, colon, port = said.pop("ssh").rpartition(":")
        target, port = (target, port) if colon and not port.endswith("]") else (f"{target}{colon}{port}", None)
        config = said.pop("ssh_config", None)
        assert said == {} and not insecure
        return SSHAddress(
            target=target.replace("[", "").replace("]", ""),
            port=None if port is None else int(port),
            ssh_config=None if config is None else str(folder / config),
        )
    parts = urlsplit(said.pop("docker"))
    assert not parts.query and not parts.fragment and parts.password is None
    if parts.scheme == "unix":
        assert said == {} and not parts.netloc and not insecure
        return DockerAddress(scheme="unix", target=parts.path)
    if parts.scheme == "tcp":
        tls = said.pop("tls", None)
        assert said == {} and (tls is not None) != insecure
        assert parts.path in ("", "/") and parts.username is None
        files = tuple(str(folder / tls[key]) for key in ("ca", "cert", "key")) if tls else None
        return DockerAddress(scheme="tcp", target=parts.netloc, tls=files)
    assert parts.scheme == "ssh" and not insecure
    user = f"{parts.username}@" if parts.username else ""
    host = parts.netloc.rpartition("@")[2].removesuffix(f":{parts.port}").strip("[]")
    sockets = [text for text in (said.pop("docker_socket", None), parts.path.rstrip("/")) if text]
    assert len(sockets) <= 1, "two sockets were named"
    config = said.pop("ssh_config", None)
    assert said == {}
    return DockerAddress(
        scheme="ssh",
        target=f"{user}{host}",
        port=parts.port,
        socket=sockets[0] if sockets else DockerAddress.socket,
        ssh_config=None if config is None else str(folder / config),
    )
