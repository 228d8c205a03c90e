"""What the tables of merged runs say; how they look is in the golden texts of `tests/unit/test_widths.py`."""

import io

import pytest
from rich.console import Console

from results.report.tables import all_grids, results_grid, wide_grids
from results.runs.store import stored_records
from results.table.merge import merge_records
from results.text_table import Grid, markdown, print_grid
from tests.support import PROJECT
from tests.unit.results.factory import make_case, make_environment, make_failure, make_origin, repeats, stored

MEASURED = PROJECT / "results" / "reference" / "measured"
OTHER_KERAS = make_environment(keras="3.12.0")


def printed(merged, width=100):
    text = io.StringIO()
    for grid in all_grids(merged, brief=True):
        print_grid(grid, Console(file=text, width=width, color_system=None))
    return text.getvalue().replace("\u00a0", " ")


def test_ratios_need_two_fleets_with_a_common_case():
    records = [*repeats(10.0, 11.0, fleet="a"), *repeats(10.0, 11.0, fleet="b", case=make_case("googlenet"))]
    assert not any(grid.title == "b / a" for grid in all_grids(merge_records(stored(*records))))


@pytest.mark.parametrize("grid_of", [results_grid, lambda merged: wide_grids(merged)[0]])
def test_two_identities_of_a_host_get_two_lines(grid_of):
    records = [*repeats(20.0, 21.0), *repeats(10.0, 11.0, environment=OTHER_KERAS, run_id="run-2")]
    grid = grid_of(merge_records(stored(*records)))
    assert sorted(row[grid.headings.index("keras")] for row in grid.rows) == ["3.12.0", "3.15.1"]


def test_software_that_follows_from_the_case_is_no_column():
    folders = ("h200-sxm-2026-11-26/runs/h200", "h100-sxm-2026-11-26-b/runs/h100")
    merged = merge_records(stored_records([str(MEASURED / folder) for folder in folders]))
    grids = [grid.headings for grid in wide_grids(merged)]
    assert grids == 2 * [["network", "precision", "batch", "xla", "sequence_length", "unit", "1 GPU"]]


def test_variables_that_differ_within_a_line_split_it():
    other = make_environment(variables={"TF_XLA_FLAGS": "--tf_xla_auto_jit=2"})
    records = [*repeats(20.0, 21.0), *repeats(10.0, 11.0, environment=other, case=make_case(num_gpus=2))]
    (grid,) = wide_grids(merge_records(stored(*records)))
    found = [(row[grid.headings.index("variables")], *row[-2:]) for row in grid.rows]
    assert found == [("", "20 ± 6", ""), ("TF_XLA_FLAGS=--tf_xla_auto_jit=2", "", "10 ± 6")]


def test_a_host_without_a_number_is_marked_beside_the_number_of_its_fleet():
    lost = make_failure("unreachable", "refused", origin=make_origin(host="node-b"))
    (grid,) = wide_grids(merge_records(stored(*repeats(20.0, 21.0), lost)))
    assert [row[-1] for row in grid.rows] == ["20 ± 6 †"]
    assert "† without node-b (unreachable)" in grid.notes


def test_a_fleet_of_several_hosts_shows_the_spread_between_them():
    records = [*repeats(100.0, 100.0, host="node-a"), *repeats(112.0, 112.0, host="node-b")]
    (grid,) = wide_grids(merge_records(stored(*records)))
    assert grid.title == "a4000: images per second ± 95 % over hosts"
    assert [row[-1] for row in grid.rows] == ["110 ± 80"]  # 106 ± 12.7 · 6: two hosts say little


def test_a_failed_case_shows_its_status_where_a_number_would_be():
    merged = merge_records(stored(make_failure("oom", "out of memory")))
    (grid,) = wide_grids(merged)
    assert (grid.title, grid.rows) == ("a4000: samples per second", [["resnet50", "fp32", "8", "oom"]])
    assert results_grid(merged).notes[0].startswith("no repeat gave a number; device cpu")


def test_one_repeat_has_no_interval_in_either_table():
    merged = merge_records(stored(*repeats(20.0)))
    for text in (wide_grids(merged)[0].title, results_grid(merged).notes[0]):
        assert "images per second from one repeat each, so without an interval" in text


def test_texts_of_a_host_are_not_read_as_markup_or_control_sequences():
    evil = make_failure("error", "[red]x[/] \x1b[31m | <b>", origin=make_origin(host="[bold]"))
    merged = merge_records(stored(evil, *repeats(1.0, 2.0)))
    assert "[red]x[/]" in printed(merged) and "[bold]" in printed(merged) and "\x1b" not in printed(merged)
    assert "\\[red\\]x" in markdown(results_grid(merged)) and "\\<b\\>" in markdown(results_grid(merged))


def test_golden_markdown():
    notes = ["- slower, + faster", "+ faster", "-5 % of it"]  # legends, which are no lists
    grid = Grid("a | b", ["network", "img/s>"], [["resnet50", "12 ± 1"], ["vgg16", ""]], notes)
    assert markdown(grid) == GOLDEN


GOLDEN = """\
**a \\| b**

| network | img/s |
| --- | ---: |
| resnet50 | 12 ± 1 |
| vgg16 |  |

\\- slower, + faster

\\+ faster

-5 % of it
"""


def test_no_records_say_so():
    assert "no records" in printed(merge_records([]))
