"""What is handed to Slurm, as exact texts, and what becomes of its answers, in words of a real one."""

import dataclasses
import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrate import loop
from orchestrate.engines.slurm.answers import (
    UNLISTED,
    SlurmState,
    ending,
    ending_of_pending,
    read_states,
    state_of,
    task_lists,
)
from orchestrate.engines.slurm.launcher import SlurmLauncher
from orchestrate.engines.slurm.script import batch_script, make_arrays
from orchestrate.engines.ssh import channel
from orchestrate.engines.ssh.channel import Channel
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.planning.plan import Job
from results.runs.store import RunFolder
from results.schema import Case, Data, Device, Origin, Status
from studies.bench_queues import prepare_slurm
from studies.controller_cost import run_controller
from tests.support import write_program
from tests.support.patience import patience

PROJECT = Path("/home/bench/tfbench")


def job(number: int, gpus: int = 0, seconds: float | None = None) -> Job:
    case = Case(model="x", num_gpus=max(gpus, 1), device=Device.GPU if gpus else Device.CPU)
    origin = Origin(run_id="run1", fleet="lab", host="slurm", launcher="slurm", repeat=number, image="ghcr.io/y/t:1")
    return Job(id=f"lab.slurm.x{gpus}.r{number}", case=case, origin=origin, max_seconds=seconds)


def text(jobs: list[Job], host: Host | None = None, **settings: object) -> str:
    queue = SlurmQueue.model_validate({"container": "none", "shared_folder": "/home/bench", **settings})
    host = host or Host(fleet="lab", name="slurm", docker=None, slurm=queue)
    (array,) = make_arrays(jobs)
    return batch_script(array, host, queue, PROJECT)


