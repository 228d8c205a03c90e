"""`tfbench init --from`: what other tools print, in; a hosts.yml that `plan` reads, out.

The samples in `cases/sources` are printed by the tools' own models (`tests/real/renting/samples`); those of RunPod,
which has no models on PyPI, follow the examples of its API's documentation.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrate import cli, commands
from orchestrate.command_line import SOURCE_NAMES
from orchestrate.errors import Unreachable, UserError
from orchestrate.inventory.addresses import DockerAddress, SSHAddress
from orchestrate.inventory.hosts import Host, read_hosts
from orchestrate.inventory.sources import SOURCES, import_hosts
from orchestrate.inventory.sources.machines import Found, Machine, destination, fleet_name, hosts_file
from tests.unit.orchestrate.fakes import FakeHost, FakeLauncher

CASES = Path(__file__).parent / "cases" / "sources"
SAMPLES = ("ansible", "sky", "dstack", "vast", "runpod")


def hosts_of(text: str, folder: Path) -> dict[str, Host]:
    path = folder / "hosts.yml"
    path.write_text(text)
    return {host.key: host for host in read_hosts(path)}


def plan_accepts(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Plan for hosts that do not answer: they are only samples."""

    def make(host: Host, **_: object) -> FakeLauncher:
        return FakeLauncher(host, FakeHost(facts=Unreachable(f"{host.key} is only a sample")))

    monkeypatch.setattr(commands, "make_launcher", make)
    hosts_of(text, folder)
    parsed = cli.parse(["tfbench", "plan", "--hosts", str(folder / "hosts.yml"), "--runs-dir", str(folder / "runs")])
    return parsed.command(parsed) == 0


@pytest.mark.parametrize("source", SAMPLES)
def test_a_sample_becomes_a_hosts_file_that_plan_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: str
):
    assert tuple(SOURCES) == SOURCE_NAMES == ("ssh-config", *SAMPLES)
    text = import_hosts(source, str(CASES / f"{source}.json"))
    assert text == (CASES / f"{source}.yml").read_text()
    assert plan_accepts(text, tmp_path, monkeypatch)
    assert " repeats on " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "key", "target", "port", "usd"),
    [
        ("vast", "a4000.vast-27001", "root@203.0.113.7", 41022, 0.1712),
        ("vast", "a4000.second", "root@ssh5.vast.ai", 27002, 0.17),
        ("vast", "a5000.vast-27003", "root@ssh5.vast.ai", 27004, 0.36),  # with jupyter; two GPUs for twice as much
        ("runpod", "a4000.tfbench-a4000", "root@203.0.113.7", 10341, 0.17),
        ("sky", "a4000.tfbench-a4000", "tfbench-a4000", None, None),
        ("sky", "l4.tfbench-in-docker", "tfbench-in-docker", None, None),  # image_id: docker:… is a container
    ],
)
def test_a_container_has_its_address_and_its_price(tmp_path: Path, source, key, target, port, usd):
    host = hosts_of((CASES / f"{source}.yml").read_text(), tmp_path)[key]
    assert (host.ssh, host.docker, host.usd_per_gpu_hour) == (SSHAddress(target=target, port=port), None, usd)


def test_an_ansible_inventory_is_read_by_ansible_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "ansible-inventory"
    program.write_text(f'#!/bin/sh\n[ "$*" = "-i {tmp_path}/lab.ini --list" ] && cat {CASES}/ansible.json\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert import_hosts("ansible", f"{tmp_path}/lab.ini") == (CASES / "ansible.yml").read_text()
    program.write_text("#!/bin/sh\necho 'ERROR! lab.ini:3: wrong' >&2; exit 4\n")
    with pytest.raises(UserError, match=r"lab\.ini --list: ERROR! lab\.ini:3: wrong"):
        import_hosts("ansible", f"{tmp_path}/lab.ini")
    program.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        UserError, match=r"Install ansible-core, or: ansible-inventory -i lab\.ini --list \| tfbench init"
    ):
        import_hosts("ansible", "lab.ini")


def test_what_is_ambiguous_in_an_inventory_is_a_comment(tmp_path: Path):
    groups = {"a4000": {"hosts": ["n", "m"]}, "rtx_a5000": {"hosts": ["n"]}, "lab": {"hosts": ["m", "o"]}}
    path = tmp_path / "list.json"
    path.write_text(json.dumps({"_meta": {"hostvars": {"o": {"ansible_port": "x"}}}, **groups}))
    text = import_hosts("ansible", str(path))
    assert "# ambiguous: in groups a4000, rtx_a5000, which are all named like a GPU\n" in text
    assert "#   o: no ssh address: user None, host o, port x\n" in text
    assert set(hosts_of(text, tmp_path)) == {"a4000.m", "unknown-gpu.n"}


SSH_CONFIG = """\
Host gpu-a "gpu b" web-*
  HostName 203.0.113.10
Host=gpu-c
  HostName=203.0.113.11
  Port 2222
  ProxyJump bastion
Host again
  HostName 203.0.113.11
  Port 2222
  ProxyJump bastion
Host github.com
  User git
Host bastion !other
  User jump
Include {folder}/more/*.conf
Match host gpu-a
  User bench
"""


def test_aliases_of_an_ssh_configuration_mean_what_ssh_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "1.conf").write_text("Host included\n  HostName 203.0.113.12\n")
    config = tmp_path / "ssh_config"
    config.write_text(SSH_CONFIG.format(folder=tmp_path))
    text = import_hosts("ssh-config", str(config))
    hosts = hosts_of(text, tmp_path)
    assert set(hosts) == {f"unknown-gpu.{name}" for name in ("gpu-a", "gpu-c", "bastion", "included")}
    assert hosts["unknown-gpu.gpu-a"].docker == DockerAddress(scheme="ssh", target="gpu-a", ssh_config=str(config))
    assert plan_accepts(text, tmp_path, monkeypatch)
    assert "      # through bastion\n      gpu-c: " in text
    for reason in (
        "gpu b: not a valid name in hosts.yml",
        "again: the same machine as gpu-c (203.0.113.11, port 2222)",
        "github.com: its user is git, which has no shell",
    ):
        assert f"#   {reason}\n" in text


