"""Tasks of networks: how examples are drawn, and the loss of an output.

Examples are random: there is nothing to learn from them, but a step takes as long as with real ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from tfbench.keras_versions import Tensor

Batch = tuple[Tensor, Tensor]
"""Features and labels, each a tensor or a tuple of tensors whose first axis is the batch; one pair per replica."""

SEED = 20_14

MASKED_SHARE = 0.15
"""Share of masked words. Source: Devlin et al. 2018, 3.1."""

MASKED_AT_128 = 20
"""Masked words in a sequence of 128: `max_predictions_per_seq` in the authors' code, a little above the share."""


class Draws:
    """Random numbers, drawn on the current device, the same in every process with the same TensorFlow.

    Args:
        stream: Selects one of several independent streams.
    """

    def __init__(self, stream: int) -> None:
        self._stream, self._drawn = stream, 0

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Draw float32 numbers of mean 0 and variance 1."""
        return tf.random.stateless_normal(shape, self._seed())

    def integers(self, shape: tuple[int, ...], below: int) -> Tensor:
        """Draw int32 numbers from 0 to `below` - 1."""
        return tf.random.stateless_uniform(shape, self._seed(), 0, below, tf.int32)

    def _seed(self) -> tuple[int, int]:
        self._drawn += 1
        return SEED + self._drawn, self._stream


@dataclass(frozen=True)
class Task:
    """The task of a network.

    Attributes:
        draw: Function of draws, the number of examples, their size (pixels or tokens) and the number of classes, which
            returns features and labels.
        losses: Function of the network's outputs and the labels, which returns the loss of each example, float32
            (batch,).
        guesses: Function of the number of classes, which returns how many equally likely answers an untrained network
            has.
    """

    draw: Callable[[Draws, int, int, int], Batch]
    losses: Callable[[Tensor, Tensor], Tensor]
    guesses: Callable[[int], int] = lambda classes: classes

    def untrained_loss(self, classes: int) -> float:
        """Return the loss of an untrained network: labels are random, so ln(number of answers)."""
        return math.log(self.guesses(classes))


def masked_positions(length: int) -> int:
    """Return the number of masked words of a sequence: 20 of 128, 57 of 384, 76 of 512."""
    return MASKED_AT_128 if length == 128 else max(1, int(MASKED_SHARE * length))


def _draw_images(draws: Draws, count: int, size: int, classes: int) -> Batch:
    return draws.normal((count, size, size, 3)), _on_device(draws.integers((count,), classes))


def _draw_masked_words(draws: Draws, count: int, size: int, classes: int) -> Batch:
    """Draw sequences without padding; the second half of each is its second segment."""
    masked = masked_positions(size)
    # Positions in a sequence are distinct: one from each of equal parts.
    parts = tf.range(masked) * size // masked
    features = (
        draws.integers((count, size), classes),
        tf.tile(tf.cast(tf.range(size) >= size // 2, tf.int32)[tf.newaxis], (count, 1)),
        tf.ones((count, size), tf.int32),
        parts + draws.integers((count, masked), max(1, size // masked)),
    )
    return _on_device((features, (draws.integers((count, masked), classes), draws.integers((count,), 2))))


def _draw_text(draws: Draws, count: int, size: int, classes: int) -> Batch:
    text = draws.integers((count, size + 1), classes)
    return _on_device((text[:, :-1], text[:, 1:]))


def _on_device(batch: Batch) -> Batch:
    """Return a batch as int64: TensorFlow reshapes and slices int32 on the host, which costs two copies."""
    moved: Batch = tf.nest.map_structure(lambda tensor: tf.cast(tensor, tf.int64), batch)
    return moved


def _cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=tf.cast(scores, tf.float32))


def _masked_words_losses(outputs: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> Tensor:
    words, next_sentence = (_cross_entropy(scores, label) for scores, label in zip(outputs, labels, strict=True))
    return tf.reduce_mean(words, -1) + next_sentence


def _text_losses(scores: Tensor, labels: Tensor) -> Tensor:
    return tf.reduce_mean(_cross_entropy(scores, labels), -1)


IMAGES = Task(_draw_images, _cross_entropy)
"""Images, float32 (batch, size, size, 3), standard normal, and labels, int64 (batch,)."""

MASKED_WORDS = Task(_draw_masked_words, _masked_words_losses, lambda classes: 2 * classes)
"""Tokens, segments, mask, int64 (batch, size) each, and masked positions, int64 (batch, masked); labels are the masked
words, int64 (batch, masked), and whether the second segment follows the first, int64 (batch,).
"""

NEXT_TOKEN = Task(_draw_text, _text_losses)
"""Tokens and their successors, int64 (batch, size) each."""

TASKS = {"images": IMAGES, "masked_words": MASKED_WORDS, "next_token": NEXT_TOKEN}
"""Tasks by the name in a network's row."""
