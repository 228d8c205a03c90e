"""What a GPU did while steps were taken, from the planes of TensorFlow's own profiler (`*.xplane.pb`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tests.benchmarks.gpu_evidence.figures import is_layout_kernel

PICO = 1e-12


@dataclass(frozen=True, kw_only=True)
class Event:
    """A kernel or a copy on one GPU.

    Attributes:
        start: Seconds from any common origin.
        seconds: Its duration.
    """

    name: str
    start: float
    seconds: float

    @property
    def is_copy(self) -> bool:
        """Whether it moves bytes and computes nothing."""
        return self.name.lower().startswith("mem")


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The sum of it.

    Attributes:
        seconds: From the first event's start to the last one's end.
        busy: Share of it in which at least one kernel ran or one copy was made.
        longest_gap: Seconds in which nothing did.
        kernels: How many ran.
        copies: How many copies were made, by their names.
        layout: Share of the kernels' time that only turned layouts.
        largest: Share of the kernels' time of the twenty largest names.
    """

    seconds: float
    busy: float
    longest_gap: float
    kernels: int
    copies: dict[str, int]
    layout: float
    largest: dict[str, float]


def sum_up(events: Iterable[Event]) -> Timeline | None:
    """Sum up the events of one GPU; None: there are none."""
    ordered = sorted(events, key=lambda event: event.start)
    if not ordered:
        return None
    busy, longest_gap, end = 0.0, 0.0, ordered[0].start
    for event in ordered:
        longest_gap = max(longest_gap, event.start - end)
        busy += max(0.0, event.start + event.seconds - max(event.start, end))
        end = max(end, event.start + event.seconds)
    by_name: dict[str, float] = defaultdict(float)
    copies: dict[str, int] = defaultdict(int)
    for event in ordered:
        if event.is_copy:
            copies[event.name] += 1
        else:
            by_name[event.name] += event.seconds
    total = sum(by_name.values()) or 1.0
    largest = sorted(by_name.items(), key=lambda item: -item[1])[:20]
    seconds = end - ordered[0].start
    return Timeline(
        seconds=seconds,
        busy=busy / seconds if seconds else 0.0,
        longest_gap=longest_gap,
        kernels=sum(not event.is_copy for event in ordered),
        copies=dict(copies),
        layout=sum(value for name, value in by_name.items() if is_layout_kernel(name)) / total,
        largest={name[:120]: value / total for name, value in largest},
    )


def gpu_events(space: object) -> list[Event]:
    """Return the events on the streams of the first GPU of an `XSpace`.

    Lines that the profiler derives (steps, modules, operations) repeat the streams' events and are left out.
    """
    for plane in space.planes:  # type: ignore[attr-defined]
        if plane.name.startswith("/device:GPU:0"):
            return [
                Event(
                    name=plane.event_metadata[event.metadata_id].name,
                    start=line.timestamp_ns * 1e-9 + event.offset_ps * PICO,
                    seconds=event.duration_ps * PICO,
                )
                for line in plane.lines
                if line.name.startswith("Stream")
                for event in line.events
            ]
    return []
