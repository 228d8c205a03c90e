"""What GitHub reads: workflows, issue forms, the citation, and the notes of a release.

Every `run:` of a workflow is executed here, with fakes for the programs that change something outside.
"""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ruamel.yaml import YAML

import orchestrate.cli as orchestrate_program
from orchestrate.inventory import hosts as inventory
from orchestrate.inventory.variants import read_variants
from results.schema.version import __version__
from tests.support import PROJECT, write_program
from tests.support.patience import patience

GITHUB = PROJECT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))

DIGEST = "sha256:" + "5" * 64

RECORDER = """#!/bin/bash
printf '%s\\n' "$(basename "$0") $(printf '%q ' "$@")" >> "$CALLS"
case "$(basename "$0") $*" in
    "docker create "*) echo container-1 ;;
    "docker image inspect "*) echo "python@{digest}" ;;
    "git worktree add "*) mkdir pages ;;
esac
""".replace("{digest}", DIGEST)
"""Stands in for a program: writes down how it was called, and answers as far as a step needs it."""

RECORDED = ("python", "docker", "gh", "apt-get", "git", "bash", "make", "cp", "zstd", "python3", "uv")
VALUES = {
    "GITHUB_WORKSPACE": "/workspace",
    "GITHUB_REPOSITORY_OWNER": "Some-One",
    "GITHUB_ACTOR": "some-one",
    "GH_TOKEN": "secret",
    "GITHUB_REF_NAME": f"v{__version__}",
    "REGISTRY": "ghcr.io/some-one",
    "VARIANT": "cpu",
    "BASE_IMAGE": "python:3",
    "BASE": f"python@{DIGEST}",
    "FOLDER": "main",
    "TARGET": "test-all",
    "PYTHON_VERSION": "3.13",
}


def load(path: Path) -> Any:
    return YAML(typ="safe").load(path)


def steps() -> Iterator[SimpleNamespace]:
    """Yield the steps that run a script."""
    for path in WORKFLOWS:
        for job, described in load(path)["jobs"].items():
            for step in described.get("steps", ()):
                if "run" in step:
                    yield SimpleNamespace(workflow=path.stem, job=job, name=step["name"], script=step["run"])


def execute(script: str, folder: Path) -> SimpleNamespace:
    """Run a step; return its exit code, the calls of recorded programs, and what it handed on."""
    programs = folder / "programs"
    (folder / "orchestrate" / "inventory").mkdir(parents=True)
    for name in RECORDED:
        write_program(programs / name, RECORDER)
    write_program(programs / "tfbench", f'#!/bin/bash\nexec "{sys.executable}" -m orchestrate.cli "$@"\n')
    files = {name: str(folder / name.lower()) for name in ("GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_PATH", "CALLS")}
    done = subprocess.run(
        ["/bin/bash", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, **VALUES, **files, "PYTHONPATH": str(PROJECT), "RUNNER_TEMP": str(folder)}
        | {"PATH": f"{programs}:{os.environ['PATH']}", "TFBENCH_RUNS_DIR": str(folder / "runs")},
        capture_output=True,
        text=True,
        timeout=patience(120),
        check=False,
    )
    texts = {name: Path(path).read_text() if Path(path).exists() else "" for name, path in files.items()}
    calls, handed_on = map(shlex.split, texts["CALLS"].splitlines()), texts["GITHUB_ENV"] + texts["GITHUB_OUTPUT"]
    return SimpleNamespace(code=done.returncode, errors=done.stderr, calls=list(calls), handed_on=handed_on)


WRITING = {
    (path.stem, name)
    for path in WORKFLOWS
    for name, job in load(path)["jobs"].items()
    if "write" in job.get("permissions", {}).values()
}
assert {("site", "publish"), ("release", "push")} < WRITING


