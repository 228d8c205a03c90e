"""Every field of every answer of a host, replaced by what no host should say: an error of that host, and nothing else.

Each conversation was had with the real thing once; here a launcher has it again, from probe to clean-up, with one field
spoilt. In short each field gets one of the values; TFBENCH_TEST_EXAMPLES=all, as `make test-faults` sets it, gives it all.
"""

import base64
import contextlib
import copy
import functools
import gc
import http.client
import io
import json
import operator
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import urllib3

from orchestrate import loop
from orchestrate.connections.link import parse_line
from orchestrate.engines import bounded
from orchestrate.engines.base import Launcher, PullLimits, QueueLauncher
from orchestrate.engines.docker import client as docker_client
from orchestrate.engines.docker.launcher import ContainerLauncher
from orchestrate.engines.kubernetes.api import KubernetesCluster
from orchestrate.engines.kubernetes.launcher import KubernetesLauncher
from orchestrate.engines.kubernetes.manifests import job_manifest
from orchestrate.engines.slurm.launcher import SlurmLauncher
from orchestrate.engines.ssh.channel import Channel, raise_failure
from orchestrate.engines.ssh.launcher import SSHLauncher
from orchestrate.errors import HostError, Lost, Unreachable
from orchestrate.inventory.addresses import DockerAddress, SSHAddress
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import KubernetesQueue, SlurmQueue
from orchestrate.planning.host_warnings import host_warnings
from orchestrate.planning.plan import Job, make_plan, plan_from_json, plan_to_json
from orchestrate.running.judge import Attempt, judge
from orchestrate.suites import CaseBlock, Suite
from results.runs.reading import from_json
from results.schema import Case, Device
from results.schema.progress import record_lines
from results.schema.record_json import to_json
from tests.real.faults.benchmark import good_record
from tests.real.ssh.rented import make_fake_project
from tests.support.engines.kubernetes import plays
from tests.support.examples import SHARE
from tests.support.patience import patience
from tests.unit.kubernetes.conftest import node
from tests.unit.orchestrate.fakes import make_job

pytestmark = pytest.mark.slow  # a conversation for each of hundreds of fields

MISSING = "missing"
VALUES = (
    *("null", "true", "false", "0", "1", "-1", "2147483648", "9223372036854775808", "0.5", "-0.0", "1e308", "1e400"),
    *("-1e400", "NaN", "Infinity"),
    *("1" + "0" * 30, "1" + "0" * 400, "9" * 5000, "[" * 2000 + "]" * 2000, f"[{'0,' * 10_000}0]"),
    *map(json.dumps, ("", " ", "0", "x", "\0", "²", "\x1b[2J\x1b]0;owned\a", "[bold]x[/bold]", "\u202e", "\ud800")),
    *map(json.dumps, ("../../../etc/passwd", "/", "$(reboot)", "'; rm -rf / #", "%s%n{0}", "9" * 5000, "x" * 100_000)),
    *("[]", "{}", "[[]]", "[null]", '{"": null}', MISSING),
)
"""JSON, as a host might write it; the last one stands for a field that is not there."""

MOST_ANSWERS = 60
"""Of one conversation: a host that goes on is left to the watchdog, whose tests are in test_hanging_hosts.py."""

SPOILT = "what-is-replaced"
CASE = Case(model="googlenet", batch_per_gpu=2, image_size=64, warmup_steps=1, num_steps=3, device=Device.CPU)


class Asked(Counter[str]):
    """Counts requests of a launcher, and ends a conversation that goes on, as the watchdog would."""

    def add(self, name: str = "") -> None:
        self[name] += 1
        if self.total() > MOST_ANSWERS:
            raise Lost("it goes on")


