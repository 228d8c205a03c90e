"""Price files of users, clouds and catalogs: which offers of which GPUs they hold, and what is said of the rest."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

import results.__main__ as program

CASES = Path(__file__).parent / "cases" / "prices"
"""Prices as SkyPilot's catalogs and the interfaces of Lambda, RunPod and Vast list them."""


@pytest.fixture
def recommend(tmp_path, monkeypatch, capsys):
    """Return a function that asks with a price file, or its text, and returns prices by GPU and remarks on others."""
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path / "runs"))

    def ask(prices, gpus, *arguments):
        if not isinstance(prices, Path):
            file = tmp_path / "prices.csv"
            file.write_bytes(prices if isinstance(prices, bytes) else prices.encode())
            prices = file
        arguments = (f"--prices={prices}", f"--gpus={gpus}", "--model=resnet50_v1.5", "--format=json", *arguments)
        if program.main(["results", "recommend", *arguments]):
            return capsys.readouterr().err.removeprefix(str(prices))
        document = json.loads(capsys.readouterr().out)
        found = defaultdict(set)
        for option in (option for answer in document["answers"] for option in answer["options"]):
            offers = (offer for offer in option["offers"] if offer["origin"])
            found[option["gpu"]].update(
                (of["usd_per_gpu_hour"], of["gpus_per_host"], of["commitment"]) for of in offers
            )
        return found, document["remarks"]

    return ask


def test_a_skypilot_catalog_is_read_and_exact_names_beat_families(recommend):
    found, remarks = recommend(CASES / "cloud.csv", "A100,V100,A10")
    for form in "PCIe", "SXM4":
        assert found[f"A100 {form} 40GB"] == {(1.5, 8, "spot"), (4, 8, "on demand")}
        assert found[f"A100 {form} 80GB"] == {(5, 8, "on demand")}
    assert found["V100 SXM2 16GB"] == {(0.9, 1, "spot"), (3, 1, "on demand")}
    assert found["V100 SXM2 32GB"] == {(1, 8, "spot"), (4, 8, "on demand")}
    assert found["A10"] == set()
    assert remarks == [
        "price not used: 0.5 to 1.3 USD for Trainium: unknown GPU",
        "price not used: 0.09 to 0.45 USD for 0.167 of A10: less than a GPU",
    ]


NAMES = {
    **{"1x NVIDIA A100 PCIE 40 GB": "A100 PCIe 40GB", "gpu_8x_h100_sxm5": "H100 SXM5 80GB", "gpu_1x_a10": "A10"},
    **{"nvidia-tesla-t4": "T4", "RTX6000-Ada": "RTX 6000 Ada", "A6000_PCIE_LOW_RAM": "RTX A6000", "b200_sxm6": "B200"},
    **{"H100-MEGA-80GB": "H100 SXM5 80GB", "A100-80G-PCIe-NVLink": "A100 PCIe 80GB", "2x 4090": "RTX 4090"},
    **{"geforcertx4090-pcie-24gb": "RTX 4090", "RTXPRO6000WK": "RTX PRO 6000 Blackwell WS", "l40s-48gb.1x": "L40S"},
    **{"A100:80GB:8": "A100 SXM4 80GB", "A4000 x4": "RTX A4000"},
}
UNKNOWN = ("T4G", "A4000 Laptop", "GH200", "g5.xlarge", "Standard_NC24ads_A100_v4", "A100 MIG 1g.5gb", "RTX 4090 48GB",
           "A100X", "RTX6000")  # fmt: skip


def test_names_of_clouds_and_catalogs_are_understood_or_kept_as_unknown(recommend):
    rows = [f"{name},{number}" for number, name in enumerate((*NAMES, *UNKNOWN), 1)]
    found, remarks = recommend("\n".join(["gpu,price per gpu", *rows]), ",".join({*NAMES.values()}), "--num-gpus=1,2,8")
    for number, (name, gpu) in enumerate(NAMES.items(), 1):
        assert number in {usd for usd, *_ in found[gpu]}, name
    unknown = [f"{number} USD for {name}" for number, name in enumerate(UNKNOWN, 1 + len(NAMES))]
    assert remarks == [f"price not used: {', '.join(unknown)}: unknown GPU"]


OWN = "gpu,usd_per_gpu_hour,region\nRTX A4000,0.17,Zürich\nRTX A5000,0.36,Malmö\n"


