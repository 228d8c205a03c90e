"""`docs/answers.md` is what `recommend` prints on a fresh clone; `make answers` writes it."""

from tests.docs import answers


def test_the_committed_page_is_what_the_commands_print_today():
    assert answers.PAGE.read_text(encoding="utf-8") == answers.page(), "run: make answers"


def test_the_page_has_at_most_its_words():
    words = [word for word in answers.PAGE.read_text(encoding="utf-8").split() if any(map(str.isalpha, word))]
    assert len(words) <= answers.MOST_WORDS
