"""What `images build`, `verify` and `list` do; no engine is needed to see it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import types
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from orchestrate import cli, images, session
from orchestrate.engines.docker.engine import DockerEngine
from orchestrate.errors import UserError
from orchestrate.images import build_variant, verify_image
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.inventory.variants import read_variants
from orchestrate.options import Images
from orchestrate.planning.facts import Facts
from orchestrate.planning.images import wanted_images
from results.schema import GPU
from results.schema.exit_codes import ExitCode
from tests.support import PROJECT

NOTHING_MORE = Images(build_arg=[], ca=[])
VARIANTS = read_variants()


def test_each_variant_that_hosts_pull_is_built_and_pushed_once(tmp_path: Path, monkeypatch, capsys):
    drivers = {"one": "580.95.05", "two": "580.95.05", "old": "520.61.05"}

    def probe(hosts: list[Host]) -> dict[HostPlace, Facts | str]:
        gpus = (GPU(index=0, name="GPU", compute_capability="8.6"),)
        found: dict[HostPlace, Facts | str] = {host.place: "no answer" for host in hosts}
        for host in hosts:
            if host.name in drivers:
                facts = Facts(driver=drivers[host.name], gpus=gpus)
                images = wanted_images(host, facts)
                found[host.place] = dataclasses.replace(facts, images=tuple(images))
        return found

    engine = mock.MagicMock()
    engine.image_id.side_effect = lambda name: "sha256:there" if name.endswith("-cpu") else None
    engine.image_bytes.return_value = 1
    engine.build.return_value, engine.push.return_value = "sha256:built", f"sha256:{'0' * 64}"
    monkeypatch.setattr(images, "DockerEngine", lambda _: engine)
    monkeypatch.setattr(session, "probe", probe)
    names = {name: {"docker": f"ssh://{name}"} for name in (*drivers, "gone")}
    fleets = {"gpus": {"registry": "example.org/a", "hosts": names}}
    (tmp_path / "hosts.yml").write_text(json.dumps({"version": 1, "fleets": fleets}))
    parsed = cli.parse(["tfbench", "images", "push", f"--hosts={tmp_path / 'hosts.yml'}"])
    assert parsed.command(parsed) == ExitCode.SOME_FAILED
    pushed = [call.args[0].rpartition("-")[2] for call in engine.push.call_args_list]
    assert pushed == ["cpu", "cuda12.9", "cuda11.8"] and engine.build.call_count == 2
    assert "gpus.gone: not queried, so its image may be missing: no answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "dockerfile", "base"),
    [("cpu", "Dockerfile", None), ("ngc25.02", "Dockerfile.on-base", "nvcr.io/nvidia/tensorflow:25.02-tf2-py3")],
)
def test_images_are_built_for_x86_on_any_machine_each_from_its_dockerfile(name, dockerfile, base, monkeypatch):
    asked: dict[str, Any] = {}
    client = types.SimpleNamespace(build=lambda **settings: asked.update(settings) or [])
    engine = DockerEngine(DockerAddress(scheme="unix", target="/none"))
    monkeypatch.setattr(engine, "_connect", lambda: client)
    monkeypatch.setattr(engine, "image_id", lambda tag: "sha256:1")
    monkeypatch.setattr(engine, "image_bytes", lambda tag: 1)
    build_variant(engine, VARIANTS[name], f"ghcr.io/you/tfbench:1-{name}", NOTHING_MORE)
    assert (asked["platform"], asked["dockerfile"]) == ("linux/amd64", f"containers/{dockerfile}")
    assert (asked["buildargs"]["VARIANT"], asked["buildargs"].get("BASE")) == (name, base)


@pytest.mark.parametrize(
    ("described", "failed"),
    [
        ({}, None),
        ({"tensorflow": "2.20.0"}, "TensorFlow"),
        ({"libraries": {"libcufft.so.11": "cannot open shared object file"}}, "libcufft.so.11 loads"),
        ({"user": 0}, "runs as an unprivileged user"),
        ({"cuda": "11.8"}, "TensorFlow was built with this CUDA or an older one of its major version"),
    ],
)
def test_verify_compares_an_image_with_its_row(described: dict[str, Any], failed: str | None):
    shown = {"python": "3.11.2", "tensorflow": "2.21.0", "keras": "3.15.1", "cuda": "12.5.1", "user": 10001}
    engine: Any = mock.MagicMock()  # of one image, which describes itself and leaves no record
    engine.run.return_value = json.dumps({**shown, "libraries": {}, **described}).encode()
    findings = verify_image(engine, VARIANTS["cuda12.5"], "image")
    assert {finding.what for finding in findings if not finding.passed} - {failed} == {"trains two steps on the CPU"}
    assert failed is None or failed in {finding.what for finding in findings if not finding.passed}


PASSWORD = "https://bench:hunter2@pypi.example.org/simple"
PUSHES = "version: 1\nfleets: {gpus: {registry: example.org/a, hosts: {one: {docker: ssh://one}}}}\n"


@pytest.mark.parametrize(
    ("arguments", "hosts", "said"),
    [
        (["build", "cpu", f"--build-arg=PIP_INDEX_URL={PASSWORD}"], PUSHES, "must not hold credentials"),
        (["push", "cuda12.5", "--hosts=hosts.yml"], PUSHES, "--hosts chooses the variants"),
        (["push", "--hosts=hosts.yml"], PUSHES.replace("registry: example.org/a", "image_source: transfer"), "no host"),
    ],
)
def test_what_would_leak_or_has_no_meaning_is_refused(tmp_path: Path, monkeypatch, arguments, hosts, said):
    monkeypatch.chdir(tmp_path)
    Path("hosts.yml").write_text(hosts)
    parsed = cli.parse(["tfbench", "images", *arguments, f"--engine=unix://{tmp_path}/none"])
    with pytest.raises(UserError, match=said) as refused:
        parsed.command(parsed)
    assert "hunter2" not in str(refused.value)


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