def options(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


def test_repeats_of_equal_resources_share_an_array_small_ones_first():
    arrays = make_arrays([job(1, 4), job(1, 1), job(2, 4), job(2, 1), *(job(n, 2) for n in range(1001))])
    sizes = [(array[0].case.num_gpus, len(array)) for array in arrays]
    assert sizes == [(1, 2), (2, 1000), (2, 1), (4, 2)], "an array has at most a thousand tasks"


def test_a_job_asks_for_what_its_cases_need():
    asked = {"account": "physics", "qos": "low", "constraint": "ib&a5000", "options": ("--reservation=bench",)}
    script = text([job(1, 2, 600.0), job(2, 2, 900.0)], partition="gpu", gres="gpu:a5000:4", max_jobs=3, **asked)
    # The longest of them, and five minutes to end by itself.
    assert " ".join(options(script)) == (
        "--job-name=tfbench-run1.lab --array=0-1%3 --partition=gpu --account=physics --qos=low --constraint=ib&a5000 "
        "--nodes=1 --ntasks=1 --gres=gpu:a5000:2 --exclusive --mem=0 --time=20 --no-requeue --output=/dev/null "
        "--reservation=bench"
    )
    assert "0) job=lab.slurm.x2.r1; set -- --model=x" in script
    assert "--max_seconds=900 ;;" in script
    host = Host(fleet="lab", name="slurm", docker=None, cpus=2.5, memory_gb=4)
    script = text([job(1)], host, time_limit_minutes=10, exclusive=False)
    assert {"--cpus-per-task=3", "--mem=3815M", "--time=10"} <= set(options(script))
    assert "--exclusive" not in script
    assert "--max_seconds=540 ;;" in script, "it ends itself a minute before Slurm does"


VALUE = "=eth0,eth1 'x' $HOME"
"""Of a variable: what a shell, Apptainer's commas or Kubernetes' `$(…)` could change."""

WITH_VARIABLE = Host(fleet="lab", name="slurm", docker=None, environment={"NCCL_SOCKET_IFNAME": VALUE})


def line_of(script: str, beginning: str) -> str:
    (line,) = [line for line in script.splitlines() if line.startswith(beginning)]
    return line


@pytest.mark.parametrize("container", ["pyxis", "apptainer"])
def test_an_image_is_named_by_digest_and_there_is_time_to_fetch_it(container: str):
    named = dataclasses.replace(job(1).origin, image=f"ghcr.io/y/t:1@sha256:{'a' * 64}")
    script = text([dataclasses.replace(job(1, seconds=600.0), origin=named)], container=container)
    assert f"; image=ghcr.io/y/t@sha256:{'a' * 64} ;;" in script
    assert "--time=35" in options(script), "ten minutes, five to end by itself, twenty for the image"


@pytest.mark.parametrize(
    ("container", "beginning", "seen"),
    [
        ("none", "0) ", "--data_dir=/sets/image net"),
        ("pyxis", "srun ", "--container-mounts=$folder/out:/out,/sets/image net:/data:ro"),
        ("apptainer", "apptainer exec", "--bind=/sets/image net:/data:ro"),
    ],
)
def test_a_data_set_is_seen_by_repeats_that_read_it_alone(container: str, beginning: str, seen: str):
    queue = SlurmQueue.model_validate({"container": container, "shared_folder": "/home/bench"})
    host = Host(fleet="lab", name="slurm", docker=None, slurm=queue, data_dir="/sets/image net")
    plain = job(1)
    reading = dataclasses.replace(plain, case=dataclasses.replace(plain.case, data=Data.TFRECORD))
    first, second = (batch_script(array, host, queue, PROJECT) for array in make_arrays([reading, plain]))
    lines = (line_of(second, start).replace("--bind ", "--bind=") for start in (beginning, "0) "))
    words, flags = (" ".join(shlex.split(line)) for line in lines)
    assert seen in words and f"--data_dir={'/sets/image net' if container == 'none' else '/data'}" in flags
    assert "/sets" not in first and "/data" not in first


FAKE_PROGRAM = """\
# Plays apptainer, enroot and srun: it writes what it was asked for, and runs what a container would, here.
echo "${0##*/} $*" >>"$CALLS"
ulimit -f >>"$LIMITS"
case "${0##*/} $1" in
"enroot digest") echo sha256:%s ;;
"enroot import") [ ! -f "$CALLS.broken" ] && truncate -s 300M "$3" || { echo no such image >&2; exit 1; } ;;
"apptainer pull") truncate -s 300M "$2" ;;
*)
    while [ "$1" != sh ]; do shift; done
    script=$(printf %%s "$3" | sed "s|/out/|$OUT/|")
    shift 3
    export NCCL_SOCKET_IFNAME=of-the-image  # as pyxis does, after all that a script could export
    exec sh -c "$script" "$@" ;;
esac
""" % ("b" * 64)

PYTHON = """\
for word; do case $word in --output=*) echo "{}" >"${word#--output=}" ;; esac; done
echo "gpus $CUDA_VISIBLE_DEVICES enroot $NVIDIA_VISIBLE_DEVICES home $HOME"
echo "variable $NCCL_SOCKET_IFNAME"
(truncate -s 300M "$CALLS.large") 2>/dev/null || echo "too large"
"""


class Node:
    """A node outside of any Slurm, with fakes for the programs that start containers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "tfbench-run1.lab"
        self.calls, self.limits, self.arrays = folder / "calls", folder / "limits", 0
        for name in ("apptainer", "enroot", "srun"):
            self.program(name, FAKE_PROGRAM)
        self.program("python3.11", PYTHON)
        for name in ("jobs", "done"):
            (self.root / name).mkdir(parents=True)

    def program(self, name: str, body: str) -> None:
        """Replace a program by a shell script."""
        write_program(self.folder / "bin" / name, f"#!/bin/sh\n{body}\n")

    def run(self, container: str, repeat: Job, host: Host | None = None, variables=(), *, array="", **settings: object):
        """Run the batch script of a repeat, of an array of its own unless one is named."""
        self.arrays += 1
        array = array or str(self.arrays)
        if container == "none":
            settings |= {"python": str(self.folder / "bin" / "python3.11"), "project": str(self.folder)}
        script = self.folder / "batch.sh"
        script.write_text(text([repeat], host, container=container, shared_folder=str(self.folder), **settings))
        environment = {
            **{"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_JOB_ID": array, "SLURM_JOB_ID": "5", "SLURMD_NODENAME": "n9"},
            **{"CALLS": str(self.calls), "LIMITS": str(self.limits), "TMPDIR": str(self.folder)},
            **{"OUT": str(self.root / "jobs" / repeat.id / "out"), "CUDA_VISIBLE_DEVICES": "0,1,2"},
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            **dict(variables),
        }
        return subprocess.run(["sh", script], env=environment, capture_output=True, text=True, timeout=patience())

    def log(self, repeat: Job) -> str:
        return (self.root / "jobs" / repeat.id / "output.log").read_text()

    def done(self, repeat: Job) -> str:
        return (self.root / "done" / repeat.id).read_text()


ISOLATED = {"pyxis": "--container-readonly --no-container-mount-home", "apptainer": "--containall --no-home --no-privs"}


@pytest.mark.parametrize(("container", "digest"), [("pyxis", f"sha256:{'b' * 64}"), ("apptainer", "ghcr.io/y/t:1")])
def test_an_image_comes_once_and_its_file_may_be_larger_than_a_benchmarks(tmp_path: Path, container, digest):
    node = Node(tmp_path)
    repeats = [job(number, 2) for number in (1, 2)]
    for repeat in repeats:
        ended = node.run(container, repeat, gres="gpu:4")
        assert ended.returncode == 0, ended.stderr
        assert node.done(repeat) == f"code 0\nnode n9\nimage {digest}\n"
        enroot = "all" if container == "pyxis" else ""
        first, *_, last = node.log(repeat).splitlines()
        assert (first, last) == (f"gpus 0,1 enroot {enroot} home /tmp", "too large")
        assert (node.root / "jobs" / repeat.id / "record.json").read_text() == "{}\n"
    calls = [line.split(" --")[0].split(" /")[0] for line in node.calls.read_text().splitlines()]
    pull = ["enroot digest docker:", "enroot import"] if container == "pyxis" else ["apptainer pull"]
    assert ISOLATED[container] in node.calls.read_text()
    start = "srun" if container == "pyxis" else "apptainer exec"
    assert [call.split("//")[0] for call in calls] == [*pull, start, start]
    assert node.limits.read_text().splitlines()[0] == "unlimited"
    assert not list(tmp_path.glob("tfbench.*")), "the folder for /tmp goes away"


@pytest.mark.parametrize("container", ["pyxis", "apptainer"])
def test_variables_of_the_hosts_file_win_and_a_cpu_case_sees_no_gpu(tmp_path: Path, container: str):
    node = Node(tmp_path)
    node.run(container, job(1), WITH_VARIABLE)
    enroot = "void" if container == "pyxis" else ""
    assert node.log(job(1)).splitlines()[:2] == [f"gpus -1 enroot {enroot} home /tmp", f"variable {VALUE}"]
    assert "--nv" not in node.calls.read_text(), "no GPU for a CPU case"


@pytest.mark.parametrize("container", ["pyxis", "apptainer"])
def test_an_image_file_of_the_nodes_is_started_and_nothing_is_fetched(tmp_path: Path, container: str):
    node, file = Node(tmp_path), tmp_path / "tfbench.image"
    node.run(container, job(1), image_file=str(file))
    assert node.done(job(1)).startswith("code pull\n")
    assert node.log(job(1)) == f"there is no image file {file} on this node\n"
    file.touch()
    node.run(container, job(2), image_file=str(file))
    assert node.done(job(2)) == "code 0\nnode n9\nimage \n", "nobody knows which image it was made from"
    (call,) = node.calls.read_text().splitlines()
    assert str(file) in call and not (node.root / "images").exists()


def test_an_image_that_does_not_come_is_logged_and_leaves_nothing(tmp_path: Path):
    node = Node(tmp_path)
    Path(f"{node.calls}.broken").touch()
    node.run("pyxis", job(1))
    assert node.done(job(1)) == "code pull\nnode n9\nimage \n"
    assert node.log(job(1)) == "no such image\n"
    assert not list((node.root / "images").glob("*.sqsh.*[0-9]"))


def test_a_step_over_several_hosts_runs_under_pyxis(tmp_path: Path):
    node = Node(tmp_path)
    repeat = dataclasses.replace(job(1), case=Case(model="x", num_hosts=2, device=Device.CPU))
    node.program("scontrol", 'case "$*" in *hostnames*) printf "n8\\nn9\\n" ;; *) echo "x NodeAddr=10.0.0.1 y" ;; esac')
    node.program("python3.11", 'echo "$TF_CONFIG ${*##*--output=}"')
    ended = node.run("pyxis", repeat, variables={"SLURM_PROCID": "1", "SLURM_JOB_NODELIST": "n[8-9]"})
    assert ended.returncode == 0, ended.stderr
    script = (tmp_path / "batch.sh").read_text()
    assert "\nsrun --export=ALL --nodes=2 --ntasks=2 --ntasks-per-node=1 --kill-on-bad-exit=0 " in script
    assert '"index": 1}}' in node.log(repeat) and "10.0.0.1:20005" in node.log(repeat)
    assert node.log(repeat).endswith("/rank-1.json\n")
    assert node.done(repeat).startswith("code 0\nnode n8+n9\n")


def test_a_batch_script_ends_as_its_benchmark_and_runs_once(tmp_path: Path):
    node = Node(tmp_path)
    node.program("python3.11", "echo hello; exit 3")
    assert node.run("none", job(1)).returncode == 3, "the job's state says what the benchmark said"
    assert node.done(job(1)) == "code 3\nnode n9\nimage \n"
    assert node.run("none", job(1)).returncode == 65 and node.log(job(1)) == "hello\n", "the folder is the lock"


def test_a_task_that_slurm_starts_again_does_nothing(tmp_path: Path):
    node = Node(tmp_path)
    node.program("python3.11", "echo hello")
    assert node.run("none", job(1), array="7").returncode == 0
    shutil.rmtree(node.root / "jobs" / job(1).id)
    (node.root / "done" / job(1).id).unlink()
    assert node.run("none", job(1), array="7").returncode == 65
    assert not list((node.root / "jobs").iterdir()), "nothing is left that would keep the run's folder"
    assert node.run("none", job(1), array="8").returncode == 0, "submitted again, it runs again"


LOADED = f"loaded load cuda/12.5 apptainer {VALUE}, GPUs 0,1"


@pytest.mark.parametrize(
    ("modules", "code", "said"),
    [(["cuda/12.5", "apptainer"], "0", LOADED), (["none/1"], "modules", "no such module")],
)
def test_modules_variables_and_requested_gpus_reach_a_benchmark(tmp_path: Path, modules, code, said):
    node = Node(tmp_path)
    node.program("python3.11", 'echo "loaded $LOADED $NCCL_SOCKET_IFNAME, GPUs $CUDA_VISIBLE_DEVICES"')
    (tmp_path / "init").mkdir()
    (tmp_path / "init" / "sh").write_text(
        'module() { [ "$2" != none/1 ] || { echo "no such module" >&2; return 1; }; export LOADED="$*"; }\n'
    )
    node.run("none", job(1, 2), WITH_VARIABLE, {"MODULESHOME": str(tmp_path)}, modules=modules)
    assert node.log(job(1, 2)) == f"{said}\n" and node.done(job(1, 2)).startswith(f"code {code}\n")


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Give a login host whose commands are those of the node."""
    node = Node(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return node


def launcher(node: Node, **settings: object) -> SlurmLauncher:
    """Make a launcher on this machine, with an agent that has the current PATH."""
    queue = SlurmQueue.model_validate({"container": "none", "shared_folder": str(node.folder), **settings})
    host = Host(fleet="lab", name="slurm", docker=None, slurm=queue)
    return SlurmLauncher(host, queue, Channel(None, root=str(node.folder / "root")))


@pytest.mark.parametrize(
    ("listed", "left", "goes"),
    [(["RUNNING COMPLETING", "COMPLETING"], [], True), (["PENDING COMPLETING"], [], False), ([""], ["done/x"], False)],
    ids=["running, then completing", "pending", "a result that nobody has collected"],
)
def test_a_runs_folder_goes_when_no_job_can_write_there_any_more(login: Node, monkeypatch, listed, left, goes):
    answers = login.folder / "answers"
    answers.write_text("\n" + "".join(f"{answer}\n" for answer in listed))
    shown = 'awk \'{ for (i = 1; i <= NF; i++) print "71_" i "|" $i "|n1|" }\''
    login.program("squeue", f"head -n 1 {answers} | {shown}\n[ $(wc -l <{answers}) -eq 1 ] || sed -i 1d {answers}")
    monkeypatch.setattr("orchestrate.engines.slurm.launcher.TIDY_SECONDS", patience() if goes else 2.0)
    it = launcher(login)
    assert it.running("run1") == []
    for name in left:
        (login.root / name).touch()
    it.close()
    assert login.root.exists() is not goes


def test_an_array_whose_answer_is_lost_is_submitted_once(login: Node, monkeypatch: pytest.MonkeyPatch):
    login.program("squeue", "")
    login.program("sbatch", f"echo notice >&2; echo once >>{login.calls}; echo '17;cluster'")
    it, ask = launcher(login), Channel._ask
    lost = ["submit"]

    async def lose(self: Channel, payload: bytes, seconds: float, **request: Any) -> dict[str, Any]:
        answered = await ask(self, payload, seconds, **request)
        if request["do"] in lost:
            lost.remove(request["do"])
            raise channel.Broken("the connection broke")
        return answered

    monkeypatch.setattr(Channel, "_ask", lose)
    it.submit([job(1), job(2)])
    assert login.calls.read_text() == "once\n" and not lost
    assert it.start(job(1)) is False, "it waits in the queue"
    again = launcher(login)
    login.program("squeue", "echo '17_0|PENDING||Priority'; echo '17_1|PENDING||Priority'")
    assert again.running("run1") == [job(1).id, job(2).id], "another controller finds what was submitted"
    assert again.start(job(2)) is True


def test_an_array_whose_id_a_site_swallows_does_not_run_unseen(login: Node):
    login.program("squeue", f"[ ! -e {login.calls} ] || echo '18_0|PENDING||Priority'")
    login.program("sbatch", f"echo accepted | tee {login.calls}")
    login.program("scancel", f'echo "$@" >>{login.calls}')
    it = launcher(login)
    it.submit([job(1), job(2)])
    assert it.start(job(1)) is False
    ended = loop.wait_for(it.follow(job(1), print))
    assert ended.failure == (Status.ERROR, "sbatch printed no job id: accepted")
    assert login.calls.read_text() == "accepted\n--quiet 18\n"


SEEN = """\
Welcome to the cluster | have a nice day
71_0|COMPLETED|n1|None
71_19|PENDING||Resources
72_2|PENDING||Dependency
73|CANCELLED||Resources
x_1|RUNNING|n1|None
74_0|RUNNING|\x1b[2J|None
"""


def test_states_are_read_task_by_task():
    seen = read_states(SEEN)
    states = {
        (71, 0): SlurmState("COMPLETED", "n1", "None"),
        (71, 19): SlurmState("PENDING", reason="Resources"),
        (72, 2): SlurmState("PENDING", reason="Dependency"),
        (73, 5): SlurmState("CANCELLED", reason="Resources"),  # the rest of an array, cancelled at once
        (74, 0): SlurmState("RUNNING", None, "None"),  # that is no node's name
        **dict.fromkeys([(71, 3), (71, 20), (72, 1)], UNLISTED),
    }
    assert {task: state_of(seen, task) for task in states} == states
    assert task_lists([*states, (75, 3)]) == ["71_[0,3,19,20]", "72_[1,2]", "73_[5]", "74_[0]", "75_[3]"]


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("NODE_FAIL", Status.LOST, "node n2 failed"),
        ("PREEMPTED", Status.LOST, "higher priority"),
        ("TIMEOUT", Status.TIMEOUT, "time limit"),
        ("OUT_OF_MEMORY", Status.OOM, "memory_gb"),
        ("COMPLETED", Status.ERROR, "Check shared_folder on the node"),
        ("FAILED", Status.ERROR, "FAILED, NonZeroExitCode"),
    ],
)
def test_what_slurm_ends_has_a_status_and_a_cause(name: str, status: Status, words: str):
    reason = "NonZeroExitCode" if name == "FAILED" else "None"
    ended = ending(SlurmState(name, "n2", reason), None)
    assert ended.failure is not None and ended.node == "n2" and ended.exit_code is None
    assert ended.failure[0] is status and words in ended.failure[1]


