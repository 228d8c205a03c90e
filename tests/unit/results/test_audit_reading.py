"""What people publish is read, or the cell that could not be is named."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import results.__main__ as program
from results.audit.claims import read_claims, read_throughputs
from results.audit.findings import Severity, with_facts
from results.audit.judgement import audit_file
from results.audit.table_text import decimal_mark, read_number
from results.errors import NotATable
from results.report.page import make_report, report_markdown
from results.report.tables import exported
from results.runs.store import read_stored
from results.table.merge import merge_records
from tests.support import PROJECT
from tests.unit.results.factory import make_case, make_environment, make_failure, make_origin, repeats, stored

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
    "counts as texts": 'gpu,model,precision,gpus,"throughput\n(img/s)"\nA4000,ResNet50,fp16,1 GPU,453\nA4000,ResNet50,fp16,8 GPUs,"3,524"\nA5000,ResNet50,fp16,1x,704\nA5000,ResNet50,fp16,×8,"5,512"\n',
}


@pytest.fixture
def write(tmp_path):
    def write(text, encoding="utf-8"):
        path = tmp_path / "table.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding, "surrogatepass"))
        return path

    return write


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_one_table_in_any_format_and_encoding_makes_the_same_claims(write, form, encoding):
    reading = read_throughputs(write(FORMATS[form], encoding))
    claims = with_facts(reading.claims)
    assert {(claim.gpu, claim.num_gpus): claim.rate for claim in claims} == FP16
    assert {(claim.model, claim.precision) for claim in claims} == {("resnet50", "fp16")}
    assert reading.unread == []


NUMBERS = {
    **{"453,5": (453.5, 0.1), "1.029,62": (1029.62, 0.01), "1,029.62": (1029.62, 0.01), "3 524": (3524, 1)},
    **{"1'250": (1250, 1), "1’250": (1250, 1), "3\u202f524": (3524, 1), "2.3k": (2300, 100), "4e3": (4000, 1000)},
    **{"1,234,567": (1234567, 1), "453 ± 3": (453, 1), "453.5 +/- 0.2": (453.5, 0.1), "453†": (453, 1)},
    **{"~450": (450, 1), "453 img/s": (453, 1), "**453** [1]": (453, 1), "453 (98 %)": (453, 1), "453²": (453, 1)},
}


REFUSED = ("3,524", "1.029", "450-460", "> 450", "12 ms", "97 %", "-450", "12,34,56", "0e1")
EMPTY = ("", "-", "–", "n/a", "OOM", "0", "0.0")


@pytest.mark.parametrize("text", [*NUMBERS, *REFUSED, *EMPTY])
def test_a_number_is_read_or_refused_with_its_reason_or_empty(text):
    number = read_number(text, "")
    if text in NUMBERS:
        assert number == pytest.approx(NUMBERS[text])
    else:
        assert isinstance(number, str) and bool(number) is (text in REFUSED)


MARKS = [
    (["453,5", "3.524"], ","),
    (["453.5", "3,524"], "."),
    (["453", "892", "1,777", "3,524"], "."),
    (["453", "892", "1.777", "3.524"], ","),
    (["3,524", "1,777"], ""),
    (["453,5", "892.1"], ""),
    (["1777", "3,524"], ""),
    (["9.785 ± 0.02"], "."),
]


@pytest.mark.parametrize(("column", "mark"), MARKS)
def test_the_decimal_mark_follows_from_the_column_or_stays_open(column, mark):
    assert decimal_mark(column) == mark


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 9_999_999), min_size=1, max_size=20),
    st.sampled_from([("'", "."), (".", ","), (",", "."), (" ", ",")]),
)
def test_numbers_of_one_convention_are_read_back(hundredths, marks):
    group, point = marks
    texts = [f"{number / 100:,.2f}".replace(",", "G").replace(".", point).replace("G", group) for number in hundredths]
    mark = decimal_mark(texts)
    assert [read_number(text, mark)[0] for text in texts] == pytest.approx([number / 100 for number in hundredths])


def test_every_cell_that_could_not_be_read_is_named_with_its_reason(write, capsys):
    path = write("model,gpus,throughput\nresnet50,1,453\nresnet50,many,892\nresnet50,4,1700-1800\nresnet50,8,n/a\n")
    reading = read_throughputs(path)
    assert (len(reading.claims), reading.blank) == (1, 1)
    assert [(cell.rows, cell.message) for cell in reading.unread] == [
        ((1,), "column 'throughput': '892': number of GPUs 'many' cannot be read"),
        ((2,), "column 'throughput': '1700-1800': not one number"),
    ]
    assert program.main(["results", "audit", str(path)]) == 3
    printed = capsys.readouterr().out
    assert "1 of 3 cells with a throughput were read, 1 without a number" in printed and "not one number" in printed


def test_a_table_of_which_nothing_could_be_read_is_no_clean_bill(write, capsys):
    path = write("| Network | 1 GPU | 2 GPU |\n|---|---|---|\n| resnet50 | 3,524 | 6,912 |\n")
    assert program.main(["results", "audit", str(path), "--format", "json"]) == 3
    captured = capsys.readouterr()
    assert [finding["rule"] for finding in json.loads(captured.out)].count("unread_cell") == 2
    assert "too little could be read" in captured.err
    assert program.main(["results", "audit", str(path), "--decimal", "."]) == 0
    assert "2 of 2 cells with a throughput were read" in capsys.readouterr().out


def test_each_table_of_a_file_has_its_own_title_notes_and_rows(write):
    row = "| {} | {} |\n|---|---|\n| ResNet50 | {} |\n"
    first, second = row.format("Network", "1 GPU", 453), row.format("Network", "1 GPU", 704)
    claims = with_facts(read_claims(write(f"# A4000, fp16\n\n{first}\n# RTX A5000\n\n{second}\n* FP32\n")))
    found = [(claim.row, claim.gpu, claim.precision, claim.rate) for claim in claims]
    assert found == [(0, "RTX A4000", "fp16", 453), (1, "RTX A5000", "fp32", 704)]


@pytest.mark.parametrize("form", ["csv", "markdown", "wide"])
def test_our_own_exports_are_read_whole_and_by_their_mode_and_image_size(write, form):
    environment = make_environment(gpus=8)
    many = [make_case(device="gpu", num_gpus=count, batch_per_gpu=128) for count in (1, 8)]
    infer = make_case(device="gpu", num_gpus=1, batch_per_gpu=256, mode="infer", precision="fp16")
    small = make_case(device="gpu", num_gpus=1, batch_per_gpu=1024, image_size=64, precision="fp16")
    for cases, rates in ((many, (300.0, 2300.0)), ([infer], (2600.0,)), ([small], (5200.0,))):
        both = zip(cases, rates, strict=True)
        records = [r for case, rate in both for r in repeats(rate, rate * 1.01, case=case, environment=environment)]
        path = write(exported(merge_records(stored(*records)), form))
        claims = with_facts(read_claims(path))
        assert {claim.gpu for claim in claims} <= {"RTX A4000", ""}
        assert {claim.strict for claim in claims} == {form == "csv"}, "its columns state what two rows share"
        assert {(c.model, c.precision, c.batch, c.num_gpus, c.mode, c.image_size or None) for c in claims} == {
            ("resnet50", str(c.precision), c.batch_per_gpu, c.num_gpus, str(c.mode), c.image_size) for c in cases
        }
        assert [f for f in audit_file(path).findings if f.severity is not Severity.NOTE] == []


def test_our_own_export_of_two_fleets_is_read_fleet_by_fleet(write):
    records = [make_failure("unreachable", case=make_case("vgg16", device="gpu"), origin=make_origin("a4000"))]
    for fleet, base in (("a4000", 299.7), ("a5000", 450.9)):
        gpus = {"fleet": fleet, "environment": make_environment(gpus=4, gpu=f"NVIDIA RTX {fleet.upper()}")}
        for kind, batch, count in (("fp32", 128, 1), ("fp32", 128, 2), ("fp32", 128, 4), ("fp16", 256, 1)):
            case = make_case(device="gpu", precision=kind, batch_per_gpu=batch, num_gpus=count)
            rate = base * count**0.93 * batch**0.9 / 80
            records += repeats(rate, rate * 1.003, case=case, **gpus)
    for text in (
        exported(merge_records(stored(*records)), "markdown"),
        report_markdown(make_report(stored(*records), "")),
    ):
        assert audit_file(write(text)).findings == []


@pytest.mark.parametrize("runs", ["*", "*/runs/*", "*-b/runs/h100"])
def test_what_we_publish_of_our_own_measurements_has_no_finding(write, runs):
    paths = sorted((PROJECT / "results" / "reference" / "measured").rglob(f"{runs}/records/*.json"))
    found = [read_stored(path) for path in paths]
    for text in (exported(merge_records(found), "markdown"), report_markdown(make_report(found, ""))):
        audit = audit_file(write(text))
        assert len(audit.claims) and audit.findings == []


def test_a_log_of_one_case_is_read_and_not_compared_row_by_row(write):
    rows = (f"RTX A4000,resnet50,fp16,{410 + number % 7}.{number % 10}" for number in range(1500))
    audit = audit_file(write("\n".join(["gpu,model,precision,images/s", *rows])))
    assert len(audit.claims) == 1500 and audit.findings == []


NO_TABLES = {
    **{"": "no table", "a,b\n1,2\n": "needs networks", "model,precision\nresnet50,fp16\n": "needs networks"},
    **{"just a sentence\n": "no table", "<table><tr><td>1</td></tr></table>": "Copy the table in a browser"},
    **{"\x89PNG\x00": "not a text", "\ufeff\ud800": "no table"},
}


@pytest.mark.parametrize("text", NO_TABLES)
def test_what_is_no_table_of_throughputs_is_a_short_message(write, text, capsys):
    path = write(text)
    assert program.main(["results", "audit", str(path)]) == 2
    printed = capsys.readouterr().err
    assert NO_TABLES[text] in printed and "Traceback" not in printed
    assert program.main(["results", "audit", str(path.parent)]) == 2


PIECES = st.sampled_from(
    [
        *"|-,;\t\n .0123456789±×x'\"",
        *("\n|---|---|\n", "gpu", "model", "resnet50", "1 GPU", "8x A4000", "throughput", "fp16", "quantity", "value"),
        *("<table>", "<tr>", "<td rowspan=9>", "</table>", "1.029,62", "3,524"),
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=60).map("".join) | st.text(max_size=80))
def test_no_file_whatever_is_in_it_is_more_than_a_short_message(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "table.txt"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(NotATable):
        audit_file(path)
