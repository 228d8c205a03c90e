"""A report that shows everything, for the tests of the page and for those of a browser that opens it."""

import results.__main__ as program
from tests.unit.results.factory import make_case, make_environment, make_failure, make_origin, repeats, write_run

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>\u202e\x1b[31m"


def write_page(folder):
    """Write, into a folder, the report of two runs of two fleets, with failures, prices, warnings and a name that is markup."""
    for run_id, drift in (("run-1", 1.0), ("run-2", 1.02)):
        records = []
        for fleet, factor, price in (("a4000", 1.0, 0.17), ("a5000", 1.55, 0.36)):
            for model, rate in (("resnet50", 400.0), ("googlenet", 900.0)):
                for count in (1, 2):
                    case = make_case(model, device="gpu", precision="fp16", num_gpus=count)
                    rates = [rate * factor * count**0.97 * drift * noise for noise in (1.0, 1.004, 0.997)]
                    records += repeats(
                        *rates, fleet=fleet, host=f"{fleet}-1", case=case, run_id=run_id, usd_per_gpu_hour=price,
                        environment=make_environment(gpus=2, cpu=EVIL), warnings=("high_cv",),
                        started_at=f"2026-11-0{run_id[-1]}T10:00:00Z",
                    )  # fmt: skip
        records.append(make_failure("error", EVIL, case=make_case("vgg16"), origin=make_origin(EVIL, EVIL)))
        write_run(folder, records, run_id)
    path = folder / "report.html"
    names = [str(folder / "run-1"), str(folder / "run-2")]
    assert program.main(["results", "report", *names, "--output", str(path)]) == 0
    return path
