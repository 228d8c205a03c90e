"""Print a version's section of CHANGELOG.md: `python .github/release_notes.py v0.1.0`.

Standard library only: the release job runs it before anything is installed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION_FILE = ROOT / "results" / "schema" / "version.py"
CHANGELOG = ROOT / "CHANGELOG.md"


class NotReady(Exception):
    """The tag, the version and the changelog do not agree."""


def release_notes(tag: str, version_source: str, changelog: str) -> str:
    """Return the section of a release.

    Args:
        tag: `v` and the version.
        version_source: Text of `results/schema/version.py`.
        changelog: Text with a heading `## VERSION` or `## VERSION (DATE)` for each release.

    Raises:
        NotReady: The tag names another version, or the changelog has no finished section of it.
    """
    match = re.search(r'^__version__ = "(.+)"$', version_source, re.MULTILINE)
    version = match[1] if match else "unknown"
    if tag != f"v{version}":
        raise NotReady(f"results/schema/version.py: the version is {version}. Received the tag {tag}")
    for section in re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        if heading.split()[0] != version:
            continue
        if "unreleased" in heading:
            raise NotReady(f"CHANGELOG.md: '## {heading}' must name the release's date, e.g. {version} (2027-01-31)")
        if not body.strip():
            raise NotReady(f"CHANGELOG.md: the section {version} is empty")
        return body.strip() + "\n"
    raise NotReady(f"CHANGELOG.md: no section '## {version}'")


def main(arguments: list[str]) -> int:
    """Print the notes of the tag that is the only argument."""
    (tag,) = arguments
    try:
        notes = release_notes(tag, VERSION_FILE.read_text(encoding="utf-8"), CHANGELOG.read_text(encoding="utf-8"))
    except NotReady as error:
        print(error, file=sys.stderr)
        return 2
    sys.stdout.write(notes)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
