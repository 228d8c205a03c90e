"""Faults that people publish are found, each by its rule; honest tables have nothing above a note."""

import random
from pathlib import Path

import pytest

from results.audit.claims import Claim, Severity, read_throughputs
from results.audit.judgement import audit_file, claim_findings
from results.reference import FOLDER, read_rows
from studies import audit_recall
from studies.audit_recall import MUTATIONS, false_alarms, honest_tables, is_found

BLOG = Path(__file__).parent / "cases" / "blog_a5000.csv"
PUBLISHED = FOLDER / "published.csv"


@pytest.fixture
def table(tmp_path):
    """Return a function that writes a table of rows."""

    def write(*rows, heading="gpu,model,precision,gpus,img/s"):
        path = tmp_path / "table.csv"
        path.write_text("\n".join([heading, *rows]) + "\n")
        return path

    return write


def above_notes(path):
    found = audit_file(path).findings if isinstance(path, Path) else claim_findings(path, {})
    return {finding.rule: finding for finding in found if finding.severity is not Severity.NOTE}


def severities(path, rule):
    return {finding.severity for finding in audit_file(path).findings if finding.rule == rule}


def scaled(rates, factor):
    return {model: rate * factor for model, rate in rates.items()}


def claims_of(*cells):
    """Return claims: (GPU, network, precision, GPUs, samples/s) each."""
    return [
        Claim(row, (gpu,), (), gpu, model, precision, False, 0, count, rate, 0.01, "train", 0)
        for row, (gpu, model, precision, count, rate) in enumerate(cells)
    ]


@pytest.mark.slow
def test_the_blog_is_impossible_in_every_row_as_published_and_as_reference():
    found = audit_file(PUBLISHED).findings
    blog = {number for number, row in enumerate(read_rows("published.csv")) if row["source"].startswith("Spheron")}
    impossible = {row for f in found if f.severity is Severity.IMPOSSIBLE for row in f.rows}
    assert len(blog) == 32 and blog - impossible == {3}, "one cell is no exact multiple"
    claims, found = read_throughputs(BLOG).claims, audit_file(BLOG).findings
    assert len(claims) == 32, "empty cells are filled from above"
    assert {(claim.model, claim.precision) for claim in claims if claim.row == 5} == {("inception_v3", "fp32")}
    assert {row for f in found if f.severity is Severity.IMPOSSIBLE for row in f.rows} == set(range(8))
    exact = {f"exact_multiple_of_{what}" for what in ("gpus", "network", "precision")}
    assert exact | {"order_of_networks"} <= {f.rule for f in found if f.severity is Severity.IMPOSSIBLE}


@pytest.mark.slow
def test_no_measured_row_is_above_a_note_but_those_that_their_source_marks():
    found, rows = audit_file(PUBLISHED).findings, read_rows("published.csv")
    above = {row for f in found if f.severity is not Severity.NOTE for row in f.rows}
    suspect = {number for number, row in enumerate(rows) if row["suspect"]}
    assert above <= suspect
    slow = [rows[row] for row in suspect - above]  # their own log gives them away, no limit of the GPU does
    assert {(row["gpu"], row["model"], row["precision"]) for row in slow} == {("A100 SXM4 40GB", "vgg16", "fp16")}
    linear = [f for f in found if f.rule == "superlinear_scaling" and f.severity is Severity.IMPOSSIBLE]
    assert len(linear) == 2 and any("1093.85 is 2.36 of 16 × 29.01" in finding.message for finding in linear)


LIMITS = [
    ("RTX A4000,ResNet50,fp16,256,1,3000", "bandwidth_bound", Severity.IMPOSSIBLE),
    ("RTX A4000,ResNet152,fp16,64,1,1500", "flop_bound", Severity.IMPOSSIBLE),
    ("RTX A4000,ResNet152,fp16,64,1,800", "flop_bound", Severity.SUSPECT),
    ("RTX A4000,ResNet152,fp16,256,1,300", "memory_size", Severity.IMPOSSIBLE),
    ("RTX A5000,ResNet152,fp16,256,1,500", "memory_size", Severity.SUSPECT),
    ("V100 SXM2 16GB,ResNet50,fp16,448,1,1290", "memory_size", Severity.IMPOSSIBLE),
    ("A100-SXM4-40GB,ResNet50,fp32 (TF32 off),128,1,1500", "flop_bound", Severity.IMPOSSIBLE),
    ("RTX A5000,ResNet50,fp16,64,1,150", "sources_contradict", Severity.SUSPECT),
    ("H100 SXM5 80GB,ResNet50,fp16,256,1,500", "sources_contradict", Severity.SUSPECT),  # measured, not published
]
POSSIBLE = [
    "RTX A4000,ResNet50,fp16,256,1,830",
    "A100-SXM4-40GB,ResNet50,fp32 (TF32 off),128,1,640",
    "V100 SXM2 32GB,ResNet50,fp16,448,1,1290",
    "V100 SXM2,ResNet50,fp16,448,1,1290",  # it may have 32 GB
]
WITH_BATCH = "gpu,model,precision,batch,gpus,img/s"


