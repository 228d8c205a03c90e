"""Recommendations: what may be compared, which prices count, and what is refused; questions of buyers and their answers."""

import json
import math
import shlex
import statistics
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import results.__main__ as program
from results import read_runs
from results.recommend.answer import answers
from results.recommend.options import Basis, RentalQuestion
from results.recommend.prediction import WIDTH, predict
from results.reference.prices import YOURS, Offer
from studies import predict_held_out
from studies.pages import answers as page
from tests.unit.results.factory import (
    make_case,
    make_environment,
    make_failure,
    make_origin,
    rates_of,
    repeats,
    write_run,
)

GPUS = {"a4000": "NVIDIA RTX A4000", "a5000": "NVIDIA RTX A5000", "a6000": "NVIDIA RTX A6000"}

SLOW, FAST = (100.0, 101.0, 99.0), (160.0, 158.0, 159.0)

QUESTIONS = YAML(typ="safe").load((Path(__file__).parent / "questions" / "questions.yml").read_text(encoding="utf-8"))
"""Questions that buyers ask, each with its expected winner, ratio and words."""


@pytest.fixture(autouse=True)
def no_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path / "runs"))
    return tmp_path / "runs"


def call(capsys, *arguments):
    assert program.main(["results", "recommend", *arguments]) == 0
    return capsys.readouterr().out


def first_answer(capsys, *arguments):
    return json.loads(call(capsys, *arguments, "--format=json"))["answers"][0]


def case_of(**changes):
    return make_case(**{"device": "gpu", "precision": "fp16"} | changes)


def records_of(fleet, rates=(), *, gpu="", usd=None, status="", case=None, changes=None, **environment):
    """Return the records of a fleet of one host, as `questions.yml` describes them; a status is a failure."""
    machine = make_environment(gpus=1, gpu=gpu or GPUS[fleet], **environment)
    common = {"case": case_of(**case or {}), "environment": machine}
    if status:
        return [make_failure(status, origin=make_origin(fleet, "host"), **common)]
    return repeats(*rates, fleet=fleet, usd_per_gpu_hour=usd, **{"host": f"on-{fleet}"} | (changes or {}), **common)


def two_fleets(**changes):
    return [*records_of("a4000", SLOW, **changes), *records_of("a5000", FAST, **changes)]


def ask(records, offers=(), **question):
    asked = RentalQuestion(**{"network": "resnet50", "precision": "fp16"} | question)
    return answers(asked, rates_of(*records), offers)


def test_every_gpu_that_was_asked_for_is_in_the_answer():
    names = ("RTX A4000", "RTX A5000", "RTX A6000", "H100 NVL 94GB")
    records = [*records_of("a4000", SLOW, usd=0.2), *records_of("a5000", status="oom")]
    advices = ask(records, gpus=tuple((name, 1) for name in names))
    for advice in advices[:2]:
        assert {option.gpu for option in advice.options} >= set(names)
    notes = {option.gpu: option.excluded for option in advices[0].options}
    assert notes["RTX A4000"] == "" and notes["RTX A5000"] == "oom in this run"
    assert advices[1].basis is Basis.PUBLISHED


def test_one_ambiguous_case_blocks_no_other_answer(no_runs, capsys):
    """It is left out in one line that names only what differs; in report and compare: test_report, test_compare."""
    variables = {"TF_DETERMINISTIC_OPS": "0", "NCCL_DEBUG": "WARN"}
    others = {"tf32_enabled": False, "variables": variables | {"TF_DETERMINISTIC_OPS": "1"}}
    tf32 = {"case": {"precision": "tf32"}}
    records = [*records_of("a5000", FAST, usd=0.2), *records_of("a5000", FAST, usd=0.2, **tf32)]
    for case in ({}, tf32):
        records += records_of("a4000", SLOW, usd=0.1, variables=variables, **case)
    records += records_of("a4000", FAST, changes={"run_id": "run-2"}, usd=0.1, **others)
    run = str(write_run(no_runs, records).path)
    why = "measured with several TF_DETERMINISTIC_OPS (0, 1)"
    assert "left out" not in call(capsys, run, "--precision=tf32", "--gpus=A4000,A5000")
    text = call(capsys, run, "--precision=fp16,tf32")
    assert text.count("left out") == text.count(f"left out: a4000, resnet50 fp16: {why}; compare --by variables") == 1
    assert "a5000 is 1.59" in text and "159.0" in text
    recommended = read_runs(run).recommend(precision=["fp16", "tf32"])
    assert [line for line in recommended.answer if line.startswith("left out: a4000")] and len(recommended.choices) > 2


def test_a_host_is_rented_whole_and_one_that_is_too_small_does_not_count():
    def usd(count, *offers):
        hosts = [Offer("A4000", usd, gpus_per_host=gpus, origin=YOURS, gpus=("RTX A4000",)) for gpus, usd in offers]
        return ask([], hosts, gpus=(("RTX A4000", count),))[0].options[0].usd

    assert usd(1, (4, 0.1), (1, 0.2)) == (0.2, 0.2) and usd(4, (4, 0.1), (1, 0.2)) == (0.4, 0.4)
    assert usd(2, (4, 0.1)) == (0.4, 0.4)