DIGEST = f"sha256:{'ab' * 32}"


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (b"code 0\nnode n1\n", (0, "n1", None, None)),
        (f"code 0\nnode n1\nimage ghcr.io/you/tfbench@{DIGEST}\n".encode(), (0, "n1", DIGEST, None)),
        (b"code pull\nnode n1\nimage \n", (None, "n1", None, Status.PULL_FAILED)),
        (b"code modules\nnode n1\nimage \n", (None, "n1", None, Status.ERROR)),
        (b"code 99999999999999999\nnode ../../x\nimage sha256:zz\n\xff\x00", (None, None, None, None)),
        (None, (None, None, None, Status.LOST)),
    ],
    ids=["ended", "names its image", "no image", "no modules", "hostile", "forgotten"],
)
def test_a_batch_scripts_last_words_are_the_benchmarks_end(said: bytes | None, found: tuple[object, ...]):
    ended = ending(UNLISTED, said)
    status = ended.failure[0] if ended.failure else None
    assert (ended.exit_code, ended.node, ended.image_digest, status) == found


def test_what_can_never_start_ends_and_what_only_waits_does_not():
    def status(reason: str, state: str = "PENDING") -> Status | None:
        ended = ending_of_pending(SlurmState(state, reason=reason))
        return ended.failure[0] if ended and ended.failure else None

    assert status("PartitionTimeLimit") is Status.UNSUPPORTED
    assert status("launch failed requeued held") is Status.LOST
    for reason in ("Priority", "Resources", "ReqNodeNotAvail"):
        assert status(reason) is status("BadConstraints", "RUNNING") is None


@pytest.mark.slow
def test_repeats_of_decided_cases_are_taken_out_of_slurms_queue(tmp_path: Path):
    environment = prepare_slurm(tmp_path, 40, 4, seconds=0.3, poll_seconds=0.2)
    hosts = tmp_path / "hosts.yml"
    document = json.loads(hosts.read_text())
    document["fleets"]["other"] = document["fleets"]["cluster"]
    hosts.write_text(json.dumps(document))
    ran = run_controller(tmp_path, environment, "--stop-early=2%")
    output = (tmp_path / "output.txt").read_text()
    assert ran.exit_code == 0, output
    records = list(RunFolder.open(next((tmp_path / "runs").iterdir())).records())
    assert 16 <= len(records) < 80 and f"{len(records)} ok, 0 failed, {80 - len(records)} skipped" in output
    assert "cluster / other is known to ± 0.0%" in output
    calls = (tmp_path / "calls").read_text().split()
    assert calls.count("sbatch") == 2 and "scancel" in calls
    assert not list((tmp_path / "shared").iterdir()), "nothing is left behind"
