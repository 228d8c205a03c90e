"""Tables as frameworks, spreadsheets and terminals write them, for the audit.

`READABLE` are honest throughputs, by name: text, and (GPU, network, precision, GPUs, batch, mode) → samples/s of each
cell. `NO_THROUGHPUTS` are honest tables of something else: text, and a word of the answer that names it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Cell(NamedTuple):
    """A cell's meaning; None or empty: not given."""

    gpu: str | None
    model: str
    precision: str
    rate: float
    count: int = 1
    batch: int | None = None
    mode: str = "train"


A4000, A5000 = "RTX A4000", "RTX A5000"


def _rates(rates: Mapping[str, float]) -> list[Cell]:
    """Return cells of ResNet50 in FP16, by GPU."""
    return [Cell(gpu, "resnet50", "fp16", rate) for gpu, rate in rates.items()]


FP16 = _rates({A4000: 410.5, A5000: 640.1})
UNITS = (
    *("images/second", "samples/second", "examples/sec", "train_samples_per_second", "avg images/sec", "seqs/s"),
    *("RunningAvgSamplesPerSec", "Training throughput [samples/s]", "Global Throughput (images/sec)", "FPS"),
    *("Images processed per second", "samples·s⁻¹", "mean ± std (img/s)", "Performance (TensorFlow, img/s)"),
)


def _long(unit: str) -> str:
    return f'gpu,model,precision,"{unit}"\nRTX A4000,resnet50,fp16,410.5\nRTX A5000,resnet50,fp16,640.1\n'


def _cells(rates: Mapping[str, Sequence[float]], **of: Sequence[str]) -> list[Cell]:
    """Return cells of ResNet50 in FP16 by GPU, with rates that differ in one field of `Cell`."""
    ((field, values),) = of.items()
    return [
        Cell(gpu, "resnet50", "fp16", rate)._replace(**{field: value})
        for gpu, of_gpu in rates.items()
        for rate, value in zip(of_gpu, values, strict=True)
    ]


ONE_AND_FOUR = [*FP16, Cell(A4000, "resnet50", "fp16", 1560.2, 4), Cell(A5000, "resnet50", "fp16", 2430.9, 4)]

