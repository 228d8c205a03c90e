"""The agent on a host without Docker. It is sent at the beginning of a connection and never installed.

It uses only the standard library of Python 3.8, to run with any Python of the host. It prints a mark, which separates
its answers from the output of login profiles. Then it serves requests until the connection ends: each is a line of JSON
with an id, followed by an optional payload, and each runs in a process of its own, so that none waits for another.
Answers are lines of JSON with the id of their request; the last has `end`.

All files are below one folder, `~/.tfbench`:

    runner/DIGEST/           tfbench and the contract, 0.1 MB
    environments/DIGEST/     the locked packages of an image variant
    jobs/RUN/JOB/            a repeat: state.json, output.log, record.json, exit.json

The folder of a repeat is its lock. A guardian process in its own session starts the benchmark, bounds its output and
writes `exit.json` at its end, so that nothing is lost if the connection breaks or the controller dies.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import errno
import fcntl
import io
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Dict, NoReturn  # noqa: UP035 (Python 3.8)

Request = Dict[str, Any]  # noqa: UP006 (Python 3.8)

POLL_SECONDS = 0.2
END_OF_OUTPUT_SECONDS = 5.0
STARTED = "started"
MAX_FILE_BYTES = 256 << 20
"""Limit for each file that a benchmark writes, as in a container: it must not fill the host's disk."""

XLA_TOOLCHAIN = "cuda_sdk_lib"
"""Folder below the working directory that XLA searches first for ptxas and libdevice: the default of
`xla_gpu_cuda_data_dir`. With it, XLA compiles as in an image, whatever CUDA the host has at /usr/local/cuda."""

EXIT_BYTES = 4096
"""Space reserved for `exit.json` in case the benchmark fills the disk."""

MAX_ANSWER_BYTES = 256 * 1024
CHUNK_BYTES = 64 * 1024

LIMITS: Dict[str, Any] = {}  # noqa: UP006 (Python 3.8)
"""The controller's limits, which come with the connection: `channel.LIMITS`."""

CHILDREN: list[subprocess.Popen[bytes]] = []
"""Processes that are killed with their request."""

PIP_SETTINGS = (
    *("index-url", "extra-index-url", "no-index", "find-links", "trusted-host", "proxy", "cert", "client-cert"),
    *("timeout", "retries", "keyring-provider"),
)
"""Settings of pip that are kept: how to reach packages. Others would change what is installed, and where."""

QUERY_PYTHON = """\
import importlib.metadata, importlib.util, json, platform, re, sys
try:
    from pip._vendor.packaging.tags import sys_tags
    libc = {match[1] for tag in sys_tags() if (match := re.match(r"(manylinux_[0-9]+_[0-9]+|musllinux)", tag.platform))}
except ImportError:
    libc = set()
def version(*names):
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
json.dump({"path": sys.executable, "version": platform.python_version(),
           "pip": importlib.util.find_spec("pip") is not None,
           "machine": platform.machine(), "libc": sorted(libc),
           "tensorflow": version("tensorflow", "tensorflow-cpu"), "keras": version("keras")}, sys.stdout)
"""


class RequestFailed(Exception):
    """A request failed.

    Args:
        kind: `failed` or `lost`.
        cause: The reason in words.
    """

    def __init__(self, kind: str, cause: str) -> None:
        super().__init__(cause)
        self.kind = kind


class LineWriter:
    """Writes lines of several processes to standard output, one after another.

    A pipe with one byte is the lock: whoever has read the byte may write.
    """

    def __init__(self) -> None:
        self._take, self._give = os.pipe()
        os.write(self._give, b".")

    def write(self, **document: Any) -> None:  # noqa: ANN401 (any JSON)
        """Write a line.

        Raises:
            BrokenPipeError: The connection has ended.
        """
        data = memoryview(json.dumps(document).encode() + b"\n")
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # a line is whole, and the lock is given back
        try:
            os.read(self._take, 1)
            try:
                while data:
                    data = data[os.write(1, data) :]
            finally:
                os.write(self._give, b".")
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a file written by `write_json`; None: missing or damaged."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a file atomically."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    with part.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


# ---- the host: Pythons, an image, facts


