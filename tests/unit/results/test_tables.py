import io

from rich.console import Console

from results.grid import Grid, markdown, print_grid
from results.report.comparison import ratio_grids
from results.report.tables import render_ratios, render_results, results_grid, to_csv, wide_grids
from results.table import merge
from results.table.fleets import fleet_rates, outliers
from results.table.merge import merge_records
from tests.unit.results.factory import make_case, make_environment, make_failure, make_origin, repeats, stored

CORES = {"one-core": make_environment(cpu_limit=1.0), "two-cores": make_environment(cpu_limit=2.0)}


def two_fleets():
    records = []
    for model, rate in (("resnet50", 12.0), ("googlenet", 30.0)):
        for count in (1, 2):
            for fleet, factor in (("one-core", 1.0), ("two-cores", 1.9)):
                rates = [rate * factor * count**0.1 * noise for noise in (1.0, 1.01, 0.985)]
                case = make_case(model, num_gpus=count)
                records += repeats(*rates, fleet=fleet, host=f"on-{fleet}", case=case, environment=CORES[fleet])
    return records


def printed(render, merged, width=100):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    render(merged, console)
    text = console.file.getvalue().replace("\u00a0", " ")
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def print_wide(merged, console):
    for grid in wide_grids(merged):
        print_grid(grid, console)


def test_golden_results():
    records = two_fleets()[:6]
    records[5] = make_failure("timeout", "no progress for 10 minutes", case=records[5].case, origin=records[5].origin)
    records += [make_failure("unreachable", "ssh: connection refused", origin=make_origin("two-cores", "node-x"))]
    assert (
        printed(render_results, merge_records(stored(*records)))
        == """\
Results

 host                    network   precision  batch   GPUs   samples/s  repeats  p50 ms  CV %  status
 ─────────────────────────────────────────────────────────────────────────────────────────────────────────
 one-core/on-one-core    resnet50  fp32           8  1 CPU  12.0 ± 0.4        3     667  1.00  valid
 two-cores/node-x        resnet50  fp32           8  1 CPU               0 of 1                unreachable
 two-cores/on-two-cores  resnet50  fp32           8  1 CPU  22.9 ± 1.4   2 of 3     349  1.00  valid

images per second ± 95 % over repeats; device cpu, batch norm fused, xla off, data synthetic, mode train, \
optimizer momentum, accumulate 1, warmup steps 2, num steps 4
one-core: TensorFlow 2.21.0, Keras 3.15.1, Test CPU, process
two-cores: TensorFlow 2.21.0, Keras 3.15.1, Test CPU, process
two-cores/node-x, resnet50 fp32 ×1 CPU: unreachable: ssh: connection refused
two-cores/on-two-cores, resnet50 fp32 ×1 CPU: timeout: no progress for 10 minutes"""
    )


def test_golden_wide_table():
    merged = merge_records(stored(*(r for r in two_fleets() if r.origin.fleet == "one-core")))
    assert (
        printed(print_wide, merged)
        == """\
one-core: images per second ± 95 % over repeats

 network    precision  batch       1 CPU       2 CPU  ×2 scales
 ──────────────────────────────────────────────────────────────
 googlenet  fp32           8  30.0 ± 0.9  32.1 ± 1.0        54%
 resnet50   fp32           8  12.0 ± 0.4  12.8 ± 0.4        54%

batch is per CPU; host on-one-core
one-core/on-one-core: one host; its intervals describe this machine, not a fleet
scales: throughput of N over N × throughput of one CPU; ! above 105 % is an error"""
    )


def test_golden_ratios():
    assert (
        printed(render_ratios, merge_records(stored(*two_fleets())))
        == """\
two-cores / one-core

    case                   two-cores    one-core        ratio
 ────────────────────────────────────────────────────────────
 +  googlenet fp32 1×cpu  56.9 ± 1.8  30.0 ± 0.9  1.90 ± 0.06
 +  googlenet fp32 2×cpu  61.0 ± 1.9  32.1 ± 1.0  1.90 ± 0.06
 +  resnet50 fp32 1×cpu   22.8 ± 0.7  12.0 ± 0.4  1.90 ± 0.06
 +  resnet50 fp32 2×cpu   24.4 ± 0.8  12.8 ± 0.4  1.90 ± 0.06

+ faster
geometric mean of 2 cases: 1.90 ± 0.06 (training, fp32, 1 CPU)
geometric mean of 2 cases: 1.90 ± 0.06 (training, fp32, 2 CPUs)
4 intervals of 95 %: if all cases were equal, about 0.20 would be marked by chance
ratio ± 95 % by Fieller, over repeats
two-cores/on-two-cores and one-core/on-one-core: one host each; intervals describe these machines, not fleets"""
    )


