"""An image that is sent from one engine to another is the same image, whatever each of them calls it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from orchestrate.errors import PullFailed
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host
from orchestrate.launchers.docker.images import image_content, send_image, sent_name
from orchestrate.launchers.docker.launcher import ContainerLauncher
from orchestrate.launchers.pulls import MAX_TRANSFERS, TRANSFER, PullLimits
from orchestrate.planning.facts import Facts, Image
from orchestrate.planning.host_warnings import sending_note

CONFIG = {"Env": ["A=1"], "Entrypoint": ["x"], "User": "10001", "Volumes": {"/out": {}}, "Labels": None}
HERE, THERE = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


def document(identity: str, layers: list[str], **changes: Any) -> dict[str, Any]:
    return {"Id": identity, "RootFS": {"Layers": layers}, "Config": {**CONFIG, **changes}, "Size": 8}


class Source:
    def image_document(self, image: str) -> dict[str, Any]:
        return document(image, ["l1", "l2"])

    def image_bytes(self, image: str) -> int:
        return 8

    def save(self, image: str) -> Iterator[bytes]:
        yield from (b"half", b"half")


class Target:
    """An engine with another kind of store: it gives an image an id of its own."""

    def __init__(self, *, is_far: bool = False, layers: list[str] | None = None) -> None:
        self.is_far = is_far
        self.layers = layers or ["l1", "l2"]
        self.received = b""
        self.tags: list[tuple[str, str, str]] = []

    def load(self, chunks: Iterable[bytes]) -> str:
        self.received = b"".join(chunks)
        return THERE

    def image_document(self, image: str) -> dict[str, Any]:
        return document(THERE, self.layers, Cmd=[])

    def tag(self, image: str, repository: str, tag: str) -> None:
        self.tags.append((image, repository, tag))


def send(target: Target) -> tuple[str, list[tuple[int, int]]]:
    progress: list[tuple[int, int]] = []
    found = send_image(Source(), target, HERE, lambda done, total: progress.append((done, total)))  # type: ignore[arg-type]
    return found, progress


def test_a_sent_image_has_the_id_of_its_engine_and_is_found_by_a_tag():
    target = Target()
    assert send(target) == (THERE, [(4, 8), (8, 8)])
    assert target.tags == [(THERE, "tfbench-sent", "a" * 64)] and sent_name(HERE) == f"tfbench-sent:{'a' * 64}"
    assert target.received == b"halfhalf"


def test_a_network_gets_it_compressed_and_progress_counts_the_image():
    target = Target(is_far=True)
    assert send(target)[1] == [(4, 8), (8, 8)]
    assert gzip.decompress(target.received) == b"halfhalf"


def test_another_image_under_the_loaded_name_is_refused_and_not_tagged():
    target = Target(layers=["l1", "other"])
    with pytest.raises(PullFailed, match="loaded a different image as sha256:bbb"):
        send(target)
    assert target.tags == []


@pytest.mark.parametrize("change", [{"Env": ["A=2"]}, {"Entrypoint": ["y"]}, {"User": ""}, {"Labels": {"a": "b"}}])
def test_the_content_of_an_image_is_its_layers_and_what_it_runs(change):
    same = image_content(document(HERE, ["l1"], Labels={}, Cmd=None))
    assert same == image_content(document(THERE, ["l1"]))
    assert same != image_content(document(HERE, ["l1"], **change))
    assert same != image_content(document(HERE, ["l1", "l2"]))


class Engine:
    """An engine with some images, and a size for each."""

    def __init__(self, *images: str, is_far: bool = True) -> None:
        self.images, self.is_far, self.is_podman = images, is_far, False

    def image_id(self, reference: str) -> str | None:
        return HERE if reference in self.images else None

    def image_bytes(self, reference: str) -> int:
        assert reference in self.images
        return 4_457_000_000


REFERENCE = "tfbench:0.1.0-cuda12.5"


@pytest.mark.parametrize(
    ("there", "is_far", "to_send"),
    [((), True, 4_457_000_000), ((HERE,), True, None), ((sent_name(HERE),), True, None), ((), False, None)],
    ids=["missing", "loaded", "sent before", "on this machine"],
)
def test_a_plan_knows_what_is_still_to_be_sent_over_a_network(
    there: tuple[str, ...], is_far: bool, to_send: int | None
):
    address = DockerAddress(scheme="ssh", target="h")
    host = Host(fleet="f", name="h", docker=address, image_source="transfer", variants=("cuda12.5",))
    launcher = ContainerLauncher(host, PullLimits())
    launcher._engine = Engine(*there, is_far=is_far)  # type: ignore[assignment]
    launcher._controller = Engine(REFERENCE, HERE)  # type: ignore[assignment]
    image = launcher.pin(Image(variant="cuda12.5", reference=REFERENCE, reason="named in hosts.yml"))
    assert (image.digest, image.send_bytes) == (HERE, to_send)


def facts(*sizes: int | None) -> Facts:
    return Facts(images=tuple(Image(variant=None, reference="i", reason="", send_bytes=size) for size in sizes))


def test_what_leaves_this_machine_is_said_with_what_would_send_less():
    assert sending_note([facts(), facts(None), None]) is None
    one = "this machine sends 4.5 GB of images to one host, compressed on the way"
    assert sending_note([facts(4_457_000_000), facts(None)]) == one
    assert sending_note([facts(4_457_000_000, 100_000_000)] * 20) == (
        "this machine sends images to 20 hosts, 91.1 GB in all, compressed on the way and to a few of them at a time. A "
        "registry would get each image once (4.6 GB for a host): run images push --registry ADDRESS, and set registry: "
        "ADDRESS in place of image_source: transfer"
    )


def test_images_are_sent_to_a_few_hosts_at_a_time_whatever_registries_do():
    limits, inside, most = PullLimits(per_registry=16), [], []
    all_in = threading.Barrier(MAX_TRANSFERS)

    def send_one(number: int) -> None:
        with limits.turn(TRANSFER):
            inside.append(number)
            most.append(len(inside))
            all_in.wait(60)  # nobody leaves before as many as may are in
            inside.remove(number)

    with ThreadPoolExecutor(3 * MAX_TRANSFERS) as pool:
        list(pool.map(send_one, range(3 * MAX_TRANSFERS)))
    assert max(most) == MAX_TRANSFERS
