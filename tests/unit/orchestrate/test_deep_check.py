"""A deep check from its plan to its verdicts: faults are named, honest hosts are accepted."""

import dataclasses
import random

import pytest

from orchestrate.deep_check import Acceptance, CheckedDevice, checked_host, judge, plan_deep_check, verdict_grid
from orchestrate.inventory.hosts import Host
from orchestrate.planning.facts import Facts
from results.schema import GPU, Check, Device, DeviceResult, Record, Status, Validity
from results.schema.health import GPUFacts
from tests.unit.results.factory import make_environment

NAME = "NVIDIA A100-SXM4-80GB"
GPUS = tuple(GPU(index=index, name=NAME, uuid=f"GPU-{index}") for index in range(4))
HOSTS = [Host(fleet="a100", name=name, docker=None) for name in ("one", "two", "away")]
PROBED = {HOSTS[0].place: Facts(gpus=GPUS), HOSTS[1].place: Facts(gpus=GPUS), HOSTS[2].place: "no route to host"}


def result(metric, value, place=None, kind=None):
    unit = "FLOP/s" if kind else "B/s"
    return DeviceResult(metric=metric, unit=unit, arithmetic=kind, amount=value, seconds=1.0, value=value, gpu=place)


def record_of(job, *, slow=None):
    """Return what a healthy host with four GPUs leaves; one of them may be slower."""
    results, observed, checks = [], [], []
    for place in range(4):
        share = 0.6 if place == slow else 1.0
        products = {"fp32": 18e12, "tf32": 120e12, "fp16": 240e12}
        results += [result("sustained_product", 1.1 * rate, place, kind) for kind, rate in products.items()]
        results += [result("memory_add", 1.75e12, place), result("host_to_device", 12e9, place)]
        results += [result("sustained_product", share * rate, place, kind) for kind, rate in products.items()]
        heat = {"throttle_thermal_share": 0.7, "sm_clock_mhz": 800.0} if place == slow else {}
        observed.append(GPUFacts(place=place, index=place + 1, name=NAME, **heat))
        checks.append(Check(name=f"product_of_device_{place}", passed=True, detail="", value=0.0, limit=1e-5))
    results += [result("all_reduce", 1.9e11), result("python_loop", 1e7)]
    return Record(
        status=Status.OK,
        case=job.case,
        started_at="2026-11-01T10:00:00+00:00",
        finished_at="2026-11-01T10:01:30+00:00",
        origin=job.origin,
        environment=make_environment(4, NAME),
        validity=Validity(valid=True, checks=checks),
        device_results=results,
        device_observations=observed,
    )


def checked(slow):
    """Judge what hosts `one` and `two` left; `one` with a slow GPU."""
    one, two, away = plan_deep_check(HOSTS, PROBED, "now").hosts
    records = [(one, record_of(one.jobs[0], slow=slow)), (two, record_of(two.jobs[0])), (away, None)]
    return judge([checked_host(entry, record) for entry, record in records])


def verdicts_on(host):
    return {gpu.gpu.index: gpu.verdict for gpu in host.gpus}


def found(host):
    return {
        (device.gpu and device.gpu.index, one.figure): one for device in (host, *host.gpus) for one in device.findings
    }


def test_each_host_has_one_case_over_all_its_gpus_or_its_processor():
    first, second, _ = plan_deep_check(HOSTS, PROBED | {HOSTS[1].place: Facts()}, "r").hosts
    assert [(job.case.num_gpus, job.gpus, job.case.deep_check) for job in first.jobs] == [(4, (0, 1, 2, 3), True)]
    assert [(job.case.device, job.case.num_gpus) for job in second.jobs] == [(Device.CPU, 1)]
    assert "--deep_check" in first.jobs[0].case.flags()


def test_a_throttled_gpu_of_one_host_is_rejected_and_the_others_accepted():
    one, two, away = checked(slow=2)
    assert (one.verdict, two.verdict, away.verdict) == (Acceptance.REJECT, Acceptance.ACCEPT, Acceptance.WARNING)
    assert verdicts_on(one) == {1: "accept", 2: "accept", 3: "reject", 4: "accept"}, "by the driver's own indices"
    assert away.findings[0].text == "no route to host"
    documents = [one.document(), two.document()]
    assert [gpu["verdict"] for gpu in documents[0]["gpus"]] == ["accept", "accept", "reject", "accept"]
    assert documents[1]["gpus"][0]["rates"]["fp16 products"] == 240e12


