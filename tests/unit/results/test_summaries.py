import re

from results.recommend.questions import Question
from results.recommend.ranking import recommend
from results.recommend.summaries import summary
from results.schema import Mode
from results.table.fleets import fleet_rates
from results.table.merge import merge_records
from tests.unit.results.factory import make_case, make_environment, make_failure, make_origin, repeats, stored

CARDS = {"a4000": "NVIDIA RTX A4000", "a5000": "NVIDIA RTX A5000"}
PRICES = {"a4000": 0.2, "a5000": 0.4}


def verdicts_of(gains, *, unfit=(), priced=True):
    """Verdicts on two fleets of two hosts.

    Args:
        gains: How many times as fast the A5000 is, by network, precision and mode.
        unfit: Those of them that do not fit on the A4000.
        priced: Whether the records have prices.
    """
    records = []
    for fleet, card in CARDS.items():
        for host, own in (("x", 1.0), ("y", 1.003 if fleet == "a4000" else 1.001)):
            for (model, precision, mode), gain in gains.items():
                case = make_case(model, device="gpu", precision=precision, mode=Mode(mode))
                environment = make_environment(1, card)
                if fleet == "a4000" and (model, precision, mode) in unfit:
                    origin = make_origin(fleet, host)
                    records.append(make_failure("oom", case=case, origin=origin, environment=environment))
                    continue
                rate = 100 * own * (gain if fleet == "a5000" else 1.0)
                price = PRICES[fleet] if priced else None
                records += repeats(
                    *(rate * noise for noise in (0.999, 1.0, 1.001)),
                    fleet=fleet, host=host, case=case, environment=environment, usd_per_gpu_hour=price,
                )  # fmt: skip
    rates = fleet_rates(merge_records(stored(*records)))
    questions = [Question(mix={m: 1.0}, precision=p, mode=mode) for m, p, mode in gains]
    return [verdict for question in questions for verdict in recommend(question, rates, [])]


def first_line(*arguments, **options):
    return summary(verdicts_of(*arguments, **options))[0].replace("\u00a0", " ")


def works(*modes, precisions=("fp32", "fp16"), models=("resnet50", "vgg16")):
    return [(model, precision, mode) for model in models for precision in precisions for mode in modes]


def test_what_the_choice_depends_on_is_named_with_a_price_limit_for_each_choice():
    line = first_line({work: 1.5 if work[2] == "train" else 3.0 for work in works("train", "infer")})
    assert re.search(r"rent a5000 \(hosts.yml\) at 0\.400 USD per GPU-hour for inference \(measured; .*0\.\d+ ± ", line)
    assert re.search(r"rent a4000 \(hosts.yml\) at 0\.200 USD per GPU-hour for training \(measured; .*0\.\d+ ± ", line)


def test_a_network_of_its_own_answer_is_named_as_the_exception():
    gains = dict.fromkeys(works("train", "infer", models=("resnet50", "resnet152", "vgg16")), 1.5)
    gains |= {work: 3.0 for work in gains if work[2] == "infer"}
    line = first_line(gains | {("vgg16", "fp16", "train"): 3.0})
    assert "for inference, vgg16 (training)" in line and "for training otherwise" in line
    assert line.index("vgg16 (training)") < line.index("training otherwise")


def test_settings_are_counted_where_nothing_tells_the_choices_apart():
    gains = dict.fromkeys(works("train", "infer"), 1.5)
    odd = [("resnet50", "fp32", "train"), ("vgg16", "fp16", "train"), ("vgg16", "fp32", "infer")]
    line = first_line(gains | dict.fromkeys([*odd, ("resnet50", "fp16", "infer")], 3.0))
    assert "in 4 of 8 settings" in line


def test_what_does_not_fit_is_in_the_first_line_with_the_precision_where_another_fits():
    line = first_line(dict.fromkeys(works("train"), 1.5), unfit=[("vgg16", "fp32", "train")])
    assert line.endswith("does not fit: a4000 (oom in this run) for vgg16 (fp32)")


def test_without_prices_the_fastest_is_named_with_how_far_it_is_ahead():
    line = first_line(dict.fromkeys(works("train"), 1.5), priced=False)
    assert line.startswith("a5000 is the fastest in all 4 settings below, measured: 1.4")
    assert line.endswith("times as fast as a4000; ranked by speed, because a5000 and a4000 have no price")


def test_a_tie_in_every_setting_is_said_once():
    line = first_line(dict.fromkeys(works("train"), 2.0))
    assert line == "no significant difference in cost per sample between a4000 and a5000 in all 4 settings below"


def test_one_fleet_alone_is_no_recommendation():
    rates = fleet_rates(merge_records(stored(*repeats(99.0, 100.0, 101.0, usd_per_gpu_hour=0.2))))
    (line,) = summary(recommend(Question(mix={"resnet50": 1.0}, precision="fp32"), rates, []))
    assert line.startswith("only one choice has a figure (a4000), so nothing is ranked") and "rent" not in line
