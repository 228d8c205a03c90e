"""`python -m tests.benchmarks.network_memory [NETWORK …]`: memory of one replica's training step, from its graph.

The step is traced as on a GPU and optimised by TensorFlow's Grappler for a virtual GPU. The peak is the sum of tensors
between their operation and their last reader, plus weights, moments and the batch, without the CUDA context, cuDNN's
workspaces and fragmentation. Two batches give the two numbers in `results/reference/networks.csv`. ResNet50 takes 10 s
per precision.
"""

from __future__ import annotations

import collections
import csv
import math
import os
import sys

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # its rewrites are for CPUs

from results.reference import FOLDER
from results.schema import Case, Precision
from tests.support.gpu_kernels import kernel_of, trace
from tfbench.models import NETWORKS
from tfbench.setup import gpu_settings

GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
BATCHES = (16, 32)
ALIGNMENT = 256
"""Granularity of TensorFlow's allocator in bytes."""

IN_PLACE = frozenset(
    [
        "Relu",
        "ReluGrad",
        "AddV2",
        "Add",
        "AddN",
        "Mul",
        "Sub",
        "RealDiv",
        "Maximum",
        "Tanh",
        "TanhGrad",
        "Rsqrt",
        "SigmoidGrad",
        "Sigmoid",
        "BiasAdd",
        "Softmax",
        "MulNoNan",
        "Erf",
        "Exp",
        "Neg",
        "Square",
        "SquaredDifference",
        "LogSoftmax",
        "_FusedBatchNormEx",
    ]
)
"""Operations whose kernels may overwrite an operand without other readers."""

SAME_BUFFER = frozenset({"Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient", "Snapshot"})
STATE = frozenset({"Placeholder", "Const", "_Arg", "VarHandleOp"})
"""Operations whose outputs a step does not allocate."""


def cluster():
    """Return a virtual machine with one RTX A4000, for which Grappler chooses layouts."""
    from tensorflow.core.protobuf import device_properties_pb2
    from tensorflow.python.grappler import cluster as grappler

    properties = device_properties_pb2.DeviceProperties(
        type="GPU", vendor="NVIDIA", model="RTX A4000", frequency=1560, num_cores=48, bandwidth=448_256_000,
        memory_size=256 << 30, num_registers=65536, l1_cache_size=128 << 10, l2_cache_size=4 << 20,
        shared_memory_size_per_multiprocessor=100 << 10,
    )  # fmt: skip
    for name, value in (("architecture", "8.6"), ("cuda", "12050"), ("cudnn", "91000")):
        properties.environment[name] = value
    host = device_properties_pb2.DeviceProperties(type="CPU", frequency=3000, num_cores=16, memory_size=64 << 30)
    devices = [(GPU, properties), (GPU.replace("GPU", "CPU"), host)]
    return grappler.Cluster(devices=[device_properties_pb2.NamedDevice(name=n, properties=p) for n, p in devices])


def optimised(traced):
    """Return the nodes of a traced step optimised for a GPU, and the bytes of each node's outputs."""
    import tensorflow as tf
    from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
    from tensorflow.python.grappler import tf_optimizer
    from tensorflow.python.training import saver

    graph, operations = traced.graph.as_graph_def(), {op.name: op for op in traced.graph.get_operations()}
    for node in graph.node:
        if kernel_of(node) is not None:
            node.device = GPU
        if node.op == "ReadVariableOp":  # Grappler does not know the shapes of resources
            read = operations[node.name].outputs[0]
            controls = [name for name in node.input if name.startswith("^")]
            del node.input[:]
            node.input.extend(controls)
            node.op = "Placeholder"
            node.attr.clear()
            node.attr["dtype"].type = read.dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(read.shape.as_proto())
    meta = saver.export_meta_graph(graph_def=graph, graph=traced.graph, clear_devices=False)
    kept = {op.name for op in traced.graph.control_outputs} | {tensor.op.name for tensor in traced.outputs}
    meta.collection_def["train_op"].node_list.value.extend(sorted(kept))
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    config.graph_options.rewrite_options.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.TWO
    result = tf_optimizer.OptimizeGraph(config, meta, verbose=False, cluster=cluster())
    for node in result.node:
        node.device = ""
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(result, name="")
    return result.node, {op.name: [_bytes(tensor) for tensor in op.outputs] for op in imported.get_operations()}


