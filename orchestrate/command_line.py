"""The command lines of `orchestrate`'s commands, for `python -m orchestrate` and `tfbench`.

The Docker SDK, pandas and scipy are imported where they are used, so that `--help` is fast.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from results.commands.command_line import add_format
from results.program import call

if TYPE_CHECKING:
    from results.commands.command_line import Commands

SOURCE_NAMES = ("sky", "dstack", "vast", "runpod")
"""Keys of `orchestrate.inventory.rented.SOURCES`, which is slow to import."""

DISPLAYS = ("auto", "live", "plain", "json", "none")
"""See `orchestrate.display.live.make_display`, which is slow to import."""


def add_init(commands: Commands) -> None:
    """Add `init`."""
    parser = _command(commands, "init", "write a hosts.yml: this machine, or the machines that a tool has rented")
    parser.add_argument("--from", dest="source", choices=SOURCE_NAMES, help="tool that the list comes from")
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default="-",
        help="what the tool printed (default: standard input)",
    )
    _add_hosts_file(parser)


def add_runs(commands: Commands) -> None:
    """Add `runs`."""
    parser = _command(commands, "runs", "list all runs: date, fleets, suite, progress and which fleet is faster")
    add_format(parser, "text", "json")


def add_suites(commands: Commands) -> None:
    """Add `suites`."""
    parser = _command(commands, "suites", "list the suites, or the cases of one")
    parser.add_argument("name", nargs="?", metavar="SUITE", help="name or file of a suite")


def add_check(commands: Commands) -> None:
    """Add `check`."""
    parser = _command(commands, "check", "query every host for its hardware and check that it can run benchmarks")
    _add_hosts(parser)
    parser.add_argument(
        "--deep",
        action="store_true",
        help="measure each host for two minutes and judge whether it is worth keeping; exit code 4 if one is rejected",
    )
    add_format(parser, "text", "json")


def add_plan(commands: Commands) -> None:
    """Add `plan`."""
    parser = _command(commands, "plan", "show what `run` would do")
    _add_hosts(parser)
    _add_planning(parser)
    add_format(parser, "text", "json")
    parser.add_argument(
        "--show-manifests", action="store_true", help="show exactly what would be submitted to Slurm or Kubernetes"
    )


def add_run(commands: Commands) -> None:
    """Add `run`."""
    parser = _command(commands, "run", "measure every case, with a fresh process for each repeat")
    _add_hosts(parser)
    _add_planning(parser)
    parser.add_argument("--run-id", help="name of the run (default: start time and four random digits)")
    _add_running(parser)


def add_resume(commands: Commands) -> None:
    """Add `resume`."""
    parser = _command(commands, "resume", "continue a run: reattach to what is running, start what is missing")
    _add_run(parser)
    parser.add_argument(
        "--again",
        metavar="STATUS[,STATUS…]",
        help="repeat failures with these statuses too, e.g. oom,error (default: host failures and stopped repeats)",
    )
    _add_running(parser)


def add_status(commands: Commands) -> None:
    """Add `status`."""
    parser = _command(commands, "status", "show the progress of a run, from any terminal")
    _add_run(parser)
    add_format(parser, "text", "json")


def add_stop(commands: Commands) -> None:
    """Add `stop`."""
    _add_run(_command(commands, "stop", "stop a run's benchmarks and remove them from its hosts; records are kept"))


def add_images(commands: Commands) -> None:
    """Add `images`."""
    _add_images(_command(commands, "images", "list, build, push or verify the container images"))


COMMANDS: dict[str, Callable[[Commands], None]] = {
    "init": add_init,
    "suites": add_suites,
    "check": add_check,
    "plan": add_plan,
    "run": add_run,
    "resume": add_resume,
    "runs": add_runs,
    "status": add_status,
    "stop": add_stop,
    "images": add_images,
}
"""Functions that add each command, in the order of work; each sets `command` to the function that runs it."""


def _add_images(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `images`: an action, then its flags."""
    actions = parser.add_subparsers(required=True, metavar="ACTION", dest="action")
    for name, what in (
        ("list", "list the variants, what each is for, and where it has been tested"),
        ("build", "build variants from the installed sources"),
        ("push", "push variants to a registry and print their digests"),
        ("verify", "start variants and compare them with containers/images.toml; needs no GPU"),
    ):
        action = actions.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
        if name == "list":
            continue
        action.add_argument("--engine", help="unix://… or ssh://… (default: DOCKER_HOST, else the usual socket)")
        action.add_argument("variants", nargs="*", metavar="VARIANT", help="variants (default: all except ngc…)")
        action.add_argument("--registry", help="registry and path for the image names, e.g. registry.example.org/bench")
        if name == "push":
            action.add_argument(
                "--hosts", type=Path, metavar="FILE", help="build and push all that the hosts of this file need"
            )
        if name in ("build", "push"):
            action.add_argument(
                "--build-arg", action="append", default=[], metavar="NAME=VALUE", help="build argument, e.g. BASE=…"
            )
            action.add_argument(
                "--ca",
                action="append",
                default=[],
                type=Path,
                metavar="FILE",
                help="PEM file with additional CA certificates that the build trusts",
            )
            action.add_argument(
                "--pip-config",
                type=Path,
                metavar="FILE",
                help="pip.conf with your package index and its password, which no image will contain",
            )


