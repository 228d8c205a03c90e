"""POSIX sh scripts for the login host or this machine, each of which does everything in one connection.

They print lines of the form `KIND|VALUE`, which `answers` parses. All names in them are quoted.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Collection, Mapping, Sequence

from orchestrate.connections.conversation import ask, own_words, ssh_failure, with_retries
from orchestrate.connections.ssh import OWN_CONNECTION, ssh_command
from orchestrate.errors import Unreachable
from orchestrate.inventory.addresses import AS_CONFIGURED, HostKeys, SSHAddress
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.text import plain_text
from results.schema import Status
from results.schema.record_json import MAX_RECORD_BYTES

SCRIPT_SECONDS = 120.0
"""Time limit of a script, which hangs if the shared folder is gone or the scheduler is busy."""

SSH_FAILED = 255

LOG_BYTES = 64 * 1024
"""Maximum output of a running repeat per poll."""

LAST_LOG_BYTES = 4 * 1024 * 1024
"""Maximum output of an ended repeat."""

POLL_BYTES = 8 * 1024 * 1024
"""Limit for files of repeats per poll; once exceeded, the remaining repeats wait for the next poll."""

MAX_ANSWER_BYTES = 32 * 1024 * 1024  # POLL_BYTES and the last repeat's log and record, in base64
MAX_ANSWER_LINES = 400_000
"""Four lines for each of 100,000 repeats; as Python objects, they take about 80 MB."""

_FORMAT = "state|%i|%T|%N|%k|%r"

_REFUSALS = {
    "QOSMaxSubmit": Status.UNSUPPORTED,
    "Invalid account": Status.UNSUPPORTED,
    "invalid partition": Status.UNSUPPORTED,
    "configuration is not available": Status.UNSUPPORTED,
    "Invalid qos": Status.UNSUPPORTED,
    "Invalid feature": Status.UNSUPPORTED,
    "Invalid generic resource": Status.NO_GPU,
}


_LOGIN = (
    'exec sh -c \'case "$SHELL" in */bash|*/zsh|*/ksh|*/fish) exec "$SHELL" -l -c '
    '"command -v sbatch >/dev/null 2>&1 && exec sh -s; exec \\"\\$SHELL\\" -l -i -c \\"exec sh -s\\"" ;; '
    "esac; exec sh -l -s'"
)
"""Starts sh as a login of the user would: clusters and users set PATH in the profile of the login shell, and some users
only for interactive shells. For any login shell; csh accepts `-l` only alone."""


class LoginShell:
    """Runs scripts on the machine that has Slurm's commands.

    Args:
        login: Address of the login host; None: this machine.
        keys: Host keys that ssh accepts.
    """

    def __init__(self, login: SSHAddress | None, keys: HostKeys = AS_CONFIGURED) -> None:
        self.name = "this machine" if login is None else f"ssh {login.target}"
        self._login = login
        self._keys = keys
        self._flags = ["-T"]

    def run(self, script: str, seconds: float = SCRIPT_SECONDS) -> list[str]:
        """Run a script.

        Args:
            script: Lines of POSIX sh; their standard input is empty.
            seconds: Time limit.

        Returns:
            The lines that it printed, without those of login profiles; they are not trusted.

        Raises:
            Unreachable: No connection, a nonzero exit code, or a truncated answer.
        """
        mark = f"tfbench-{secrets.token_hex(8)}"
        # In a function, so that the shell reads all of it first: no command can consume the rest of the script.
        text = f"main() {{\necho {mark}\n{script}\n:\n}}\nmain </dev/null || exit\necho {mark}\nexit 0\n"
        parts = with_retries(lambda: self._connect(text, mark, seconds)).split(f"{mark}\n")
        if len(parts) != 3:
            raise Unreachable(f"{self.name}: its answer is incomplete")
        if parts[1].count("\n") > MAX_ANSWER_LINES:
            raise Unreachable(f"{self.name}: its answer has more than {MAX_ANSWER_LINES} lines")
        return parts[1].split("\n")

    def _connect(self, text: str, mark: str, seconds: float) -> str:
        """Run a script once, and return its output.

        Raises:
            Unreachable: As `run`.
            Dropped: The connection failed before anything ran.
        """
        command = ["sh", "-s"]
        if self._login is not None:
            command = ssh_command(self._login, self._keys, *self._flags, remote=_LOGIN)
        answer = ask(command, text.encode(), seconds=seconds, max_bytes=MAX_ANSWER_BYTES)
        if answer.exceeded:
            # The user's shared connection may be dead without ssh noticing: open our own next time.
            self._flags = ["-T", OWN_CONNECTION]
            raise Unreachable(f"{self.name}: {answer.exceeded}")
        code, output, errors = answer.code, answer.output, answer.errors
        if self._login is not None and code == SSH_FAILED and (errors or not output):
            failure = ssh_failure(self._login.target, errors, code)
            raise Unreachable(failure.cause) if output else failure
        if code != 0 and mark.encode() not in output:
            raise Unreachable(f"{self.name}: {own_words(code, output + errors)}")
        if code != 0:
            lines = [plain_text(line, 300).strip() for line in errors.decode("utf-8", "replace").splitlines()]
            raise Unreachable(f"{self.name}: {next(filter(None, reversed(lines)), f'exit code {code}')}")
        return output.decode("utf-8", "replace")


def refusal(message: str) -> Status:
    """Return the status for an error message of `sbatch`."""
    return next((status for sign, status in _REFUSALS.items() if sign in message), Status.ERROR)


def states(name: str) -> str:
    """Return a script that prints the states of a run's jobs; pending tasks of an array share a line."""
    return (
        f'SLURM_BITSTR_LEN=0 squeue --noheader --user="$(id -un)" --name={shlex.quote(name)} --states=all '
        f"--format={shlex.quote(_FORMAT)} || exit 3"
    )


