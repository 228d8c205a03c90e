"""The agent on a host without Docker, or on a cluster's login host. It is sent with each connection, never installed.

It uses only the standard library of Python 3.6, to run with any Python of a login host, and elsewhere with that of the
benchmarks. It prints a mark, which separates
its answers from the output of login profiles. Then it serves requests until the connection ends: each is a line of JSON
with an id, followed by an optional payload, and each has a thread of its own, so that none waits for another. Each has
one answer, a line of JSON with its id. Requests are carried out once received, whatever becomes of the connection; only
`follow` and `install` end with it.

All files are below one folder, `~/.tfbench`:

    runner/DIGEST/           tfbench and the contract, 0.1 MB
    environments/DIGEST/     the locked packages of an image variant
    jobs/RUN/JOB/            a repeat: state.json, output.log, record.json, exit.json

Repeats of a machine are started one at a time, under a lock. A guardian process in its own session starts the
benchmark, bounds its output and writes `exit.json` at its end, so that nothing is lost if the connection breaks or the
controller dies. It is this program again, with other settings.

The repeats of a Slurm cluster are in a folder that all nodes share; see `script.py`.
"""

import base64
import contextlib
import errno
import fcntl
import glob
import importlib.util
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
from typing import IO, Any, Callable, Dict, List, Mapping, Optional

Request = Dict[str, Any]
"""What the controller asks for, together with the settings of the connection; or an answer."""

OVER = threading.Event()
"""Set once the connection has ended."""

PROGRAM: bytes = globals().get("program", b"")
"""This program, as the connection has brought it."""

WRITING = threading.Lock()

POLL_SECONDS = 0.2
END_OF_OUTPUT_SECONDS = 5.0
STARTED = b"started"
MAX_FILE_BYTES = 256 << 20
"""Limit for each file that a benchmark writes, as in a container: it must not fill the host's disk."""

XLA_TOOLCHAIN = "cuda_sdk_lib"
"""Folder below the working directory that XLA searches first for ptxas and libdevice: the default of
`xla_gpu_cuda_data_dir`. With it, XLA compiles as in an image, whatever CUDA the host has at /usr/local/cuda."""

SMALL_BYTES = 4096
"""Size of files of `write_json`, and space reserved for `exit.json` in case the benchmark fills the disk."""

CHUNK_BYTES, MAX_LAST_LOG_BYTES = 64 * 1024, 4 * 1024 * 1024
"""Output that one answer has of a repeat; the second: of one of a cluster that has ended."""

PIP_SETTINGS = (
    *("index-url", "extra-index-url", "no-index", "find-links", "trusted-host", "proxy", "cert", "client-cert"),
    *("timeout", "retries", "keyring-provider"),
)
"""Variables of pip that are kept: how to reach packages. Others may change what is installed, and where."""


class RequestFailed(Exception):
    """A request failed, for the reason given in words."""


def write(**document: Any) -> None:
    """Write an answer; raises BrokenPipeError when the connection has ended."""
    data = memoryview(json.dumps(document).encode() + b"\n")
    with WRITING:
        while data:
            data = data[os.write(1, data) :]


def run(words: List[str], seconds: float = 60.0, **settings: Any) -> str:
    """Run a program and return its output; it gets no input, because it must not read the next requests."""
    pipe = subprocess.PIPE
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, timeout=seconds, **settings)
    except FileNotFoundError:
        remedy = "Name the login host with ssh:, or set PATH in a profile there"
        raise RequestFailed(f"{words[0]} was not found. {remedy}") from None
    if done.returncode != 0:
        raise RequestFailed(f"{words[0]} ended with exit code {done.returncode}: {last_line(done.stderr)}")
    return str(done.stdout, "utf-8", "replace")


def last_line(output: bytes) -> str:
    """Return the last line with text of a program's output."""
    lines = output[-10_000:].decode("utf-8", "replace").split("\n")
    return next((line[-500:] for line in reversed(lines) if line.strip()), "it printed nothing")


def read_json(path: Path) -> Optional[Request]:
    """Read a file written by `write_json`; None: missing or damaged."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def write_json(path: Path, document: Request) -> None:
    """Write a small file atomically, into space that was reserved if there is some: the disk may be full."""
    part = path.with_suffix(".part")
    with part.open("r+b" if part.exists() else "wb") as file:
        file.write(json.dumps(document).encode().ljust(SMALL_BYTES))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


# ---- the host: Pythons, an image, facts


def hello(request: Request) -> Request:
    """Report this Python, the host's tfbench image, what is installed, and free space."""
    root = Path(request["root"])
    root.mkdir(parents=True, exist_ok=True)
    return {
        "python": request["python"] or sys.executable,
        "tensorflow": importlib.util.find_spec("tensorflow") is not None,
        "image": read_json(Path(request["image_file"])),
        "runners": folders(root / "runner"),
        "environments": folders(root / "environments"),
        "free_bytes": shutil.disk_usage(root).free,
        "machine": platform.machine(),
        "libc": os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else "musl",
        "root": str(root),
    }


