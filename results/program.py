"""What the command-line programs share: how a command ends, how flags are spelled, and the program's own name."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from results.errors import UserError, write_traceback
from results.schema.exit_codes import ExitCode

PROGRAM = "tfbench"
"""The installed command; `python -m orchestrate` and `python -m results` are the same commands without installing."""

PROGRAM_FILES = (PROGRAM, "cli")
"""Names, without suffix, of the file that runs as `tfbench`: the installed script, or orchestrate/cli.py."""


def run_main(parsed: argparse.Namespace) -> int:
    """Run the command that was parsed; report what goes wrong in a line, and return the exit code.

    Args:
        parsed: Its `command` is the function to call with it.
    """
    command: Callable[[argparse.Namespace], int] = parsed.command
    for stream in (sys.stdout, sys.stderr):  # file names hold any bytes, and not every terminal all of Unicode
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        return command(parsed)
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return ExitCode.STOPPED
    except BrokenPipeError:
        # The reader went away (`… | head`): nobody reads on, and Python must not try to write at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:  # the last place that can catch a bug
        if os.environ.get("TFBENCH_DEBUG"):
            raise
        print(f"A bug in tfbench: {error!r}. Traceback: {write_traceback()}", file=sys.stderr)
        return ExitCode.BUG


def hyphenated(arguments: Sequence[str]) -> list[str]:
    """Spell long flags with hyphens: `--num_gpus=2`, as `python -m tfbench` spells it, means `--num-gpus=2`."""
    return [_spelled(argument, "_", "-") for argument in arguments]


def underscored(arguments: Sequence[str]) -> list[str]:
    """Spell long flags as `python -m tfbench` does: `--num-gpus=2` means `--num_gpus=2`."""
    return [_spelled(argument, "-", "_") for argument in arguments]


def _spelled(argument: str, old: str, new: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument[2:].partition("=")
    return f"--{name.replace(old, new)}{equals}{value}"


def started_as_tfbench() -> bool:
    """Return whether the user typed `tfbench`, not `python -m …`."""
    return Path(sys.argv[0]).stem in PROGRAM_FILES


def command_line(package: str, command: str) -> str:
    """Write a command as the user would type it in the program that was started.

    Args:
        package: `orchestrate` or `results`, whose command it is.
        command: Its name and arguments, e.g. `show runs/one`.
    """
    return f"{PROGRAM} {command}" if started_as_tfbench() else f"python -m {package} {command}"