def hello(request: Request, reply: Callable[..., None]) -> None:
    """Report the host's Pythons, its tfbench image, what is installed, free space and time."""
    root = Path(request["root"])
    root.mkdir(parents=True, exist_ok=True)
    pythons: dict[str, dict[str, Any]] = {}
    for name in [request["python"]] if request["python"] else request["pythons"]:
        path = shutil.which(Path(name).expanduser() if name.startswith("~") else name)
        if path is None or (key := python_key(path)) in pythons:
            continue
        if (found := query_python(path)) is not None:
            pythons[key] = {**found, "path": path}
    reply(
        pythons=list(pythons.values()),
        image=read_json(Path(request["image_file"])),
        runners=folders(root / "runner"),
        environments=folders(root / "environments"),
        free_bytes=shutil.disk_usage(root).free,
        now=time.time(),
        root=str(root),
    )


def python_key(path: str) -> str:
    """Return a key that is equal for paths of the same interpreter; each virtual environment counts as its own."""
    return path if Path(path).parent.with_name("pyvenv.cfg").exists() else os.path.realpath(path)


def query_python(path: str) -> dict[str, Any] | None:
    """Return an interpreter's version and packages; None: it cannot be started."""
    try:
        done = subprocess.run([path, "-c", QUERY_PYTHON], capture_output=True, timeout=60, check=True)
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return found if isinstance(found, dict) else None


def folders(parent: Path) -> list[str]:
    """List complete folders; the names of partial ones and locks contain a dot."""
    return sorted(path.name for path in parent.glob("*") if "." not in path.name)


def unpack(request: Request, reply: Callable[..., None]) -> None:
    """Unpack the runner, once per version."""
    target = runner_folder(request)
    part = target.with_name(f"{target.name}.part-{os.getpid()}")
    part.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(request["payload"])) as tar:
            tar.extractall(part)
        if not target.is_dir():  # otherwise another controller has unpacked the same files
            part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    reply(runner=str(target))


def runner_folder(request: Request) -> Path:
    """Return the folder of the runner."""
    return Path(request["root"], "runner", request["digest"])


def probe(request: Request, reply: Callable[..., None]) -> None:
    """Run the probe and send its output."""
    try:
        done = subprocess.run(
            [request["python"], "-m", "tfbench.probe"],
            cwd="/",  # a project in the current folder may have a package `results`
            env=with_login(os.environ, request["environment"]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=request["limit_seconds"],
            check=True,
        )
    except subprocess.CalledProcessError as error:
        cause = f"the probe ended with exit code {error.returncode}: {last_line(error.stderr)}"
        raise RequestFailed("failed", cause) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RequestFailed("failed", f"the probe: {error}") from error
    if len(done.stdout) > MAX_ANSWER_BYTES:
        raise RequestFailed("failed", f"the probe printed more than {MAX_ANSWER_BYTES} bytes")
    reply(probe=done.stdout.decode("utf-8", "replace"))


def with_login(login: Mapping[str, str], ours: dict[str, str]) -> dict[str, str]:
    """Return a login's variables with ours; of libraries, the login's follow ours: they may be the driver's."""
    paths = [path for variables in (ours, login) if (path := variables.get("LD_LIBRARY_PATH"))]
    return {**login, **ours, **({"LD_LIBRARY_PATH": ":".join(paths)} if paths else {})}


def last_line(output: bytes) -> str:
    """Return the last non-empty line of an output."""
    lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][-500:] if lines else "it printed nothing"


# ---- the environment: the locked packages of a variant


def install(request: Request, reply: Callable[..., None]) -> None:
    """Install locked packages into a folder named by the digest of the lock and the Python version."""
    target = Path(request["root"], "environments", request["digest"])
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w", encoding="utf-8") as lock:
        while not locked(lock):
            reply(waiting="another controller makes the same environment")
            time.sleep(LIMITS["heartbeat_seconds"])
        if not target.is_dir():
            make_environment(request, target, reply)
    reply(site=str(target / "site"))


