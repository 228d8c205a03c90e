"""Exit codes shared by all programs of tfbench."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a program ended; see `MEANINGS`."""

    OK = 0
    BUG = 1
    USAGE = 2
    SOME_FAILED = 3
    NO_HOST = 4
    REGRESSION = 5
    STOPPED = 130


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done",
    ExitCode.BUG: "a bug",
    ExitCode.USAGE: "bad flags or a bad file, nothing was started",
    ExitCode.SOME_FAILED: "some of it failed, the rest is written",
    ExitCode.NO_HOST: "no usable host, or a full disk",
    ExitCode.REGRESSION: "a regression (compare --fail-on)",
    ExitCode.STOPPED: "stopped by Ctrl-C, SIGTERM or SIGHUP",
}
"""Printed by `--help`."""
