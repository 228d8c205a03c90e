"""The part that runs on a host without Docker. It is sent with every connection and never installed.

Standard library only, and nothing newer than Python 3.8: the host's own Python runs it, whatever that is. A connection
carries one request, a line of JSON with an optional payload behind it; each line of the answer is JSON again, after a
mark that sets it apart from what login profiles print.

Everything lies below one folder, `~/.tfbench`:

    runner/DIGEST/           tfbench and the contract, 0.1 MB
    environments/DIGEST/     the locked packages of an image variant
    jobs/RUN/JOB/            a repeat: state.json, output.log, record.json, exit.json

The folder of a repeat is its lock. A guardian process in a session of its own starts the benchmark, bounds its output
and writes `exit.json` when it has ended, so that neither a broken connection nor a dead controller loses anything.
"""

from __future__ import annotations

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
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Dict, NoReturn  # noqa: UP035 (Python 3.8)

Request = Dict[str, Any]  # noqa: UP006 (Python 3.8)

POLL_SECONDS = 0.2
HEARTBEAT_SECONDS = 5.0
STOP_GRACE_SECONDS = 5.0
END_OF_OUTPUT_SECONDS = 5.0
STARTED = "started"
MAX_LOG_BYTES = 20 << 20
MAX_FILE_BYTES = 256 << 20
"""Of any file that a benchmark writes, as in a container: its record is small, and the host's disk is not ours."""

XLA_TOOLCHAIN = "cuda_sdk_lib"
"""Where XLA looks first for ptxas and libdevice, below its working folder: the default of `xla_gpu_cuda_data_dir`. With
it, a host that has another CUDA, or none, at /usr/local/cuda compiles as an image does."""

EXIT_BYTES = 4096
"""Space reserved for `exit.json` before the benchmark starts, which may fill the disk."""

MAX_ANSWER_BYTES = 256 * 1024
CHUNK_BYTES = 64 * 1024

CHILDREN: list[subprocess.Popen[bytes]] = []
"""Processes that end with the connection."""

LOOK_AT_PYTHON = """\
import importlib.metadata, importlib.util, json, platform, sys
def version(*names):
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
json.dump({"path": sys.executable, "version": platform.python_version(),
           "pip": importlib.util.find_spec("pip") is not None,
           "tensorflow": version("tensorflow", "tensorflow-cpu"), "keras": version("keras")}, sys.stdout)
"""