def probe(queue: SlurmQueue) -> str:
    """Return a script that lists the partition's nodes and checks the shared folder."""
    partition = "" if queue.partition is None else f" --partition={queue.partition}"
    return f"""\
command -v sbatch >/dev/null || {{ echo 'missing|sbatch'; return 0; }}
echo "version|$(sinfo --version)"
sinfo --noheader --format='partition|%R' || exit 3
sinfo --noheader --Node --format='node|%N|%c|%m|%T|%G'{partition} || exit 3
[ -d {queue.shared_folder} ] && [ -w {queue.shared_folder} ] || echo 'folder|missing'"""


def survey(root: str, name: str) -> str:
    """Return a script that lists a run's arrays, started and ended repeats, and jobs in Slurm."""
    return f"""\
{states(name)}
cd {shlex.quote(root)} 2>/dev/null || return 0
for file in array-*.jobs; do
    [ -f "$file" ] || continue
    number=${{file#array-}} number=${{number%.jobs}}
    sed "s/^/jobs|$number|/" "$file"
    sed "s/^/id|$number|/" "array-$number.out" 2>/dev/null
done
ls jobs | sed 's/^/begun|/'
ls done | sed 's/^/ended|/'"""


def submit(
    root: str, number: int, script: str, jobs: Sequence[str], removals: Collection[str], after: int | None
) -> str:
    """Return a script that submits an array, having written its list of jobs and removed leftovers of earlier attempts.

    Args:
        root: The run's folder in the shared one.
        number: Of the array.
        script: The batch script.
        jobs: Ids in the order of the tasks.
        removals: Ids of repeats whose folders are removed first.
        after: Job id of the previous array, which must end first, or None.
    """
    dependency = "" if after is None else f" --dependency=afterany:{after}"
    file = f"array-{number}"
    return f"""\
umask 077
mkdir -p {shlex.quote(root)} && cd {shlex.quote(root)} && mkdir -p jobs done || exit 4
{_removal(removals)}
cat >{file}.sh <<'END-OF-SCRIPT'
{script}END-OF-SCRIPT
cat >{file}.jobs <<'END-OF-JOBS'
{chr(10).join(jobs)}
END-OF-JOBS
if sbatch --parsable --chdir=/{dependency} {file}.sh >{file}.out 2>{file}.err; then
    sed 's/^/submitted|/' {file}.out
    sed 's/^/notice|/' {file}.err
else
    echo "refused|exit code $?:"
    cat {file}.err {file}.out | sed 's/^/refused|/'
    rm -f {file}.jobs {file}.out
fi"""


