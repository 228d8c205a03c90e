"""Code shared by the command-line programs: running a command, parsing flags, and the program's name."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import inspect
import os
import re
import shlex
import shutil
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

from results.errors import UserError, is_disk_full, write_traceback
from results.schema.exit_codes import ExitCode
from results.schema.streams import lasting_streams

if typing.TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Any]

PROGRAM = "tfbench"
"""The installed command; `python -m orchestrate` and `python -m results` run without installation."""

OURS = ("results", "orchestrate", "tfbench")
"""Our packages; a module of others is missing if it is not the Python that tfbench was installed in."""

PROGRAM_FILES = (PROGRAM, "cli")
"""Names without suffix of the file that runs as `tfbench`: the installed script, or orchestrate/cli.py."""


def run_main(parsed: argparse.Namespace, *, may_lose_output: bool = False) -> int:
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
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
            return ExitCode.STOPPED
        except Exception as error:  # the outermost handler
            if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] not in OURS:
                fix = "Start the Python that tfbench is installed in, or install it into this one: pip install tfbench"
                print(f"{sys.executable} has no module {error.name}. {fix}", file=sys.stderr)
                return ExitCode.USAGE
            if is_disk_full(error):
                print(f"the disk is full. Free space, then try again ({error})", file=sys.stderr)
                return ExitCode.NO_HOST
            if os.environ.get("TFBENCH_DEBUG") or getattr(parsed, "verbose", False):
                raise
            print(f"A bug in tfbench: {error!r}. Traceback: {write_traceback()}", file=sys.stderr)
            return ExitCode.BUG


ELSEWHERE = {
    "--price": "recommend and report have it; compare uses usd_per_gpu_hour of hosts.yml, gpus has no prices",
    "--by": "compare has it; show and export have a row for each software anyway",
}
"""Flags of other commands, and which."""


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that suggests corrections and has `-v` in every command."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:  # noqa: ANN401 (as its parent)
        super().__init__(*arguments, **settings)
        self._is_intermixed = False
        self.add_argument(
            "-v",
            "--verbose",
            action="store_true",
            default=argparse.SUPPRESS,
            help="print the traceback of an unexpected error",
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401 (as its parent)
        """Accept flags between the positional arguments: `compare A B --by keras RUN`."""
        if self._subparsers or self._is_intermixed:
            return super().parse_known_args(args, namespace)
        self._is_intermixed = True  # Python 3.11 parses in two passes, each through this method
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixed = False

    def error(self, message: str) -> NoReturn:
        """Print the mistake and a suggestion, and exit with code 2."""
        if found := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            word, choices = found[1], re.findall(r"[\w-]+", found[2])
            if close := difflib.get_close_matches(word, choices, 1):
                message = f"{message[: found.start()]}{word!r} does not exist. Did you mean {close[0]}?"
        for flag, where in ELSEWHERE.items():
            if re.search(rf"arguments: (?:.* )?{flag}\b", message):
                message = f"this command has no {flag}: {where}"
        self.exit(ExitCode.USAGE, f"{self.prog}: {message}\nSee: {self.prog} --help\n")


def exit_code_text() -> str:
    """Return the exit codes and their meanings, for `--help`."""
    return f"Exit codes: {', '.join(f'{code} {code.meaning}' for code in ExitCode)}."


@dataclass(frozen=True)
class Argument:
    """Declares how a parameter of commands appears on the command line, as the annotation of its type.

    The type implies the rest: `bool` is a switch, a list a repeatable flag, a `Literal` its choices. A parameter whose
    type is a dataclass stands for its fields.

    Attributes:
        text: Line of `--help`.
        flags: Flags; empty: the parameter's name with hyphens.
        settings: For `argparse.ArgumentParser.add_argument`.
        positional: Whether it has no flag.
        variable: Environment variable with a default; empty: none.
    """

    text: str
    flags: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    positional: bool = False
    variable: str = ""


def flag(text: str, *flags: str, variable: str = "", **settings: object) -> Argument:
    """Declare a flag."""
    return Argument(text, flags, settings, variable=variable)


def positional(text: str, **settings: object) -> Argument:
    """Declare an argument without a flag: a list takes any number, another type may be missing if it has a default."""
    return Argument(text, (), settings, positional=True)


def add_command(
    commands: Commands, function: Callable[..., int], usage: Mapping[str, str] = types.MappingProxyType({})
) -> argparse.ArgumentParser:
    """Add a function as a command: its name, its docstring, and its parameters.

    Args:
        commands: Of the program's parser.
        function: Returns an exit code.
        usage: Text instead of the derived usage, by name of a command; with `{prog}`.
    """
    text = inspect.cleandoc(function.__doc__ or "")
    what = text.partition("\n")[0].rstrip(".")
    name = function.__name__.rstrip("_")  # `list_`, because `list` is Python's
    parser: argparse.ArgumentParser = commands.add_parser(name, help=what[0].lower() + what[1:], description=text)
    if name in usage:
        parser.usage = usage[name].format(prog=parser.prog)
    parser.set_defaults(command=functools.partial(_call, function))
    for name, kind, default in _parameters(function):
        for parameter in _parameters(kind) if _is_group(kind) else [(name, kind, default)]:
            _add_argument(parser, *parameter)
    return parser


def _parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Return the name, annotated type and default of each parameter."""
    kinds = typing.get_type_hints(function, include_extras=True)
    return [(p.name, kinds[p.name], p.default) for p in inspect.signature(function).parameters.values()]


