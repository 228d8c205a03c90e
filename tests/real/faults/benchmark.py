"""A fake of `python -m tfbench` in a container: the same flags, lines and record, no TensorFlow.

The environment variable FAKE_BENCHMARK, a JSON object that is part of the image, says how it behaves:
`{"does": "work", "seconds": 1}`. Standard library and the record's schema only.
"""

# ruff: noqa: T201 — what it prints is what is tested

import json
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from results import schema
from results.schema import progress, record_json
from results.schema.case import SETTINGS, kind_of

FLOOD_BYTES = 320 << 20
"""More than a controller may hold (`MAX_CONTROLLER_BYTES` of the tests), and than a benchmark may write to a file."""

STEP_SECONDS = 0.1
EVIL_NAME = "\x1b]0;owned\x07\x1b[2J\u202e[bold]evil[/bold]\u2028"
"""Sets a terminal's title, clears the screen, turns the writing direction, and is markup to rich."""


def main() -> None:
    named = (argument.removeprefix("--").partition("=") for argument in sys.argv[1:])
    flags = {name: value for name, _, value in named}
    behaviour = json.loads(os.environ.get("FAKE_BENCHMARK", "{}"))
    output, case = Path(flags["output"]), case_from_flags(flags)
    signal.signal(signal.SIGTERM, lambda *_: _end(output, case, schema.Status.STOPPED, "stopped by SIGTERM"))
    signal.signal(signal.SIGALRM, lambda *_: _end(output, case, schema.Status.TIMEOUT, "took longer than asked"))
    signal.setitimer(signal.ITIMER_REAL, float(flags["max_seconds"]))
    print(progress.state_line("timing"), flush=True)
    try:
        DOES[behaviour.get("does", "work")](output, case, float(behaviour.get("seconds", 0.5)))
    finally:
        if "print_record" in flags and output.is_file():
            print(*progress.record_lines(output.read_bytes()), sep="\n", flush=True)


def work(output: Path, case: schema.Case, seconds: float) -> None:
    """Print steps for a while and leave a good record."""
    ends = time.monotonic() + seconds
    step = 0
    while time.monotonic() < ends:
        step += 1
        print(progress.step_line(step, 100.0, "images", STEP_SECONDS), flush=True)
        time.sleep(STEP_SECONDS)
    _leave(output, good_record(case))


def devices(output: Path, case: schema.Case, _seconds: float) -> None:
    """Say which GPUs this container has."""
    print("devices:", *sorted(path.name for path in Path("/dev").glob("nvidia*")), flush=True)
    _leave(output, good_record(case))


def hang(_output: Path, _case: schema.Case, _seconds: float) -> None:
    """Say nothing more, for ever."""
    while True:
        time.sleep(60)


def hang_on(output: Path, case: schema.Case, seconds: float) -> None:
    """Likewise, and do not end when asked to."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang(output, case, seconds)


def chatter(output: Path, case: schema.Case, _seconds: float) -> None:
    """Print `FLOOD_BYTES` of lines."""
    _flood((b"x" * 1023 + b"\n") * 1024, FLOOD_BYTES, output, case)


def one_line(output: Path, case: schema.Case, _seconds: float) -> None:
    """Print 64 MiB without a line's end."""
    _flood(b"y" * (1 << 20), 64 << 20, output, case)


