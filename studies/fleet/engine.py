"""A fake Docker engine: the part of the HTTP API that launchers use, with benchmarks that only wait.

Responses have the format and about the size of those of dockerd 20.10, because parsing them is the controller's main
cost.

    python -m studies.fleet.engine --folder=DIR --engines=1000 --seconds=2

Serves each engine on its own unix socket and prints `ready` when all are listening. On SIGTERM it writes its counts to
`DIR/counts.json` and ends.
"""

import argparse
import asyncio
import functools
import gc
import json
import signal
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from results.schema import Case
from results.schema.progress import STATES, record_lines, state_line, step_line
from results.schema.record_json import to_json
from tests.real.faults.benchmark import case_from_flags
from tests.unit.orchestrate.fakes import ok_record

DIGEST = "sha256:" + "5a" * 32
IMAGE_ID = "sha256:" + "1d" * 32
LAYER_BYTES = 4_000_000
STEP_LINES = 10
"""Progress lines of a benchmark: one per ten of a hundred timed steps."""


@dataclass
class Container:
    """A container and its benchmark.

    Attributes:
        lines: Time and text of each line of output.
        changed: Set and replaced on each change.
        kill: Set to end the benchmark.
    """

    id: str
    name: str
    config: dict[str, Any]
    created: str
    status: str = "created"
    started: str = "0001-01-01T00:00:00Z"
    finished: str = "0001-01-01T00:00:00Z"
    exit_code: int = 0
    lines: list[tuple[datetime, str]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    kill: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def notify(self) -> None:
        """Wake all waiters."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class FakeEngine:
    """One engine.

    Args:
        name: Name of the machine.
        seconds: Average duration of a benchmark; varies by ±50 % with the container's name.
        counts: Number of requests by kind, shared by all engines.
    """

    def __init__(self, name: str, seconds: float, counts: Counter[str]) -> None:
        self._name = name
        self._seconds = seconds
        self._counts = counts
        self._images: set[str] = set()
        self._containers: dict[str, Container] = {}

    @property
    def names(self) -> list[str]:
        """Names of all containers, running or ended."""
        return list(self._containers)

    def application(self) -> web.Application:
        """Return the web application."""
        made = web.Application(middlewares=[self._count])
        made.router.add_get("/_ping", _ping)
        for method, path, handler in (
            ("GET", "info", self._info),
            ("GET", "distribution/{name:.+}/json", self._distribution),
            ("GET", "images/{name:.+}/json", self._inspect_image),
            ("POST", "images/create", self._pull),
            ("POST", "containers/create", self._create),
            ("POST", "containers/{name}/start", self._start),
            ("POST", "containers/{name}/stop", self._stop),
            ("GET", "containers/json", self._list),
            ("GET", "containers/{name}/json", self._inspect),
            ("GET", "containers/{name}/logs", self._logs),
            ("DELETE", "containers/{name}", self._remove),
        ):
            made.router.add_route(method, rf"/v1.{{minor:\d+}}/{path}", handler)
        return made

    @web.middleware
    async def _count(self, request: web.Request, handler: Any) -> web.StreamResponse:
        resource = request.match_info.route.resource
        place = None if resource is None else resource.canonical.removeprefix("/v1.{minor}/")
        self._counts["unknown" if place is None else f"{request.method} {place}"] += 1
        response: web.StreamResponse = await handler(request)
        return response

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response({**_INFO, "Name": self._name, "SystemTime": _stamp(datetime.now(UTC))})

    # -- images ------------------------------------------------------------------------------------------------

    async def _distribution(self, request: web.Request) -> web.Response:
        return web.json_response({"Descriptor": {"digest": DIGEST, "size": 1785}})

    async def _inspect_image(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self._images:
            return refusal(404, f"No such image: {name}")
        return web.json_response({"Id": IMAGE_ID, "RepoDigests": [name], "Size": 1_912_345_678, **_more(30)})

    async def _pull(self, request: web.Request) -> web.StreamResponse:
        name, tag = request.query["fromImage"], request.query.get("tag", "latest")
        reference = f"{name}@{tag}" if tag.startswith("sha256:") else f"{name}:{tag}"
        response = await _begin(request, "application/json")
        for message in _pull_messages(name, tag):
            await response.write(json.dumps(message).encode() + b"\r\n")
        self._images.add(name if "@" in name else reference)
        return response

    # -- containers --------------------------------------------------------------------------------------------

    async def _create(self, request: web.Request) -> web.Response:
        name, config = request.query["name"], await request.json()
        if name in self._containers:
            return refusal(409, f'Conflict. The container name "/{name}" is already in use')
        if config["Image"] not in self._images:
            return refusal(404, f"No such image: {config['Image']}")
        self._counts[f"created {name}"] += 1
        container = Container(f"{zlib.crc32(name.encode()):08x}" * 8, name, config, _stamp(datetime.now(UTC)))
        self._containers[name] = container
        return web.json_response({"Id": container.id, "Warnings": []}, status=201)

    async def _start(self, request: web.Request) -> web.Response:
        container = self._find(request)
        if container.status != "created":
            return web.Response(status=304)
        self._counts[f"started {container.name}"] += 1
        container.status, container.started = "running", _stamp(datetime.now(UTC))
        container.task = asyncio.get_running_loop().create_task(self._benchmark(container))
        return web.Response(status=204)

    async def _benchmark(self, container: Container) -> None:
        """Print the output of a benchmark, and end."""
        spread = 0.5 + zlib.crc32(container.name.encode()) % 1000 / 1000
        texts = _output(case_from_flags(_flags(container)))
        pause = self._seconds * spread / len(texts)
        for text in texts:
            container.lines.append((datetime.now(UTC), text))
            container.notify()
            try:
                await asyncio.wait_for(container.kill.wait(), pause)
            except TimeoutError:
                continue
            container.exit_code = 137
            break
        container.status, container.finished = "exited", _stamp(datetime.now(UTC))
        container.notify()

    async def _stop(self, request: web.Request) -> web.Response:
        container = self._find(request)
        if container.task is None or container.task.done():
            return web.Response(status=304)
        container.kill.set()
        await container.task
        return web.Response(status=204)

    async def _inspect(self, request: web.Request) -> web.Response:
        return web.json_response(_inspected(self._find(request)))

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        container = self._find(request)
        response = await _begin(request, "application/vnd.docker.raw-stream")
        since = datetime.fromtimestamp(float(request.query.get("since", "0")), UTC)
        follow, stamps = (_is_set(request, name) for name in ("follow", "timestamps"))
        reported = 0
        while True:
            changed, lines, ended = container.changed, container.lines[reported:], container.status != "running"
            reported += len(lines)
            for at, text in lines:
                if at >= since:
                    data = f"{_stamp(at)} {text}\n".encode() if stamps else f"{text}\n".encode()
                    await response.write(struct.pack(">BxxxL", 1, len(data)) + data)
            if ended or not follow:
                return response
            await changed.wait()

    async def _remove(self, request: web.Request) -> web.Response:
        container = self._find(request)
        if container.status == "running":
            if not _is_set(request, "force"):
                return refusal(409, f"You cannot remove a running container {container.id}")
            container.kill.set()
        del self._containers[container.name]
        return web.Response(status=204)

    async def _list(self, request: web.Request) -> web.Response:
        filters = json.loads(request.query.get("filters", "{}"))
        wanted = {tuple(text.split("=", 1)) for text in filters.get("label", [])}
        return web.json_response(
            [
                {"Id": c.id, "Names": [f"/{c.name}"], "Labels": c.config.get("Labels") or {}, "State": c.status}
                for c in self._containers.values()
                if (_is_set(request, "all") or c.status == "running")
                and wanted <= (c.config.get("Labels") or {}).items()
            ]
        )

    def _find(self, request: web.Request) -> Container:
        """Find the container in a request's path, by name or id."""
        name = request.match_info["name"]
        for container in self._containers.values():
            if name in (container.name, container.id):
                return container
        raise web.HTTPNotFound(text=json.dumps({"message": f"No such container: {name}"}))


async def _ping(request: web.Request) -> web.Response:
    return web.Response(text="OK", headers={"Api-Version": "1.41"})


async def _begin(request: web.Request, content_type: str) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": content_type})
    await response.prepare(request)
    return response


def refusal(status: int, message: str) -> web.Response:
    """Return an error response."""
    return web.json_response({"message": message}, status=status)


def _is_set(request: web.Request, name: str) -> bool:
    return request.query.get(name, "0").lower() in ("1", "true")


# -- output and record of a benchmark ----------------------------------------------------------------------------


def _flags(container: Container) -> dict[str, str]:
    """Return the flags of a container's command line."""
    named = (flag.removeprefix("--").partition("=") for flag in container.config["Cmd"])
    return {name: value for name, _, value in named}


@functools.cache
def _output(case: Case) -> tuple[str, ...]:
    record = to_json(ok_record(case, seconds=13.718281828)).encode()
    return (*_progress(case), *record_lines(record))


def _progress(case: Case) -> Iterator[str]:
    for state in STATES:
        yield state_line(state)
        if state == "timing":
            for step in range(1, STEP_LINES + 1):
                yield step_line(step * case.num_steps // STEP_LINES, 812.3, "images", 0.0812)


# -- responses ---------------------------------------------------------------------------------------------------


def _stamp(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S.%f}000Z"


def _inspected(container: Container) -> dict[str, Any]:
    return {
        "Id": container.id,
        "Created": container.created,
        "State": {
            "Status": container.status,
            "Running": container.status == "running",
            "OOMKilled": False,
            "ExitCode": container.exit_code,
            "Error": "",
            "StartedAt": container.started,
            "FinishedAt": container.finished,
        },
        "Name": f"/{container.name}",
        "HostConfig": {**container.config.get("HostConfig", {}), **_more(60)},
        "Config": {**container.config, "Tty": False},
    }


def _pull_messages(name: str, tag: str) -> Iterator[dict[str, Any]]:
    yield {"status": f"Pulling from {name}", "id": tag}
    for layer in ("a1b2c3d4e5f6", "b2c3d4e5f6a1", "c3d4e5f6a1b2"):
        yield {"status": "Pulling fs layer", "progressDetail": {}, "id": layer}
        for part in range(1, 5):
            detail = {"current": LAYER_BYTES * part // 4, "total": LAYER_BYTES}
            yield {"status": "Downloading", "progressDetail": detail, "progress": "[==>  ]", "id": layer}
        yield {"status": "Download complete", "progressDetail": {}, "id": layer}
        yield {"status": "Pull complete", "progressDetail": {}, "id": layer}
    yield {"status": f"Digest: {DIGEST}"}
    yield {"status": f"Status: Downloaded newer image for {name}@{tag}"}


def _more(number: int) -> dict[str, None]:
    """Return unused settings, to make responses as large as a real engine's."""
    return {f"UnusedSetting{index:09d}": None for index in range(number)}


_INFO: dict[str, Any] = {
    "KernelVersion": "6.1.0-21-amd64",
    "OperatingSystem": "Debian GNU/Linux 12 (bookworm)",
    "Architecture": "x86_64",
    "NCPU": 8,
    "MemTotal": 67_108_864_000,
    "DockerRootDir": "/var/lib/docker",
    "ServerVersion": "20.10.24",
    "Runtimes": {"runc": {"path": "runc"}, "io.containerd.runc.v2": {"path": "runc"}},
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=default", "name=cgroupns"],
    **_more(50),
}


def socket_path(folder: Path, number: int) -> Path:
    """Return the socket of an engine; the path of a unix socket is limited to 107 bytes."""
    return folder / f"{number:04d}.sock"


async def serve(folder: Path, engines: int, seconds: float) -> None:
    """Serve until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    counts: Counter[str] = Counter()
    fleet = [FakeEngine(f"node-{number:04d}", seconds, counts) for number in range(engines)]
    for number, engine in enumerate(fleet):
        runner = web.AppRunner(engine.application(), access_log=None)
        await runner.setup()
        await web.UnixSite(runner, socket_path(folder, number)).start()
    gc.freeze()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await ended.wait()
    left = [name for engine in fleet for name in engine.names]
    (folder / "counts.json").write_text(json.dumps({"left": left, "counts": counts}))


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--engines", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.folder, arguments.engines, arguments.seconds))


if __name__ == "__main__":
    main()
