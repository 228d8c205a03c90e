"""The table of measured GPUs says what the committed records say."""

from studies.pages.measured import PAGE, TABLE, ordered, page, rows, table


def test_the_table_and_the_page_are_those_of_the_records():
    """On a difference, `python -m studies.pages.measured` writes both anew."""
    found = ordered(list(rows()))
    assert {one["gpu"] for one in found} >= {"H100 SXM5 80GB", "H200 SXM"}
    assert table(found) == TABLE.read_text(encoding="utf-8")
    assert page(found) == PAGE.read_text(encoding="utf-8")
