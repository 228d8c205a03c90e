"""What pyproject.toml cannot say: `containers/` as package data, and a README whose links work outside the checkout."""

import re
import tomllib
from pathlib import Path

from setuptools import find_packages, setup

REPOSITORY = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]


def absolute(match: re.Match[str]) -> str:
    """Return a relative link of the README as one into the repository; pictures as raw files."""
    target = match[1]
    return f"]({REPOSITORY}/{'raw' if target.endswith(('.png', '.svg')) else 'blob'}/main/{target})"


readme = Path("README.md").read_text(encoding="utf-8")
setup(
    packages=[*find_packages(include=["orchestrate*", "results*", "tfbench*"]), "orchestrate.containers"],
    package_dir={"orchestrate.containers": "containers"},
    long_description=re.sub(r"\]\((?!https?://|#)([^)\s]+)\)", absolute, readme),
    long_description_content_type="text/markdown",
)
