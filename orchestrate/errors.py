"""The error classes that the controller adds to those of `results/errors.py`.

    TfbenchError
    ├── UserError                  the user can fix it: one to three lines, no traceback, exit code 2
    │   ├── DocumentError          a file has mistakes: one line for each of them
    │   ├── BuildFailed            an image could not be built, pushed or verified
    │   └── NoUsableHost           nothing to measure on; exit code 4
    ├── CancelledInQueue       a repeat was cancelled before it started: no record, `resume` runs it
    └── HostError                  a host or a repeat failed: becomes a record with `status`, the others continue
        ├── Unreachable            the connection failed
        │   ├── Dropped            an sshd closed the connection before the login: retried
        │   └── Busy               another run measures on the machine: waited for
        ├── PullFailed             the image is not available
        ├── Lost                   a started benchmark no longer exists or responds
        │   └── Gone               it no longer exists
        └── LaunchFailed           the benchmark could not be started

Anything else is a bug: traceback to a file, exit code 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from results.errors import TfbenchError as TfbenchError
from results.errors import UserError as UserError
from results.schema import Status
from results.schema.exit_codes import ExitCode


class DocumentError(UserError):
    """A file has mistakes.

    Attributes:
        problems: One line for each, `FILE:LINE: where: what is wrong. Received: …. What to do`.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class BuildFailed(UserError):
    """An image could not be built, pushed or verified."""


class NoUsableHost(UserError):
    """No host can measure anything."""

    exit_code: ClassVar[ExitCode] = ExitCode.NO_HOST


class CancelledInQueue(TfbenchError):
    """A repeat was cancelled before it started, in its queue or while it waited for another run."""


class HostError(TfbenchError):
    """A host or a repeat failed.

    Attributes:
        status: Status of the record.
        cause: The reason in words.
    """

    status = Status.ERROR

    def __init__(self, cause: str, status: Status | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.status = status or self.status


class Unreachable(HostError):
    """The connection to the host failed."""

    status = Status.UNREACHABLE


class Dropped(Unreachable):
    """An sshd closed a connection before the login; a retry may succeed."""


class Busy(Unreachable):
    """Another run measures on the machine; two at a time would disturb each other."""


class PullFailed(HostError):
    """The image is not available."""

    status = Status.PULL_FAILED


class Lost(HostError):
    """A started benchmark no longer exists or responds."""

    status = Status.LOST


class Gone(Lost):
    """A started benchmark no longer exists."""


class LaunchFailed(HostError):
    """The benchmark could not be started."""