READABLE: dict[str, tuple[str, list[Cell]]] = {
    **{f"heading {unit}": (_long(unit), FP16) for unit in UNITS},
    "extra words": (
        "GPU\tVRAM\tPrice ($)\tTDP (W)\tResNet-50 TF FP32 (images/s)\tResNet-50 NGC run FP16 (images/s)\tNotes\n"
        "RTX 3080 10GB\t10\t$699\t320\t321.4\t560.2\t\nRTX 3090 24GB\t24\t$1,499\t350\t398.0\t781.5\tblower\n",
        _cells({"RTX 3080": (321.4, 560.2), "RTX 3090": (398.0, 781.5)}, precision=("fp32", "fp16")),
    ),
    "intervals": (
        "gpu,model,precision,images_per_second\nRTX A4000,resnet50,fp16,410.5 (±4.0)\nRTX A5000,resnet50,fp16,640.1(5)\n"
        "RTX A6000,resnet50,fp16,802.2 (+/- 4.0)\nRTX 3090,resnet50,fp16,(781.3 ± 5.1) img/s\n"
        'H100 PCIe,resnet50,fp16,"2,250 [2,240–2,261]"\nA100 PCIe 40GB,resnet50,fp16,1160 \\pm 12\n',
        FP16 + _rates({"RTX A6000": 802.2, "RTX 3090": 781.3, "H100 PCIe 80GB": 2250, "A100 PCIe 40GB": 1160}),
    ),
    "training and inference": (
        "gpu,model,precision,batch_size,train images/sec,inference images/sec\n"
        "RTX A4000,resnet50,fp16,256,410,1312\nRTX A5000,resnet50,fp16,256,640,2050\n",
        [
            cell._replace(batch=256)
            for cell in _cells({A4000: (410, 1312), A5000: (640, 2050)}, mode=("train", "infer"))
        ],
    ),
    "timm, of the GPU in the title": (
        "# AMP, RTX 3090\nmodel,infer_samples_per_sec,infer_step_time,infer_batch_size,infer_img_size,"
        "train_samples_per_sec,train_step_time,train_batch_size,train_img_size,param_count\n"
        "resnet50,2601.4,98.4,512,224,781.2,327.0,256,224,25.56\nresnet152,941.7,271.8,256,224,279.3,457.4,128,224,60.19\n",
        [
            Cell(None, "resnet50", "", 2601.4, 1, 512, "infer"),
            Cell(None, "resnet50", "", 781.2, 1, 256),
            Cell(None, "resnet152", "", 941.7, 1, 256, "infer"),
            Cell(None, "resnet152", "", 279.3, 1, 128),
        ],
    ),
    "a drawn box": (
        "                 ResNet50 FP16, images/s\n┏━━━━━━━━━━━┳━━━━━━━━┳━━━━━━━━┓\n┃ GPU       ┃ 1 GPU  ┃ 4 GPUs ┃\n"
        "┡━━━━━━━━━━━╇━━━━━━━━╇━━━━━━━━┩\n│ RTX A4000 │ 410.5  │ 1560.2 │\n├───────────┼────────┼────────┤\n"
        "│ RTX A5000 │ 640.1  │ 2430.9 │\n└───────────┴────────┴────────┘\n",
        ONE_AND_FOUR,
    ),
    "psql": (
        "    gpu    |  model   | precision | num_gpus | images_per_second \n-----------+----------+-----------+----------+-------------------\n"
        " RTX A4000 | resnet50 | fp16      |        1 |             410.5\n RTX A5000 | resnet50 | fp16      |        1 |             640.1\n"
        "(2 rows)\n",
        FP16,
    ),
    "pandas, pivoted": (
        "ResNet50\n\nprecision   fp16   bf16\nRTX A4000  410.5  405.2\nRTX A5000  640.1  632.9\n\n[2 rows x 2 columns]\n",
        _cells({A4000: (410.5, 405.2), A5000: (640.1, 632.9)}, precision=("fp16", "bf16")),
    ),
    "polars": (
        "shape: (2, 4)\n┌───────────┬──────────┬───────────┬──────────┐\n│ gpu       ┆ model    ┆ precision ┆ images/s │\n"
        "│ ---       ┆ ---      ┆ ---       ┆ ---      │\n│ str       ┆ str      ┆ str       ┆ f64      │\n"
        "╞═══════════╪══════════╪═══════════╪══════════╡\n│ RTX A4000 ┆ resnet50 ┆ fp16      ┆ 410.5    │\n"
        "│ RTX A5000 ┆ resnet50 ┆ fp16      ┆ 640.1    │\n└───────────┴──────────┴───────────┴──────────┘\n",
        FP16,
    ),
    "two boxes": (
        "ResNet50 FP16\n┌───────────┬────────┐\n│ GPU       │ img/s  │\n├───────────┼────────┤\n│ RTX A4000 │ 410.5  │\n"
        "└───────────┴────────┘\nVGG16 FP16\n┌───────────┬────────┐\n│ GPU       │ img/s  │\n├───────────┼────────┤\n"
        "│ RTX A4000 │ 240.7  │\n└───────────┴────────┘\n",
        [Cell(A4000, "resnet50", "fp16", 410.5), Cell(A4000, "vgg16", "fp16", 240.7)],
    ),
    "numbers of GPUs as headings": (
        "Model / GPU,2080 Ti,3080,3090\nResNet-50 FP16,494.1,560.2,781.5\n",
        _rates({"RTX 2080 Ti": 494.1, "RTX 3080": 560.2, "RTX 3090": 781.5}),
    ),
    "a readme of NVIDIA": (
        "#### Training: V100 32GB, ResNet50\n\n| **GPUs** | **Batch size / GPU** | **Throughput - FP32** | **Throughput - mixed precision** | "
        "**Throughput speedup (FP32 to mixed)** | **Weak scaling - FP32** |\n|---:|---:|---:|---:|---:|---:|\n"
        "| 1 | 256 | 381.2 img/s | 1270.3 img/s | 3.33x | 1.0 |\n| 8 | 256 | 2952.1 img/s | 9680.4 img/s | 3.28x | 7.74 |\n",
        [
            Cell("V100 SXM2 32GB", "resnet50", precision, rate, count, 256)
            for count, rates in ((1, (381.2, 1270.3)), (8, (2952.1, 9680.4)))
            for precision, rate in zip(("fp32", "fp16"), rates, strict=True)
        ],
    ),
    "of each GPU": (
        "GPU(s),gpu,model,precision,batch_size,images/s/GPU\n1,RTX A4000,resnet50,fp16,128,410.5\n4,RTX A4000,resnet50,fp16,128,390.05\n",
        [Cell(A4000, "resnet50", "fp16", 410.5, 1, 128), Cell(A4000, "resnet50", "fp16", 1560.2, 4, 128)],
    ),
    "slices": (
        "gpu,model,precision,images_per_second\nA100-SXM4-40GB,resnet50,fp16,1200\nA100-SXM4-40GB MIG 1g.5gb,resnet50,fp16,182\n"
        "A100-SXM4-40GB MIG 3g.20gb,resnet50,fp16,540\nNVIDIA A10-4Q,resnet50,fp16,160\nGRID A100D-80C,resnet50,fp16,1290\n",
        _rates({"A100 SXM4 40GB": 1200}) + [Cell(None, "resnet50", "fp16", rate) for rate in (182, 540, 160, 1290)],
    ),
}

