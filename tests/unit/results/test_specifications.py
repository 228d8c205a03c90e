"""The table of specifications: its sources, its own arithmetic, and cards side by side."""

import json

import pytest

import results.__main__ as program
from results.audit.judgement import audit
from results.audit.series import Severity
from results.reference import FOLDER
from results.reference.gpu_comparison import compare_gpus, comparison_lines, named_gpus
from results.reference.gpus import contradictions, specification_rows, specifications, specified_gpus


@pytest.mark.parametrize(("name", "memory"), [("V100 SXM2 32GB", 32), ("Tesla V100-SXM2-16GB", 16)])
def test_each_v100_has_its_own_memory(name, memory):
    (gpu,) = specified_gpus(name)
    assert specifications()[gpu]["memory"] == memory


def test_a_batch_that_fits_the_larger_v100_is_not_judged_by_the_smaller(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(
        "gpu,model,precision,batch,img/s\nV100 SXM2 32GB,ResNet50,fp16,448,1290\nV100 SXM2,ResNet50,fp16,448,1290\n"
    )
    assert [finding for finding in audit(path) if finding.severity is not Severity.NOTE] == []
    path.write_text("gpu,model,precision,batch,img/s\nV100 SXM2 16GB,ResNet50,fp16,448,1290\n")
    assert "memory_size" in {finding.rule for finding in audit(path) if finding.severity is Severity.IMPOSSIBLE}


def test_no_figure_is_from_memory_and_every_one_has_a_source():
    rows = [row for quantities in specification_rows().values() for row in quantities.values()]
    assert len(rows) > 370 and all(row["source"] and "memory, to be checked" not in row["source"] for row in rows)
    assert not any(
        "NVIDIA" in row["source"]
        for row in specification_rows()["MI100"].values()
        if row["source"].startswith("NVIDIA")
    )


@pytest.mark.parametrize(
    ("gpu", "boost", "tensor"),
    [("H100 PCIe 80GB", 1755, 1620), ("H100 SXM5 80GB", 1980, 1830), ("H200 NVL", 1785, 1545)],
)
def test_hopper_has_a_clock_for_fp32_and_one_for_its_tensor_cores(gpu, boost, tensor):
    assert (specifications()[gpu]["boost_clock"], specifications()[gpu]["tensor_clock"]) == (boost, tensor)


def test_the_4090_laptop_stands_at_one_setting():
    figures = specifications()["RTX 4090 Laptop"]
    assert (figures["power"], figures["boost_clock"], figures["fp32"], figures["tf32_tensor"]) == (
        150,
        2040,
        39.7,
        39.7,
    )


@pytest.mark.parametrize(
    ("quantity", "value"),
    [
        *[
            ("cores", "9000"),
            ("tensor_cores", "200"),
            ("multiprocessors", "60"),
            ("fp32", "40"),
            ("tf32_tensor", "111.1"),
        ],
        *[("fp16_tensor_fp16_accumulate", "222.2"), ("fp16_tensor_fp32_accumulate", "80"), ("memory_bus", "96")],
        *[("memory_bandwidth", "76.8"), ("boost_clock", "1000")],
    ],
)
def test_one_wrong_figure_in_the_specification_table_is_found_by_the_others_of_its_card(
    tmp_path, quantity, value, monkeypatch
):
    lines = (FOLDER / "gpu_specs.csv").read_text(encoding="utf-8").splitlines()
    changed = [
        ",".join([*line.split(",")[:2], value, *line.split(",")[3:]])
        if line.startswith(f"RTX A5000,{quantity},")
        else line
        for line in lines
    ]
    assert changed != lines
    path = tmp_path / "gpu_specs.csv"
    path.write_text("\n".join(changed), encoding="utf-8")
    monkeypatch.setattr("results.audit.spec_audit.specifications", dict)  # by arithmetic alone
    assert {finding.severity for finding in audit(path)} >= {Severity.SUSPECT}


def test_a_family_means_all_its_members_and_an_unknown_name_gets_suggestions(capsys):
    assert named_gpus(["A100"]) == ["A100 PCIe 40GB", "A100 PCIe 80GB", "A100 SXM4 40GB", "A100 SXM4 80GB"]
    assert named_gpus(["A4000,a5000", "A4000"]) == ["RTX A4000", "RTX A5000"]
    assert program.main(["results", "gpus", "A4000", "A50000"]) == 2
    assert "'A50000' is not in the reference. Did you mean one of: RTX A5000" in capsys.readouterr().err


def test_cards_side_by_side_have_sources_ratios_and_what_follows_for_training():
    comparison = compare_gpus(["RTX A4000", "RTX A5000"], [])
    rows = {row.quantity: row for row in [*comparison.rows, *comparison.computed]}
    assert [figure.value for figure in rows["memory_bandwidth"].figures] == [448, 768]
    assert all(figure.source for row in rows.values() for figure in row.figures if figure)
    assert rows["nvlink_both_directions"].figures[0] is None and "price" not in rows
    assert rows["bandwidth_per_watt"].figures[0].value == pytest.approx(3.2)
    (bound,) = [b for b in comparison.bounds if (b.gpu, b.model, b.precision) == ("RTX A5000", "resnet50", "fp16")]
    assert (bound.limit, round(bound.unfused), round(bound.arithmetic)) == ("memory bandwidth", 1659, 4849)
    assert "1.45 (FP16 arithmetic) to 1.71 (memory bandwidth)" in comparison_lines(comparison)[-1]
    assert {row["gpu"] for row in comparison.contradictions} == {"RTX A4000", "RTX A5000"}


@pytest.mark.parametrize("style", ["text", "markdown", "json"])
def test_the_comparison_is_printed_in_three_formats(style, capsys):
    assert program.main(["results", "gpus", "A4000", "A5000", "--format", style]) == 0
    printed = capsys.readouterr().out
    assert "memory bandwidth" in printed and "Spheron" in printed
    if style == "json":
        document = json.loads(printed)
        assert document["gpus"] == ["RTX A4000", "RTX A5000"] and document["conclusions"]


def test_one_card_alone_and_every_card_can_be_printed(capsys):
    for names in (["MI100"], list(specifications())):
        assert program.main(["results", "gpus", *names]) == 0
    assert "MI100" in capsys.readouterr().out


def test_contradictions_are_of_cards_in_the_table():
    assert {row["gpu"] for row in contradictions()} <= set(specifications())
    assert all(all(row.values()) for row in contradictions())