def folders(parent: Path) -> List[str]:
    """List complete folders; the names of partial ones and locks contain a dot."""
    return sorted(path.name for path in parent.glob("*") if "." not in path.name)


def unpack(request: Request) -> Request:
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
    return {"runner": str(target)}


def command(request: Request) -> Request:
    """Run a command of the host with variables of the controller, e.g. the probe, or one of Slurm's."""
    environment = with_login(os.environ, request["environment"])
    # A project in the current folder may have a package `results`.
    return {"output": run(request["words"], request["limit_seconds"], cwd="/", env=environment)}


def with_login(login: Mapping[str, str], ours: Dict[str, str]) -> Dict[str, str]:
    """Return a login's variables with ours; of libraries, the login's follow ours: they may be the driver's."""
    paths = filter(None, (variables.get("LD_LIBRARY_PATH") for variables in (ours, login)))
    return {**login, **ours, "LD_LIBRARY_PATH": ":".join(paths)}


# ---- the environment: the locked packages of a variant


def install(request: Request) -> Request:
    """Install locked packages into a folder named by the digest of the lock and the Python version."""
    target = Path(request["root"], "environments", request["digest"])
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another controller may make the same environment
        if not target.is_dir() and not OVER.is_set():
            make_environment(request, target)
    return {"site": str(target / "site")}


def make_environment(request: Request, target: Path) -> None:
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
    try:
        wait_for(lambda: child.poll() is not None or OVER.is_set(), float("inf"))
    finally:
        child.kill()
        child.wait()
    if child.returncode != 0:
        cause = last_line(log.read_bytes())
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


def start(request: Request) -> Request:
    """Start a repeat, or reattach to the existing one of this name."""
    folder, machine = job_folder(request), Path(request["root"], request["machine"])
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(str(machine), os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # until this run is seen to measure, or has failed to start
        if is_alive(state_of(folder) or {}) or any((folder / name).exists() for name in ("exit.json", "record.json")):
            return {"reattached": True}
        # Unlike `Path.glob` it passes over folders that another run removes at this moment.
        pattern = str(Path(glob.escape(str(machine)), request["states"]))
        for state in map(Path, glob.glob(pattern)):  # noqa: PTH207
            other = state.parent.parent.name
            if other != request["run"] and is_alive(read_json(state) or {}):
                return {"busy": other}
        shutil.rmtree(str(folder))  # what was left of one that has no result, e.g. after a restart of the host
        folder.mkdir()
        launch(request)
    finally:
        os.close(descriptor)
    return {"reattached": False}


def launch(request: Request) -> None:
    """Start a guardian and wait until the benchmark runs or has failed to start."""
    settings = json.dumps({**request, "payload": None, "guards": True}).encode() + b"\n"
    words, pipe, null = [sys.executable, "-c", PROGRAM.decode()], subprocess.PIPE, subprocess.DEVNULL
    done = subprocess.run(words, input=settings, stdout=pipe, stderr=null, cwd="/", start_new_session=True)
    if done.stdout != STARTED and "child" not in (state_of(job_folder(request)) or {}):
        cause = done.stdout.decode("utf-8", "replace")
        raise RequestFailed(cause or "the benchmark's guardian ended before the benchmark had started")


def guard(request: Request) -> None:
    """Run a benchmark to its end and write how it ended, in a process of its own."""
    folder = job_folder(request)
    try:
        child = start_child(request, folder)
    except (OSError, subprocess.SubprocessError) as error:
        for name in ("state.json", "exit.part"):
            with contextlib.suppress(OSError):
                (folder / name).unlink()
        os.write(1, f"{request['command'][0]} could not be started: {describe(error)}".encode()[:1000])
        return
    os.write(1, STARTED)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)  # `launch` reads to the end
    problem = keep_output_until_end(child, folder / "output.log", request["log_bytes"])
    write_json(folder / "exit.json", {"code": child.returncode, "detail": problem})


