"""What people publish is read, or refused by name; so is each cell that could not be read."""

import contextlib
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import results.__main__ as program
from results.audit.claims import Severity, read_throughputs
from results.audit.judgement import audit_file
from results.audit.table_text import decimal_mark, read_number
from results.errors import NotATable
from results.report.tables import exported
from results.runs.store import read_stored
from results.table.merge import merge_records
from tests.support import PROJECT
from tests.support.audit_tables import NO_THROUGHPUTS, READABLE, Cell
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
    claims = reading.claims
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


@pytest.mark.slow
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
    claims = read_throughputs(write(f"# A4000, fp16\n\n{first}\n# RTX A5000\n\n{second}\n* FP32\n")).claims
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
        claims = read_throughputs(path).claims
        assert {claim.gpu for claim in claims} <= {"RTX A4000", ""}
        assert {claim.strict for claim in claims} == {form == "csv"}, "its columns state what two rows share"
        assert {(c.model, c.precision, c.batch, c.num_gpus, c.mode, c.image_size or None) for c in claims} == {
            ("resnet50", str(c.precision), c.batch_per_gpu, c.num_gpus, str(c.mode), c.image_size) for c in cases
        }
        assert [f for f in audit_file(path).findings if f.severity is not Severity.NOTE] == []


@pytest.mark.parametrize("runs", ["*", "*/runs/*", "*-b/runs/h100"])
@pytest.mark.slow
def test_what_we_publish_of_our_own_measurements_has_no_finding(write, runs):
    paths = sorted((PROJECT / "results" / "reference" / "measured").rglob(f"{runs}/records/*.json"))
    found = [read_stored(path) for path in paths]
    audit = audit_file(write(exported(merge_records(found), "markdown")))
    assert len(audit.claims) and audit.findings == []


@pytest.mark.slow
def test_a_log_of_one_case_is_read_and_not_compared_row_by_row(write):
    rows = (f"RTX A4000,resnet50,fp16,{410 + number % 7}.{number % 10}" for number in range(1500))
    audit = audit_file(write("\n".join(["gpu,model,precision,images/s", *rows])))
    assert len(audit.claims) == 1500 and audit.findings == []


NO_TABLES = {
    **{"": "no table", "a,b\n1,2\n": "needs networks", "model,precision\nresnet50,fp16\n": "needs networks"},
    **{"just a sentence\n": "no table", "<table><tr><td>1</td></tr></table>": "Copy the table in a browser"},
    **{"\x89PNG\x00": "not a text", "\ufeff\ud800": "no table"},
}


def above_notes(audit):
    return {finding.rule for finding in audit.findings if finding.severity is not Severity.NOTE}


@pytest.mark.parametrize("name", READABLE)
def test_a_table_of_throughputs_is_read_whole_and_not_accused(write, name):
    text, cells = READABLE[name]
    audit = audit_file(write(text))
    claims = [
        Cell(c.gpu or None, c.model, c.precision, c.rate, c.num_gpus, c.batch or None, c.mode) for c in audit.claims
    ]
    assert sorted(claims, key=str) == sorted(cells, key=str)
    assert audit.unread == [] and above_notes(audit) == set()


@pytest.mark.parametrize(
    ("text", "named"), [*NO_THROUGHPUTS.values(), *NO_TABLES.items()], ids=[*NO_THROUGHPUTS, *NO_TABLES]
)
def test_what_is_no_table_of_throughputs_is_refused_and_named(write, capsys, text, named):
    assert program.main(["results", "audit", str(write(text))]) == 2
    message = capsys.readouterr().err
    assert named in message and "Traceback" not in message


