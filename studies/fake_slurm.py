"""A fake of Slurm: `fake_slurm.py COMMAND ARGUMENTS…`, with all state in the folder SIMULATED_SLURM.

Nothing runs in the background; `squeue` advances the simulated cluster to the current time. A task takes `seconds`;
arrays run one after another, with `%k` tasks at a time. `calls` counts commands.
"""

# ruff: noqa: T201 (commands print their result)

import fcntl
import json
import os
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("SIMULATED_SLURM", "."))
KEPT_SECONDS = 5.0
"""MinJobAge: how long the queue shows ended tasks."""


def main(command: str, arguments: list[str]) -> int:
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (FOLDER / "calls").open("a") as calls:
            calls.write(f"{command}\n")
        path = FOLDER / "state.json"
        state = json.loads(path.read_text())
        COMMANDS[command](state, arguments)
        path.write_text(json.dumps(state))
    return 0


def sbatch(state: dict[str, Any], arguments: list[str]) -> None:
    """Submit an array, which starts when the previous one has ended."""
    text = Path(arguments[-1]).read_text()
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", text, re.MULTILINE))
    jobs = [
        (shlex.split(job)[0], flags)
        for job, flags in re.findall(r"^\d+\) job=(\S+); set -- (.*?)(?:; image=\S+)? ;;$", text, re.MULTILINE)
    ]
    last, most = re.fullmatch(r"0-(\d+)%(\d+)", options["array"]).groups()
    assert int(last) == len(jobs) - 1, "the array has not one task per repeat"
    begins = max([time.time(), *(end(array, array["jobs"], state) for array in state["arrays"])])
    number = 100 + len(state["arrays"]) * 10_000
    array = {"number": number, "begins": begins, "most": int(most), "jobs": len(jobs), "done": 0, "cancelled": []}
    array["root"] = str(Path(arguments[-1]).absolute().parent)
    array["name"] = options["job-name"]
    state["arrays"].append(array)
    (FOLDER / f"jobs-{number}.json").write_text(json.dumps(jobs))
    print(number)


def end(array: dict[str, Any], tasks: int, state: dict[str, Any]) -> float:
    """Return when the first `tasks` of an array have ended."""
    waves = -(-tasks // array["most"])
    return float(array["begins"] + waves * state["seconds"])


def squeue(state: dict[str, Any], arguments: list[str]) -> None:
    """Advance the cluster and print its tasks like Slurm with `--array`."""
    now = time.time()
    for array in state["arrays"]:
        passed = now - array["begins"]
        waves = max(0, int(passed / state["seconds"]))
        ended = min(array["jobs"], waves * array["most"])
        running = min(array["jobs"], ended + array["most"]) if passed >= 0 else 0
        if ended > array["done"]:
            leave_results(array, array["done"], ended)
            array["done"] = ended
        if not any(word == f"--name={array['name']}" for word in arguments):
            continue
        kept = max(0, int((passed - KEPT_SECONDS) / state["seconds"])) * array["most"]
        for index in range(kept, ended) if "--states=all" in arguments else ():
            cancelled = index in array["cancelled"]
            show(array, str(index), "CANCELLED" if cancelled else "COMPLETED", node(index, array))
        for index in range(ended, running):
            if index not in array["cancelled"]:
                show(array, str(index), "RUNNING", node(index, array))
        for index in range(running, array["jobs"]):
            if index not in array["cancelled"]:
                show(array, str(index), "PENDING", "")


def node(index: int, array: dict[str, Any]) -> str:
    return f"node-{index % array['most']:04d}"


def show(array: dict[str, Any], tasks: str, name: str, place: str) -> None:
    print(f"{array['number']}_{tasks}|{name}|{place}|None")


def leave_results(array: dict[str, Any], first: int, last: int) -> None:
    """Write the files that the batch scripts of ended tasks would write."""
    from results.schema.record_json import to_json
    from tests.real.faults.benchmark import case_from_flags, good_record

    root = Path(array["root"])
    jobs = json.loads((FOLDER / f"jobs-{array['number']}.json").read_text())
    for index, (job, flags) in enumerate(jobs[first:last], start=first):
        if index in array["cancelled"]:
            continue
        words = dict(word.removeprefix("--").split("=", 1) for word in shlex.split(flags))
        folder = root / "jobs" / job
        folder.mkdir()
        (folder / "output.log").write_text(
            "tfbench: state timing\nstep     10       100.0 images/s  80.0 ms  loss 7.0\n"
        )
        (folder / "record.json").write_text(to_json(good_record(case_from_flags(words))))
        (root / "done" / job).write_text(f"code 0\nnode {node(index, array)}\nimage \n")


def sinfo(_state: dict[str, Any], arguments: list[str]) -> None:
    """Print one partition with one kind of node."""
    joined = " ".join(arguments)
    print("slurm 22.05.8" if "--version" in joined else "gpu|n|8|1000|idle|(null)")


def scancel(state: dict[str, Any], arguments: list[str]) -> None:
    """Cancel tasks that have not ended; with `--state=PENDING`, only pending ones."""
    for name in (word for word in arguments if not word.startswith("--")):
        number, _, tasks = name.partition("_")
        array = next(array for array in state["arrays"] if array["number"] == int(number))
        begun = 1 if any("PENDING" in word for word in arguments) else 0
        waves = max(0, int((time.time() - array["begins"]) / state["seconds"]) + begun)
        for span in tasks.strip("[]").split(","):
            first, _, last = span.partition("-")
            named = range(int(first), int(last or first) + 1)
            array["cancelled"] += [index for index in named if index >= waves * array["most"]]


COMMANDS = {"sbatch": sbatch, "squeue": squeue, "sinfo": sinfo, "scancel": scancel}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
