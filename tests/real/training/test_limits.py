from __future__ import annotations

import pytest

from results.schema import BatchNorm, Case, Device, Precision
from tfbench.measuring.known_peaks import KnownPeaks
from tfbench.models import NETWORKS

pytestmark = pytest.mark.tensorflow

FUSED, KERAS, NONE = BatchNorm.FUSED, BatchNorm.KERAS, BatchNorm.NONE

# GFLOP per image forward and in training (without the images' gradient), and million elements per image moved without
# and with fusion: counted independently of this code, from the layer graphs of keras.applications.
PUBLISHED = [
    ("resnet50", FUSED, 7.716, 22.91, 228, 127),
    ("resnet50", KERAS, 7.716, 22.91, 228, 127),
    ("resnet152", FUSED, 22.565, 67.46, 491, 269),
    ("resnet50_v1.5", FUSED, 8.178, 24.30, 238, 133),
    ("inception_v3", FUSED, 11.426, 34.24, 231, 136),
    ("googlenet", NONE, 3.165, 9.26, 61, 34),
    ("googlenet", FUSED, 3.165, 9.26, 87, 50),
]


@pytest.mark.parametrize(("name", "variant", "forward", "training", "unfused", "fused"), PUBLISHED)
def test_work_per_image_agrees_with_the_published_counts(one_replica, name, variant, forward, training, unfused, fused):
    from tfbench.roofline.limits import work_per_sample

    network = NETWORKS[name]
    work = work_per_sample(network.build(variant, network.inputs.image_size, one_replica))
    assert work.forward_flops / 1e9 == pytest.approx(forward, rel=0.02)
    assert work.training_flops / 1e9 == pytest.approx(training, rel=0.02)
    assert work.elements / 1e6 == pytest.approx(unfused, rel=0.03)
    assert work.fused_elements / 1e6 == pytest.approx(fused, rel=0.03)
    assert work.bytes(Precision.FP32) == 2 * work.bytes(Precision.FP16) == 4 * work.elements


# GMAC forward per image or sequence. torchvision, timm: their model documentation; Keras's EfficientNets are
# torchvision's but for 0.7 % of the parameters. BERT: 24 layers of (24 s h² + 4 s² h) FLOP (Narayanan et al. 2021,
# without their factor for the backward pass), and the heads on 20 of 128 and 76 of 512 words. GPT-2: nanoGPT's count
# of 291.648 GFLOP for 1024 tokens.
GIGA_MULTIPLICATIONS = [
    ("resnet50_v1.5", None, 4.089),
    ("resnet152_v1.5", None, 11.514),
    ("inception_v4", None, 12.28),
    ("vgg16", None, 15.470),
    ("alexnet", None, 0.714),
    ("efficientnet_b0", None, 0.386),
    ("efficientnet_v2_s", None, 8.366),
    ("vit_b16", None, 17.564),
    ("bert_large", 128, 240.6 / 6),
    ("bert_large", 512, 1020.5 / 6),
    ("gpt2_small", 1024, 291.648 / 2),
]


@pytest.mark.parametrize(("name", "length", "multiplications"), GIGA_MULTIPLICATIONS)
def test_work_agrees_with_the_literature(one_replica, name, length, multiplications):
    from tfbench.roofline.limits import work_per_sample

    network, case = NETWORKS[name], Case(model=name, sequence_length=length)
    work = work_per_sample(network.build(case.batch_norm, network.size(case), one_replica))
    assert work.forward_flops == pytest.approx(2e9 * multiplications, rel=0.02)
    assert 2.85 * work.forward_flops < work.training_flops <= 3.0 * work.forward_flops
    assert work.elements > work.fused_elements > 0
    assert work.forward_elements > work.forward_fused_elements > 0


def test_a_token_is_its_share_of_a_sequence(one_replica):
    from tests.real.training.small import small_case, small_network
    from tfbench.roofline.limits import work_per_sample

    network = small_network("gpt2_small")
    model = network.build(NONE, network.size(small_case("gpt2_small")), one_replica)
    assert work_per_sample(model).training_flops == 16 * work_per_sample(model, 16).training_flops


