"""What is known of pods, from lists and watches."""

from __future__ import annotations

import time
from collections.abc import Iterator

from orchestrate.launchers.container import JOB_LABEL
from orchestrate.launchers.kubernetes import pods as module
from orchestrate.launchers.kubernetes.api import Change, Listing
from orchestrate.launchers.kubernetes.pods import PodView


def pod(job: str, version: str = "1") -> dict:
    return {"metadata": {"uid": f"uid of {job}", "labels": {JOB_LABEL: job}, "resourceVersion": version}}


class ScriptedCluster:
    """Answers one list, then the watches that it is given."""

    def __init__(self, listed: list[dict], *watches: list[list[Change]]) -> None:
        self._listed, self._watches = listed, list(watches)
        self.versions: list[str] = []

    def pods(self, _selector: str) -> Listing:
        return Listing(self._listed, "1")

    def watch_pods(self, _selector: str, version: str) -> Iterator[list[Change]]:
        self.versions.append(version)
        return iter(self._watches.pop(0))


def test_a_look_names_changed_jobs_and_goes_on_from_the_last_version():
    changes = [[Change("MODIFIED", pod("a", "2")), Change("BOOKMARK", pod("b", "3"))]]
    cluster = ScriptedCluster([pod("a"), pod("b")], changes, [])
    view = PodView(cluster, "")
    assert view.look() is None, "a list may concern everybody"
    seen = view.of_job("a"), view.of_job("b")
    assert view.look() == {"a"}
    assert view.has_news("a", seen[0]) and not view.has_news("b", seen[1])
    assert view.look() == view.look() == () and cluster.versions == ["1", "3"]


def test_what_is_heard_of_a_forgotten_pod_is_dropped():
    view = PodView(ScriptedCluster([pod("a")], [[Change("DELETED", pod("a", "2"))]]), "")
    view.look()
    view.forget("a")
    assert view.look() == set() and view.of_job("a") is None
    assert view.ask("a") is None


def test_watches_that_end_at_once_are_not_asked_for_in_a_hurry(monkeypatch):
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.1)
    view = PodView(ScriptedCluster([], [], [], []), "")
    began = time.monotonic()
    assert [view.look() for _ in range(4)] == [None, (), (), ()]
    assert time.monotonic() - began >= 0.3