def fields(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of everything in a document."""
    yield path
    children = dict(enumerate(document)) if isinstance(document, list) else document
    for key, child in children.items() if isinstance(children, dict) else ():
        yield from fields(child, (*path, key))


def spoil(document: Any, path: tuple[Any, ...], value: str) -> str:
    """Return the JSON of a document with one field replaced, or removed."""
    if not path:
        return "" if value is MISSING else value
    spoilt = copy.deepcopy(document)
    parent = functools.reduce(operator.getitem, path[:-1], spoilt)
    if value is MISSING:
        del parent[path[-1]]
        return json.dumps(spoilt)
    parent[path[-1]] = SPOILT
    return json.dumps(spoilt).replace(f'"{SPOILT}"', value)


def live(launcher: Launcher, job: Job) -> None:
    """Do with a launcher what a run does, from probe to clean-up."""
    try:
        facts = launcher.probe()
        host = launcher._host  # type: ignore[attr-defined]
        list(host_warnings(host, facts))
        suite = Suite(repeats=1, cases=[CaseBlock(model=["googlenet"], batch_per_gpu=2, device="cpu")])
        plan = make_plan([host], {host.place: facts}, lambda name: suite, run_id="r", seed=1)
        assert plan_from_json(plan_to_json(plan)) == plan, "what was planned can be read again"
        launcher.prepare(job, lambda done, total: None)
        if isinstance(launcher, QueueLauncher):
            launcher.submit([job])
        launcher.start(job)
        turns = Asked()
        ending = loop.wait_for(launcher.follow(job, lambda line: None, lambda turn: turns.add()))
        record = judge(job, Attempt(ending=ending))
        assert from_json(to_json(record)) == record, "what was accepted can be read again"
        assert all(isinstance(name, str) for name in launcher.running("r"))
        launcher.stop(job)
        launcher.remove(job)
    finally:
        launcher.close()


def check(answers: dict[str, Any], have: Callable[[Callable[[str], str]], None]) -> None:
    """Have a conversation again and again, each time with one field of one answer spoilt.

    Args:
        answers: Documents by request.
        have: Has it; gets a function that gives the text of an answer.
    """
    have(lambda request: json.dumps(answers[request]))
    outcomes: Counter[str] = Counter()
    wrong, number = [], 0
    for request, document in answers.items():
        for path in fields(document):
            number += 1
            chosen = VALUES if SHARE == 1 else [VALUES[number * 7 % len(VALUES)]]
            for value in chosen:
                began = time.perf_counter()

                def say(asked: str, spoilt: str = spoil(document, path, value), request: str = request) -> str:
                    return spoilt if asked == request else json.dumps(answers[asked])

                try:
                    have(say)
                    outcomes["went on"] += 1
                except HostError:
                    outcomes["failed as its host's"] += 1
                except Exception as error:  # noqa: BLE001  a crash is what is looked for
                    wrong.append(f"{request} {path} = {value[:40]}: {error!r}"[:400])
                if (took := time.perf_counter() - began) > patience():
                    wrong.append(f"{request} {path} = {value[:40]}: took {took:.0f} s")
    print(f"{number} fields, {outcomes.total() + len(wrong)} answers: {dict(outcomes)}, crashed: {len(wrong)}")  # noqa: T201  its figures
    assert not wrong, f"{len(wrong)} of {outcomes.total() + len(wrong)}:\n" + "\n".join(wrong[:40])


def make_host(**settings: Any) -> Host:
    return Host(**{"fleet": "all", "name": "one", "docker": None, "device": Device.CPU, **settings})


def job_on(launcher: str, **origin: Any) -> Job:
    return make_job(CASE, fleet="all", host="one", launcher=launcher, **origin)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for nothing, and let nothing of earlier tests be finalised at the depth of a deep answer."""
    gc.collect()
    sleep, sleep_in_loop = time.sleep, anyio.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.001)))
    monkeypatch.setattr(anyio, "sleep", lambda seconds: sleep_in_loop(min(seconds, 0.001)))
    monkeypatch.setattr("orchestrate.engines.kubernetes.launcher.POLL_SECONDS", 0.001)
    monkeypatch.setattr(bounded, "RECONNECT_SECONDS", 0.001)
    monkeypatch.setattr("orchestrate.engines.ssh.launcher.BETWEEN_ANSWERS_SECONDS", 0.0)
    monkeypatch.setattr("orchestrate.engines.base.AWAY_SECONDS", 0.0)


