import csv
import json
import random
from pathlib import Path

import pytest

import results.__main__ as program
from results.audit.claims import read_claims
from results.audit.judgement import audit
from results.audit.series import Severity
from results.errors import NotATable
from results.reference import FOLDER, published
from results.reference.gpus import gpu_key, specifications
from results.reference.networks import model_key, networks
from results.report.tables import to_csv
from tests.unit.results.factory import make_case, make_environment, repeats, stored

BLOG = Path(__file__).parent / "cases" / "blog_a5000.csv"
SUSPECT_ROWS = {number for number, row in enumerate(published()) if row["suspect"]}


@pytest.fixture(scope="module")
def published_findings():
    return audit(FOLDER / "published.csv")


def table(tmp_path, *rows, heading="gpu,model,precision,batch_per_gpu,gpus,images_per_s"):
    path = tmp_path / "table.csv"
    path.write_text("\n".join([heading, *rows]) + "\n")
    return path


def rules(findings, severity=None):
    return {finding.rule for finding in findings if severity in (None, finding.severity)}


def test_every_cell_of_the_blog_is_impossible(published_findings):
    blog = {number for number, row in enumerate(published()) if row["source"].startswith("Spheron")}
    found = {row for f in published_findings if f.severity is Severity.IMPOSSIBLE for row in f.rows}
    assert len(blog) == 32 and blog <= found


def test_no_measured_row_is_above_a_note_but_those_that_their_source_marks(published_findings):
    above = {row for f in published_findings if f.severity is not Severity.NOTE for row in f.rows}
    assert above <= SUSPECT_ROWS
    slow = [published()[row] for row in SUSPECT_ROWS - above]  # their own log gives them away, no limit of the GPU does
    assert {(row["gpu"], row["model"], row["precision"]) for row in slow} == {("A100 SXM4 40GB", "vgg16", "fp16")}


def test_the_superlinear_rows_of_a_measured_table_are_named_with_their_numbers(published_findings):
    found = [f for f in published_findings if f.rule == "superlinear_scaling" and f.severity is Severity.IMPOSSIBLE]
    assert len(found) == 2
    assert any("1093.85 is 2.36 of 16 × 29.01" in finding.message for finding in found)


def test_the_wide_table_as_it_was_published_lights_up_in_every_row():
    findings = audit(BLOG)
    assert {row for f in findings if f.severity is Severity.IMPOSSIBLE for row in f.rows} == set(range(8))
    assert {
        "exact_multiple_of_gpus",
        "exact_multiple_of_network",
        "exact_multiple_of_precision",
        "few_base_numbers",
        "order_of_networks",
    } <= rules(findings, Severity.IMPOSSIBLE)


def test_a_wide_table_is_read_with_empty_cells_filled_from_above():
    claims = read_claims(BLOG)
    assert len(claims) == 32
    assert {(claim.row, claim.model, claim.precision) for claim in claims if claim.row in (4, 5)} == {
        (4, "inception_v3", "fp16"),
        (5, "inception_v3", "fp32"),
    }


@pytest.mark.parametrize("decimals", [0, 1, 2, 6])
@pytest.mark.parametrize("seed", range(10))
def test_honest_tables_of_any_number_of_digits_have_nothing_above_a_note(tmp_path, decimals, seed):
    chance = random.Random(seed)
    rows = []
    for model, base in (("resnet50", 400), ("resnet152", 160), ("inception_v3", 260), ("googlenet", 900)):
        for precision, factor in (("fp32", 1.0), ("fp16", 1.9 + 0.4 * chance.random())):
            for count in (1, 2, 4, 8):
                efficiency = 1 - 0.02 * chance.random() * (count > 1)
                rate = base * factor * count * efficiency * (1 + 0.005 * chance.gauss(0, 1))
                rows.append(f"RTX A6000,{model},{precision},64,{count},{rate:.{decimals}f}")
    assert [f for f in audit(table(tmp_path, *rows)) if f.severity is not Severity.NOTE] == []


def test_our_own_merged_table_is_audited_by_its_own_columns(tmp_path):
    from results.table.merge import merge_records

    environment = make_environment(gpus=8)
    records = []
    for count, rate in ((1, 300.0), (2, 590.0), (8, 5200.0)):
        case = make_case(device="gpu", num_gpus=count, batch_per_gpu=128)
        records += repeats(rate, rate * 1.01, case=case, environment=environment)
    (tmp_path / "ours.csv").write_text(to_csv(merge_records(stored(*records))), encoding="utf-8")
    (claim, *_) = read_claims(tmp_path / "ours.csv")
    assert (claim.gpu, claim.batch, claim.strict) == ("RTX A4000", 128, True)
    assert "superlinear_scaling" in rules(audit(tmp_path / "ours.csv"), Severity.IMPOSSIBLE)


