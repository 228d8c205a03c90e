"""What is known of a run's pods: listed once, then kept up to date by one watch for all lanes."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from orchestrate.errors import HostError
from orchestrate.launchers.container import JOB_LABEL
from orchestrate.launchers.kubernetes.api import Change, Cluster, Gone, Object
from orchestrate.launchers.kubernetes.pods import rank_of

PAUSE_SECONDS = 1.0
"""From a failed look to the next."""


@dataclass(frozen=True)
class Seen:
    """A pod as it was seen last; what is deleted stays known, because its end tells why."""

    pod: Object
    deleted: bool = False


class PodView:
    """The pods of a run.

    Args:
        cluster: Where they are.
        selector: What they have in common.
    """

    def __init__(self, cluster: Cluster, selector: str) -> None:
        self._cluster = cluster
        self._selector = selector
        self._lock = threading.Lock()
        self._pods: dict[str, Seen] = {}
        self._version: str | None = None
        self._changes: Iterator[list[Change]] | None = None

    def look(self) -> None:
        """Wait for the next change, at most as long as a watch lasts; the first look is a list.

        Raises:
            HostError: The server does not answer now.
        """
        try:
            if self._version is None:
                self._list()
                return
            if self._changes is None:
                self._changes = self._cluster.watch_pods(self._selector, self._version)
            changes = next(self._changes, None)
            if changes is None:
                self._changes = None
            for change in changes or ():
                self._take(change)
        except Gone:
            self._version = self._changes = None
        except HostError:
            self._changes = None
            time.sleep(PAUSE_SECONDS)
            raise

    def of_job(self, name: str) -> Seen | None:
        """Return the first pod of the first rank of a Job; None: it has none yet.

        A pod that replaces one that was lost is another measurement: it is not ours.
        """
        with self._lock:
            found = [seen for seen in self._pods.values() if _labels(seen.pod).get(JOB_LABEL) == name]
        return min(found, key=lambda seen: (rank_of(seen.pod), _stamp(seen.pod)), default=None)

    def all_of_job(self, name: str) -> list[Seen]:
        """Return all pods of a Job, by rank."""
        with self._lock:
            found = [seen for seen in self._pods.values() if _labels(seen.pod).get(JOB_LABEL) == name]
        return sorted(found, key=lambda seen: (rank_of(seen.pod), _stamp(seen.pod)))

    def ask(self, name: str) -> Seen | None:
        """Ask for the pods of a Job now: news of a Job may come before those of its pods.

        Raises:
            HostError: The server does not answer.
        """
        listing = self._cluster.pods(f"{self._selector},{JOB_LABEL}={name}")
        with self._lock:
            for pod in listing.items:
                self._pods.setdefault(_uid(pod), Seen(pod))
        return self.of_job(name)

    def forget(self, name: str) -> None:
        """Forget the pods of a Job."""
        with self._lock:
            for uid in [uid for uid, seen in self._pods.items() if _labels(seen.pod).get(JOB_LABEL) == name]:
                del self._pods[uid]

    def close(self) -> None:
        """End the watch; nobody may look any more."""
        changes, self._changes = self._changes, None
        if isinstance(changes, Generator):
            changes.close()  # else its connection would stay open until it is collected as garbage

    def _list(self) -> None:
        listing = self._cluster.pods(self._selector)
        present = {_uid(pod): Seen(pod) for pod in listing.items}
        with self._lock:
            gone = {uid: Seen(seen.pod, deleted=True) for uid, seen in self._pods.items() if uid not in present}
            self._pods = gone | present
        self._version = listing.version

    def _take(self, change: Change) -> None:
        version = (change.item.get("metadata") or {}).get("resourceVersion")
        if version:
            self._version = str(version)
        if change.kind in ("ADDED", "MODIFIED", "DELETED"):
            with self._lock:
                self._pods[_uid(change.item)] = Seen(change.item, deleted=change.kind == "DELETED")


def _uid(pod: Object) -> str:
    return str((pod.get("metadata") or {}).get("uid"))


def _stamp(pod: Object) -> str:
    return str((pod.get("metadata") or {}).get("creationTimestamp"))


def _labels(pod: Object) -> dict[str, str]:
    return (pod.get("metadata") or {}).get("labels") or {}