def say(**document: Any) -> None:  # noqa: ANN401 (any JSON)
    """Write one line of the answer."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def fail(kind: str, cause: str) -> NoReturn:
    """End the connection with a cause; `kind` is `failed` or `lost`."""
    say(**{kind: cause})
    sys.exit(0)


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a file that was written by `write_json`; None: it is not there."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a file so that it is there whole or not at all."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    with part.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


# ---- the host: Pythons, an image, facts


def hello(request: Request) -> None:
    """Report what the host has: Pythons, an image of ours, what was installed, free space, time."""
    root = Path(request["root"])
    root.mkdir(parents=True, exist_ok=True)
    pythons: dict[str, dict[str, Any]] = {}
    for name in [request["python"]] if request["python"] else request["pythons"]:
        path = shutil.which(Path(name).expanduser() if name.startswith("~") else name)
        if path is None or (key := python_key(path)) in pythons:
            continue
        if (found := look_at_python(path)) is not None:
            pythons[key] = {**found, "path": path}
    say(
        pythons=list(pythons.values()),
        image=read_json(Path(request["image_file"])),
        runners=folders(root / "runner"),
        environments=folders(root / "environments"),
        free_bytes=shutil.disk_usage(root).free,
        now=time.time(),
        root=str(root),
    )


def python_key(path: str) -> str:
    """Return what equal interpreters share: their file, but each virtual environment is one of its own."""
    return path if Path(path).parent.with_name("pyvenv.cfg").exists() else os.path.realpath(path)


def look_at_python(path: str) -> dict[str, Any] | None:
    """Query an interpreter for its version and packages; None: it cannot be started."""
    try:
        done = subprocess.run([path, "-c", LOOK_AT_PYTHON], capture_output=True, timeout=60, check=True)
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return found if isinstance(found, dict) else None


def folders(parent: Path) -> list[str]:
    """List what is complete: parts and locks have a dot in their name."""
    return sorted(path.name for path in parent.glob("*") if "." not in path.name)


def unpack(request: Request, payload: bytes) -> None:
    """Unpack the runner, once per version."""
    target = runner_folder(request)
    part = target.with_name(f"{target.name}.part-{os.getpid()}")
    part.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(payload)) as tar:
            tar.extractall(part)
        if not target.is_dir():  # else another controller was faster, with the same files
            part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    say(runner=str(target))


def runner_folder(request: Request) -> Path:
    """Name the folder of the runner."""
    return Path(request["root"], "runner", request["digest"])


def probe(request: Request) -> None:
    """Run the probe and hand on what it prints."""
    try:
        done = subprocess.run(
            [request["python"], "-m", "tfbench.probe"],
            env={**os.environ, **request["environment"]},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=request["limit_seconds"],
            check=True,
        )
    except subprocess.CalledProcessError as error:
        fail("failed", f"the probe ended with exit code {error.returncode}: {last_line(error.stderr)}")
    except (OSError, subprocess.TimeoutExpired) as error:
        fail("failed", f"the probe: {error}")
    if len(done.stdout) > MAX_ANSWER_BYTES:
        fail("failed", f"the probe printed more than {MAX_ANSWER_BYTES} bytes")
    say(probe=done.stdout.decode("utf-8", "replace"))


def last_line(output: bytes) -> str:
    """Return the last line of an output that is not empty."""
    lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][-500:] if lines else "it printed nothing"


# ---- the environment: the locked packages of a variant


def install(request: Request, payload: bytes) -> None:
    """Install locked packages into a folder of their own; a half-made one is never used.

    The folder is named by the digest of the lock and the Python. It is made under another name and renamed last.
    """
    target = Path(request["root"], "environments", request["digest"])
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w", encoding="utf-8") as lock:
        while not locked(lock):
            say(waiting="another controller makes the same environment")
            time.sleep(HEARTBEAT_SECONDS)
        if not target.is_dir():
            make_environment(request, payload, target)
    say(site=str(target / "site"))


def locked(file: IO[str]) -> bool:
    """Lock a file; False: another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def make_environment(request: Request, payload: bytes, target: Path) -> None:
    """Install into a temporary folder, then rename it to `target`."""
    for old in target.parent.glob(f"{target.name}.part-*"):
        shutil.rmtree(old, ignore_errors=True)  # we hold the lock: nobody works on it any more
    part = target.with_name(f"{target.name}.part-{os.getpid()}")
    part.mkdir()
    requirements, log = part / "requirements.txt", part / "pip.log"
    requirements.write_bytes(payload)
    options = "--require-hashes --only-binary=:all: --no-deps --no-cache-dir --disable-pip-version-check --quiet"
    where = ["--requirement", str(requirements), "--target", str(part / "site")]
    environment = {**os.environ, "TMPDIR": str(part), "PIP_ROOT_USER_ACTION": "ignore"}  # a small /tmp would not do
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
        say(installed_bytes=max(0, free - shutil.disk_usage(part).free))
    if child.returncode != 0:
        cause = last_line(log.read_bytes()[-10_000:])
        shutil.rmtree(part, ignore_errors=True)
        fail("failed", f"pip could not install the locked packages (exit code {child.returncode}): {cause}")
    part.rename(target)


# ---- repeats


def job_folder(request: Request) -> Path:
    """Name the folder of a repeat."""
    return Path(request["root"], "jobs", request["run"], request["job"])


def start(request: Request) -> None:
    """Start a repeat, or reattach to the one of this name."""
    folder = job_folder(request)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        forget_dead(folder)
        reattached = (folder / "state.json").exists()
        if not reattached:
            launch(request, folder)
    say(reattached=reattached)


def forget_dead(folder: Path) -> None:
    """Clear what a restart of the host, or a failed start, left of a repeat that neither runs nor left a result."""
    state = state_of(folder) or {}
    results = ("exit.json", "record.json")
    if not is_alive(state) and not any((folder / name).exists() for name in results):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()


