"""Pages, examples and their site: each command, address, engine, figure and picture exists, works or is shown."""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import results.__main__ as program
from orchestrate.cli import GROUPS, MODULES, parse
from orchestrate.engines.ssh.software import PYTHON_VERSION
from results.program import run_main
from results.reference.gpus import gpu_key
from results.schema.exit_codes import ExitCode
from studies.pages import measured, pictures
from tests.support import PROJECT, write_program

PAGES = [
    *sorted(PROJECT.glob("*.md")),
    *(page for name in ("docs", "containers") for page in sorted((PROJECT / name).rglob("*.md"))),
    *sorted((PROJECT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")),
]
NAMES = [name for *_, names in GROUPS for name in names]
REMOVED = PROJECT / "CHANGELOG.md"
STANDS_FOR = {"RUN": "runs/one", "FILE": "table.csv", "TOOL": "sky", "FOLDER": "folder", "NAME": "quick", "N": "3"}


def commands(page: Path) -> list[str]:
    """Return the commands of a page: lines of its code blocks, and what it shows inline."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    found = [match[1] for line in lines if (match := re.search(r"(?:^|\| )(tfbench [a-z].*)", line))]
    return [re.split(r"\s#|\s[|>] |\s{3,}", text)[0].replace("\\|", "|").split(" | ")[0] for text in found]


def accepted(command: str) -> bool:
    words = [STANDS_FOR.get(word, word) for word in shlex.split(command)[1:]]
    if words[0] in MODULES or len(words) == 1:
        return words[0] in NAMES  # a command's name; modules have parsers of their own
    try:
        parse(["tfbench", *words])
    except SystemExit as ended:
        return ended.code == 0
    return True


@pytest.mark.parametrize("page", sorted({*PAGES} - {REMOVED}), ids=lambda page: str(page.relative_to(PROJECT)))
def test_each_command_of_a_page_is_accepted(page):
    assert [command for command in commands(page) if not accepted(command)] == []


def test_the_exit_codes_of_the_pages_are_those_of_the_programs():
    numbers = re.findall(r"^\| (\d+) \|", (PROJECT / "docs" / "fleets.md").read_text(encoding="utf-8"), re.M)
    assert [int(number) for number in numbers] == [*ExitCode]


NEEDS_NO_HOST = r"tfbench (?:recommend|gpus|suites|images list)\b.*"
SHOWN = sorted({command for page in PAGES for command in commands(page) if re.match(NEEDS_NO_HOST, command)})


@pytest.mark.parametrize("command", SHOWN)
def test_a_command_that_needs_no_host_runs_as_shown(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)[1:]
    if len(words) > 1 or words[0] == "suites":
        assert run_main(parse(["tfbench", *(STANDS_FOR.get(word, word) for word in words)])) == 0
        assert capsys.readouterr().out


EXAMPLES = PROJECT / "examples"


@pytest.mark.parametrize(
    "command", re.findall(r"^tfbench (.*)$", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
)
def test_a_command_of_the_examples_answers(command, capsys, monkeypatch, tmp_path):
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    assert program.main(["results", *shlex.split(command)]) == 0
    assert "h100" in capsys.readouterr().out or (tmp_path / "report.html").exists()


def test_the_notebook_runs_from_its_first_cell_to_its_last(capsys, monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    names: dict[str, Any] = {}
    for cell in json.loads((EXAMPLES / "analyse.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "analyse.ipynb", "exec"), names)
    assert names["runs"].fleets == ["h100", "h200"] and "h200 is " in capsys.readouterr().out


def test_pages_show_what_commands_print_and_records_say_today():
    """On a difference, `python -m studies.pages.pictures` and `python -m studies.pages.measured` write them anew."""
    page = pictures.README.read_text(encoding="utf-8")
    assert pictures.with_compared(page) == page and "$ tfbench compare h200 h100" in page
    found = measured.ordered(list(measured.rows()))
    assert measured.table(found) == measured.TABLE.read_text(encoding="utf-8")
    assert measured.page(found) == measured.PAGE.read_text(encoding="utf-8")


ADDRESSED = [*PAGES, PROJECT / "hosts.example.yml"]
URL = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
OWNER = URL.split("/")[-2]


def test_every_address_of_the_project_is_that_of_pyproject():
    for page in ADDRESSED:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"https://github\.com/[\w.-]+/tfbench\b", text)) <= {URL}, page
        assert set(re.findall(r"ghcr\.io/([\w.-]+)/tfbench\b|--owner (\w+)", text)) <= {(OWNER, ""), ("", OWNER)}, page
        assert not re.search(r"\bOWNER\b|ghcr\.io/you\b|REGISTRY/USER", text), f"{page}: a placeholder for our name"
    assert f"git clone {URL} && cd tfbench" in (PROJECT / "README.md").read_text()


@pytest.mark.parametrize("name", ["interval.svg", "live.svg", "repeat.svg", "report.png", "run.svg"])
def test_a_picture_is_small_shown_and_needs_no_network(name):
    path = pictures.PICTURES / name
    assert path.stat().st_size <= pictures.MAX_BYTES
    assert any(f"pictures/{name})" in page.read_text(encoding="utf-8") for page in PAGES)
    assert not re.search(rb"(?:href|src)=\"https?:|url\(\"?https?:", path.read_bytes())


def test_the_front_page_is_short():
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 110 and len(text.split()) <= 600


@pytest.mark.slow
def test_the_site_reaches_every_page_command_and_file(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-E", "-d", str(tmp_path / "trees"), "-c", "docs", "."]
    site = tmp_path / "html"
    done = subprocess.run([*command, str(site)], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = [path.relative_to(PROJECT).with_suffix(".html") for path in sorted((PROJECT / "docs").rglob("*.md"))]
    start = (site / "README.html").read_text()
    assert [str(page) for page in pages if f'href="{page}"' not in start or not (site / page).exists()] == []
    broken = []
    for page in [*site.glob("*.html"), *site.glob("docs/**/*.html")]:
        for target in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text()):
            if not re.match(r"[a-z]+:|/", target) and not (page.parent / target).resolve().exists():
                broken.append((page.name, target))
    assert broken == []
    text = (site / "docs" / "commands.html").read_text()
    assert [name for name in NAMES if f"tfbench {name}</h3>" not in re.sub("<a .*?</a>", "", text)] == []
    assert "--max-cost" in text and "--batch_size" in text


def test_versions_are_listed_newest_first_and_the_start_page_leads_there(tmp_path):
    spec = importlib.util.spec_from_file_location("versions", PROJECT / "docs" / "versions.py")
    versions = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(versions)
    with pytest.raises(SystemExit, match="has no site"):
        versions.write_versions(tmp_path)
    for name in ("main", "v0.9.0", "v0.10.0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.html").touch()
    versions.write_versions(tmp_path)
    assert [v["name"] for v in json.loads((tmp_path / "versions.json").read_bytes())] == ["v0.10.0", "v0.9.0", "main"]
    assert "v0.10.0/README.html" in (tmp_path / "index.html").read_text()


# ---- files for renting are well-formed, complete and shipped; docs/rent.md uses them

RENT = PROJECT / "containers" / "rent"
RENTING = (PROJECT / "docs" / "rent.md").read_text(encoding="utf-8")


def document(name: str) -> Any:
    text = (RENT / name).read_text(encoding="utf-8")
    return json.loads(text) if name.endswith(".json") else YAML(typ="safe").load(text)


def test_every_file_is_on_the_page_and_in_the_wheel():
    names = {path.name for path in RENT.iterdir()}
    assert len(names) == 7 and all(f"containers/rent/{name}" in RENTING for name in names)
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
    assert ".".join(python) == PYTHON_VERSION and len(images) == 1
    assert {runpod["containerDiskInGb"], vast["recommended_disk_space"], sky["disk_size"]} == {50}
    assert {task["resources"]["disk"], fleet["disk"]} == {"50GB.."}
    assert {gpu_key(gpu) for pod in pods for gpu in pod["gpuTypeIds"]} == wanted
    assert set(vast["extra_filters"]["gpu_name"]["in"]) == wanted
    assert {gpu_key(gpu) for gpu in fleet["gpu"].removesuffix(":1").split(",")} == wanted
    assert "--gpus RTXA5000:1 skypilot.yml" in RENTING and "--name tfbench-a5000 --gpu A5000:1" in RENTING


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
