"""Real input: a data set that is made, read and found wanting; and who limits the steps."""

import shutil
import statistics
import time

import numpy as np
import pytest

from results.runs.reading import from_json
from results.schema import Case, Data, Device, Status, Telemetry
from results.schema.exit_codes import ExitCode
from tests.real.training.forks import run_repeat
from tests.real.training.tiny import IMAGE_SIZE, TinyNetwork, measure_repeat, tiny_case
from tests.unit.results.factory import make_environment
from tfbench import make_dataset
from tfbench.failures import CaseFailedError
from tfbench.measuring.soft_warnings import soft_warnings

pytestmark = pytest.mark.tensorflow

LONGER_SIDE = 64
MADE = ("--images=24", "--shards=3", f"--longer_side={LONGER_SIDE}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data set of 24 small images in three files."""
    made = tmp_path_factory.mktemp("data") / "textures"
    assert make_dataset.main([f"--output={made}", *MADE]) == ExitCode.OK
    return made


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def test_a_made_data_set_has_imagenets_layout_real_jpegs_and_no_chance(tensorflow, folder, tmp_path):
    names = [f"train-{index:05}-of-00003" for index in range(3)]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert make_dataset.main([f"--output={tmp_path / 'again'}", *MADE]) == ExitCode.OK
    assert (tmp_path / "again" / names[1]).read_bytes() == (folder / names[1]).read_bytes()
    serialised = tensorflow.data.TFRecordDataset([str(folder / name) for name in names])
    examples = [tensorflow.train.Example.FromString(record.numpy()) for record in serialised]
    assert len(examples) == 24
    for example in examples:
        feature = example.features.feature
        encoded = feature["image/encoded"].bytes_list.value[0]
        assert encoded.startswith(b"\xff\xd8\xff") and encoded.endswith(b"\xff\xd9")
        pixels = tensorflow.io.decode_jpeg(encoded)
        shape = tuple(feature[f"image/{name}"].int64_list.value[0] for name in ("height", "width", "channels"))
        assert tuple(pixels.shape) == shape and max(shape) == LONGER_SIDE
        assert 1 <= feature["image/class/label"].int64_list.value[0] <= 1000
        assert pixels.numpy().std() > 20, "a texture, not a grey square"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--output={folder}"], "exists already"),
        ([], "required: --output"),
        (["--output={folder}-new", "--images=2", "--shards=3"], "at least one image for each"),
    ],
)
def test_what_cannot_be_made_is_said_and_nothing_is_written(folder, capsys, arguments, said):
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(SystemExit, match=str(ExitCode.USAGE.value)):
        make_dataset.main([text.format(folder=folder) for text in arguments])
    assert said in capsys.readouterr().err
    assert sorted(folder.parent.rglob("*")) == before


def test_replicas_get_other_crops_normalised_and_with_labels_from_0(two_replicas, folder, validity, tfrecords):
    case = tiny_case(num_gpus=2, data=Data.TFRECORD)
    source = tfrecords.tfrecord_source(case, tfrecords.open_data_set(folder, 1000), IMAGE_SIZE, two_replicas)
    (first, labels), (second, _) = validity.replicas_of(two_replicas, source())
    assert first.shape == second.shape == (16, IMAGE_SIZE, IMAGE_SIZE, 3)
    assert np.abs(first.numpy() - second.numpy()).max() > 0.1
    assert -3 < first.numpy().min() < 0 < first.numpy().max() < 3
    assert labels.numpy().min() >= 0 and labels.numpy().max() < 1000
    again, _ = validity.replicas_of(two_replicas, source())[0]
    assert np.abs(first.numpy() - again.numpy()).max() > 0.1


def jpeg():
    import tensorflow as tf

    return tf.io.encode_jpeg(np.zeros((8, 8, 3), np.uint8)).numpy()


def write_one(copy, record):
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(copy / "train-00000-of-00003")) as writer:
        writer.write(record)


