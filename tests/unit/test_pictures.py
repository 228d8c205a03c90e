"""The pictures of README.md: small enough, shown, and drawn from real events."""

import struct
import zlib

import numpy as np
import pytest

from tests.docs import pictures
from tests.docs.palette import COLOURS, SIGNATURE, read_png, smaller_png


def encoded(pixels, filters):
    """Write a PNG whose lines are filtered as asked, one kind after the other."""
    height, width, channels = pixels.shape
    padded = np.zeros((height + 1, width + 1, channels), np.int32)
    padded[1:, 1:] = pixels
    lines = b""
    for at in range(height):
        here, left, up, corner = padded[at + 1, 1:], padded[at + 1, :-1], padded[at, 1:], padded[at, :-1]
        guess = left + up - corner
        options = np.stack([left, up, corner])
        paeth = np.take_along_axis(options, np.abs(options - guess).argmin(axis=0)[None], axis=0)[0]
        kind = filters[at % len(filters)]
        predicted = (0 * here, left, up, (left + up) // 2, paeth)[kind]
        lines += bytes([kind]) + ((here - predicted) & 255).astype(np.uint8).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, {3: 2, 4: 6}[channels], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return SIGNATURE + b"".join(struct.pack(">I", len(data)) + name + data + bytes(4) for name, data in parts)


@pytest.mark.parametrize("channels", [3, 4])
def test_every_filter_of_a_line_is_undone(channels):
    pixels = np.random.default_rng(0).integers(0, 256, (11, 7, channels), dtype=np.uint8)
    assert (read_png(encoded(pixels, (0, 1, 2, 3, 4))) == pixels[:, :, :3]).all()


def palette_picture(png):
    """Read a picture of bytes into a palette, as `smaller_png` writes it."""
    palette = np.frombuffer(png.partition(b"PLTE")[2][: 3 * COLOURS], np.uint8)
    length = int.from_bytes(png[png.index(b"IDAT") - 4 : png.index(b"IDAT")])
    data = zlib.decompress(png[png.index(b"IDAT") + 4 :][:length])
    width, height = struct.unpack(">II", png[16:24])
    indices = np.frombuffer(data, np.uint8).reshape(height, width + 1)[:, 1:]
    return palette[: len(palette) // 3 * 3].reshape(-1, 3)[indices]


def test_a_picture_of_few_colours_keeps_them_all():
    colours = np.random.default_rng(1).integers(0, 256, (COLOURS, 3), dtype=np.uint8)
    pixels = colours[np.random.default_rng(2).integers(0, COLOURS, (40, 30))]
    assert (palette_picture(smaller_png(encoded(pixels, (4,)))) == pixels).all()


def test_a_picture_of_many_colours_becomes_smaller():
    row = np.linspace(0, 255, 200).astype(np.uint8)
    pixels = np.repeat(np.stack([row, row[::-1], row // 2], axis=1)[None], 100, axis=0)
    picture = smaller_png(encoded(pixels, (0,)))
    assert np.abs(palette_picture(picture).astype(int) - pixels).max() <= 8


@pytest.mark.parametrize("name", ["report.png", "live.png"])
def test_the_committed_pictures_are_small_and_shown(name):
    path = pictures.DOCS / name
    assert path.read_bytes().startswith(SIGNATURE) and path.stat().st_size <= pictures.MAX_BYTES
    assert f"(docs/{name})" in (pictures.DOCS.parent / "README.md").read_text(encoding="utf-8")


def test_the_live_table_is_fed_up_to_the_last_step_of_a_repeat_in_the_middle():
    def step(at, number):
        return at, pictures.JobStep(job="j", host="h", step=number, samples_per_second=1.0, unit="images")

    stream = [step(1, 2), step(2, 8), step(3, 2), step(4, 8), step(5, 2), step(6, 8), step(7, 2), step(8, 8)]
    assert [at for at, _ in pictures.until_a_step(stream)][-1] == 6


def test_the_front_page_is_short():
    assert len((pictures.DOCS.parent / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
