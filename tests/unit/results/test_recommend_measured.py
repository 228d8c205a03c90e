"""Recommendations from our own records: what may be ranked, what cannot be ranked, and which price counts."""

import dataclasses
import json
import re

import pytest

import results.__main__ as program
from results.recommend.evidence import Basis
from results.recommend.headlines import reasons
from results.recommend.questions import ASKED, Question
from results.recommend.ranking import recommend
from results.recommend.summaries import summary
from results.reference.prices import Offer
from results.runs.store import RunFolder
from results.table.fleets import fleet_rates
from results.table.merge import merge_records
from tests.unit.results.factory import make_case, make_environment, make_failure, make_origin, repeats, stored

GPUS = {"a4000": "NVIDIA RTX A4000", "a5000": "NVIDIA RTX A5000", "a6000": "NVIDIA RTX A6000"}

FAR_APART = {"a4000": (100.0, 101.0, 99.0), "a5000": (160.0, 158.0, 159.0)}


@pytest.fixture(autouse=True)
def no_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path / "runs"))
    return tmp_path / "runs"


def case_of(model="resnet50", **changes):
    return make_case(model, **{"device": "gpu", "precision": "fp16"} | changes)


def records_of(fleet, rates, *, host=None, price=None, case=None, parameters=None, **environment):
    machine = make_environment(gpus=1, gpu=GPUS[fleet], **environment)
    return repeats(*rates, fleet=fleet, host=host or f"on-{fleet}", case=case or case_of(), environment=machine,
                   usd_per_gpu_hour=price, parameters=parameters)  # fmt: skip


def failure_of(fleet, status="oom", *, case=None, host=None):
    machine = make_environment(gpus=1, gpu=GPUS[fleet])
    return make_failure(status, case=case or case_of(), origin=make_origin(fleet, host or f"on-{fleet}"),
                        environment=machine)  # fmt: skip


def ask(records, offers=(), **question):
    rates = fleet_rates(merge_records(stored(*records)))
    asked = Question(**{"mix": {"resnet50": 1.0}, "precision": "fp16"} | question)
    return recommend(asked, rates, offers)


def call(capsys, *arguments):
    assert program.main(["results", "recommend", *arguments]) == 0
    return capsys.readouterr().out


def write_run(runs_dir, records):
    run = RunFolder.create(runs_dir, "run-1")
    for number, record in enumerate(records):
        run.write_record(f"job-{number}", record)


DIFFERENT = [
    {"mode": "infer"},
    {"image_size": 160},
    {"batch_per_gpu": 16},
    {"batch_norm": "keras"},
    {"optimizer": "adamw"},
    {"xla": "replica"},
    {"accumulate": 4},
]


@pytest.mark.parametrize("changes", DIFFERENT, ids=lambda changes: next(iter(changes)))
def test_what_was_measured_in_different_settings_is_never_ranked_together(changes):
    other = {name: _enum(name, value) for name, value in changes.items()}
    records = [
        *records_of("a4000", (453.0, 454.0, 452.0)),
        *records_of("a5000", (1400.0, 1401.0, 1399.0), case=case_of(**other)),
    ]
    verdicts = ask(records)
    assert len(verdicts) == 2
    for verdict in verdicts:
        assert len(verdict.ranked) == 1
        (alone,) = verdict.ranked
        (missing,) = [choice for choice in verdict.choices if choice.excluded]
        assert {alone.subject, missing.subject} == {"a4000", "a5000"}
        assert missing.excluded == "not measured in this setting"
    assert not any("rent a" in line for line in summary(verdicts))


def _enum(name, value):
    from results import schema

    kinds = {"mode": schema.Mode, "optimizer": schema.Optimizer}
    return kinds[name](value) if name in kinds else value


def test_each_mode_has_a_verdict_of_its_own_and_is_named():
    train, infer = case_of(), case_of(mode=_enum("mode", "infer"))
    records = [
        *records_of("a4000", (100.0, 101.0, 99.0), case=train),
        *records_of("a5000", (150.0, 151.0, 149.0), case=train),
        *records_of("a4000", (400.0, 401.0, 399.0), case=infer),
        *records_of("a5000", (300.0, 301.0, 299.0), case=infer),
    ]
    verdicts = ask(records)
    assert {v.group.mode: v.best.subject for v in verdicts} == {"training": "a5000", "inference": "a4000"}
    assert "a4000 and a5000 have no price" in summary(verdicts)[0] and "depends on the setting" in summary(verdicts)[0]
    (only,) = ask(records, mode="infer")
    assert only.group.mode == "inference"


def test_a_mix_of_which_no_fleet_measured_every_network_says_so():
    parts = {"resnet50": 0.5, "inception_v3": 0.5}
    first = ask(records_of("a4000", FAR_APART["a4000"]), mix=parts)[0]
    (choice,) = first.choices
    assert (choice.subject, choice.excluded) == ("a4000", "not all networks of the mix were measured in one setting")