def damage(path):
    """Change a byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


FIRST = "train-00000-of-00003"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda copy: (copy / "train-00002-of-00003").write_bytes(b""), "train-00002-of-00003 is empty"),
        (lambda copy: (copy / "train-00001-of-00003").unlink(), "train-00001-of-00003 is missing"),
        (lambda copy: damage(copy / FIRST), "corrupted record"),
        (lambda copy: shutil.copy(copy / FIRST, copy / "train-00000-of-00001"), "data sets: of 1 and of 3 files"),
        (lambda copy: [path.unlink() for path in copy.iterdir()], "no file named like train-00000-of-00128"),
        (shutil.rmtree, "is not a readable folder: No such file"),
        (lambda copy: write_one(copy, make_dataset.example(jpeg(), 8, 8, 1001)), "must be 1 to 1000: 1001"),
        (lambda copy: write_one(copy, make_dataset.example(b"no JPEG", 8, 8, 1)), "record 1: "),
    ],
)
def test_a_faulty_data_set_is_bad_input_with_what_to_do(tensorflow, copy, fault, said, tfrecords):
    fault(copy)
    with pytest.raises(CaseFailedError) as caught:
        tfrecords.open_data_set(copy, 1000)
    assert caught.value.status is Status.BAD_INPUT
    assert said in str(caught.value)
    assert str(copy) in str(caught.value)
    assert "make_dataset" in str(caught.value)


SMALL = (
    *("--device=cpu", "--model=alexnet", "--image_size=64", "--batch_size=2", "--data=tfrecord"),
    *("--warmup_steps=2", "--nopeaks"),
)


def test_damage_that_shows_only_while_training_is_bad_input_too(copy, tmp_path):
    damage(copy / "train-00001-of-00003")
    output = tmp_path / "record.json"
    done = run_repeat(tmp_path, *SMALL, "--num_steps=40", f"--data_dir={copy}", f"--output={output}")
    record = from_json(output.read_text())
    assert (record.status, done.returncode) == (Status.BAD_INPUT, 3), record.cause
    assert record.measurement is None


def one_small_layer(image_size, classes, *, batch_norm):
    from tensorflow import keras

    images = keras.Input((image_size, image_size, 3))
    x = keras.layers.GlobalAveragePooling2D()(images)
    return keras.Model(images, keras.layers.Dense(classes)(x))


def test_a_starved_device_is_limited_by_its_input(two_replicas, folder, monkeypatch, tf, tfrecords):
    decode = tfrecords.decode

    def slowly(record, size):
        def sleep(value):
            time.sleep(0.1)  # far more than a step on a busy machine
            return value

        slow = tf.py_function(sleep, [record], tf.string)
        slow.set_shape([])
        return decode(slow, size)

    monkeypatch.setattr(tfrecords, "decode", slowly)
    monkeypatch.setattr(tfrecords.tf.data, "AUTOTUNE", 1)  # one image after another
    case = tiny_case(data=Data.TFRECORD, num_gpus=2, batch_per_gpu=2, num_steps=16)
    network = TinyNetwork(classes=1000, builder=f"{__name__}:one_small_layer")
    findings = measure_repeat(case, two_replicas, network, data_dir=folder)
    assert {"update_equals_one_device", "replicas_equal"} <= {check.name for check in findings.checks if check.passed}
    measurement = findings.measurement
    found = measurement.input_limit
    assert found.limited
    assert found.step_ratio > 2
    assert found.wait_share > 0.5 and found.files == 3
    assert found.step_ratio == pytest.approx(statistics.median(measurement.step_seconds) / found.synthetic_step_seconds)
    mean = sum(path.stat().st_size for path in folder.iterdir()) / 24
    assert found.read_bytes_per_second == pytest.approx(measurement.samples_per_second * mean, rel=0.3)
    assert measurement.host_bytes_per_second > 0

    warnings = soft_warnings(Case(model="googlenet", device=Device.CPU), make_environment(), measurement, Telemetry())
    (hint,) = [warning.hint for warning in warnings if warning.code == "input_limited"]
    assert "--data=synthetic" in hint