@pytest.mark.parametrize(
    "data",
    [
        OWN.encode(),
        OWN.encode("latin-1"),
        OWN.replace(",", "\t").encode("utf-16"),
        OWN.replace(",", ";").replace("0.", "0,").encode(),
        b"GPU,Price ($/GPU hr)\nRTX A4000,$0.17/hr\nRTX A5000,0.36 USD\n",
        b"instance,gpu_name,gpu_count,price\na,A4000,2,0.34\nb,A5000,1,0.36\nc,,0,0.05\n",
        b'[{"gpu": "A4000", "usd_per_gpu_hour": 0.17}, {"gpu": "A5000", "usd_per_gpu_hour": 0.36}]',
    ],
)  # fmt: skip
def test_encodings_delimiters_and_headings_of_other_programs_are_read(recommend, data):
    found, remarks = recommend(data, "1x A4000,2x A4000,A5000")
    assert {gpu: {price for price, *_ in of} for gpu, of in found.items()} == {"RTX A4000": {0.17}, "RTX A5000": {0.36}}
    assert remarks == []


@pytest.mark.parametrize(
    ("document", "gpus", "prices", "remarks"),
    [
        ("lambda", "A10,H100 SXM5", {"A10": {(0.75, 1, "")}, "H100 SXM5 80GB": {(2.99, 8, "")}}, []),
        ("runpod", "A5000", {"RTX A5000": {(0.16, None, "on demand"), (0.36, None, "on demand")}}, []),
        ("vast", "A100 SXM4", {"A100 SXM4 80GB": {(1.2, 8, "")}}, ["RTX 4090 48GB: unknown GPU"]),
    ],
)
def test_the_answers_of_clouds_interfaces_are_price_files(recommend, document, gpus, prices, remarks):
    found, unused = recommend(CASES / f"{document}.json", gpus)
    assert {gpu: found[gpu] for gpu in prices} == prices
    assert unused == [f"price not used: 0.4 USD for {remark}" for remark in remarks]


@pytest.mark.parametrize(("heading", "memory"), [("gpu_memory", "40.0"), ("gpu_ram", "40960"), ("VRAM", "40 GB")])
def test_the_memory_of_a_row_decides_which_gpu_it_is(recommend, heading, memory):
    gpuhunt = f"location,price,memory,gpu_count,gpu_name,{heading},spot\nx,32,1152,8,A100,{memory},False\n"
    found, _ = recommend(gpuhunt, "A100")
    assert found["A100 PCIe 40GB"] == found["A100 SXM4 40GB"] == {(4, 8, "on demand")} and not found["A100 PCIe 80GB"]


@pytest.mark.parametrize(
    ("arguments", "remark"),
    [
        (["--gpus=A4000", "--budget=0.5"], "price not used: 0.6 USD for RTX A4000: it is over the budget"),
        (["--gpus=A5000"], "price not used: 0.6 USD for RTX A4000: the answer has no row of this GPU"),
        (["--gpus=4x A4000"], "price not used: 0.6 USD for RTX A4000: its host has only 2 GPUs"),
        (["--gpus=A4000", "--price=A4000=1"], "price not used: 0.6 USD for RTX A4000: another price of this GPU comes first"),
    ],
)  # fmt: skip
def test_a_price_that_is_not_used_has_its_reason(recommend, arguments, remark):
    _, remarks = recommend("gpu,usd_per_gpu_hour,gpus_per_host\nA4000,0.6,2\n", "", *arguments)
    assert remarks == [remark]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"gpu,usd_per_gpu_hour\nA4000,0.17\nA5000,cheap\n", ": row 2: usd_per_gpu_hour must be a number above 0. Received: 'cheap'"),
        (b"gpu,usd_per_gpu_hour,currency\nA5000,0.36,EUR\n", ": row 1: currency must be USD: convert the prices. Received: 'EUR'"),
        ("gpu,price (€/h)\nA5000,0.36\n".encode(), ": row 1: currency must be USD: convert the prices. Received: 'price_eur_h'"),
        (b"gpu,gpu_count,price\nA5000,two,1\n", ": row 1: the number of GPUs must be a number. Received: 'two'"),
        (b"card;price per month\nA5000;100\n", ": needs a column of prices per hour in USD, named usd_per_gpu_hour. Columns: card, "),
        (b"", ": no table in it."),
        (b"gpu,usd_per_gpu_hour\n,0.2\n", ": no row has a GPU and a price"),
        (b'{"offers": [', ": cannot be read as JSON: "),
        (b"PK\x03\x04\x00\x00", ": not a text of at most 32 MiB"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_has_the_real_reason(recommend, data, message):
    assert recommend(data, "").startswith(message)