def test_gpus_have_the_hosts_numbers_by_uuid():
    (entry,) = plan_deep_check([HOSTS[0].model_copy(update={"gpus": (1, 3)})], PROBED, "r").hosts
    record = record_of(entry.jobs[0], slow=0)
    seen = [GPUFacts(index=i, place=i, uuid=f"GPU-{k}", bus_id="0000:DB:00.0", name=NAME) for i, k in enumerate((3, 1))]
    slower = [dataclasses.replace(one, value=one.value / 2) for one in record.device_results]
    (verdict,) = judge(
        [checked_host(entry, dataclasses.replace(record, device_observations=seen, device_results=slower))]
    )
    assert [gpu.gpu.index for gpu in verdict.gpus] == [3, 1]
    assert (
        "a100/one, GPU 3 (0000:DB:00.0): warning: fp32 products: 5.4 TFLOP/s, 72% below"
        in verdict_grid([verdict]).notes[0]
    )


@pytest.mark.parametrize(("status", "verdict"), [(Status.LOST, "reject"), (Status.PULL_FAILED, "warning")])
def test_a_check_that_failed_rejects_only_where_that_is_the_hosts_fault(status, verdict):
    (entry,) = plan_deep_check(HOSTS[:1], PROBED, "r").hosts
    record = dataclasses.replace(record_of(entry.jobs[0]), status=status, cause="why", device_results=[], validity=None)
    (host,) = judge([checked_host(entry, record)])
    assert (host.verdict, host.findings[0].text) == (verdict, f"{status}: why")


def test_a_gpu_that_multiplies_wrongly_is_rejected():
    (entry,) = plan_deep_check(HOSTS[:1], PROBED, "r").hosts
    record = record_of(entry.jobs[0])
    wrong = dataclasses.replace(record.validity.checks[1], passed=False)
    validity = Validity(valid=False, checks=[record.validity.checks[0], wrong, *record.validity.checks[2:]])
    record = dataclasses.replace(record, validity=validity, status=Status.INVALID, cause="a product is wrong")
    (host,) = judge([checked_host(entry, record)])
    assert verdicts_on(host) == {1: ACCEPT, 2: REJECT, 3: ACCEPT, 4: ACCEPT}
    assert {key for key, _ in found(host)} == {None, 2} and (2, "products") in found(host)


ACCEPT, WARNING, REJECT = Acceptance
RATES = {
    **{"fp32 products": 51e12, "tf32 products": 370e12, "fp16 products": 640e12},
    **{"memory": 2.9e12, "copies to the GPU": 26e9, "copies from the GPU": 25e9},
}
H100 = GPUFacts(
    index=0,
    name="NVIDIA H100 80GB HBM3",
    pcie_generation=5,
    pcie_width=16,
    pcie_width_max=16,
    power_limit_watts=700.0,
    power_limit_default_watts=700.0,
    throttle_power_share=0.9,  # any healthy GPU under such a load
    ecc_uncorrected_errors=0,
)
HOST = CheckedDevice(
    fleet="h100",
    host="node-a",
    gpus=tuple(
        CheckedDevice(fleet="h100", host="node-a", gpu=dataclasses.replace(H100, index=index), rates=RATES)
        for index in range(8)
    ),
    rates={"all-reduce": 360e9, "processor products": 3e12, "processor, one core": 17e6, "host memory": 2e11},
)
ALONE = dataclasses.replace(HOST, gpus=HOST.gpus[:1], rates={})
PRODUCTS = {name: rate for name, rate in RATES.items() if "products" in name}


def slower(gpu, share):
    return dataclasses.replace(gpu, rates=gpu.rates | {name: share * rate for name, rate in PRODUCTS.items()})


def with_gpu(host=HOST, index=0, rates=RATES, **changes):
    gpus = list(host.gpus)
    facts = dataclasses.replace(gpus[index].gpu, **changes)
    gpus[index] = dataclasses.replace(gpus[index], rates=rates, gpu=facts)
    return dataclasses.replace(host, gpus=tuple(gpus))


