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


def test_every_way_starts_an_image_with_a_python_that_fits():
    runpod, vast, task = document("runpod-template.json"), document("vast-template.json"), document("dstack-task.yml")
    sky = document("skypilot.yml")["resources"]
    images = [
        runpod["imageName"],
        f"{vast['image']}:{vast['tag']}",
        task["image"],
        sky["image_id"].removeprefix("docker:"),
    ]
    assert len(set(images)) == 1
    major, minor = (int(part) for part in re.findall(r"python:(\d+)\.(\d+)", images[0])[0])
    assert FITTING[0] <= (major, minor) <= FITTING[1]
    disks = [runpod["containerDiskInGb"], vast["recommended_disk_space"], sky["disk_size"]]
    for of_dstack in (task, document("dstack-fleet.yml")):
        disks.append(int(of_dstack["resources"]["disk"].removesuffix("GB..")))
    assert set(disks) == {50}


def test_both_gpus_can_be_rented_every_way():
    wanted = {"RTX A4000", "RTX A5000"}
    pods = [document(f"runpod-pod-{name}.json") for name in ("a4000", "a5000")]
    assert {gpu_key(gpu) for pod in pods for gpu in pod["gpuTypeIds"]} == wanted
    assert set(document("vast-template.json")["extra_filters"]["gpu_name"]["in"]) == wanted
    fleet = document("dstack-fleet.yml")
    assert {gpu_key(gpu) for gpu in fleet["resources"]["gpu"].removesuffix(":1").split(",")} == wanted
    for text in (PAGE, (RENT / "skypilot.yml").read_text()):
        assert "--gpus RTXA5000:1 skypilot.yml" in text
    for text in (PAGE, (RENT / "dstack-task.yml").read_text()):
        assert "--name tfbench-a5000 --gpu A5000:1" in text


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
