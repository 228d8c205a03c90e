"""Write a small data set for --data=tfrecord: JPEG files in TFRecords, named and keyed as ImageNet's.

python -m tfbench.make_dataset --output=FOLDER --images=1024 --shards=8
python -m tfbench --model=resnet50 --data=tfrecord --data_dir=FOLDER
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from results.schema.exit_codes import ExitCode
from results.schema.streams import lasting_streams

ASPECT = 0.75
"""Height over width: landscape, like most photographs."""

JPEG_QUALITY = 90
CLASSES = 1000
SEED = 2014


def main(arguments: list[str]) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        prog=os.environ.get("TFBENCH_PROGRAM", "python -m tfbench.make_dataset"),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--output", type=Path, required=True, help="folder to create; it must not exist")
    parser.add_argument("--images", type=int, default=1024, help="JPEG files, all together (default: %(default)s)")
    parser.add_argument("--shards", type=int, default=8, help="TFRecord files (default: %(default)s)")
    parser.add_argument("--longer_side", type=int, default=500, help="pixels, mostly 500 in ImageNet")
    options = parser.parse_args(arguments)
    folder: Path = options.output
    if options.images < options.shards or not 1 <= options.shards < 100_000 or options.longer_side < 32:
        parser.error("at least one image for each of 1 to 99999 shards, and a longer side of at least 32 pixels")
    if folder.exists():
        parser.error(f"{folder} exists already. Choose a new folder, or remove this one first")
    try:
        size = write_data_set(folder, options.images, options.shards, options.longer_side)
        said, code = f": {options.images} images, {size / options.images / 1e3:.0f} kB each", ExitCode.OK
    except OSError as error:
        said, code = f" could not be written: {error}", ExitCode.SOME_FAILED
    print(f"make_dataset: {folder}{said}", file=sys.stderr)  # noqa: T201
    return code


def write_data_set(folder: Path, images: int, shards: int, longer_side: int) -> int:
    """Write a data set with reproducible contents; the folder appears once it is complete.

    Args:
        folder: Must not exist.
        images: At least one for each shard.
        shards: Files.
        longer_side: Of an image, in pixels.

    Returns:
        Bytes of all encoded images.

    Raises:
        OSError: It cannot be written.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    import tensorflow as tf  # takes seconds, and --help does not need it

    generator = np.random.default_rng(SEED)
    folder.parent.mkdir(parents=True, exist_ok=True)
    total = 0
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as unfinished:
        complete = Path(unfinished) / folder.name
        complete.mkdir()
        for shard in range(shards):
            with tf.io.TFRecordWriter(str(complete / f"train-{shard:05}-of-{shards:05}")) as writer:
                for _ in range(shard, images, shards):
                    pixels = texture(generator, round(ASPECT * longer_side), longer_side)
                    encoded = tf.io.encode_jpeg(pixels, quality=JPEG_QUALITY, optimize_size=False).numpy()
                    total += len(encoded)
                    height, width, _ = pixels.shape
                    writer.write(example(encoded, height, width, int(generator.integers(1, CLASSES + 1))))
        complete.rename(folder)
    return total


def texture(generator: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Draw a colour image, uint8 (height, width, 3): octaves of noise, each half as strong as the coarser one.

    Photographs have amplitudes proportional to 1/f (Field 1987).
    """
    import tensorflow as tf

    image = np.zeros((height, width, 3), np.float32)
    cells, strength = 3, 1.0
    while cells < min(height, width):
        noise = generator.standard_normal((cells, cells, 3)).astype(np.float32)
        image += strength * tf.image.resize(noise, [height, width], method="bilinear").numpy()
        cells, strength = cells * 2, strength / 2
    image = 128.0 + 55.0 * image / image.std()
    clipped: np.ndarray = np.clip(image, 0, 255).astype(np.uint8)
    return clipped


def example(encoded: bytes, height: int, width: int, label: int) -> bytes:
    """Serialise a `tf.train.Example` with keys of ImageNet's conversion scripts, without bounding boxes."""
    import tensorflow as tf

    numbers = {"height": height, "width": width, "channels": 3, "class/label": label}
    feature = {
        f"image/{name}": tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        for name, value in numbers.items()
    }
    feature["image/encoded"] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded]))
    return bytes(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


if __name__ == "__main__":
    with lasting_streams(BrokenPipeError):
        sys.exit(main(sys.argv[1:]))
