"""The agent on a host without Docker, or on a cluster's login host. It is sent with each connection, never installed.

It uses only the standard library of Python 3.6, to run with any Python of the host. It prints a mark, which separates
its answers from the output of login profiles. Then it serves requests until the connection ends: each is a line of JSON
with an id, followed by an optional payload, and each has a thread of its own, so that none waits for another. Answers
are lines of JSON with the id of their request; the last has `end`. Requests are carried out once received, whatever
becomes of the connection; only `follow` and `install` end with it.

All files are below one folder, `~/.tfbench`:

    runner/DIGEST/           tfbench and the contract, 0.1 MB
    environments/DIGEST/     the locked packages of an image variant
    jobs/RUN/JOB/            a repeat: state.json, output.log, record.json, exit.json

The folder of a repeat is its lock. A guardian process in its own session starts the benchmark, bounds its output and
writes `exit.json` at its end, so that nothing is lost if the connection breaks or the controller dies. It is this
program again, with other settings.

The repeats of a Slurm cluster are in a folder that all nodes share; see `script.py`.
"""

import base64
import contextlib
import errno
import fcntl
import io
import json
import os
import platform
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import IO, Any, Callable, Dict, Iterator, List, Mapping, Optional

Request = Dict[str, Any]
"""What the controller asks for, together with the settings of the connection; or a line of an answer."""

OVER = threading.Event()
"""Set once the connection has ended."""

PROGRAM: bytes = globals().get("program", b"")
"""This program, as `channel.READ_PROGRAM` has received it."""

WRITING = threading.Lock()

POLL_SECONDS = 0.2
END_OF_OUTPUT_SECONDS = 5.0
STARTED = b"started"
MAX_FILE_BYTES = 256 << 20
"""Limit for each file that a benchmark writes, as in a container: it must not fill the host's disk."""

XLA_TOOLCHAIN = "cuda_sdk_lib"
"""Folder below the working directory that XLA searches first for ptxas and libdevice: the default of
`xla_gpu_cuda_data_dir`. With it, XLA compiles as in an image, whatever CUDA the host has at /usr/local/cuda."""

EXIT_BYTES = 4096
"""Space reserved for `exit.json` in case the benchmark fills the disk."""

CHUNK_BYTES = 64 * 1024

MAX_LOG_CHUNK_BYTES, MAX_LAST_LOG_BYTES = 64 * 1024, 4 * 1024 * 1024
"""Output that one poll sends of a running and of an ended repeat of a cluster."""

PIP_SETTINGS = (
    *("index-url", "extra-index-url", "no-index", "find-links", "trusted-host", "proxy", "cert", "client-cert"),
    *("timeout", "retries", "keyring-provider"),
)
"""Variables of pip that are kept: how to reach packages. Others may change what is installed, and where."""

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
json.dump({"version": platform.python_version(),
           "pip": importlib.util.find_spec("pip") is not None, "libc": sorted(libc),
           "tensorflow": version("tensorflow", "tensorflow-cpu"), "keras": version("keras")}, sys.stdout)
"""


class RequestFailed(Exception):
    """A request failed, for the reason given in words."""


def write(**document: Any) -> None:
    """Write a line to the connection; raises BrokenPipeError when it has ended."""
    data = memoryview(json.dumps(document).encode() + b"\n")
    with WRITING:
        while data:
            data = data[os.write(1, data) :]


def run(words: List[str], seconds: float = 60.0, **settings: Any) -> "subprocess.CompletedProcess[bytes]":
    """Run a program, which gets no input: it must not read the next requests."""
    pipe = subprocess.PIPE
    return subprocess.run(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, timeout=seconds, **settings)


def read_json(path: Path) -> Optional[Request]:
    """Read a file written by `write_json`; None: missing or damaged."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def write_json(path: Path, document: Request) -> None:
    """Write a file atomically."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    with part.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


# ---- the host: Pythons, an image, facts


def hello(request: Request) -> Iterator[Request]:
    """Report the host's Pythons, its tfbench image, what is installed, free space and time."""
    root = Path(request["root"])
    root.mkdir(parents=True, exist_ok=True)
    names = [request["python"]] if request["python"] else request["pythons"]
    paths = dict.fromkeys(shutil.which(str(Path(name).expanduser())) for name in names)
    yield {
        "pythons": list(filter(None, map(query_python, filter(None, paths)))),
        "image": read_json(Path(request["image_file"])),
        "runners": folders(root / "runner"),
        "environments": folders(root / "environments"),
        "free_bytes": shutil.disk_usage(root).free,
        "machine": platform.machine(),
        "now": time.time(),
        "root": str(root),
    }


