"""Where the sources and `containers/` are: in a checkout, in an editable install and in a wheel."""

from __future__ import annotations

from pathlib import Path

PROJECT = Path(__file__).parents[1]
"""The checkout, or `site-packages`: the packages `tfbench` and `results` are in it."""


def containers_folder() -> Path:
    """Return the folder with Dockerfiles, `images.toml`, locks and files for renting.

    A wheel has it inside of this package, because `site-packages/containers` could be anybody's.
    """
    installed = Path(__file__).parent / "containers"
    return installed if (installed / "images.toml").is_file() else PROJECT / "containers"
