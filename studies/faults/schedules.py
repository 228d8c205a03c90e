"""Random schedules of faults, each from a seed: `python -m studies.faults.schedules --count=100` prints what broke.

Everything runs in namespaces of its own, as root, so that nothing outlives the driver. A controller is forked from a
process that has imported the orchestrator: that takes a tenth of the time of starting one, and is the same afterwards.
"""

import argparse
import atexit
import contextlib
import faulthandler
import importlib
import itertools
import json
import os
import pkgutil
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orchestrate
import results
from orchestrate import cli
from studies.faults.history import problems_after, problems_at_the_end
from studies.faults.places import MAIN, PLACES, Place, Undo, mount, truncate
from tests.real.ssh.rented import make_fake_project
from tests.support import PROJECT
from tests.support.controller import Runs
from tests.support.engines import processes

REPEATS = 2
TIMEOUT_SECONDS, SILENCE_SECONDS = 24.0, 12.0
"""Limits in hosts.yml. The benchmark works for half a second; a busy machine takes seconds to start it."""

RUN_SECONDS = 90 + (REPEATS + 4) * (TIMEOUT_SECONDS + 2 + 15)
"""Longest run: a probe, the repeats, and one each of the calls after which a host is dropped, with their margins."""

STOP_SECONDS = 15.0
"""After a second signal a run ends within this, and then prints its table."""

TABLE_SECONDS = 15.0
"""What that table, and the rest of the end, may take on a machine that is busy with other schedules."""

SHARES = {"process": 8, "ssh": 7, "docker": 3, "slurm": 2}
"""Of twenty schedules."""

HERE_BYTES = 4 << 20
JUMPS = (3600, -3600, 86_400, -86_400, 40 * 86_400, -40 * 86_400, 20 * 365 * 86_400)


@dataclass(frozen=True)
class Fault:
    """What fails, how, how many seconds after the controller's start, and for how long."""

    what: str
    how: Any
    at: float
    lasts: float

    def __str__(self) -> str:
        return f"{self.what} {self.how} at {self.at} s for {self.lasts} s"


def make_faults(number: int, place: type[Place]) -> list[list[Fault]]:
    """Return the faults of each controller of a schedule."""
    chance = random.Random(number)
    signals = [(victim, how) for victim in place.victims for how in ("KILL", "STOP", "TERM")]
    others = [*place.others, ("controller", "TERM TERM"), ("clock", None), ("run file", "events.jsonl"),
              ("run file", ".r1.json"), ("run file", "controller.json")]  # fmt: skip
    controllers = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        faults = []
        for _ in range(chance.choice((1, 1, 2, 3))):
            what, how = chance.choice(signals if chance.random() < 0.6 else others)
            how = chance.choice(JUMPS) if what == "clock" else how
            faults.append(Fault(what, how, round(chance.uniform(0, 3), 2), round(chance.choice((0.5, 3, 8, 30)), 2)))
        controllers.append(sorted(faults, key=lambda fault: fault.at))
    return controllers


