"""Gradients in flat buffers: what one all-reduce carries, and what one kernel checks or scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from tfbench.keras_versions.types import Shape, Tensor

ROW_ELEMENTS = 16
"""float32 elements of a buffer's row: 64 bytes, so that a split between rows shares the buffer instead of copying it.

Source: TensorFlow, core/kernels/split_v_op.cc, ComputeEasyCases: split_dim == 0 and IsInnerDimsSizeAligned.
"""

ELEMENT_BYTES = 4


@dataclass(frozen=True)
class _Place:
    """Where one gradient lies in its buffer."""

    shape: tuple[int, ...]
    elements: int

    @property
    def rows(self) -> int:
        """Rows that it takes; the last one may be padded."""
        return -(-self.elements // ROW_ELEMENTS)


class GradientPacks:
    """Joins gradients into flat buffers of about equal size, and takes them apart without a copy.

    Buffers are in the order of the variables. TensorFlow reverses what it is given (CollectiveAllReduce._all_reduce in
    cross_device_ops.py), so that the all-reduce of the last layers, whose gradients are there first, starts first. For
    the same reason the buffers are filled from the last variable on.

    Args:
        shapes: Of the gradients, all float32.
        pack_bytes: A buffer is closed when it holds this many bytes; 0: one buffer for all.
    """

    def __init__(self, shapes: Sequence[Shape], pack_bytes: int) -> None:
        places = [_Place(tuple(shape), int(tf.TensorShape(shape).num_elements())) for shape in shapes]
        packs: list[list[_Place]] = [[]]
        size = 0
        for place in reversed(places):
            if pack_bytes and size >= pack_bytes:
                packs.append([])
                size = 0
            packs[-1].append(place)
            size += place.elements * ELEMENT_BYTES
        self._packs = [pack[::-1] for pack in reversed(packs)]

    def __len__(self) -> int:
        return len(self._packs)

    def join(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the buffers, float32 (rows, `ROW_ELEMENTS`) each.

        Args:
            gradients: One for each shape, in that order.
        """
        remaining = iter(gradients)
        return [tf.concat([_as_rows(next(remaining), place) for place in pack], 0) for pack in self._packs]

    def split(self, buffers: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of `join` from buffers of its shapes."""
        return [
            _from_rows(rows, place)
            for buffer, pack in zip(buffers, self._packs, strict=True)
            for rows, place in zip(tf.split(buffer, [place.rows for place in pack], 0), pack, strict=True)
        ]


def _as_rows(gradient: Tensor, place: _Place) -> Tensor:
    missing = place.rows * ROW_ELEMENTS - place.elements
    if missing:
        gradient = tf.pad(tf.reshape(gradient, [-1]), [[0, missing]])
    return tf.reshape(gradient, [place.rows, ROW_ELEMENTS])


def _from_rows(rows: Tensor, place: _Place) -> Tensor:
    if place.rows * ROW_ELEMENTS != place.elements:
        rows = tf.reshape(rows, [-1])[: place.elements]
    return tf.reshape(rows, place.shape)