@pytest.mark.parametrize("step", list(steps()), ids=lambda step: f"{step.workflow}-{step.job}-{step.name}")
@pytest.mark.slow
def test_every_run_line_works_is_locked_and_names_what_is_there(step, tmp_path: Path):
    """And jobs that may write execute nothing of others."""
    ran = execute(step.script, tmp_path)
    assert ran.code == 0, ran.errors
    assert ran.calls or ran.handed_on or "tfbench" in step.script, "the step did something"
    for call in ran.calls:
        words = [*call, ""]
        called, first, others = words[0], words[1], words[2:]
        if called == "make":
            assert re.search(rf"^{first}:", (PROJECT / "Makefile").read_text(), re.MULTILINE), call
        elif called == "bash" or (called == "python" and first not in ("-m", "-c")):
            assert (PROJECT / first).is_file(), call
        elif called == "python" and others[0] == "orchestrate":
            orchestrate_program.parse(call[2:])
        if (step.workflow, step.job) in WRITING and call != ["python", "docs/versions.py", "pages"]:
            assert called in ("git", "gh", "docker", "cp", "zstd") and first not in ("run", "build"), call
        if call[2:4] == ["pip", "install"] and "--require-hashes" not in call and call[-1] != ".":
            assert call[-2:] == ["tf-nightly-cpu", "keras-nightly"], "only tomorrow's TensorFlow is new"


@pytest.mark.slow
def test_the_push_step_passes_on_what_attestations_need(tmp_path: Path):
    (push,) = [step for step in steps() if step.name == "Push"]
    ran = execute(push.script, tmp_path / "push")
    assert ran.handed_on.splitlines() == ["name=ghcr.io/some-one/tfbench", f"digest={DIGEST}"]
    assert ["docker", "push", "--quiet", f"ghcr.io/some-one/tfbench:{__version__}-cpu"] in ran.calls
    assert "secret" not in str(ran.calls), "every process of a machine sees a command line"
    (saved,) = (step for step in steps() if step.name == "Save")
    assert ["docker", "save", f"ghcr.io/some-one/tfbench:{__version__}-cpu"] in execute(saved.script, tmp_path).calls
    assert ["docker", "cp", "container-1:/opt/sbom.cdx.json", "sbom.cdx.json"] in ran.calls
    assert "/opt/sbom.cdx.json" in (PROJECT / "containers" / "Dockerfile").read_text()
    (name,) = [step for step in steps() if step.name.startswith("Name the registry")]
    assert execute(name.script, tmp_path / "name").handed_on == "REGISTRY=ghcr.io/some-one\n", "lower case"


@pytest.mark.slow
def test_a_released_package_pulls_the_images_of_its_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "hosts.yml"
    sources = ("", ", image_source: pull", ", image_source: local", ", image: mine:1", ", registry: example.org/own")
    hosts = (f"    h{n}: {{docker: ssh://h{n}{text}}}" for n, text in enumerate(sources))
    file.write_text("\n".join(["version: 1", "fleets:", "  a:", "   hosts:", *hosts]))
    assert not inventory.RELEASED_IMAGES.exists(), "a checkout has no release"
    assert [host.registry for host in inventory.read_hosts(file)] == [None, None, None, None, "example.org/own"]
    (step,) = (step for step in steps() if step.job == "package" and "registry.txt" in step.script)
    assert execute(step.script, tmp_path).code == 0
    written = tmp_path / inventory.RELEASED_IMAGES.relative_to(PROJECT)
    monkeypatch.setattr(inventory, "RELEASED_IMAGES", written)
    found = inventory.read_hosts(file)
    ours = "ghcr.io/some-one"
    assert [host.registry for host in found] == [ours, ours, None, None, "example.org/own"]
    assert [host.pulls for host in found] == [True, True, False, True, True]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_jobs_have_a_time_limit_and_no_more_rights_than_they_use(path: Path):
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job.get("timeout-minutes", 0) <= 120 and ("timeout-minutes" in job or job["uses"].startswith("./"))
        for step in job.get("steps", ()):
            if "uses" in step:
                assert re.fullmatch(r"(actions|pypa)/[a-z-]+@[0-9a-f]{40}", step["uses"]), "a tag can be moved"
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, "later steps could read the token"
        image = job.get("container", {}).get("image", f"@{DIGEST}")
        assert re.search(r"@sha256:[0-9a-f]{64}$", image), "a tag can be moved"


