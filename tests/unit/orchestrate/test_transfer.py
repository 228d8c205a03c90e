"""An image that is sent from one engine to another is the same image, whatever each of them calls it."""

import gzip
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from orchestrate.engines import pulls
from orchestrate.engines.docker.images import image_content, send_image, sent_name
from orchestrate.engines.pulls import MAX_TRANSFERS, TRANSFER, PullLimits
from orchestrate.errors import PullFailed
from orchestrate.planning.facts import Facts, Image
from orchestrate.planning.host_warnings import sending_note
from tests.support.patience import patience

CONFIG = {"Env": ["A=1"], "Entrypoint": ["x"], "User": "10001", "Volumes": {"/out": {}}, "Labels": None}
HERE, THERE = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


def document(identity: str, layers: list[str], **changes: Any) -> dict[str, Any]:
    return {"Id": identity, "RootFS": {"Layers": layers}, "Config": {**CONFIG, **changes}, "Size": 8}


SOURCE = SimpleNamespace(
    image_document=lambda image: document(image, ["l1", "l2"]),
    image_bytes=lambda image: 8,
    save=lambda image: iter((b"half", b"half")),
)


def make_target(received: list[bytes], *, is_remote: bool = False, layers: tuple[str, ...] = ("l1", "l2")) -> mock.Mock:
    """Return an engine with another kind of store: it gives an image an id of its own."""
    target = mock.Mock(is_remote=is_remote)
    target.image_document.return_value = document(THERE, [*layers], Cmd=[])
    target.load.side_effect = lambda chunks: received.extend(chunks) or THERE
    return target


@pytest.mark.parametrize(("is_remote", "unpack"), [(False, bytes), (True, gzip.decompress)])
def test_a_sent_image_is_found_by_a_tag_and_a_network_gets_it_compressed(is_remote, unpack):
    received, progress = list[bytes](), []
    target = make_target(received, is_remote=is_remote)
    assert send_image(SOURCE, target, HERE, lambda *done: progress.append(done)) == THERE
    assert progress == [(4, 8), (8, 8)], "of the image, also where it travels compressed"
    target.tag.assert_called_once_with(THERE, "tfbench-sent", "a" * 64)
    assert sent_name(HERE) == f"tfbench-sent:{'a' * 64}" and unpack(b"".join(received)) == b"halfhalf"


def test_another_image_under_the_loaded_name_is_refused_and_not_tagged():
    target = make_target([], layers=("l1", "other"))
    with pytest.raises(PullFailed, match="loaded a different image as sha256:bbb"):
        send_image(SOURCE, target, HERE, lambda *done: None)
    target.tag.assert_not_called()


def test_the_content_of_an_image_is_its_layers_and_what_it_runs():
    same = image_content(document(HERE, ["l1"], Labels={}, Cmd=None))
    assert same == image_content(document(THERE, ["l1"]))
    assert same != image_content(document(HERE, ["l1"], Entrypoint=["y"]))


def facts(*sizes: int | None) -> Facts:
    return Facts(images=tuple(Image(variant=None, reference="i", reason="", send_bytes=size) for size in sizes))


def test_what_leaves_this_machine_is_said_with_what_would_send_less():
    assert sending_note([facts(), facts(None), None]) is None
    many = sending_note([*[facts(4_457_000_000, 100_000_000)] * 20, facts(None)]) or ""
    assert many.startswith("this machine sends 91.1 GB of images to 20 hosts")
    assert "each image once (4.6 GB for a host): run images push --registry ADDRESS" in many


def test_images_are_sent_to_a_few_hosts_at_a_time_whatever_registries_do():
    limits, inside, most = PullLimits(per_registry=16), [], []
    all_in = threading.Barrier(MAX_TRANSFERS)

    def send_one(number: int) -> None:
        with limits.turn(TRANSFER):
            inside.append(number)
            most.append(len(inside))
            all_in.wait(patience())  # nobody leaves before as many as may are in
            inside.remove(number)

    with ThreadPoolExecutor(3 * MAX_TRANSFERS) as pool:
        list(pool.map(send_one, range(3 * MAX_TRANSFERS)))
    assert max(most) == MAX_TRANSFERS


@pytest.mark.parametrize("unpacks", [True, False], ids=["unpacks without end", "takes it slowly"])
def test_a_host_that_keeps_its_turn_holds_no_other(monkeypatch: pytest.MonkeyPatch, unpacks: bool):
    """Its turn ends with the last byte, or after a while."""
    monkeypatch.setattr(pulls, "TURN_SECONDS", 3600.0 if unpacks else 0.2)
    limits, release = PullLimits(transfers=1), threading.Event()

    def keep() -> None:
        with limits.turn(TRANSFER) as on_sent:
            if unpacks:
                on_sent()
            assert release.wait(patience())

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(keep)
        time.sleep(0.1)
        with limits.turn(TRANSFER):
            assert not slow.done()
        release.set()
        slow.result(patience())
