"""Text from hosts is made harmless before it is shown or stored."""

import itertools
import tracemalloc
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrate.text import Lines, file_name_part, plain_text, read_json, whole_number


def test_control_sequences_vanish_and_their_text_stays():
    hostile = "\x1b[1;31mred\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x07 a\tb\x00c\x9b2J\u202ed"
    assert plain_text(hostile) == "red link a bc2Jd"


@given(st.text(max_size=300), st.integers(1, 100))
def test_what_is_left_is_one_short_line_of_visible_characters(text: str, limit: int):
    plain = plain_text(text, limit)
    assert len(plain) <= limit
    assert "\x1b" not in plain and "\n" not in plain
    assert not any(unicodedata.category(character) in ("Cc", "Cf", "Cs") for character in plain)
    assert "/" not in file_name_part(text) and "\x00" not in file_name_part(text), "it never leaves its folder"


@given(st.lists(st.sampled_from([b"a", b"\n", b"bc\n", b"\n\n", b"\xff\x1b[31m"]), max_size=30))
def test_lines_do_not_depend_on_how_the_output_was_cut(chunks: list[bytes]):
    lines, whole = Lines(), Lines()
    cut = [line for chunk in chunks for line in lines.cut(chunk)] + list(lines.end())
    assert cut == [*whole.cut(b"".join(chunks)), *whole.end()]
    assert lines.taken == len(b"".join(chunks))
    assert not any(before == after == "" for before, after in itertools.pairwise(cut))


@pytest.mark.parametrize("chunk", [b"\n", b"x"], ids=["empty lines", "a line without an end"])
def test_endless_output_takes_little_memory(chunk: bytes):
    lines = Lines()
    tracemalloc.start()
    try:
        longest = max((len(line) for _ in range(20) for line in lines.cut(chunk * (1 << 20))), default=0)
        longest = max([longest, *map(len, lines.end())])
        assert tracemalloc.get_traced_memory()[1] < 20 << 20 and longest <= 8_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nested more than 64"),
        ('{"a":' * 100 + "1" + "}" * 100, "nested more than 64"),
        ("1" + "0" * 400, "more than 20 digits"),
        ('{"a": 1e999}', "not a finite number"),
        ("x" * 1_000_001, "longer than 1000000 bytes"),
        ("{", "Expecting"),
    ],
)
def test_json_from_a_host_is_bounded(text: str, said: str):
    with pytest.raises(ValueError, match=said):
        read_json(text, 1_000_000)
    assert read_json(b'{"a": [1, 2.5, null]}', 100) == {"a": [1, 2.5, None]}


def test_a_whole_number_of_a_host_is_none_where_python_would_fail():
    assert [whole_number(text) for text in ("12", "²", "٣", "9" * 5000, "-1", "1.5", "", "x")] == [12, *[None] * 7]
