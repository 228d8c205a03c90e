"""Finds nodes of a traced step without a GPU kernel, without needing a driver.

`tensorflow-cpu` has no GPU kernels, so `gpu_kernels.pb.gz` lists those of the CUDA build. Update it after a change of
TensorFlow's version, with the CUDA wheel in a separate environment:

    pip install 'tensorflow[and-cuda]==VERSION'; python -m tests.support.gpu_kernels
"""

import collections
import functools
import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from results.schema import Case, Mode
from results.schema.networks import NETWORKS, Network
from tfbench.models import build

KERNELS = Path(__file__).with_name("gpu_kernels.pb.gz")

ON_NO_DEVICE = frozenset({"NoOp", "_Arg", "_Retval"})
"""Operations that need no kernel."""


def write_kernels() -> None:
    """Write the GPU kernels registered in this TensorFlow."""
    import tensorflow as tf
    from tensorflow.core.framework import kernel_def_pb2
    from tensorflow.python.framework import kernels

    if not tf.test.is_built_with_cuda():
        raise SystemExit("this TensorFlow is a build without CUDA: pip install 'tensorflow[and-cuda]'")
    found = [k for k in kernels.get_all_registered_kernels().kernel if k.device_type in ("GPU", "DEFAULT")]
    found.sort(key=lambda kernel: kernel.SerializeToString(deterministic=True))
    whole = kernel_def_pb2.KernelList(kernel=found).SerializeToString(deterministic=True)
    KERNELS.write_bytes(gzip.compress(whole, mtime=0))
    print(f"{len(found)} kernels of {len({kernel.op for kernel in found})} operations, TensorFlow {tf.__version__}")  # noqa: T201


@functools.cache
def gpu_kernels() -> dict[str, list]:
    """Return the kernels by operation."""
    from tensorflow.core.framework import kernel_def_pb2

    kernels = collections.defaultdict(list)
    for kernel in kernel_def_pb2.KernelList.FromString(gzip.decompress(KERNELS.read_bytes())).kernel:
        kernels[kernel.op].append(kernel)
    return dict(kernels)


def kernel_of(node):
    """Return the GPU kernel of a node; None: there is none for its types."""
    label = node.attr["_kernel"].s.decode() if "_kernel" in node.attr else ""
    fitting = [k for k in gpu_kernels().get(node.op, ()) if k.label == label and all(map(_allows(node), k.constraint))]
    return max(fitting, key=lambda kernel: (kernel.device_type == "GPU", kernel.priority), default=None)


def _allows(node):
    def allows(constraint) -> bool:
        value = node.attr[constraint.name]
        types = [value.type] if value.WhichOneof("value") == "type" else value.list.type
        return set(types) <= set(constraint.allowed_values.list.type)

    return allows


def operations(traced: Any, half: str = "float16") -> Iterator:
    """Yield the nodes of a traced step and of its functions, with the type `half` in place of float16."""
    import tensorflow as tf

    old, new = tf.float16.as_datatype_enum, tf.dtypes.as_dtype(half).as_datatype_enum
    graph = traced.graph.as_graph_def()
    for node in [*graph.node, *(node for function in graph.library.function for node in function.node_def)]:
        for value in node.attr.values():
            if value.type == old:
                value.type = new
            elif value.WhichOneof("value") == "list":
                value.list.type[:] = [new if kind == old else kind for kind in value.list.type]
        yield node


def described(node) -> str:
    """Return a node's operation with its types."""
    import tensorflow as tf

    types = [tf.dtypes.as_dtype(value.type).name for _, value in sorted(node.attr.items()) if value.type]
    return f"{node.op}({', '.join(types)})"


def without_kernel(nodes: Iterable) -> list[str]:
    """Return the operations, with types, that have no GPU kernel."""
    return sorted({described(node) for node in nodes if node.op not in ON_NO_DEVICE and kernel_of(node) is None})


def trace(case: Case, strategy: Any, network: Network | None = None):
    """Build a case's step as for a GPU, without running it; return its concrete function and the workload.

    Args:
        case: The case.
        strategy: With CPU devices in place of GPUs.
        network: Overrides the case's network, e.g. by one with fewer equal layers.
    """
    from tensorflow import keras

    from tfbench.devices import _POLICIES
    from tfbench.inference import Inference
    from tfbench.training.inputs import batch_source
    from tfbench.training.step import Training
    from tfbench.training.tasks import TASKS

    network = network or NETWORKS[case.model]
    keras.mixed_precision.set_global_policy(_POLICIES[case.precision])
    size, task = case.size(network), TASKS[network.task]
    model = build(network, case.batch_norm, size, strategy)
    batch = batch_source(case, size, network.classes, strategy, task)()
    if case.mode is Mode.INFER:
        workload = Inference(case, model, strategy)
        return workload._call.graph(batch), workload
    training = Training(case, model, strategy, task=task)
    return training.traced(batch), training


if __name__ == "__main__":
    write_kernels()
