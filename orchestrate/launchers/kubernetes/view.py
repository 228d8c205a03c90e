"""What is known of a run's pods: listed once, then kept up to date by one watch for all lanes."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass

from orchestrate.errors import HostError
from orchestrate.launchers.container import JOB_LABEL
from orchestrate.launchers.kubernetes.api import Change, Cluster, Gone, Object
from orchestrate.launchers.kubernetes.pods import rank_of

PAUSE_SECONDS = 1.0
"""From a look that failed, or a watch that ended at once, to the next."""


@dataclass(frozen=True)
class Seen:
    """A pod as it was seen last; what is deleted stays known, because its end explains why."""

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
        self._pods: dict[str, dict[str, Seen]] = {}  # by Job, because every lane asks for its own after every change
        self._forgotten: set[str] = set()
        self._version: str | None = None
        self._began = 0.0
        self._changes: Iterator[list[Change]] | None = None

    def look(self) -> Collection[str] | None:
        """Wait for the next change, at most as long as a watch lasts; the first look is a list.

        Returns:
            The names of the Jobs whose pods changed; None: those of any may have.

        Raises:
            HostError: The server does not answer now.
        """
        try:
            if self._version is None:
                self._list()
                return None
            if self._changes is None:
                self._changes, self._began = self._cluster.watch_pods(self._selector, self._version), time.monotonic()
            changes = next(self._changes, None)
        except Gone:
            self._version = self._changes = None
            time.sleep(PAUSE_SECONDS)
            return ()
        except HostError:
            self._changes = None
            time.sleep(PAUSE_SECONDS)
            raise
        if changes is None:
            self._changes = None
            if time.monotonic() - self._began < PAUSE_SECONDS:
                time.sleep(PAUSE_SECONDS)  # something on the way ends watches at once
            return ()
        return {name for change in changes if (name := self._take(change)) is not None}

    def of_job(self, name: str) -> Seen | None:
        """Return the first pod of the first rank of a Job; None: it has none yet.

        A pod that replaces one that was lost is another measurement: it is not ours.
        """
        return next(iter(self.all_of_job(name)), None)

    def has_news(self, name: str, seen: Seen | None) -> bool:
        """Return whether a Job's pod is not any more as it was seen."""
        return self.of_job(name) is not seen

    def all_of_job(self, name: str) -> list[Seen]:
        """Return all pods of a Job, by rank."""
        with self._lock:
            found = list(self._pods.get(name, {}).values())
        return sorted(found, key=lambda seen: (rank_of(seen.pod), _stamp(seen.pod)))

    def ask(self, name: str) -> Seen | None:
        """Ask for the pods of a Job now: news of a Job may come before those of its pods.

        Raises:
            HostError: The server does not answer.
        """
        listing = self._cluster.pods(f"{self._selector},{JOB_LABEL}={name}")
        with self._lock:
            for pod in listing.items:
                if _uid(pod) not in self._forgotten:
                    self._pods.setdefault(_job(pod), {}).setdefault(_uid(pod), Seen(pod))
        return self.of_job(name)

    def forget(self, name: str) -> None:
        """Forget the pods of a Job; what is still heard of them, mostly that they are gone, is dropped."""
        with self._lock:
            self._forgotten.update(self._pods.pop(name, ()))

    def close(self) -> None:
        """End the watch; nobody may look any more."""
        changes, self._changes = self._changes, None
        if isinstance(changes, Generator):
            changes.close()  # else its connection would stay open until it is collected as garbage

    def _list(self) -> None:
        listing = self._cluster.pods(self._selector)
        present = {_uid(pod) for pod in listing.items}
        with self._lock:
            for pods in self._pods.values():
                pods |= {uid: Seen(seen.pod, deleted=True) for uid, seen in pods.items() if uid not in present}
            for pod in listing.items:
                if _uid(pod) not in self._forgotten:
                    self._pods.setdefault(_job(pod), {})[_uid(pod)] = Seen(pod)
        self._version = listing.version

    def _take(self, change: Change) -> str | None:
        """Return the Job whose pod changed; None: none that is followed."""
        version = (change.item.get("metadata") or {}).get("resourceVersion")
        if version:
            self._version = str(version)
        if change.kind not in ("ADDED", "MODIFIED", "DELETED"):
            return None
        name, uid = _job(change.item), _uid(change.item)
        with self._lock:
            if uid in self._forgotten:
                return None
            self._pods.setdefault(name, {})[uid] = Seen(change.item, deleted=change.kind == "DELETED")
        return name


def _uid(pod: Object) -> str:
    return str((pod.get("metadata") or {}).get("uid"))


def _stamp(pod: Object) -> str:
    return str((pod.get("metadata") or {}).get("creationTimestamp"))


def _job(pod: Object) -> str:
    """Return the name of the Job that a pod is of."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    return str(labels.get(JOB_LABEL))
