"""Settings of the user's Keras change nothing that is measured: backend, image format, floats, epsilon, legacy Keras."""

import json

import pytest

from results.runs.reading import from_json
from tests.real.training.conftest import run_tfbench

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

HOSTILE = {"image_data_format": "channels_first", "floatx": "float64", "epsilon": 0.1, "backend": "torch"}
BUILD = """
from tfbench.models import build
from results.schema.networks import NETWORKS
from results.schema import BatchNorm
import tensorflow as tf
from tensorflow import keras
with tf.device("CPU:0"):
    model = build(NETWORKS["resnet50_v1.5"], BatchNorm.FUSED, 224, tf.distribute.get_strategy())
backend = keras.backend
print(model.count_params(), model.input.shape[1:], model.input.dtype, backend.backend(), backend.epsilon())
"""


@pytest.fixture
def hostile(tmp_path):
    """Give the environment of a user whose Keras is set up for something else."""
    (tmp_path / "keras.json").write_text(json.dumps(HOSTILE))
    return {"KERAS_HOME": str(tmp_path), "KERAS_BACKEND": "jax", "TF_USE_LEGACY_KERAS": "1"}


def test_resnet50_has_its_parameters_whatever_keras_json_says(hostile):
    done = run_tfbench(code=BUILD, **hostile)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "25610152", "25,557,032 of them trainable"
    assert done.stdout.split(None, 1)[1].strip() == "(224, 224, 3) float32 tensorflow 1e-07"


def test_a_repeat_is_measured_all_the_same(tmp_path, hostile):
    output = tmp_path / "record.json"
    flags = ["--model=googlenet", "--device=cpu", "--image_size=96", "--batch_size=1", "--num_steps=2"]
    done = run_tfbench(*flags, "--warmup_steps=1", "--nopeaks", f"--output={output}", **hostile)
    assert done.returncode == 0, done.stderr
    record = from_json(output.read_text())
    assert record.measurement.parameters_trainable == 6_998_552
    assert not {"KERAS_BACKEND", "TF_USE_LEGACY_KERAS"} & record.environment.variables.keys()
