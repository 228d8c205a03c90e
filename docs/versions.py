"""Write the list of versions, and the start page that leads to the newest: `python docs/versions.py FOLDER`.

FOLDER holds a folder for each version, as .github/workflows/site.yml collects them: `main`, `v0.1.0`, …
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path


def write_versions(folder: Path) -> None:
    """Write `versions.json` for the theme's version switcher, newest first, and `index.html`.

    Args:
        folder: Holds the sites; those of releases are named `vMAJOR.MINOR.PATCH`.
    """
    names = [path.name for path in folder.iterdir() if (path / "README.html").is_file()]
    releases = sorted((name for name in names if re.fullmatch(r"v\d+\.\d+\.\d+", name)), key=_numbers, reverse=True)
    listed = [*releases, *sorted(set(names) - set(releases))]
    if not listed:
        sys.exit(f"{folder} has no site: a folder with a README.html")
    versions = [{"version": name.removeprefix("v"), "name": name, "url": f"../{name}/README.html"} for name in listed]
    (folder / "versions.json").write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")
    start = f"{listed[0]}/README.html"
    page = f'<!doctype html><meta http-equiv="refresh" content="0; url={start}"><a href="{start}">tfbench</a>\n'
    (folder / "index.html").write_text(page, encoding="utf-8")


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


if __name__ == "__main__":
    write_versions(Path(sys.argv[1]))
