"""Everything that people publish is read, or the cell is named that could not be."""

import contextlib
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import results.__main__ as program
from results.audit.claims import read_claims, read_throughputs
from results.audit.judgement import audit, audit_file
from results.audit.series import Severity
from results.audit.tables import read_tables
from results.audit.texts import Decimal, Number, Refusal, decimal_mark, read_number
from results.errors import NotATable
from results.report.tables import to_csv, to_markdown, to_wide_markdown
from results.table.merge import merge_records
from tests.unit.results.factory import make_case, make_environment, repeats, stored

FP16 = {("RTX A4000", 1): 453, ("RTX A4000", 8): 3524, ("RTX A5000", 1): 704, ("RTX A5000", 8): 5512}
"""ResNet50 in FP16, what all the tables below say."""

FORMATS = {
    "markdown": "# ResNet50, FP16\n\n| GPU | 1 GPU | 8 GPUs |\n|:--|--:|--:|\n| **A4000** | 453 | 3,524 |\n| A5000 | 704 | 5,512 |\n",
    "tsv": "GPU\tNetwork\tPrecision\t1 GPU (img/s)\t8 GPUs (img/s)\nA4000\tResNet50\tFP16\t453\t3524\nA5000\tResNet50\tFP16\t704\t5512\n",
    "semicolons": "GPU;Modell;Network;Precision;1 GPU;8 GPUs\nA4000;;ResNet50;FP16;453,0;3.524,0\nA5000;;ResNet50;FP16;704,0;5.512,0\n",
    "aligned": "GPU        Network    Precision  1 GPU   8 GPUs\nRTX A4000  ResNet50   fp16       453     3524\nRTX A5000  ResNet50   fp16       704     5512\n",
    "gpus as columns": "Network,Precision,A4000,8x A4000,RTX A5000,8x RTX A5000\nResNet-50,mixed,453,3524,704,5512\n",
    "networks as columns": "GPU,GPUs,ResNet50 FP16\nA4000,1,453\nA4000,8,3524\nA5000,1,704\nA5000,8,5512\n",
    "count in the name": "GPU,Network,Precision,Throughput (images/sec)\nA4000,ResNet50,AMP,453\n8x A4000,ResNet50,AMP,3524\nA5000,ResNet50,AMP,704\n8 x A5000,ResNet50,AMP,5512\n",
    "counts as words": "gpu,model,precision,gpus,img/s\nA4000,ResNet50,fp16,one,453\nA4000,ResNet50,fp16,8 GPUs,3524\nA5000,ResNet50,fp16,1x,704\nA5000,ResNet50,fp16,×8,5512\n",
    "html": """<html><body><h2>ResNet50 training, FP16</h2><table><thead><tr><th rowspan="2">GPU</th>
        <th colspan="2">images/s</th></tr><tr><th>1 GPU</th><th>8 GPUs</th></tr></thead><tbody>
        <tr><td>RTX&nbsp;A4000</td><td>453<sup>1</sup></td><td>3&#8239;524</td></tr>
        <tr><td>RTX A5000<br></td><td>704</td><td>5&#160;512</td></tr></tbody></table></body></html>""",
}


def write(tmp_path, text, name="table.txt", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return path


def read(path):
    return read_throughputs(path, read_tables(path))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_one_table_in_any_format_and_encoding_makes_the_same_claims(tmp_path, form, encoding):
    reading = read(write(tmp_path, FORMATS[form], encoding=encoding))
    assert {(claim.gpu, claim.count): claim.rate for claim in reading.claims} == FP16
    assert {(claim.model, claim.precision) for claim in reading.claims} == {("resnet50", "fp16")}
    assert reading.unread == []


@pytest.mark.parametrize(
    ("text", "value", "place"),
    [
        *[("453,5", 453.5, 0.1), ("1.029,62", 1029.62, 0.01), ("1,029.62", 1029.62, 0.01), ("3 524", 3524, 1)],
        *[
            ("1'250", 1250, 1),
            ("1’250", 1250, 1),
            ("3\u202f524", 3524, 1),
            ("2.3k", 2300, 100),
            ("1,234,567", 1234567, 1),
        ],
        *[
            ("453 ± 3", 453, 1),
            ("453.5 +/- 0.2", 453.5, 0.1),
            ("453†", 453, 1),
            ("~450", 450, 1),
            ("453 img/s", 453, 1),
        ],
        *[("**453** [1]", 453, 1), ("453 (98 %)", 453, 1), ("453 images/sec *", 453, 1), ("453²", 453, 1)],
    ],
)
def test_a_number_is_read_as_it_is_meant(text, value, place):
    assert read_number(text, None) == Number(pytest.approx(value), pytest.approx(place))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("3,524", "either 3524 or 3.524"),
        ("1.029", "either 1029 or 1.029"),
        ("450-460", "two numbers"),
        ("> 450", "a bound"),
        ("12 ms", "a time"),
        ("97 %", "a percentage"),
        ("-450", "below zero"),
        ("12,34,56", "groups of three"),
    ],
)
def test_what_could_be_several_numbers_is_refused_with_its_reason(text, why):
    refusal = read_number(text, None)
    assert isinstance(refusal, Refusal) and not refusal.blank and why in refusal.reason


