"""The driver end to end, as a command line, with steps that take no time."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.benchmarks.gpu_evidence.__main__ import main
from tests.benchmarks.gpu_evidence.machine import driver_gpus
from tests.benchmarks.gpu_evidence.steps import Run, Step
from tests.unit.gpu_evidence.small_plan import counting_run, counting_step, interrupted_plan, rate_run

pytestmark = pytest.mark.slow  # starts programs and waits for them

ROOT = Path(__file__).parents[3]

INTERPRETER = """#!/bin/sh
case "$*" in
  *"tfbench --help") printf '\\ntfbench.flags:\\n  --model: It.\\n  --[no]peaks: Them.\\n  -h,--[no]help: This.\\n' ;;
  *) exec {python} "$@" ;;
esac
"""


class Bench:
    """One output folder, one plan, and calls of the driver."""

    def __init__(self, folder: Path, capsys) -> None:
        self.out, self.marks, self.capsys = folder / "out", folder / "marks", capsys
        self.python = folder / "python"
        self.python.write_text(INTERPRETER.format(python=sys.executable))
        self.python.chmod(0o755)
        self.marks.touch()

    def step(self, name: str, **changes) -> Step:
        return counting_step(self.marks, name, **changes)

    def call(self, steps, *arguments: str) -> str:
        """Call the driver; return what it printed on stdout, or stderr where it failed."""
        code = main([f"--out={self.out}", f"--python={self.python}", *arguments], tuple(steps))
        printed = self.capsys.readouterr()
        return printed.out if code == 0 else f"{code}: {printed.err}"

    def outcomes(self) -> dict[str, str]:
        return {step["step"]: step["outcome"] for step in self.summary()["steps"]}

    def summary(self) -> dict:
        return json.loads((self.out / "summary.json").read_text())

    def result(self, step: str) -> dict:
        return json.loads((self.out / "results" / f"{step}.json").read_text())

    def ran(self) -> Counter[str]:
        return Counter(self.marks.read_text().split())


def show_gpus(folder: Path, monkeypatch, *names: str) -> None:
    """Put an `nvidia-smi` in front that shows these GPUs; without names it fails as where there is no driver."""
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    lines = "".join(f"echo '{name}, 143771, Disabled'\n" for name in names)
    (place / "nvidia-smi").write_text(f"#!/bin/sh\n{lines or 'exit 9'}\n")
    (place / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys) -> Bench:
    show_gpus(tmp_path, monkeypatch)
    return Bench(tmp_path, capsys)


def test_every_step_ends_in_one_outcome_and_a_line_of_the_summary(bench):
    failing = Run(name="run", command=("{python}", "-c", "import sys; print('no luck'); sys.exit(3)"), cpu=())
    unknown = Run(name="run", command=("{python}", "-m", "tfbench", "--model=x", "--nopeaks", "--warp"), cpu=())
    steps = [
        bench.step("a.figure", value=1234.5),
        bench.step("b.gpu", on_cpu=False),
        bench.step("c.peer", needs_peer=True),
        bench.step("d.flag", runs=(unknown,)),
        bench.step("e.program", program="no-such-profiler"),
        bench.step("f.fails", runs=(failing,)),
        bench.step("g.slow", seconds=60.0, limit=1.0),
    ]
    assert "7 of 7 steps done. " in bench.call(steps)
    assert bench.outcomes() == {
        "a.figure": "figure",
        "b.gpu": "no_gpu",
        "c.peer": "no_peer",
        "d.flag": "skipped",
        "e.program": "skipped",
        "f.fails": "failed",
        "g.slow": "timeout",
    }
    rows = {
        line.split(" | ")[0].removeprefix("| "): line for line in (bench.out / "summary.md").read_text().split("\n")
    }
    assert "| 1,234 apples |" in rows["a.figure"]
    assert "| no_gpu |" in rows["b.gpu"] and "the driver shows no GPU" in rows["b.gpu"]
    assert "| skipped |" in rows["d.flag"] and "unknown flag --warp" in rows["d.flag"]
    assert "| failed: exit code 3: no luck |" in rows["f.fails"]
    assert "cut after 1 s" in rows["g.slow"]
    assert (bench.out / "logs" / "f.fails.run.log").read_text() == "no luck\n"
    assert bench.summary()["outcomes"] == {
        "figure": 1, "no_gpu": 1, "no_peer": 1, "skipped": 2, "timeout": 1, "failed": 1
    }  # fmt: skip


def test_a_second_call_runs_only_what_has_no_figure(bench):
    steps = [bench.step("a.one"), bench.step("b.slow", seconds=60.0, limit=1.0), bench.step("c.two")]
    bench.call(steps)
    before = bench.result("a.one")
    bench.call(steps)
    assert bench.ran() == {"a.one": 1, "b.slow": 1, "c.two": 1}  # the timeout is not tried again either
    assert bench.result("a.one") == before


def test_again_runs_a_step_once_more(bench):
    steps = [bench.step("a.one"), bench.step("a.two"), bench.step("b.one")]
    bench.call(steps)
    bench.call(steps, "--again", "a.one")
    bench.call(steps, "--again", "a")
    assert bench.ran() == {"a.one": 3, "a.two": 2, "b.one": 1}


def test_only_runs_what_it_names_and_counts_it(bench):
    steps = [bench.step("a.one"), bench.step("a.two"), bench.step("b.one")]
    assert "2 of 2 steps done. " in bench.call(steps, "--only", "a")
    assert bench.outcomes() == {"a.one": "figure", "a.two": "figure", "b.one": None}
    assert "| not run yet |" in (bench.out / "summary.md").read_text()
    assert bench.call(steps, "--only", "a.three").startswith("2: gpu_evidence: no step is named 'a.three'")


def test_a_step_whose_definition_changed_runs_again(bench):
    bench.call([bench.step("a.one", value=1.0), bench.step("b.one")])
    bench.call([bench.step("a.one", value=2.0), bench.step("b.one")])
    assert bench.ran() == {"a.one": 2, "b.one": 1}
    assert bench.result("a.one")["figures"][0]["value"] == 2.0


def test_a_timeout_is_tried_again_where_its_limit_has_grown(bench):
    bench.call([bench.step("a.slow", seconds=1.5, limit=0.5)])
    bench.call([bench.step("a.slow", seconds=1.5, limit=30.0)])
    assert bench.outcomes() == {"a.slow": "figure"}


def test_a_call_starts_no_step_that_would_not_end_in_time(bench):
    steps = [bench.step("a.one"), bench.step("b.long", limit=300.0), bench.step("c.short")]
    printed = bench.call(steps, "--budget-seconds=100")
    assert "2 of 3 steps done; call again to go on." in printed
    assert bench.ran() == {"a.one": 1, "c.short": 1}
    assert "3 of 3 steps done. " in bench.call(steps, "--budget-seconds=100")  # first of its call


def test_what_a_step_takes_is_expected_of_others_in_its_group(bench):
    steps = [bench.step("a.one"), bench.step("a.two", limit=300.0)]
    assert "2 of 2 steps done. " in bench.call(steps, "--budget-seconds=100")


def test_a_step_that_the_budget_cuts_is_run_by_the_next_call(bench):
    steps = interrupted_plan(bench.marks)[:2]
    steps = [dataclasses.replace(step, name=f"same.{step.name}") for step in steps]
    began = time.perf_counter()
    bench.call([bench.step("other.one")])
    budget = 2 + 4 * (time.perf_counter() - began)  # enough for the first step, however busy the machine is
    assert "1 of 2 steps done; call again" in bench.call(steps, f"--budget-seconds={budget}")
    assert not (bench.out / "results" / "same.b.slow.json").exists()
    assert "2 of 2 steps done. " in bench.call(steps, "--budget-seconds=60")
    assert bench.ran() == {"other.one": 1, "a.quick": 1, "b.slow": 2}


def test_a_killed_call_leaves_no_process_and_the_next_goes_on(bench):
    command = [sys.executable, "-m", "tests.unit.gpu_evidence.small_plan", str(bench.marks)]
    command += [f"--out={bench.out}", f"--python={bench.python}"]
    first = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: bench.ran()["b.slow"] == 1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not (bench.out / "results" / "b.slow.json").exists()
    wait_until(lambda: not processes_with(str(bench.marks)), seconds=20.0)
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "3 of 3 steps done. " in second.stdout
    assert bench.ran() == {"a.quick": 1, "b.slow": 2, "c.last": 1}
    assert set(bench.outcomes().values()) == {"figure"}


def test_a_stopped_call_ends_its_benchmark_at_once(bench):
    command = [sys.executable, "-m", "tests.unit.gpu_evidence.small_plan", str(bench.marks)]
    command += [f"--out={bench.out}", f"--python={bench.python}", f"--bundle={bench.out}.tar.gz"]
    call = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: bench.ran()["b.slow"] == 1)
    call.terminate()
    _, errors = call.communicate(timeout=30)
    assert call.returncode == 130 and "stopped; call again to go on" in errors
    assert not processes_with(str(bench.marks))
    with tarfile.open(f"{bench.out}.tar.gz") as archive:
        assert "results/a.quick.json" in archive.getnames()


def test_two_calls_do_not_share_a_folder(bench):
    command = [sys.executable, "-m", "tests.unit.gpu_evidence.small_plan", str(bench.marks)]
    command += [f"--out={bench.out}", f"--python={bench.python}"]
    first = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: bench.ran()["b.slow"] == 1)
        assert bench.call([bench.step("a.one")]).startswith("2: gpu_evidence: another call is using")
    finally:
        first.terminate()
        first.wait()


def test_two_sides_take_turns_and_the_ratio_is_of_medians(bench, tmp_path, monkeypatch):
    show_gpus(tmp_path, monkeypatch, "NVIDIA H200")
    runs = (rate_run("fast", 300.0), rate_run("slow", 200.0))
    step = Step(name="a.pair", question="which", runs=runs, figure="ratio", limit=30.0, compares=True)
    bench.call([step], "--pairs=2")
    result = bench.result("a.pair")
    assert [run["name"] for run in result["runs"]] == ["fast-1", "slow-1", "fast-2", "slow-2"]
    assert result["figures"][0] == {"name": "fast_over_slow", "value": 1.5, "unit": "× slow", "limit": None}
    assert result["note"] == "2 pair(s): 1.500 to 1.500"


def test_a_peer_runs_in_its_checkout_and_is_compared(bench, tmp_path, monkeypatch):
    show_gpus(tmp_path, monkeypatch, "NVIDIA H200")
    folder = tmp_path / "benchmarks" / "scripts" / "tf_cnn_benchmarks"
    folder.mkdir(parents=True)
    (folder / "tf_cnn_benchmarks.py").write_text("print('total images/sec: 50.00')\n")
    peer = Run(name="peer", command=("{peer_python}", "tf_cnn_benchmarks.py"), reads_log=True)
    runs = (rate_run("tfbench", 100.0), peer)
    step = Step(name="a.peer", question="which", runs=runs, figure="ratio", limit=30.0, needs_peer=True, compares=True)
    bench.call([step])
    assert bench.outcomes() == {"a.peer": "no_peer"}
    bench.call([step], f"--peer={tmp_path / 'benchmarks'}")
    assert bench.result("a.peer")["figures"][0]["value"] == 2.0
    bench.call([step])  # without the checkout again: what was measured stays
    assert bench.outcomes() == {"a.peer": "figure"}
    assert "holds no tf_cnn_benchmarks.py" in bench.call([step], f"--peer={tmp_path}")


def test_steps_that_need_more_gpus_say_how_many_there_are(bench, tmp_path, monkeypatch):
    show_gpus(tmp_path, monkeypatch, "NVIDIA H200")
    bench.call([bench.step("a.one", on_cpu=False), bench.step("b.two", gpus=2)])
    assert bench.outcomes() == {"a.one": "figure", "b.two": "no_gpu"}
    assert bench.result("b.two")["cause"] == "needs 2 GPUs, this machine has 1"


def test_slices_of_gpus_count_as_the_one_that_a_process_can_use(tmp_path, monkeypatch):
    show_gpus(tmp_path, monkeypatch, "NVIDIA H200")
    fake = tmp_path / "bin" / "nvidia-smi"
    fake.write_text(fake.read_text().replace("Disabled'", "Enabled'\necho 'NVIDIA H200, 143771, Enabled'"))
    assert [(gpu.name, gpu.memory_gib) for gpu in driver_gpus()] == [("NVIDIA H200 (MIG slice)", None)]


def test_hidden_gpus_are_none(bench, tmp_path, monkeypatch):
    show_gpus(tmp_path, monkeypatch, "NVIDIA H200", "NVIDIA H200")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    bench.call([bench.step("a.two", gpus=2)])
    assert bench.result("a.two")["cause"] == "needs 2 GPUs, this machine has 1"


@pytest.mark.parametrize("outcome", ["no_gpu", "failed"])
def test_where_tensorflow_cannot_compute_nothing_else_is_tried(bench, tmp_path, monkeypatch, outcome):
    show_gpus(tmp_path, monkeypatch, "NVIDIA H200")
    seen = json.dumps({"outcome": outcome, "cause": "a CPU build"})
    blind = f"import sys; open(sys.argv[1][9:], 'w').write({seen!r})"
    start = Run(name="probe", command=("{python}", "-c", blind, "--output={record}"), cpu=())
    steps = [bench.step("environment.tensorflow", runs=(start,)), bench.step("gates.one")]
    bench.call(steps)
    assert bench.outcomes() == {"environment.tensorflow": outcome, "gates.one": "no_gpu"}
    assert bench.result("gates.one")["cause"] == "step environment.tensorflow: a CPU build"
    assert bench.ran() == {}
    bench.call([dataclasses.replace(steps[0], runs=(counting_run(bench.marks, "start"),)), steps[1]])  # mended
    assert set(bench.outcomes().values()) == {"figure"}


def test_figures_of_two_kinds_of_machine_are_not_mixed(bench, tmp_path, monkeypatch):
    bench.call([bench.step("a.one")])
    show_gpus(tmp_path, monkeypatch, "NVIDIA H200")
    refusal = bench.call([bench.step("a.one")])
    assert refusal.startswith("2: ") and "GPUs: none. This one has: NVIDIA H200. Use another --out" in refusal


def test_another_machine_goes_on_from_a_bundle(bench):
    steps = [bench.step("a.one"), bench.step("b.one")]
    file = bench.out.with_name("evidence.tar.gz")
    bench.call(steps, "--only", "a", f"--bundle={file}")
    bench.out.rename(bench.out.with_name("lost"))
    assert "2 of 2 steps done. " in bench.call(steps, f"--restore={file}", f"--bundle={file}")
    assert bench.ran() == {"a.one": 1, "b.one": 1}
    with tarfile.open(file) as archive:
        assert {"README.md", "summary.md", "summary.json", "results/b.one.json"} <= set(archive.getnames())


def test_an_interpreter_without_tensorflow_is_named_at_once(bench):
    code = main([f"--out={bench.out}", "--python=/no/such/python"], (bench.step("a.one"),))
    assert code == 2 and "--python=/no/such/python" in bench.capsys.readouterr().err


def test_the_driver_needs_the_standard_library_only():
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import tests.benchmarks.gpu_evidence.__main__"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


def wait_until(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def processes_with(argument: str) -> list[int]:
    """Return the processes that have an argument, other than calls of the driver."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if argument in words and "-m" not in words:
            found.append(int(path.parent.name))
    return found