def launch(request: Request, folder: Path) -> None:
    """Start a guardian and wait until the benchmark runs, or until it is known why it does not."""
    answer, theirs = os.pipe()
    if os.fork() == 0:
        guard(request, folder, theirs)
    os.close(theirs)
    os.wait()
    with os.fdopen(answer, encoding="utf-8") as pipe:
        if (problem := pipe.read()) != STARTED:
            fail("failed", problem or "the benchmark's guardian ended before the benchmark had started")


def guard(request: Request, folder: Path, answer: int) -> NoReturn:
    """Become a process in a session of its own, run the benchmark to its end and write how it ended."""
    try:
        os.setsid()
        if os.fork() == 0:
            os.dup2(answer, 3)
            os.closerange(4, 256)  # the connection must not stay open for us, nor the lock stay locked
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
        os.write(answer, f"{request['command'][0]} could not be started: {in_words(error)}".encode()[:1000])
        return
    os.write(answer, STARTED.encode())
    os.close(answer)
    problem = keep_output_until_end(child, folder / "output.log")
    code = child.returncode
    out_of_memory = code == -signal.SIGKILL and killed_for_memory() > killed_before
    write_exit(folder, {"code": code, "out_of_memory": out_of_memory, "detail": problem})


def start_child(request: Request, folder: Path) -> subprocess.Popen[bytes]:
    """Start the benchmark; whatever fails, nothing runs afterwards and no state is left."""
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
        env={**environment, **request["environment"]},
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
    """Keep a benchmark's output until it has ended, and end what it leaves running; return what went wrong."""
    problems: list[str] = []
    assert child.stdout is not None
    reader = threading.Thread(target=keep_output, args=(child.stdout, log, problems), daemon=True)
    reader.start()
    child.wait()
    kill_group(child.pid)  # as a container's processes end with its first one; they would disturb the next repeat
    reader.join(END_OF_OUTPUT_SECONDS)  # somebody who left the group may hold the pipe for ever
    return "; ".join(problems)


def kill_group(pid: int) -> None:
    """Kill a process group, if there is anything left of it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def write_exit(folder: Path, document: dict[str, Any]) -> None:
    """Write how a benchmark ended, into space reserved before: the disk may be full."""
    part = folder / "exit.part"
    with part.open("r+b") as file:
        file.write(json.dumps(document).encode().ljust(EXIT_BYTES))
        file.flush()
        os.fsync(file.fileno())
    part.rename(folder / "exit.json")


def keep_output(pipe: IO[bytes], path: Path, problems: list[str]) -> None:
    """Write a process's output to a file, up to the bound; all of it is read, so that the process never blocks."""
    left = MAX_LOG_BYTES
    with path.open("ab", buffering=0) as log:
        while chunk := os.read(pipe.fileno(), CHUNK_BYTES):
            try:
                left -= log.write(chunk[:left]) or 0
            except OSError as error:  # the benchmark goes on: its record decides
                left = 0
                problems.append(f"its output could not be kept: {in_words(error)}")


def in_words(error: OSError) -> str:
    """Name a full disk as what it is."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full ({error})"
    return str(error)


def killed_for_memory() -> int:
    """Count the processes that the kernel has killed in our control group for lack of memory."""
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
    """Identify a process beyond its number: with the time of its start, and the boot of the machine."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except (OSError, IndexError):
        return None
    return None if fields[0] == "Z" else f"{pid} {fields[19]} {boot}"


def lives(known: str | None) -> bool:
    """Return whether an identified process still runs."""
    return known is not None and identity(int(known.split()[0])) == known


