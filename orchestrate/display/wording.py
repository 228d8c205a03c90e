"""Events in words: one line for each, and at the end what failed, why, and what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestrate.events import (
    Decided,
    Event,
    HostChecked,
    HostLost,
    ImageProgress,
    ImageReady,
    JobResult,
    JobSpared,
    JobState,
    JobStep,
    RunFinished,
    RunStarted,
    Stopping,
    Warned,
)
from orchestrate.running.options import HOST_FAULTS
from orchestrate.text import plain_text
from results.program import command_line
from results.schema import Status

STOPPING = "no new repeats will start; running ones will finish"
MAX_CAUSES = 10
MAX_HOSTS_NAMED = 4


class Failures:
    """What failed and why, gathered from the stream of events."""

    def __init__(self) -> None:
        self._folder = ""
        self._by_job: dict[str, tuple[str, str, str]] = {}

    def note(self, event: Event) -> None:
        """Take in an event; a repeat that was tried again and went well has not failed."""
        if isinstance(event, RunStarted):
            self._folder = event.folder
        if isinstance(event, JobResult):
            self._by_job.pop(event.job, None)
            if event.status != Status.OK:
                self._by_job[event.job] = (event.status, event.cause or "", event.host)

    def summary(self, event: RunFinished) -> list[str]:
        """Summarise what failed, why and where, and the command that repeats only that."""
        if not event.failed and not event.missing:
            return []
        groups = Counter((status, cause) for status, cause, _ in self._by_job.values())
        lines = [
            plain_text(f"  {number} × {status} on {self._hosts(status, cause)}: {cause}")
            for (status, cause), number in groups.most_common(MAX_CAUSES)
        ]
        if len(groups) > MAX_CAUSES:
            lines.append(f"  … and {len(groups) - MAX_CAUSES} more causes")
        if event.failed > len(self._by_job):
            earlier = event.failed - len(self._by_job)
            lines.append(f"  {earlier} failed earlier, see: {command_line('orchestrate', 'status')}")
        again = sorted({status for status, _, _ in self._by_job.values()} - HOST_FAULTS - {Status.STOPPED})
        flag = f" --again {','.join(again)}" if again else ""
        resume = command_line("orchestrate", f"resume {self._folder}{flag}")
        return [*lines, plain_text(f"  to repeat only these: {resume}")]

    def _hosts(self, status: str, cause: str) -> str:
        hosts = list(dict.fromkeys(h for s, c, h in self._by_job.values() if (s, c) == (status, cause)))
        return shortened(hosts)


def shortened(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = f" and {len(names) - MAX_HOSTS_NAMED} more" if len(names) > MAX_HOSTS_NAMED else ""
    return ", ".join(names[:MAX_HOSTS_NAMED]) + more


def describe(event: Event) -> str:
    """Describe an event in one line that is safe to print."""
    return plain_text(_describe(event))


def _describe(event: Event) -> str:
    match event:
        case RunStarted():
            rest = f", {event.done} already done" if event.done else ""
            return f"run {event.run_id}: {event.jobs} repeats{rest}, output in {event.folder}"
        case HostChecked():
            answer = f"{event.gpus} GPUs" if event.gpus else "no GPU"
            return f"{event.host}: {event.problem or 'reachable, ' + answer}"
        case ImageProgress():
            done, total = (number / 1e6 for number in (event.done_bytes, event.total_bytes))
            return f"{event.host}: pulling {event.image}: {done:.0f} of {total:.0f} MB"
        case ImageReady():
            return f"{event.host}: image {event.image} {event.digest or ''}".rstrip()
        case JobState():
            return f"{event.job}: {event.state}"
        case JobStep():
            return f"{event.job}: step {event.step}, {event.samples_per_second:.1f} {event.unit}/s"
        case JobResult():
            return f"{event.job}: {_result(event)} after {event.seconds:.0f} s"
        case JobSpared():
            return f"{event.job}: left out: {event.why}"
        case Decided():
            return f"decided: {event.answer}"
        case Warned():
            return f"warning: {event.host + ': ' if event.host else ''}{event.message}"
        case Stopping():
            ending = "ending the running repeats" if event.now else STOPPING
            return f"stopping: {ending}. {event.hint}"
        case HostLost():
            return f"{event.host}: set aside ({event.status}): {event.cause}"
        case RunFinished():
            return _summary(event)


def _result(event: JobResult) -> str:
    if event.samples_per_second is not None:
        return f"{event.status}, {event.samples_per_second:.2f} {event.unit}/s"
    return f"{event.status}: {event.cause}" if event.cause else event.status


def _summary(event: RunFinished) -> str:
    parts = [f"{event.ok} ok", f"{event.failed} failed"] + ([f"{event.missing} not run"] if event.missing else [])
    if event.spared:
        parts.append(f"{event.spared} left out")
    saved = f" (about {clock(event.saved_seconds)} of machine time saved)" if event.saved_seconds else ""
    return f"run {event.run_id}: {', '.join(parts)}, {event.seconds:.0f} s{saved}"


def clock(seconds: float) -> str:
    """Write a duration as minutes and seconds, with hours if there are any."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"
