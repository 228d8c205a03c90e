"""The `tfbench` program, with its commands in the order of work.

`measure` and `doctor` start `python -m tfbench` and `python -m tfbench.doctor`: the benchmark is never imported here,
so `tfbench` works without TensorFlow. For the Tab key, the shell starts the program with `TFBENCH_COMPLETE` set and the
words typed so far, the unfinished one last, and gets one candidate per line; if there is none, it offers files.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, NoReturn

from orchestrate.commands import COMMANDS, IMAGE_COMMANDS
from orchestrate.display.streams import undelayed_streams
from orchestrate.project import missing_extra
from results import commands as results_commands
from results.errors import UserError
from results.program import (
    PROGRAM,
    Parser,
    add_command,
    exit_code_text,
    positional,
    respelled,
    run_main,
    started_as_tfbench,
)
from results.schema import Case
from results.schema.exit_codes import ExitCode
from results.schema.version import __version__

MODULES = {"doctor": "tfbench.doctor", "measure": "tfbench", "make-dataset": "tfbench.make_dataset"}
"""Commands that run on the measured machine, with their modules."""

MODULE_HELP = {
    "doctor": "check this machine: driver, GPUs, CUDA libraries, TensorFlow, NCCL; a fix for each finding",
    "measure": "measure one case on this machine and write its record (--help shows the flags)",
    "make-dataset": "write a small data set of JPEG files, for measure --data=tfrecord",
}

GROUPS = (
    (
        "Measure a fleet",
        "run --suite quick --stop-early 2%",
        ("init", "suites", "check", "plan", "run", "resume", "runs", "status", "stop", "images"),
    ),
    ("Read results", "compare a5000 a4000", ("show", "compare", "report", "export", "validate")),
    (
        "Choose a GPU",
        "recommend --model resnet50 --gpus A4000,A5000",
        ("recommend", "gpus", "audit"),
    ),
    ("On this machine", "doctor", ("doctor", "measure", "make-dataset", "completion")),
)
"""Title, an example and the commands, in the order of work."""

UNDELAYED = ("check", "run", "resume", "stop")
"""Commands that hosts wait for; in the others, a pager may be read for hours."""

KEPT = ("run", "resume")
"""Commands whose results are in the run's folder, so that output to a full disk is no error."""

EXAMPLES = {
    "init": "init --from vast instances.json",
    "suites": "suites standard",
    "check": "check --hosts hosts.yml --deep",
    "plan": "plan --limit a4000 --suite quick",
    "run": "run --when-done 'sky down -y bench'",
    "resume": "resume --again oom,error",
    "runs": "runs --format json",
    "status": "status 20261124-101500-1234",
    "stop": "stop 20261124-101500-1234",
    "images": "images push --hosts hosts.yml",
    "show": "show --time-breakdown",
    "compare": "compare a5000 a4000",
    "report": "report --output report.html",
    "export": "export --format csv --output results.csv",
    "validate": "validate runs/mine",
    "recommend": "recommend --model resnet50 --gpus A4000,A5000",
    "gpus": "gpus A4000 A5000",
    "audit": "audit table.csv",
    "completion": "completion bash",
}
"""An example for the help of each command; those of `MODULES` have their own help."""

ORDER = tuple(name for *_, names in GROUPS for name in names)


class _Program(Parser):
    """The program's parser, whose help lists the commands in groups."""

    def format_help(self) -> str:
        """Return the text of `--help`."""
        width = min(100, shutil.get_terminal_size().columns)
        lines = [f"usage: {self.prog} COMMAND [options]", "", str(self.description), ""]
        for title, example, names in GROUPS:
            lines.append(f"{title}, e.g. {self.prog} {example}")
            for name in names:
                lines += textwrap.wrap(HELP[name], width, initial_indent=f"    {name:14}", subsequent_indent=" " * 18)
            lines.append("")
        lines += [f"{self.prog} COMMAND --help shows the options of a command.", ""]
        return "\n".join([*lines, *textwrap.wrap(exit_code_text(), width), ""])


HELP: dict[str, str] = {}
"""Help text by command, from its parser."""


def main() -> None:
    """Run the program; the entry point of the installed command."""
    arguments = sys.argv[1:]
    if VARIABLE in os.environ:
        print("\n".join(candidates(make_parser(), arguments)))
        return
    if arguments and arguments[0] in MODULES:
        if arguments[0] != "doctor" and (missing := missing_extra()):  # the doctor reports it itself
            print(f"{PROGRAM} {arguments[0]}: {missing}", file=sys.stderr)
            sys.exit(ExitCode.USAGE)
        _become(arguments[0], arguments[1:])
    parsed = parse(sys.argv)
    with undelayed_streams() if arguments[0] in UNDELAYED else contextlib.nullcontext():
        code = run_main(parsed, may_lose_output=arguments[0] in KEPT)
    sys.exit(code)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; mistakes end the program with exit code 2.

    Args:
        arguments: As in `sys.argv`, beginning with the program's name.
    """
    return make_parser().parse_args(respelled(arguments[1:], "_", "-"))


def make_parser(program: str = "") -> argparse.ArgumentParser:
    """Return the parser of the command line; an empty name means that of the running program."""
    parser = _Program(
        prog=program or (PROGRAM if started_as_tfbench() else "python -m orchestrate"),
        description="Find the GPU to rent for TensorFlow training: measure a fleet, compare, recommend.",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    functions = {function.__name__: function for function in (*COMMANDS, *results_commands.COMMANDS, completion)}
    for name in ORDER:
        if name == "images":
            what = "list, build, push or verify the container images"
            images = commands.add_parser(name, help=what, description=f"{what.capitalize()}.")
            actions = images.add_subparsers(required=True, metavar="ACTION", parser_class=Parser)
            for function in IMAGE_COMMANDS:
                add_command(actions, function)
        elif name in MODULES:
            commands.add_parser(name, help=MODULE_HELP[name], add_help=False)
        else:
            add_command(commands, functions[name], results_commands.USAGE)
    for name, example in EXAMPLES.items():
        commands.choices[name].epilog = f"Example: {parser.prog} {example}"
    for action in commands._choices_actions:
        HELP[action.dest] = str(action.help)
    return parser


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], positional("bash, zsh or fish")]) -> int:
    """Print a completion script for a shell."""
    sys.stdout.write(SCRIPTS[shell])
    return ExitCode.OK


def _become(command: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by a command's module, which then receives signals and sets the exit code.

    Flags may also be written with hyphens: `--num-gpus=2`.
    """
    project = str(Path(__file__).absolute().parents[1])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [project, os.environ.get("PYTHONPATH")])),
        "TFBENCH_PROGRAM": f"{PROGRAM} {command}",  # for its help
    }
    sys.stdout.flush()
    os.execve(
        sys.executable,
        # -P: ignore a folder named tfbench in the user's working folder.
        [sys.executable, "-P", "-m", MODULES[command], *respelled(arguments, "-", "_")],
        environment,
    )


