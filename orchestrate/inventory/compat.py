"""NVIDIA's compatibility package (`cuda-compat`): the CUDA driver library of a newer driver, on an older driver.

It is for data-centre GPUs and for some driver branches only. On other GPUs CUDA does not start (error 804), nor does it
next to a driver that the package does not know (803).

Source: NVIDIA, CUDA Compatibility, chapter Forward Compatibility, version 615 (September 2026).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ConfigDict

COMPAT_SUFFIX = "-compat"
"""Of names and tags of images that have the package."""

_DATA_CENTRE = re.compile(
    r"(NVIDIA[ -])?(Tesla[ -][KMPVT]\d+\w?|A(2|10[GM]?|16|30X?|40|100X?|800)|L(2|4|20|40[SG]?)|G?H(20|100|200|800))\b"
    r"(?!.*\bActive\b)"
)
"""NVIDIA's data-centre products from Kepler to Hopper, as NVML and node labels name them; workstation cards share some
of their numbers: `RTX A4000`, `T400`, `A800 40GB Active`.

Source: NVIDIA's list of CUDA-enabled data-centre products.
"""


@dataclass(frozen=True, kw_only=True)
class Compat:
    """A compatibility package.

    Attributes:
        cuda: CUDA version that its library serves: the package is `cuda-compat-12-8` for `12.8`.
        branches: Driver branches that it is for, of those that do not serve the variant's own CUDA anyway.
        image: One of NVIDIA's that has it in `/usr/local/cuda-VERSION/compat`.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    cuda: str
    branches: tuple[int, ...]
    image: str

    def refusal(self, driver: str, gpus: Sequence[str]) -> str | None:
        """Say why the package is not for a host; None: it is.

        Args:
            driver: Version of its driver, which is older than the package's own.
            gpus: Names of the GPUs that are used.
        """
        other = next((name for name in gpus if not is_data_centre(name)), None)
        if other is not None or not gpus:
            which = f"{other} is not known to be one" if other is not None else "the names of the GPUs are not known"
            return f"NVIDIA's compatibility package is for data-centre GPUs only, and {which}"
        if int(driver.partition(".")[0]) not in self.branches:
            named = ", ".join(map(str, self.branches))
            return (
                f"NVIDIA's CUDA {self.cuda} compatibility package is for driver branches {named}, but this is {driver}"
            )
        return None


def is_data_centre(name: str) -> bool:
    """Return whether a GPU is one of NVIDIA's data-centre products up to Hopper, by its name."""
    return _DATA_CENTRE.match(name) is not None
