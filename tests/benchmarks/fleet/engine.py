"""A stand-in for a Docker engine: the part of its HTTP API that launchers use, with a benchmark that only waits.

What it answers has the shape and about the size of what dockerd 20.10 answers, because reading it is what the
controller pays for. `test_fleet_simulation.py` holds it against a real engine.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import struct
import tarfile
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from results.runs.reading import from_json
from results.schema import XLA, BatchNorm, Case, Data, Device, Precision
from results.schema.progress import STATES, state_line, step_line
from results.schema.record_json import to_json
from tests.benchmarks.fleet.http import Request, Response
from tests.unit.orchestrate.fakes import ok_record

DIGEST = "sha256:" + "5a" * 32
IMAGE_ID = "sha256:" + "1d" * 32
LAYER_BYTES = 4_000_000
STEP_LINES = 10
"""Lines of progress that a benchmark prints: one every ten of a hundred timed steps."""


@dataclass
class Container:
    """A container and its benchmark.

    Attributes:
        lines: Time and text of each line of output.
        changed: Set, and replaced by a fresh one, whenever something happens.
        kill: Set: the benchmark is to end now.
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
        """Wake whoever follows."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class StandInEngine:
    """One engine.

    Args:
        name: Of the machine.
        seconds: How long a benchmark takes on average; a container's name decides between half and one and a half.
        counts: Counts what is asked, over all engines that share it.
    """

    def __init__(self, name: str, seconds: float, counts: Counter[str]) -> None:
        self._name = name
        self._seconds = seconds
        self._counts = counts
        self._images: set[str] = set()
        self._containers: dict[str, Container] = {}

    @property
    def names(self) -> list[str]:
        """Containers that are there, running or ended."""
        return list(self._containers)

    async def handle(self, request: Request, response: Response) -> None:
        """Answer one request."""
        first, *rest = request.path.strip("/").split("/")
        route = f"{request.method} {first}" + (f" {rest[-1]}" if rest else "")
        if first == "containers" and request.method == "DELETE":
            route = "DELETE containers"
        if first == "containers" and rest == ["json"]:
            route = "list"
        self._counts[route] += 1
        answer = self._routes().get(route)
        if answer is None:
            self._counts["unknown"] += 1
            response.refuse(501, f"the stand-in does not know {request.method} {request.path}")
            return
        waiting = answer(request, response)
        if waiting is not None:
            await waiting

    def _routes(self) -> dict[str, Callable[[Request, Response], Awaitable[None] | None]]:
        return {
            "HEAD _ping": lambda request, response: response.send(200, b"", "text/plain"),  # by Docker's own CLI
            "GET _ping": lambda request, response: response.send(200, b"OK", "text/plain"),
            "GET version": lambda request, response: response.send(200, _VERSION),
            "GET info": lambda request, response: response.send_json(_info(self._name)),
            "GET distribution json": lambda request, response: response.send(200, _DISTRIBUTION),
            "GET images json": self._inspect_image,
            "POST images create": self._pull,
            "POST containers create": self._create,
            "POST containers start": self._start,
            "POST containers stop": self._stop,
            "POST containers wait": self._wait,
            "GET containers json": self._inspect,
            "GET containers logs": self._logs,
            "GET containers archive": self._archive,
            "DELETE containers": self._remove,
            "list": self._list,
        }

    # -- images ------------------------------------------------------------------------------------------------

    def _inspect_image(self, request: Request, response: Response) -> None:
        name = request.path.removeprefix("/images/").removesuffix("/json")
        if name not in self._images:
            response.refuse(404, f"No such image: {name}")
            return
        response.send_json({**_IMAGE, "RepoDigests": [name]})

    async def _pull(self, request: Request, response: Response) -> None:
        name, tag = request.query["fromImage"], request.query.get("tag", "latest")
        reference = f"{name}@{tag}" if tag.startswith("sha256:") else f"{name}:{tag}"
        response.begin("application/json")
        for message in _pull_messages(name, tag):
            response.chunk(json.dumps(message).encode() + b"\r\n")
            await asyncio.sleep(0)
        self._images.add(name if "@" in name else reference)
        response.end()

    # -- containers --------------------------------------------------------------------------------------------

    def _create(self, request: Request, response: Response) -> None:
        name = request.query["name"]
        if name in self._containers:
            theirs = self._containers[name].id
            response.refuse(
                409, f'Conflict. The container name "/{name}" is already in use by container "{theirs}". You have to'
                " remove (or rename) that container to be able to reuse that name.",
            )  # fmt: skip
            return
        config = json.loads(request.body)
        if config["Image"] not in self._images:
            response.refuse(404, f"No such image: {config['Image']}")
            return
        self._counts[f"created {name}"] += 1
        number = zlib.crc32(name.encode())
        container = Container(f"{number:08x}" * 8, name, config, _stamp(datetime.now(UTC)))
        self._containers[name] = container
        response.send_json({"Id": container.id, "Warnings": []}, 201)

    def _start(self, request: Request, response: Response) -> None:
        container = self._find(request, response)
        if container is None:
            return
        if container.status != "created":
            response.send(304)
            return
        self._counts[f"started {container.name}"] += 1
        container.status, container.started = "running", _stamp(datetime.now(UTC))
        container.task = asyncio.get_running_loop().create_task(self._benchmark(container))
        response.send(204)

    async def _benchmark(self, container: Container) -> None:
        """Print what a benchmark prints, and end."""
        spread = 0.5 + zlib.crc32(container.name.encode()) % 1000 / 1000
        texts = list(_output(_case(container)))
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

    async def _stop(self, request: Request, response: Response) -> None:
        container = self._find(request, response)
        if container is None:
            return
        if container.task is None or container.task.done():
            response.send(304)
            return
        container.kill.set()
        await container.task
        response.send(204)

    async def _wait(self, request: Request, response: Response) -> None:
        container = self._find(request, response)
        if container is not None:
            if container.task is not None:
                await asyncio.wait([container.task])
            response.send_json({"StatusCode": container.exit_code, "Error": None})

    def _inspect(self, request: Request, response: Response) -> None:
        container = self._find(request, response)
        if container is not None:
            response.send_json(_inspected(container))

    async def _logs(self, request: Request, response: Response) -> None:
        container = self._find(request, response)
        if container is None:
            return
        response.begin("application/vnd.docker.raw-stream")
        since = datetime.fromtimestamp(float(request.query.get("since", "0")), UTC)
        follow = request.query.get("follow", "0").lower() in ("1", "true")
        stamps = request.query.get("timestamps", "0").lower() in ("1", "true")
        reported = 0
        while True:
            changed, lines, ended = container.changed, container.lines[reported:], container.status != "running"
            reported += len(lines)
            for at, text in lines:
                if at >= since:
                    data = f"{_stamp(at)} {text}\n".encode() if stamps else f"{text}\n".encode()
                    response.chunk(struct.pack(">BxxxL", 1, len(data)) + data)
            if ended or not follow:
                break
            await changed.wait()
        response.end()

    def _archive(self, request: Request, response: Response) -> None:
        container = self._find(request, response)
        if container is None:
            return
        path = request.query["path"]
        if container.status != "exited" or container.exit_code != 0 or path != _output_path(container):
            response.refuse(404, f"Could not find the file {path} in container {container.name}")
            return
        archive = _archive_of(_case(container))
        stat = {"name": "record.json", "size": len(archive), "mode": 420, "mtime": container.finished, "linkTarget": ""}
        reported = base64.b64encode(json.dumps(stat).encode()).decode()
        response.send(200, archive, "application/x-tar", X_Docker_Container_Path_Stat=reported)

    def _remove(self, request: Request, response: Response) -> None:
        container = self._find(request, response)
        if container is None:
            return
        if container.status == "running":
            if request.query.get("force", "0").lower() not in ("1", "true"):
                response.refuse(409, f"You cannot remove a running container {container.id}. Stop the container first")
                return
            container.kill.set()
        del self._containers[container.name]
        response.send(204)

    def _list(self, request: Request, response: Response) -> None:
        filters = json.loads(request.query.get("filters", "{}"))
        everything = request.query.get("all", "0").lower() in ("1", "true")
        wanted = dict(text.partition("=")[::2] for text in filters.get("label", []))
        response.send_json(
            [
                _listed(container)
                for container in self._containers.values()
                if (everything or container.status == "running") and _carries(container, wanted)
            ]
        )

    def _find(self, request: Request, response: Response) -> Container | None:
        """Find the container that a path names, by name or id; refuse when there is none."""
        name = request.path.split("/")[2]
        container = self._containers.get(name)
        if container is None:
            container = next((c for c in self._containers.values() if c.id == name), None)
        if container is None:
            response.refuse(404, f"No such container: {name}")
        return container


# -- what a benchmark prints and leaves --------------------------------------------------------------------------


def _case(container: Container) -> Case:
    """Read the case back from the command line, as `python -m tfbench` does."""
    return _parse_case(tuple(container.config["Cmd"]))


_cases: dict[tuple[str, ...], Case] = {}
_archives: dict[Case, bytes] = {}


def _parse_case(command: tuple[str, ...]) -> Case:
    if command not in _cases:
        flags = dict(flag.removeprefix("--").split("=", 1) for flag in command)
        size = flags.get("image_size")
        _cases[command] = Case(
            model=flags["model"],
            precision=Precision(flags["precision"]),
            batch_per_gpu=int(flags["batch_size"]),
            num_gpus=int(flags["num_gpus"]),
            xla=XLA(flags["xla"]),
            mode=flags["mode"],
            data=Data(flags["data"]),
            device=Device(flags["device"]),
            batch_norm=BatchNorm(flags["batch_norm"]),
            image_size=None if size is None else int(size),
            warmup_steps=int(flags["warmup_steps"]),
            num_steps=int(flags["num_steps"]),
        )
    return _cases[command]


def _output_path(container: Container) -> str:
    return next(flag.partition("=")[2] for flag in container.config["Cmd"] if flag.startswith("--output="))


def _output(case: Case) -> Iterator[str]:
    for state in STATES:
        yield state_line(state)
        if state == "timing":
            for step in range(1, STEP_LINES + 1):
                yield step_line(step * case.num_steps // STEP_LINES, 812.3, "images", 0.0812)


def _archive_of(case: Case) -> bytes:
    """Return a tar archive with a record of `case` that the schema accepts."""
    if case not in _archives:
        record = to_json(ok_record(case, seconds=13.718281828)).encode()
        from_json(record)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            member = tarfile.TarInfo("record.json")
            member.size = len(record)
            tar.addfile(member, io.BytesIO(record))
        _archives[case] = buffer.getvalue()
    return _archives[case]


# -- the engine's words ------------------------------------------------------------------------------------------


def _stamp(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S.%f}000Z"


def _carries(container: Container, wanted: dict[str, str]) -> bool:
    labels = container.config.get("Labels") or {}
    return all(labels.get(key) == value for key, value in wanted.items())


def _listed(container: Container) -> dict[str, Any]:
    return {
        "Id": container.id,
        "Names": [f"/{container.name}"],
        "Image": container.config["Image"],
        "ImageID": IMAGE_ID,
        "Labels": container.config.get("Labels") or {},
        "State": container.status,
        "Status": container.status,
        "Mounts": [],
    }


def _inspected(container: Container) -> dict[str, Any]:
    running = container.status == "running"
    return {
        "Id": container.id,
        "Created": container.created,
        "Path": "python3.11",
        "Args": ["-m", "tfbench", *container.config.get("Cmd", [])],
        "State": {
            "Status": container.status,
            "Running": running,
            "Paused": False,
            "Restarting": False,
            "OOMKilled": False,
            "Dead": False,
            "Pid": 4242 if running else 0,
            "ExitCode": container.exit_code,
            "Error": "",
            "StartedAt": container.started,
            "FinishedAt": container.finished,
        },
        "Image": IMAGE_ID,
        "Name": f"/{container.name}",
        "RestartCount": 0,
        "Driver": "overlay2",
        "Platform": "linux",
        "HostConfig": {**_HOST_CONFIG, **container.config.get("HostConfig", {})},
        "GraphDriver": _GRAPH_DRIVER,
        "Mounts": [],
        "Config": {**container.config, "Tty": False, "Hostname": container.id[:12], "WorkingDir": "/opt/tfbench"},
        "NetworkSettings": _NETWORK,
    }


def _info(name: str) -> dict[str, Any]:
    return {**_INFO, "Name": name, "SystemTime": _stamp(datetime.now(UTC))}


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


_VERSION = json.dumps(
    {
        "Platform": {"Name": ""},
        "Components": [{"Name": "Engine", "Version": "20.10.24", "Details": {"ApiVersion": "1.41"}}],
        "Version": "20.10.24",
        "ApiVersion": "1.41",
        "MinAPIVersion": "1.12",
        "GitCommit": "5d6db84",
        "GoVersion": "go1.19.8",
        "Os": "linux",
        "Arch": "amd64",
        "KernelVersion": "6.1.0",
    }
).encode()

_DISTRIBUTION = json.dumps(
    {
        "Descriptor": {
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "digest": DIGEST,
            "size": 1785,
        },
        "Platforms": [{"architecture": "amd64", "os": "linux"}],
    }
).encode()

_INFO: dict[str, Any] = {
    "ID": "AAAA:BBBB:CCCC:DDDD:EEEE:FFFF:GGGG:HHHH:IIII:JJJJ:KKKK:LLLL",
    "Containers": 0,
    "Images": 3,
    "Driver": "overlay2",
    "DriverStatus": [["Backing Filesystem", "extfs"], ["Supports d_type", "true"], ["Native Overlay Diff", "true"]],
    "Plugins": {"Volume": ["local"], "Network": ["bridge", "host", "null"], "Log": ["json-file", "local"]},
    "MemoryLimit": True,
    "SwapLimit": True,
    "CpuCfsQuota": True,
    "PidsLimit": True,
    "IPv4Forwarding": True,
    "OomKillDisable": True,
    "LoggingDriver": "json-file",
    "CgroupDriver": "systemd",
    "CgroupVersion": "2",
    "KernelVersion": "6.1.0-21-amd64",
    "OperatingSystem": "Debian GNU/Linux 12 (bookworm)",
    "OSVersion": "12",
    "OSType": "linux",
    "Architecture": "x86_64",
    "IndexServerAddress": "https://index.docker.io/v1/",
    "RegistryConfig": {"InsecureRegistryCIDRs": ["127.0.0.0/8"], "IndexConfigs": {}, "Mirrors": []},
    "NCPU": 8,
    "MemTotal": 67_108_864_000,
    "DockerRootDir": "/var/lib/docker",
    "Labels": [],
    "ExperimentalBuild": False,
    "ServerVersion": "20.10.24",
    "Runtimes": {"runc": {"path": "runc"}, "io.containerd.runc.v2": {"path": "runc"}},
    "DefaultRuntime": "runc",
    "Swarm": {"NodeID": "", "LocalNodeState": "inactive"},
    "LiveRestoreEnabled": False,
    "InitBinary": "docker-init",
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=default", "name=cgroupns"],
    "Warnings": [],
}

_IMAGE: dict[str, Any] = {
    "Id": IMAGE_ID,
    "RepoTags": [],
    "Created": "2026-11-01T08:00:00Z",
    "Size": 1_912_345_678,
    "VirtualSize": 1_912_345_678,
    "Architecture": "amd64",
    "Os": "linux",
    "Config": {"Env": ["PATH=/usr/bin"], "Labels": {"tfbench.variant": "cpu"}, "Entrypoint": ["python3.11"]},
    "RootFS": {"Type": "layers", "Layers": ["sha256:" + digit * 64 for digit in "012345"]},
    "GraphDriver": {"Name": "overlay2", "Data": {}},
}

_HOST_CONFIG: dict[str, Any] = {
    "Binds": None,
    "ContainerIDFile": "",
    "PortBindings": None,
    "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
    "AutoRemove": False,
    "VolumesFrom": None,
    "CapAdd": None,
    "CgroupnsMode": "private",
    "Dns": [],
    "DnsOptions": [],
    "DnsSearch": [],
    "ExtraHosts": None,
    "IpcMode": "private",
    "Links": None,
    "OomScoreAdj": 0,
    "Privileged": False,
    "PublishAllPorts": False,
    "Runtime": "runc",
    "CpuShares": 0,
    "Memory": 0,
    "MaskedPaths": ["/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
    "ReadonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
}

_GRAPH_DRIVER: dict[str, Any] = {
    "Name": "overlay2",
    "Data": {
        key: f"/var/lib/docker/overlay2/{'0123456789abcdef' * 4}/{key}"
        for key in ("LowerDir", "MergedDir", "UpperDir", "WorkDir")
    },
}

_NETWORK: dict[str, Any] = {
    "Bridge": "",
    "SandboxID": "ab" * 32,
    "Ports": {},
    "SandboxKey": "/var/run/docker/netns/abababababab",
    "Gateway": "",
    "IPAddress": "",
    "MacAddress": "",
    "Networks": {"none": {"NetworkID": "cd" * 32, "EndpointID": "", "Gateway": "", "IPAddress": "", "IPPrefixLen": 0}},
}