def test_ratios_of_one_fleet_print_nothing():
    merged = merge_records(stored(*(r for r in two_fleets() if r.origin.fleet == "one-core")))
    assert printed(render_ratios, merged) == ""


def test_ratios_of_fleets_without_a_common_case_print_nothing():
    records = [
        *repeats(10.0, 11.0, fleet="a", case=make_case("resnet50")),
        *repeats(10.0, 11.0, fleet="b", case=make_case("googlenet")),
    ]
    assert ratio_grids(merge_records(stored(*records))) == []


def test_two_identities_of_a_fleet_get_two_lines_in_the_wide_table():
    records = [
        *repeats(20.0, 21.0, environment=make_environment(keras="3.15.1")),
        *repeats(10.0, 11.0, environment=make_environment(keras="3.12.0"), run_id="run-2"),
    ]
    (grid,) = wide_grids(merge_records(stored(*records)))
    assert "keras" in grid.headings
    assert sorted(row[grid.headings.index("keras")] for row in grid.rows) == ["3.12.0", "3.15.1"]


def test_two_identities_of_a_host_are_told_apart_in_the_results():
    records = [*repeats(20.0, 21.0), *repeats(10.0, 11.0, environment=make_environment(keras="3.12.0"), run_id="2")]
    grid = results_grid(merge_records(stored(*records)))
    assert {row[grid.headings.index("keras")] for row in grid.rows} == {"3.15.1", "3.12.0"}


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
    (grid,) = wide_grids(merge_records(stored(make_failure("oom", "out of memory"))))
    assert grid.rows == [["resnet50", "fp32", "8", "oom"]]


def test_texts_of_a_host_are_not_read_as_markup_or_control_sequences():
    evil = make_failure("error", "[red]x[/] \x1b[31m | <b>", origin=make_origin(host="[bold]"))
    merged = merge_records(stored(evil, *repeats(1.0, 2.0)))
    text = printed(render_results, merged)
    assert "[red]x[/]" in text and "[bold]" in text and "\x1b" not in text
    assert "\\[red\\]x" in markdown(results_grid(merged)) and "\\<b\\>" in markdown(results_grid(merged))


def test_golden_markdown():
    grid = Grid("a | b", ["network", "img/s>"], [["resnet50", "12 ± 1"], ["vgg16", ""]], ["a note"])
    assert (
        markdown(grid)
        == """\
**a \\| b**

| network | img/s |
| --- | ---: |
| resnet50 | 12 ± 1 |
| vgg16 |  |

a note
"""
    )


def test_a_legend_is_no_list_in_markdown():
    grid = Grid("", ["case"], [["a"]], ["- slower, + faster", "+ faster", "-5 % of it"])
    assert markdown(grid).splitlines()[4::2] == ["\\- slower, + faster", "\\+ faster", "-5 % of it"]


def test_csv_holds_the_table_with_empty_cells_for_what_is_not_known(tmp_path):
    import pandas as pd

    merged = merge_records(stored(*two_fleets(), make_failure(origin=make_origin("two-cores", "node-x"))))
    (tmp_path / "results.csv").write_text(to_csv(merged), encoding="utf-8")
    read = pd.read_csv(tmp_path / "results.csv")
    assert list(read.columns) == list(merged.table.columns)
    assert read["samples_per_second"].isna().sum() == 1
    assert not (read["samples_per_second"] == 0).any()


def test_no_records_say_so():
    assert "no records" in printed(render_results, merge_records([]))


def test_all_tables_of_a_runs_end_compute_the_fleets_rates_once(monkeypatch):
    computed = []
    monkeypatch.setattr(merge, "fleet_rates", lambda merged: computed.append(merged) or fleet_rates(merged))
    merged = merge_records(stored(*two_fleets()))
    for render in (render_results, print_wide, render_ratios):
        assert printed(render, merged)
    assert outliers(merged.rates) == [] and computed == [merged]
