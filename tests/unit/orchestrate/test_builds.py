"""`images verify` and `images build` keep the two forms of a variant apart; no engine is needed to see it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrate.images import builds
from orchestrate.images.builds import build_variant, verify_image
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.variants import read_variants
from orchestrate.launchers.container import ContainerSpec
from orchestrate.launchers.docker.sdk import DockerEngine

PROJECT = Path(__file__).parents[3]
VARIANTS = {variant.name: variant for variant in read_variants()}


class OneImage:
    """An engine with one image, which says what it holds and leaves no record."""

    def __init__(self, label: str, empty: list[str], libcuda: str | None = None) -> None:
        self._label = label
        self._told = {"python": "3.11.2", "tensorflow": "2.21.0", "keras": "3.15.1", "cuda": "12.5.1", "user": 10001}
        self._told |= {"libraries": {}, "stand_ins": empty, "libcuda": libcuda}

    def create(self, spec: ContainerSpec) -> None:
        pass

    def start(self, name: str) -> None:
        pass

    def wait(self, name: str, seconds: float) -> None:
        pass

    def remove(self, name: str) -> None:
        pass

    def output(self, name: str, limit: int) -> bytes:
        return json.dumps(self._told).encode()

    def read_file(self, name: str, path: str) -> None:
        return None

    def image_labels(self, image: str) -> dict[str, str]:
        return {"tfbench.slim": self._label}


def test_the_revision_is_the_checkouts_own_and_not_that_of_a_repository_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    installed = tmp_path / "venv" / "site-packages"
    installed.mkdir(parents=True)
    monkeypatch.setattr(builds, "PROJECT", installed)
    assert builds.source_revision() == "unknown"
    git("init", "--quiet")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "--quiet", "--message=one")
    assert builds.source_revision() == "unknown"
    monkeypatch.setattr(builds, "PROJECT", tmp_path)
    assert builds.source_revision() == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("two")
    assert builds.source_revision() == git("rev-parse", "HEAD") + "-changed"


@pytest.mark.parametrize(
    ("name", "dockerfile", "base"),
    [
        ("cpu", "Dockerfile", None),
        ("ngc25.02", "Dockerfile.on-base", "nvcr.io/nvidia/tensorflow:25.02-tf2-py3"),
        ("cuda12.5-compat", "Dockerfile.compat", "ghcr.io/you/tfbench:1-cuda12.5"),
    ],
)
def test_images_are_built_for_x86_on_any_machine_each_from_its_dockerfile(
    name: str, dockerfile: str, base: str | None, monkeypatch: pytest.MonkeyPatch
):
    asked: dict[str, Any] = {}

    class Client:
        def build(self, **settings: Any) -> list[dict[str, Any]]:
            asked.update(settings)
            return []

    engine = DockerEngine(DockerAddress(scheme="unix", target="/none"))
    monkeypatch.setattr(engine, "_by_sdk", lambda act: act(Client()))
    monkeypatch.setattr(engine, "image_id", lambda tag: "sha256:1")
    build_variant(engine, VARIANTS[name], f"ghcr.io/you/tfbench:1-{name}", arguments={}, on_line=print)
    assert (asked["platform"], asked["dockerfile"]) == ("linux/amd64", f"containers/{dockerfile}")
    assert (asked["buildargs"]["VARIANT"], asked["buildargs"].get("BASE")) == (name, base)


@pytest.mark.parametrize(
    ("name", "label", "empty", "failed"),
    [
        ("cuda12.5", "full", [], set()),
        ("cuda12.5-slim", "slim", ["libcufft.so.11"], set()),
        (
            "cuda12.5",
            "slim",
            ["libcufft.so.11"],
            {"its label names this form", "libraries are empty in the slim form only"},
        ),
        ("cuda12.5-slim", "full", [], {"its label names this form", "libraries are empty in the slim form only"}),
        ("cuda12.5", "full", ["libcufft.so.11"], {"libraries are empty in the slim form only"}),
    ],
)
def test_verify_holds_label_and_libraries_against_the_form_that_the_name_says(
    name: str, label: str, empty: list[str], failed: set[str]
):
    engine: Any = OneImage(label, empty)
    findings = verify_image(engine, VARIANTS[name], "image")
    assert {finding.what for finding in findings if not finding.passed} == {"trains two steps on the CPU", *failed}


@pytest.mark.parametrize(
    ("name", "libcuda", "passed"),
    [
        ("cuda12.5", None, True),
        ("cuda12.5", "570.172.08", False),
        ("cuda12.5-compat", "570.172.08", True),
        ("cuda12.5-compat", None, False),
    ],
)
def test_verify_finds_a_compatibility_package_where_the_name_says_so_and_nowhere_else(
    name: str, libcuda: str | None, passed: bool
):
    engine: Any = OneImage("full", [], libcuda)
    (finding,) = [found for found in verify_image(engine, VARIANTS[name], "image") if "compatibility" in found.what]
    assert finding.passed is passed
    assert finding.seen.startswith(libcuda or "none")


def images(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orchestrate", "images", *arguments],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_build_argument_cannot_make_an_image_that_its_name_denies(tmp_path: Path):
    done = images("build", "cuda12.5", "--build-arg=SLIM=slim", f"--engine=unix://{tmp_path}/none.sock")
    assert done.returncode == 2
    assert "The name says the form: cuda12.5 is full, cuda12.5-slim is slim" in done.stderr


def test_the_list_names_both_forms_and_on_what_they_were_seen():
    lines = images("list").stdout.splitlines()
    for name in ("cuda11.8", "cuda11.8-slim", "cpu-slim", "cuda12.5-compat"):
        assert any(line.startswith(f" {name} ") for line in lines), name
    (named,) = [line for line in lines if line.startswith(" cuda12.5-slim ")]
    seen = VARIANTS["cuda12.5-slim"].seen[VARIANTS["cuda12.5-slim"].form]
    assert re.split(r"\s{2,}", named.strip())[-2:] == [seen.gpu or "not yet", seen.cpu]