_WIDE = "| GPU | ResNet50 FP16 | BERT Large FP16 |\n|---|---|---|\n| RTX 2080 Ti | {} | {} |\n| RTX 3090 | {} | {} |\n| RTX A6000 | {} | {} |\n"
_TIMES = "gpu,model,precision,{}\nRTX A4000,resnet50,fp16,0.312\nRTX A5000,resnet50,fp16,0.199\nRTX A6000,resnet50,fp16,0.151\n"

NO_THROUGHPUTS: dict[str, tuple[str, str]] = {
    "normalised, by its title": (
        f"Normalized training throughput (1x RTX 2080 Ti = 1.00)\n\n{_WIDE.format('1.00', '1.00', 1.72, 1.93, 1.81, 2.11)}",
        "relative",
    ),
    "normalised, by its values": (_WIDE.format("1.00", "1.00", 1.72, 1.93, 1.81, 2.11), "relative to RTX 2080 Ti"),
    "normalised, without the base": (_WIDE.format(0.8, 0.7, 1.2, 1.1, 1.3, 1.2), "too small for a GPU"),
    "percent signs": (_WIDE.format("100 %", "100 %", "172 %", "193 %", "181 %", "211 %"), "percentages"),
    "relative headings": (
        "GPU,ResNet50 FP16 (relative to V100),BERT Large FP16 (relative to V100)\nRTX 3090,1.05,0.98\nA100 40GB,1.62,1.91\n",
        "relative",
    ),
    **{
        f"times, {heading}": (_TIMES.format(heading), "times")
        for heading in (*("step time (s)", "ms/step", "s/epoch", "latency", "train_runtime", "time to train (hours)"),)
    },
    "times, by the title": (
        f"Training time in seconds, lower is better\n\n{_WIDE.format(812, 3120, 471, 1640, 455, 1502)}",
        "times",
    ),
    "times, by the cells": (_WIDE.format("812 s", "3120 s", "471 s", "1640 s", "455 s", "1502 s"), "times"),
    "steps": ("gpu,model,precision,steps/s\nRTX A4000,resnet50,fp16,3.21\nRTX A5000,resnet50,fp16,5.02\n", "steps"),
    "an unknown word": (
        "| GPU | ResNet50 FP16 Quux |\n|---|---|\n| RTX A4000 | 410.5 |\n",
        "'ResNet50 FP16 Quux' ('Quux' is not understood",
    ),
    "commas without quotes": ("gpu,model,images/s\nRTX A4000,resnet50,1,029\nRTX A5000,resnet50,1,604\n", "quotes"),
}
