"""The pictures of the documentation: small enough, shown, and drawn from real events."""

import re

import pytest

from tests.docs import pictures

NAMES = ("interval.svg", "live.svg", "repeat.svg", "report.png", "run.svg")


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_small_shown_and_needs_no_network(name):
    path = pictures.PICTURES / name
    assert path.stat().st_size <= pictures.MAX_BYTES
    pages = [pictures.PICTURES.parents[1] / "README.md", *pictures.PICTURES.parent.glob("*.md")]
    assert [page.name for page in pages if f"pictures/{name})" in page.read_text(encoding="utf-8")] != []
    assert not re.search(rb"(?:href|src)=\"https?:|url\(\"?https?:", path.read_bytes())


def test_the_live_table_is_fed_up_to_a_progress_line():
    def step(at, number):
        return at, pictures.JobStep(job="j", host="h", step=number, samples_per_second=1.0, unit="images")

    assert [at for at, _ in pictures.until_the_middle([step(at, at) for at in range(9)])] == list(range(7))


def test_the_front_page_is_short():
    text = (pictures.PICTURES.parents[1] / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120 and len(text.split()) <= 700