def query_python(path: str) -> Optional[Request]:
    """Return an interpreter's path, version and packages; None: it cannot be started."""
    try:
        found = json.loads(run([path, "-c", QUERY_PYTHON], check=True).stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return {**found, "path": path} if isinstance(found, dict) else None


def folders(parent: Path) -> List[str]:
    """List complete folders; the names of partial ones and locks contain a dot."""
    return sorted(path.name for path in parent.glob("*") if "." not in path.name)


def unpack(request: Request) -> Iterator[Request]:
    """Unpack the runner, once per version."""
    target = Path(request["root"], "runner", request["digest"])
    part = target.with_name(f"{target.name}.part-{os.getpid()}")
    part.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(request["payload"])) as tar:
            tar.extractall(part)
        if not target.is_dir():  # otherwise another controller has unpacked the same files
            part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    yield {"runner": str(target)}


def command(request: Request) -> Iterator[Request]:
    """Run a command of the host with variables of the controller, e.g. the probe, or one of Slurm's."""
    environment = with_login(os.environ, request["environment"])
    try:  # a project in the current folder may have a package `results`
        done = run(request["words"], request["limit_seconds"], cwd="/", env=environment)
    except FileNotFoundError:
        yield {"missing": request["words"][0]}
    else:
        output, errors = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr[-CHUNK_BYTES:]))
        yield {"code": done.returncode, "output": output, "errors": errors}


def with_login(login: Mapping[str, str], ours: Dict[str, str]) -> Dict[str, str]:
    """Return a login's variables with ours; of libraries, the login's follow ours: they may be the driver's."""
    paths = filter(None, (variables.get("LD_LIBRARY_PATH") for variables in (ours, login)))
    return {**login, **ours, "LD_LIBRARY_PATH": ":".join(paths)}


# ---- the environment: the locked packages of a variant


def install(request: Request) -> Iterator[Request]:
    """Install locked packages into a folder named by the digest of the lock and the Python version."""
    target = Path(request["root"], "environments", request["digest"])
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w", encoding="utf-8") as lock:
        while not locked(lock):
            yield {"waiting": "another controller makes the same environment"}
            if OVER.wait(request["heartbeat_seconds"]):
                return
        if not target.is_dir():
            yield from make_environment(request, target)
    yield {"site": str(target / "site")}


def locked(file: IO[str]) -> bool:
    """Try to lock a file; False: another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def make_environment(request: Request, target: Path) -> Iterator[Request]:
    """Install into a temporary folder, then rename it to `target`."""
    for old in target.parent.glob(f"{target.name}.part-*"):
        shutil.rmtree(old, ignore_errors=True)  # left by a dead process, because we hold the lock
    part = target.with_name(f"{target.name}.part-{os.getpid()}")
    part.mkdir()
    requirements, log = part / "requirements.txt", part / "pip.log"
    requirements.write_bytes(request["payload"])
    options = "--require-hashes --only-binary=:all: --no-deps --no-user --no-cache-dir --quiet"
    where = ["--disable-pip-version-check", "--requirement", str(requirements), "--target", str(part / "site")]
    environment = {**pip_environment(), "TMPDIR": str(part)}  # /tmp may be too small
    with log.open("wb") as output:
        child = subprocess.Popen(
            [request["python"], "-m", "pip", "install", *options.split(), *where],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    free = shutil.disk_usage(part).free
    try:
        while not wait_for(lambda: child.poll() is not None or OVER.is_set(), 2.0):
            yield {"installed_bytes": max(0, free - shutil.disk_usage(part).free)}
    finally:
        child.kill()
        child.wait()
    if child.returncode != 0:
        lines = log.read_bytes()[-10_000:].decode("utf-8", "replace").split("\n")
        cause = next((line[-500:] for line in reversed(lines) if line.strip()), "it printed nothing")
        shutil.rmtree(part, ignore_errors=True)
        raise RequestFailed(f"pip could not install the locked packages (exit code {child.returncode}): {cause}")
    part.rename(target)


def pip_environment() -> Dict[str, str]:
    """Return variables with which pip keeps the host's index, proxy and certificates, and no other variable."""
    kept = tuple("PIP_" + name.upper().replace("-", "_") for name in PIP_SETTINGS)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PIP_") or name in kept}
    return {**variables, "PIP_ROOT_USER_ACTION": "ignore"}


