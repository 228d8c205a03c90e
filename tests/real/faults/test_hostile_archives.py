"""What comes instead of a record's archive: paths, links, devices, holes, loops. Read in memory, never by its paths."""

import contextlib
import itertools
import tarfile
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrate.engines.bounded import only_file, read_bounded
from results.schema import Status
from results.schema.record_json import MAX_RECORD_BYTES
from tests.real.faults.relay import Relay, http_answer
from tests.support.controller import Runs, folder_bytes

TERABYTE = 1 << 40
MANY = 5_000


def member(name: str = "record.json", content: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = "") -> bytes:
    """Return one member of an archive, header and content."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, len(content)
    padding = -len(content) % tarfile.BLOCKSIZE
    return info.tobuf(tarfile.GNU_FORMAT) + content + b"\0" * padding


def claiming(size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Return a header that claims a size, whatever follows; negative ones too."""
    header = bytearray(member(kind=kind)[: tarfile.BLOCKSIZE])
    header[124:136] = b"%011o\0" % size if 0 <= size < 8**11 else size.to_bytes(12, "big", signed=True)
    if size >= 8**11:
        header[124] = 0x80
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


END = b"\0" * tarfile.BLOCKSIZE * 2
GOOD = b'{"status": "ok"}'
UP = member("../../../../../../../tmp/tfbench-was-here", GOOD) + END


def test_the_name_in_an_archive_means_nothing_and_only_a_file_is_a_record():
    for name in ("/tmp/tfbench-was-here", "..", "\x1b[2Jx", "a/" * 90 + "b", "\udcff"):
        assert only_file(member(name, GOOD) + END) == GOOD
    assert not Path("/tmp/tfbench-was-here").exists()
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
        assert only_file(member(kind=kind, target="/etc/passwd") + END) is None


HOSTILE = {
    "empty": b"",
    "noise": bytes(range(256)) * 64,
    "compressed": b"\x1f\x8b\x08" + b"\0" * 4096,
    "cut in the header": member(content=GOOD)[:300],
    "cut in the content": member(content=GOOD)[:515],
    "claims a terabyte": claiming(TERABYTE) + GOOD,
    "sparse terabyte": claiming(TERABYTE, tarfile.GNUTYPE_SPARSE) + END,
    "negative size": claiming(-512) + END,
    "loops back": member(kind=tarfile.DIRTYPE) + claiming(-512, b"Z") + END,
    "many long names": claiming(0, tarfile.GNUTYPE_LONGNAME) * MANY + member(content=GOOD) + END,
    "many PAX headers": claiming(0, tarfile.XHDTYPE) * MANY + member(content=GOOD) + END,
    "PAX without numbers": member(content=b"9 GNU.sparse.map=x,y\n", kind=tarfile.XHDTYPE) + member(content=GOOD) + END,
}


@pytest.mark.timeout(5)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_read_in_bounded_time_and_memory(name: str):
    content = only_file(HOSTILE[name])
    assert content is None or len(content) <= max(len(HOSTILE[name]), MAX_RECORD_BYTES + 1)


@pytest.mark.timeout(120)
@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2 * tarfile.BLOCKSIZE - 1), st.integers(0, 255)), max_size=12))
def test_a_damaged_archive_is_a_bad_record_and_never_an_exception(changes: list[tuple[int, int]]):
    archive = bytearray(member(content=GOOD) + END)
    for position, value in changes:
        archive[position] = value
    header = archive[: tarfile.BLOCKSIZE]
    header[148:156] = b" " * 8
    archive[148:156] = b"%06o\0 " % sum(header)
    content = only_file(bytes(archive))
    assert content is None or len(content) <= MAX_RECORD_BYTES + 1


def test_no_more_is_read_than_asked_for():
    chunks = itertools.repeat(b"x" * 1000, 20)
    assert len(read_bounded(chunks, 10_500)) == 10_500
    assert len(list(chunks)) == 9


@pytest.mark.docker
@pytest.mark.timeout(120)
def test_hostile_archives_of_engines_get_bad_result_and_leave_no_file(engines, fake_images, runs: Runs, short_path):
    def answering(archive: bytes):
        def answer(request: str) -> bytes | None:
            parts = urlsplit(request.split(" ")[1])
            if not parts.path.endswith("/archive") or "path" not in parse_qs(parts.query):
                return None
            stat = "X-Docker-Container-Path-Stat: eyJuYW1lIjoicmVjb3JkLmpzb24ifQ=="
            return http_answer(archive, stat, content_type="application/x-tar")

        return answer

    archives = {"terabyte": HOSTILE["claims a terabyte"], "loops": HOSTILE["loops back"], "up": UP}
    with contextlib.ExitStack() as stack:
        hosts = {}
        for host, archive in archives.items():
            relay = Relay(short_path / f"{host}.sock", engines.first.socket, answer=answering(archive))
            hosts[host] = {"docker": stack.enter_context(relay).url}
        done = runs.measure({"all": {"hosts": hosts}}, image=fake_images.image(seconds=0), expect=3)
    assert "Traceback" not in done.stderr
    assert {record.status for record in runs.by_host().values()} == {Status.BAD_RESULT}
    assert len(runs.records()) == len(archives) and folder_bytes(runs.path) < 5_000_000
    assert not Path("/tmp/tfbench-was-here").exists()