def test_half_the_image_size_is_a_quarter_of_the_work(one_replica):
    from tfbench.roofline.limits import work_per_sample

    network = NETWORKS["googlenet"]
    small, large = (work_per_sample(network.build(NONE, size, one_replica)) for size in (64, 128))
    assert large.forward_flops / small.forward_flops == pytest.approx(4.0, rel=0.02)


def test_peaks_are_measured_and_do_not_depend_on_the_size_by_orders(tensorflow, monkeypatch):
    from tfbench.roofline import peaks

    monkeypatch.setattr(peaks, "MATRIX_SIZES", (128, 256))
    monkeypatch.setattr(peaks, "MEASURE_SECONDS", 0.01)
    monkeypatch.setattr(peaks, "COPY_ELEMENTS", {"CPU": 2**20})
    assert 1e8 < peaks.matrix_flops_per_second(Precision.FP32, "CPU:0") < 1e14
    assert 1e8 < peaks.memory_bytes_per_second("CPU:0") < 1e13


def test_a_cpu_does_not_round_as_tf32(tensorflow):
    from tfbench.roofline.peaks import tf32_observed

    assert tf32_observed("CPU:0") is False


@pytest.mark.parametrize(
    ("rates", "best", "measured"),
    [
        ([100.0, 1.0], 100.0, 1),
        ([10.0, 100.0, 1.0], 100.0, 2),
        ([10.0, 30.0, 20.0, 100.0], 30.0, 3),  # the warning that follows tells the rest
        ([10.0, None, 20.0], 20.0, 3),
        ([None, 100.0], None, 1),
    ],
)
def test_a_peak_that_the_network_has_passed_is_measured_again(tensorflow, rates, best, measured):
    from tfbench.roofline.sums import credible_peak

    left = list(rates)
    assert credible_peak(lambda: left.pop(0), needed=50.0) == best
    assert len(rates) - len(left) == measured


def test_a_record_has_the_better_peak(one_replica, monkeypatch):
    from tfbench.measuring.timing import Interval
    from tfbench.roofline import sums

    case = Case(model="googlenet", batch_norm=NONE, device=Device.CPU, batch_per_gpu=2)
    model = NETWORKS["googlenet"].build(NONE, 224, one_replica)
    flops, bandwidth = [1e9, 1e12], [1e9, 1e12]
    monkeypatch.setattr(sums, "matrix_flops_per_second", lambda *_: flops.pop(0))
    monkeypatch.setattr(sums, "memory_bytes_per_second", lambda *_: bandwidth.pop(0))
    timed = Interval(seconds=1.0, step_seconds=[0.1] * 10, losses=[1.0] * 10)
    fields = sums.limit_fields(case, model, 2, timed, measure_peaks=True)
    assert fields["peak_flops_per_second"] == fields["peak_bytes_per_second"] == 1e12
    assert fields["flops_utilisation"] == pytest.approx(20 * 9.26e9 / 1e12, rel=0.02)


@pytest.mark.parametrize(("known", "reused"), [((5e11, 5e11), True), ((1e9, 5e11), False), ((5e11, 1e9), False)])
def test_a_known_limit_is_taken_unless_the_network_has_passed_it(one_replica, monkeypatch, known, reused):
    from tfbench.measuring.timing import Interval
    from tfbench.roofline import sums

    case = Case(model="googlenet", batch_norm=NONE, device=Device.CPU, batch_per_gpu=2)
    model = NETWORKS["googlenet"].build(NONE, 224, one_replica)
    monkeypatch.setattr(sums, "matrix_flops_per_second", lambda *_: 1e12)
    monkeypatch.setattr(sums, "memory_bytes_per_second", lambda *_: 1e12)
    timed = Interval(seconds=1.0, step_seconds=[0.1] * 10, losses=[1.0] * 10)
    fields = sums.limit_fields(case, model, 2, timed, measure_peaks=True, known=KnownPeaks(*known))
    assert fields["peak_flops_per_second"] == fields["peak_bytes_per_second"] == (5e11 if reused else 1e12)
    assert fields.get("peaks_reused", False) is reused
