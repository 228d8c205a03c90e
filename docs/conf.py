"""The documentation site: Sphinx builds it from the same Markdown files that GitHub shows (`make site`).

The source directory is the repository, so relative links work on both. The start page is README.md; its table of
contents and the command reference are added here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT))

from orchestrate.cli import GROUPS, MODULES, described  # noqa: E402
from results.program import PROGRAM, command_parser, exit_code_text  # noqa: E402
from results.schema.version import __version__  # noqa: E402
from results.table.columns import COLUMNS  # noqa: E402

REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]

NAVIGATION = {
    "Use": ["start", "rent", "fleets", "hosts", "clusters", "measuring", "images", "troubleshooting", "support"],
    "Results": ["measured", "reading-results", "choosing", "answers", "publishing"],
    "Reference": ["commands", "table", "python", "method", "validation", "glossary"],
}
TABLE = """# The merged table

Columns of `results.csv` and of `tfbench export`, in this order: one row per fleet, host, GPU, case and software.

* An empty cell is unknown or does not apply (`null` in JSON). A failed repeat is counted and explained, never a 0.
* `samples_per_second` is the mean over the repeats of this host, `ci95_low` and `ci95_high` its t-interval. Where a row
  merges several runs, both include what runs differ beyond their repeats. The spread between hosts is in `compare`.
* In CSV, text that a spreadsheet would run as a formula is prefixed with an apostrophe.
"""
PROJECT = ["ARCHITECTURE", "CONTRIBUTING", "CHANGELOG"]

project = PROGRAM
version = release = __version__
author = copyright = "The tfbench maintainers"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["README.md", *(f"{name}.md" for name in PROJECT), "docs/**.md"]
exclude_patterns = [".*", "build", "runs"]
myst_heading_anchors = 3
myst_links_external_new_tab = False
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "pydata_sphinx_theme"
html_title = PROGRAM
html_show_sourcelink = False
html_sidebars = {"**": ["globaltoc.html"]}
smartquotes = False
html_static_path = ["site"]
html_css_files = ["site.css"]
html_context = {"default_mode": "auto"}
html_theme_options = {
    "icon_links": [{"name": "Source", "url": REPOSITORY, "icon": "fa-brands fa-github"}],
    "navbar_center": [],
    "navbar_end": ["version-switcher", "theme-switcher", "navbar-icon-links"],
    # versions.json lies next to the folders of the versions; .github/workflows/site.yml writes it.
    "switcher": {
        "json_url": os.environ.get("SITE_VERSIONS", "../versions.json"),
        "version_match": os.environ.get("FOLDER", version).removeprefix("v"),
    },
    "check_switcher": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}


def command_reference() -> str:
    """Return docs/commands.md: every command with its options, as `--help` prints them."""
    commands = described()
    lines = ["# Command reference", "", f"Of version {version}, from the program itself.", "", exit_code_text(), ""]
    os.environ["COLUMNS"] = "80"
    for title, example, names in GROUPS:
        lines += [f"## {title}", "", f"For example: `{PROGRAM} {example}`", ""]
        for name in names:
            text = help_of_module(name) if name in MODULES else command_parser(commands[name], PROGRAM).format_help()
            lines += [f"### {PROGRAM} {name}", "", "```text", text.strip(), "```", ""]
    return "\n".join(lines)


def data_dictionary() -> str:
    """Return docs/table.md: every column of the merged table."""
    rows = [f"| `{name}` | {column.unit} | {column.meaning} |" for name, column in COLUMNS.items()]
    return "\n".join([TABLE, "| column | unit | meaning |", "|---|---|---|", *rows, ""])


def help_of_module(command: str) -> str:
    """Return the help of a command that is a program of its own."""
    environment = {**os.environ, "TFBENCH_PROGRAM": f"{PROGRAM} {command}"}
    line = [sys.executable, "-m", MODULES[command][0], "--help"]
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True).stdout


def contents() -> str:
    """Return the site's navigation, for the end of the start page."""
    parts = {caption: [f"docs/{name}" for name in names] for caption, names in NAVIGATION.items()}
    parts["Project"] = PROJECT
    return "".join(
        "\n".join(["", "```{toctree}", ":hidden:", ":glob:", f":caption: {caption}", "", *pages, "```", ""])
        for caption, pages in parts.items()
    )


def for_the_site(_: Sphinx, page: str, source: list[str]) -> None:
    """Point links at files and folders that are not pages to the repository; add the navigation to the start page."""
    folder = (ROOT / page).parent

    def link(found: re.Match[str]) -> str:
        path = (folder / found[1]).resolve()
        is_on_site = path.suffix in (".md", ".svg", ".png") and path.parent in (ROOT, DOCS, DOCS / "pictures")
        if is_on_site or not path.exists():
            return found[0]  # MyST warns of a page that does not exist, and -W makes that an error
        return f"]({REPOSITORY}/blob/main/{path.relative_to(ROOT)})"

    source[0] = re.sub(r"\]\((?!https?:|#|mailto:)([^)#\s]+)\)", link, source[0])
    if page == root_doc:
        source[0] += contents()


def setup(app: Sphinx) -> None:
    """Write the generated pages before pages are searched for, and prepare each page."""
    (ROOT / "docs" / "commands.md").write_text(command_reference(), encoding="utf-8")
    (ROOT / "docs" / "table.md").write_text(data_dictionary(), encoding="utf-8")
    app.connect("source-read", for_the_site)