# ---- the agent, over ssh or a pipe, with its probe and its record


class Replayed(Channel):
    """A channel to the real agent on this machine, or to what it has answered before.

    Attributes:
        heard: Answers by request, with a number.
        say: Gives the text of an answer; None: the real agent answers.
    """

    def __init__(self, folder: Path, heard: dict[str, Any], say: Callable[[str], str] | None = None) -> None:
        super().__init__(None, root=str(folder / "home"), image_file=str(folder / "image.json"))
        self.heard, self.say, self._asked = heard, say, Asked()

    async def answer(self, do: str, payload: bytes = b"", **request: Any) -> dict[str, Any]:
        asked = f"{do} {self._asked[do]}"
        self._asked.add(do)
        if self.say is None:
            self.heard[asked] = answer = await super().answer(do, payload, **request)
            return answer
        if asked not in self.heard:
            raise Unreachable("it was not asked so before")
        answer = parse_line(self.name, self.say(asked).encode(errors="surrogatepass"))
        raise_failure(self.name, answer)
        return answer

    def live(self) -> None:
        live(SSHLauncher(make_host(ssh=SSHAddress(target="a")), PullLimits(), self), job_on("ssh", variant="cpu"))


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Have a conversation with the real agent; give its answers."""
    folder = tmp_path_factory.mktemp("agent")
    runner = make_fake_project(folder / "project")
    image = {"variant": "cpu", "version": "0.1.0", "revision": "abc", "python": sys.executable}
    (folder / "image.json").write_text(json.dumps({**image, "runner": str(runner), "site": str(folder / "site")}))
    channel = Replayed(folder, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_BENCHMARK", '{"does": "work", "seconds": 0.1}')  # of this machine, as the agent is
        channel.live()
    return channel.heard


def in_base64(text: str) -> str:
    return base64.b64encode(text.encode(errors="surrogatepass")).decode()


INSIDE: dict[str, tuple[str, str, Callable[..., Any], Callable[[str], str]]] = {
    "facts": ("command 0", "output", str, str),
    "the record": ("follow", "record", base64.b64decode, in_base64),
}
"""Documents within answers: where, and how they are unpacked and packed."""


@pytest.mark.parametrize("do", ["hello", "start", "follow", "running", "stop", "remove", "command", *INSIDE])
def test_no_answer_of_an_agent_does_more_than_fail_its_host(heard: dict[str, Any], tmp_path: Path, do: str):
    answers = {asked: document for asked, document in heard.items() if asked.startswith(f"{do} ")}
    if do in INSIDE:
        beginning, key, unpack, pack = INSIDE[do]
        where = next(asked for asked, answer in heard.items() if asked.startswith(beginning) and key in answer)
        answers = {where: json.loads(unpack(heard[where][key]))}

    def have(say: Callable[[str], str]) -> None:
        def answer(asked: str) -> str:
            if asked not in answers:
                return json.dumps(heard[asked])
            text = say(asked)
            if do not in INSIDE:
                return text
            return json.dumps({**heard[where], key: pack(text)})

        Replayed(tmp_path, heard, answer).live()

    check(answers, have)


# ---- a Docker engine

ENGINE = json.loads(Path(__file__).with_name("cases").joinpath("engine_answers.json").read_text())
"""Of Docker 20.10, without what neither we nor the SDK read; by request."""

DIGEST = "sha256:73c3059246a54501c71e91eb496890d1ab4aa49ddd9c34bbae0b5b0579ad04d3"


def http_response(method: str, answer: dict[str, Any], lines: list[str]) -> urllib3.HTTPResponse:
    """Return an answer as it comes from a socket, a line a chunk."""
    data = [f"{line}\n".encode(errors="surrogatepass") for line in lines]
    if "bytes" in answer:
        data = [base64.b64decode(answer["bytes"])]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in data if piece) + b"0\r\n\r\n"
    headers = {"Content-Type": "application/json", "Transfer-Encoding": "chunked", **answer["headers"]}
    head = f"HTTP/1.1 {answer['status']} Word\r\n" + "".join(f"{key}: {value}\r\n" for key, value in headers.items())
    stream: Any = io.BytesIO(head.encode() + b"\r\n" + chunks)
    wire: Any = types.SimpleNamespace(makefile=lambda *_: io.BufferedReader(stream))
    body: Any = http.client.HTTPResponse(wire, method=method)
    body.begin()
    settings = {"headers": headers, "status": answer["status"], "preload_content": False}
    return urllib3.HTTPResponse(body=body, original_response=body, **settings)


def documents(answer: dict[str, Any]) -> list[Any]:
    return answer.get("lines", [answer.get("json")])


@pytest.mark.parametrize("request_", [name for name, found in ENGINE.items() if any("bytes" not in a for a in found)])
def test_no_answer_of_an_engine_does_more_than_fail_its_host(monkeypatch: pytest.MonkeyPatch, request_: str):
    spoken: dict[str, Callable[[str], str]] = {}
    turns = Asked()

    def send(adapter: Any, request: Any, **_: object) -> Any:
        path = request.url.partition("?")[0].partition("//engine:2375/")[2].replace("%40", "@")
        name = f"{request.method} /{path.partition('/')[2] if path.startswith('v1.') else path}"
        turns.add(name)
        number = min(turns[name], len(ENGINE[name])) - 1
        answer = ENGINE[name][number]
        if name == request_:
            lines = [spoken["say"](asked) for asked in answers if asked.startswith(f"{number} ")]
        else:
            lines = list(map(json.dumps, documents(answer)))
        return adapter.build_response(request, http_response(request.method, answer, lines))

    answers = {
        f"{number} {line}": document
        for number, answer in enumerate(ENGINE[request_])
        for line, document in enumerate(documents(answer))
    }
    monkeypatch.setattr(docker_client._Adapter, "send", send)

    def have(say: Callable[[str], str]) -> None:
        spoken["say"] = say
        turns.clear()
        host = make_host(docker=DockerAddress(scheme="unix", target="/nowhere.sock"), image="127.0.0.1:5000/fake:1")
        live(ContainerLauncher(host, PullLimits()), job_on("docker", image=host.image, image_digest=DIGEST))

    check(answers, have)


# ---- Slurm, through the agent on its login host


SLURM_PRINTS = {
    "sinfo --version": ["slurm 22.05.8"],
    "sinfo --noheader --Node": ["gpu|n1|2|1000|idle|gpu:a4000:2"],
    "squeue": ["12_0|COMPLETED|n1|None", "12_1|PENDING||Priority", "13|CANCELLED||None"],
}
"""Lines of its commands."""


@pytest.mark.parametrize("spoilt", ["the agent's answers", "words of Slurm"])
def test_no_answer_of_slurm_does_more_than_fail_its_fleet(tmp_path: Path, spoilt: str):
    job, record = job_on("slurm"), to_json(good_record(CASE))
    left = ("tfbench: state timing\n", "code 0\nnode n1\nimage \n", record)
    words: dict[str, Any] = {name: [line.split("|") for line in lines] for name, lines in SLURM_PRINTS.items()}
    answers: dict[str, Any] = {
        **{name: {"output": "\n".join(lines)} for name, lines in SLURM_PRINTS.items() if name != "squeue"},
        "survey": {"usable": True, "arrays": {"1": ["a b", "11"]}, "begun": "a", "ended": "b"},
        "submit": {"output": "12"},
        "poll": {"repeats": {job.id: [in_base64(text) for text in left]}},
    }
    for do in ("survey", "poll"):
        answers[do]["states"] = "\n".join(SLURM_PRINTS["squeue"])
    queue = SlurmQueue(container="none", shared_folder=str(tmp_path), partition="gpu", gres="gpu:a4000:2")
    quick = queue.model_copy(update={"poll_seconds": 0.001})

    def have(say: Callable[[str], str]) -> None:
        asked = Asked()

        class LoginHost(Channel):
            async def answer(self, do: str, payload: bytes = b"", **request: Any) -> dict[str, Any]:
                asked.add()
                command = " ".join(request.get("words", ()))
                name = next((name for name in answers if command and command.startswith(name)), do)
                line = (
                    say(name)
                    if name in (words if spoilt == "words of Slurm" else answers)
                    else json.dumps(answers[name])
                )
                if spoilt == "words of Slurm" and name in words:
                    line = json.dumps({"output": spoken(line)})
                elif spoilt == "words of Slurm" and "states" in answers[name]:
                    line = json.dumps({**answers[name], "states": spoken(say("squeue"))})
                answer = parse_line(self.name, line.encode(errors="surrogatepass"))
                raise_failure(self.name, answer)
                return answer

        live(SlurmLauncher(make_host(slurm=queue), quick, LoginHost(None, root=str(tmp_path))), job)

    check(words if spoilt == "words of Slurm" else answers, have)


def spoken(document: str) -> str:
    """Return words of a document as a command prints them, with bars between the words of a line."""
    try:
        lines = json.loads(document)
    except (ValueError, RecursionError):
        return document
    lines = lines if isinstance(lines, list) else [lines]
    return "\n".join("|".join(map(str, line)) if isinstance(line, list) else str(line) for line in lines)


# ---- Kubernetes


NOON = "2026-11-21T12:00:00Z"


KEPT: Any = types.SimpleNamespace(changed=threading.Condition(), put=lambda kind, item, **_: item)
"""Replaces the server where a Job's pod is played."""