@pytest.mark.parametrize("change", ["method_version", "parameters"])
def test_fleets_of_another_method_version_or_other_parameters_are_not_ranked_together(change):
    other = records_of("a5000", FAR_APART["a5000"], parameters=12_345 if change == "parameters" else None)
    if change == "method_version":
        other = [dataclasses.replace(record, method_version=record.method_version + 1) for record in other]
    verdicts = ask([*records_of("a4000", FAR_APART["a4000"]), *other])
    assert [len(verdict.ranked) for verdict in verdicts] == [1, 1]


def test_a_mix_takes_every_network_from_one_setting_and_has_an_interval():
    parts = {"resnet50": 0.5, "inception_v3": 0.5}
    infer = _enum("mode", "infer")
    records = [
        *records_of("a4000", (100.0, 101.0, 99.0)),
        *records_of("a4000", (50.0, 51.0, 49.0), case=case_of("inception_v3")),
        *records_of("a5000", (200.0, 201.0, 199.0)),
        *records_of("a5000", (900.0, 901.0, 899.0), case=case_of("inception_v3", mode=infer)),
    ]
    (verdict,) = [v for v in ask(records, mix=parts) if v.group.basis is Basis.MEASURED]
    assert [choice.subject for choice in verdict.ranked] == ["a4000"]
    assert verdict.best.samples_per_second == pytest.approx(1 / (0.5 / 100 + 0.5 / 50), rel=1e-3)
    assert verdict.best.evidence.interval is not None
    assert any(choice.subject == "a5000" and "not measured in this setting" in choice.excluded
               for choice in verdict.choices)  # fmt: skip


def test_a_precision_gain_is_taken_from_the_same_mode_and_setting_only(no_runs, capsys):
    fp16 = [
        *records_of("a4000", FAR_APART["a4000"], price=0.2),
        *records_of("a5000", FAR_APART["a5000"], price=0.2),
    ]
    fp32 = case_of(precision="fp32", mode=_enum("mode", "infer"))
    write_run(no_runs, [*fp16, *records_of("a5000", (800.0, 801.0, 799.0), case=fp32)])
    assert "precision:" not in call(capsys, "--mode=train")
    run = RunFolder.create(no_runs, "run-2")
    for number, record in enumerate([*fp16, *records_of("a5000", (80.0, 81.0, 79.0), case=case_of(precision="fp32"))]):
        run.write_record(f"job-{number}", record)
    assert "precision: on a5000, against fp16: fp32 0.50" in call(capsys, "run-2")


def test_no_winner_is_named_inside_the_noise_but_what_decides_is():
    noisy = {"a4000": (100.0, 110.0, 90.0), "a5000": (211.0, 231.0, 191.0)}
    records = [
        *records_of("a4000", noisy["a4000"], price=0.17),
        *records_of("a5000", noisy["a5000"], price=0.36),
    ]
    (verdict,) = ask(records)
    (line,) = summary([verdict])
    assert line.startswith("no significant difference in cost per sample between")
    assert "rent a4000 (hosts.yml) for the lower price per hour, 0.170 USD per GPU-hour" in line
    assert "or a5000 for the shorter time" in line
    assert not any("wins" in reason for reason in reasons(verdict))


def test_the_first_line_has_price_interval_and_the_price_up_to_which_it_holds():
    records = [
        *records_of("a4000", FAR_APART["a4000"], price=0.17),
        *records_of("a5000", FAR_APART["a5000"], price=0.20),
        failure_of("a6000"),
    ]
    (verdict,) = ask(records)
    (line,) = summary([verdict])
    assert line.startswith("rent a5000 (hosts.yml) at 0.200 USD per GPU-hour: 0.349")
    assert "±" in line.split("USD and")[0]
    assert re.search(r"; above 0\.27\S*( ± \S+)? USD, a4000 is cheaper per sample", line)
    assert "does not fit: a6000 (oom in this run)" in line


def test_every_gpu_that_was_asked_for_is_in_the_answer_with_its_reason():
    records = [*records_of("a4000", FAR_APART["a4000"], price=0.2), failure_of("a5000")]
    cards = ("RTX A4000", "RTX A5000", "RTX A6000", "H100 NVL 94GB")
    verdicts = ask(records, gpus=cards)
    measured = verdicts[0]
    found = {choice.gpu: choice.excluded for choice in measured.choices}
    assert found == {
        "RTX A4000": "",
        "RTX A5000": "oom in this run",
        "RTX A6000": "not measured in this run",
        "H100 NVL 94GB": "not measured in this run",
    }
    for verdict in verdicts:
        assert {choice.gpu for choice in verdict.choices} >= set(cards)


def test_a_card_that_ran_out_of_memory_here_is_never_recommended_by_published_figures(no_runs, capsys):
    write_run(no_runs, [failure_of("a5000")])
    out = call(capsys, "--gpus=A5000", "--format=json")
    choices = json.loads(out)["choices"]
    assert {choice["gpu"] for choice in choices} == {"RTX A5000"}
    assert all("oom in this run" in choice["excluded"] for choice in choices)
    assert not any(line.startswith("rent") for line in json.loads(out)["answer"])


