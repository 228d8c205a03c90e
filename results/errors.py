"""The exceptions of tfbench, in one tree; `orchestrate/errors.py` adds its own branches.

TfbenchError
├── UserError              the user can fix it: one to three lines, no traceback, exit code 2 or 4
│   ├── NotARun            a path is not a run folder, or no run was found
│   ├── UnknownFleet       a fleet was asked for that no record names
│   ├── MixedIdentities    numbers of several software identities would share a cell
│   ├── BadQuestion        a recommendation was asked for something unknown
│   ├── NotATable          a file to be audited or imported is not a table of the expected kind
│   └── …                  DocumentError, BuildFailed, NoUsableHost of `orchestrate`
├── TooFewRepeats          a statistic needs more values than there are
└── …                      HostError and CancelledInQueue of `orchestrate`

`results.schema.record_json.RecordError` stands apart: it is what a corrupt file gives, and the schema needs nothing
but the standard library.
"""

from __future__ import annotations

import errno
import tempfile
import traceback
from typing import ClassVar

from results.schema.exit_codes import ExitCode


class TfbenchError(Exception):
    """Anything that tfbench raises on purpose."""


class UserError(TfbenchError):
    """A mistake that the user can fix; its message names the place, what was received and what to do.

    Attributes:
        exit_code: What a program that ends with it returns.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class NotARun(UserError):
    """A path does not lead to a run folder."""


class UnknownFleet(UserError):
    """A fleet was asked for that no record names."""


class MixedIdentities(UserError):
    """Numbers of several software identities would share a cell."""


class BadQuestion(UserError):
    """A recommendation was asked for something unknown."""


class NotATable(UserError):
    """A file to be audited or imported is not a table of the expected kind."""


class TooFewRepeats(TfbenchError):
    """A statistic needs more values than there are."""


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error means that the disk or a quota is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_traceback() -> str:
    """Write the traceback of the exception that is being handled to a file; return its path.

    For `run_main`: a bug is reported in one line, and the file holds what is needed to fix it.
    """
    with tempfile.NamedTemporaryFile(
        "w", prefix="tfbench-traceback-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        traceback.print_exc(file=file)
        return file.name
