"""What connections keep from hosts, what they take from the user, and how a host says that it refuses them."""

import contextlib
import http.server
import shutil
import signal
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.ssh.rented import Rent, Rented
from tests.support import write_program
from tests.support.controller import Runs
from tests.support.engines.processes import free_port, read_proc, short_folder, wait_until, with_variables
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


@pytest.fixture
def instance(rent: Rent) -> Rented:
    return rent()


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
    assert not {"SSH_AUTH_SOCK", "DISPLAY", "FAKE_BENCHMARK"} & variables.keys()
    assert not touched.exists()


# ---- an engine behind ssh


class _Engine(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"Name": "engine", "ServerVersion": "25.0.0"}'
        self.send_response(200)
        for name, value in (("Api-Version", "1.44"), ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *arguments: object) -> None: ...


@contextlib.contextmanager
def engine(path: Path) -> Iterator[None]:
    """Serve an engine that answers about itself."""
    server = socketserver.ThreadingUnixStreamServer(str(path), _Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


REACHED = {True: "tfbench:", False: "docker 25.0.0"}
"""What `check` prints of a usable host, without and with an engine."""

REFUSAL = """no-port-forwarding,command="echo 'Log in as \\"ubuntu\\", not as \\"root\\".'; exit 142" """


@pytest.fixture
def docker_host() -> Iterator[SshHost]:
    skip_without_sshd()
    with short_folder("tfb-docker-") as folder, engine(folder / "engine.sock"):
        host = SshHost(folder, folder / "engine.sock", alias="node")
        with host:
            yield host


def checked(runs: Runs, host: SshHost, without_docker: bool = False) -> str:
    entry = {"ssh": host.alias, "ssh_config": str(host.config_file)} if without_docker else host.connection()
    return runs.run("check", f"--hosts={runs.hosts({'all': {'hosts': {'one': entry}}})}", expect=None).stdout


def test_a_tunnel_to_an_engine_forwards_that_engine_alone(docker_host: SshHost, tmp_path: Path):
    settings = MEANT_FOR_A_TERMINAL.format(busy=docker_host.port, other=free_port(), touched=tmp_path / "touched")
    docker_host.config_file.write_text(docker_host.config_file.read_text() + settings)
    assert REACHED[False] in checked(Runs(tmp_path), docker_host)
    assert not (tmp_path / "touched").exists()


def test_a_refused_login_is_explained_in_the_hosts_own_words(docker_host: SshHost, tmp_path: Path):
    key = docker_host.identity_file.with_suffix(".pub")
    key.write_text(REFUSAL + key.read_text())
    for without_docker in (False, True):
        said = checked(Runs(tmp_path), docker_host, without_docker)
        assert 'Log in as "ubuntu", not as "root".' in said and "usermod" not in said and "142" in said


def test_an_sshd_that_forbids_forwarding_is_named_as_the_cause(docker_host: SshHost, tmp_path: Path):
    key = docker_host.identity_file.with_suffix(".pub")
    key.write_text(f"restrict {key.read_text()}")
    said = checked(Runs(tmp_path), docker_host)
    assert "its sshd forbids forwarding" in said and "AllowStreamLocalForwarding" in said and "usermod" not in said


def test_a_missing_engine_is_still_a_missing_engine(docker_host: SshHost, tmp_path: Path):
    docker_host.remote_socket = Path("/nowhere/engine.sock")
    said = checked(Runs(tmp_path), docker_host)
    assert "Is Docker installed there" in said and "forwarding" not in said


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


# ---- profiles, and the end of the controller


def test_a_profile_may_print_anything_before_the_answer(rent: Rent, tmp_path: Path):
    assert shutil.which("bash")
    hosts = {}
    for profile in (r"printf '\033]0;%s\007' title", "printf 'no line end'", "printf 'a\\r'", "echo Hi"):
        instance = rent()
        (instance.root.parent / ".bashrc").write_text(f"{profile}\n")
        hosts[f"host-{len(hosts)}"] = instance.entry()
    Runs(tmp_path).measure({"all": {"hosts": hosts}})


def test_no_ssh_outlives_a_killed_controller(instance: Rented, tmp_path: Path):
    key = instance.host.identity_file.with_suffix(".pub")
    key.write_text(f'command="exec sleep 600" {key.read_text()}')  # does not end with the connection
    runs = Runs(tmp_path, TFBENCH_TEST=str(tmp_path))

    def connections() -> list[int]:
        ours = with_variables(f"TFBENCH_TEST={tmp_path}")
        return [pid for pid in ours if read_proc(pid, "comm").strip() == b"ssh"]

    entry = {"ssh": instance.entry()["ssh"], "ssh_config": str(instance.host.config_file)}
    with runs.start("check", f"--hosts={runs.hosts({'all': {'hosts': {'one': entry}}})}") as controller:
        wait_until(connections, "a connection")
        controller.send_signal(signal.SIGKILL)
    wait_until(lambda: not connections(), "the end of ssh", seconds=60)


# ---- a cluster behind a login host

SINFO = (
    "case $* in *version*) echo slurm 99.1 ;; *%R*) echo 'partition|gpu' ;; *) echo 'node|n1|8|9|idle|gpu:1' ;; esac"
)


@pytest.mark.parametrize("profile", [".bash_profile", ".bash_login"])
def test_slurm_is_found_as_a_login_finds_it(instance: Rented, tmp_path: Path, profile: str):
    home = instance.root.parent
    for name, body in (("sbatch", ":"), ("sinfo", SINFO)):
        write_program(home / "slurm" / "bin" / name, f"#!/bin/sh\n{body}\n")
    (home / profile).write_text("export PATH=$HOME/slurm/bin:$PATH\n")
    login = {"ssh": instance.entry()["ssh"], "ssh_config": str(instance.host.config_file)}
    queue = {
        "shared_folder": str(home),
        "container": "none",
        "project": "/x",
        "python": "/x",
        "gpus_per_node": 1,
        **login,
    }
    runs = Runs(tmp_path)
    assert "slurm 99.1" in runs.run("check", f"--hosts={runs.hosts({'lab': {'slurm': queue}})}").stdout
