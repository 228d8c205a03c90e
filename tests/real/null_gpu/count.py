"""`count.py OUT.json FLAGS`: `python -m tfbench` on null GPUs, without checks of values; what the timed steps asked for."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

NULL = ctypes.CDLL("libcuda.so.1")
NULL.nullgpu_counts.restype = ctypes.c_char_p


def main(output: str, flags: list[str]) -> int:
    """Run the command line and write the counts of its timed steps."""
    import tfbench.__main__ as program

    attempt = program._attempt

    def attempt_counted(*arguments):
        from tfbench.machine.cuda_libraries import prepare_gpu_libraries

        prepare_gpu_libraries()
        from tfbench import repeat, workload

        repeat.require = workload.require = lambda *_: None  # what was not computed is not right
        take = repeat.take_steps

        def take_counted(*others, **named):
            NULL.nullgpu_reset()
            NULL.nullgpu_mark(b"BEGIN")
            interval = take(*others, **named)
            NULL.nullgpu_mark(b"END")
            found = json.loads(NULL.nullgpu_counts())
            Path(output).write_text(json.dumps({"step_seconds": interval.step_seconds, **found}))
            return interval

        repeat.take_steps = take_counted
        return attempt(*arguments)

    program._attempt = attempt_counted
    return program.main(flags)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