def test_no_answer_of_kubernetes_does_more_than_fail_its_fleet(monkeypatch: pytest.MonkeyPatch):
    queue, image = KubernetesQueue(gpus_per_node=2), "127.0.0.1:5000/tfbench:mine"
    job, host = job_on("kubernetes", image=image), make_host(kubernetes=queue, image=image)
    client = types.SimpleNamespace(configuration=types.SimpleNamespace(host="https://cluster"), rest_client=None)
    monkeypatch.setattr(KubernetesCluster, "_loaded", (client, "bench"))
    monkeypatch.setattr(KubernetesCluster, "close", lambda _: None)
    monkeypatch.setattr("orchestrate.engines.kubernetes.launcher.POLL_SECONDS", 0.001)
    manifest = json.loads(json.dumps(job_manifest(job, host, queue)))
    manifest["metadata"]["uid"] = "u"
    pod = plays.make_pod(KEPT, manifest)
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": NOON}}
    plays.set_status(KEPT, pod, "Succeeded", ended)
    pod = {"metadata": pod["metadata"], "status": pod["status"], "spec": {"nodeName": "node-1"}}
    status = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
    manifest = {"metadata": manifest["metadata"], "status": status}
    lines = ["tfbench: state timing", *record_lines(to_json(good_record(CASE)).encode())]
    log = "".join(f"{NOON.replace('Z', '.000000000Z')} {line}\n" for line in lines)
    event = {"type": "Warning", "reason": "FailedScheduling", "message": "0/1 nodes", "lastTimestamp": NOON}
    answers: dict[str, Any] = {
        "list_node": {"items": [node()], "metadata": {"resourceVersion": "5"}},
        "list_namespaced_pod": {"items": [pod], "metadata": {"resourceVersion": "5", "continue": ""}},
        "create_namespaced_job": manifest,
        "list_namespaced_job": {"items": [manifest], "metadata": {"resourceVersion": "5"}},
        "list_namespaced_event": {"items": [event], "metadata": {}},
        "delete_namespaced_job": {"status": "Success"},
    }

    def have(say: Callable[[str], str]) -> None:
        asked = Asked()

        @contextlib.contextmanager
        def open_(_: object, method: str, *__: object, **___: object) -> Iterator[Any]:
            asked.add()
            text = log if method == "read_namespaced_pod_log" else f"{say(method)}\n"
            data = text.encode(errors="surrogatepass")
            yield types.SimpleNamespace(read=lambda: data, stream=lambda: [data])

        monkeypatch.setattr(KubernetesCluster, "_open", open_)
        live(KubernetesLauncher(host), job)

    check(answers, have)