VARIABLE = "TFBENCH_COMPLETE"

SCRIPTS = {
    "bash": """\
_tfbench() {
    local IFS=$'\\n'
    COMPREPLY=($(TFBENCH_COMPLETE=1 "$1" "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _tfbench tfbench
""",
    "zsh": """\
#compdef tfbench
_tfbench() {
    local -a found
    found=(${(f)"$(TFBENCH_COMPLETE=1 "${words[1]}" "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -a found; else _files; fi
}
if [ "$funcstack[1]" = "_tfbench" ]; then _tfbench; else compdef _tfbench tfbench; fi
""",
    "fish": """\
function __tfbench
    set -l words (commandline -opc) (commandline -ct)
    set -l found (TFBENCH_COMPLETE=1 $words[1] $words[2..] 2>/dev/null)
    if test (count $found) -gt 0; string join \\n $found; else; __fish_complete_path (commandline -ct); end
end
complete -c tfbench -f -a '(__tfbench)'
""",
}
"""Output of `tfbench completion SHELL`, by shell."""


def candidates(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Return the candidates for the last word.

    Args:
        parser: Of the whole program.
        words: As typed after the program's name; the last one is unfinished and may be empty. Bash splits
            `--flag=value` into three words.
    """
    before = [word for word in words[:-1] if word != "="]
    last = "" if words[-1:] in ([], ["="]) else words[-1]
    last_flag, equals, typed = last.partition("=")
    if equals and last_flag.startswith("--"):
        return [f"{last_flag}={value}" for value in _beginning(typed, _flag_values(_at(parser, before), last_flag))]
    if before[:1] == ["measure"]:  # its flags are absl's
        return _beginning(last, [flag.partition("=")[0] for flag in Case(model="resnet50").flags()])
    parser = _at(parser, before)
    if last.startswith("-"):
        shown = [action for action in parser._actions if action.help is not argparse.SUPPRESS]
        return _beginning(last, [name for action in shown for name in action.option_strings])
    if before and (values := _flag_values(parser, before[-1])) is not None:
        return _beginning(last, values)
    return _beginning(last, [value for action in parser._get_positional_actions() for value in _values(action)])


def _at(parser: argparse.ArgumentParser, words: Iterable[str]) -> argparse.ArgumentParser:
    """Return the parser of the command named by the first words."""
    for word in words:
        for action in parser._get_positional_actions():
            if isinstance(action, argparse._SubParsersAction) and word in action.choices:
                parser = action.choices[word]
    return parser


def _flag_values(parser: argparse.ArgumentParser, flag: str) -> list[str] | None:
    """Return the values of a flag; None: it takes no value, or does not exist."""
    action = parser._option_string_actions.get(flag)
    return None if action is None or action.nargs == 0 else _values(action)


def _values(action: argparse.Action) -> list[str]:
    """Return the known values of a flag or an argument; none: files, or free text."""
    if action.choices is not None:
        return list(action.choices)
    known = {
        "limit": _places,
        "model": _networks,
        "name": _suites,
        "names": _places,
        "run": _runs,
        "runs": _runs,
        "suite": _suites,
    }
    return known[action.dest]() if action.dest in known else []


def _beginning(typed: str, values: Iterable[str] | None) -> list[str]:
    return [value for value in dict.fromkeys(values or ()) if value.startswith(typed)]


def _runs() -> list[str]:
    from results.runs.store import run_folders, runs_dir

    return sorted((path.name for path in run_folders(runs_dir())), reverse=True)


def _places() -> list[str]:
    """Return the fleets and hosts of the hosts file."""
    from orchestrate.inventory.hosts import read_hosts

    with contextlib.suppress(UserError):
        hosts = read_hosts(Path(os.environ.get("TFBENCH_HOSTS") or "hosts.yml"), None)
        return [*(host.fleet for host in hosts), *(host.name for host in hosts)]
    return []


def _suites() -> list[str]:
    from orchestrate.suites import suite_names

    return suite_names()


def _networks() -> list[str]:
    from results.schema.networks import NETWORKS

    return list(NETWORKS)


if __name__ == "__main__":
    main()
