"""What runs on the machine that is measured: trains Keras networks and writes one record per repeat.

Start with `__main__`: `flags` reads the command line, `supervisor` runs a child that measures, `repeat` is one repeat
from an idle process to its figures. `models`, `training` and `measuring` are the benchmark; `roofline` measures what
the device can do at most; `machine` reads drivers and the host, `doctor` judges them. `peers` and `ranks` connect
several hosts. A new network is a row of `models`, a new health rule one of `results.schema.health`.

Uses the standard library, TensorFlow, Keras, absl-py, numpy, nvidia-ml-py and `results.schema`; nothing else of ours.
"""