def _bytes(tensor) -> int:
    import tensorflow as tf

    if tensor.dtype in (tf.resource, tf.string, tf.variant):
        return 0
    size = int(tensor.shape.num_elements() or 0) * tensor.dtype.size
    return -(-size // ALIGNMENT) * ALIGNMENT


def peak(nodes, sizes) -> int:
    """Return the peak memory of a step's tensors in bytes, running nodes as they become ready."""
    nodes = {node.name: node for node in nodes}
    consumers, missing, readers = collections.defaultdict(list), {}, collections.Counter()
    for name, node in nodes.items():
        sources = {text.lstrip("^").partition(":")[0] for text in node.input}
        missing[name] = len(sources)
        for source in sources:
            consumers[source].append(name)
        readers.update(_tensors(node))
    buffer_of, live, references, now, most = {}, {}, collections.Counter(), 0, 0
    ready = collections.deque(name for name, count in missing.items() if not count)
    while ready:
        name = ready.popleft()
        node, inputs = nodes[name], _tensors(nodes[name])
        for index, size in enumerate(sizes[name] if node.op not in STATE else ()):
            tensor = f"{name}:{index}"
            if node.op in SAME_BUFFER:
                shared = buffer_of.get(inputs[0])
                if shared is None:
                    continue
            else:
                shared = next((buffer_of[i] for i in inputs if _last_reader(i, buffer_of, references)
                               and live[buffer_of[i]] == size), None) if node.op in IN_PLACE else None  # fmt: skip
            if shared is None:
                shared, live[tensor] = tensor, size
                now += size
            buffer_of[tensor] = shared
            references[shared] += readers[tensor]
        most = max(most, now)
        for tensor in [buffer_of[i] for i in inputs if i in buffer_of]:
            references[tensor] -= 1
        for tensor in {
            buffer_of[i] for i in (*inputs, *(f"{name}:{j}" for j in range(len(sizes[name])))) if i in buffer_of
        }:
            if references[tensor] <= 0:
                now -= live.pop(tensor, 0)
        for consumer in consumers[name]:
            missing[consumer] -= 1
            if not missing[consumer]:
                ready.append(consumer)
    return most


def _last_reader(tensor, buffer_of, references) -> bool:
    return tensor in buffer_of and references[buffer_of[tensor]] == 1


def _tensors(node) -> list[str]:
    return [text if ":" in text else f"{text}:0" for text in node.input if not text.startswith("^")]


def step_bytes(case: Case) -> int:
    """Return the memory of a case's step: weights, moments, batch and peak of its tensors."""
    import tensorflow as tf

    tf.keras.backend.clear_session()
    traced, training = trace(case, tf.distribute.MirroredStrategy(["CPU:0"]))
    moments = [*training.updater.first_moments, *getattr(training.updater, "second_moments", [])]
    held = sum(4 * math.prod(map(int, variable.shape)) for variable in (*training.model.variables, *moments))
    size = NETWORKS[case.model].size(case)
    images = NETWORKS[case.model].inputs.image_size is not None
    return held + case.batch_per_gpu * (12 * size**2 if images else 32 * size) + peak(*optimised(traced))


def main(chosen: list[str]) -> None:
    """Write the columns of `networks.csv` for the chosen networks, or for all."""
    path = FOLDER / "networks.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["model"] not in (chosen or NETWORKS):
            continue
        for precision, key in ((Precision.FP16, "fp16"), (Precision.FP32, "fp32")):
            cases = [Case(model=row["model"], precision=precision, batch_per_gpu=batch) for batch in BATCHES]
            os.environ.update(gpu_settings(cases[0]))
            low, high = map(step_bytes, cases)
            sample = (high - low) / (BATCHES[1] - BATCHES[0])
            row[f"memory_{key}_mib"] = f"{(low - BATCHES[0] * sample) / 2**20:.0f}"
            row[f"memory_sample_{key}_mib"] = f"{sample / 2**20:.4g}"
            print(row["model"], key, row[f"memory_{key}_mib"], row[f"memory_sample_{key}_mib"], flush=True)  # noqa: T201
    columns = [name for name in rows[0] if not name.startswith("memory_") and name != "note"]
    columns += [f"memory_{part}{key}_mib" for key in ("fp16", "fp32") for part in ("", "sample_")] + ["note"]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
