"""Recommendations on a fresh clone: families of cards, other names of networks, published settings, budgets."""

import json

import pytest

import results.__main__ as program
from results.recommend.evidence import Basis
from results.recommend.headlines import reasons
from results.recommend.published import bound, figures, network_text, spans
from results.recommend.questions import ASKED, Question, asked_prices, known_cards
from results.recommend.ranking import recommend
from results.recommend.summaries import summary
from results.reference import all_published, published
from results.reference.gpus import gpu_key as driver_card
from results.reference.gpus import gpus_named as family
from results.reference.networks import model_key as asked_network
from results.reference.networks import published_names
from results.reference.prices import Offer, known_prices

A100 = ("A100 PCIe 40GB", "A100 PCIe 80GB", "A100 SXM4 40GB", "A100 SXM4 80GB")


@pytest.fixture(autouse=True)
def no_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path / "runs"))


def ask(*names, offers=None, **question):
    asked = {"mix": {"resnet50_v1.5": 1.0}, "precision": "fp16", "asked": names,
             "gpus": tuple(card for name in names for card in known_cards(name))}  # fmt: skip
    return recommend(Question(**asked | question), [], known_prices([]) if offers is None else offers)


def call(capsys, *arguments):
    assert program.main(["results", "recommend", *arguments]) == 0
    return capsys.readouterr().out


def document(capsys, *arguments):
    return json.loads(call(capsys, *arguments, "--format=json"))


@pytest.mark.parametrize(
    ("name", "cards"),
    [
        ("A100", A100),
        ("a100 80gb", ("A100 PCIe 80GB", "A100 SXM4 80GB")),
        ("NVIDIA A100-SXM4-40GB", ("A100 SXM4 40GB",)),
        ("H100", ("H100 PCIe 80GB", "H100 SXM5 80GB", "H100 NVL 94GB")),
        ("H100 SXM", ("H100 SXM5 80GB",)),
        ("4090", ("RTX 4090",)),
        ("4090 Laptop", ("RTX 4090 Laptop",)),
        ("RTX 3080", ("RTX 3080",)),
        ("A4001", ()),
    ],
)
def test_a_name_means_one_card_or_every_member_of_its_family(name, cards):
    assert set(family(name)) == set(cards)


def test_a_family_is_every_card_that_has_a_figure_or_a_specification():
    assert {"V100 PCIe 16GB", "V100 SXM3 32GB", "V100 SXM2 32GB"} <= set(family("V100"))


