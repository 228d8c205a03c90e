"""What the tests of `tfbench` share: two logical CPU devices, and a network small enough to train in a test."""

import gc
import importlib
import os
import subprocess
import sys

import pytest

from tests.support import PROJECT
from tests.support.patience import patience


def run_tfbench(*arguments, module="tfbench", code=None, **variables):
    """Run `python -m tfbench`, another module, or code, in a process of its own."""
    program = ["-m", module] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, *program, *map(str, arguments)],
        cwd=PROJECT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=patience(600),
        check=False,
    )


@pytest.fixture(scope="session")
def tensorflow():
    """Import TensorFlow once, with two logical CPU devices, and one thread: other tests run side by side."""
    tf = pytest.importorskip("tensorflow")
    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(cpu) or []) != 2:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        tf.config.threading.set_intra_op_parallelism_threads(1)
        # Optimising graphs takes a sixth of a test; real runs, here and in containers, do it.
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    return tf


def imported(name):
    """Return a fixture that gives a module which imports TensorFlow: once its devices are set, and not to collect tests."""
    return pytest.fixture(scope="session")(lambda tensorflow: importlib.import_module(name))


tf, keras = imported("tensorflow"), imported("tensorflow.keras")
device_case = imported("tfbench.device_case")
inference = imported("tfbench.inference")
keras_versions = imported("tfbench.keras_versions")
ranks = imported("tfbench.ranks")
repeat = imported("tfbench.repeat")
validity = imported("tfbench.measuring.validity")
convolution_layers = imported("tfbench.models.convolutional")
transformer_layers = imported("tfbench.models.transformers")
devices = imported("tfbench.devices")
limits = imported("tfbench.roofline.limits")
peaks = imported("tfbench.roofline.peaks")
transfers = imported("tfbench.roofline.transfers")
inputs = imported("tfbench.training.inputs")
step = imported("tfbench.training.step")
tasks = imported("tfbench.training.tasks")
tfrecords = imported("tfbench.training.tfrecords")

QUICK_XLA = ("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")
"""Lets XLA compile for CPUs in a third of the time; a process reads it when it first uses XLA."""


@pytest.fixture
def two_replicas(tensorflow, monkeypatch):
    monkeypatch.setenv(*QUICK_XLA)
    # Keys of all-reduces that no test before has used for other shapes, as TensorFlow's own tests do.
    tensorflow.distribute.MirroredStrategy._collective_key_base += 100_000
    return tensorflow.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def one_replica(tensorflow, monkeypatch):
    monkeypatch.setenv(*QUICK_XLA)
    return tensorflow.distribute.MirroredStrategy(["CPU:0"])


@pytest.fixture(autouse=True)
def plain_policy():
    """Leave no dtype policy behind, and no graphs to the garbage collector: TensorFlow keeps them."""
    yield
    gc.collect()
    gc.freeze()
    if "tensorflow" in sys.modules:
        from tensorflow import keras

        keras.mixed_precision.set_global_policy("float32")
