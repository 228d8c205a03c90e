"""The benchmark: trains Keras networks on the machine under test and writes one record per repeat.

Start with `__main__`: `flags` parses the command line, `supervisor` runs the measurement in a child process, `repeat`
is one repeat from start to figures. `models`, `training` and `measuring` define what is trained and timed; `roofline`
measures the peak rates of a device; `machine` reads drivers and the host, `doctor` judges them. `peers` and `ranks`
connect several hosts. A new network is a row of `models`, a new health rule a row of `results.schema.health`.

Imports only the standard library, TensorFlow, Keras, absl-py, numpy, nvidia-ml-py and `results.schema`.

Importing it makes Keras ignore the user's settings, which would change what is measured: another backend, the Keras of
`TF_USE_LEGACY_KERAS`, and a `keras.json` with another image format or type of floats.
"""

import os as _os

_os.environ["KERAS_BACKEND"] = "tensorflow"
_os.environ["KERAS_HOME"] = _os.devnull  # below it, Keras neither finds nor writes a keras.json
_os.environ.pop("TF_USE_LEGACY_KERAS", None)
