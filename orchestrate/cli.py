"""`tfbench COMMAND`: everything in one program, commands in the order of work.

`measure` and `doctor` are `python -m tfbench` and `python -m tfbench.doctor`: what trains is never imported here, so
`tfbench` works without TensorFlow.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from absl import app
from absl.flags import argparse_flags

from orchestrate import command_line
from orchestrate.extras import missing_extra
from results.commands import runs
from results.program import PROGRAM, hyphenated, run_main, underscored
from results.schema.exit_codes import ExitCode
from results.schema.version import __version__

MODULES = {"doctor": "tfbench.doctor", "measure": "tfbench", "make-dataset": "tfbench.make_dataset"}
"""Commands that run on the machine that is measured, and the module that each of them is."""

MODULE_HELP = {
    "doctor": "check this machine: driver, GPUs, CUDA libraries, TensorFlow, NCCL; a fix for each finding",
    "measure": "measure one case on this machine and write its record (--help shows the flags)",
    "make-dataset": "write a small data set of JPEG files, for measure --data=tfrecord",
}

ORDER = (
    *("hosts", "check", "plan", "run", "resume", "status", "stop", "images"),
    *("show", "compare", "audit", "recommend", "gpus", "predict", "report", "export", "validate"),
    *("prices", "doctor", "measure", "make-dataset", "completion"),
)
"""The order of work: measure a fleet, read the results, then what is needed less often."""

EPILOG = (
    "Exit codes: 0 done, 1 a bug, 2 bad flags or file, 3 some of it failed (the rest is written), "
    "4 no usable host, 5 a regression (compare --fail-on), 130 stopped."
)


def main() -> None:
    """Run the program, as the installed command does."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in MODULES:
        if missing := missing_extra():
            print(f"{PROGRAM} {arguments[0]}: {missing}", file=sys.stderr)
            sys.exit(ExitCode.USAGE)
        _become(arguments[0], arguments[1:])
    app.run(run_main, flags_parser=parse)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; mistakes end the program with exit code 2.

    Args:
        arguments: As in `sys.argv`, the program's name first.
    """
    return make_parser().parse_args(hyphenated(arguments[1:]))


def make_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser: argparse.ArgumentParser = argparse_flags.ArgumentParser(  # type: ignore[no-untyped-call]
        prog=PROGRAM,
        description="Find the GPU to rent for TensorFlow training: measure a fleet, compare, recommend.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    adders = {**command_line.COMMANDS, **runs.COMMANDS}
    for name in ORDER:
        if name in adders:
            adders[name](commands)
        elif name in MODULES:
            commands.add_parser(name, help=MODULE_HELP[name], add_help=False)
        else:
            _add_completion(commands)
    return parser


def _add_completion(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    what = "print a completion script for a shell"
    parser = commands.add_parser("completion", help=what, description=f"{what.capitalize()}.")
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    parser.set_defaults(command=_completion)


def _completion(parsed: argparse.Namespace) -> int:
    import shtab

    sys.stdout.write(shtab.complete(make_parser(), parsed.shell) + "\n")
    return ExitCode.OK


def _become(command: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the module that a command is, so that signals and the exit code are its own.

    Flags may be spelled with hyphens too: `--num-gpus=2`.
    """
    project = str(Path(__file__).absolute().parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [project, os.environ.get("PYTHONPATH")]))}
    sys.stdout.flush()
    os.execve(
        sys.executable,
        # -P: a folder named tfbench where the user happens to be is not ours.
        [sys.executable, "-P", "-m", MODULES[command], *underscored(arguments)],
        environment,
    )


if __name__ == "__main__":
    main()
