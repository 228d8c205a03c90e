"""What runs on the machine that is measured: trains Keras networks and writes one record per repeat.

Imports `results.schema` and `results.schema.progress`, nothing of `orchestrate`; uses the standard library,
TensorFlow, Keras, absl-py, numpy and nvidia-ml-py only.
"""