def _command(commands: Commands, name: str, what: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
    parser.set_defaults(command=lambda parsed: _dispatch(name, parsed))
    parser.add_argument(
        "--runs-dir",
        type=Path,
        default=Path(os.environ.get("TFBENCH_RUNS_DIR", "runs")),
        help="where runs are kept (default: TFBENCH_RUNS_DIR or runs)",
    )
    return parser


def _dispatch(name: str, parsed: argparse.Namespace) -> int:
    from orchestrate import commands
    from orchestrate.running.controller import collect_rarely

    collect_rarely()

    if name == "images":
        from orchestrate.images.commands import images  # the Docker SDK takes a third of the time of a command

        return images(parsed, commands.probe)
    return call(getattr(commands, name), parsed)


def _add_hosts_file(parser: argparse.ArgumentParser, more: str = "") -> None:
    parser.add_argument(
        "--hosts",
        type=Path,
        default=os.environ.get("TFBENCH_HOSTS") or None,
        help=f"hosts file (default: TFBENCH_HOSTS or hosts.yml{more})",
    )


def _add_hosts(parser: argparse.ArgumentParser) -> None:
    _add_hosts_file(parser, "; without either, this machine is measured")
    parser.add_argument("--limit", action="append", metavar="NAME", help="use only this fleet or host; repeatable")


def _add_planning(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", help="suite to measure, by name or as a file my.yml; overrides hosts.yml")
    parser.add_argument("--repeats", type=_positive, help="repeats of each case; overrides the suite and hosts.yml")
    parser.add_argument("--seed", type=int, default=1, help="seed for shuffling repeats (default: 1)")
    parser.add_argument(
        "--stop-early",
        type=_share,
        metavar="PERCENT",
        help="skip the remaining repeats of a case once every ratio between fleets is known to ± PERCENT, e.g. 2%%, or "
        "is clearly above or below the price ratio; never adds repeats; saves two thirds of the time with four steady "
        "hosts per fleet, a tenth at most with one",
    )


def _add_running(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--display",
        choices=DISPLAYS,
        default=os.environ.get("TFBENCH_DISPLAY", "auto"),
        help="progress as live table, plain lines or JSON Lines (default: TFBENCH_DISPLAY or auto: live on a terminal)",
    )
    parser.add_argument("--max-parallel", type=_positive, metavar="N", help="work on at most N hosts (default: all)")
    parser.add_argument("--fail-fast", action="store_true", help="stop the run at the first failure")
    parser.add_argument(
        "--report",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write report.html at the end (default: yes)",
    )
    parser.add_argument(
        "--max-cost", type=_usd, metavar="USD", help="stop the run before its cost exceeds this; resume counts anew"
    )
    parser.add_argument(
        "--when-done",
        metavar="COMMAND",
        help="run a shell command after the run, also after failures and Ctrl-C, e.g. to return rented machines: "
        "'sky down -y tfbench-a4000'",
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="run id or folder (default: the latest run)")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1. Received: {text}")
    return value


def _usd(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be more than 0. Received: {text}")
    return value


def _share(text: str) -> float:
    """Parse a percentage, with or without a sign, as a share of 1."""
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = 0.0
    if not 0.01 <= percent < 100:
        raise argparse.ArgumentTypeError(f"must be a percentage from 0.01 to 100, e.g. 2%. Received: {text}")
    return percent / 100
