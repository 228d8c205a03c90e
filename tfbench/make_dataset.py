"""`python -m tfbench.make_dataset`: a small data set of real JPEG files in ImageNet's layout, out of noise.

The images are textures whose detail falls with its fineness as in photographs, so that they compress and decode like
these. There is nothing to learn from them.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from absl import flags

from results.schema.exit_codes import ExitCode

USAGE = """Write a small data set for --data=tfrecord: JPEG files in TFRecords, named and laid out as ImageNet's.

  python -m tfbench.make_dataset --output=FOLDER --images=1024 --shards=8
  python -m tfbench --model=resnet50 --data=tfrecord --data_dir=FOLDER

Flags:
"""


SHAPES = ((0.75, 1.0, 5), (1.0, 0.75, 2), (0.666, 1.0, 2), (1.0, 1.0, 1))
"""Height and width over the longer side, and how often of ten: mostly 4:3 landscape, as photographs are."""

JPEG_QUALITY = 90
CLASSES = 1000


def main(arguments: list[str]) -> int:
    """Run the command line and return the exit code."""
    values = _definitions()
    try:
        rest = values(["make_dataset", *arguments])[1:]
        if rest:
            raise flags.Error(f"only flags are expected (--name=value). Received: {rest[0]!r}")
        if values.help:
            print(USAGE + values.get_help())  # noqa: T201
            return ExitCode.OK
        if not values.output:
            raise flags.Error("--output is missing: the folder to create")
        if values.images < values.shards:
            raise flags.Error(f"--images={values.images} is less than one for each of --shards={values.shards}")
    except flags.Error as error:
        return _say(f"{' '.join(str(error).split())} (--help shows the flags)", ExitCode.USAGE)
    folder = Path(values.output)
    if folder.exists():
        return _say(f"{folder} exists already. Choose a new folder, or remove this one first", ExitCode.USAGE)
    try:
        size = write_data_set(folder, values.images, values.shards, values.longer_side, values.seed)
    except OSError as error:
        return _say(f"{folder} could not be written: {error}", ExitCode.SOME_FAILED)
    return _say(f"{folder}: {values.images} images, {size / values.images / 1e3:.0f} kB each", ExitCode.OK)


def write_data_set(folder: Path, images: int, shards: int, longer_side: int, seed: int) -> int:
    """Write a data set; the folder appears when it is complete.

    Args:
        folder: Must not exist.
        images: At least one for each shard.
        shards: Files.
        longer_side: Of the images, in pixels.
        seed: The same one gives the same images.

    Returns:
        Bytes of all encoded images.

    Raises:
        OSError: It cannot be written.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    import tensorflow as tf  # takes seconds, and --help needs none of it

    generator = np.random.default_rng(seed)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    total = 0
    try:
        for shard in range(shards):
            path = unfinished / f"train-{shard:05}-of-{shards:05}"
            with tf.io.TFRecordWriter(str(path)) as writer:
                for index in range(shard, images, shards):
                    pixels = texture(generator, *_shape(generator, longer_side))
                    encoded = tf.io.encode_jpeg(pixels, quality=JPEG_QUALITY, optimize_size=False).numpy()
                    total += len(encoded)
                    height, width, _ = pixels.shape
                    label = int(generator.integers(1, CLASSES + 1))
                    writer.write(example(encoded, height, width, label, f"image-{index:08}.JPEG"))
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return total


def texture(generator: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Draw a colour image, uint8 (height, width, 3): octaves of noise, each half as strong as the coarser one.

    Amplitude over frequency as 1/f is what photographs have (Field 1987).
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


def example(encoded: bytes, height: int, width: int, label: int, name: str) -> bytes:
    """Serialise a `tf.train.Example` with the keys of ImageNet's conversion scripts, without bounding boxes."""
    import tensorflow as tf

    def text(value: bytes) -> tf.train.Feature:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    def whole(value: int) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

    feature = {
        "image/encoded": text(encoded),
        "image/format": text(b"JPEG"),
        "image/filename": text(name.encode()),
        "image/colorspace": text(b"RGB"),
        "image/channels": whole(3),
        "image/height": whole(height),
        "image/width": whole(width),
        "image/class/label": whole(label),
        "image/class/synset": text(f"n{label:08}".encode()),
        "image/class/text": text(b"texture"),
    }
    return bytes(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def _shape(generator: np.random.Generator, longer_side: int) -> tuple[int, int]:
    """Draw height and width in pixels."""
    height, width, _ = SHAPES[generator.choice(len(SHAPES), p=[share / 10 for *_, share in SHAPES])]
    return round(height * longer_side), round(width * longer_side)


def _say(text: str, code: int) -> int:
    print(f"make_dataset: {text}", file=sys.stderr)  # noqa: T201
    return code


def _definitions() -> flags.FlagValues:
    values = flags.FlagValues()
    flags.DEFINE_string("output", None, "Folder to create; it must not exist.", flag_values=values)
    flags.DEFINE_integer("images", 1024, "JPEG files, all together.", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("shards", 8, "TFRecord files.", lower_bound=1, upper_bound=99_999, flag_values=values)
    flags.DEFINE_integer(
        "longer_side", 500, "Pixels; ImageNet's is 500 most often.", lower_bound=32, flag_values=values
    )
    flags.DEFINE_integer("seed", 2014, "The same seed gives the same images.", lower_bound=0, flag_values=values)
    flags.DEFINE_boolean("help", False, "Show this.", short_name="h", flag_values=values)
    return values


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