@dataclass
class Schedule:
    """One run with its faults.

    Attributes:
        hit: Faults that found something to break.
        problems: What must not be.
    """

    number: int
    place: Place
    folder: Path
    hit: list[Fault] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def carry_out(self) -> None:
        """Run, with faults, then without, and look at what is left."""
        mount(self.folder, 64 << 20)
        for name in ("runs", "home"):
            mount(self.folder / name, HERE_BYTES)
        self._clock = self.folder / "clock"
        self._clock.write_bytes(bytes(8))
        (self.folder / "behaviour").write_text(json.dumps({"does": "work", "seconds": 1}))
        self._undo: list[tuple[float, Undo]] = []
        limits = {"timeout_minutes": TIMEOUT_SECONDS / 60, "silence_minutes": SILENCE_SECONDS / 60}
        Runs(self.folder).hosts({"all": self.place.begin(self.folder)}, REPEATS, **limits)
        try:
            for faults in make_faults(self.number, type(self.place)):
                self._control(faults)
            for _, undo in self._undo:
                undo()
            self._undo.clear()
            self.place.heal()
            for _ in range(2):  # the first one may still find what the faults have left
                self._control([])
            self.place.calm()
            code = self._control([])  # there is nothing to do any more but to clean up
            self.problems += problems_at_the_end(self.folder, self._run(), code, self.place, self.hit)
        except Exception:  # noqa: BLE001  of this driver: shown with its seed
            self.problems.append(f"driver: {traceback.format_exc()}")
        finally:
            self.place.end()

    def close(self) -> None:
        for folder in (self.folder / "runs", self.folder / "home", self.folder):
            subprocess.run(["umount", "--lazy", folder], check=False)

    def _run(self) -> Path | None:
        """Return the folder of the run; None: there is none yet."""
        return next((path.parent for path in (self.folder / "runs").glob("*/plan.json")), None)

    def _control(self, faults: list[Fault]) -> int:
        """Have a controller begin the run or go on with it, while things fail."""
        run, due, hits = self._run(), list(faults), []
        words = ["resume", str(run)] if run else ["run", f"--hosts={self.folder / 'hosts.yml'}"]
        output = self.folder / f"controller-{len(list(self.folder.glob('controller-*')))}"
        output.touch()
        pid, began = self._fork([*words, "--display=plain", "--no-report"], output), time.monotonic()
        second_signal = None
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
            now = time.monotonic() - began
            self.place.watch()
            for fault in [fault for fault in due if now >= fault.at]:
                undo = self._break(fault, pid)
                if undo is not None:
                    due.remove(fault)
                    hits.append(fault)
                    self._undo.append((time.monotonic() + fault.lasts, undo))
                    second_signal = now if fault.how == "TERM TERM" else second_signal
            for entry in [entry for entry in self._undo if entry[0] < time.monotonic()]:
                self._undo.remove(entry)
                entry[1]()
            held = [fault for fault in hits if (fault.what, fault.how) == ("controller", "STOP")]
            limit = RUN_SECONDS if second_signal is None else second_signal + STOP_SECONDS + TABLE_SECONDS
            if now > limit + sum(fault.lasts for fault in held):
                self.problems.append(f"hung: {output.name} has not ended after {now:.0f} s, limit {limit:.0f} s")
                os.kill(pid, signal.SIGUSR1)
                time.sleep(1)
                os.kill(pid, signal.SIGKILL)
                second_signal = -1e9
            time.sleep(0.05)
        code = os.waitstatus_to_exitcode(ended[1])
        said = output.read_text(errors="replace")
        self.problems += [
            f"{output.name}: {problem}" for problem in problems_after(code, said, self._run(), hits, self.hit)
        ]
        self.hit += hits
        return code

    def _fork(self, words: list[str], output: Path) -> int:
        if pid := os.fork():
            return pid
        code = 99
        try:
            os.setsid()
            for number, flags in ((0, os.O_RDWR), (1, os.O_CREAT | os.O_WRONLY), (2, None)):
                file = os.dup(1) if flags is None else os.open(os.devnull if number == 0 else output, flags)
                os.dup2(file, number)
            os.environ.update(
                self.place.environment,
                FAULTS=str(self.folder),
                TFBENCH_RUNS_DIR=str(self.folder / "runs"),
                TFBENCH_TEST_CLOCK=str(self._clock),
                COLUMNS="200",
            )
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            faulthandler.register(signal.SIGUSR1, sys.stderr, all_threads=True)
            sys.argv = ["orchestrate", *words]
            try:
                cli.main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
            os._exit(code)

    def _break(self, fault: Fault, controller: int) -> Undo | None:
        """Let a fault happen; None: what it breaks is not there yet."""
        if fault.what == "clock":
            with self._clock.open("r+b") as file:  # in place: processes have it mapped
                file.write(int(fault.how).to_bytes(8, "little", signed=True))
            return lambda: None
        if fault.what == "run file":
            return truncate(self.folder / "runs", fault.how)
        if fault.what not in self.place.victims:
            return self.place.other(fault.what, fault.how)
        pids = self.place.find(fault.what, controller)
        for word in fault.how.split():
            processes.send(getattr(signal, f"SIG{word}"), pids)
            time.sleep(0.2 if " " in fault.how else 0)
        return (lambda: self.place.undo(fault.what, pids)) if pids else None


