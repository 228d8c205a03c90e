import pytest

from results.schema import BatchNorm, Case, Device, DeviceResult
from results.schema.networks import NETWORKS
from tests.real.training.small import small_case, small_network
from tfbench.models import build

pytestmark = pytest.mark.tensorflow

NONE = BatchNorm.NONE


def test_a_token_is_its_share_of_a_sequence(one_replica, limits):
    network = small_network("gpt2_small")
    model = build(network, NONE, small_case("gpt2_small").size(network), one_replica)
    assert limits.work_per_sample(model).flops == 16 * limits.work_per_sample(model, samples_per_example=16).flops


def test_half_the_image_size_is_a_quarter_of_the_work(one_replica, limits):
    network = NETWORKS["googlenet"]
    small, large = (limits.work_per_sample(build(network, NONE, size, one_replica)) for size in (64, 128))
    assert large.flops / small.flops == pytest.approx(4.0, rel=0.02)


@pytest.mark.parametrize(
    ("first", "full", "measured", "best"),
    [
        ([1.0, 1.0, 1.0], {4: 1.0}, [4], 4),  # 1, 8 and 64 per second
        ([1.0, 1.0, 7.0], {2: 1.0, 4: 7.0}, [2, 4], 4),  # 8 and 9
        ([1.0, 1.0, 7.0], {2: 0.5, 4: 7.0}, [2, 4], 2),  # the first product of a size says only roughly
        ([1.0, 30.0, 1.0], {1: 1.0}, [1], 1),  # the second is large enough: none is tried after it
    ],
)
def test_sizes_whose_first_product_came_near_the_best_are_measured(monkeypatch, first, full, measured, best, peaks):
    tried, in_full = iter(first), []
    monkeypatch.setattr(peaks, "MATRIX_SIZES", (1, 2, 4))
    monkeypatch.setattr(peaks, "ENOUGH_SECONDS", {"CPU": 10.0})
    monkeypatch.setattr(peaks, "product_call", lambda factor, *_: lambda: factor)
    monkeypatch.setattr(peaks, "seconds_of_one_call", lambda *_: next(tried))

    def rounds_of(call, once, **_):
        in_full.append(call().shape[0])
        assert once == first[(1, 2, 4).index(in_full[-1])]
        return [full[in_full[-1]]]

    monkeypatch.setattr(peaks, "rounds_of", rounds_of)
    found = peaks.matrix_product("fp32", "CPU:0")
    assert in_full == measured
    assert (found.size, found.value) == (best, 2 * best**3 / full[best])


@pytest.mark.parametrize(
    ("rates", "best", "measured"),
    [
        ([100.0, 1.0], 100.0, 1),
        ([10.0, 100.0, 1.0], 100.0, 2),
        ([10.0, 30.0, 20.0, 100.0], 30.0, 3),  # the warning that follows tells the rest
        ([10.0, None, 20.0], 20.0, 3),
        ([None, 100.0], 0.0, 1),
    ],
)
def test_a_peak_that_the_network_has_passed_is_measured_again(tensorflow, rates, best, measured, limits):
    left = list(rates)
    assert limits.credible_peak(lambda: left.pop(0), needed=50.0) == best
    assert len(rates) - len(left) == measured


def planted(monkeypatch, limits, *rates):
    """Give rates, one after another, as those of products and of memory."""
    for name in ("matrix_product", "memory_add"):
        left = list(rates)
        result = lambda *_, left=left: DeviceResult(metric="planted", unit="", value=left.pop(0))  # noqa: E731
        monkeypatch.setattr(limits, name, result)


@pytest.fixture(scope="module")
def googlenet(tensorflow):
    strategy = tensorflow.distribute.MirroredStrategy(["CPU:0"])
    case = Case(model="googlenet", batch_norm=NONE, device=Device.CPU, batch_per_gpu=2)
    return case, build(NETWORKS["googlenet"], NONE, 224, strategy), 2, 20.0


def test_a_record_has_the_better_peak(googlenet, monkeypatch, limits):
    planted(monkeypatch, limits, 1e9, 1e12)
    fields = limits.limit_fields(*googlenet, measure_peaks=True)
    assert fields["peak_flops_per_second"] == fields["peak_bytes_per_second"] == 1e12
    assert fields["flops_utilisation"] == pytest.approx(20 * 9.26e9 / 1e12, rel=0.02)


@pytest.mark.parametrize(("known", "reused"), [((5e11, 5e11), True), ((1e9, 5e11), False), ((5e11, 1e9), False)])
def test_a_known_limit_is_taken_unless_the_network_has_passed_it(googlenet, monkeypatch, known, reused, limits):
    planted(monkeypatch, limits, 1e12)
    fields = limits.limit_fields(*googlenet, measure_peaks=True, known=known)
    assert fields["peak_flops_per_second"] == fields["peak_bytes_per_second"] == (5e11 if reused else 1e12)
    assert fields.get("peaks_reused", False) is reused