def start_child(request: Request, folder: Path) -> "subprocess.Popen[bytes]":
    """Start the benchmark; after an error, no process is left running.

    Its process notes itself before it runs the benchmark, so that none runs unknown if the guardian is killed at this
    moment. Until then it holds the pipe that `launch` reads to the end.
    """
    (folder / "exit.part").write_bytes(b" " * SMALL_BYTES)
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
    (folder / "state.part").write_bytes(b" " * SMALL_BYTES)

    def note() -> None:
        write_json(folder / "state.json", {**state, "child": identity(os.getpid()), "pid": os.getpid()})

    answers = os.dup(1)  # the standard output of the process is the benchmark's
    try:
        return subprocess.Popen(
            request["command"],
            cwd=folder,
            env=with_login(os.environ, request["environment"]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=note,
        )
    finally:
        os.close(answers)


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


def kill_group(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


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


def describe(error: Exception) -> str:
    """Return an error's message, which names a full disk clearly."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full ({error})"
    return str(error) if isinstance(error, OSError) else repr(error)


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


def follow(request: Request) -> Request:
    """Wait for more output of a repeat, or its end; send both, and its record."""
    folder, offset, begins = job_folder(request), request["offset"], time.monotonic()
    state, log = state_of(folder), folder / "output.log"
    if state is None:
        return {"lost": "the repeat's folder is gone: somebody removed it, or the host was replaced"}
    printed = log.stat().st_mtime_ns
    if "guardian" not in state:  # damaged: it may still have to write how the repeat ended
        wait_for((folder / "exit.json").exists, END_OF_OUTPUT_SECONDS)
    while True:
        alive, ended = is_alive(state), read_json(folder / "exit.json")
        chunk = read_regular(log, CHUNK_BYTES, offset) or b""
        if len(chunk) < CHUNK_BYTES and (ended is not None or not alive):
            record = text_of(read_regular(folder / "record.json", request["record_bytes"]))
            return {"log": text_of(chunk), "code": None, **(ended or {}), "record": record}
        if chunk:
            return {"log": text_of(chunk)}
        if time.monotonic() - begins > request["wait_seconds"] or OVER.wait(POLL_SECONDS):
            return {"prints": log.stat().st_mtime_ns != printed}  # also what was discarded


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
        return os.pread(descriptor, limit, offset)
    finally:
        os.close(descriptor)


def stop(request: Request) -> Request:
    """End a repeat, with SIGTERM first so that it can write its record."""
    end(request, signal.SIGTERM, signal.SIGKILL)
    return {"stopped": True}


def end(request: Request, *numbers: int) -> None:
    """Send a repeat's processes one signal after another until it has ended."""
    state, seconds = state_of(job_folder(request)) or {}, request["stop_grace_seconds"]
    child, guardian = state.get("child"), state.get("guardian")
    for number in numbers:
        if not lives(child):
            break
        kill_group(state["pid"], number)
        wait_for(lambda: not lives(child), seconds)
    if not wait_for(lambda: not lives(guardian), seconds):  # stopped or hung
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(str(guardian).split()[0]), signal.SIGKILL)


def remove(request: Request) -> Request:
    """Kill a repeat and remove its folder, and the run's folder if it is the last."""
    folder = job_folder(request)
    end(request, signal.SIGKILL)
    shutil.rmtree(str(folder), ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty
        folder.parent.rmdir()
        folder.parent.parent.rmdir()
    return {"removed": True}


def running(request: Request) -> Request:
    """List the repeats of a run on this host, running or ended."""
    run = Path(request["root"], "jobs", request["run"])
    return {"jobs": sorted(path.parent.name for path in run.glob("*/state.json"))}


def wait_for(reached: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition; False: it was not reached in time."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


# ---- Slurm: a run's folder in the one that all nodes share


def swept(request: Request) -> Path:
    """Return the run's folder, after jobs were cancelled, and files of repeats that are no longer needed removed."""
    folder = Path(request["folder"])
    if request["cancel"]:
        with contextlib.suppress(RequestFailed):  # they have ended
            run(["scancel", "--quiet", *request["cancel_options"], *request["cancel"]], request["limit_seconds"])
    for job in request["removals"]:
        shutil.rmtree(str(folder / "jobs" / job), ignore_errors=True)
        with contextlib.suppress(OSError):
            (folder / "done" / job).unlink()
    return folder


def survey(request: Request) -> Request:
    """List the states of a run's jobs, its arrays and what sbatch printed, and the repeats that have begun and ended.

    If the run is over and has neither, its folder goes.
    """
    folder, states = swept(request), run(request["squeue"], request["limit_seconds"])
    arrays = {path.stem.split("-")[-1]: path for path in folder.glob("array-*.jobs")}
    listed = {number: ["\n".join(path.read_text().split()), printed_by_sbatch(path)] for number, path in arrays.items()}
    begun, ended = names_in(folder / "jobs"), names_in(folder / "done")
    if request["over"] and not (begun or ended):
        shutil.rmtree(str(folder), ignore_errors=True)
    usable = os.access(str(folder.parent), os.W_OK)
    return {"usable": usable, "states": states, "arrays": listed, "begun": begun, "ended": ended}


def printed_by_sbatch(jobs: Path) -> str:
    """Return what sbatch printed when it accepted an array; empty: it has not."""
    file = jobs.with_suffix(".out")
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def names_in(folder: Path) -> str:
    """Return the names of visible files, one in a line."""
    return "\n".join(path.name for path in folder.glob("[!.]*"))


def submit(request: Request) -> Request:
    """Submit an array once, whatever becomes of the connection and of its answer; return what sbatch printed."""
    folder = swept(request)
    os.umask(0o077)
    for name in ("jobs", "done"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    jobs = folder / f"array-{request['number']}.jobs"
    if jobs.exists():  # an earlier request, whose answer was lost, submits it
        wait_for(lambda: bool(printed_by_sbatch(jobs)) or not jobs.exists(), request["limit_seconds"])
    if not printed_by_sbatch(jobs):
        jobs.write_text(request["jobs"] + "\n")
        script = jobs.with_suffix(".sh")
        script.write_text(request["script"], encoding="utf-8")
        words = ["sbatch", "--parsable", "--chdir=/", *request["options"], str(script)]
        try:
            jobs.with_suffix(".out").write_text(run(words, request["limit_seconds"]), encoding="utf-8")
        except RequestFailed:
            jobs.unlink()
            raise
    return {"output": printed_by_sbatch(jobs)}


def poll(request: Request) -> Request:
    """Send the states of a run's jobs, new output of repeats and, once they have ended, their records."""
    folder, left = swept(request), request["limit_bytes"]
    states = run(request["squeue"], request["limit_seconds"])  # before: what has ended by then has left its files
    repeats: Request = {}
    names_in(folder / "done")  # makes an NFS client refresh its cache of the folder
    for job, offset in request["followed"]:
        ended = read_regular(folder / "done" / job, 1000)
        most = CHUNK_BYTES if ended is None else MAX_LAST_LOG_BYTES
        log = read_regular(folder / "jobs" / job / "output.log", most, offset) or b""
        record = None
        if ended is not None:
            record = read_regular(folder / "jobs" / job / "record.json", request["limit_record_bytes"])
        left -= len(log) + len(record or b"")
        if repeats and left < 0:
            break
        if log or ended is not None:
            repeats[job] = [text_of(log), text_of(ended), text_of(record)]
    return {"states": states, "repeats": repeats}


ON_HOSTS = (hello, command, unpack, install, start, follow, stop, remove, running)
REQUESTS = {do.__name__: do for do in (*ON_HOSTS, survey, submit, poll)}


def serve(settings: Request) -> None:
    """Start a thread for each request until the connection ends, or the controller is silent."""
    signal.signal(signal.SIGALRM, lambda *_: sys.exit())
    try:
        while True:
            signal.alarm(settings["silence_seconds"])
            line = sys.stdin.buffer.readline()
            if not line:
                return
            request = {**settings, **json.loads(line.decode())}
            request["payload"] = sys.stdin.buffer.read(request["payload_bytes"])
            threading.Thread(target=carry_out, args=(request,)).start()
    finally:
        signal.alarm(0)
        OVER.set()


def carry_out(request: Request) -> None:
    """Carry out a request, and answer."""
    try:
        answer = REQUESTS[request["do"]](request)
    except (RequestFailed, subprocess.SubprocessError) as failure:
        answer = {"failed": str(failure)}
    except Exception as error:  # noqa: BLE001  also a bug: the controller must not wait for an answer
        answer = {"failed": f"{request['do']}: {describe(error)}"}
    with contextlib.suppress(BrokenPipeError):
        write(id=request["id"], **answer)


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
    sys.stdout.write(settings["mark"] + '\n{"agent": true}\n')
    sys.stdout.flush()
    serve(settings)


def login_variables(program: str) -> Dict[str, str]:
    """Return the variables of a login of the user that finds a program; empty: none does.

    Clusters and users set PATH in the profile of the login shell, and some users only for interactive shells.
    """
    shell, mark = os.environ.get("SHELL") or "sh", "tfbench-variables"
    for words in ([shell, "-l"], [shell, "-l", "-i"], ["sh", "-l"]):
        with contextlib.suppress(RequestFailed, OSError, subprocess.SubprocessError):
            lines = run([*words, "-c", f"echo {mark} && exec env -0"], 20.0).rpartition(mark + "\n")[2].split("\0")
            variables = {name: value for name, _, value in (line.partition("=") for line in lines) if name}
            if shutil.which(program, path=variables.get("PATH", "")):
                return variables
    return {}


if __name__ == "__main__":
    main()
