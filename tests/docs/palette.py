"""Store a screenshot with a palette: a page of text has few colours, and a byte per pixel is enough."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOURS = 64
"""Most colours of the palette: text, lines and a few marks, with their smooth edges."""

_CHANNELS = {2: 3, 6: 4}
"""Bytes per pixel by PNG's colour type: RGB, RGBA."""

Pixels = npt.NDArray[np.uint8]


def smaller_png(png: bytes) -> bytes:
    """Return the same picture with at most `COLOURS` colours.

    Args:
        png: 8 bits per channel, RGB or RGBA, not interlaced, as Chromium writes it.
    """
    pixels = read_png(png)
    flat = pixels.reshape(-1, 3).astype(np.int32)
    codes = (flat[:, 0] << 16) | (flat[:, 1] << 8) | flat[:, 2]
    found, where, counts = np.unique(codes, return_inverse=True, return_counts=True)
    rgb = np.stack([found >> 16, (found >> 8) & 255, found & 255], axis=1)
    palette = rgb[_spread(rgb, counts)]
    nearest = np.array([np.argmin(((palette - colour) ** 2).sum(axis=1)) for colour in rgb], dtype=np.uint8)
    return _write(nearest[where].reshape(pixels.shape[:2]), palette.astype(np.uint8))


def _spread(rgb: npt.NDArray[np.int32], counts: npt.NDArray[np.int64]) -> list[int]:
    """Choose colours one by one: the next is the one that most pixels are farthest from."""
    chosen = [int(np.argmax(counts))]
    weight = np.sqrt(counts)
    distance = ((rgb - rgb[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < min(COLOURS, len(rgb)):
        chosen.append(int(np.argmax(distance * weight)))
        distance = np.minimum(distance, ((rgb - rgb[chosen[-1]]) ** 2).sum(axis=1))
    return chosen


def read_png(png: bytes) -> Pixels:
    """Return the red, green and blue of each pixel, shape (height, width, 3).

    Source: Portable Network Graphics, second edition, W3C 2003, section 9 (filters).
    """
    chunks = dict[bytes, bytes]()
    for name, data in _chunks(png):
        chunks[name] = chunks.get(name, b"") + data
    width, height, bits, colour, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    if bits != 8 or colour not in _CHANNELS or interlaced:
        raise ValueError(f"must have 8 bits per channel, RGB or RGBA. Received: {bits} bits, colour type {colour}")
    step = _CHANNELS[colour]
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + width * step)
    above = np.zeros((width, step), np.uint8)
    rows = []
    for line in lines:
        above = _unfiltered(int(line[0]), line[1:].reshape(width, step), above)
        rows.append(above[:, :3])
    return np.stack(rows)


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += length + 12


def _unfiltered(kind: int, line: Pixels, above: Pixels) -> Pixels:
    """Undo the filter of a line: none, left, up, average or Paeth."""
    if kind == 0:
        return line
    if kind == 1:
        return np.cumsum(line, axis=0, dtype=np.uint8)
    if kind == 2:
        return line + above
    out = np.zeros_like(line)
    left = corner = np.zeros(line.shape[1], np.int32)
    for at in range(len(line)):
        up = above[at].astype(np.int32)
        guess = (left + up) // 2 if kind == 3 else _paeth(left, up, corner)
        out[at] = (line[at] + guess) & 255
        left, corner = out[at].astype(np.int32), up
    return out


def _paeth(left: npt.NDArray[np.int32], up: npt.NDArray[np.int32], corner: npt.NDArray[np.int32]) -> Any:
    guess = left + up - corner
    options = np.stack([left, up, corner])
    return np.take_along_axis(options, np.abs(options - guess).argmin(axis=0)[None], axis=0)[0]


def _write(indices: Pixels, palette: Pixels) -> bytes:
    height, width = indices.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), indices], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = (
        (b"IHDR", header),
        (b"PLTE", palette.tobytes()),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    return SIGNATURE + b"".join(_chunk(name, data) for name, data in parts)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
