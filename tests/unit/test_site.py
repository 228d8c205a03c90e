"""The documentation site builds strictly, holds every page and every command, and lists its versions."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrate.cli import ORDER

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-E", "-d", str(folder / "trees"), "-c", "docs", "."]
    done = subprocess.run([*command, str(folder / "html")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.mark.slow
def test_every_page_is_built_and_reached_from_the_start_page(site):
    pages = [path.relative_to(ROOT).with_suffix(".html") for path in sorted((ROOT / "docs").rglob("*.md"))]
    start = (site / "README.html").read_text()
    assert [str(page) for page in pages if f'href="{page}"' not in start or not (site / page).exists()] == []


@pytest.mark.slow
def test_links_of_the_site_lead_to_files_of_the_site(site):
    broken = []
    for page in [*site.glob("*.html"), *site.glob("docs/**/*.html")]:
        for target in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text()):
            if not re.match(r"[a-z]+:|/", target) and not (page.parent / target).resolve().exists():
                broken.append((page.name, target))
    assert broken == []


@pytest.mark.slow
def test_the_command_reference_holds_every_command(site):
    text = (site / "docs" / "commands.html").read_text()
    assert [name for name in ORDER if f"tfbench {name}</h3>" not in re.sub("<a .*?</a>", "", text)] == []
    assert "--max-cost" in text and "--batch_size" in text


def versions_module():
    spec = importlib.util.spec_from_file_location("versions", ROOT / "docs" / "versions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_versions_are_listed_newest_first_and_the_start_page_leads_there(tmp_path):
    for name in ("main", "v0.9.0", "v0.10.0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.html").touch()
    versions_module().write_versions(tmp_path)
    assert [row["name"] for row in json.loads((tmp_path / "versions.json").read_text())] == [
        "v0.10.0",
        "v0.9.0",
        "main",
    ]
    assert "v0.10.0/README.html" in (tmp_path / "index.html").read_text()


def test_a_folder_without_a_site_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="has no site"):
        versions_module().write_versions(tmp_path)
