"""`python -m tests.benchmarks.gpu_evidence`: the first hour on a GPU, resumable. See README.md."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import NoReturn

from tests.benchmarks.gpu_evidence.folder import Folder, bundle, restore, write_json
from tests.benchmarks.gpu_evidence.machine import NotUsable, driver_gpus, look_around, version
from tests.benchmarks.gpu_evidence.plan import hour
from tests.benchmarks.gpu_evidence.runner import Programs
from tests.benchmarks.gpu_evidence.session import Request, Session, matches
from tests.benchmarks.gpu_evidence.steps import Step

EXIT_OK, EXIT_BAD_FLAGS, EXIT_STOPPED = 0, 2, 130

BUNDLE_BYTES = 15 << 20
"""Largest bundle; lent machines give back files of up to 16 MiB."""


def main(arguments: list[str], steps: tuple[Step, ...] = hour()) -> int:
    """Run the command line and return the exit code."""
    options = _parser().parse_args(arguments)
    for pattern in (*options.only, *options.again):
        if not any(matches(step, [pattern]) for step in steps):
            print(f"gpu_evidence: no step is named {pattern!r}; --list shows all", file=sys.stderr)
            return EXIT_BAD_FLAGS
    if options.list:
        print(listing(steps))
        return EXIT_OK
    before = signal.signal(signal.SIGTERM, _end)
    try:
        return _with_folder(options, steps)
    except NotUsable as error:
        print(f"gpu_evidence: {error}", file=sys.stderr)
        return EXIT_BAD_FLAGS
    except KeyboardInterrupt:
        print("gpu_evidence: stopped; call again to go on", file=sys.stderr)
        return EXIT_STOPPED
    finally:
        signal.signal(signal.SIGTERM, before)


def _with_folder(options: argparse.Namespace, steps: tuple[Step, ...]) -> int:
    """Hold the output folder while working, and pack it at the end, however that comes."""
    folder = Folder(options.out.resolve())
    with folder.locked() as is_ours:
        if not is_ours:
            raise NotUsable(f"another call is using {options.out}")
        try:
            return _work(options, folder, steps)
        finally:
            if options.bundle is not None and folder.environment.is_dir():
                left_out = bundle(folder, options.bundle, BUNDLE_BYTES)
                print(f"bundle: {options.bundle}" + (f", without {', '.join(left_out)}" if left_out else ""))


def _work(options: argparse.Namespace, folder: Folder, steps: tuple[Step, ...]) -> int:
    if options.restore is not None and restore(folder, options.restore):
        _say(f"continuing from {options.restore}")
    gpus = driver_gpus()
    machine = look_around(steps, gpus, options.python, options.peer)
    names = [gpu.name for gpu in gpus]
    _require_same_machine(folder, names)
    folder.create()
    write_json(folder.environment / "machine.json", {"gpus": names})
    request = Request(
        steps=steps,
        programs=Programs(python=options.python, peer_python=options.peer_python or options.python),
        only=tuple(options.only),
        again=tuple(options.again),
        budget=options.budget_seconds,
        pairs=options.pairs,
        gpus=tuple(names),
        version=options.version or version(),
    )
    done, total = Session(request, machine, folder, _say).work()
    more = "" if done == total else "; call again to go on"
    print(f"{done} of {total} steps done{more}. {folder.path / 'summary.md'}")
    return EXIT_OK


def _require_same_machine(folder: Folder, gpus: list[str]) -> None:
    """Refuse to mix the figures of two kinds of machine in one folder."""
    try:
        before = json.loads((folder.environment / "machine.json").read_text(encoding="utf-8"))["gpus"]
    except FileNotFoundError:
        return
    if before != gpus:
        raise NotUsable(
            f"{folder.path} holds figures of a machine with these GPUs: {', '.join(before) or 'none'}. "
            f"This one has: {', '.join(gpus) or 'none'}. Use another --out"
        )


def listing(steps: tuple[Step, ...]) -> str:
    """Return the plan as a table."""
    rows = [("step", "needs", "limit", "on a CPU", "question and command")]
    for step in steps:
        needs = [f"{step.gpus} GPU{'s' if step.gpus > 1 else ''}"]
        needs += ["peer"] * step.needs_peer + [step.program] * bool(step.program)
        rows.append(
            (
                step.name,
                ", ".join(needs),
                f"{step.limit:.0f} s",
                "small" if step.has_cpu_form else "no_gpu",
                step.question,
            )
        )
        for run in step.runs:
            command = " ".join([*(f"{k}={v}" for k, v in run.variables.items()), *run.command])
            rows.append(("", "", "", "", f"  {run.name}: {command}"))
        if step.compares:
            rows.append(("", "", "", "", "  in alternating pairs"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join([*(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)), row[4]]) for row in rows
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu_evidence", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-evidence"), help="output folder, which is also the state")
    parser.add_argument("--python", default=sys.executable, help="interpreter with TensorFlow")
    parser.add_argument("--peer", type=Path, help="checkout that holds tf_cnn_benchmarks.py")
    parser.add_argument("--peer-python", help="interpreter with TensorFlow and tf_keras. Default: that of --python")
    parser.add_argument(
        "--budget-seconds", type=float, default=540.0, help="end this call in time; inf: run until all is done"
    )
    parser.add_argument("--pairs", type=int, default=2, help="of each comparison")
    parser.add_argument("--only", nargs="+", default=[], metavar="STEP", help="names, groups or patterns of steps")
    parser.add_argument("--again", nargs="+", default=[], metavar="STEP", help="run these also when they are done")
    parser.add_argument("--list", action="store_true", help="print all steps and end")
    parser.add_argument("--bundle", type=Path, metavar="FILE.tar.gz", help="pack the output folder at the end")
    parser.add_argument("--restore", type=Path, metavar="FILE.tar.gz", help="go on from such a file, if it is there")
    parser.add_argument("--version", help="what is measured. Default: git's commit and a digest of the source")
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _end(*_: object) -> NoReturn:
    """End as by Ctrl-C, so that no benchmark is left running."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
