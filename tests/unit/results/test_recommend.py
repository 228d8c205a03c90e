import json

import pytest

import results.__main__ as program
from results.recommend.evidence import Basis
from results.recommend.headlines import break_even_lines
from results.recommend.questions import Question
from results.recommend.ranking import Choice, recommend
from results.reference.prices import import_skypilot, known_prices, prices_csv, read_prices
from results.runs.store import RunFolder
from results.stats import ratio_interval
from results.table.fleets import fleet_rates
from results.table.merge import merge_records
from tests.unit.results.factory import make_case, make_environment, repeats, stored

CATALOG = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,SpotPrice
1x_RTXA4000,RTXA4000,1,8,32,0.17,EU,0.08
4x_RTX-A5000,RTX-A5000,4,32,128,1.44,EU,
cpu,,,8,32,0.1,EU,
"""


@pytest.fixture(autouse=True)
def no_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path / "runs"))
    return tmp_path / "runs"


def call(*arguments):
    return program.main(["results", "recommend", *arguments])


def choices_of(question, rates=(), offers=()) -> list[Choice]:
    return [choice for verdict in recommend(question, rates, offers) for choice in verdict.choices]


PRICES = ["--price", "A4000=0.17", "--price", "A5000=0.24"]


def test_published_rows_alone_answer_on_a_fresh_clone_and_are_labelled(capsys):
    assert call("--model=resnet50", "--precision=fp16", "--gpus=A4000,A5000", *PRICES) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "PUBLISHED by others, not measured here" in out
    assert "RTX A5000 is worth up to 1.55 × the price of RTX A4000; at these prices it costs 1.41 × as much" in out
    assert "rent RTX A5000" in out
    assert "precision: on RTX A5000, against fp16: tf32 0.58 ×" in out


def test_the_ranking_flips_at_the_price_it_says(capsys):
    def first(a5000):
        call("--model=resnet50", "--gpus=A4000,A5000", "--price=A4000=0.17", f"--price=A5000={a5000}", "--format=json")
        return json.loads(capsys.readouterr().out)["choices"]

    best, other = first(0.30)
    assert best["gpu"] == "RTX A4000" and other["gpu"] == "RTX A5000"
    flip = other["wins_below"]
    assert first(flip * 1.001)[0]["gpu"] == "RTX A4000"
    assert first(flip * 0.999)[0]["gpu"] == "RTX A5000"


def measured(*, price_a=None, price_b=None):
    case = make_case(device="gpu", precision="fp16")
    records = []
    for fleet, gpu, rates, price in (
        ("a4000", "NVIDIA RTX A4000", (100.0, 101.0, 99.0), price_a),
        ("a5000", "NVIDIA RTX A5000", (160.0, 158.0, 159.0), price_b),
    ):
        environment = make_environment(gpus=1, gpu=gpu)
        records += repeats(*rates, fleet=fleet, host=f"on-{fleet}", case=case, environment=environment,
                           usd_per_gpu_hour=price)  # fmt: skip
    return records


def test_measured_rows_come_before_published_ones_with_their_interval(no_runs, capsys):
    run = RunFolder.create(no_runs, "run-1")
    for i, record in enumerate(measured(price_a=0.17, price_b=0.36)):
        run.write_record(f"job-{i}", record)
    assert call("--model=resnet50") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "measured by tfbench in these runs" in out and "PUBLISHED" not in out
    interval = ratio_interval([160.0, 158.0, 159.0], [100.0, 101.0, 99.0])
    assert f"a5000 is worth up to 1.59 ± 0.0{interval.half_width * 100:.0f} × the price of a4000" in out
    assert "rent a4000 (hosts.yml)" in out


def test_a_gpu_that_nobody_measured_is_bounded_and_not_ranked():
    rates = fleet_rates(merge_records([]))
    choices = choices_of(Question(mix={"googlenet": 1.0}, precision="fp16"), rates, known_prices([]))
    assert choices and {choice.basis for choice in choices} == {Basis.BOUND}
    assert {choice.excluded for choice in choices} == {"no published row"}


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"usd_per_hour": 0.165}, "over the budget"),
        ({"hours": 0.5}, "takes 0.6 hours"),
        ({"memory_gib": 20.0}, "needs 20 GiB, has 16"),
        ({"batch_per_gpu": 512}, "needs 19 GiB, has 16"),
    ],
)
def test_limits_leave_choices_out_with_their_reason(limits, words):
    question = Question(mix={"resnet50": 1.0}, precision="fp16", gpus=("RTX A4000",), **limits)
    choices = choices_of(question, [], known_prices([]))
    assert any(words in choice.excluded for choice in choices)


def test_a_mix_takes_the_time_of_its_parts():
    offers = known_prices([])
    of = lambda mix: choices_of(Question(mix=mix, precision="fp16", gpus=("RTX A6000",)), [], offers)[0]  # noqa: E731
    parts = [of({"resnet50": 1.0}), of({"resnet152": 1.0})]
    both = of({"resnet50": 0.25, "resnet152": 0.75})
    seconds = 0.25 / parts[0].samples_per_second + 0.75 / parts[1].samples_per_second
    assert both.samples_per_second == pytest.approx(1 / seconds)


def test_break_even_is_said_for_each_other_gpu():
    question = Question(mix={"resnet50": 1.0}, precision="fp16")
    rates = fleet_rates(merge_records(stored(*measured(price_a=0.2, price_b=0.3))))
    (verdict,) = recommend(question, rates, [])
    (line,) = break_even_lines(verdict)
    assert line.endswith("it costs 1.50 × as much, so a5000 wins")


def test_a_skypilot_catalog_becomes_a_prices_file_that_goes_before_the_shipped_one(tmp_path, capsys):
    catalog = tmp_path / "catalog.csv"
    catalog.write_text(CATALOG)
    arguments = ["prices", str(catalog), "--provider=Example", "--retrieved-on=2026-11-01"]
    assert program.main(["results", *arguments]) == 0
    own = tmp_path / "prices.csv"
    own.write_text(capsys.readouterr().out)
    offers = read_prices(own)
    assert [(o.gpu, o.usd_per_gpu_hour, o.commitment) for o in offers] == [
        ("RTX A4000", 0.17, "on demand"),
        ("RTX A4000", 0.08, "spot"),
        ("RTX A5000", 0.36, "on demand"),
    ]
    assert prices_csv(offers) == own.read_text()
    assert {o.provider for o in known_prices([own]) if o.gpu == "RTX A4000"} == {"Example"}
    assert any(o.gpu == "RTX A6000" for o in known_prices([own]))


def test_a_bad_prices_file_names_the_line(tmp_path, capsys):
    path = tmp_path / "prices.csv"
    path.write_text("gpu,usd_per_gpu_hour\nRTX A4000,0.17\nRTX A5000,cheap\n")
    assert call("--model=resnet50", f"--prices={path}") == 2
    assert f"{path}:3: usd_per_gpu_hour must be a number above 0. Received: 'cheap'" in capsys.readouterr().err
    with pytest.raises(Exception, match="not a SkyPilot catalog"):
        import_skypilot(path, "x", "2026")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus=A4001"], "GPU 'A4001' is not in the reference. Did you mean one of: RTX A4000"),
        (["--price=A4000=free"], "--price: must be GPU=USD"),
        (["--model=resnet50=x"], "--model: must be a network or shares"),
    ],
)
def test_a_question_that_cannot_be_read_is_a_short_message(capsys, arguments, message):
    assert call("--model=resnet50", *arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


def test_no_choice_says_what_to_do(capsys):
    assert call("--model=efficientnet_v2_s", "--gpus=A4000") == 0
    assert "no answer: " in capsys.readouterr().out