def _add_argument(parser: argparse.ArgumentParser, name: str, kind: Any, default: Any) -> None:  # noqa: ANN401 (any type)
    if typing.get_origin(kind) is not typing.Annotated:
        return  # not for the command line
    kind, argument = typing.get_args(kind)[:2]
    if types.NoneType in typing.get_args(kind):
        kind, _ = typing.get_args(kind)
    is_list, required = typing.get_origin(kind) is list, default is inspect.Parameter.empty
    preset = os.environ.get(argument.variable) or (None if required else default)
    settings: dict[str, Any] = {"help": argument.text, "default": preset}
    if kind is bool:
        settings["action"] = "store_true"
    elif typing.get_origin(kind) is typing.Literal:
        settings["choices"] = typing.get_args(kind)
    elif is_list:
        settings |= {"nargs": "*"} if argument.positional else {"action": "append"}
        settings["default"] = [] if required else default
        (kind,) = typing.get_args(kind)
    if argument.positional and not is_list and not required:
        settings["nargs"] = "?"
    if kind in (int, float, Path):
        settings["type"] = kind
    settings |= argument.settings
    if argument.positional:
        parser.add_argument(name, **settings)
    else:
        parser.add_argument(*(argument.flags or [f"--{name.replace('_', '-')}"]), dest=name, **settings)


def _call(function: Callable[..., int], parsed: argparse.Namespace) -> int:
    """Call a command's function with the parsed arguments of its parameters' names."""
    given, arguments = vars(parsed), dict[str, Any]()
    for name, kind, _ in _parameters(function):
        if _is_group(kind):
            arguments[name] = kind(**{field.name: given[field.name] for field in dataclasses.fields(kind)})
        elif name in given:
            arguments[name] = given[name]
    return function(**arguments)


def _is_group(kind: Any) -> TypeGuard[type]:  # noqa: ANN401 (any type)
    """Return whether a parameter's type is a dataclass, whose fields are arguments."""
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


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


def command_line(package: str, *words: object) -> str:
    """Return a command line that can be pasted: with the program as the user started it.

    Args:
        package: Package of the command: `orchestrate` or `results`.
        words: Its name and arguments, e.g. `show` and a path.
    """
    typed = Path(sys.argv[0])
    on_path = shutil.which(PROGRAM)
    if not started_as_tfbench():
        program = ["python", "-m", package]
    elif typed.name != PROGRAM or (on_path and os.path.realpath(on_path) == os.path.realpath(typed)):
        program = [PROGRAM]
    else:
        program = [str(typed)]
    return shlex.join([*program, *map(str, words)])