@pytest.mark.parametrize(("row", "rule", "severity"), LIMITS)
def test_a_number_beyond_a_limit_is_found_and_a_possible_one_is_not(table, row, rule, severity):
    assert severities(table(row, heading=WITH_BATCH), rule) == {severity}
    assert audit_file(table(*POSSIBLE, heading=WITH_BATCH)).findings == []


def test_unknown_networks_gpus_and_precisions_are_each_named(table):
    cells = [("RTX 9999", "resnet50", "fp16"), ("A4000", "MyNet", "fp16"), ("A4000", "resnet50", "int4")]
    found = audit_file(table(*(f"{','.join(cell)},1,450" for cell in cells))).findings
    notes = {finding.rule: finding for finding in found if finding.severity is Severity.NOTE}
    assert "RTX 9999" in notes["unknown_gpu"].message and notes["unknown_gpu"].rows == (0,)
    assert "mynet" in notes["unknown_network"].message and notes["unknown_network"].rows == (1,)
    assert "int4" in notes["unknown_precision"].message


@pytest.mark.parametrize(
    ("rates", "severity"),
    [
        (["514.81", "1029.62", "2059.24", "4118.48"], {Severity.IMPOSSIBLE}),
        (["500", "1000", "2000", "4000"], {Severity.SUSPECT}),
        (["100", "200", "400", "800"], {Severity.NOTE}),
        (["12", "24"], set()),
        (["514.81", "1021.10", "2033.48", "4018.93"], set()),
    ],
)
def test_the_fewer_digits_the_less_an_exact_multiple_says(table, rates, severity):
    path = table(*(f"RTX A5000,ResNet50,fp16,{2**i},{rate}" for i, rate in enumerate(rates)))
    assert severities(path, "exact_multiple_of_gpus") == severity


NETWORKS = {"alexnet": 17.0, "resnet50": 1.5, "inception_v3": 1.0, "resnet152": 0.58, "inception_v4": 0.46}
BUILD = NETWORKS | {"resnet152": 0.68}
SLOW_BUILD = BUILD | {"resnet50": 0.87}  # an RTX 3090 with a build from before its cuDNN had kernels for it
SIMILAR = {"resnet50": 0.5, "inception_v3": 0.75}


def column(gpu, precision, rates):
    """Return the cells of a column of relative rates, none an exact multiple of another."""
    return [(gpu, model, precision, 1, 397 * rate * 1.0013**n) for n, (model, rate) in enumerate(rates.items())]


def exchanged(rates, one, other):
    return rates | {one: rates[other], other: rates[one]}


def four_columns(odd):
    columns = [("RTX A4000", "fp16", odd), ("RTX A4000", "tf32", scaled(NETWORKS, 0.531))]
    columns += [("RTX A5000", kind, scaled(NETWORKS, factor)) for kind, factor in (("fp16", 1.557), ("tf32", 0.817))]
    return [cell for of in columns for cell in column(*of)]


def from_two_to_eight(gpu):
    """Return two networks that gain 76 % over two doublings of the GPUs."""
    rates = {"resnet50": (1402.1, 2470.4), "inception_v3": (961.3, 1690.2)}
    return [(gpu, model, "fp16", n, rate) for model, of in rates.items() for n, rate in zip((2, 8), of, strict=True)]


def counts(**rates):
    """Return cells of two networks, with the rates of one, two and four GPUs."""
    return [
        ("RTX A6000", model, "fp16", count, rate * share)
        for model, share in (("resnet50", 1.0), ("resnet152", 0.4))
        for count, rate in ({1: 453.0, 2: 892.0, 4: 1777.0} | {int(key[1:]): of for key, of in rates.items()}).items()
    ]