def locked(file: IO[str]) -> bool:
    """Try to lock a file; False: another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def make_environment(request: Request, target: Path, reply: Callable[..., None]) -> None:
    """Install into a temporary folder, then rename it to `target`."""
    for old in target.parent.glob(f"{target.name}.part-*"):
        shutil.rmtree(old, ignore_errors=True)  # left by a dead process, because we hold the lock
    part = target.with_name(f"{target.name}.part-{os.getpid()}")
    part.mkdir()
    requirements, log = part / "requirements.txt", part / "pip.log"
    requirements.write_bytes(request["payload"])
    options = "--require-hashes --only-binary=:all: --no-deps --no-cache-dir --disable-pip-version-check --quiet"
    where = ["--requirement", str(requirements), "--target", str(part / "site")]
    environment = {**pip_environment(request["python"]), "TMPDIR": str(part)}  # /tmp may be too small
    with log.open("wb") as output:
        child = subprocess.Popen(
            [request["python"], "-m", "pip", "install", *options.split(), *where],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    CHILDREN.append(child)
    free = shutil.disk_usage(part).free
    while not wait_for(lambda: child.poll() is not None, 2.0):
        reply(installed_bytes=max(0, free - shutil.disk_usage(part).free))
    if child.returncode != 0:
        cause = last_line(log.read_bytes()[-10_000:])
        shutil.rmtree(part, ignore_errors=True)
        raise RequestFailed(
            "failed", f"pip could not install the locked packages (exit code {child.returncode}): {cause}"
        )
    part.rename(target)


def pip_environment(python: str) -> dict[str, str]:
    """Return variables with which pip keeps the host's index, proxy and certificates, and no other setting."""
    done = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True, timeout=60)
    settings = {}
    for line in done.stdout.splitlines():  # sections that override others come last
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in ("global", "install", ":env:") and key in PIP_SETTINGS:
            settings[key] = " ".join(ast.literal_eval(value).split())
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
        **{f"PIP_{key.upper().replace('-', '_')}": value for key, value in settings.items()},
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_ROOT_USER_ACTION": "ignore",
    }


# ---- repeats


def job_folder(request: Request) -> Path:
    """Return the folder of a repeat."""
    return Path(request["root"], "jobs", request["run"], request["job"])


def start(request: Request, reply: Callable[..., None]) -> None:
    """Start a repeat, or reattach to the existing one of this name."""
    folder = job_folder(request)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        clear_dead(folder)
        reattached = (folder / "state.json").exists()
        if not reattached:
            machine = os.open(request["machine"], os.O_RDONLY)
            fcntl.flock(machine, fcntl.LOCK_EX)  # other runs wait until this one is seen to measure, or has failed to
            try:
                other = run_that_measures(request)
                if other is not None:
                    reply(busy=other)
                    return
                launch(request, folder)
            finally:
                os.close(machine)
    reply(reattached=reattached)


def run_that_measures(request: Request) -> str | None:
    """Return the id of another run whose benchmark runs on this machine, or None."""
    for state in Path(request["machine"]).glob(request["states"]):
        run = state.parent.parent.name
        if run != request["run"] and is_alive(read_json(state) or {}):
            return run
    return None


def clear_dead(folder: Path) -> None:
    """Remove the files of a repeat that neither runs nor has a result, e.g. after a restart of the host."""
    state = state_of(folder) or {}
    results = ("exit.json", "record.json")
    if not is_alive(state) and not any((folder / name).exists() for name in results):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()


def launch(request: Request, folder: Path) -> None:
    """Start a guardian and wait until the benchmark runs or has failed to start."""
    answer, write_end = os.pipe()
    if os.fork() == 0:
        guard(request, folder, write_end)
    os.close(write_end)
    os.wait()
    with os.fdopen(answer, encoding="utf-8") as pipe:
        if (problem := pipe.read()) != STARTED:
            raise RequestFailed("failed", problem or "the benchmark's guardian ended before the benchmark had started")


def guard(request: Request, folder: Path, answer: int) -> NoReturn:
    """Detach into a new session, run the benchmark to its end and write how it ended."""
    try:
        os.setsid()
        if os.fork() == 0:
            os.dup2(answer, 3)
            os.closerange(4, 256)  # must hold neither the connection nor the lock
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(nothing, number)
            os.close(nothing)
            run_guarded(request, folder, 3)
    finally:
        os._exit(0)


