"""Files for renting are well-formed, complete and shipped; docs/rent.md uses them, and commands that exist."""

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from orchestrate.engines.ssh.software import FITTING
from results.reference.gpus import gpu_key
from tests.support import PROJECT, write_program

RENT = PROJECT / "containers" / "rent"
PAGE = (PROJECT / "docs" / "rent.md").read_text(encoding="utf-8")


def document(name: str) -> Any:
    text = (RENT / name).read_text(encoding="utf-8")
    return json.loads(text) if name.endswith(".json") else YAML(typ="safe").load(text)


def test_every_file_is_on_the_page_and_in_the_wheel():
    names = {path.name for path in RENT.iterdir()}
    assert len(names) == 7 and all(f"containers/rent/{name}" in PAGE for name in names)
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    data = project["tool"]["setuptools"]["package-data"]["orchestrate.containers"]
    assert "rent/*" in data


def test_every_way_rents_both_gpus_with_an_image_whose_python_fits():
    wanted = {"RTX A4000", "RTX A5000"}
    pods = [document(f"runpod-pod-{name}.json") for name in ("a4000", "a5000")]
    runpod, vast, task = document("runpod-template.json"), document("vast-template.json"), document("dstack-task.yml")
    sky, fleet = document("skypilot.yml")["resources"], document("dstack-fleet.yml")["resources"]
    vast_image = f"{vast['image']}:{vast['tag']}"
    images = {runpod["imageName"], vast_image, task["image"], sky["image_id"].removeprefix("docker:")}
    (python,) = re.findall(r"python:(\d+)\.(\d+)", " ".join(images))
    assert FITTING[0] <= tuple(map(int, python)) <= FITTING[1] and len(images) == 1
    assert {runpod["containerDiskInGb"], vast["recommended_disk_space"], sky["disk_size"]} == {50}
    assert {task["resources"]["disk"], fleet["disk"]} == {"50GB.."}
    assert {gpu_key(gpu) for pod in pods for gpu in pod["gpuTypeIds"]} == wanted
    assert set(vast["extra_filters"]["gpu_name"]["in"]) == wanted
    assert {gpu_key(gpu) for gpu in fleet["gpu"].removesuffix(":1").split(",")} == wanted
    assert "--gpus RTXA5000:1 skypilot.yml" in PAGE and "--name tfbench-a5000 --gpu A5000:1" in PAGE


def test_the_start_command_installs_an_sshd_that_accepts_the_accounts_key(tmp_path: Path):
    """Run for real but for its programs, which note how they are called."""
    template = document("runpod-template.json")
    assert template["dockerEntrypoint"] == ["bash", "-c"], "an image's own would get the script as its flags"
    (script,) = template["dockerStartCmd"]
    programs = tmp_path / "bin"
    for name in ("apt-get", "sshd"):
        write_program(programs / name, f'#!/bin/sh\necho "{name} $*" >> "$HOME/calls"\n')
    assert script.count("/usr/sbin/sshd") == 1 and script.count("/run/sshd") == 1
    script = script.replace("/usr/sbin/sshd", "sshd").replace("/run/sshd", f"{tmp_path}/run")
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path)}
    for keys in ({"PUBLIC_KEY": "ssh-ed25519 AAAA me"}, {"SSH_PUBLIC_KEY": "ssh-rsa BBBB me"}):
        subprocess.run(["bash", "-c", script], env={**environment, **keys}, check=True, capture_output=True)
    assert (tmp_path / ".ssh/authorized_keys").read_text() == "ssh-ed25519 AAAA me\nssh-rsa BBBB me\n"
    assert (tmp_path / ".ssh").stat().st_mode & 0o777 == 0o700
    calls = (tmp_path / "calls").read_text().splitlines()[:3]
    assert calls == ["apt-get update", "apt-get install --yes --no-install-recommends openssh-server", "sshd -D -e"]
