"""The exception hierarchy of tfbench; `orchestrate/errors.py` adds its own branches.

TfbenchError
├── UserError              the user can fix it: one to three lines, no traceback, exit code 2 or 4
│   ├── NotARun            a path is not a run folder, or no run was found
│   ├── UnknownFleet       the requested fleet is in no record
│   ├── BadQuestion        an argument of a recommendation is unknown or out of range
│   ├── NotATable          a file to audit or import is not a table of the expected kind
│   └── …                  DocumentError, BuildFailed, NoUsableHost of `orchestrate`
└── …                      HostError and CancelledInQueue of `orchestrate`

`results.schema.record_json.RecordError`, for corrupt files, is separate because the schema uses only the standard
library.
"""

from __future__ import annotations

import errno
import tempfile
import traceback
from typing import ClassVar

from results.schema.exit_codes import ExitCode


class TfbenchError(Exception):
    """Base class of all exceptions of tfbench."""


class UserError(TfbenchError):
    """A mistake that the user can fix; its message states where it is, what was received and what to do.

    Attributes:
        exit_code: Exit code of a program that it ends.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class NotARun(UserError):
    """A path is not a run folder, or no run was found."""


class UnknownFleet(UserError):
    """The requested fleet is in no record."""


class BadQuestion(UserError):
    """An argument of a recommendation is unknown or out of range."""


class NotATable(UserError):
    """A file to audit or import is not a table of the expected kind."""


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error was raised because the disk or a quota is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_traceback() -> str:
    """Write the traceback of the current exception to a file and return its path."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="tfbench-traceback-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        traceback.print_exc(file=file)
        return file.name
