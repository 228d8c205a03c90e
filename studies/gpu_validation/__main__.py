"""All measurements that need a real GPU, the most informative steps first; `make gpu-validation OUT=FOLDER` calls it.

    make gpu-validation OUT=h100 PEER=../benchmarks  # also compares with tf_cnn_benchmarks (github.com/tensorflow/benchmarks)
    make gpu-validation OUT=h100 ARGS="--only environment checks device 'replicas.pack-*'"

Groups of steps, all in `steps.py`:

    environment       TensorFlow sees the GPU, cuDNN convolves, XLA compiles; the doctor's findings
    checks            fp32, tf32, fp16 and bf16 pass their validity checks
    device            rates of matrix products, memory and copies
    throughput, peer  networks by precision, XLA off and `replica`; over tf_cnn_benchmarks at batch 64 and 256
    switch            throughput with one setting over throughput without it
    pytorch           ResNet50 over PyTorch's, eager and compiled: whether a low figure is the GPU's or TensorFlow's
    container         container over bare process, `kill -9` of the controller and `resume`
    latency           inference at batch 1
    replicas          two GPUs or more: checks, NCCL's report, bus bandwidth, packs, 16-bit gradients, no all-reduce

A step ends in a figure with its unit, `no_gpu`, `no_peer`, `no_torch`, `no_engine`, `timeout`, or `failed` with its
cause. The two sides of a comparison alternate; the ratio is that of their medians. If a GPU does not compute, nothing
else is tried. Without GPUs, steps that make sense on a CPU run at reduced sizes. A step takes 6 to 50 s on an H100;
for a short lease, start with `--only environment checks device --pairs=1`.

The folder is the state: a step is done when `results/STEP.json` exists, so a killed call continues, also on a fresh
machine with the unpacked folder; to run a step again, remove that file. `summary.md` has a line per step,
`records/STEP.RUN.json` what one process wrote, `logs/STEP.RUN.log` the rest of its output, `runs/` the run folders of
containers, `machine.json` the machine: a folder holds figures of one kind of machine and refuses any other. Commit it
to `results/reference/measured/`. Never change clocks, power limits, compute mode or MIG of a borrowed machine.
"""

import argparse
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn

from studies.gpu_validation.figures import Ended, NoFigure, Reading, read_step
from studies.gpu_validation.steps import START, STEPS, Machine, Run, Step, batch_of, refusal, runs_of
from studies.tf_cnn_benchmarks import PROGRAM, find_folder
from tests.support import PROJECT
from tfbench.supervisor import end_with_parent

EXIT_BAD_FLAGS, EXIT_STOPPED = 2, 130

FINAL = ("figure", "timeout", "failed")
"""Outcomes that a later call does not retry; others may change with the machine."""

SECONDS_TO_ANSWER = 120.0
"""Timeout of the probe: a driver without persistence mode takes many seconds to start."""

SECONDS_TO_END = 5.0
"""Time between SIGTERM and SIGKILL; a benchmark's own limit is shorter by this."""


class NotUsable(Exception):
    """Nothing can run here; the message has the reason and a remedy."""


def main(arguments: list[str], steps: Sequence[Step] = STEPS) -> int:
    """Run the command line and return the exit code."""
    options = _parser().parse_args(arguments)
    unknown = [name for name in options.only if not any(matches(step, [name]) for step in steps)]
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        if unknown:
            raise NotUsable(f"no step is named {unknown[0]!r}")
        Session(options, steps).work()
        return 0
    except NotUsable as error:
        print(f"gpu_validation: {error}", file=sys.stderr)
        return EXIT_BAD_FLAGS
    except KeyboardInterrupt:
        print("gpu_validation: stopped; call again to go on", file=sys.stderr)
        return EXIT_STOPPED
    finally:
        signal.signal(signal.SIGTERM, before)


def matches(step: Step, patterns: Sequence[str]) -> bool:
    """Return whether a step matches a name, group or pattern."""
    return any(pattern == step.name.partition(".")[0] or fnmatchcase(step.name, pattern) for pattern in patterns)


