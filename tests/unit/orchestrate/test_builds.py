"""What `images build`, `verify` and `list` do; no engine is needed to see it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
import tarfile
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest

from orchestrate import cli, session
from orchestrate.engines.docker.images import DockerEngine
from orchestrate.errors import BuildFailed, UserError
from orchestrate.images import builds, commands
from orchestrate.images.builds import build_variant, verify_image
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.inventory.variants import read_variants
from orchestrate.planning.facts import Facts
from orchestrate.planning.images import wanted_images
from results.schema import GPU
from results.schema.exit_codes import ExitCode
from results.schema.version import __version__
from tests.support import PROJECT

VARIANTS = {variant.name: variant for variant in read_variants()}


class OneImage:
    """An engine with one image, which describes itself and leaves no record."""

    def __init__(self, **described: Any) -> None:
        self._described = {"python": "3.11.2", "tensorflow": "2.21.0", "keras": "3.15.1", "cuda": "12.5.1"}
        self._described |= {"user": 10001, "libraries": {}} | described
        self.create = self.start = self.wait = self.remove = self.read_file = lambda *_: None

    def output(self, name: str, limit: int) -> bytes:
        return json.dumps(self._described).encode()


class PushEngine:
    """An engine that has the image of `cpu`, and notes what it builds and pushes."""

    last: ClassVar[PushEngine]

    def __init__(self, _address: object) -> None:
        self.images, self.pushed = {reference("a", "cpu")}, []
        self.image_id = lambda name: name if name in self.images else None
        self.image_bytes, self.close = (lambda name: 1), (lambda: None)
        PushEngine.last = self

    def build(self, _context: object, tag: str, *_: object, **__: object) -> str:
        self.images.add(tag)
        return "sha256:built"

    def push(self, name: str, _progress: object) -> str:
        assert name in self.images, "built first"
        self.pushed.append(name)
        return "sha256:" + "0" * 64


def reference(registry: str, variant: str) -> str:
    return f"example.org/{registry}/tfbench:{__version__}-{variant}"


DRIVERS = {"one": "580.95.05", "two": "580.95.05", "old": "520.61.05"}


def push_for(hosts_file: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> tuple[int, list[str]]:
    """Push for a hosts file whose hosts have these drivers; return the exit code and what was pushed."""

    def probe(hosts: list[Host]) -> dict[HostPlace, Facts | str]:
        gpus = (GPU(index=0, name="GPU", compute_capability="8.6"),)
        found: dict[HostPlace, Facts | str] = {}
        for host in hosts:
            assert PushEngine.last.pushed == [reference("a", "cpu")], "its driver is queried in this image"
            if host.name not in DRIVERS:
                found[host.place] = "no answer"
                continue
            facts = Facts(driver=DRIVERS[host.name], gpus=gpus)
            found[host.place] = dataclasses.replace(facts, images=tuple(wanted_images(host, facts, read_variants())))
        return found

    monkeypatch.setattr(commands, "DockerEngine", PushEngine)
    monkeypatch.setattr(session, "probe", probe)
    parsed = cli.parse(["tfbench", "images", "push", f"--hosts={hosts_file}", *flags])
    return parsed.command(parsed), PushEngine.last.pushed


HOSTS = """version: 1
defaults: {registry: example.org/a}
fleets:
  gpus: {hosts: {one: {docker: ssh://one}, two: {docker: ssh://two}, old: {docker: ssh://old}}}
  mine: {image: example.org/mine:1, hosts: {four: {docker: ssh://four}}}
"""


def test_each_variant_that_hosts_pull_is_built_and_pushed_once(tmp_path: Path, monkeypatch, capsys):
    file = tmp_path / "hosts.yml"
    file.write_text(HOSTS)
    code, pushed = push_for(file, monkeypatch)
    assert (code, pushed) == (ExitCode.OK, [reference("a", name) for name in ("cpu", "cuda12.9", "cuda11.8")])
    output = capsys.readouterr().out
    built = [f"{reference('a', name)} sha256:built" in output for name in ("cpu", "cuda12.9")]
    assert built == [False, True] and f"{reference('a', 'cuda11.8')}@sha256:{'0' * 64}" in output
    file.write_text(HOSTS.replace("old:", "gone:"))
    code, pushed = push_for(file, monkeypatch)
    assert (code, pushed) == (ExitCode.SOME_FAILED, [reference("a", "cpu"), reference("a", "cuda12.9")])
    assert "gpus.gone: not queried, so its image may be missing: no answer" in capsys.readouterr().err
    with pytest.raises(UserError, match="--hosts chooses the variants"):
        push_for(file, monkeypatch, "cuda12.5")
    file.write_text(HOSTS.replace("registry: example.org/a", "image_source: transfer"))
    with pytest.raises(UserError, match="no host pulls from a registry"):
        push_for(file, monkeypatch)


@pytest.mark.parametrize(
    ("name", "dockerfile", "base"),
    [("cpu", "Dockerfile", None), ("ngc25.02", "Dockerfile.on-base", "nvcr.io/nvidia/tensorflow:25.02-tf2-py3")],
)
def test_images_are_built_for_x86_on_any_machine_each_from_its_dockerfile(name, dockerfile, base, monkeypatch):
    asked: dict[str, Any] = {}
    client = types.SimpleNamespace(build=lambda **settings: asked.update(settings) or [])
    engine = DockerEngine(DockerAddress(scheme="unix", target="/none"))
    monkeypatch.setattr(engine._link, "stream", lambda act: act(client))
    monkeypatch.setattr(engine, "image_id", lambda tag: "sha256:1")
    build_variant(engine, VARIANTS[name], f"ghcr.io/you/tfbench:1-{name}", arguments={}, on_line=print)
    assert (asked["platform"], asked["dockerfile"]) == ("linux/amd64", f"containers/{dockerfile}")
    assert (asked["buildargs"]["VARIANT"], asked["buildargs"].get("BASE")) == (name, base)


@pytest.mark.parametrize(
    ("described", "failed"),
    [
        ({}, set()),
        ({"tensorflow": "2.20.0"}, {"TensorFlow"}),
        ({"libraries": {"libcufft.so.11": "cannot open shared object file"}}, {"libcufft.so.11 loads"}),
        ({"user": 0}, {"runs as an unprivileged user"}),
        ({"cuda": "11.8"}, {"TensorFlow was built with this CUDA or an older one of its major version"}),
    ],
)
def test_verify_compares_an_image_with_its_row(described: dict[str, Any], failed: set[str]):
    engine: Any = OneImage(**described)
    findings = verify_image(engine, VARIANTS["cuda12.5"], "image")
    assert {finding.what for finding in findings if not finding.passed} == {"trains two steps on the CPU", *failed}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cuda12.6"], "unknown variant 'cuda12.6'. Did you mean"),
        (
            ["cpu", "--build-arg=PIP_INDEX_URL=https://bench:hunter2@pypi.example.org/simple"],
            "--build-arg PIP_INDEX_URL: a URL in a build argument must not hold credentials",
        ),
    ],
)
def test_what_was_removed_or_would_leak_is_refused_with_what_to_use(tmp_path: Path, arguments: list[str], said: str):
    command = [sys.executable, "-m", "orchestrate", "images", "build", *arguments, f"--engine=unix://{tmp_path}/none"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stderr, "hunter2" in done.stderr) == (2, True, False), done.stderr


def test_pip_config_is_in_the_context_and_not_in_the_arguments(tmp_path: Path):
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://bench:hunter2@pypi.example.org/simple\n")
    with tarfile.open(fileobj=builds.build_context(pip_config=tmp_path / "pip.conf")) as tar:
        packed = tar.extractfile("containers/pip/pip.conf")
        assert packed is not None and b"hunter2" in packed.read()
    with pytest.raises(BuildFailed, match=r"--pip-config .*none\.conf: No such file"):
        builds.build_context(pip_config=tmp_path / "none.conf")


def test_packages_are_sorted_into_equal_layers_with_xlas_compilers_linked(tmp_path: Path):
    dockerfile = (PROJECT / "containers" / "Dockerfile").read_text()
    script = dockerfile.partition("    cd /build/site;")[2].partition("\n\n")[0]
    site, layers = tmp_path / "site", tmp_path / "layers"
    kept = {
        "common": ("numpy/__init__.py", "nvidia_ml_py-1.dist-info/METADATA", "pynvml.py"),
        "tensorflow": ("tensorflow/libtensorflow_cc.so.2", "tensorflow_cpu-2.dist-info/METADATA"),
        "cuda": ("nvidia/cuda_nvcc/bin/ptxas", "nvidia/cufft/lib/libcufft.so.1", "nvidia_nccl_cu12-2.dist-info/RECORD"),
    }
    removed = ("bin/pip", "nvidia/cuda_nvcc/bin/nvcc", "tensorflow/include/a.h", "numpy/tests/test_a.py", "numpy/b.a")
    for name in (*itertools.chain(*kept.values()), *removed):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("x")
    script = f"cd {site};{script.replace('/layers', str(layers))}"
    subprocess.run(["sh", "-e", "-c", script], check=True)
    for layer, names in kept.items():
        files = [path for path in (layers / layer).rglob("*") if path.is_file()]
        assert {str(path.relative_to(layers / layer / "opt/site")) for path in files} == set(names)
    assert (layers / "cuda/usr/local/cuda").readlink() == Path("/opt/site/nvidia/cuda_nvcc")
    assert {path.lstat().st_mtime for path in layers.rglob("*")} == {0.0}
