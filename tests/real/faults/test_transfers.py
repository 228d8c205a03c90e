"""Images that this machine sends over ssh: a plan says how much that is, and nothing once they are there."""

from pathlib import Path

import pytest

from orchestrate.engines.docker.images import SENT_REPOSITORY
from results.schema import Status
from tests.support.controller import Runs

pytestmark = pytest.mark.docker


def test_a_plan_names_what_is_sent_to_two_hosts_and_then_nothing(engines, fake_images, ssh_host, tmp_path: Path):
    runs = Runs(tmp_path, DOCKER_HOST=engines.first.url)
    image = fake_images.image(seconds=0.2)
    one = ssh_host.connection()
    two = {**one, "docker": f"ssh://root@{ssh_host.alias}"}  # the same engine by another name
    fleet = {"image_source": "transfer", "image": image, "hosts": {"one": one, "two": two}}
    hosts = runs.hosts({"far": fleet}, 1)
    planned = runs.run("plan", f"--hosts={hosts}", expect=0)
    size = engines.first.client.images.get(image).attrs["Size"]
    assert f"this machine sends images to 2 hosts, {2 * size / 1e9:.1f} GB in all" in planned.stdout, planned.stdout
    done = runs.run("run", f"--hosts={hosts}", "--display=plain", expect=0)
    assert "this machine sends images to 2 hosts" in done.stderr
    assert {record.status for record in runs.records().values()} == {Status.OK}
    assert "this machine sends" not in runs.run("plan", f"--hosts={hosts}", expect=0).stdout
    sent = engines.first.client.images.get(image).id.removeprefix("sha256:")
    engines.second.client.images.remove(f"{SENT_REPOSITORY}:{sent}", force=True)  # other tests may have sent others
