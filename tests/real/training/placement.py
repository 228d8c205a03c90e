"""Where a step's variables, outputs and copies lie: `CPU:1` and `CPU:2` stand for GPUs, `CPU:0` is the host.

`python -m tests.real.training.placement` prints, as JSON on stdout, what it saw of each kind of step. A process of its own,
because the number of logical devices of a process cannot be changed.
"""

from __future__ import annotations

import itertools
import json
import sys
from unittest import mock

import tensorflow as tf
from tensorflow import keras
from tensorflow.python.eager import context

from results.schema import XLA, Mode, Precision
from tests.real.training.small import CLASSES, TOKENS, small_case, small_network
from tests.real.training.tiny import CLASSES as TINY_CLASSES
from tests.real.training.tiny import IMAGE_SIZE, TinyNetwork, tiny_case
from tfbench.inference import Inference
from tfbench.keras_versions import components, tensorflow_variable
from tfbench.measuring.timing import wait_for_loss
from tfbench.training.inputs import batch_source
from tfbench.training.step import Training
from tfbench.training.tasks import TASKS

DEVICES = ("CPU:1", "CPU:2")


def seen(case, network, size, classes):
    """Build and run one step; return where its variables and outputs lie, and what it copies between devices."""
    strategy = tf.distribute.MirroredStrategy(DEVICES[: case.num_gpus])
    half = case.precision is Precision.FP16
    keras.mixed_precision.set_global_policy("mixed_float16" if half else "float32")
    task = TASKS[network.task]
    model = network.build(case.batch_norm, size, strategy)
    infers = case.mode is Mode.INFER
    workload = Inference(case, model, strategy) if infers else Training(case, model, strategy, task=task)
    batch = batch_source(case, size, classes, strategy, task)()
    context.context().enable_graph_collection()
    outputs = workload.step(batch)
    wait_for_loss(outputs)
    graphs = context.context().export_run_metadata().partition_graphs
    context.context().disable_graph_collection()
    variables = [tensorflow_variable(variable) for variable in model.variables]
    variables += [variable for name in ("updater", "_loss_scale", "_finite_steps") for variable in held(workload, name)]
    nodes = [node for graph in graphs for node in graph.node]
    return {
        "variables": sorted({part.device[-5:] for v in variables for part in components(strategy, v)}),
        "int32_variables": [v.name for v in variables if v.dtype == tf.int32],
        "outputs": [output.device[-5:] for output in outputs],
        "copies": sorted(copies(nodes)),
        "all_reduces": sum(node.op == "CollectiveReduceV2" for node in nodes),
    }


def held(workload, name):
    """Return the variables of a training's attribute."""
    found = getattr(workload, name, None)
    if found is None or isinstance(found, tf.Variable) or hasattr(found, "values"):
        return [] if found is None else [found]
    lists = [found.first_moments, getattr(found, "second_moments", []), [getattr(found, "_updates", None)]]
    return [variable for variables in lists for variable in variables if variable is not None]


def copies(nodes):
    """Return each copy between devices: from, to, type; an all-reduce's own key is excluded.

    That is a scalar int32, which TensorFlow gives to each call from the host, and which a GPU reads in the host's
    memory: an argument and no copy.
    """
    keys = {node.input[3].split(":")[0] for node in nodes if node.op == "CollectiveReduceV2"}
    for node in nodes:
        if node.op in ("_Recv", "_HostRecv") and node.name not in keys:
            source, target = (node.attr[name].s.decode()[-5:] for name in ("send_device", "recv_device"))
            if source != target:
                yield f"{source} to {target} {tf.DType(node.attr['tensor_type'].type).name} {node.name}"


def cases():
    """Give each kind of step a name, with what `seen` takes."""
    kinds = itertools.product((Mode.TRAIN, Mode.INFER), (1, 2), (Precision.FP32, Precision.FP16))
    for mode, replicas, precision in kinds:
        case = tiny_case(mode=mode, num_gpus=replicas, precision=precision)
        yield f"{mode}-{replicas}-{precision}", (case, TinyNetwork(), IMAGE_SIZE, TINY_CLASSES)
    for changes in ({"accumulate": 2}, {"xla": XLA.REPLICA}):
        case = tiny_case(num_gpus=2, precision=Precision.FP16, **changes)
        yield f"train-2-fp16-{next(iter(changes))}", (case, TinyNetwork(), IMAGE_SIZE, TINY_CLASSES)
    for precision in (Precision.FP32, Precision.FP16):
        case = small_case("resnet50", precision=precision)
        yield f"resnet50-2-{precision}", (case, small_network("resnet50"), 32, CLASSES)
    case = small_case("bert_large", precision=Precision.FP16)
    yield "bert-2-fp16", (case, small_network("bert_large"), TOKENS, CLASSES)


def main():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
    found = {}
    for name, arguments in cases():
        tf.distribute.MirroredStrategy._collective_key_base += 100_000
        with mock.patch("tfbench.models.convolution_layers._scope_is_on_a_cpu", return_value=False):
            found[name] = seen(*arguments)
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
