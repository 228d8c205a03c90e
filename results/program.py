"""Code shared by the command-line programs: running a command, parsing flags, and the program's name."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import functools
import inspect
import math
import os
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

from results.errors import UserError, is_disk_full, write_traceback
from results.schema.exit_codes import ExitCode
from results.schema.streams import lasting_streams
from results.schema.version import __version__

Parsed = argparse.Namespace

Command = Callable[..., int]
"""The function of a command, whose parameters are declared by `flag`; returns an exit code."""

Described = Command | str
"""A command, or what a command does that parses its own flags."""

PROGRAM = "tfbench"
"""The installed command; `python -m orchestrate` and `python -m results` run without installation."""

OURS = ("results", "orchestrate", "tfbench")
"""Our packages; a module of others is missing if it is not the Python that tfbench was installed in."""

PROGRAM_FILES = (PROGRAM, "cli")
"""Names without suffix of the file that runs as `tfbench`: the installed script, or orchestrate/cli.py."""


def run_main(parsed: Parsed, *, may_lose_output: bool = False) -> int:
    """Run the parsed command, report an error in one line, and return the exit code.

    Args:
        parsed: Arguments, passed to their `command` attribute.
        may_lose_output: Whether all that is printed is in files too, so that output to a full disk is no error.
    """
    with lasting_streams():
        try:
            code: int = parsed.command(parsed)
            sys.stdout.flush()
            lost = getattr(sys.stdout, "lost", None)
            if isinstance(lost, OSError) and is_disk_full(lost) and not may_lose_output:
                raise OSError(lost.errno, "the output is incomplete") from lost  # what was printed might look complete
            return code
        except UserError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        except (Exception, KeyboardInterrupt) as error:  # the outermost handler
            if KeyboardInterrupt in map(type, (error, error.__cause__)):  # the cause: Python 3.11, within a class body
                print("stopped", file=sys.stderr)
                return ExitCode.STOPPED
            if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] not in OURS:
                fix = "Start the Python that tfbench is installed in, or install it into this one: pip install tfbench"
                print(f"{sys.executable} has no module {error.name}. {fix}", file=sys.stderr)
                return ExitCode.USAGE
            if is_disk_full(error):
                print(f"the disk is full. Free space, then try again ({error})", file=sys.stderr)
                return ExitCode.NO_HOST
            if os.environ.get("TFBENCH_DEBUG"):
                raise
            print(f"A bug in tfbench: {error!r}. Traceback: {write_traceback()}", file=sys.stderr)
            return ExitCode.BUG


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that says what may have been meant."""

    def error(self, message: str) -> NoReturn:
        """Print the mistake, and what may have been meant, and exit with code 2."""
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if found and (close := difflib.get_close_matches(found[1], re.findall(r"[\w-]+", found[2]), 1)):
            message = f"{message[: found.start()]}{found[1]!r} does not exist. Did you mean {close[0]}?"
        self.exit(ExitCode.USAGE, f"{self.prog}: {message}\nSee: {self.prog} --help\n")


def exit_code_text() -> str:
    """Return the exit codes and their meanings, for `--help`."""
    return f"Exit codes: {', '.join(f'{code} {code.meaning}' for code in ExitCode)}."


HELP_WIDTH = 80
"""Of the program's help, in characters."""

Argument = tuple[Sequence[str], str, Mapping[str, Any]]
"""Flags, variable and settings of `flag`."""


def flag(text: str, *flags: str, variable: str = "", **settings: object) -> Argument:
    """Declare how a parameter of a command appears on the command line, as the annotation of its type.

    Python's signature implies the rest: parameters before `*` have no flag; a `bool` is a switch, a list a repeatable
    flag, a `Literal` its choices, a number more than 0. A parameter whose type is a dataclass stands for its fields.

    Args:
        text: Line of `--help`.
        flags: Empty: the parameter's name with hyphens.
        variable: Environment variable with a default; empty: none.
        settings: For `argparse.ArgumentParser.add_argument`.
    """
    return flags, variable, {"help": text, **settings}


