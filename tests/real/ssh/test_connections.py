"""What connections keep from hosts, what they take from the user, and how a host says that it refuses them."""

import http.server
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.ssh.rented import Rented
from tests.support import write_program
from tests.support.controller import Runs
from tests.support.engines.processes import free_port, short_folder, wait_until
from tests.support.engines.servers import SshHost, skip_without_sshd

MEANT_FOR_A_TERMINAL = """\
Host *
  ForwardAgent yes
  ForwardX11 yes
  SendEnv *
  RemoteCommand tmux new -A
  RequestTTY force
  LocalForward 127.0.0.1:{busy} 127.0.0.1:1
  RemoteForward 127.0.0.1:{other} 127.0.0.1:1
  ExitOnForwardFailure yes
  ForkAfterAuthentication yes
  StdinNull yes
  SessionType none
  PermitLocalCommand yes
  LocalCommand touch {touched}
"""


def test_a_host_gets_neither_the_users_agent_nor_what_a_terminal_gets(instance: Rented, tmp_path: Path):
    seen, touched = tmp_path / "seen", tmp_path / "touched"
    config = instance.host.config_file
    settings = MEANT_FOR_A_TERMINAL.format(busy=instance.host.port, other=free_port(), touched=touched)
    config.write_text(config.read_text() + settings)
    runs = Runs(tmp_path, SSH_AUTH_SOCK="/nowhere/agent.sock", DISPLAY="nowhere:1", FAKE_BENCHMARK="a secret")
    with short_folder("tfb-agent-") as folder:
        agent = subprocess.Popen(["ssh-agent", "-D", "-a", folder / "sock"], stdout=subprocess.DEVNULL)
        runs.environment["SSH_AUTH_SOCK"] = str(folder / "sock")
        try:
            wait_until((folder / "sock").exists, "the agent")
            runs.measure({"all": {"hosts": {"one": instance.entry(first=f"env >{seen}")}}})
        finally:
            agent.kill()
            agent.wait()
    variables = dict(line.partition("=")[::2] for line in seen.read_text().splitlines())
    assert "SSH_CONNECTION" in variables
    assert not {"SSH_AUTH_SOCK", "DISPLAY"} & variables.keys() and "a secret" not in variables.values()
    assert not touched.exists()


class Engine(http.server.BaseHTTPRequestHandler):
    """An engine that answers about itself."""

    def do_GET(self) -> None:
        body = b'{"Name": "engine", "ServerVersion": "25.0.0"}'
        self.send_response_only(200)
        self.send_header("Api-Version", "1.44")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


REACHED = {True: "tfbench:", False: "docker 25.0.0"}
"""What `check` prints of a usable host, without and with an engine."""

REFUSAL = """no-port-forwarding,command="echo 'Log in as \\"ubuntu\\", not as \\"root\\".'; exit 142" """


@pytest.fixture
def docker_host() -> Iterator[SshHost]:
    skip_without_sshd()
    with short_folder("tfb-docker-") as folder:
        server = socketserver.ThreadingUnixStreamServer(str(folder / "engine.sock"), Engine)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with server, SshHost(folder, folder / "engine.sock", alias="node") as host:
            yield host
            server.shutdown()


def checked(runs: Runs, host: SshHost, without_docker: bool = False) -> str:
    entry = {"ssh": host.alias, "ssh_config": str(host.config_file)} if without_docker else host.connection()
    return runs.run("check", f"--hosts={runs.hosts({'all': {'hosts': {'one': entry}}})}", expect=None).stdout


def test_a_tunnel_to_an_engine_forwards_that_engine_alone(docker_host: SshHost, tmp_path: Path):
    settings = MEANT_FOR_A_TERMINAL.format(busy=docker_host.port, other=free_port(), touched=tmp_path / "touched")
    docker_host.config_file.write_text(docker_host.config_file.read_text() + settings)
    assert REACHED[False] in checked(Runs(tmp_path), docker_host)
    assert not (tmp_path / "touched").exists()


REFUSALS = [
    (REFUSAL, False, ['Log in as "ubuntu", not as "root".', "142"], "usermod"),
    (REFUSAL, True, ['Log in as "ubuntu", not as "root".', "142"], "usermod"),
    ("restrict ", False, ["its sshd forbids forwarding", "AllowStreamLocalForwarding"], "usermod"),
    ("", False, ["Is Docker installed there"], "forwarding"),
]
"""What stands before the user's key, whether Docker is done without, and words that are said, and that are not."""


@pytest.mark.parametrize(("before_key", "without_docker", "said", "not_said"), REFUSALS)
def test_a_host_that_refuses_is_explained_in_its_own_words(
    docker_host: SshHost, tmp_path: Path, before_key: str, without_docker: bool, said: list[str], not_said: str
):
    key = docker_host.identity_file.with_suffix(".pub")
    key.write_text(before_key + key.read_text())
    if not before_key:
        docker_host.remote_socket = Path("/nowhere/engine.sock")
    text = checked(Runs(tmp_path), docker_host, without_docker)
    assert all(words in text for words in said) and not_said not in text


@pytest.mark.parametrize("without_docker", [False, True])
def test_an_open_shared_connection_is_used_where_no_other_login_works(
    docker_host: SshHost, tmp_path: Path, without_docker: bool
):
    with short_folder("tfb-mux-") as folder:
        config = docker_host.config_file
        config.write_text(f"{config.read_text()}  ControlMaster auto\n  ControlPath {folder}/%C\n")
        ssh = ["ssh", "-F", str(config)]
        subprocess.run([*ssh, "-f", "-N", "-oControlPersist=yes", docker_host.alias], check=True, timeout=60)
        docker_host.identity_file.with_suffix(".pub").write_text("")  # stands for a second factor
        try:
            said = checked(Runs(tmp_path), docker_host, without_docker)
            assert REACHED[without_docker] in said, said
        finally:
            subprocess.run([*ssh, "-O", "exit", docker_host.alias], check=False, capture_output=True, timeout=60)
        said = checked(Runs(tmp_path), docker_host, without_docker)
    assert "Permission denied" in said and "ControlMaster" in said


def test_a_profile_may_print_anything_before_the_answer(instance: Rented, tmp_path: Path):
    profile = ("echo Hi", "printf 'a\\r'", r"printf '\033]0;%s\007' title", "printf 'no line end'")
    (instance.root.parent / ".bashrc").write_text("\n".join(profile))
    Runs(tmp_path).measure({"all": {"hosts": {"one": instance.entry()}}})


SINFO = "case $* in *version*) echo slurm 99.1 ;; *) echo 'gpu|n1|8|9|idle|gpu:1' ;; esac"


def test_slurm_is_found_as_a_login_finds_it(instance: Rented, tmp_path: Path):
    home = instance.root.parent
    for name, body in (("sbatch", ":"), ("squeue", ":"), ("sinfo", SINFO)):
        write_program(home / "slurm" / "bin" / name, f"#!/bin/sh\n{body}\n")
    (home / ".bash_profile").write_text("export PATH=$HOME/slurm/bin:$PATH\n")
    queue = {"shared_folder": str(home), "container": "none", "project": "/x", "gpus_per_node": 1, **instance.entry()}
    runs = Runs(tmp_path)
    assert "slurm 99.1" in runs.run("check", f"--hosts={runs.hosts({'lab': {'slurm': queue}})}").stdout
