"""Energy of the processor packages by RAPL (Linux powercap), where this user may read it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True, kw_only=True)
class Package:
    """One package's counter.

    Attributes:
        path: Its folder.
        microjoules: Reading.
        range_microjoules: The counter wraps around to 0 after this.
    """

    path: Path
    microjoules: int
    range_microjoules: int


def read_packages(powercap: Path = POWERCAP) -> list[Package]:
    """Read the counters of all packages; an empty list where there is none or none may be read."""
    packages = []
    for path in sorted(powercap.glob("*-rapl:*")):
        try:
            if not (path / "name").read_text().startswith("package"):
                continue  # its parts, and the whole platform, would be counted twice
            packages.append(
                Package(
                    path=path,
                    microjoules=int((path / "energy_uj").read_text()),
                    range_microjoules=int((path / "max_energy_range_uj").read_text()),
                )
            )
        except (OSError, ValueError):
            continue
    return packages


def joules_between(before: list[Package], after: list[Package]) -> float | None:
    """Return the energy between two readings, all packages together; None without a package."""
    if not before or [p.path for p in before] != [p.path for p in after]:
        return None
    total = 0
    for start, end in zip(before, after, strict=True):
        difference = end.microjoules - start.microjoules
        total += difference if difference >= 0 else difference + start.range_microjoules
    return total / 1e6
