"""A child of the doctor that says one thing and then ends badly: `python -m tests.real.training.misbehaving hang|crash|fail`."""

import os
import signal
import sys
import time

sys.stdout.write('some library: a line that is no JSON\n{"tensorflow": "2.21.0", "keras": "3.15.1"}\n')
sys.stdout.flush()
sys.stderr.write("E0000 CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error\n")
sys.stderr.flush()
if sys.argv[1] == "hang":
    time.sleep(60)
elif sys.argv[1] == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
sys.exit(7)
