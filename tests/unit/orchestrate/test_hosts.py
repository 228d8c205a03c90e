"""`hosts.yml`: settings are resolved, every mistake is reported with its line and a remedy, and no value is lost."""

import json
import random
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from orchestrate.errors import DocumentError, UserError
from orchestrate.inventory.addresses import DockerAddress, HostKeys, SSHAddress
from orchestrate.inventory.hosts import Entry, Fleet, Host, HostsFile, Settings, TLSFiles, read_hosts
from orchestrate.inventory.queues import KubernetesQueue, SlurmQueue, Toleration
from orchestrate.planning.plan import make_plan, plan_from_json, plan_to_json
from orchestrate.suites import Suite, read_suite, suite_names
from orchestrate.text import plain_text
from orchestrate.yaml_files import Document
from results.schema import DEVICE_MODEL, XLA, Data, Device, Mode, Precision
from tests.support.examples import examples

EXAMPLE = (Path(__file__).parents[3] / "hosts.example.yml").read_text()
MISTAKES = json.loads(Path(__file__).with_name("cases").joinpath("mistakes.json").read_text(encoding="utf-8"))
"""What is written, and what is said of it, by kind."""

NAMED_FILES = ("ca.pem", "cert.pem", "key.pem", "ssh_config", "kube.yml")
"""What the example names."""


def write(folder: Path, text: str) -> Path:
    path = folder / "hosts.yml"
    path.write_text(text)
    return path


