"""Which Keras `tensorflow.keras` is: Keras 2 up to TensorFlow 2.15, Keras 3 after."""

from __future__ import annotations

import importlib.metadata

from tensorflow import keras


def keras_version() -> str:
    """Return the version of the Keras in use; Keras 2 inside TensorFlow does not carry its own."""
    return getattr(keras, "__version__", None) or importlib.metadata.version("keras")