def test_overlapping_offers_are_no_tie_of_samples_a_dollar():
    prices = (("RTX A4000", 0.2), ("RTX A5000", 0.2), ("RTX A5000", 1))
    (advice,) = ask(two_fleets(), [Offer(gpu, usd, origin=YOURS, gpus=(gpu,)) for gpu, usd in prices])
    assert advice.sentence.startswith("the 3 offers do not decide between a5000 and a4000; ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus=A4001"], "GPU 'A4001' is not in the reference. Did you mean one of: RTX A4000"),
        (["--gpus=RTX 4080"], "GPU 'RTX 4080' is not in the reference and has no known figures."),
        (["--price=A4000=free"], "--price: must be GPU=USD"),
        (["--gpus=0x A4000"], "--gpus: must have a count above 0, e.g. '2x A5000'. Received: '0x A4000'"),
        (["--model=resnet50,vgg16"], "--model: must be one network; repeat the flag"),
        (["--model=resnet5"], "--model: 'resnet5' is not a known network. Did you mean one of: resnet50"),
        (["--precision=fp8"], "--precision: must be among fp32, tf32, fp16, bf16"),
        (["--num-gpus=0"], "--num-gpus: must be whole numbers above 0"),
    ],
)
def test_a_question_that_cannot_be_read_is_a_short_message(capsys, arguments, message):
    assert program.main(["results", "recommend", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


@pytest.mark.parametrize("gpu", ["", "NVIDIA XYZ 9000"])
def test_a_fleets_name_is_no_gpu_where_a_device_was_recorded(no_runs, capsys, gpu):
    """A CPU, and a GPU that the reference lacks, in a fleet with a GPU's name; another fleet never started."""
    machine = make_environment(gpus=1, gpu=gpu) if gpu else make_environment()
    records = repeats(*SLOW, fleet="a4000", case=case_of(device="gpu" if gpu else "cpu"), environment=machine)
    records += [make_failure("lost", case=case_of(), origin=make_origin("a5000", "away"))]
    run = str(write_run(no_runs, records).path)
    rows = {option["subject"]: option for option in first_answer(capsys, run)["options"]}
    assert rows["a4000"]["gpu"] == (gpu or "Test CPU") and rows["a4000"]["offers"] == []
    page = no_runs / "page.html"
    assert program.main(["results", "report", run, f"--output={page}"]) == 0 and "A4000" not in page.read_text()


def test_a_name_is_a_gpu_if_nothing_started_and_a_typed_fleet_has_a_price(no_runs, capsys):
    records = [*records_of("a5000", FAST), make_failure("lost", case=case_of(), origin=make_origin("a4000", "away"))]
    run = write_run(no_runs, [*records, *records_of("new", SLOW, gpu="XYZ")])
    options = first_answer(capsys, str(run.path), "--price=new=0.3")["options"]
    rows = {option["subject"]: option for option in options}
    assert rows["a4000"]["gpu"] == "RTX A4000" and rows["new"]["usd_per_hour"] == [0.3, 0.3]


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(question, marks=[pytest.mark.slow] if number % 4 else [])
        for number, question in enumerate(QUESTIONS)
    ],
    ids=lambda question: question["about"],
)
def test_a_question_has_its_winner_its_ratio_and_its_words(question, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path))
    if "run" in question:
        write_run(tmp_path, [record for fleet, of in question["run"].items() for record in records_of(fleet, **of)])
    arguments = ["results", "recommend", *shlex.split(question["command"])]
    assert program.main([*arguments, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    if "winner" in question:
        assert document["answers"][0]["winner"] == question["winner"], document["answer"]
    if "ratio" in question:
        assert f"{question['ratio']:.2f}" in document["answer"][0], document["answer"]
    assert program.main(arguments) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert [word for word in question.get("says", []) if word not in text] == [], text
    assert [word for word in question.get("never", []) if word in text] == [], text


def test_the_page_of_answers_is_what_the_commands_print_today():
    text = page.PAGE.read_text(encoding="utf-8")
    assert text == page.page(), "run: python -m studies.pages.answers"
    assert len([word for word in text.split() if any(map(str.isalpha, word))]) <= page.MOST_WORDS


@pytest.mark.parametrize("family", [False, True])
def test_predictions_miss_held_out_figures_by_what_the_answer_states(family):
    errors = sorted(abs(math.expm1(abs(one.error))) for one in predict_held_out.held_out() if one.family is family)
    assert len(errors) == (48 if family else 76)
    assert statistics.median(errors) < (0.115 if family else 0.08)
    assert errors[math.ceil(0.9 * len(errors)) - 1] < (0.22 if family else 0.2) < WIDTH - 1


REFUSED = [
    ("Banana", {"RTX 4090": 1000.0}, "bandwidth or peak is not specified"),
    ("RTX 5090", {"RTX 4090": 1000.0}, "no GPU of compute capability 12.0"),
    ("L4", {"RTX 4090": 1000.0, "Banana": 1.0}, "more than 3 times away"),
    ("L4", {}, "no GPU of compute capability 8.9"),
]


@pytest.mark.parametrize(("gpu", "figures", "words"), REFUSED)
def test_what_a_prediction_lacks_is_named(gpu, figures, words):
    assert words in predict(gpu, "fp16", figures)


def test_a_prediction_follows_similar_gpus():
    similar = predict("RTX A5500", "fp16", {"RTX A5000": 700.0})
    assert 700 < similar.value < 1.2 * 700
    assert similar.contains(1.2 * similar.value) and not similar.contains(1.3 * similar.value)
    with_another = predict("RTX A5500", "fp16", {"RTX A5000": 700.0, "A100 SXM4 80GB": 1.0})
    assert with_another.value == pytest.approx(similar.value, rel=0.05)
