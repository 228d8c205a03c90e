import signal
import subprocess
import sys

import pytest

from results.runs.reading import from_json
from results.schema import Status
from tests.support import PROJECT
from tests.support.patience import patience

pytestmark = pytest.mark.slow  # starts programs and waits for them

PROGRAM = """
import ctypes, os, signal, sys, time
from pathlib import Path
from results.schema import Case, Record
from tfbench.findings import utc_now, write_record
from tfbench.supervisor import supervise

def write(outcome):
    record = Record(status=outcome.status, cause=outcome.cause, case=Case(model="resnet50"),
                    started_at=utc_now(), finished_at=utc_now())
    write_record(record, Path(sys.argv[1]))

def hang():
    mutex = ctypes.create_string_buffer(64)
    library = ctypes.PyDLL(None)  # keeps the interpreter's lock, as the worst of native code does
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)

def work(say_written):
    print(os.getpid(), flush=True)
    {work}

sys.exit(supervise(work, {max_seconds}, write, exit_code=3))
"""


def start(output, work, max_seconds=None):
    program = PROGRAM.replace("{work}", work).replace("{max_seconds}", str(max_seconds))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", program, str(output)], cwd=PROJECT, **pipes)


def ending(output, work, max_seconds=None):
    with start(output, work, max_seconds) as process:
        _, errors = process.communicate(timeout=patience())
    return process.returncode, errors


def test_a_signal_ends_native_code_with_a_record(tmp_path):
    output = tmp_path / "record.json"
    with start(output, "hang()") as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=patience())
    assert process.returncode == 3
    record = from_json(output.read_text())
    assert record.status is Status.STOPPED and "SIGINT" in record.cause


@pytest.mark.parametrize(
    ("code", "ends", "max_seconds"),
    [
        (0, "hang()", 2),
        (1, "os.kill(os.getppid(), signal.SIGTERM); hang()", None),
        (3, "os.abort()", None),
        (0, "return 7", 60),
    ],
)
def test_what_follows_the_record_does_not_change_its_exit_code(tmp_path, code, ends, max_seconds):
    output = tmp_path / "record.json"
    found, _ = ending(output, f"Path(sys.argv[1]).write_text('mine'); say_written({code}); {ends}", max_seconds)
    assert (found, output.read_text()) == (code, "mine")


@pytest.mark.parametrize(
    ("kills", "status", "cause"),
    [
        ([3, 4], Status.OOM, "memory was full"),
        ([3, 3], Status.ERROR, "not by the kernel's out-of-memory killer"),
        ([None, None], Status.OOM, "most likely by the kernel"),
    ],
)
def test_a_killed_child_is_out_of_memory_if_the_kernel_says_so(tmp_path, kills, status, cause):
    output = tmp_path / "record.json"
    counted = f"import tfbench.supervisor as s; counts = iter({kills}); s.out_of_memory_kills = lambda: next(counts)"
    program = PROGRAM.replace("{work}", "os.kill(os.getpid(), signal.SIGKILL)").replace("{max_seconds}", "60")
    command = [sys.executable, "-c", f"{counted}\n{program}", str(output)]
    assert subprocess.run(command, cwd=PROJECT, capture_output=True, timeout=60, check=False).returncode == 3
    record = from_json(output.read_text())
    assert record.status is status and cause in record.cause


FULL = "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2GiB"
MAY_FAIL = f"{FULL}. The caller indicates that this is not a failure"
HANG = "os.write(2, b'tfbench: state timing\\n'); hang()"


def abort(printed):
    """Return code that prints what an allocator prints, and aborts."""
    return f"print('W0000 00:00:1.2 42 bfc_allocator.cc:502] {printed}', file=sys.stderr); os.abort()"


@pytest.mark.parametrize(
    ("work", "max_seconds", "status", "cause", "printed"),
    [
        (HANG, 2, Status.TIMEOUT, "=2, while timing: stderr shows where it waited", "in hang"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", 0.5, Status.TIMEOUT, "not finished", ""),
        ("ctypes.string_at(0)", None, Status.ERROR, "SIGSEGV", "in work"),
        (abort(FULL), None, Status.OOM, f"after: {FULL}", FULL),
        (abort(MAY_FAIL), None, Status.ERROR, "SIGABRT", MAY_FAIL),
        ("return 0", None, Status.ERROR, "without a record", ""),
    ],
)
def test_each_bad_end_leaves_a_record_with_its_cause(tmp_path, work, max_seconds, status, cause, printed):
    output = tmp_path / "record.json"
    code, errors = ending(output, work, max_seconds)
    record = from_json(output.read_text())
    assert (code, record.status) == (3, status)
    assert cause in record.cause and printed in errors
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"], "no half-written file"


def test_a_reader_that_stops_reading_does_not_keep_a_child_alive(tmp_path):
    output = tmp_path / "record.json"
    with start(output, "while True: os.write(2, b'x' * 4096)", max_seconds=1) as process:
        process.wait(patience())
    assert from_json(output.read_text()).status is Status.TIMEOUT


def test_the_child_does_not_outlive_its_parent(tmp_path):
    with start(tmp_path / "record.json", "time.sleep(600)") as process:
        assert int(process.stdout.readline()) != process.pid
        process.kill()
        # Both ends of the pipe are the child's too: it reads as closed only when the child is gone as well.
        assert process.communicate(timeout=patience()) == ("", "")
