"""An image that is sent from one engine to another is the same image, whatever each of them calls it."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from orchestrate.errors import PullFailed
from orchestrate.launchers.docker.transfer import image_content, send_image, sent_name

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


def test_an_image_is_known_by_the_id_of_the_engine_it_was_sent_to_and_is_found_again_by_a_tag():
    target = Target()
    assert send(target) == (THERE, [(4, 8), (8, 8)])
    assert target.tags == [(THERE, "tfbench-sent", "a" * 64)] and sent_name(HERE) == f"tfbench-sent:{'a' * 64}"
    assert target.received == b"halfhalf"


def test_what_crosses_a_network_is_compressed_and_progress_counts_the_image():
    target = Target(is_far=True)
    assert send(target)[1] == [(4, 8), (8, 8)]
    assert gzip.decompress(target.received) == b"halfhalf"


def test_another_image_under_the_loaded_name_is_refused_and_not_tagged():
    target = Target(layers=["l1", "other"])
    with pytest.raises(PullFailed, match="has another one under sha256:bbb"):
        send(target)
    assert target.tags == []


@pytest.mark.parametrize("change", [{"Env": ["A=2"]}, {"Entrypoint": ["y"]}, {"User": ""}, {"Labels": {"a": "b"}}])
def test_the_content_of_an_image_is_its_layers_and_what_it_runs(change):
    same = image_content(document(HERE, ["l1"], Labels={}, Cmd=None))
    assert same == image_content(document(THERE, ["l1"]))
    assert same != image_content(document(HERE, ["l1"], **change))
    assert same != image_content(document(HERE, ["l1", "l2"]))
