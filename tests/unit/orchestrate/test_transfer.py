"""An image that is sent from one engine to another is the same image, whatever each of them calls it."""

import contextlib
import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest import mock

import pytest

from orchestrate.engines.base import MAX_TRANSFERS, TRANSFER, PullLimits
from orchestrate.engines.docker.engine import send_image, sent_name
from orchestrate.errors import PullFailed
from tests.support.patience import patience

HERE, THERE = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
SOURCE = SimpleNamespace(image_bytes=lambda image: 8, save=lambda image: iter((b"half", b"half")))


@pytest.mark.parametrize(("is_remote", "unpack"), [(False, bytes), (True, gzip.decompress)])
def test_a_sent_image_is_found_by_a_tag_and_a_network_gets_it_compressed(is_remote, unpack):
    received, progress = list[bytes](), []
    target = mock.Mock(is_remote=is_remote)  # has another kind of store: it gives an image an id of its own
    target.load.side_effect = lambda chunks: received.extend(chunks) or "loaded"
    target.image_id.side_effect = {"loaded": THERE}.get
    assert send_image(SOURCE, target, HERE, lambda *done: progress.append(done), threading.Lock()) == THERE
    assert progress == [(4, 8), (8, 8)], "of the image, also where it travels compressed"
    target.tag.assert_called_once_with(THERE, "tfbench-sent", "a" * 64)
    assert sent_name(HERE) == f"tfbench-sent:{'a' * 64}" and unpack(b"".join(received)) == b"halfhalf"


def test_images_are_sent_to_a_few_hosts_at_a_time_whatever_registries_do():
    limits, inside, most = PullLimits(), [], []
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


@pytest.mark.parametrize("fails", [True, False])
def test_a_host_that_unpacks_or_fails_holds_no_turn(fails: bool):
    turn = threading.Semaphore(1)

    def load(chunks: Iterator[bytes]) -> str:
        if fails:
            assert next(chunks)
            raise PullFailed("cut off")
        assert list(chunks) and turn.acquire(blocking=False)
        return THERE

    with pytest.raises(PullFailed) if fails else contextlib.nullcontext() as kept:
        send_image(SOURCE, mock.Mock(is_remote=False, load=load), HERE, lambda *done: None, turn)
    assert turn.acquire(blocking=False) is fails, kept