# ---- repeats


def job_folder(request: Request) -> Path:
    """Return the folder of a repeat."""
    return Path(request["root"], "jobs", request["run"], request["job"])


def start(request: Request) -> Iterator[Request]:
    """Start a repeat, or reattach to the existing one of this name."""
    folder, machine = job_folder(request), Path(request["root"], request["machine"])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        clear_dead(folder)
        if (folder / "state.json").exists():
            yield {"reattached": True}
            return
        descriptor = os.open(str(machine), os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # until this run is seen to measure, or has failed to start
            for state in machine.glob(request["states"]):
                other = state.parent.parent.name
                if other != request["run"] and is_alive(read_json(state) or {}):
                    yield {"busy": other}
                    return
            launch(request)
        finally:
            os.close(descriptor)
    yield {"reattached": False}


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


def launch(request: Request) -> None:
    """Start a guardian and wait until the benchmark runs or has failed to start."""
    settings = {**request, "payload": None, "guards": True}
    text = b"%d\n%s%s\n" % (len(PROGRAM), PROGRAM, json.dumps(settings).encode())
    words, pipe, null = [sys.executable, "-c", request["read_program"]], subprocess.PIPE, subprocess.DEVNULL
    done = subprocess.run(words, input=text, stdout=pipe, stderr=null, cwd="/", start_new_session=True)
    if done.stdout != STARTED:
        cause = done.stdout.decode("utf-8", "replace")
        raise RequestFailed(cause or "the benchmark's guardian ended before the benchmark had started")


def guard(request: Request) -> None:
    """Run a benchmark to its end and write how it ended, in a process of its own."""
    folder = job_folder(request)
    try:
        killed_before = killed_for_memory()
        child = start_child(request, folder)
    except OSError as error:
        for name in ("state.json", "exit.part"):
            with contextlib.suppress(OSError):
                (folder / name).unlink()
        os.write(1, f"{request['command'][0]} could not be started: {describe(error)}".encode()[:1000])
        return
    os.write(1, STARTED)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)  # `launch` reads to the end
    problem = keep_output_until_end(child, folder / "output.log", request["log_bytes"])
    code = child.returncode
    out_of_memory = code == -signal.SIGKILL and killed_for_memory() > killed_before
    write_exit(folder, {"code": code, "out_of_memory": out_of_memory, "detail": problem})


