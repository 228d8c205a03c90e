"""Hosts that keep answering, or whose agent hangs: the run ends within the limits of hosts.yml plus 15 seconds."""

import json
import os
import signal
import time
from pathlib import Path

from results.schema import Status
from results.schema.exit_codes import ExitCode
from tests.real.ssh.rented import Rent, Rented, fill, make_ssh, small_disk
from tests.support.controller import Runs
from tests.support.engines.processes import read_proc, wait_until
from tests.support.patience import patience

TIMEOUT_SECONDS = 6
MARGIN_SECONDS = 15
"""What a host does well before it hangs, on a machine that is busy with other tests. Without limits a run never ends."""

ENDLESS = """\
target = sys.argv[sys.argv.index("--") + 1]
kind, do = json.loads(os.environ["TFBENCH_TEST_ENDLESS"]).get(target, ["", ""])

def answer(number):
    said = dict(log=dict(log="bGluZQo=", offset=5), flood=dict(log="bGluZQo=" * 5000), heartbeats=dict(alive=True))
    line = b"x" * 65536 if kind == "bytes" else json.dumps(dict(said.get(kind, {}), id=number)).encode() + b"\\n"
    controller = os.getppid()
    while os.getppid() == controller:  # else it would outlive the test
        if kind != "silence":
            send(line)
        time.sleep(0.01 if kind in ("flood", "bytes") else 0.5)

def before(request):
    if request["do"] == do:
        threading.Thread(target=answer, args=[request["id"]], daemon=True).start()
        return True
"""
"""Answers one kind of request of one host without end."""

CONVERSATIONS = {
    "heartbeats": ("heartbeats", "follow"),
    "log": ("log", "follow"),
    "flood": ("flood", "follow"),
    "hello": ("bytes", "hello"),
    "start": ("silence", "start"),
    "running": ("silence", "running"),
    "endless": ("bytes", "follow"),
    "remove": ("silence", "remove"),
}
"""By host: how it answers without end, and to which request."""

FROZEN = {"guardian": "$PPID", "child": "$$"}
"""By host: the process that stops while its benchmark runs, as one that waits for a broken disk. Its own shell stops it,
because from here it might come too late: after the limit of the benchmark."""


def make_runs(instance: Rented, tmp_path: Path, timeout_seconds: float) -> tuple[Runs, Path]:
    folder = make_ssh(tmp_path / "bin", ENDLESS)
    entries = {name: instance.entry(seconds=1) for name in ("good", *CONVERSATIONS)}
    entries |= {
        name: instance.entry(seconds=600, first=f"(sleep 1; kill -STOP {pid}) &") for name, pid in FROZEN.items()
    }
    endless = {entries[name]["ssh"]: conversation for name, conversation in CONVERSATIONS.items()}
    path = f"{folder}:{os.environ['PATH']}"
    runs = Runs(tmp_path, PATH=path, TFBENCH_TEST_ENDLESS=json.dumps(endless))
    return runs, runs.hosts({"all": {"hosts": entries, "timeout_minutes": timeout_seconds / 60}})


def is_frozen(instance: Rented, name: str) -> bool:
    for path in instance.root.glob(f"jobs/*/all.{name}.*/state.json"):
        process = json.loads(path.read_text()).get(name)
        return process is not None and b"\nState:\tT" in read_proc(int(process.split()[0]), "status")
    return False


def test_no_conversation_outlasts_the_limits_of_the_hosts_file(instance: Rented, tmp_path: Path):
    runs, hosts = make_runs(instance, tmp_path, TIMEOUT_SECONDS)
    runs.run("run", f"--hosts={hosts}", "--display=plain", expect=3, seconds=120)
    (finished,) = runs.events("run_finished")
    records = {name: record.status for name, record in runs.by_host().items()}
    assert set(records) == {"good", *CONVERSATIONS, *FROZEN}
    assert records.pop("good") is Status.OK and records.pop("remove") is Status.OK
    assert set(records.values()) <= {Status.TIMEOUT, Status.LOST, Status.UNREACHABLE, Status.ERROR}, records
    assert {records[name] for name in ("heartbeats", "log", *FROZEN)} == {Status.TIMEOUT}
    assert "Traceback" not in runs.stderr
    assert finished["seconds"] < TIMEOUT_SECONDS + MARGIN_SECONDS + patience()


def test_two_signals_end_the_run_in_15_seconds_whatever_hangs(instance: Rented, tmp_path: Path):
    runs, hosts = make_runs(instance, tmp_path, 3600)
    with runs.start("run", f"--hosts={hosts}", "--display=plain") as controller:
        for name in FROZEN:
            wait_until(lambda name=name: is_frozen(instance, name), f"the stopped process of {name}")
        began = time.monotonic()
        for _ in range(2):
            controller.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        wait_until(lambda: list(runs.events("run_finished")), "the run's end", seconds=120)
        seconds = time.monotonic() - began
        assert controller.wait(120) == ExitCode.STOPPED  # its table and report take a moment
    assert len(list(runs.events("run_finished"))) == 1 and seconds < MARGIN_SECONDS + patience()
    assert {runs.by_host()[name].status for name in FROZEN} == {Status.STOPPED}


def test_a_full_disk_here_is_a_users_error_and_resume_completes(rent: Rent, tmp_path: Path):
    instance, runs = rent(), Runs(tmp_path)
    folder = tmp_path / "runs"
    with small_disk(folder, 2 << 20):
        with runs.begin({"all": {"hosts": {"one": instance.entry(seconds=3)}}}, repeats=2) as controller:
            wait_until(lambda: "step" in instance.output("one"), "the first step")
            filler = fill(folder)
            assert controller.wait(60) == 4
        said = runs.stderr
        assert "the disk is full" in said and "resume" in said and "Traceback" not in said and "bug" not in said
        filler.unlink()
        runs.resume()
        assert [record.status for record in runs.records().values()] == [Status.OK] * 2
        assert instance.starts() == dict.fromkeys(runs.records(), 1), "what ran was reattached, not started again"