def test_three_faulty_gpus_of_eight_are_named_and_five_accepted():
    slow, copies = slower(HOST.gpus[0], 0.7).rates, {"copies to the GPU": 6.5e9, "copies from the GPU": 6.4e9}
    host = with_gpu(HOST, 2, rates=slow, throttle_thermal_share=0.8, sm_clock_mhz=1040.0, temperature_celsius=91.0)
    host = with_gpu(host, 5, pcie_width=4, rates=RATES | copies)
    host = with_gpu(host, 7, rates=RATES | {"memory": 2.5e12})
    (verdict,) = judge([host])
    assert verdict.verdict is REJECT
    assert verdicts_on(verdict) == dict.fromkeys(range(8), ACCEPT) | {2: REJECT, 5: REJECT, 7: WARNING}
    texts = {key: one.text for key, one in found(verdict).items()}
    assert texts[2, "throttled_thermal"].startswith("held back by heat in 80% of the readings, 1040 MHz, 91 °C. check")
    assert texts[2, "fp16 products"] == "448 TFLOP/s, 30% below the fleet's median (640 TFLOP/s)"
    assert texts[5, "pcie_width"].startswith("PCIe ×4 of ×16. reseat the GPU")
    assert texts[5, "copies to the GPU"] == "6.5 GB/s, 75% below the fleet's median (26 GB/s)"
    assert texts[7, "memory"] == "2,500 GB/s, 14% below the fleet's median (2,900 GB/s)"
    assert {gpu for gpu, _ in texts} == {2, 5, 7}


def honest_fleet(random_, hosts):
    """Draw an honest fleet: hosts as Lambda's 39 H100 (0.63 %), GPUs of a host 1.5 %, memory 0.5 %, copies 3 %."""
    spreads = dict.fromkeys(PRODUCTS, 0.015) | {"memory": 0.005, "all-reduce": 0.01}

    def drawn(rates, factor=1.0):
        return {name: factor * rate * random_.gauss(1.0, spreads.get(name, 0.03)) for name, rate in rates.items()}

    fleet = []
    for number in range(hosts):
        own = random_.gauss(1.0, 0.0063)
        gpus = tuple(dataclasses.replace(gpu, rates=drawn(gpu.rates) | drawn(PRODUCTS, own)) for gpu in HOST.gpus)
        fleet.append(dataclasses.replace(HOST, host=f"node-{number}", gpus=gpus, rates=drawn(HOST.rates)))
    return fleet


@pytest.mark.slow
def test_honest_fleets_are_accepted():
    random_ = random.Random(19)
    verdicts = []
    for _ in range(200):
        size = random_.choice([1, 1, 2, 4, 8])
        verdicts += judge(honest_fleet(random_, size))
    assert sum(verdict.verdict is not ACCEPT for verdict in verdicts) <= 0.01 * len(verdicts)


def test_a_slow_host_among_its_mates_is_named_and_they_are_not():
    fleet = [dataclasses.replace(HOST, host=f"node-{number}") for number in range(4)]
    gpus = tuple(slower(gpu, 0.85) for gpu in HOST.gpus)
    fleet[1] = dataclasses.replace(fleet[1], gpus=gpus, rates=HOST.rates | {"host memory": 2e10})
    verdicts = judge(fleet)
    assert [verdict.verdict for verdict in verdicts] == [ACCEPT, WARNING, ACCEPT, ACCEPT]
    assert {figure for _, figure in found(verdicts[1])} == {*PRODUCTS, "host memory"}


@pytest.mark.parametrize(
    ("changes", "verdict", "said"),
    [
        ({"ecc_uncorrected_errors": 2}, REJECT, {"ecc_errors": None}),
        ({"power_limit_watts": 500.0}, WARNING, {"power_cap": None}),
        ({"throttle_power_share": 1.0}, ACCEPT, {}),
        ({"rates": {}}, ACCEPT, {}),  # what was not measured says nothing
        (
            {"rates": RATES | {"copies from the GPU": 9e9}},
            WARNING,
            {"copies from the GPU": "9 GB/s, 86% below the rate of PCIe 5 x16 (63 GB/s)"},
        ),
    ],
)
def test_a_gpu_without_mates_is_judged_by_itself(changes, verdict, said):
    (judged,) = judge([with_gpu(ALONE, 0, **changes)])
    assert judged.verdict is verdict and [figure for _, figure in found(judged)] == list(said)
    assert all(said[figure] in (None, one.text) for (_, figure), one in found(judged).items())


def test_missing_gpus_are_of_the_host():
    fewer = dataclasses.replace(HOST, gpus=HOST.gpus[:7])
    verdict, other = judge([fewer, dataclasses.replace(HOST, host="node-b")])
    assert other.verdict is ACCEPT and verdict.verdict is WARNING
    assert [one.text for one in verdict.findings] == ["7 GPUs answer, others of the fleet have 8"]


def test_a_rate_that_is_not_a_number_is_not_accepted():
    (host,) = judge([with_gpu(HOST, 3, rates=RATES | {"memory": float("nan")})])
    assert host.verdict is not ACCEPT
