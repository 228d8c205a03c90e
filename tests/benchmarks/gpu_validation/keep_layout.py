"""`python -m tfbench` without TensorFlow's layout optimiser: convolutions keep channels last in 32 bits, too."""

from __future__ import annotations

import sys

import tfbench.__main__ as program
from tfbench.machine.cuda_libraries import prepare_gpu_libraries

_attempt = program._attempt


def _attempt_without_layouts(*arguments):
    prepare_gpu_libraries()
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"layout_optimizer": False})
    return _attempt(*arguments)


if __name__ == "__main__":
    program._attempt = _attempt_without_layouts
    sys.exit(program.main(sys.argv[1:]))