def _flood(block: bytes, size: int, output: Path, case: schema.Case) -> None:
    for _ in range(size // len(block)):
        sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()
    _leave(output, good_record(case))


def eat_memory(_output: Path, _case: schema.Case, _seconds: float) -> None:
    """Take memory until the kernel has had enough; at most 4 GiB, where nothing stops it."""
    taken = []
    for _ in range(64):
        taken.append(b"m" * (64 << 20))
    sys.exit(f"took {len(taken)} × 64 MiB, and nothing stopped it")


def huge_record(output: Path, _case: schema.Case, _seconds: float) -> None:
    """Write `FLOOD_BYTES` where the record belongs, as far as that is let."""
    block = b'{"schema_version": 1, ' + b" " * (1 << 20)
    with output.open("wb") as file:
        for _ in range(FLOOD_BYTES // len(block)):
            file.write(block)


def malformed(output: Path, _case: schema.Case, _seconds: float) -> None:
    """Leave half a record."""
    output.write_text('{"schema_version": 1, "status": "ok", "case": {"model": ')


def escapes(output: Path, case: schema.Case, _seconds: float) -> None:
    """Print and write terminal control sequences and markup."""
    print(EVIL_NAME, "says nothing good", flush=True)
    _leave(output, good_record(case, name=EVIL_NAME))


def evil_cause(output: Path, case: schema.Case, _seconds: float) -> None:
    """Fail with a cause that is full of control sequences."""
    _leave(output, failed_record(case, schema.Status.ERROR, f"{EVIL_NAME} failed"))
    sys.exit(1)


def exit_code(_output: Path, _case: schema.Case, _seconds: float) -> None:
    """End with a code of its own and no record."""
    print("cannot go on", flush=True)
    sys.exit(41)


def link(output: Path, _case: schema.Case, _seconds: float) -> None:
    """Leave a link to a file instead of a record."""
    output.symlink_to("/etc/passwd")


def fill_disk(output: Path, case: schema.Case, _seconds: float) -> None:
    """Fill the disk below the record's folder, then try to write the record."""
    try:
        for number in range(64):
            with (output.parent / f"fill-{number}").open("wb") as file:
                for _ in range(128):
                    file.write(b"z" * (1 << 20))
    except OSError as error:
        print(f"fill: {error.strerror}", flush=True)
    _leave(output, good_record(case))


DOES = {
    function.__name__: function
    for function in (
        *(work, devices, hang, hang_on, chatter, one_line, huge_record, eat_memory),
        *(malformed, escapes, evil_cause, exit_code, link, fill_disk),
    )
}


HOSTILE = {
    "will-not-end": ("hang_on", schema.Status.TIMEOUT, "printed nothing for 0.2 minutes"),
    "huge-record": ("huge_record", schema.Status.BAD_RESULT, "larger than"),
    "half-a-record": ("malformed", schema.Status.BAD_RESULT, "not JSON"),
    "link": ("link", schema.Status.BAD_RESULT, "left no record"),
    "escapes": ("escapes", schema.Status.OK, ""),
    "exit-code": ("exit_code", schema.Status.ERROR, "exit code 41"),
}
"""On every kind of host, by name: what its benchmark does, the status that it must get, and words of the cause."""


def good_record(case: schema.Case, name: str = "fake") -> schema.Record:
    """Return a record that passes every check; its figures mean nothing."""
    samples = case.batch_per_gpu * case.num_gpus * case.num_steps
    seconds = STEP_SECONDS * case.num_steps
    return schema.Record(
        status=schema.Status.OK,
        case=case,
        started_at=_now(),
        finished_at=_now(),
        environment=schema.Environment(
            tfbench=name, python=name, tensorflow=name, keras=name, kernel=name, operating_system=name, cpu=name,
            cpu_count=1, cpu_limit=1.0, memory_bytes=None, intra_op_threads=1, inter_op_threads=1, tf32_enabled=False,
            variables={name: value for name, value in os.environ.items() if name.startswith("NCCL_")},
        ),
        measurement=schema.Measurement(
            unit="images", samples_per_second=samples / seconds, samples=samples, seconds=seconds,
            num_steps=case.num_steps, step_seconds=[STEP_SECONDS * 0.99] * case.num_steps,
            step_p50_seconds=STEP_SECONDS, step_p95_seconds=STEP_SECONDS, step_cv=0.0, step_drift=0.0,
            build_seconds=0.0, compile_seconds=0.0, warmup_steps=case.warmup_steps, warmup_seconds=0.0,
            replicas=case.num_gpus, batch_per_gpu=case.batch_per_gpu,
            global_batch=case.global_batch, image_size=case.image_size,
            parameters_trainable=1, parameters_total=1, loss_first=7.0, loss_last=6.0,
        ),
        validity=schema.Validity(valid=True, checks=[schema.Check(name="finite", passed=True, detail=name)]),
    )  # fmt: skip


def failed_record(case: schema.Case, status: schema.Status, cause: str) -> schema.Record:
    return schema.Record(status=status, case=case, cause=cause, started_at=_now(), finished_at=_now())


def _leave(output: Path, record: schema.Record) -> None:
    """Write a record whole or not at all, as tfbench does."""
    beside = output.with_suffix(".partial")
    beside.write_text(record_json.to_json(record))
    beside.replace(output)


def _end(output: Path, case: schema.Case, status: schema.Status, cause: str) -> None:
    _leave(output, failed_record(case, status, cause))
    sys.exit(1)


def case_from_flags(flags: dict[str, str]) -> schema.Case:
    """Return the case of a command line; switches are at their defaults."""
    named = {name: flags.get(setting.flag or name) for name, setting in SETTINGS.items() if kind_of(name) is not bool}
    return schema.Case(**{name: kind_of(name)(text) for name, text in named.items() if text is not None})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    main()