@pytest.mark.parametrize(
    ("row", "rule", "severity"),
    [
        ("RTX A4000,ResNet50,fp16,256,1,3000", "bandwidth_bound", Severity.IMPOSSIBLE),
        ("RTX A4000,ResNet50,fp16,256,1,1200", "bandwidth_bound", Severity.NOTE),
        ("RTX A4000,ResNet152,fp16,64,1,1500", "flop_bound", Severity.IMPOSSIBLE),
        ("RTX A4000,ResNet152,fp16,64,1,800", "flop_bound", Severity.SUSPECT),
        ("RTX A4000,ResNet152,fp16,256,1,300", "memory_size", Severity.IMPOSSIBLE),
        ("RTX A5000,ResNet152,fp16,256,1,500", "memory_size", Severity.SUSPECT),
        ("A100-SXM4-40GB,ResNet50,fp32 (TF32 off),128,1,1500", "flop_bound", Severity.IMPOSSIBLE),
        ("RTX A5000,ResNet50,fp16,64,1,150", "sources_contradict", Severity.SUSPECT),
        ("RTX 9999,ResNet50,fp16,64,1,150", "unknown_gpu", Severity.NOTE),
    ],
)
def test_a_number_beyond_a_limit_is_found(tmp_path, row, rule, severity):
    assert rule in rules(audit(table(tmp_path, row)), severity)


@pytest.mark.parametrize(
    ("rates", "severity"),
    [
        (["514.81", "1029.62", "2059.24", "4118.48"], Severity.IMPOSSIBLE),
        (["500", "1000", "2000", "4000"], Severity.SUSPECT),
        (["100", "200", "400", "800"], Severity.NOTE),
        (["12", "24"], None),
        (["514.81", "1021.10", "2033.48", "4018.93"], None),
    ],
)
def test_the_fewer_digits_the_less_an_exact_multiple_says(tmp_path, rates, severity):
    rows = [f"RTX A5000,ResNet50,fp16,64,{2**i},{rate}" for i, rate in enumerate(rates)]
    found = {f.severity for f in audit(table(tmp_path, *rows)) if f.rule == "exact_multiple_of_gpus"}
    assert found == ({severity} if severity else set())


def test_possible_numbers_are_not_found(tmp_path):
    rows = ["RTX A4000,ResNet50,fp16,256,1,830", "A100-SXM4-40GB,ResNet50,fp32 (TF32 off),128,1,640"]
    assert audit(table(tmp_path, *rows)) == []


def test_a_network_slower_than_one_of_seven_times_its_work_is_impossible(tmp_path):
    rows = ["RTX A5000,GoogLeNet,fp16,64,1,300", "RTX A5000,ResNet152,fp16,64,1,500"]
    (finding,) = [f for f in audit(table(tmp_path, *rows)) if f.rule == "order_of_networks"]
    assert (finding.severity, finding.rows) == (Severity.IMPOSSIBLE, (0, 1))
    assert "7.3 times its FLOPs" in finding.message


def test_json_is_a_list_of_findings_with_rule_severity_rows_and_message(capsys):
    assert program.main(["results", "audit", str(BLOG), "--format", "json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert findings and all(set(f) == {"rule", "severity", "rows", "message"} for f in findings)
    assert all(isinstance(row, int) for f in findings for row in f["rows"])
    assert findings[0]["severity"] == "impossible"


def test_the_printed_audit_counts_its_findings(capsys):
    assert program.main(["results", "audit", str(BLOG)]) == 0
    assert "5 impossible, 3 suspect, 0 note\n32 of 32 cells with a throughput were read" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "model,precision\nresnet50,fp16\n"])
def test_what_is_not_a_table_is_a_short_message(tmp_path, text, capsys):
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(NotATable):
        audit(path)
    assert program.main(["results", "audit", str(path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_our_own_specifications_do_not_contradict_themselves():
    assert audit(FOLDER / "gpu_specs.csv") == []


@pytest.mark.parametrize(
    ("row", "severity", "words"),
    [
        ("RTX A4000,512,19.2,76.7", Severity.SUSPECT, "memory_bandwidth 512, but the reference has 448"),
        ("RTX A5000,768,27.8,222.2", Severity.NOTE, "sparsity"),
        ("A100 SXM4 80GB,1935,19.5,312", Severity.SUSPECT, "2039"),
    ],
)
def test_specifications_that_contradict_the_reference_are_named(tmp_path, row, severity, words):
    heading = "gpu,bandwidth_gb_s,fp32_tflops,fp16_tensor_dense_fp32acc_tflops"
    (finding,) = audit(table(tmp_path, row, heading=heading))
    assert finding.severity is severity and words in finding.message


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA RTX A4000", "RTX A4000"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM4 40GB"),
        ("A100", None),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("Radeon", None),
        ("", None),
    ],
)
def test_gpus_are_recognised_by_the_names_of_drivers(name, key):
    assert gpu_key(name) == key


@pytest.mark.parametrize("name", ["InceptionV3", "Inception v3", "inception3", "inception_v3"])
def test_networks_are_recognised_by_their_letters(name):
    assert model_key(name) == "inception_v3"


def test_reference_data_has_a_source_for_every_figure():
    for name in ("published.csv", "gpu_specs.csv", "prices.csv"):
        with (FOLDER / name).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert rows and all(row["source"] for row in rows)
    assert len(specifications()) >= 39 and set(networks()) >= {"resnet50", "resnet152", "inception_v3", "googlenet"}
