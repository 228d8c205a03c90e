"""Times PyTorch as a yardstick: ResNet50 v1 on synthetic images, momentum, in one precision, eager or compiled.

Needs torch, nothing of this project. Throughput is the median of three rounds, each with a synchronisation at its end.
"""

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

ROUNDS, WARMUP_STEPS = 3, 10
BLOCKS, CLASSES = (3, 4, 6, 3), 1000


def main() -> int:
    """Print the throughput."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precision", choices=["fp16", "tf32", "fp32"], default="fp32")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--steps", type=int, default=30, help="of a round")
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    print(json.dumps(measure(parser.parse_args())))  # noqa: T201
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the probe's document."""
    gpu, half = options.device == "gpu", options.precision == "fp16"
    if gpu and not torch.cuda.is_available():
        return {"outcome": "no_gpu", "cause": f"PyTorch {torch.__version__} sees no GPU"}
    device = torch.device("cuda" if gpu else "cpu")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = options.precision != "fp32"
    layout = (
        torch.contiguous_format if options.precision == "fp32" else torch.channels_last
    )  # the faster one on an H100
    model = resnet50().to(device, memory_format=layout).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, enabled=half and gpu)
    size = (options.batch_size, 3, options.image_size, options.image_size)
    images = torch.randn(size, device=device).to(memory_format=layout)
    labels = torch.randint(0, CLASSES, (options.batch_size,), device=device)
    amp_type = torch.float16 if gpu else torch.bfloat16  # PyTorch's CPU build autocasts convolutions to bfloat16 only

    def loss_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, amp_type, enabled=half):
            return nn.functional.cross_entropy(model(images), labels)

    forward = torch.compile(loss_of) if options.compiled else loss_of

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = forward(images, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    with until_finished(gpu):
        begin = time.perf_counter()
        first = float(step())
        for _ in range(WARMUP_STEPS - 1 if gpu else 1):
            step()
    warm_seconds, rates, loss = time.perf_counter() - begin, [], torch.zeros(())
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        with until_finished(gpu):
            for _ in range(options.steps):
                loss = step()
        rates.append(options.batch_size * options.steps / (time.perf_counter() - begin))
    details = {
        "pytorch": torch.__version__,
        "pytorch_cuda": torch.version.cuda,
        "pytorch_cudnn": torch.backends.cudnn.version() if gpu else None,
        "rounds": rates,
        "warm_seconds": warm_seconds,
        "losses": [first, float(loss)],
        "memory_peak_bytes": torch.cuda.max_memory_allocated() if gpu else None,
    }
    return {"figures": {"throughput": (statistics.median(rates), "images/s")}, "details": details}


@contextlib.contextmanager
def until_finished(gpu: bool) -> Iterator[None]:
    """Wait at the end until the GPU has finished."""
    yield
    if gpu:
        torch.cuda.synchronize()


class Bottleneck(nn.Module):
    """A block of ResNet v1, whose stride is in the first 1 × 1 convolution, as in `keras.applications`."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *(*normalised(inputs, width, 1, stride), nn.ReLU(inplace=True)),
            *(*normalised(width, width, 3, 1), nn.ReLU(inplace=True)),
            *normalised(width, outputs, 1, 1),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*normalised(inputs, outputs, 1, stride))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the sum of both branches, rectified."""
        return nn.functional.relu(self.body(images) + self.shortcut(images), inplace=True)


def normalised(inputs: int, outputs: int, size: int, stride: int) -> tuple[nn.Module, nn.Module]:
    """Return a convolution and its batch normalisation."""
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)


def resnet50() -> nn.Module:
    """Return ResNet50 v1 (He et al. 2015): 25,557,032 parameters, as tfbench's."""
    stem = (*normalised(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    blocks, inputs = [], 64
    for stage, count in enumerate(BLOCKS):
        width = 64 * 2**stage
        for index in range(count):
            blocks.append(Bottleneck(inputs, width, 2 if stage and not index else 1))
            inputs = 4 * width
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


if __name__ == "__main__":
    sys.exit(main())