def start_child(request: Request, folder: Path) -> "subprocess.Popen[bytes]":
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
    state = {"guardian": identity(os.getpid())}
    write_json(folder / "state.json", state)
    child = subprocess.Popen(
        request["command"],
        cwd=folder,
        env=with_login(os.environ, request["environment"]),
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


def keep_output_until_end(child: "subprocess.Popen[bytes]", log: Path, limit: int) -> str:
    """Store a benchmark's output until it ends, kill remaining child processes, and return any problems."""
    problems: List[str] = []
    assert child.stdout is not None
    reader = threading.Thread(target=keep_output, args=(child.stdout, log, limit, problems), daemon=True)
    reader.start()
    child.wait()
    kill_group(child.pid)  # as in a container; they would disturb the next repeat
    reader.join(END_OF_OUTPUT_SECONDS)  # a process that left the group may hold the pipe open
    return "; ".join(problems)


def kill_group(pid: int) -> None:
    """Kill a process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def write_exit(folder: Path, document: Request) -> None:
    """Write how a benchmark ended into reserved space, because the disk may be full."""
    part = folder / "exit.part"
    with part.open("r+b") as file:
        file.write(json.dumps(document).encode().ljust(EXIT_BYTES))
        file.flush()
        os.fsync(file.fileno())
    part.rename(folder / "exit.json")


def keep_output(pipe: IO[bytes], path: Path, left: int, problems: List[str]) -> None:
    """Write a process's output to a file up to a limit, and discard the rest so that the process never blocks."""
    with path.open("ab", buffering=0) as log:
        for chunk in iter(lambda: os.read(pipe.fileno(), CHUNK_BYTES), b""):
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


def identity(pid: int) -> Optional[str]:
    """Return a process's id, start time and boot id, which together are unique; None: it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except (OSError, IndexError):
        return None
    return None if fields[0] == "Z" else f"{pid} {fields[19]} {boot}"


def lives(known: Optional[str]) -> bool:
    """Return whether the process with this `identity` still runs."""
    return known is not None and identity(int(known.split()[0])) == known


def state_of(folder: Path) -> Optional[Request]:
    """Return the processes of a repeat; None: it was not started."""
    file = folder / "state.json"
    return (read_json(file) or {}) if file.exists() else None


def is_alive(state: Request) -> bool:
    """Return whether a repeat or its guardian still runs."""
    return lives(state.get("guardian")) or lives(state.get("child"))


def follow(request: Request) -> Iterator[Request]:
    """Send a repeat's output from an offset on, then how it ended."""
    folder = job_folder(request)
    state = state_of(folder)
    if state is None:
        yield {"lost": "the repeat's folder is gone: somebody removed it, or the host was replaced"}
        return
    if "guardian" not in state:  # damaged: it may still have to write how the repeat ended
        wait_for((folder / "exit.json").exists, END_OF_OUTPUT_SECONDS)
    offset, answered_at, printed_at, chunk = request["offset"], time.monotonic(), printed(folder), b""
    while not OVER.wait(0 if chunk else POLL_SECONDS):
        alive, ended = is_alive(state), read_json(folder / "exit.json")
        chunk = read_regular(folder / "output.log", CHUNK_BYTES, offset) or b""
        if chunk:
            offset, answered_at, printed_at = offset + len(chunk), time.monotonic(), printed(folder)
            yield {"log": text_of(chunk)}
        elif ended is not None or not alive:
            yield ended or {"code": None, "out_of_memory": False}
            return
        elif time.monotonic() - answered_at > request["heartbeat_seconds"]:
            before, answered_at, printed_at = printed_at, time.monotonic(), printed(folder)
            yield {"alive": True, "prints": printed_at != before}


def printed(folder: Path) -> int:
    """Return when a repeat printed last, also what was discarded, in nanoseconds; 0: never."""
    try:
        return (folder / "output.log").stat().st_mtime_ns
    except OSError:
        return 0


def collect(request: Request) -> Iterator[Request]:
    """Send the record, at most one byte more than the limit."""
    yield {"record": text_of(read_regular(job_folder(request) / "record.json", request["limit"] + 1))}


def text_of(data: Optional[bytes]) -> Optional[str]:
    """Encode bytes for JSON."""
    return None if data is None else base64.b64encode(data).decode("ascii")


def read_regular(path: Path, limit: int, offset: int = 0) -> Optional[bytes]:
    """Read bytes of a file; None: missing or not a regular file."""
    try:
        descriptor = os.open(str(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            file.seek(offset)
            return file.read(limit)
    finally:
        os.close(descriptor)


def stop(request: Request) -> Iterator[Request]:
    """End a repeat, with SIGTERM first so that it can write its record."""
    end(request, signal.SIGTERM, signal.SIGKILL)
    yield {"stopped": True}


def end(request: Request, *numbers: int) -> None:
    """Send a repeat's processes one signal after another until it has ended."""
    state, seconds = state_of(job_folder(request)) or {}, request["stop_grace_seconds"]
    child, guardian = state.get("child"), state.get("guardian")
    for number in numbers:
        if not lives(child):
            break
        try:
            os.killpg(state["pid"], number)
        except ProcessLookupError:
            break
        wait_for(lambda: not lives(child), seconds)
    if not wait_for(lambda: not lives(guardian), seconds):  # stopped or hung
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(str(guardian).split()[0]), signal.SIGKILL)


def remove(request: Request) -> Iterator[Request]:
    """Kill a repeat and remove its folder, and the run's folder if it is the last."""
    folder = job_folder(request)
    end(request, signal.SIGKILL)
    shutil.rmtree(str(folder), ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty
        folder.parent.rmdir()
        folder.parent.parent.rmdir()
    yield {"removed": True}


def running(request: Request) -> Iterator[Request]:
    """List the repeats of a run on this host, running or ended."""
    run = Path(request["root"], "jobs", request["run"])
    yield {"jobs": sorted(path.parent.name for path in run.glob("*/state.json"))}


def wait_for(reached: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition; False: it was not reached in time."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


# ---- Slurm: a run's folder in the one that all nodes share


def survey(request: Request) -> Iterator[Request]:
    """List a run's arrays with their jobs and what sbatch printed, and the repeats that have begun and ended."""
    folder = Path(request["folder"])
    arrays = {path.stem.split("-")[-1]: path for path in folder.glob("array-*.jobs")}
    yield {
        "usable": os.access(str(folder.parent), os.W_OK),
        "arrays": {
            number: ["\n".join(path.read_text().split()), printed_by_sbatch(path)] for number, path in arrays.items()
        },
        "begun": names_in(folder / "jobs"),
        "ended": names_in(folder / "done"),
    }


def printed_by_sbatch(jobs: Path) -> str:
    """Return what sbatch printed when it accepted an array; empty: it has not."""
    file = jobs.with_suffix(".out")
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def names_in(folder: Path) -> str:
    """Return the names of visible files, one in a line."""
    return "\n".join(path.name for path in folder.glob("[!.]*"))


def submit(request: Request) -> Iterator[Request]:
    """Submit an array once, whatever becomes of the connection and of its answer."""
    folder = Path(request["folder"])
    os.umask(0o077)
    for name in ("jobs", "done"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    jobs = folder / f"array-{request['number']}.jobs"
    if jobs.exists():  # an earlier request, whose answer was lost, submits it
        wait_for(lambda: bool(printed_by_sbatch(jobs)) or not jobs.exists(), request["limit_seconds"])
    if printed_by_sbatch(jobs):
        yield {"code": 0, "output": printed_by_sbatch(jobs), "errors": ""}
        return
    jobs.write_text(request["jobs"] + "\n")
    script = jobs.with_suffix(".sh")
    script.write_text(request["script"], encoding="utf-8")
    done = run(["sbatch", "--parsable", "--chdir=/", *request["options"], str(script)], request["limit_seconds"])
    output, errors = (stream.decode("utf-8", "replace")[-4000:] for stream in (done.stdout, done.stderr))
    if done.returncode == 0:
        jobs.with_suffix(".out").write_text(output, encoding="utf-8")
    else:
        jobs.unlink()
    yield {"code": done.returncode, "output": output, "errors": errors}


def sweep(request: Request) -> Iterator[Request]:
    """Remove the files of repeats, and the run's folder if no repeat is left and it is not to be kept."""
    folder = Path(request["folder"])
    for job in request["removals"]:
        shutil.rmtree(str(folder / "jobs" / job), ignore_errors=True)
        with contextlib.suppress(OSError):
            (folder / "done" / job).unlink()
    left = any(folder.glob("jobs/*")) or any(folder.glob("done/*"))
    if not (left or request["keep"]):
        shutil.rmtree(str(folder), ignore_errors=True)
    yield {"left": left}


def poll(request: Request) -> Iterator[Request]:
    """Send new output of repeats and, once they have ended, their records."""
    folder, left = Path(request["folder"]), request["limit_bytes"]
    names_in(folder / "done")  # makes an NFS client refresh its cache of the folder
    for job, offset in request["followed"]:
        if left <= 0:
            return
        ended = read_regular(folder / "done" / job, 1000)
        most = MAX_LOG_CHUNK_BYTES if ended is None else MAX_LAST_LOG_BYTES
        log = read_regular(folder / "jobs" / job / "output.log", most, offset)
        record = None
        if ended is not None:
            record = read_regular(folder / "jobs" / job / "record.json", request["limit_record_bytes"])
        if log or ended is not None:
            yield {"job": job, "log": text_of(log or b""), "record": text_of(record), "ended": text_of(ended)}
        left -= len(log or b"") + len(record or b"")


REQUESTS = {
    do.__name__: do
    for do in (
        *(hello, command, unpack, install, start, follow, collect, stop, remove, running),
        *(survey, submit, sweep, poll),
    )
}


def serve(settings: Request) -> None:
    """Start a thread for each request until the connection ends, or the controller is silent."""
    signal.signal(signal.SIGALRM, lambda *_: sys.exit())
    try:
        while True:
            signal.alarm(settings["silence_seconds"])  # a host learns of a dead link only after hours
            line = sys.stdin.buffer.readline()
            if not line:
                return
            if not line.strip():  # a sign of life
                continue
            request = {**settings, **json.loads(line.decode())}
            request["payload"] = sys.stdin.buffer.read(request["payload_bytes"])
            try:
                threading.Thread(target=carry_out, args=(request,)).start()
            except RuntimeError as error:
                write(id=request["id"], failed=f"{request['do']}: {error}", end=True)
    finally:
        signal.alarm(0)
        OVER.set()


def carry_out(request: Request) -> None:
    """Carry out a request."""
    last: Request = {}
    with contextlib.suppress(BrokenPipeError):
        try:
            for answer in REQUESTS[request["do"]](request):
                write(id=request["id"], **answer)
        except BrokenPipeError:
            raise
        except (RequestFailed, subprocess.SubprocessError) as failure:
            last = {"failed": str(failure)}
        except OSError as error:
            last = {"failed": f"{request['do']}: {describe(error)}"}
        except Exception as error:  # noqa: BLE001  a bug: the controller must not wait for an answer
            last = {"failed": f"{request['do']}: {error!r}"}
        write(id=request["id"], **last, end=True)


def main() -> None:
    """Serve a connection, which begins with a line of settings, or guard a benchmark."""
    settings = json.loads(sys.stdin.buffer.readline().decode())
    if settings.get("guards"):
        signal.alarm(0)
        if os.fork() == 0:  # whatever ends the agent's children does not end a benchmark
            guard(settings)
        return
    settings["root"] = str(Path(settings["root"]).expanduser())
    if settings["finds"]:
        os.environ.update(login_variables(settings["finds"]))
    sys.stdout.write(settings["mark"] + "\n")
    sys.stdout.flush()
    serve(settings)


def login_variables(program: str) -> Dict[str, str]:
    """Return the variables of a login of the user that finds a program; empty: none does.

    Clusters and users set PATH in the profile of the login shell, and some users only for interactive shells.
    """
    shell, mark = os.environ.get("SHELL") or "sh", "tfbench-variables"
    for words in ([shell, "-l"], [shell, "-l", "-i"], ["sh", "-l"]):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            printed_all = run([*words, "-c", f"echo {mark} && exec env -0"], 20.0).stdout
            lines = printed_all.decode("utf-8", "surrogateescape").rpartition(mark + "\n")[2].split("\0")
            variables = {name: value for name, _, value in (line.partition("=") for line in lines) if name}
            if shutil.which(program, path=variables.get("PATH", "")):
                return variables
    return {}


if __name__ == "__main__":
    main()
