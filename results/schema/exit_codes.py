"""Exit codes shared by all programs of tfbench."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a program ended.

    Attributes:
        meaning: Printed by `--help`.
    """

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        """Create a member with its meaning."""
        code = int.__new__(cls, value)
        code._value_, code.meaning = value, meaning
        return code

    OK = 0, "done"
    BUG = 1, "a bug"
    USAGE = 2, "bad flags or a bad file, nothing was started"
    SOME_FAILED = 3, "some of it failed, the rest is written"
    NO_HOST = 4, "no usable host, or a full disk"
    REGRESSION = 5, "a regression (compare --fail-on)"
    STOPPED = 130, "stopped by Ctrl-C, SIGTERM or SIGHUP"