def test_an_ssh_configuration_that_ssh_refuses_is_reported_in_its_words(tmp_path: Path):
    config = tmp_path / "ssh_config"
    config.write_text("Host a\n  Prot 22\n")
    with pytest.raises(UserError, match=r"ssh -G .*line 2: Bad configuration option: prot"):
        import_hosts("ssh-config", str(config))
    with pytest.raises(UserError, match="needs the path of the file"):
        import_hosts("ssh-config", "-")


@pytest.mark.parametrize(
    ("source", "content", "said"),
    [
        ("vast", "", "not JSON: .*Expected the output of: vastai show instances --raw"),
        ("vast", "[]", "no reachable machine:\n  it is empty"),
        ("vast", '[{"id": 1, "actual_status": "exited"}]', r"vast-1 \(1\): its status is exited, not running"),
        ("vast", '[{"id": 1, "actual_status": "running", "ports": ""}]', r"vast-1 \(1\): no ssh address"),
        ("vast", '[{"id": 1, "num_gpus": "many"}]', r"not the output of: .*\n  0\.num_gpus: Input should be"),
        ("vast", '[{"id": 1, "dph_total": NaN}]', r"0\.dph_total: "),
        ("runpod", '{"errors": [{"message": "Unauthorized"}]}', "RunPod answered with an error: .*Unauthorized"),
        ("runpod", '[{"id": "p", "desiredStatus": "RUNNING"}]', "use a template with 22/tcp"),
        ("runpod", '{"data": {"myself": {"pods": []}}}', r"0\.id: Field required"),
        ("dstack", '{"name": "f", "instances": []}', "this is a fleet, and dstack does not report how to log in"),
        ("dstack", "{}", "all: Input should be a valid list"),
        ("sky", '{"a": 1}', "not the output of: sky status --output json"),
        ("ansible", "[gpus]\nn", "not JSON: .* Expected the output of: ansible-inventory -i INV"),
        ("ansible", '{"all": {}}', "it has no _meta.hostvars"),
    ],
)
def test_anything_else_is_refused_with_what_was_expected(tmp_path: Path, source: str, content: str, said: str):
    path = tmp_path / "input.json"
    path.write_text(content)
    with pytest.raises(UserError, match=said):
        import_hosts(source, str(path))
    with pytest.raises(UserError, match="No such file"):
        import_hosts(source, str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("gpu", "fleet"),
    [
        *((name, "a4000") for name in ("RTX A4000", "RTX_A4000", "RTXA4000", "A4000", "NVIDIA RTX A4000", "rtx-a4000")),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("A100", "a100"),
        ("A100-80GB", "a100-80gb"),
        ("L4", "l4"),
        ("  ", "unknown-gpu"),
        (None, "unknown-gpu"),
    ],
)
def test_a_fleet_is_named_by_its_gpu(gpu: str | None, fleet: str):
    assert fleet_name(gpu) == fleet


texts = st.text(max_size=80)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(texts, texts, texts, st.none() | st.floats(0, 1e6), texts), min_size=1, max_size=6))
def test_names_and_texts_of_any_kind_make_a_file_that_is_read(tmp_path_factory, described):
    given = [
        {"name": name, "gpu": gpu, "notes": (note,), "usd_per_hour": usd, "target": f"root@h{number}"}
        for number, (name, gpu, note, usd, _) in enumerate(described)
    ]
    machines = [Machine(way="ssh", port=22, gpus=1, **fields) for fields in given]
    found = Found(machines=machines, excluded=[reason for *_, reason in described], notes=[described[0][2]])
    assert len(hosts_of(hosts_file(found, "vast"), tmp_path_factory.mktemp("hosts"))) == len(machines)
    twice = [Machine(name=name, way="ssh", target="root@h", port=22) for name in ("a", "b")]
    text = hosts_file(Found(machines=twice), "vast")
    assert set(hosts_of(text, tmp_path_factory.mktemp("twice"))) == {"unknown-gpu.a"}, "the same address is one host"
    assert "#   b: the same address as a\n" in text


@given(texts, texts)
def test_an_address_is_plain_or_none(user: str, host: str):
    address = destination(user, host)
    assert address is None or address in (f"{user}@{host}", f"{user}@[{host}]")
    assert destination("root", "2001:db8::1") == "root@[2001:db8::1]"
    assert destination("root", "-oProxyCommand=x") is destination("-l", "h") is destination("a b", "h") is None


@pytest.mark.slow
def test_init_writes_the_machines_of_standard_input_and_changes_no_file(tmp_path: Path):
    file = tmp_path / "hosts.yml"
    command = [sys.executable, "-m", "orchestrate", "init", "--from", "vast", f"--hosts={file}"]
    sample = (CASES / "vast.json").read_bytes()
    done = subprocess.run(command, input=sample, capture_output=True, cwd=Path(__file__).parents[3], check=True)
    assert file.read_text() == (CASES / "vast.yml").read_text() and done.stdout == b""
    for text, said in ((sample, b"exists and was not changed"), (b"{}", b"vast")):
        done = subprocess.run(command, input=text, capture_output=True, cwd=Path(__file__).parents[3])
        assert done.returncode == 2 and said in done.stderr and b"Traceback" not in done.stderr
    assert file.read_text() == (CASES / "vast.yml").read_text()
