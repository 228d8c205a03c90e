"""Tables as frameworks, spreadsheets and terminals write them are read; what has no throughputs is refused by name."""

import itertools

import pytest

import results.__main__ as program
from results.audit.findings import Severity, with_facts
from results.audit.judgement import audit_file
from tests.support import PROJECT
from tests.support.audit_tables import NO_THROUGHPUTS, READABLE, Cell


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "table.txt"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def above_notes(audit):
    return {finding.rule for finding in audit.findings if finding.severity is not Severity.NOTE}


@pytest.mark.parametrize("name", READABLE)
def test_a_table_of_throughputs_is_read_whole_and_not_accused(write, name):
    text, cells = READABLE[name]
    audit = audit_file(write(text))
    claims = [
        Cell(c.gpu or None, c.model, c.precision, c.rate, c.num_gpus, c.batch or None, c.mode)
        for c in with_facts(audit.claims)
    ]
    assert sorted(claims, key=str) == sorted(cells, key=str)
    assert audit.unread == [] and above_notes(audit) == set()


@pytest.mark.parametrize("name", NO_THROUGHPUTS)
def test_a_table_of_something_else_is_refused_and_named(write, capsys, name):
    text, named = NO_THROUGHPUTS[name]
    assert program.main(["results", "audit", str(write(text))]) == 2
    message = capsys.readouterr().err
    assert named in message and "Traceback" not in message


def test_a_column_of_something_else_is_named_and_the_rest_is_judged(write, capsys):
    rows = ("RTX A4000,resnet50,fp16,410.5,0.62,0.31", "RTX A5000,resnet50,fp16,640.1,0.97,0.2")
    path = write("\n".join(["gpu,model,precision,images/s,relative to V100,ms/batch", *rows]))
    assert program.main(["results", "audit", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "2 of 2 cells" in printed and "'relative to V100' (relative values), 'ms/batch' (times)" in printed


def test_a_slice_is_named_as_a_part_of_a_gpu(write):
    notes = {finding.rule: finding for finding in audit_file(write(READABLE["slices"][0])).findings}
    assert notes["gpu_slice"].rows == (1, 2, 3, 4) and "A100-SXM4-40GB MIG 1g.5gb" in notes["gpu_slice"].message


def test_a_throughput_of_each_gpu_counts_for_all_of_them(write):
    heading = "gpu,model,precision,num_gpus,images/sec/gpu\n"
    rows = [f"RTX A4000,{m},fp16,{n},{r}" for m, r in (("resnet50", 410.5), ("vgg16", 240.1)) for n in (1, 4)]
    assert above_notes(audit_file(write(heading + "\n".join(rows[:1] + rows[2:3])))) == set()
    assert {f.rule for f in audit_file(write(heading + "\n".join(rows))).findings} == {"exact_multiple_of_gpus"}


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


@pytest.mark.parametrize("factor", [2.0, 1.5, 3.0, 0.5])
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


@pytest.mark.parametrize(
    "table",
    [
        *(two_kinds(CELLS[cells], [2], decimals=0) for cells in ("8 of 8", "6 of 6", "3 of 3")),
        two_kinds(CELLS["8 of 8"], [2], gpus=("RTX 4060", "RTX 5060 Ti")),  # the reference has no figures of these
        two_kinds(CELLS["8 of 8"], [1.5, 1.613, 1.5, 1.547, 1.5, 1.631, 1.5, 1.587]),  # only fp16 was multiplied
    ],
)
def test_exact_multiples_of_whole_numbers_or_of_one_precision_are_found(write, table):
    assert "exact_multiple_of_gpu_kind" in above_notes(audit_file(write(table)))


@pytest.mark.parametrize("decimals", [0, 1, 2])
@pytest.mark.parametrize("cells", CELLS)
def test_two_kinds_with_honest_ratios_are_not_accused(write, cells, decimals):
    factors = [1.5513, 1.6132, 1.4987, 1.5471, 1.5724, 1.6311, 1.5199, 1.5868]
    assert above_notes(audit_file(write(two_kinds(CELLS[cells], factors, decimals)))) == set()


def test_numbers_rounded_to_tens_are_no_exact_multiples(write):
    table = "GPU,ResNet50 FP16,Inception v3 FP16,ResNet152 FP16\nRTX A4000,400,260,160\nRTX A6000,800,520,320\n"
    assert above_notes(audit_file(write(table))) == set()


@pytest.mark.parametrize("excess", [1.0503, 1.0500001, 1.07])
def test_a_figure_above_a_limit_is_printed_with_the_digits_that_show_it(write, excess):
    heading = "gpu,model,precision,gpus,img/s\n"
    path = write(f"{heading}RTX A4000,vgg16,fp16,1,79.030000\nRTX A4000,vgg16,fp16,4,{4 * 79.03 * excess:.6f}\n")
    message = next(f.message for f in audit_file(path).findings if f.rule == "superlinear_scaling")
    assert float(message.split(" is ")[1].split(" of ")[0]) > 1.05


def test_large_throughputs_are_printed_with_all_their_digits(write):
    path = write(
        "gpu,model,gpus,tokens/s\nA100 PCIe 40GB,gpt2_small,1,1234567.5\nA100 PCIe 40GB,gpt2_small,2,4938270.5\n"
    )
    assert "4938270.5" in "".join(finding.message for finding in audit_file(path).findings)


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


def test_audit_prints_its_answer_first_and_few_lines_at_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert program.main(["results", "audit", str(PROJECT / "results" / "reference" / "published.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("published.csv: ") and "impossible" in lines[0]
    sentences = [line for line in lines if line.startswith("  ")]
    findings = sum(line.startswith(("impossible: ", "suspect: ", "note: ")) for line in lines)
    assert findings >= 15 and max(map(len, sentences)) <= 80 and len(sentences) <= 4 * findings