def parse(program: str, lines: Sequence[str], commands: Mapping[str, Described], arguments: Sequence[str]) -> Parsed:
    """Parse a command line, whose flags may stand between names; mistakes end the program with exit code 2.

    Args:
        program: Its name.
        lines: Its help, above the exit codes.
        commands: By name; those that parse their own flags were called before.
        arguments: The command's name and its arguments.
    """
    parser = Parser(
        prog=program,
        usage=f"{program} COMMAND [options]",
        description="\n".join(lines),
        epilog=textwrap.fill(exit_code_text(), HELP_WIDTH),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.add_argument("command", choices=commands, metavar="COMMAND", help=argparse.SUPPRESS)
    function = commands[parser.parse_args(arguments[:1]).command]
    return command_parser(function, program).parse_intermixed_args(respelled(arguments[1:], "_", "-"))


def command_parser(function: Described, program: str) -> Parser:
    """Return the parser of a command: its name, its docstring, which may end with an example, and its parameters.

    Args:
        function: Returns an exit code.
        program: Name of the program.
    """
    assert callable(function), "the program calls those that parse their own flags"
    text, _, example = inspect.cleandoc(function.__doc__ or "").partition("\n\nExample: ")
    parser = Parser(prog=f"{program} {function.__name__}", description=text, epilog=f"Example: {program} {example}")
    parser.set_defaults(command=functools.partial(_call, function))
    for parameter, kind in _parameters(function):
        for argument in _parameters(kind) if _is_group(kind) else [(parameter, kind)]:
            _add_argument(parser, *argument)
    return parser


def help_line(name: str, described: Described) -> str:
    """Return a command in the program's help, with the first line of its docstring."""
    text = described if isinstance(described, str) else described.__doc__ or ""
    what = text.partition("\n")[0].rstrip(".")
    what = what[0].lower() + what[1:]
    return textwrap.fill(what, HELP_WIDTH, initial_indent=f"    {name:14}", subsequent_indent=" " * 18)


def _parameters(function: Callable[..., Any]) -> list[tuple[inspect.Parameter, Any]]:
    """Return each parameter and its type."""
    kinds = typing.get_type_hints(function, include_extras=True)
    return [(parameter, kinds[name]) for name, parameter in inspect.signature(function).parameters.items()]


def _is_group(kind: Any) -> TypeGuard[type]:  # noqa: ANN401 (any type)
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _add_argument(parser: Parser, parameter: inspect.Parameter, annotated: Any) -> None:  # noqa: ANN401 (any type)
    kind, (flags, variable, declared) = typing.get_args(annotated)[:2]
    if types.NoneType in typing.get_args(kind):
        kind, _ = typing.get_args(kind)
    default, has_flag = parameter.default, parameter.kind is parameter.KEYWORD_ONLY
    preset: Any = os.environ.get(variable) or ([] if default is parameter.empty else default)
    settings: dict[str, Any] = {"default": preset}
    if typing.get_origin(kind) is list:
        settings |= {"action": "append"} if has_flag else {"nargs": "*"}
        (kind,) = typing.get_args(kind)
    elif default is not parameter.empty and not has_flag:
        settings["nargs"] = "?"
    if kind is bool:
        settings["action"] = "store_true"
    elif typing.get_origin(kind) is typing.Literal:
        settings["choices"] = typing.get_args(kind)
    elif kind is not str:
        settings["type"] = functools.partial(_number, kind) if kind in (int, float) else kind
    settings |= declared
    if has_flag:
        names = flags or [f"--{parameter.name.replace('_', '-')}"]
        parser.add_argument(*names, dest=parameter.name, **settings)
    else:
        parser.add_argument(parameter.name, **settings)


def _call(function: Callable[..., int], parsed: Parsed) -> int:
    """Call a command's function with the parsed arguments of its parameters' names."""
    given, values = vars(parsed), dict[str, Any]()
    for parameter, kind in _parameters(function):
        if _is_group(kind):
            values[parameter.name] = kind(**{field.name: given[field.name] for field in dataclasses.fields(kind)})
        else:
            values[parameter.name] = given[parameter.name]
    return function(**values)


def _number(kind: type[int] | type[float], text: str) -> float:
    """Parse a number, more than 0."""
    with contextlib.suppress(ValueError):
        if 0 < (value := kind(text)) < math.inf:
            return value
    what = "a whole number" if kind is int else "a number"
    raise argparse.ArgumentTypeError(f"must be {what}, more than 0. Received: {text}")


def percentage(text: str) -> float:
    """Parse a percentage, with or without a sign, as a share of 1."""
    with contextlib.suppress(ValueError):
        if 0 <= (value := float(text.removesuffix("%"))) < 100:
            return value / 100
    raise argparse.ArgumentTypeError(f"must be a percentage from 0 to 100, e.g. 2%. Received: {text}")


def among(*known: str) -> Callable[[str], list[str]]:
    """Return a parser of names of these, separated by commas; `all` means all of them."""

    def parse(text: str) -> list[str]:
        names = list(known) if text == "all" else text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"must be among {', '.join(known)}. Received: {', '.join(unknown)}")
        return names

    return parse


def respelled(arguments: Sequence[str], old: str, new: str) -> list[str]:
    """Spell long flags with another character: from `_` to `-`, `--num_gpus=2` becomes `--num-gpus=2`."""
    words = []
    for word in arguments:
        name, equals, value = word.partition("=")
        is_flag = word.startswith("--")
        words.append(f"--{name[2:].replace(old, new)}{equals}{value}" if is_flag else word)
    return words


def started_as_tfbench() -> bool:
    """Return whether the program was started as `tfbench`, not as `python -m …`."""
    return Path(sys.argv[0]).stem in PROGRAM_FILES