def test_a_column_of_something_else_is_named_and_the_rest_is_judged(write, capsys):
    rows = ("RTX A4000,resnet50,fp16,410.5,0.62,0.31", "RTX A5000,resnet50,fp16,640.1,0.97,0.2")
    path = write("\n".join(["gpu,model,precision,images/s,relative to V100,ms/batch", *rows]))
    assert program.main(["results", "audit", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "2 of 2 cells" in printed and "'relative to V100' (relative values), 'ms/batch' (times)" in printed


def test_tokens_of_a_network_counted_in_sequences_are_not_judged(write):
    reading = audit_file(write("gpu,model,precision,tokens/s\nA100 PCIe 40GB,bert_large,fp16,52000\n"))
    assert not len(reading.claims) and "tokens" in reading.unread[0].message


RATES = {"resnet50": 410.5, "inception_v3": 262.3, "resnet152": 163.9, "vgg16": 240.7}
CELLS = {
    "8 of 8": list(itertools.product(RATES, ("fp16", "tf32"), (1,))),
    "6 of 6": list(itertools.product(list(RATES)[:3], ("fp16",), (1, 2))),
    "3 of 3": list(itertools.product(list(RATES)[:3], ("fp16",), (1,))),
    "counts": list(itertools.product(["resnet50"], ("fp16",), (1, 2, 4, 8))),
}
SCALING = {1: 1.0, 2: 1.93, 4: 3.77, 8: 7.31}


def two_kinds(cells, factors, decimals=1, gpus=("RTX A4000", "RTX A5000")):
    """Return a table in which the second GPU's cells are those of the first, times the factors in turn."""
    rows = ["gpu,model,precision,gpus,img/s"]
    for (model, precision, count), factor in zip(cells, itertools.cycle(factors), strict=False):
        rate = round(RATES[model] * SCALING[count] * (1.0 if precision == "fp16" else 0.4651), decimals)
        rows += [f"{gpus[0]},{model},{precision},{count},{rate:.{decimals}f}"]
        rows += [f"{gpus[1]},{model},{precision},{count},{rate * factor:.{decimals}f}"]
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize("factor", [1.5, 3.0, 0.5])
@pytest.mark.parametrize("cells", CELLS)
def test_a_gpu_that_is_an_exact_multiple_of_another_kind_is_found(write, cells, factor):
    finding = next(
        finding
        for finding in audit_file(write(two_kinds(CELLS[cells], [factor]))).findings
        if finding.rule == "exact_multiple_of_gpu_kind"
    )
    assert finding.severity is not Severity.NOTE and len(finding.rows) == 2 * len(CELLS[cells])
    assert f"exactly {max(factor, 1 / factor):.3f} times" in finding.message
    assert ("1.45 to 1.71" if factor > 1 else "0.58 to 0.69") in finding.message


@pytest.mark.parametrize("decimals", [0, 1, 2])
@pytest.mark.parametrize("cells", CELLS)
def test_two_kinds_with_honest_ratios_are_not_accused(write, cells, decimals):
    factors = [1.5513, 1.6132, 1.4987, 1.5471, 1.5724, 1.6311, 1.5199, 1.5868]
    assert above_notes(audit_file(write(two_kinds(CELLS[cells], factors, decimals)))) == set()


@pytest.mark.parametrize(
    ("ratios", "severity"),
    [((1.563, 1.541), None), ((2.013, 1.971), Severity.NOTE), ((2.813, 2.741), Severity.SUSPECT)],
)
def test_a_ratio_of_two_gpus_that_no_source_has_measured_is_found(write, ratios, severity):
    rows = ["gpu,model,precision,img/s"]
    for (model, rate), ratio in zip({"resnet50": 452.9, "bert_large_squad_384": 19.42}.items(), ratios, strict=True):
        rows += [f"RTX A4000,{model},fp16,{rate}", f"RTX A5000,{model},fp16,{rate * ratio:.2f}"]
    found = [f for f in audit_file(write("\n".join(rows) + "\n")).findings if f.rule == "ratio_of_gpus"]
    assert [finding.severity for finding in found] == [severity] * (severity is not None)
    assert all("published: 1.55 to 1.56, by specification 1.45 to 1.71" in finding.message for finding in found)


PIECES = st.sampled_from(
    [
        *"|-,;\t\n .0123456789±×x'\"",
        *("\n|---|---|\n", "gpu", "model", "resnet50", "1 GPU", "8x A4000", "throughput", "fp16", "quantity", "value"),
        *("<table>", "<tr>", "<td rowspan=9>", "</table>", "1.029,62", "3,524"),
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=60).map("".join) | st.text(max_size=80))
@pytest.mark.slow
def test_no_file_whatever_is_in_it_is_more_than_a_short_message(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "table.txt"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(NotATable):
        audit_file(path)