def run_guarded(request: Request, folder: Path, answer: int) -> None:
    """Run the benchmark to its end; `answer` is the pipe that `launch` reads."""
    try:
        killed_before = killed_for_memory()
        child = start_child(request, folder)
    except OSError as error:
        for name in ("state.json", "exit.part"):
            with contextlib.suppress(OSError):
                (folder / name).unlink()
        os.write(answer, f"{request['command'][0]} could not be started: {describe(error)}".encode()[:1000])
        return
    os.write(answer, STARTED.encode())
    os.close(answer)
    problem = keep_output_until_end(child, folder / "output.log")
    code = child.returncode
    out_of_memory = code == -signal.SIGKILL and killed_for_memory() > killed_before
    write_exit(folder, {"code": code, "out_of_memory": out_of_memory, "detail": problem})


def start_child(request: Request, folder: Path) -> subprocess.Popen[bytes]:
    """Start the benchmark; after an error, no process is left running."""
    (folder / "exit.part").write_bytes(b" " * EXIT_BYTES)
    (folder / "output.log").touch()
    if request["toolchain"] and Path(request["toolchain"]).is_dir():
        (folder / XLA_TOOLCHAIN).symlink_to(request["toolchain"])
    if request["cpus"]:
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, allowed[: max(1, int(request["cpus"]))])
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = MAX_FILE_BYTES if most == resource.RLIM_INFINITY else min(MAX_FILE_BYTES, most)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    environment = {name: value for name, value in os.environ.items() if name not in request["unset"]}
    state = {"guardian": identity(os.getpid())}
    write_json(folder / "state.json", state)
    child = subprocess.Popen(
        request["command"],
        cwd=folder,
        env=with_login(environment, request["environment"]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        write_json(folder / "state.json", {**state, "child": identity(child.pid), "pid": child.pid})
    except OSError:
        kill_group(child.pid)
        raise
    return child


def keep_output_until_end(child: subprocess.Popen[bytes], log: Path) -> str:
    """Store a benchmark's output until it ends, kill remaining child processes, and return any problems."""
    problems: list[str] = []
    assert child.stdout is not None
    reader = threading.Thread(target=keep_output, args=(child.stdout, log, problems), daemon=True)
    reader.start()
    child.wait()
    kill_group(child.pid)  # as in a container; they would disturb the next repeat
    reader.join(END_OF_OUTPUT_SECONDS)  # a process that left the group may hold the pipe open
    return "; ".join(problems)


def kill_group(pid: int) -> None:
    """Kill a process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def write_exit(folder: Path, document: dict[str, Any]) -> None:
    """Write how a benchmark ended into reserved space, because the disk may be full."""
    part = folder / "exit.part"
    with part.open("r+b") as file:
        file.write(json.dumps(document).encode().ljust(EXIT_BYTES))
        file.flush()
        os.fsync(file.fileno())
    part.rename(folder / "exit.json")


def keep_output(pipe: IO[bytes], path: Path, problems: list[str]) -> None:
    """Write a process's output to a file up to a limit, and discard the rest so that the process never blocks."""
    left = LIMITS["log_bytes"]
    with path.open("ab", buffering=0) as log:
        while chunk := os.read(pipe.fileno(), CHUNK_BYTES):
            try:
                left -= log.write(chunk[:left]) or 0
                if left <= 0:
                    os.utime(path)  # a sign of life for `follow`
            except OSError as error:  # the benchmark continues: its record counts
                left = 0
                problems.append(f"its output could not be kept: {describe(error)}")


def describe(error: OSError) -> str:
    """Return an error's message, which names a full disk clearly."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full ({error})"
    return str(error)


def killed_for_memory() -> int:
    """Return the number of out-of-memory kills in our control group."""
    try:
        own = Path("/proc/self/cgroup").read_text(encoding="utf-8").rsplit("::", 1)[-1].strip()
        for group in (own.strip("/"), ""):
            events = Path("/sys/fs/cgroup", group, "memory.events")
            if events.exists():
                lines = events.read_text(encoding="utf-8").splitlines()
                return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    except (OSError, ValueError, IndexError):
        pass
    return 0


def identity(pid: int) -> str | None:
    """Return a process's id, start time and boot id, which together are unique; None: it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except (OSError, IndexError):
        return None
    return None if fields[0] == "Z" else f"{pid} {fields[19]} {boot}"


def lives(known: str | None) -> bool:
    """Return whether the process with this `identity` still runs."""
    return known is not None and identity(int(known.split()[0])) == known


def state_of(folder: Path) -> dict[str, Any] | None:
    """Return the processes of a repeat; None: it was not started.

    If the file is damaged, the benchmark is found by its working directory, so that it is not started twice.
    """
    file = folder / "state.json"
    state = read_json(file)
    if state is not None or not file.exists():
        return state
    for path in Path("/proc").glob("[0-9]*/cwd"):
        pid = int(path.parent.name)
        with contextlib.suppress(OSError):
            if path.resolve() == folder.resolve() and os.getsid(pid) == pid:
                return {"child": identity(pid), "pid": pid}
    return {}


def is_alive(state: dict[str, Any]) -> bool:
    """Return whether a repeat or its guardian still runs."""
    return lives(state.get("guardian")) or lives(state.get("child"))


def follow(request: Request, reply: Callable[..., None]) -> None:
    """Send a repeat's output from an offset on, then how it ended."""
    folder = job_folder(request)
    state = state_of(folder)
    if state is None:
        raise RequestFailed("lost", "the repeat's folder is gone: somebody removed it, or the host was replaced")
    offset, replied_at, printed_at = request["offset"], time.monotonic(), printed(folder)
    while True:
        alive = is_alive(state)
        if not alive and "guardian" not in state:  # it may still have to write how the repeat ended
            wait_for((folder / "exit.json").exists, END_OF_OUTPUT_SECONDS)
        ended = read_json(folder / "exit.json")
        moved = send_output(folder / "output.log", offset, reply)
        if ended is not None or not alive:
            send_output(folder / "output.log", moved, reply)
            reply(**(ended or {"code": None, "out_of_memory": False}))
            return
        if moved != offset:
            offset, replied_at, printed_at = moved, time.monotonic(), printed(folder)
        elif time.monotonic() - replied_at > LIMITS["heartbeat_seconds"]:
            before, printed_at = printed_at, printed(folder)
            reply(alive=True, prints=printed_at != before)
            replied_at = time.monotonic()
        time.sleep(POLL_SECONDS)


def printed(folder: Path) -> int:
    """Return when a repeat printed last, also what was discarded, in nanoseconds; 0: never."""
    try:
        return (folder / "output.log").stat().st_mtime_ns
    except OSError:
        return 0


def send_output(path: Path, offset: int, reply: Callable[..., None]) -> int:
    """Send a file's content from an offset on; return the new offset."""
    if not path.exists():
        return offset
    with path.open("rb") as file:
        file.seek(offset)
        while chunk := file.read(CHUNK_BYTES):
            offset += len(chunk)
            reply(log=base64.b64encode(chunk).decode("ascii"), offset=offset)
    return offset


def collect(request: Request, reply: Callable[..., None]) -> None:
    """Send the record, at most one byte more than the limit."""
    record = read_regular(job_folder(request) / "record.json", request["limit"] + 1)
    reply(record=None if record is None else base64.b64encode(record).decode("ascii"))


def read_regular(path: Path, limit: int) -> bytes | None:
    """Read the first bytes of a file; None: missing or not a regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(descriptor)


def stop(request: Request, reply: Callable[..., None]) -> None:
    """End a repeat, with SIGTERM first so that it can write its record."""
    end(state_of(job_folder(request)) or {}, signal.SIGTERM, signal.SIGKILL)
    reply(stopped=True)


def end(state: dict[str, Any], *numbers: int) -> None:
    """Send a repeat's processes one signal after another until it has ended."""
    child = state.get("child")
    for number in numbers:
        if not lives(child):
            break
        try:
            os.killpg(state["pid"], number)
        except ProcessLookupError:
            break
        wait_for(lambda: not lives(child), LIMITS["stop_grace_seconds"])
    guardian = state.get("guardian")
    if not wait_for(lambda: not lives(guardian), LIMITS["stop_grace_seconds"]):  # stopped or hung
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(str(guardian).split()[0]), signal.SIGKILL)


def remove(request: Request, reply: Callable[..., None]) -> None:
    """Kill a repeat and remove its folder, and the run's folder if it is the last."""
    folder = job_folder(request)
    end(state_of(folder) or {}, signal.SIGKILL)

    def gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    wait_for(gone, 5.0)  # a guardian missing from a damaged state file may still write to it
    with contextlib.suppress(OSError):  # not empty
        folder.parent.rmdir()
        folder.parent.parent.rmdir()
    reply(removed=True)


def running(request: Request, reply: Callable[..., None]) -> None:
    """List the repeats of a run on this host, running or ended."""
    run = Path(request["root"], "jobs", request["run"])
    reply(jobs=sorted(path.parent.name for path in run.glob("*/state.json")))


def wait_for(reached: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition; False: it was not reached in time."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


REQUESTS = {do.__name__: do for do in (hello, unpack, probe, install, start, follow, collect, stop, remove, running)}

ENDED_WITH_CONNECTION = ("follow", "install")
"""Requests that end with their connection; the others are carried out once received."""


def serve(settings: Request, output: LineWriter) -> None:
    """Start a process for each request until the connection ends, or the controller is silent."""
    processes: dict[int, tuple[int, str]] = {}  # process ids and names, by the id of the request
    signal.signal(signal.SIGALRM, lambda *_: sys.exit())
    try:
        while True:
            signal.alarm(settings["silence_seconds"])  # a host learns of a dead link only after hours
            line = sys.stdin.buffer.readline()
            if not line:
                return
            if not line.strip():  # a sign of life
                continue
            request = json.loads(line.decode())
            request["payload"] = sys.stdin.buffer.read(request.get("payload_bytes", 0))
            ended = [number for number, (pid, _) in processes.items() if os.waitpid(pid, os.WNOHANG)[0]]
            for number in ended:
                del processes[number]
            if request["do"] == "cancel":
                cancel(processes, [request["id"]])
                continue
            try:
                pid = os.fork()
            except OSError as error:
                output.write(id=request["id"], failed=f"{request['do']}: {describe(error)}", end=True)
                continue
            if pid == 0:
                carry_out({**settings, **request}, output)
            processes[request["id"]] = pid, request["do"]
    finally:
        cancel(processes, list(processes))


def cancel(processes: dict[int, tuple[int, str]], numbers: list[int]) -> None:
    """End the processes of requests that end with their connection."""
    for number in numbers:
        pid, do = processes.get(number, (0, ""))
        if do in ENDED_WITH_CONNECTION:
            os.kill(pid, signal.SIGTERM)


def carry_out(request: Request, output: LineWriter) -> NoReturn:
    """Carry out a request, and end this process."""
    number, do = request["id"], request["do"]

    def reply(**document: Any) -> None:  # noqa: ANN401 (any JSON)
        output.write(id=number, **document)

    try:
        signal.alarm(0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # no program may read the next requests
        if do in ENDED_WITH_CONNECTION:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        try:
            REQUESTS[do](request, reply)
        except RequestFailed as failure:
            reply(**{failure.kind: str(failure)})
        except BrokenPipeError:
            raise
        except OSError as error:
            reply(failed=f"{do}: {describe(error)}")
        except Exception as error:  # noqa: BLE001  a bug: the controller must not wait for an answer
            reply(failed=f"{do}: {error!r}")
        reply(end=True)
    finally:
        for child in CHILDREN:
            child.kill()
        os._exit(0)


def main() -> None:
    """Serve a connection, which begins with a line of settings."""
    setting = json.loads(sys.stdin.buffer.readline().decode())
    LIMITS.update(setting["limits"])
    setting["root"] = str(Path(setting["root"]).expanduser())
    sys.stdout.write(setting["mark"] + "\n")
    sys.stdout.flush()
    serve(setting, LineWriter())


if __name__ == "__main__":
    main()