@pytest.mark.parametrize("text", ["", "-", "–", "n/a", "OOM", "0", "0.0"])
def test_a_cell_that_says_that_it_is_empty_is_not_an_unread_one(text):
    assert read_number(text, None) == Refusal("no number", blank=True)


@pytest.mark.parametrize(
    ("column", "mark"),
    [
        (["453,5", "3.524"], Decimal.COMMA),
        (["453.5", "3,524"], Decimal.POINT),
        (["453", "892", "1,777", "3,524"], Decimal.POINT),
        (["453", "892", "1.777", "3.524"], Decimal.COMMA),
        (["3,524", "1,777"], None),
        (["453,5", "892.1"], None),
        (["1777", "3,524"], None),
        (["9.785 ± 0.02"], Decimal.POINT),
    ],
)
def test_the_decimal_mark_follows_from_the_column_or_stays_open(column, mark):
    assert decimal_mark(column) is mark


@given(
    st.lists(st.integers(1, 9_999_999), min_size=1, max_size=20),
    st.sampled_from([("'", "."), (".", ","), (",", "."), (" ", ",")]),
)
def test_numbers_of_one_convention_are_read_back(hundredths, marks):
    group, point = marks
    texts = [f"{number / 100:,.2f}".replace(",", "G").replace(".", point).replace("G", group) for number in hundredths]
    mark = decimal_mark(texts)
    assert [read_number(text, mark).value for text in texts] == pytest.approx([number / 100 for number in hundredths])


def test_every_cell_that_could_not_be_read_is_named_with_row_column_and_reason(tmp_path, capsys):
    path = write(
        tmp_path, "model,gpus,throughput\nresnet50,1,453\nresnet50,many,892\nresnet50,4,1700-1800\nresnet50,8,n/a\n"
    )
    reading = read(path)
    assert (len(reading.claims), reading.blank) == (1, 1)
    assert [(cell.row, cell.column, cell.text) for cell in reading.unread] == [
        (1, "throughput", "892"),
        (2, "throughput", "1700-1800"),
    ]
    assert "number of GPUs 'many'" in reading.unread[0].reason
    assert program.main(["results", "audit", str(path)]) == 3
    printed = capsys.readouterr().out
    assert "1 of 3 cells with a throughput were read, 1 without a number" in printed and "two numbers" in printed


def test_a_table_of_which_nothing_could_be_read_is_no_clean_bill(tmp_path, capsys):
    path = write(tmp_path, "| Network | 1 GPU | 2 GPU |\n|---|---|---|\n| resnet50 | 3,524 | 6,912 |\n")
    assert program.main(["results", "audit", str(path), "--format", "json"]) == 3
    captured = capsys.readouterr()
    assert [finding["rule"] for finding in json.loads(captured.out)].count("unread_cell") == 2
    assert "too little could be read" in captured.err
    assert program.main(["results", "audit", str(path), "--decimal", "."]) == 0


def test_a_table_read_completely_ends_with_0_and_its_count(tmp_path, capsys):
    path = write(tmp_path, FORMATS["markdown"])
    assert program.main(["results", "audit", str(path)]) == 0
    assert "4 of 4 cells with a throughput were read" in capsys.readouterr().out