def state_of(folder: Path) -> dict[str, Any] | None:
    """Read which processes a repeat has; None: it was not started.

    A file that a disk has damaged must not let it run twice: then its benchmark is found by its working folder.
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
    """Return whether a repeat still runs, or is still watched."""
    return lives(state.get("guardian")) or lives(state.get("child"))


def follow(request: Request) -> None:
    """Hand on a repeat's output from an offset on, then how it ended."""
    folder = job_folder(request)
    state = state_of(folder)
    if state is None:
        fail("lost", "the repeat's folder is gone: somebody removed it, or the host was replaced")
    offset, spoken = request["offset"], time.monotonic()
    while True:
        alive = is_alive(state)
        ended = read_json(folder / "exit.json")
        moved = hand_on(folder / "output.log", offset)
        if ended is not None or not alive:
            hand_on(folder / "output.log", moved)
            say(**(ended or {"code": None, "out_of_memory": False}))
            return
        if moved != offset:
            offset, spoken = moved, time.monotonic()
        elif time.monotonic() - spoken > HEARTBEAT_SECONDS:
            say(alive=True)
            spoken = time.monotonic()
        time.sleep(POLL_SECONDS)


def hand_on(path: Path, offset: int) -> int:
    """Hand on what a file holds beyond an offset; return the new offset."""
    if not path.exists():
        return offset
    with path.open("rb") as file:
        file.seek(offset)
        while chunk := file.read(CHUNK_BYTES):
            offset += len(chunk)
            say(log=base64.b64encode(chunk).decode("ascii"), offset=offset)
    return offset


def collect(request: Request) -> None:
    """Hand over the record, at most one byte more than is allowed."""
    record = read_regular(job_folder(request) / "record.json", request["limit"] + 1)
    say(record=None if record is None else base64.b64encode(record).decode("ascii"))


def read_regular(path: Path, limit: int) -> bytes | None:
    """Read the first bytes of a file that a benchmark left; None: there is none; a link, folder or pipe is none."""
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


def stop(request: Request) -> None:
    """End a repeat, by SIGTERM first, so that it can write its record."""
    end(state_of(job_folder(request)) or {}, signal.SIGTERM, signal.SIGKILL)
    say(stopped=True)


def end(state: dict[str, Any], *numbers: int) -> None:
    """Send a repeat's processes one signal after another, until it has ended."""
    child = state.get("child")
    for number in numbers:
        if not lives(child):
            break
        try:
            os.killpg(state["pid"], number)
        except ProcessLookupError:
            break
        wait_for(lambda: not lives(child), STOP_GRACE_SECONDS)
    guardian = state.get("guardian")
    if not wait_for(lambda: not lives(guardian), STOP_GRACE_SECONDS):  # it was stopped, or hangs
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(str(guardian).split()[0]), signal.SIGKILL)


def remove(request: Request) -> None:
    """Remove what a repeat left, and the run's folder with the last of them; what runs is killed first."""
    folder = job_folder(request)
    end(state_of(folder) or {}, signal.SIGKILL)

    def gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    wait_for(gone, 5.0)  # a guardian that a damaged state does not name may write into it meanwhile
    with contextlib.suppress(OSError):  # others are in it
        folder.parent.rmdir()
        folder.parent.parent.rmdir()
    say(removed=True)


def running(request: Request) -> None:
    """List the repeats of a run that were started here, running or ended."""
    run = Path(request["root"], "jobs", request["run"])
    say(jobs=sorted(path.parent.name for path in run.glob("*/state.json")))


def wait_for(reached: Callable[[], bool], seconds: float) -> bool:
    """Wait until something is so; return whether it is."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def end_with_connection() -> None:
    """End when the controller closes its end: a broken connection must not leave agents behind."""

    def watch() -> None:
        while os.read(0, CHUNK_BYTES):
            pass
        for child in CHILDREN:
            child.kill()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


PLAIN = {do.__name__: do for do in (hello, probe, start, follow, collect, stop, remove, running)}
WITH_PAYLOAD = {do.__name__: do for do in (unpack, install)}


def main() -> None:
    """Serve one request."""
    request = json.loads(sys.stdin.buffer.readline().decode())
    payload = sys.stdin.buffer.read(request["payload_bytes"])
    sys.stdout.write(request["mark"] + "\n")
    do = request["do"]
    request["root"] = str(Path(request["root"]).expanduser())
    if do in ("follow", "install"):
        end_with_connection()
    try:
        if do in PLAIN:
            PLAIN[do](request)
        else:
            WITH_PAYLOAD[do](request, payload)
    except OSError as error:
        fail("failed", f"{do}: {in_words(error)}")


if __name__ == "__main__":
    main()
