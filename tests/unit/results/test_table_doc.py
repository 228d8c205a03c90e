"""`COLUMNS` is the data dictionary of the merged table."""

import io
import json

import pandas as pd

from results.report.tables import exported
from results.table.columns import CASE_COLUMNS, COLUMNS, SOFTWARE_COLUMNS
from results.table.merge import merge_records
from tests.unit.results.factory import make_case, make_failure, make_record, repeats, stored


def test_the_table_has_exactly_the_columns_of_the_dictionary():
    assert set(CASE_COLUMNS) | set(SOFTWARE_COLUMNS) <= set(COLUMNS)
    for records in ([], [make_record(100.0)]):
        table = merge_records(stored(*records)).table
        assert list(table.columns) == list(COLUMNS) and len(table) == len(records)
        assert {name: str(dtype) for name, dtype in table.dtypes.items()} == {n: c.dtype for n, c in COLUMNS.items()}


def test_every_format_has_the_columns_of_the_dictionary():
    merged = merge_records(stored(*repeats(450.0, 452.0), make_failure("oom", case=make_case("vgg16"))))
    read = pd.read_csv(io.StringIO(exported(merged, "csv")))
    assert list(read.columns) == list(COLUMNS)
    assert read["samples_per_second"].dropna().tolist() == [451.0], "what is not known is an empty cell"
    document = json.loads(exported(merged, "json"))
    assert document["table_version"] == 1 and list(document["rows"][0]) == list(COLUMNS)
    assert {row["samples_per_second"] for row in document["rows"]} == {451.0, None}
    assert "| resnet50 | fp32 | 8 |" in exported(merged, "wide")
