"""Text from hosts is made harmless before it is shown or stored."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from orchestrate.text import file_name_part, plain_text


def test_control_sequences_vanish_and_their_text_stays():
    assert (
        plain_text("\x1b[1;31mred\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x07 a\tb\x00c\x9b2J\u202ed")
        == "red link a bc2Jd"
    )


@given(st.text(max_size=300), st.integers(1, 100))
def test_what_is_left_is_one_short_line_of_visible_characters(text: str, limit: int):
    plain = plain_text(text, limit)
    assert len(plain) <= limit
    assert "\x1b" not in plain and "\n" not in plain
    assert not any(unicodedata.category(character) in ("Cc", "Cf", "Cs") for character in plain)


@given(st.text(max_size=50))
def test_a_file_name_never_leaves_its_folder(text: str):
    assert "/" not in file_name_part(text) and "\x00" not in file_name_part(text)
