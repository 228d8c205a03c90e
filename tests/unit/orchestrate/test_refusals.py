from __future__ import annotations

import http.client

import pytest

from orchestrate.inventory.addresses import DockerAddress
from orchestrate.launchers.docker.client import NoGPUs, NoMemoryLock, explain, launch_refusal
from results.schema import Status

BEHIND_SSH = DockerAddress(scheme="ssh", target="far", socket="/nowhere/docker.sock")


@pytest.mark.parametrize(
    "error",
    [ConnectionResetError(104, "reset"), BrokenPipeError(32, "broken"), http.client.RemoteDisconnected("closed")],
    ids=lambda error: type(error).__name__,
)
def test_a_tunnel_to_a_socket_that_nobody_listens_on_names_the_socket(error: Exception):
    wrapped = OSError("the request failed")
    wrapped.__cause__ = error
    for item in (error, wrapped):
        assert "the engine's socket /nowhere/docker.sock does not answer" in explain(item, BEHIND_SSH)
    # Without a tunnel it says nothing of a socket over there.
    assert "docker_socket" not in explain(error, DockerAddress(scheme="unix", target="/run/docker.sock"))


RUNC = (
    "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: "
    "unable to start container process: error during container init: error setting rlimits for ready process: "
    f"{'x' * 300}: error setting rlimit type 8: operation not permitted"
)


@pytest.mark.parametrize(
    ("said", "kind", "remedy"),
    [
        ('could not select device driver "" with capabilities: [[gpu compute utility]]', NoGPUs, "container toolkit"),
        ('could not select device driver "cdi" with capabilities: []', NoGPUs, "container toolkit"),
        ("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all", NoGPUs, "nvidia-ctk cdi generate"),
        ("setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=7", NoGPUs, "nvidia-ctk cdi generate"),
        (RUNC, NoMemoryLock, "memlock"),
        ("crun: setrlimit `RLIMIT_MEMLOCK`: Operation not permitted: OCI permission denied", NoMemoryLock, "memlock"),
    ],
)
def test_what_real_engines_say_when_they_cannot_give_something(said, kind, remedy):
    error = launch_refusal(said)
    assert type(error) is kind and remedy in error.cause


def test_a_missing_folder_is_one_however_the_engine_says_it():
    for said in (
        'invalid mount config for type "bind": bind source path does not exist: /data/x',
        "statfs /data/x: no such file or directory",
        "statfs /root/x: permission denied",
    ):
        error = launch_refusal(said)
        assert error.status is Status.BAD_INPUT and "the folder data_dir does not exist" in error.cause