def submitted(root: str, number: int, name: str) -> str:
    """Return a script that prints what `sbatch` printed about an array, and the states of the run's jobs."""
    return f"""\
sed 's/^/submitted|/' {shlex.quote(root)}/array-{number}.out 2>/dev/null
{states(name)}"""


def cancel(tasks: Sequence[str], *, waiting_only: bool = False) -> str:
    """Return a command that cancels tasks, ignoring those that have ended."""
    if not tasks:
        return ":"
    only = " --state=PENDING" if waiting_only else ""
    return f"scancel --quiet{only} {shlex.join(tasks)} 2>/dev/null || :"


def remove(root: str, jobs: Collection[str]) -> str:
    """Return a script that removes the files of repeats."""
    return f"cd {shlex.quote(root)} 2>/dev/null || return 0\n{_removal(jobs)}"


def tidy(root: str, name: str, jobs: Collection[str]) -> str:
    """Return a script that removes the files of repeats, and the run's folder if no files or active jobs of it remain.

    Slurm lists a job as running for a moment after its last file is written. A completing job writes nothing more, but
    may be listed for as long as the cluster's epilog runs or its node does not respond.
    """
    return f"""\
{remove(root, jobs)}
for second in 1 2 3 4 5; do
    [ -z "$(ls -A jobs)$(ls -A done)" ] || return 0
    left=$(squeue --noheader --user="$(id -un)" --name={shlex.quote(name)} --format=%T) || exit 3
    [ -n "$(echo "$left" | grep -vx COMPLETING)" ] || {{ cd / && rm -rf {shlex.quote(root)}; return 0; }}
    sleep 1
done"""


def poll(root: str, name: str, followed: Mapping[str, int], cancels: Sequence[str], removals: Collection[str]) -> str:
    """Return a script that cancels and removes repeats, and prints states and new output.

    Args:
        root: The run's folder in the shared one.
        name: Of its jobs.
        followed: Bytes of each repeat's output that were read earlier.
        cancels: Tasks to cancel.
        removals: Ids of repeats whose folders are removed.
    """
    in_turn = sorted(followed.items(), key=lambda item: item[1])  # the quietest first: POLL_BYTES may not last for all
    reports = "\n".join(f"report {shlex.quote(job)} {offset}" for job, offset in in_turn)
    return f"""\
{cancel(cancels)}
cd {shlex.quote(root)} || exit 4
{_removal(removals)}
ls done >/dev/null  # makes an NFS client refresh its cache of the folder
{states(name)}
left={POLL_BYTES}
part() {{ if [ "$2" -eq 0 ]; then head -c "$3" "$1"; else tail -c "+$(($2 + 1))" "$1" | head -c "$3"; fi; }}
send() {{ printf '%s|%s|' "$1" "$2"; part "$3" "$4" "$5" | base64 -w 0; echo; }}
report() {{
    [ "$left" -gt 0 ] || return 0
    log=jobs/$1/output.log record=jobs/$1/record.json size=0
    [ ! -f "$log" ] || size=$(wc -c <"$log")
    if [ -f "done/$1" ]; then
        left=$((left - size + $2))
        [ "$size" -le "$2" ] || send log "$1" "$log" "$2" {LAST_LOG_BYTES}
        if [ -f "$record" ] && [ ! -L "$record" ]; then
            left=$((left - $(wc -c <"$record")))
            send record "$1" "$record" 0 {MAX_RECORD_BYTES + 1}
        fi
        send done "$1" "done/$1" 0 1000
    elif [ "$size" -gt "$2" ]; then
        send log "$1" "$log" "$2" {LOG_BYTES}
        left=$((left - {LOG_BYTES}))
    fi
}}
{reports}"""


def _removal(jobs: Collection[str]) -> str:
    paths = [f"{folder}/{job}" for job in sorted(jobs) for folder in ("jobs", "done")]
    return f"rm -rf {shlex.join(paths)}" if paths else ":"
