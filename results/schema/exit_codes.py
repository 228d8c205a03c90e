"""Exit codes of every program of tfbench: what a shell or a CI job can act on."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a program ended; the same number means the same in all of them.

    Attributes:
        OK: Done: everything was measured, printed or written.
        BUG: A bug in tfbench; the traceback is in a file.
        USAGE: Bad flags or a bad file; nothing was started.
        SOME_FAILED: Some of it failed, e.g. repeats, images or records; the rest is done and written.
        NO_HOST: No usable host; for the doctor: this machine cannot measure.
        REGRESSION: `compare --fail-on` found a case that is slower or failed.
        STOPPED: Ctrl-C or `kill`, as shells number it (128 + SIGINT).
    """

    OK = 0
    BUG = 1
    USAGE = 2
    SOME_FAILED = 3
    NO_HOST = 4
    REGRESSION = 5
    STOPPED = 130