def test_a_host_that_was_unreachable_says_nothing_about_its_card():
    verdicts = ask([failure_of("a5000", "unreachable")], gpus=("RTX A4000", "RTX A5000"))
    published = [verdict for verdict in verdicts if verdict.group.basis is Basis.PUBLISHED]
    assert any(choice.gpu == "RTX A5000" and not choice.excluded for v in published for choice in v.choices)


def test_measured_and_published_figures_never_share_a_ranking():
    records = [*records_of("a4000", FAR_APART["a4000"]), *records_of("a5000", FAR_APART["a5000"])]
    for verdict in ask(records, gpus=("RTX A4000", "RTX A5000", "RTX A6000")):
        assert len({choice.basis for choice in verdict.ranked}) == 1


def test_what_does_not_fit_stands_in_the_first_line_of_several_settings_too():
    records = []
    for case in (case_of(), case_of(xla="replica")):
        records += records_of("a4000", FAR_APART["a4000"], price=0.2, case=case)
        records += records_of("a5000", FAR_APART["a5000"], price=0.2, case=case)
        records.append(failure_of("a6000", case=case))
    verdicts = ask(records, gpus=("RTX A4000", "RTX A5000", "RTX A6000"))
    assert {verdict.group.basis for verdict in verdicts} == {Basis.MEASURED}
    first = summary(verdicts)[0]
    assert first.startswith("rent a5000 (hosts.yml) at 0.200 USD per GPU-hour in both settings below, measured on one")
    assert "does not fit: a6000 (oom in this run)" in first


def test_published_figures_of_what_was_not_measured_never_take_the_first_line():
    records = [
        *records_of("a4000", FAR_APART["a4000"], price=0.2),
        *records_of("a5000", FAR_APART["a5000"], price=0.2),
    ]
    first, second = summary(ask(records, gpus=("RTX A4000", "RTX A5000", "RTX A6000")))
    assert first.startswith("rent a5000 (hosts.yml) at 0.200") and "measured on one host" in first
    assert "published figures" in second


def test_a_typed_price_goes_before_the_runs_price_and_the_answer_says_so():
    records = [
        *records_of("a4000", FAR_APART["a4000"], price=0.17),
        *records_of("a5000", FAR_APART["a5000"], price=0.20),
    ]
    (verdict,) = ask(records, [Offer("RTX A5000", 0.90, provider=ASKED)])
    assert verdict.best.subject == "a4000"
    assert "a5000: --price 0.900 is used, not 0.200 from hosts.yml" in reasons(verdict)


def test_hosts_of_one_fleet_with_different_prices_are_offers_of_their_own_and_named():
    records = [
        *records_of("a4000", FAR_APART["a4000"], host="node-a", price=0.10),
        *records_of("a4000", FAR_APART["a4000"], host="node-b", price=0.30),
        *records_of("a5000", FAR_APART["a5000"], price=0.20),
    ]
    (verdict,) = ask(records)
    prices = sorted(choice.offer.usd_per_gpu_hour for choice in verdict.choices if choice.subject == "a4000")
    assert prices == [0.10, 0.30]
    assert any("its hosts have different prices" in line and "0.100 (node-a), 0.300 (node-b)" in line
               for line in reasons(verdict))  # fmt: skip


def test_a_fleet_without_a_price_is_ranked_by_speed_and_the_missing_price_is_named():
    (verdict,) = ask([*records_of("a4000", FAR_APART["a4000"]), *records_of("a5000", FAR_APART["a5000"])])
    (line,) = summary([verdict])
    assert line.startswith("the fastest is a5000: 159.0")
    assert "because a5000 and a4000 have no price" in line
    assert "no known price for RTX A5000, RTX A4000: give --price 'RTX A5000=USD'" in reasons(verdict)


def test_software_that_differs_between_fleets_is_named_beside_the_ranking():
    records = [
        *records_of("a4000", FAR_APART["a4000"], tensorflow="2.20.0"),
        *records_of("a5000", FAR_APART["a5000"], tensorflow="2.21.0"),
    ]
    (verdict,) = ask(records)
    assert len(verdict.ranked) == 2
    assert any("tensorflow" in remark and "2.20.0 (a4000)" in remark for remark in verdict.group.remarks)


def test_explain_shows_the_value_of_each_repeat(no_runs, capsys):
    write_run(no_runs, [*records_of("a4000", FAR_APART["a4000"]), *records_of("a5000", FAR_APART["a5000"])])
    assert "160, 158, 159" not in call(capsys)
    assert "160, 158, 159" in call(capsys, "--explain")


def test_the_answer_comes_before_the_table_and_is_one_line_in_a_pipe(no_runs, capsys):
    write_run(
        no_runs,
        [*records_of("a4000", FAR_APART["a4000"], price=0.17), *records_of("a5000", FAR_APART["a5000"], price=0.2)],
    )
    text, page = call(capsys), call(capsys, "--format=markdown")
    assert text.startswith("rent a5000") and "USD, a4000 is cheaper per sample" in text.splitlines()[0]
    assert page.startswith("* **rent a5000") and "| rank |" in page