def test_the_16_cells_of_the_trial_are_all_read(tmp_path):
    cells = ["453 ± 3", "892†", "~1 777", "3 524 img/s", "1'250", "2.3k", "453.5", "1,029.62"]
    lines = [f"| ResNet50 | FP16 | {cells[i]} | {cells[i + 1]} |" for i in range(0, 8, 2)]
    lines += [f"| ResNet152 | FP16 | {cells[i]} | {cells[i + 1]} |" for i in range(0, 8, 2)]
    path = write(tmp_path, "\n".join(["| Network | Precision | 1 GPU | 2 GPUs |", "|---|---|---|---|", *lines]))
    reading = read(path)
    assert (len(reading.claims), reading.unread) == (16, [])
    assert [claim.rate for claim in reading.claims][:8] == [453, 892, 1777, 3524, 1250, 2300, 453.5, 1029.62]


def test_unknown_networks_and_gpus_are_each_named(tmp_path):
    path = write(
        tmp_path,
        "gpu,model,precision,img/s\nRTX 9999,resnet50,fp16,450\nA4000,MyNet,fp16,450\nA4000,resnet50,int4,450\n",
    )
    notes = {finding.rule: finding for finding in audit(path) if finding.severity is Severity.NOTE}
    assert "RTX 9999" in notes["unknown_gpu"].message and notes["unknown_gpu"].rows == (0,)
    assert "mynet" in notes["unknown_network"].message and notes["unknown_network"].rows == (1,)
    assert "int4" in notes["unknown_precision"].message


@pytest.mark.parametrize("writer", [to_csv, to_markdown, to_wide_markdown])
def test_our_own_exports_are_read_whole(tmp_path, writer):
    environment, records = make_environment(gpus=8), []
    for count, rate in ((1, 300.0), (8, 2300.0)):
        case = make_case(device="gpu", num_gpus=count, batch_per_gpu=128)
        records += repeats(rate, rate * 1.01, case=case, environment=environment)
    claims = read_claims(write(tmp_path, writer(merge_records(stored(*records)))))
    assert {claim.gpu for claim in claims} <= {"RTX A4000", None}
    assert {(claim.model, claim.precision, claim.batch, claim.count) for claim in claims} == {
        ("resnet50", "fp32", 128, 1),
        ("resnet50", "fp32", 128, 8),
    }


@pytest.mark.parametrize("writer", [to_csv, to_markdown, to_wide_markdown])
def test_inference_and_small_images_of_our_own_are_not_judged_as_training(tmp_path, writer):
    infer = make_case(device="gpu", num_gpus=1, batch_per_gpu=256, mode="infer", precision="fp16")
    small = make_case(device="gpu", num_gpus=1, batch_per_gpu=1024, image_size=64, precision="fp16")
    for case, rate in ((infer, 2600.0), (small, 5200.0)):
        records = repeats(rate, rate * 1.01, case=case, environment=make_environment(gpus=1))
        path = write(tmp_path, writer(merge_records(stored(*records))))
        (claim, *_) = read_claims(path)
        assert (claim.mode, claim.image_size) == (case.mode, case.image_size)
        assert [finding for finding in audit(path) if finding.severity is not Severity.NOTE] == []


@pytest.mark.parametrize("data", [b"", b"\x89PNG\r\n\x00\x01\x02\x03", b"just a sentence\n", b"<table></table>"])
def test_what_holds_no_table_is_a_short_message(tmp_path, data, capsys):
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(NotATable):
        audit_file(path)
    assert program.main(["results", "audit", str(path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_text_that_the_encoding_does_not_hold_is_named(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"\xff\xfeg\x00p\x00u")
    with pytest.raises(NotATable, match="not valid utf-16"):
        read_tables(path)


PIECES = st.sampled_from(
    [
        *"|-,;\t\n .0123456789±×x'",
        *(
            "\n|---|---|\n",
            "gpu",
            "model",
            "resnet50",
            "1 GPU",
            "8x A4000",
            "throughput",
            "fp16",
            "quantity",
            "value",
            '"',
        ),
        *("<table>", "<tr>", "<td rowspan=9>", "<th colspan=3>", "</td>", "</table>", "<sup>", "1.029,62", "3,524"),
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=60).map("".join) | st.text(max_size=80))
def test_no_file_whatever_is_in_it_is_more_than_a_short_message(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.txt"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        with contextlib.suppress(NotATable):
            audit_file(path)
