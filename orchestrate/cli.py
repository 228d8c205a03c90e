"""The `tfbench` program, with its commands in the order of work.

`measure` and `doctor` start `python -m tfbench` and `python -m tfbench.doctor`: the benchmark is never imported here,
so `tfbench` works without TensorFlow.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

from orchestrate.commands import COMMANDS
from orchestrate.display.streams import undelayed_streams
from orchestrate.project import missing_extra, own_module
from results import commands as results_commands
from results import program as programs
from results.program import PROGRAM, Described, Parsed, flag, help_line, respelled, run_main, started_as_tfbench
from results.schema.exit_codes import ExitCode
from results.schema.networks import NETWORKS

MODULES = {
    "doctor": ("tfbench.doctor", "check this machine: driver, GPUs, libraries, TensorFlow; a fix for each finding"),
    "measure": ("tfbench", "measure one case on this machine and write its record (--help shows the flags)"),
    "make-dataset": ("tfbench.make_dataset", "write a small data set of JPEG files, for measure --data=tfrecord"),
}
"""Commands that run on the measured machine, with their modules, which parse their flags, and their lines of help."""

GROUPS = (
    (
        "Measure a fleet",
        "run --suite quick --stop-early 2%",
        ("init", "suites", "check", "plan", "run", "resume", "runs", "status", "stop", "images"),
    ),
    ("Read results", "compare a5000 a4000", ("show", "compare", "report", "export", "validate")),
    ("Choose a GPU", "recommend --model resnet50 --gpus A4000,A5000", ("recommend", "gpus", "audit")),
    ("On this machine", "doctor", ("doctor", "measure", "make-dataset", "completion")),
)
"""Title, an example and the commands, in the order of work."""

UNDELAYED = ("check", "run", "resume", "stop")
"""Commands that hosts wait for; in the others, a pager may be read for hours."""

KEPT = ("run", "resume")
"""Commands whose results are in the run's folder, so that output to a full disk is no error."""


def main() -> None:
    """Run the program; the entry point of the installed command."""
    arguments = sys.argv[1:]
    if line := os.environ.get("COMP_LINE"):
        print("\n".join(candidates(described(), line)))
        return
    if arguments and arguments[0] in MODULES:
        _become(*arguments)
    parsed = parse(sys.argv)
    with undelayed_streams() if arguments[0] in UNDELAYED else contextlib.nullcontext():
        code = run_main(parsed, may_lose_output=arguments[0] in KEPT)
    sys.exit(code)


def parse(arguments: Sequence[str], program: str = "") -> Parsed:
    """Parse the command line; mistakes end the program with exit code 2.

    Args:
        arguments: As in `sys.argv`, beginning with the program's name.
        program: Its name in texts; empty: that of the running program.
    """
    program = program or (PROGRAM if started_as_tfbench() else "python -m orchestrate")
    commands, lines = (
        described(),
        ["Find the GPU to rent for TensorFlow training: measure a fleet, compare, recommend."],
    )
    for title, example, names in GROUPS:
        lines += ["", f"{title}, e.g. {program} {example}", *(help_line(name, commands[name]) for name in names)]
    lines += ["", f"{program} COMMAND --help shows the options of a command."]
    return programs.parse(program, lines, commands, arguments[1:])


def described() -> dict[str, Described]:
    """Return each command by name, in the order of `GROUPS`."""
    functions = {function.__name__: function for function in (*COMMANDS, *results_commands.COMMANDS, completion)}
    named: dict[str, Described] = {name: text for name, (_, text) in MODULES.items()} | functions
    return {name: named[name] for *_, names in GROUPS for name in names}


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], flag("whose script")]) -> int:
    """Print a completion script for a shell, which starts the program with the line so far in `COMP_LINE`.

    Example: completion bash
    """
    bash = f"complete -o default -C {PROGRAM} {PROGRAM}"
    scripts = {
        "bash": bash,
        "zsh": f"autoload -U +X bashcompinit && bashcompinit && {bash}",
        "fish": f"complete -c {PROGRAM} -a '(COMP_LINE=(commandline -cp) {PROGRAM})'",
    }
    print(scripts[shell])
    return ExitCode.OK


def values_of(argument: str) -> Iterable[str]:
    """Return the values of an argument that has no choices, by its name; none: anything, such as a number or file."""
    from orchestrate.suites import suite_names
    from results.runs.store import run_folders

    if argument in ("run", "runs"):
        return sorted((path.name for path in run_folders()), reverse=True)
    if argument in ("suite", "name"):
        return suite_names()
    return NETWORKS if argument == "model" else ()


def candidates(commands: Mapping[str, Described], line: str) -> list[str]:
    """Return what may stand at the cursor, for the Tab key; none: the shell offers files.

    Args:
        commands: Those of the program, by name.
        line: From the program's name to the cursor; its last word may be empty.
    """
    _, *before, last = re.split(" +", line)
    if not before:
        return [name for name in commands if name.startswith(last)]
    if not callable(command := commands.get(before[0])):
        return []
    parser = programs.command_parser(command, PROGRAM)
    of_flag = parser._option_string_actions.get(before[-1])
    actions = [of_flag] if of_flag and of_flag.nargs != 0 else parser._get_positional_actions()
    values: Iterable[str] = parser._option_string_actions
    if not last.startswith("-"):
        values = [value for action in actions for value in action.choices or values_of(action.dest)]
    return [value for value in dict.fromkeys(values) if value.startswith(last)]


def _become(command: str, *arguments: str) -> None:
    """Replace this process by a command's module, which then receives signals and sets the exit code.

    Flags may also be written with hyphens: `--num-gpus=2`.
    """
    if command != "doctor" and (missing := missing_extra()):  # the doctor reports it itself
        print(f"{PROGRAM} {command}: {missing}", file=sys.stderr)
        sys.exit(ExitCode.USAGE)
    line, environment = own_module(MODULES[command][0], *respelled(arguments, "-", "_"))
    sys.stdout.flush()
    os.execve(sys.executable, line, {**environment, "TFBENCH_PROGRAM": f"{PROGRAM} {command}"})  # for its help


if __name__ == "__main__":
    main()