def mistakes(folder: Path, text: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        read_hosts(write(folder, text))
    return [problem.replace(f"{folder}/", "") for problem in caught.value.problems]


def one_host(entry: str) -> str:
    return f"version: 1\nfleets:\n  f:\n    hosts:\n      h: {entry}\n"


def test_the_innermost_setting_wins_and_variables_are_joined(tmp_path: Path):
    text = """version: 1
defaults: {suite: quick, repeats: 5, cpus: 4, registry: example.org/a, environment: {NCCL_DEBUG: WARN, NCCL_IB: 1}}
fleets:
  a4000:
    cpus: 2
    environment: {NCCL_SOCKET_IFNAME: "=eth0", NCCL_DEBUG: INFO}
    hosts:
      node-a: {docker: "ssh://bench@Host.Example:2222", docker_socket: /run/own.sock, gpus: [0, 2], device: gpu}
      node-b: {docker: "unix:///run/docker.sock", cpus: 1.5, image: mine, environment: {NCCL_IB: 0}}
  here:
    hosts:
      this-machine: {process: true}
"""
    first, second, third = read_hosts(write(tmp_path, text))
    assert first == Host(
        **{"fleet": "a4000", "name": "node-a", "suite": "quick", "repeats": 5, "gpus": (0, 2), "device": Device.GPU},
        **{"registry": "example.org/a", "cpus": 2},
        docker=DockerAddress(scheme="ssh", target="bench@Host.Example", port=2222, socket="/run/own.sock"),
        host_keys=HostKeys(file=str(tmp_path / "hosts.a4000.known_hosts")),
        environment={"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "=eth0", "NCCL_IB": "1"},
    )
    assert (second.cpus, second.image, second.registry, second.environment["NCCL_IB"]) == (1.5, "mine", None, "0")
    assert (third.docker, third.launcher, third.cpus, third.gpus, third.device) == (None, "process", 4, None, None)


def test_all_mistakes_come_in_one_answer(tmp_path: Path):
    text = """version: 1
defaults: {timeout_minutes: 0}
fleets:
  a4000:
    usd_per_gpu_hour: cheap
    hosts:
      node-a: {docker: "ssh://10.0.0.11:2222", gpus: [0]}
      node-b: {docker: "ssh://node-b", gpus: [0, one]}
      node-a: {docker: "ssh://node-c"}
  a5000:
    price_per_gpu_hour: 1
    hosts:
      node-c: {docker: "tcp://10.0.0.21:2376", tls: {ca: ca.pem, cert: h.pem, key: h.pem}}
      node-d: {process: yes}
"""
    expected = """\
hosts.yml:2: timeout_minutes must be a number above 0, in minutes. Received: 0. Example: timeout_minutes: 60
hosts.yml:5: fleet a4000: usd_per_gpu_hour must be a price in US dollars, at least 0. Received: 'cheap'. Example: usd_per_gpu_hour: 0.17
hosts.yml:8: host node-b: gpus must be 'all' or a list of GPU indices from 0. Received: 'one'. Example: gpus: [0, 1]
hosts.yml:9: 'node-a' appears twice, also in line 7. Remove or rename one of them
hosts.yml:11: fleet a5000: unknown key 'price_per_gpu_hour'. Did you mean 'usd_per_gpu_hour'?
hosts.yml:13: host node-c: ca: no such file: ca.pem
hosts.yml:13: host node-c: cert: no such file: h.pem
hosts.yml:13: host node-c: key: no such file: h.pem
hosts.yml:14: host node-d: process must be true or false. Received: 'yes'."""
    assert mistakes(tmp_path, text) == expected.splitlines()


@pytest.mark.parametrize(("entry", "said"), MISTAKES["host"])
def test_a_mistake_in_a_host_names_its_line_and_the_remedy(tmp_path: Path, entry: str, said: str):
    (tmp_path / "x").write_text("")
    problems = mistakes(tmp_path, one_host(entry))
    assert all(problem.startswith("hosts.yml:5: ") for problem in problems), problems
    assert said in "\n".join(problems) and "secret" not in "\n".join(problems)


MANY_NODES = "a: &a [x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n" + "".join(
    f"{chr(99 + i)}: &{chr(99 + i)} [{','.join(['*' + chr(98 + i)] * 10)}]\n" for i in range(8)
)


@pytest.mark.parametrize(
    ("text", "said"), [*MISTAKES["hosts.yml"], (MANY_NODES, "more than"), ("[" * 400, "is not valid YAML")]
)
def test_a_file_that_is_not_a_hosts_file_says_what_it_lacks(tmp_path: Path, text: str, said: str):
    assert any(said in problem for problem in mistakes(tmp_path, text))


def test_a_host_or_login_host_is_reached_by_ssh(tmp_path: Path):
    queue = "q: {slurm: {shared_folder: /x, container: pyxis, ssh: 'me@[::1]:29'}, image: y}"
    address = "root@[2001:db8::1]:22044"
    text = f"version: 1\nfleets:\n  f: {{hosts: {{a: {{ssh: rented}}, b: {{ssh: '{address}'}}}}}}\n  {queue}\n"
    alias, host, login = read_hosts(write(tmp_path, text))
    assert (alias.ssh, alias.docker, alias.launcher) == (SSHAddress(target="rented"), None, "ssh")
    assert host.ssh == SSHAddress(target="root@2001:db8::1", port=22044)
    assert login.login == SSHAddress(target="me@::1", port=29)


def test_host_keys_are_a_setting_of_each_level_where_ssh_is_used(tmp_path: Path):
    text = """version: 1
defaults: {host_keys: accept-new}
fleets:
  a:
    hosts:
      one: {docker: "ssh://one"}
      two: {ssh: two, host_keys: strict}
      three: {docker: "tcp://three:2375", insecure: true}
  c: {slurm: {container: none, shared_folder: /home/b, ssh: "ssh://bench@login:2222", python: /p, project: /q}}
"""
    hosts = read_hosts(write(tmp_path, text))
    assert [(host.host_keys.policy, host.host_keys.file) for host in hosts if host.login] == [
        (policy, str(tmp_path / f"hosts.{fleet}.known_hosts"))
        for policy, fleet in (("accept-new", "a"), ("strict", "a"), ("accept-new", "c"))
    ]
    assert hosts[0].login is hosts[0].docker and hosts[1].login == hosts[1].ssh


@pytest.mark.parametrize(("queue", "said"), MISTAKES["queue"])
def test_a_fleet_of_a_queue_is_checked(tmp_path: Path, queue: str, said: str):
    (tmp_path / "x").write_text("")
    queue = queue.replace("slurm: {", "slurm: {shared_folder: /x, ")
    problems = mistakes(tmp_path, f"version: 1\nfleets:\n  a:\n    {queue}\n")
    assert any(f"fleet a: {said}" in problem for problem in problems), problems


@pytest.mark.parametrize("key", [*Settings.model_fields][4:])  # those before say which host it is
def test_every_setting_reaches_the_host(tmp_path: Path, key: str):
    example = {
        **{"suite": "quick", "gpus": "[0]", "device": "cpu", "repeats": 5, "variant": "cuda12.5"},
        **{"image_source": "pull", "host_keys": "strict", "network": "bridge", "cluster_port": 29500},
    }.get(key) or Settings.model_fields[key].examples[0]
    (plain,) = read_hosts(write(tmp_path, one_host("{docker: 'ssh://a'}")))
    (host,) = read_hosts(write(tmp_path, f"{one_host('{docker: ssh://a}')}defaults: {{{key}: {example!s}}}\n"))
    at_default = ("timeout_minutes", "silence_minutes", "network", "cluster_port")
    assert (host != plain) is (key not in at_default), f"{key}: {example} says nothing"


def test_a_limit_names_fleets_and_hosts(tmp_path: Path):
    fleets = "{a: {hosts: {one: {ssh: a1}, two: {ssh: a2}}}, b: {hosts: {one: {ssh: b1}, two: {ssh: b2}}}}"
    path = write(tmp_path, f"version: 1\nfleets: {fleets}\n")
    assert [host.key for host in read_hosts(path, ["b"])] == ["b.one", "b.two"]
    assert [host.key for host in read_hosts(path, ["two", "a.one"])] == ["a.one", "a.two", "b.two"]
    with pytest.raises(UserError, match=r"--limit: no fleet or host is named c\. Names: a, b, one, two"):
        read_hosts(path, ["a", "c"])


def test_the_example_file_has_every_key_once_and_is_valid(tmp_path: Path):
    for name in NAMED_FILES:
        (tmp_path / name).write_text("")
    hosts = read_hosts(write(tmp_path, EXAMPLE))
    assert {host.launcher for host in hosts} == {"docker", "ssh", "process", "slurm", "kubernetes"}
    for model in (HostsFile, Fleet, Entry, TLSFiles, SlurmQueue, KubernetesQueue, Toleration):
        for key in model.model_fields:
            uses = [line for line in EXAMPLE.splitlines() if f"{key}:" in line.partition("#")[0]]
            assert uses, f"hosts.example.yml does not show {key}"


@pytest.mark.parametrize(
    ("fleet", "missing"),
    [
        ("image: tfbench:x\n    kubernetes: {data_claim: imagenet}", []),
        ("image: tfbench:x\n    kubernetes: {}", ["hosts.yml names no data_claim for the cluster"]),
        ("hosts: {h: {process: true, data_dir: /sets/imagenet}}", []),
        ("hosts: {h: {process: true}}", ["hosts.yml names no data_dir for the host"]),
    ],
)
def test_a_host_or_queue_without_data_excludes_its_cases(tmp_path: Path, fleet: str, missing: list[str]):
    (tmp_path / "my.yml").write_text("cases: [{model: resnet50, batch_per_gpu: 8, data: [synthetic, tfrecord]}]")
    hosts = read_hosts(write(tmp_path, f"version: 1\ndefaults: {{suite: my.yml}}\nfleets:\n  f:\n    {fleet}\n"))
    plan = make_plan(hosts, {host.place: "not asked" for host in hosts}, read_suite, run_id="r", seed=1)
    assert {job.case.data for job in plan.jobs} == {Data.SYNTHETIC, *([] if missing else [Data.TFRECORD])}
    assert [text.partition(": ")[2] for text in plan.hosts[0].excluded] == missing
    assert plan_from_json(plan_to_json(plan)).hosts[0].host.data_dir == hosts[0].data_dir


def test_an_empty_plan_says_what_was_left_out_and_why(tmp_path: Path):
    (tmp_path / "my.yml").write_text("cases: [{model: resnet50, data: tfrecord, batch_per_gpu: 1, device: cpu}]")
    named = ", ".join(f"h{number}: {{docker: 'ssh://{number}', suite: my.yml}}" for number in range(25))
    hosts = read_hosts(write(tmp_path, f"version: 1\nfleets: {{f: {{hosts: {{{named}}}}}}}"))
    with pytest.raises(UserError) as caught:
        make_plan(hosts, {host.place: "not asked" for host in hosts}, read_suite, run_id="r", seed=1)
    first, second, *others = str(caught.value).splitlines()
    assert first == "the plan is empty: no case of the suite fits any host"
    assert second == "  f.h0: resnet50-fp32-b1-1cpu-tfrecord-w10s100: hosts.yml names no data_dir for the host"
    assert len(others) == 19 and others[-1] == "  6 others"


# ---- suites are data: blocks multiply, and a mistake in a user's file names its line


def test_every_suite_that_comes_along_is_valid_and_says_what_it_is():
    names = ["aime", "device", "first", "inference", "published", "quick", "science", "standard", "transformers"]
    assert suite_names() == names
    for name in names:
        suite = read_suite(name)
        assert suite.description and suite.repeats >= 3 and suite.cases_on(Device.GPU)


def test_the_suites_measure_what_they_are_named_for():
    cases = read_suite("standard").cases_on(Device.CPU)
    assert {case.device for case in cases} == {Device.GPU}, "a host without a GPU says no_gpu, never a CPU number"
    assert {(case.precision, case.batch_per_gpu) for case in cases} == {(Precision.FP32, 128), (Precision.FP16, 256)}
    assert {case.num_gpus for case in cases} == {1, 2, 4, 8} and len(cases) == 3 * 2 * 4
    quick = read_suite("quick").cases_on(Device.CPU)
    assert {case.model for case in quick} == {"resnet50", "resnet152", "inception_v3", "googlenet"}
    assert {case.device for case in quick} == {Device.CPU}, "what the host has"
    device = [case for case in read_suite("science").cases_on(Device.CPU) if case.model == DEVICE_MODEL]
    assert device == read_suite("device").cases_on(Device.CPU) and [case.num_gpus for case in device] == [1, 2, 4, 8]
    assert {(case.mode, case.batch_per_gpu) for case in device} == {(Mode.DEVICE, 1)}


def test_the_aime_suite_is_the_sources_matrix():
    """Source: AIME, "Deep Learning GPU Benchmarks": 50 steps, the mean of three runs, fp32 and AMP, compiled or not."""
    suite = read_suite("aime")
    matrix = {(case.model, case.precision, case.xla, case.num_gpus) for case in suite.cases_on(Device.GPU)}
    kinds = (Precision.FP32, Precision.FP16), (XLA.OFF, XLA.REPLICA)
    assert matrix == set(product(("bert_large", "resnet50_v1.5"), *kinds, (1, 2, 4, 8)))
    assert suite.repeats == 3 and {case.num_steps for case in suite.cases_on(Device.GPU)} == {50}


RESNET = "model: resnet50, batch_per_gpu: 8"


@pytest.mark.parametrize(("block", "said"), MISTAKES["suite"])
def test_what_does_not_go_together_is_named_with_its_line(tmp_path: Path, block: str, said: str):
    path = tmp_path / "my.yml"
    path.write_text(f"cases:\n  - {{{RESNET}}}\n  - {{{block}}}\n")
    with pytest.raises(DocumentError) as caught:
        read_suite(str(path))
    assert f"{path}:3: case 2: {said}" in str(caught.value)


def suite_of(folder: Path, block: str) -> Suite:
    path = folder / "my.yml"
    path.write_text(f"cases:\n  - {{{block}}}\n")
    return read_suite(str(path))


def test_several_hosts_multiply_and_only_they_choose_how_they_communicate(tmp_path: Path):
    counts = "num_gpus: [1, 4], num_hosts: [1, 2], communication: ring, all_reduce: [true, false]"
    cases = suite_of(tmp_path, f"{RESNET}, {counts}").cases_on(Device.GPU)
    named = {(case.num_hosts, case.num_gpus, str(case.communication), case.all_reduce) for case in cases}
    alone = {(1, 1, "auto", True), (1, 4, "auto", True), (1, 4, "auto", False)}
    assert named == alone | {(2, gpus, "ring", whole) for gpus in (1, 4) for whole in (True, False)}
    assert len({case.name for case in cases}) == len(cases) == 7


def test_a_batch_may_be_as_large_as_fits_the_smallest_gpu_of_a_run(tmp_path: Path):
    suite = suite_of(tmp_path, "model: [resnet152, googlenet], batch_per_gpu: fit, precision: [fp32, fp16]")

    def batches(gibibytes: float | None) -> list[int]:
        memory = None if gibibytes is None else gibibytes * 2**30
        return [case.batch_per_gpu for case in suite.cases_on(Device.GPU, memory)]

    assert batches(None) == batches(48) == [128, 256, 128, 256]
    assert batches(16) == [64, 128, 128, 256]
    assert batches(8) == [16, 32, 128, 256]


# ---- hundreds of spoilt files

WITHOUT_COMMENTS = re.sub(r" +#.*", "", EXAMPLE)
PIECES = (
    *("null", "~", "true", "yes", "0", "-1", "1.5", "1e400", ".nan", "0x10", "017", "1_000", "12:30", "2026-11-21"),
    *("9" * 5000, "''", '"\\0"', '"\\e[2J"', "é" * 300, '"a\\nb"', '"[bold]x"', '"\\u202e"', "auto", "gpu", "my.yml"),
    *("!!bool x", "!!int x", "!!str 3", "!tag x", "!!binary eA==", "&a x", "*a", "|x", "@x", "[]", "[0, 0]", "{}"),
    *("{a: b}", "{a.b: {docker: 'ssh://c'}}", "{NCCL_X: [a]}", '"ssh://-a"', '"ssh://[::1"', '"tcp://a:2376/path"'),
    *("version", "defaults", "hosts", "docker", "slurm", "environment", "dockr", "Suite", "<<", '"a b"', "a" * 70),
    *("? [a]", "node-b", "\t", "\n", "  ", ": ", "- ", "#", "{", "}", "]", ",", "!", "%", "\\", "\x00", "\x1b[31m"),
    *("\ufeff", "\u2028", "\x85", "😀", "---\n", "...\n", "<<: *a\n", "\r", "x: y\n", "\t"),
)
PLACES = (r"[\w.-]+(?=:)", r"(?<=: )[^,{}\n]*", r".*\n", "")
"""Keys, values, lines, and between any characters."""


def spoilt(random_: random.Random) -> bytes:
    """Replace one to three places of the example by something, or by a line of it."""
    text = WITHOUT_COMMENTS
    for _ in range(random_.randint(1, 3)):
        places = list(re.finditer(random_.choice(PLACES), text)) or list(re.finditer("", text))
        start, end = random_.choice(places).span()
        piece = random_.choice([*PIECES, *text.splitlines(keepends=True)])
        text = text[:start] + piece + text[end:]
    return text.encode("utf-8", "surrogatepass") + random_.choice([b""] * 20 + [b"\xff\xc3"])


@pytest.mark.parametrize("seed", range(examples(400)))
def test_a_spoilt_hosts_file_is_refused_by_line_or_read_without_a_loss(tmp_path: Path, seed: int):
    for name in NAMED_FILES:
        (tmp_path / name).write_text("")
    (tmp_path / "my.yml").write_text("cases: [{model: vgg16, batch_per_gpu: 64}]")
    path, data = tmp_path / "hosts.yml", spoilt(random.Random(seed))
    path.write_bytes(data)
    try:
        hosts = read_hosts(path)
    except DocumentError as error:
        last = len(re.split(rb"\r\n|[\n\r]|\xc2\x85|\xe2\x80[\xa8\xa9]", data)) + 1
        assert error.problems
        for problem in error.problems:
            place = re.match(rf"{re.escape(str(path))}:(\d+): \S", problem)
            assert place and 1 <= int(place[1]) <= last, problem
            assert problem == plain_text(problem, 1_500), "a message must neither move the cursor nor fill the terminal"
        return
    try:
        parsed = YAML(typ="safe", pure=True).load(data.decode())
    except YAMLError:  # it is stricter with tabs, and with a tag that is not its own
        return
    assert leaves(Document(path).data) == leaves(parsed), "lost while parsing"
    named = sum(len(fleet.get("hosts") or ["queue"]) for fleet in parsed["fleets"].values())
    assert named == len(hosts) == len({host.key for host in hosts}), "a name twice would write the same records"


def leaves(node: Any) -> int:
    """Count scalars that say something."""
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else None
    return sum(map(leaves, inner)) if inner is not None else int(node is not None)