@pytest.mark.slow
def test_a_release_builds_every_variant_on_one_base_and_waits_for_all(tmp_path: Path):
    jobs = load(GITHUB / "workflows" / "release.yml")["jobs"]
    released = sorted(variant.name for variant in read_variants().values() if variant.base is None)
    for job in ("image", "push"):
        assert sorted(jobs[job]["strategy"]["matrix"]["variant"]) == released
    assert set(jobs["release"]["needs"]) == {"package", "push", "pypi"}
    assert jobs["package"]["needs"] == "checks" and jobs["checks"]["uses"] == "./.github/workflows/checks.yml"
    assert (jobs["base"]["needs"], jobs["image"]["needs"]) == ("package", "base"), "no image of what is no version"
    assert jobs["push"]["needs"] == "image", "nothing is pushed before every image is verified"
    assert "strategy" not in jobs["base"], "six jobs that resolve a tag may see two images"
    dockerfile = (PROJECT / "containers" / "Dockerfile").read_text()
    assert f"ARG BASE={jobs['base']['env']['BASE_IMAGE']}\n" in dockerfile
    (step,) = (step for step in steps() if step.job == "base")
    assert execute(step.script, tmp_path / "base").handed_on == f"image=python@{DIGEST}\n"
    assert jobs["base"]["outputs"]["image"] == "${{ steps.base.outputs.image }}"
    assert jobs["image"]["env"]["BASE"] == "${{ needs.base.outputs.image }}"
    (step,) = (step for step in steps() if step.job == "image" and "images build" in step.script)
    (build,) = (call for call in execute(step.script, tmp_path / "image").calls if "build" in call)
    assert f"--build-arg=BASE=python@{DIGEST}" in build


@pytest.mark.skipif(
    importlib.util.find_spec("check_jsonschema") is None and not os.environ.get("CI"),
    reason="check-jsonschema is not installed: requirements/dev.txt is newer than this environment",
)
@pytest.mark.slow
def test_files_for_github_follow_their_schemas():
    for schema, files in {
        "github-workflows": WORKFLOWS,
        "github-issue-forms": [p for p in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if p.stem != "config"],
        "github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
        "dependabot": [GITHUB / "dependabot.yml"],
        "citation-file-format": [PROJECT / "CITATION.cff"],
    }.items():
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
        subprocess.run([*command, *map(str, files)], check=True)


NOTES = importlib.util.spec_from_file_location("release_notes", GITHUB / "release_notes.py")
assert NOTES and NOTES.loader
release_notes = importlib.util.module_from_spec(NOTES)
NOTES.loader.exec_module(release_notes)

VERSION_SOURCE = '__version__ = "1.2.0"\n'
CHANGELOG = (
    "# Changelog\n\n## 1.10.0 (2027-02-01)\n\nLater.\n\n## 1.2.0 (2027-01-31)\n\n* A thing.\n\n## 1.1.0\n\nOld.\n"
)


@pytest.mark.parametrize(
    ("tag", "changelog", "message"),
    [
        ("v1.1.0", CHANGELOG, "the version is 1.2.0. Received the tag v1.1.0"),
        ("v1.2.0", CHANGELOG.replace("1.2.0 (2027-01-31)", "1.2.0 (unreleased)"), "must name the release's date"),
        ("v1.2.0", CHANGELOG.replace("* A thing.\n", ""), "is empty"),
        ("v1.2.0", CHANGELOG.replace("## 1.2.0", "## 1.3.0"), "no section '## 1.2.0'"),
    ],
)
def test_notes_are_the_section_of_a_release_that_is_ready(tag: str, changelog: str, message: str):
    assert release_notes.release_notes("v1.2.0", VERSION_SOURCE, CHANGELOG) == "* A thing.\n"
    with pytest.raises(release_notes.NotReady, match=re.escape(message)):
        release_notes.release_notes(tag, VERSION_SOURCE, changelog)


def test_the_script_and_the_citation_name_this_version():
    command = [sys.executable, str(GITHUB / "release_notes.py"), "v0.0.0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and f"the version is {__version__}. Received the tag v0.0.0" in done.stderr
    assert str(load(PROJECT / "CITATION.cff")["version"]) == __version__
