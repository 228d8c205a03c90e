from __future__ import annotations

import http.client

import pytest

from orchestrate.inventory.addresses import DockerAddress
from orchestrate.launchers.docker.refusals import explain

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