def copied(*rates):
    """Return cells of two GPUs of one throughput, and those of a third."""
    gpus = {"RTX A4000": 0.6417, "RTX A5000": 1.0, "RTX A6000": 1.0}
    return [(gpu, f"net{n}", "fp16", 1, rate * of) for gpu, of in gpus.items() for n, rate in enumerate(rates)]


def one_of_four_scales(share):
    rates = {"resnet50": (500.3, 0.93), "resnet152": (200.7, 0.93), "inception_v3": (300.1, 0.93)}
    rates["inception_v4"] = (120.9, share)
    return [("RTX A6000", m, "fp16", n, r * (n * own if n > 1 else 1)) for m, (r, own) in rates.items() for n in (1, 4)]


def last_count_is(count, times):
    rates = {"resnet50": 700, "inception_v3": 450, "resnet152": 280, "inception_v4": 210}
    cells = [("RTX A5000", m, "fp16", n, rate * n**0.75 * 1.0013**n) for m, rate in rates.items() for n in (1, 2, 4)]
    return [*cells[:-1], ("RTX A5000", "inception_v4", "fp16", count, 210 * times)]


@pytest.mark.parametrize(
    ("cells", "rules"),
    [
        (four_columns(NETWORKS), set()),
        (four_columns(exchanged(NETWORKS, "resnet152", "inception_v3")), {"order_of_networks"}),
        (four_columns(exchanged(NETWORKS, "resnet152", "inception_v4")), set()),  # of about the same work
        (column("RTX A4000", "fp16", BUILD), set()),
        (column("RTX A4000", "fp16", exchanged(BUILD, "resnet152", "resnet50")), {"order_of_networks"}),
        (column("RTX A4000", "fp16", SLOW_BUILD), set()),
        (column("RTX A4000", "tf32", SIMILAR), {"order_of_networks"}),
        (column("RTX A4000", "tf32", SIMILAR | {"inception_v3": 0.6}), set()),
        (from_two_to_eight("RTX 3090"), set()),
        (from_two_to_eight("A100 SXM4 80GB"), {"halved_scaling"}),  # its links are full ones
        (one_of_four_scales(0.93), set()),
        (one_of_four_scales(0.5), {"scaling_out_of_line"}),
        (counts(_4=891.0), {"no_scaling"}),
        (counts(_2=446.0), {"no_scaling"}),
        (counts(_1=4530.0), {"slower_with_more_gpus"}),
        (counts(_1=226.0), {"superlinear_scaling"}),
        (copied(704.3, 288.1, 421.7, 1630.9, 371.3, 906.1), {"copied_column"}),
        (last_count_is(8, 2.75), {"odd_gpu_count"}),
        (last_count_is(8, 4.7), set()),  # it was measured on eight
        ([("RTX A4000", "resnet50", "fp16", 2, rate) for rate in (892, 1777)], {"two_values"}),
    ],
)
def test_a_fault_is_found_by_its_rule_and_what_may_be_true_by_none(cells, rules):
    found = set(above_notes(claims_of(*cells)))
    assert rules <= found and bool(rules) == bool(found)


@pytest.fixture(scope="module")
def tables():
    return honest_tables()


@pytest.mark.slow
def test_no_honest_table_nor_a_few_of_its_rows_has_a_finding_above_a_note(tables):
    for honest in tables:
        for reference in (honest.without_rows, honest.without_source):
            assert audit_recall.above_notes(honest.claims, reference) == set(), honest.name
    assert false_alarms(tables, 60, seed=2) == []


@pytest.mark.parametrize("kind", MUTATIONS)
@pytest.mark.slow
def test_most_faults_of_every_kind_are_found(tables, kind):
    """Nine of twelve drawn faults; `python -m studies.audit_recall` draws 40 of each."""
    chance, found, drawn = random.Random(f"cheap {kind}"), 0, 0
    small = [table for table in tables if len(table.claims) <= 100]
    while drawn < 12:
        table = chance.choice(small)
        mutated = MUTATIONS[kind](table.claims, chance)
        if mutated is not None:
            drawn += 1
            found += is_found(table.claims, mutated, table.without_rows)
    assert found >= (6 if "noise" in kind else 9)