class Session:
    """One call: runs all steps that are not done, in order.

    The output folder is the state: a step is done if its result, which is written last, exists.

    Args:
        options: Parsed command line.
        steps: All steps of the table; the summary has a line for each.

    Raises:
        NotUsable: The interpreter, the peer or the folder cannot be used.
    """

    def __init__(self, options: argparse.Namespace, steps: Sequence[Step]) -> None:
        self._options, self._steps, self._out = options, steps, options.out.resolve()
        peer = find_folder(options.peer) if options.peer else None
        if options.peer and peer is None:
            raise NotUsable(
                f"--peer={options.peer} holds no {PROGRAM}. Example: --peer=benchmarks, a clone of "
                "https://github.com/tensorflow/benchmarks"
            )
        self._facts = machine_facts(options.python)
        self._machine = Machine(
            gpus=self._facts["gpus"],
            peer=peer,
            no_torch=torch_problem(options.torch_python or options.python),
            no_engine=engine_problem(options.engine),
        )
        self._version = version()

    def work(self) -> None:
        """Run the steps while locking the folder."""
        for name in ("results", "records", "logs"):
            (self._out / name).mkdir(parents=True, exist_ok=True)
        with (self._out / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise NotUsable(f"another call is using {self._options.out}") from None
            self._require_same_machine()
            wanted = [step for step in self._steps if not self._options.only or matches(step, self._options.only)]
            for step in wanted:
                self._visit(step)
        print(f"{len(wanted)} steps done. {self._out / 'summary.md'}")

    def _require_same_machine(self) -> None:
        """Raise NotUsable if the folder has figures of another kind of machine."""
        file = self._out / "machine.json"
        here = [gpu["name"] for gpu in self._machine.gpus]
        before = [gpu["name"] for gpu in json.loads(file.read_text())["gpus"]] if file.exists() else here
        if before != here:
            raise NotUsable(
                f"{self._out} holds figures of a machine with these GPUs: {', '.join(before) or 'none'}. "
                f"This one has: {', '.join(here) or 'none'}. Use another --out"
            )
        _write(file, json.dumps(self._facts, indent=1) + "\n")

    def _visit(self, step: Step) -> None:
        """Run a step if it can run and is not done yet."""
        result = self._result(step)
        final = FINAL[:1] if step.name in START else FINAL
        done = result is not None and result["outcome"] in final
        if not done and (refused := refusal(step, self._machine)) is not None:
            self._keep(step, outcome=refused[0], cause=refused[1])
        elif not done:
            self._file("results", step).unlink(missing_ok=True)  # it is not done until it has run
            self._run(step, runs_of(step, self._machine, self._options.pairs))
        result = self._result(step)
        if step.name in START and not self._machine.no_gpu and result is not None and result["outcome"] != "figure":
            self._machine = dataclasses.replace(self._machine, no_gpu=f"step {step.name}: {result['cause']}")

    def _run(self, step: Step, runs: Sequence[Run]) -> None:
        """Run a step and keep its result."""
        _say(f"{step.name}: {step.question} (at most {step.limit:.0f} s)")
        started_at, begin, ended = _now(), time.perf_counter(), list[Ended]()
        for run in runs:
            ended.append(self._process(step, run, step.limit - (time.perf_counter() - begin)))
            if ended[-1].exit_code != 0:
                break
        found: dict[str, Any] = {"outcome": "figure"}
        reading = Reading(figures={})
        try:
            reading = read_step(step.answer, ended)
        except NoFigure as failure:
            found = {"outcome": failure.outcome, "cause": failure.cause}
        shown = [self._shown(run) for run in ended]
        seconds = round(time.perf_counter() - begin, 1)
        found |= {**dataclasses.asdict(reading), "seconds": seconds, "limit": step.limit, "runs": shown}
        commands = list(dict.fromkeys(_shown_command(run) for run in runs))  # with the batches that fit
        self._keep(step, started_at=started_at, commands=commands, batch=batch_of(runs[0]), **found)

    def _process(self, step: Step, run: Run, seconds: float) -> Ended:
        """Run a process and its children for at most `seconds`."""
        record, log = self._file("records", step, f".{run.name}"), self._file("logs", step, f".{run.name}", "log")
        record.unlink(missing_ok=True)
        values = {
            "{python}": self._options.python,
            "{peer_python}": self._options.peer_python or self._options.python,
            "{torch_python}": self._options.torch_python or self._options.python,
            "{engine}": self._options.engine or "",
            "{image}": self._options.image,
            "{out}": str(self._out),
            "{record}": str(record),
            "{gpus}": str(max(1, len(self._machine.gpus))),
            "{seconds}": f"{max(1.0, seconds - SECONDS_TO_END):.0f}",
        }
        command = list(run.command)
        for name, value in values.items():
            command = [part.replace(name, value) for part in command]
        begin = time.perf_counter()
        with log.open("wb") as errors, contextlib.ExitStack() as stack:
            output = errors if "{record}" in " ".join(run.command) else stack.enter_context(record.open("wb"))
            process = subprocess.Popen(
                command,
                env={**os.environ, **run.variables},
                cwd=self._machine.peer if PROGRAM in run.command else PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                process_group=0,
                preexec_fn=end_with_parent,
            )
            stack.callback(_end_all_of, process)
            try:
                exit_code = process.wait(max(0.0, seconds))
            except subprocess.TimeoutExpired:
                exit_code = None
        took = time.perf_counter() - begin
        return Ended(name=run.name, command=command, seconds=took, exit_code=exit_code, record=record, log=log)

    def _shown(self, run: Ended) -> dict[str, Any]:
        paths = {name: getattr(run, name).relative_to(self._out).as_posix() for name in ("record", "log")}
        return {"name": run.name, "seconds": round(run.seconds, 1), "exit_code": run.exit_code, **paths}

    def _file(self, folder: str, step: Step, run: str = "", ending: str = "json") -> Path:
        return self._out / folder / f"{step.name}{run}.{ending}"

    def _result(self, step: Step) -> dict[str, Any] | None:
        try:
            return dict(json.loads(self._file("results", step).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None

    def _keep(self, step: Step, **found: Any) -> None:
        """Write a step's result."""
        commands = [_shown_command(run) for run in step.runs]
        about = {"step": step.name, "question": step.question, "answer": step.answer, "commands": commands}
        result = {**about, "version": self._version, "started_at": _now(), **found}
        _write(self._file("results", step), json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        self._summarise()
        if "runs" in found:
            _say(f"{step.name}: {answer(result)}, {found['seconds']:.0f} s")

    def _summarise(self) -> None:
        """Write the summary with a line for each step that was tried."""
        results = [self._result(step) for step in self._steps]
        gpus = ", ".join(gpu["name"] for gpu in self._machine.gpus)
        versions = {result["version"] for result in results if result and result["outcome"] == "figure"}
        lines = [
            f"# GPU validation\n\n{sum(map(bool, results))} of {len(results)} steps done. GPUs: "
            + (gpus or "none; figures are of a CPU at reduced sizes and do not apply to a GPU"),
            f"Version: {', '.join(sorted(versions)) or 'none yet'}.\n",
            "| step | answer | batch per GPU | power | utilisation | seconds | note | question |",
            "|" + " --- |" * 8,
        ]
        lines += [_row(step, result) for step, result in zip(self._steps, results, strict=True) if result]
        _write(self._out / "summary.md", "\n".join(lines) + "\n")


def answer(result: dict[str, Any]) -> str:
    """Format a step's outcome: its figure, or the outcome and its cause."""
    if result.get("outcome") != "figure":
        return str(result["outcome"]) + (f": {result['cause']}" if result.get("cause") else "")
    figure = result["figures"][result["answer"]]
    value, limit = figure["value"], figure["limit"]
    number = f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
    return f"{number} {figure['unit']}".rstrip() + (f" (limit {limit:.4g})" if limit is not None else "")


def _row(step: Step, result: dict[str, Any]) -> str:
    details = result.get("details", {})
    power, utilisation = details.get("power_mean_watts"), details.get("flops_utilisation")
    cells = [
        *(step.name, answer(result), str(result.get("batch") or ""), f"{power:.0f} W" if power else ""),
        f"{utilisation:.1%}" if utilisation else "",
        *(f"{result['seconds']:.0f}" if "seconds" in result else "", result.get("note", ""), step.question),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def machine_facts(python: str) -> dict[str, Any]:
    """Return the facts of this machine, with the GPUs that a process can use.

    Raises:
        NotUsable: The probe failed, or the interpreter has no TensorFlow.
    """
    command = [python, "-m", "tfbench.probe"]
    try:
        done = subprocess.run(
            command, cwd=PROJECT, capture_output=True, text=True, timeout=SECONDS_TO_ANSWER, check=True
        )
        facts = dict(json.loads(done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NotUsable(f"--python={python}: {error}") from error
    if facts.get("tensorflow") is None:
        raise NotUsable(f"--python={python} has no TensorFlow")
    return facts


def torch_problem(python: str) -> str:
    """Return why an interpreter cannot run PyTorch; empty: it can."""
    found = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run([python, "-c", found], check=True, capture_output=True, timeout=SECONDS_TO_ANSWER)
        return ""
    return f"{python} has no torch: --torch-python names an interpreter that has"


def engine_problem(url: str | None) -> str:
    """Return why no engine can run containers; empty: one answers."""
    try:  # imported here: a bare GPU machine may lack the controller's packages
        from orchestrate.engines.docker.engine import DockerEngine, controller_address
        from orchestrate.errors import HostError, UserError
    except ImportError as error:
        return f"{sys.executable} lacks the controller's packages: {error}"
    try:
        with contextlib.closing(DockerEngine(controller_address(url))) as engine:
            engine.info()
    except (HostError, UserError) as error:
        return f"{error} (--engine=unix://… names another socket of Docker or Podman)"
    return ""


def version() -> str:
    """Return the version of tfbench: the git commit if known, and a digest of its source files."""
    files = sorted(path for package in ("tfbench", "results") for path in (PROJECT / package).rglob("*.py"))
    digest = _digest(b"\0".join(path.read_bytes() for path in files))
    described = ["git", "-C", str(PROJECT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(described, capture_output=True, text=True, check=True)
        return f"{done.stdout.strip()} (source {digest})"
    return f"source {digest}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _shown_command(run: Run) -> str:
    return " ".join([*(f"{name}={value}" for name, value in run.variables.items()), *run.command])


def _end_all_of(process: subprocess.Popen[bytes]) -> None:
    """End a process's whole group, so that it does not disturb the next one."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_TO_END)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _write(path: Path, text: str) -> None:
    """Write a file atomically."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _stop(*_: object) -> NoReturn:
    """Raise KeyboardInterrupt, so that no benchmark is left running."""
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m studies.gpu_validation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-validation"), help="output folder, which is also the state"
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter with TensorFlow")
    parser.add_argument("--peer", type=Path, help="checkout with tf_cnn_benchmarks.py")
    parser.add_argument("--peer-python", help="interpreter with TensorFlow and tf_keras. Default: that of --python")
    parser.add_argument("--torch-python", help="interpreter with torch. Default: that of --python")
    parser.add_argument(
        "--engine", help="unix://… of a Docker or Podman engine. Default: DOCKER_HOST, else the usual socket"
    )
    parser.add_argument("--image", default="", help="tfbench image on that engine. Default: built from this checkout")
    parser.add_argument("--pairs", type=int, default=2, help="pairs of each comparison")
    parser.add_argument("--only", nargs="+", default=[], metavar="STEP", help="names, groups or patterns of steps")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
