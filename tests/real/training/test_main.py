"""The whole program in processes of its own: one for each way to end."""

import functools
import json

import pytest

from results.runs.reading import from_json
from results.schema import Status
from results.schema.progress import RecordReader, Step, parse_line
from results.schema.record_json import MAX_RECORD_BYTES
from tests.real.training.conftest import run_tfbench
from tests.real.training.forks import run_repeat, start_repeat
from tests.real.training.test_device_case import QUICK
from tests.support.engines.processes import wait_until
from tests.support.patience import patience

pytestmark = pytest.mark.tensorflow

SMALL = ("--device=cpu", "--model=alexnet", "--image_size=64", "--batch_size=2")
GOOGLENET = ("--device=cpu", "--model=googlenet")
"""Its weights are small: memory runs out in later layers, and replicas exchange little."""

PROGRAM = f"""
import sys
from tests.real.training.small import shrink
{QUICK}
shrink("googlenet")
from tfbench.__main__ import main
sys.exit(main(sys.argv[1:]))
"""

TWO_REPLICAS = ("--num_gpus=2", "--image_size=32", "--batch_size=2", "--warmup_steps=2", "--num_steps=12")

HOSTILE = {"image_data_format": "channels_first", "floatx": "float64", "epsilon": 0.1, "backend": "torch"}

ENDS = {
    Status.OK: (*GOOGLENET, *TWO_REPLICAS),
    Status.TIMEOUT: (*SMALL, "--num_steps=100000", "--max_seconds=4"),
    Status.NO_GPU: ("--model=resnet50", "--device=gpu", "--num_gpus=64"),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Give a function that runs a repeat which ends so, once for all tests; returns the process and its record's file.

    The one that ends well is a program of its own, with a small network and a user's Keras set up for something else.
    """

    @functools.cache
    def end(status):
        folder = tmp_path_factory.mktemp("ended")
        output = folder / "folder" / "record.json"
        arguments = *ENDS[status], "--print_record", f"--output={output}"
        if status is not Status.OK:
            return run_repeat(folder, *arguments), output
        (folder / "keras.json").write_text(json.dumps(HOSTILE))
        keras = {"KERAS_HOME": str(folder), "KERAS_BACKEND": "jax", "TF_USE_LEGACY_KERAS": "1"}
        return run_tfbench(*arguments, code=PROGRAM, **keras), output

    return end


def test_two_replicas_end_with_a_valid_record_and_lines_of_progress(ended):
    done, output = ended(Status.OK)
    assert done.returncode == 0, done.stderr
    record = from_json(output.read_text())
    assert record.status is Status.OK
    measurement = record.measurement
    assert (measurement.replicas, measurement.batch_per_gpu, measurement.global_batch) == (2, 2, 4)
    assert measurement.samples == 48
    assert record.environment.intra_op_threads >= 1
    parsed = [parse_line(line) for line in done.stderr.splitlines()]
    assert [line.phase_step for line in parsed if isinstance(line, Step)] == [2, 10, 12]
    states = [line for line in parsed if isinstance(line, str)]
    assert states[0] == "starting" and states[-4:] == ["timing", "peaks", "checking", "writing"]


def test_settings_of_the_users_keras_change_nothing(ended):
    done, output = ended(Status.OK)
    assert done.returncode == 0, done.stderr
    record = from_json(output.read_text())
    assert record.measurement.parameters_trainable == 1_474_312  # of its 21 convolutions and 40 classes
    assert not {"KERAS_BACKEND", "TF_USE_LEGACY_KERAS"} & record.environment.variables.keys()


@pytest.mark.parametrize(
    ("size", "batch", "printed"),
    [
        (224, 8, ""),  # so large a batch that the limit is met before the step
        (32, 2, "RESOURCE_EXHAUSTED"),  # inside of it: TensorFlow may crash, and what it printed is kept
    ],
)
def test_memory_that_runs_out_is_out_of_memory(tmp_path, size, batch, printed):
    output = tmp_path / "record.json"
    limit = {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPU_BFC_MEM_LIMIT_IN_MB": "64"}
    done = run_repeat(
        tmp_path, *GOOGLENET, f"--image_size={size}", f"--batch_size={batch}", f"--output={output}", **limit
    )
    record = from_json(output.read_text())
    assert (record.status, done.returncode, done.stdout) == (Status.OOM, 3, ""), record.cause
    assert record.measurement is None and printed in done.stderr
    assert printed or limit.items() <= record.environment.variables.items()


@pytest.mark.parametrize("status", list(ENDS))
def test_print_record_ends_the_output_with_the_file_in_any_case(ended, status):
    done, output = ended(status)
    reader = RecordReader(MAX_RECORD_BYTES)
    assert all(reader.take(line) for line in done.stdout.splitlines())
    assert reader.payload() == output.read_bytes()
    record = from_json(output.read_text())
    assert record.status is status, done.stderr
    assert (done.returncode, record.measurement is None) == ((0, False) if status is Status.OK else (3, True))
    if status is Status.NO_GPU:  # and never a run on the CPU
        assert "64" in record.cause and "python -m tfbench.doctor" in done.stderr.splitlines()[-1]


def test_a_terminated_repeat_is_stopped(tmp_path):
    output, log = tmp_path / "record.json", tmp_path / "log"
    process = start_repeat("", [*SMALL, "--num_steps=100000", f"--output={output}"], log)
    wait_until(lambda: log.exists() and "building" in map(parse_line, log.read_text().splitlines()), "building")
    process.terminate()
    process.join(patience(120))
    assert process.exitcode == 3
    assert from_json(output.read_text()).status is Status.STOPPED


BUG = """
import tfbench.repeat
def bug(*_):
    raise ZeroDivisionError("planted")
tfbench.repeat.run_repeat = bug
"""


def test_a_bug_leaves_a_record_and_a_traceback_beside_it(tmp_path):
    output = tmp_path / "record.json"
    done = run_repeat(tmp_path, "--model=resnet50", f"--output={output}", planted=BUG)
    record = from_json(output.read_text())
    assert (record.status, done.returncode) == (Status.ERROR, 1)
    assert "planted" in record.cause
    assert "ZeroDivisionError" in (tmp_path / "record.traceback.txt").read_text()
