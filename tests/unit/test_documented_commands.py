"""Every `tfbench` command that a page shows is one that the program accepts; addresses are those of `[project.urls]`."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from orchestrate.cli import MODULES, ORDER, parse
from results.program import run_main

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "containers").rglob("*.md")),
]
REMOVED = ROOT / "CHANGELOG.md"
STANDS_FOR = {"RUN": "runs/one", "FILE": "table.csv", "TOOL": "sky", "FOLDER": "folder", "NAME": "quick", "N": "3"}


def commands(page: Path) -> list[str]:
    """Return the commands of a page: lines of its code blocks, and what it shows inline."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    found = [re.search(r"(?:^|\| )(tfbench [a-z].*)", line) for line in lines]
    return [
        re.split(r"\s#|\s[|>] |\s{3,}", command[1])[0].replace("\\|", "|").split(" | ")[0]
        for command in found
        if command
    ]


def accepted(command: str) -> bool:
    words = [STANDS_FOR.get(word, word) for word in shlex.split(command)[1:]]
    if words[0] in MODULES or len(words) == 1:
        return words[0] in ORDER  # a command's name; modules have parsers of their own
    try:
        parse(["tfbench", *words])
    except SystemExit as ended:
        return ended.code == 0
    return True


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != REMOVED], ids=lambda page: str(page.relative_to(ROOT))
)
def test_each_command_of_a_page_is_accepted(page):
    refused = [command for command in commands(page) if not accepted(command)]
    assert refused == []


def test_commands_are_found_and_a_wrong_one_is_refused():
    assert sum(len(commands(page)) for page in PAGES) > 60
    assert not accepted("tfbench run --set-aside-after 3")


@pytest.mark.parametrize(
    "command",
    sorted(
        {
            command
            for page in PAGES
            for command in commands(page)
            if re.match(r"tfbench (recommend|gpus|suites|images list) ?", command)
        }
    ),
)
def test_a_command_that_needs_no_host_runs_as_shown(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)[1:]
    if len(words) > 1 or words[0] == "suites":
        assert run_main(parse(["tfbench", *(STANDS_FOR.get(word, word) for word in words)])) == 0
        assert capsys.readouterr().out


ADDRESSED = [*PAGES, ROOT / "hosts.example.yml"]
URL = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
OWNER = URL.split("/")[-2]


def test_every_address_of_the_project_is_that_of_pyproject():
    for page in ADDRESSED:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"https://github\.com/[\w.-]+/tfbench\b", text)) <= {URL}, page
        assert set(re.findall(r"ghcr\.io/([\w.-]+)/tfbench\b|--owner (\w+)", text)) <= {(OWNER, ""), ("", OWNER)}, page
    assert f"git clone {URL} && cd tfbench" in (ROOT / "README.md").read_text()


def test_no_documented_command_has_a_placeholder_for_names_of_ours():
    for page in ADDRESSED:
        assert not re.search(r"\bOWNER\b|ghcr\.io/you\b|REGISTRY/USER", page.read_text(encoding="utf-8")), page
