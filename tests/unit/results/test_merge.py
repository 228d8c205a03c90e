import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.report.tables import results_grid
from results.schema import METHOD_VERSION
from results.stats import estimate_of_runs
from results.table.merge import merge_records
from tests.support.examples import examples
from tests.unit.results.factory import (
    make_case,
    make_environment,
    make_failure,
    make_origin,
    make_record,
    repeats,
    stored,
    t_interval,
)


def rows(merged):
    table = merged.table.astype(object).where(merged.table.notna(), None)
    return table.to_dict("records")


def test_repeats_become_one_row_with_their_mean_and_t_interval():
    merged = merge_records(stored(*repeats(100.0, 104.0, 102.0)))
    (row,) = rows(merged)
    expected = t_interval([100.0, 104.0, 102.0])
    assert row["samples_per_second"] == pytest.approx(expected.value)
    assert (row["ci95_low"], row["ci95_high"]) == pytest.approx((expected.low, expected.high))
    assert (row["repeats_ok"], row["repeats"], row["status"], row["valid"]) == (3, 3, "ok", True)
    assert merged.problems == []
    merged = merge_records(stored(*repeats(100.0, 101.0, 102.0), *repeats(103.0, 104.0, run_id="run-2")))
    (row,), runs = rows(merged), estimate_of_runs([[100.0, 101.0, 102.0], [103.0, 104.0]]).interval()
    found = [row[name] for name in ("samples_per_second", "ci95_low", "ci95_high")]
    assert found == pytest.approx([runs.value, runs.low, runs.high])
    assert merged.rates[0].interval.low == pytest.approx(found[1])
    assert "images per second ± 95 % over runs; " in results_grid(merged).notes[0]
    (row,) = rows(merge_records(stored(*repeats(100.0))))
    assert (row["samples_per_second"], row["ci95_low"], row["ci95_high"]) == (pytest.approx(100.0), None, None)


@pytest.mark.parametrize(("rates", "status"), [((), "oom"), ((100.0, 102.0), "ok")])
def test_failed_repeats_are_counted_and_explained_beside_any_numbers(rates, status):
    failures = [make_failure("oom", "out of memory", origin=make_origin(repeat=i)) for i in (3, 4, 5)]
    (row,) = rows(merge_records(stored(*repeats(*rates), *failures)))
    assert (row["status"], row["cause"]) == (status, "oom: out of memory")
    assert (row["repeats_ok"], row["repeats"], row["valid"]) == (len(rates), len(rates) + 3, True if rates else None)
    assert row["samples_per_second"] == (pytest.approx(101.0) if rates else None)


LOADED = make_environment(cudnn="9.3.0", cublas="12.5.3", nccl="2.23.4")


@pytest.mark.parametrize(
    ("failed", "counts"),
    [
        ({"environment": LOADED}, [(2, 3)]),
        ({"environment": make_environment(keras="3.9.2")}, [(2, 2), (0, 1)]),
        ({"environment": make_environment(cudnn="built for 9")}, [(2, 3)]),  # before the libraries were loaded
        ({}, [(2, 2), (0, 1)]),  # of another run, and never reached
    ],
)
def test_a_failure_joins_the_row_of_its_own_software_or_run(failed, counts):
    failure = make_failure(**failed, origin=make_origin(repeat=3, run_id="run-2"))
    table = rows(merge_records(stored(*repeats(100.0, 102.0, environment=LOADED), failure)))
    assert [(row["repeats_ok"], row["repeats"]) for row in table] == counts
    assert (table[0]["cudnn"], table[0]["cublas"], table[0]["nccl"]) == ("9.3.0", "12.5.3", "2.23.4")


@pytest.mark.parametrize(
    "change",
    [
        {"environment": make_environment(tensorflow="2.20.0")},
        {"environment": make_environment(keras="3.12.0")},
        {"environment": make_environment(driver="550.54")},
        {"environment": make_environment(cuda="12.5")},
        {"environment": make_environment(tf32_enabled=True)},
        {"environment": make_environment(cpu_limit=1.0)},
        {"environment": make_environment(variables={"TF_XLA_FLAGS": "--tf_xla_auto_jit=2"})},
        {"origin": make_origin(repeat=2, image_digest="sha256:" + "0" * 64)},
        {"origin": make_origin(repeat=2, launcher="docker")},
        {"origin": make_origin(repeat=2, host="node-b")},
        {"origin": make_origin(repeat=2, fleet="a5000")},
        {"case": make_case(xla="auto")},
        {"case": make_case(batch_norm="keras")},
        {"case": make_case(data="host")},
        {"case": make_case(precision="bf16")},
        {"case": make_case(num_gpus=2)},
        {"method_version": METHOD_VERSION + 1},
        {"parameters": 26_000_000},
    ],
    ids=lambda change: ",".join(change),
)
def test_identities_are_never_mixed_in_one_row(change):
    origin = change.pop("origin", make_origin(repeat=2))
    merged = merge_records(stored(make_record(100.0), make_record(50.0, origin=origin, **change)))
    assert sorted(row["samples_per_second"] for row in rows(merged)) == pytest.approx([50.0, 100.0])


def test_gpus_are_named_once_with_their_lowest_power_limit():
    record = make_record(case=make_case(device="gpu", num_gpus=2), environment=make_environment(gpus=4))
    (row,) = rows(merge_records(stored(record)))
    assert (row["gpu"], row["power_limit_watts"], row["global_batch"]) == ("NVIDIA RTX A4000", 140.0, 16)


def test_runs_of_several_days_share_a_row_and_the_latest_price_is_used():
    first = repeats(100.0, 101.0, run_id="run-1", usd_per_gpu_hour=0.17, started_at="2026-11-01T10:00:00Z")
    second = repeats(102.0, 103.0, run_id="run-2", usd_per_gpu_hour=0.19, started_at="2026-11-08T10:00:00Z")
    between = repeats(101.0, run_id="run-3", usd_per_gpu_hour=0.25, started_at="2026-11-04T10:00:00Z")
    merged = merge_records(stored(*second, *first, *between))
    (row,) = rows(merged)
    assert (row["runs"], row["repeats"], row["usd_per_gpu_hour"]) == (3, 5, 0.19)
    assert row["last_started_at"] == "2026-11-08T10:00:00Z"
    (problem,) = merged.problems
    assert problem == "a4000/node-a: prices differ between runs (0.17, 0.19, 0.25 USD per GPU-hour); the latest is used"


def test_warnings_are_counted_where_not_every_repeat_has_them():
    codes = (("high_cv", "hot_start"), ("hot_start",))
    records = [make_record(origin=make_origin(repeat=i), warnings=of) for i, of in enumerate(codes)]
    assert rows(merge_records(stored(*records)))[0]["warnings"] == "high_cv (1 of 2), hot_start"


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_merging_counts_every_record_once_in_any_order(data):
    hosts = st.sampled_from(["a", "b"])
    kinds = st.lists(st.tuples(hosts, st.sampled_from(["resnet50", "vgg16"]), st.booleans()), max_size=12)
    records = []
    for i, (host, model, works) in enumerate(data.draw(kinds)):
        make = make_record if works else make_failure
        records.append(make(case=make_case(model), origin=make_origin(host=host, repeat=i)))
    merged = merge_records(stored(*data.draw(st.permutations(records))))
    assert merged.table["repeats"].sum() == len(records)
    assert merged.table["repeats_ok"].sum() == sum(r.status == "ok" for r in records) == len(merged.repeats)
    assert all(not math.isnan(rate) for rate in merged.repeats["samples_per_second"])