@pytest.mark.parametrize(
    ("driver", "card"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM5 80GB"),
        ("NVIDIA H100 PCIe", "H100 PCIe 80GB"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA A10G", "A10G"),
    ],
)
def test_a_drivers_name_means_one_card(driver, card):
    assert driver_card(driver) == card


def test_every_member_of_a_family_that_was_asked_for_is_in_the_answer():
    for verdict in ask("A6000", "A100"):
        assert {choice.gpu for choice in verdict.choices} == {"RTX A6000", *A100}
        assert all(choice.excluded for choice in verdict.choices if choice not in verdict.ranked)


def test_published_rows_of_a_networks_tasks_are_found_under_its_name_with_task_and_length():
    assert asked_network("BERT-Large") == "bert_large"
    assert len([row for row in published() if row["model"] in published_names("bert_large")]) == 56
    assert network_text("bert_large_squad_384") == "bert_large (SQuAD fine-tuning, 384 tokens)"
    (verdict,) = ask("A4000", "A5000", mix={"bert_large": 1.0})
    assert "SQuAD fine-tuning, 384 tokens" in verdict.group.setting
    assert len({choice.gpu for choice in verdict.ranked}) == 2


def test_a_ranking_holds_one_source_software_network_and_task():
    known = figures(Question(mix={"bert_large": 1.0}, precision="fp16"))
    assert len({place.networks for place in known}) == 3
    verdicts = ask("A100", "V100", mix={"bert_large": 1.0})
    assert len(verdicts) == len({verdict.group.network for verdict in verdicts}) > 1
    for verdict in verdicts:
        assert len({source.split("; ")[1] for c in verdict.ranked for source in c.evidence.sources}) == 1


def test_suspect_rows_are_never_used():
    assert figures(Question(mix={"googlenet": 1.0}, precision="fp16")) == {}  # only the blog has it
    suspect = {row["url"] for row in all_published() if row["suspect"] and "blog" in row["url"]}
    used = figures(Question(mix={"resnet50": 1.0}, precision="fp16"))
    assert not any(
        url in source for of in used.values() for f in of.values() for source in f.sources for url in suspect
    )


def test_where_no_setting_has_two_of_the_cards_nothing_is_ranked_and_the_range_over_settings_is_given():
    cards = ("RTX A6000", "A100 SXM4 40GB")
    (verdict,) = ask(*cards, mix={"resnet50": 1.0})
    assert verdict.best is None
    (span,) = [span for span in spans(verdict.question, cards) if span.network == "resnet50"]
    slow, fast = (1403.54, 1478.1), (1888.37, 1990.02)
    assert (span.fast, span.low, span.high) == (
        "A100 SXM4 40GB", pytest.approx(min(fast) / max(slow)), pytest.approx(max(fast) / min(slow)))  # fmt: skip
    (line,) = summary([verdict])
    assert line.startswith(
        "A100 SXM4 40GB reached 1.28 to 1.42 × the samples/s of RTX A6000 in resnet50, in published settings that differ"
    )
    assert "nothing is ranked" in line


def test_a_small_difference_between_published_figures_names_no_winner():
    offers = [Offer("A100 PCIe 80GB", 1.0), Offer("A100 SXM4 80GB", 1.0)]
    (verdict,) = ask("A100 PCIe 80GB", "A100 SXM4 80GB", offers=offers)
    (line,) = summary([verdict])
    assert line.startswith("no significant difference in cost per sample between A100 SXM4 80GB and A100 PCIe 80GB")


def test_a_card_that_nobody_measured_is_bounded_and_the_bound_decides_where_it_can():
    (verdict,) = ask("RTX 4090 Laptop", "A100")
    (laptop,) = [choice for choice in verdict.choices if choice.gpu == "RTX 4090 Laptop"]
    assert laptop.basis is Basis.BOUND and laptop.excluded == "no published row"
    limit = bound(verdict.question, "RTX 4090 Laptop")
    (line,) = summary([verdict])
    assert line.startswith("no figure compares RTX 4090 Laptop with the others")
    assert f"RTX 4090 Laptop reaches at most {limit:.4g} samples/s" in line and "A100 SXM4 40GB reached 2375" in line


def test_fp32_that_was_published_as_tf32_is_named():
    (verdict,) = ask("A6000", "H100", precision="fp32")
    assert "use --precision tf32" in summary([verdict])[0]


def test_a_host_is_paid_for_whole_and_one_that_is_too_small_is_left_out():
    offers = [Offer("RTX A4000", 0.16, gpus_per_host=4), Offer("RTX A5000", 0.5, gpus_per_host=1)]
    (verdict,) = ask("A4000", "A5000", offers=offers)
    prices = {choice.gpu: choice.usd_per_hour for choice in verdict.ranked}
    assert prices == {"RTX A4000": 0.64, "RTX A5000": 0.5}
    (of_two,) = ask("A4000", "A5000", offers=offers, count=2)
    (small,) = [choice for choice in of_two.choices if choice.gpu == "RTX A5000"]
    assert small.offer is None and not small.excluded, "no price of it, so both are ranked by speed"
    assert "RTX A5000: offered only on hosts with up to 1 GPU" in reasons(of_two)


def test_a_familys_name_prices_all_its_members():
    offers = [offer for offer in asked_prices(["A100=1.5"], []) if offer.provider == ASKED]
    assert {offer.gpu for offer in offers} == set(A100)


def test_a_price_that_fits_several_cards_is_not_guessed_but_named():
    (verdict,) = ask("A6000", "A100", offers=[Offer("RTX A6000", 1.0), Offer("A100-80GB", 1.4)])
    assert {choice.gpu for choice in verdict.choices if choice.offer} == {"RTX A6000"}
    assert any("a price of 'A100-80GB' matches several cards and is ignored" in line for line in reasons(verdict))


def test_several_networks_precisions_and_counts_have_a_verdict_each(capsys):
    answer = document(capsys, "--gpus=A6000,H100 PCIe", "--model=resnet50_v1.5", "--model=bert_large",
                      "--precision=tf32,fp16", "--num-gpus=1,2")  # fmt: skip
    asked = {(*v["question"]["mix"], v["question"]["precision"], v["question"]["count"]) for v in answer["verdicts"]}
    assert len(asked) == 8
    for verdict in answer["verdicts"]:
        for choice in verdict["choices"]:
            for source in choice["sources"]:
                assert f" {verdict['question']['precision']} ×{verdict['question']['count']}:" in source


@pytest.mark.parametrize("model", ["gpt2_small", "googlenet", "bert_large"])
def test_an_answer_never_points_to_what_is_not_there(capsys, model):
    out = call(capsys, f"--model={model}", "--gpus=RTX 5090")
    assert "left out" not in out
    assert "no answer: RTX 5090: no published row" in out


def test_a_network_that_is_not_known_is_named_as_such(capsys):
    assert program.main(["results", "recommend", "--model=resnet5O", "--gpus=A4000"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("--model: 'resnet5o' is not a known network. Did you mean one of: resnet50")
    assert captured.out == ""


def test_inference_that_nobody_measured_is_answered_by_no_training_figure(capsys):
    answer = document(capsys, "--gpus=A4000,A5000", "--mode=infer")
    assert {choice["gpu"] for choice in answer["choices"]} == {"RTX A4000", "RTX A5000"}
    assert all("published figures are of training" in choice["excluded"] for choice in answer["choices"])


@pytest.mark.parametrize("limit", ["--budget=nan", "--budget=0", "--hours=-1", "--samples=inf", "--memory=-1"])
def test_a_limit_that_is_no_number_above_0_is_refused(capsys, limit):
    assert program.main(["results", "recommend", "--gpus=A4000", limit]) == 2
    assert f"{limit.split('=')[0]}: must be a number above 0" in capsys.readouterr().err


def test_explain_names_the_source_of_every_figure_and_price(capsys):
    out = call(capsys, "--gpus=A4000,A5000", "--explain")
    assert "https://github.com/lambdal/deeplearning-benchmark" in out and "SkyPilot catalog v8" in out
    assert "768" in out and "memory bandwidth" in out.lower(), "the specifications stand side by side"


def test_published_rows_of_one_pytorch_are_consistent_with_their_cards():
    from results.audit.findings import Severity
    from results.audit.judgement import audit
    from results.reference import FOLDER

    found = audit(FOLDER / "published_pytorch.csv")
    assert not [finding for finding in found if finding.severity is not Severity.NOTE]


def test_no_price_is_asked_of_every_card_at_once(capsys):
    assert "every card: inference not measured in any run" in (out := call(capsys, "--mode=infer"))
    assert "--price 'every card" not in out


def test_a_budget_below_every_price_is_one_clear_sentence(capsys):
    first = call(capsys, "--budget=0.01").splitlines()[0]
    assert first == "within 0.01 USD per hour: no GPU with a known price"