def work(kind: str, numbers: list[int], folder: Path, report: Path, options: argparse.Namespace) -> None:
    """Carry out schedules one after another in a place."""
    folder.mkdir()
    processes._PORTS = itertools.count(random.SystemRandom().randrange(10_000, 30_000))
    place = PLACES[kind](folder, options.benchmark, *([options.image] if kind == "docker" else []))
    for number in numbers:
        schedule = Schedule(number, place, folder / str(number))
        schedule.carry_out()
        if schedule.problems:
            uncopied = shutil.ignore_patterns("mode", "filler", "*sock*")
            kept = options.kept / str(number)
            shutil.copytree(schedule.folder, kept, True, uncopied, ignore_dangling_symlinks=True, dirs_exist_ok=True)
        schedule.close()
        faults = [[str(fault) for fault in faults] for faults in make_faults(number, type(place))]
        hit = [f"{fault.what} {fault.how}" for fault in schedule.hit]
        line = json.dumps({"seed": number, "place": kind, "faults": faults, "hit": hit, "problems": schedule.problems})
        with report.open("a") as file:
            file.write(f"{line}\n")
        print("ok  " if not schedule.problems else "FAIL", line, file=sys.stderr, flush=True)  # noqa: T201
    place.close()


def main() -> int:
    """Carry out schedules side by side and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1, help="of the first schedule; the others follow")
    parser.add_argument("--workers", default="8,6,2,1", help=f"schedules side by side, by place: {', '.join(SHARES)}")
    parser.add_argument("--image", type=Path, help="archive of the fake benchmark's image, for docker")
    parser.add_argument("--kept", type=Path, default="/var/tmp/tfbench-faults", help="folders of those that failed")
    options = parser.parse_args()
    if os.getpid() != 1:
        return enter()
    for package in (orchestrate, results):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    importlib.import_module("pandas")
    folder = Path(tempfile.mkdtemp(prefix="tfb-f"))
    mount(folder, 2 << 30)
    options.benchmark = make_fake_project(folder / "benchmark", MAIN)
    options.kept.mkdir(parents=True, exist_ok=True)
    options.kept = Path(tempfile.mkdtemp(dir=options.kept))
    report = folder / "report"
    report.touch()
    workers = dict(zip(SHARES, map(int, options.workers.split(",")), strict=True))
    working = set()
    for kind, numbers in places_of(options.seed, options.count).items():
        for index in range(workers[kind]):
            if pid := os.fork():
                working.add(pid)
                continue
            try:
                if mine := numbers[index :: workers[kind]]:
                    work(kind, mine, folder / f"{kind[:2]}{index}", report, options)
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
            os._exit(0)
    while working:  # PID 1 of its namespace: it also reaps orphans, and the others end with it
        working.discard(os.wait()[0])
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    failed = [line["seed"] for line in lines if line["problems"]]
    hits = Counter(hit for line in lines for hit in line["hit"])
    counts = {"places": Counter(line["place"] for line in lines), "faults that hit": hits.total()}
    print(json.dumps({"schedules": len(lines), "failed": failed, **counts, "kinds of faults": len(hits)}))  # noqa: T201
    return 1 if failed or len(lines) < options.count else 0


def places_of(seed: int, count: int) -> dict[str, list[int]]:
    """Return the numbers of schedules by place: a number means the same place each time."""
    turns = [kind for turn in range(8) for kind in SHARES if turn < SHARES[kind]]
    numbers: dict[str, list[int]] = {kind: [] for kind in SHARES}
    for number in range(seed, seed + count):
        numbers[turns[number % len(turns)]].append(number)
    return numbers


def enter() -> int:
    """Start again in namespaces of its own, with a clock that can be set."""
    with tempfile.TemporaryDirectory(prefix="tfb-clock-") as folder:
        shim = Path(folder, "clock.so")
        source = Path(__file__).with_name("clock.c")
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], check=True)
        spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private"]
        environment = {**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": str(PROJECT), "TFBENCH_TEST_SHIM": "1"}
        command = [*spaces, sys.executable, "-m", "studies.faults.schedules", *sys.argv[1:]]
        return subprocess.run(command, env=environment, cwd=PROJECT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
