"""Plan, launch, follow and collect benchmarks: `python -m orchestrate COMMAND --hosts hosts.yml`.

Data goes to stdout, everything else to stderr. The Docker SDK, pandas and scipy are imported where they are used,
so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import app
from absl.flags import argparse_flags

from orchestrate.errors import NoUsableHost, UserError
from orchestrate.running.process_limits import collect_rarely
from results.errors import UserError as ResultsUserError
from results.errors import write_traceback

EXIT_BUG, EXIT_USAGE, EXIT_NO_HOST, EXIT_STOPPED = 1, 2, 4, 130

DISPLAYS = ("auto", "live", "plain", "json", "none")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; mistakes end the program with exit code 2.

    Args:
        arguments: As in `sys.argv`, the program's name first.
    """
    return _parser().parse_args(list(arguments[1:]))


def main(parsed: argparse.Namespace) -> int:
    """Run one command and return its exit code."""
    command: Callable[[argparse.Namespace], int] = parsed.command
    collect_rarely()
    try:
        return command(parsed)
    except (UserError, ResultsUserError) as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except NoUsableHost as error:
        print(error, file=sys.stderr)
        return EXIT_NO_HOST
    except KeyboardInterrupt:
        print("stopped before anything was started", file=sys.stderr)
        return EXIT_STOPPED
    except Exception as error:
        if os.environ.get("TFBENCH_DEBUG"):
            raise
        print(f"A bug in tfbench: {error!r}. Traceback: {write_traceback()}", file=sys.stderr)
        return EXIT_BUG


def _parser() -> argparse.ArgumentParser:
    """Describe the command line; commands stand in the order of work."""
    parser: argparse.ArgumentParser = argparse_flags.ArgumentParser(  # type: ignore[no-untyped-call]
        prog="python -m orchestrate",
        description="Measure GPU hosts with TensorFlow training and merge one table.",
        epilog="Exit codes: 0 all measured, 1 a bug, 2 bad flags or file, 3 some repeats failed (the rest is "
        "written), 4 no usable host, 130 stopped.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = _command(commands, "check", "ask every host what it is and whether it can measure")
    _add_hosts(check)
    plan = _command(commands, "plan", "show what `run` would do")
    _add_hosts(plan)
    _add_planning(plan)
    plan.add_argument("--format", choices=("table", "json"), default="table", help="default: table")
    plan.add_argument(
        "--show-manifests", action="store_true", help="show exactly what would be handed to Slurm or Kubernetes"
    )
    run = _command(commands, "run", "measure: one fresh process for every repeat of every case")
    _add_hosts(run)
    _add_planning(run)
    run.add_argument("--run-id", help="name of the run (default: start time and four random digits)")
    _add_running(run)
    resume = _command(commands, "resume", "go on with a run: adopt what runs, start what is missing")
    _add_run(resume)
    resume.add_argument(
        "--again",
        metavar="STATUS[,STATUS…]",
        help="measure these failures again too, e.g. oom,error (default: faults of hosts, and what was stopped)",
    )
    _add_running(resume)
    status = _command(commands, "status", "tell how a run stands, from any terminal")
    _add_run(status)
    stop = _command(commands, "stop", "end and remove what a run has on its hosts; records stay")
    _add_run(stop)
    _add_images(_command(commands, "images", "list, build, push, verify, save or load the container images"))
    return parser


def _add_images(parser: argparse.ArgumentParser) -> None:
    """Describe `images`: an action, then its own flags."""
    actions = parser.add_subparsers(required=True, metavar="ACTION", dest="action")
    for name, what in (
        ("list", "the variants, what each is for, and on what it was seen working"),
        ("build", "build variants from this checkout"),
        ("push", "push variants to a registry; prints their digests"),
        ("verify", "start variants and hold them against orchestrate/containers/images.toml; no GPU is needed"),
        ("save", "write variants to a folder, for hosts that reach no registry"),
        ("load", "take in the images of such a folder"),
    ):
        action = actions.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
        if name == "list":
            continue
        action.add_argument("--engine", help="unix://… or ssh://… (default: DOCKER_HOST, else the usual socket)")
        if name == "load":
            action.add_argument("folder", type=Path, metavar="FOLDER")
            continue
        action.add_argument("variants", nargs="*", metavar="VARIANT", help="default: all, not NAME-slim")
        action.add_argument("--registry", help="first part of the image's name, e.g. ghcr.io/you")
        if name == "save":
            action.add_argument("--output", type=Path, required=True, metavar="FOLDER")
        if name == "build":
            action.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE", help="e.g. BASE=…")
            action.add_argument(
                "--ca",
                action="append",
                default=[],
                type=Path,
                metavar="FILE",
                help="PEM file that the build trusts too",
            )


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str
) -> argparse.ArgumentParser:
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
    from orchestrate.images import commands as image_commands

    function: Callable[[argparse.Namespace], int] = getattr(image_commands if name == "images" else commands, name)
    return function(parsed)


def _add_hosts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hosts",
        type=Path,
        default=Path(os.environ.get("TFBENCH_HOSTS", "hosts.yml")),
        help="which machines there are (default: TFBENCH_HOSTS or hosts.yml)",
    )
    parser.add_argument(
        "--limit", action="append", metavar="NAME", help="only this fleet or host; may be given several times"
    )


def _add_planning(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", help="measure this suite, whatever hosts.yml says: a name, or a file my.yml")
    parser.add_argument("--repeats", type=_positive, help="repeats of each case, whatever suite and hosts.yml say")
    parser.add_argument("--seed", type=int, default=1, help="of the order of repeats (default: 1)")
    parser.add_argument(
        "--target-ci",
        type=_share,
        metavar="PERCENT",
        help="end timed steps (after 500) and repeats (after 6) early when a case is known to ± so much, e.g. 2%%",
    )


def _add_running(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--display",
        choices=DISPLAYS,
        default=os.environ.get("TFBENCH_DISPLAY", "auto"),
        help="live table, plain lines or JSON Lines (default: TFBENCH_DISPLAY or auto: live on a terminal)",
    )
    parser.add_argument("--max-parallel", type=_positive, help="hosts that work at a time (default: all)")
    parser.add_argument("--fail-fast", action="store_true", help="end the run at the first failure")
    parser.add_argument(
        "--retries",
        type=int,
        default=0,
        help="try a repeat again so often when its host failed (unreachable, lost, pull_failed); default: 0",
    )
    parser.add_argument(
        "--set-aside-after",
        type=_positive,
        default=2,
        help="give a host up after so many such failures in a row (default: 2)",
    )
    parser.add_argument(
        "--report",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write report.html at the end (default: yes; drawing it takes 400 MB of memory for a few seconds)",
    )
    parser.add_argument("--max-cost", type=float, metavar="USD", help="end the run in time to stay below this cost")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="run id or folder (default: the latest run)")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1. Received: {text}")
    return value


def _share(text: str) -> float:
    """Read a percentage, with or without its sign, as a share of 1."""
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = 0.0
    if not 0.01 <= percent < 100:
        raise argparse.ArgumentTypeError(f"is a percentage from 0.01 to 100, e.g. 2%. Received: {text}")
    return percent / 100


if __name__ == "__main__":
    app.run(main, flags_parser=parse)
