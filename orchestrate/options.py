"""Declares the options of `orchestrate`'s commands, each once; see `results.program.Argument`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from results.program import flag, percentage

HostsFile = Annotated[
    Path | None,
    flag("hosts file (default: TFBENCH_HOSTS or hosts.yml, else this machine is measured)", variable="TFBENCH_HOSTS"),
]

RunName = Annotated[str | None, flag("run id or folder (default: the latest run)", metavar="RUN")]

Source = Literal["sky", "dstack", "vast", "runpod"]
"""Keys of `orchestrate.inventory.rented.SOURCES`, which is slow to import."""


@dataclass(frozen=True, kw_only=True)
class Where:
    """Which machines to use.

    Attributes:
        hosts: File; None: `hosts.yml` if it exists, otherwise this machine.
        limit: Names of fleets and hosts to use; none: all.
    """

    hosts: HostsFile = None
    limit: Annotated[list[str] | None, flag("use only this fleet or host; repeatable", metavar="NAME")] = None


@dataclass(frozen=True, kw_only=True)
class What:
    """What to measure.

    Attributes:
        suite: Name or file; None: from the hosts file.
        repeats: Repeats of each case; None: from the suite or hosts file.
        seed: For shuffling repeats.
        stop_early: See `Plan.stop_early`.
    """

    suite: Annotated[str | None, flag("suite to measure, by name or as a file my.yml; overrides hosts.yml")] = None
    repeats: Annotated[int | None, flag("repeats of each case; overrides the suite and hosts.yml")] = None
    seed: Annotated[int, flag("seed for shuffling repeats (default: 1)")] = 1
    stop_early: Annotated[
        float | None,
        flag(
            "skip the remaining repeats of a case once every ratio between fleets is known to ± PERCENT, e.g. 2%%, or "
            "is clearly above or below the price ratio; never adds repeats; saves two thirds of the time with four "
            "steady hosts per fleet, a tenth at most with one",
            type=percentage,
            metavar="PERCENT",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class How:
    """How a plan is executed and displayed.

    Attributes:
        display: See `orchestrate.display.display.make_display`.
        report: Whether `report.html` is written at the end.
        max_cost: In USD; no repeat starts that would exceed it.
        when_done: Shell command to run after the run, however it ends.
    """

    display: Annotated[
        Literal["auto", "live", "plain", "json", "none"],
        flag(
            "progress as live table, plain lines or JSON Lines (default: TFBENCH_DISPLAY or auto: live on a terminal)",
            variable="TFBENCH_DISPLAY",
        ),
    ] = "auto"
    max_parallel: Annotated[int | None, flag("work on at most N hosts (default: all)", metavar="N")] = None
    fail_fast: Annotated[bool, flag("stop the run at the first failure")] = False
    report: Annotated[bool, flag("write no report.html at the end", "--no-report", action="store_false")] = True
    max_cost: Annotated[
        float | None, flag("stop the run before its cost exceeds this; resume counts anew", metavar="USD")
    ] = None
    when_done: Annotated[
        str | None,
        flag(
            "run a shell command after the run, also after failures and Ctrl-C, e.g. to return rented machines: "
            "'sky down -y tfbench-a4000'",
            metavar="COMMAND",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Images:
    """On which engine images are built, pushed or verified, and how they are built."""

    engine: Annotated[str | None, flag("unix://… or ssh://… (default: DOCKER_HOST, else the usual socket)")] = None
    registry: Annotated[str | None, flag("registry and path for the image names, e.g. registry.example.org/bench")] = (
        None
    )
    hosts: Annotated[Path | None, flag("build and push all that the hosts of this file need", metavar="FILE")] = None
    build_arg: Annotated[list[str], flag("build argument, e.g. BASE=…", metavar="NAME=VALUE")]
    ca: Annotated[list[Path], flag("PEM file with additional CA certificates that the build trusts", metavar="FILE")]
    pip_config: Annotated[
        Path | None,
        flag("pip.conf with your package index and its password, which no image will contain", metavar="FILE"),
    ] = None
