"""A record that travels as lines of output: what arrives is what was sent, or nothing."""

import random
import zlib

import pytest

from results.schema.progress import MAX_RECORD_LINES, RecordReader, parse_line, record_lines
from results.schema.record_json import MAX_RECORD_BYTES

LIMIT = 1 << 20
NOISE = random.Random(1).randbytes(20_000)


def read(lines, limit=LIMIT):
    reader = RecordReader(limit)
    for line in lines:
        assert reader.take(line)
    return reader.payload()


@pytest.mark.parametrize("payload", [b"{}", b"", b'{"cause": "\xc3\xa9"}\n' * 4000, NOISE])
def test_a_record_arrives_in_any_order_and_with_repetitions(payload):
    lines = list(record_lines(payload))
    assert max(map(len, lines)) < 4096
    random.Random(2).shuffle(lines)
    assert read(lines + lines[:1]) == payload


def test_a_missing_part_gives_no_record_and_other_output_is_no_part():
    first, *middle, last = record_lines(NOISE)
    reader = RecordReader(LIMIT)
    for line in (first, *middle):
        assert reader.take(line) and not reader.take("tfbench: state writing") and parse_line(line) is None
    assert middle and reader.begun and reader.payload() is None
    reader.take(last)
    assert reader.payload() == NOISE


def test_a_changed_part_gives_no_record():
    (line,) = record_lines(b'{"a": 1}' * 100)
    head, _, packed = line.rpartition(" ")
    for other in (next(record_lines(b'{"a": 2}' * 100)).rpartition(" ")[2], packed[::-1].lstrip("=")):
        assert read([f"{head} {other}"]) is None


def test_parts_of_two_records_are_not_mixed():
    first, second = list(record_lines(NOISE)), list(record_lines(NOISE[::-1]))
    reader = RecordReader(LIMIT)
    for line in first[:-1] + second:
        reader.take(line)
    assert reader.payload() == NOISE[::-1]


def test_a_bomb_is_unpacked_no_further_than_one_byte_beyond_the_limit():
    bomb = list(record_lines(b"0" * (8 * LIMIT)))
    assert len(read(bomb)) == LIMIT + 1


@pytest.mark.parametrize(
    "line",
    [
        "tfbench: record 0/1 0123456789abcdef eA==",
        "tfbench: record 2/1 0123456789abcdef eA==",
        f"tfbench: record 1/{MAX_RECORD_LINES + 1} 0123456789abcdef eA==",
        "tfbench: record 1/1 0123456789abcdeg eA==",
        "tfbench: record 1/1 0123456789abcdef e=\x1b[2J",
        "tfbench: record 1/1 0123456789abcdef " + "A" * 3001,
    ],
)
def test_what_is_no_part_is_left_alone(line):
    reader = RecordReader(LIMIT)
    assert not reader.take(line)
    assert reader.payload() is None and not reader.begun


@pytest.mark.slow
def test_the_largest_record_fits_into_the_lines_uncompressed_too():
    noise = random.Random(3).randbytes(MAX_RECORD_BYTES)
    assert len(zlib.compress(noise)) > MAX_RECORD_BYTES
    assert sum(1 for _ in record_lines(noise)) <= MAX_RECORD_LINES
