"""The repository's address stands in one place, `[project.urls]`; no command of the documentation has a placeholder."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("containers/**/*.md"), ROOT / "hosts.example.yml"]
URL = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
OWNER = URL.split("/")[-2]


def test_every_address_of_the_project_is_that_of_pyproject():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"https://github\.com/[\w.-]+/tfbench\b", text)) <= {URL}, page
        assert set(re.findall(r"ghcr\.io/([\w.-]+)/tfbench\b|--owner (\w+)", text)) <= {(OWNER, ""), ("", OWNER)}, page
    assert f"git clone {URL} && cd tfbench" in (ROOT / "README.md").read_text()


def test_no_command_of_the_documentation_has_a_placeholder_for_names_of_ours():
    for page in PAGES:
        assert not re.search(r"\bOWNER\b|ghcr\.io/you\b|REGISTRY/USER", page.read_text(encoding="utf-8")), page
