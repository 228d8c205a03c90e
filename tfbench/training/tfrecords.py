"""Real input: JPEG files in TFRecords of ImageNet's layout, read, decoded, cropped and flipped by `tf.data`.

Layout: files `train-00000-of-00128`, …; each record is a `tf.train.Example` with `image/encoded` (JPEG) and
`image/class/label` (1 to 1000), as written by the usual conversion scripts for ImageNet.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from results.schema import Case, Status
from tfbench.failures import CaseFailedError
from tfbench.keras_versions import Strategy, Tensor
from tfbench.training.inputs import source_per_replica
from tfbench.training.tasks import Batch

FILE_NAME = re.compile(r"train-(\d{5})-of-(\d{5})")

SHUFFLED_EXAMPLES = 1024
"""Size of a host's shuffle buffer in examples; about 100 MB of encoded images."""

FILES_AT_ONCE = 10
PREFETCHED_BATCHES = 2

CROP_AREA, CROP_ASPECT, CROP_OVERLAP = (0.05, 1.0), (0.75, 1.33), 0.1
"""Random crop: share of the image, width over height, minimum overlap with the object's box. Source: Szegedy et al.
2014, section 6, with the constants of tf_cnn_benchmarks and of the official ResNet.
"""

PIXEL_MEAN, PIXEL_DEVIATION = (123.68, 116.78, 103.94), (58.39, 57.12, 57.38)
"""Mean and standard deviation of ImageNet's red, green and blue, 0 to 255, by which inputs are normalised."""

_SIDES = [f"image/object/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax")]

_FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    **{side: tf.io.VarLenFeature(tf.float32) for side in _SIDES},
}


@dataclass(frozen=True)
class DataSet:
    """The files of a data set.

    Attributes:
        files: All files, in order.
        bytes_per_image: Mean size of an encoded image in the first file.
    """

    files: list[Path]
    bytes_per_image: float


def open_data_set(folder: Path, classes: int) -> DataSet:
    """Find the files of a data set and check the first one.

    Args:
        folder: Contains `train-00000-of-N` to the last one.
        classes: Largest label; the smallest is 1.

    Raises:
        CaseFailedError: `bad_input`: something is missing, empty or damaged; the message has a fix.
    """
    try:
        found = {path.name: path for path in folder.iterdir() if FILE_NAME.fullmatch(path.name)}
    except OSError as error:
        raise _bad(folder, f"is not a readable folder: {error.strerror}") from error
    if not found:
        raise _bad(folder, "holds no file named like train-00000-of-00128")
    counts = sorted({int(name[-5:]) for name in found})
    wanted = [f"train-{index:05}-of-{counts[-1]:05}" for index in range(counts[-1])]
    missing = [name for name in wanted if name not in found]
    if missing:
        raise _bad(folder, f"is not complete: {missing[0]} is missing")
    if len(counts) > 1:
        raise _bad(folder, f"holds files of several data sets: of {' and of '.join(map(str, counts))} files")
    files = [found[name] for name in wanted]
    for file in files:
        if file.stat().st_size == 0:
            raise _bad(folder, f"{file.name} is empty")
    return DataSet(files, _look_into(files[0], classes))


def _look_into(path: Path, classes: int) -> float:
    """Check the first file: every record is an example with a label, and the first one has a JPEG.

    Returns:
        Mean size of an encoded image, in bytes.
    """
    sizes: list[int] = []
    try:
        with tf.device("CPU:0"):
            for record in tf.data.TFRecordDataset([str(path)]):
                example = tf.io.parse_single_example(record, _FEATURES)
                label = int(example["image/class/label"])
                if not 1 <= label <= classes:
                    raise _bad(path, f"record {len(sizes) + 1}: image/class/label must be 1 to {classes}: {label}")
                encoded = example["image/encoded"]
                if not sizes:
                    tf.io.decode_jpeg(encoded, channels=3)
                sizes.append(len(encoded.numpy()))
    except tf.errors.OpError as error:
        raise _bad(path, f"record {len(sizes) + 1}: {str(error).splitlines()[0][:300]}") from error
    if not sizes:
        raise _bad(path, "holds no record")
    return sum(sizes) / len(sizes)


def _bad(where: Path, what: str) -> CaseFailedError:
    hint = "`python -m tfbench.make_dataset --output=FOLDER` makes a small data set"
    return CaseFailedError(Status.BAD_INPUT, f"--data_dir: {where}: {what}. {hint}")


def tfrecord_source(case: Case, data_set: DataSet, size: int, strategy: Strategy) -> Callable[[], Batch]:
    """Return a source of batches: different images for each replica, already on its device.

    Args:
        case: Determines the number of images: its batch per GPU times its accumulated batches.
        data_set: Opened.
        size: Height and width in pixels.
        strategy: Over the replicas.
    """
    batch, replicas = case.batch_per_gpu * case.accumulate, strategy.num_replicas_in_sync

    def pipeline(replica: int) -> tf.data.Dataset:
        """Read one part of the data set: some of its files, or some of its examples if there are too few files."""
        by_file = len(data_set.files) >= replicas
        files = [str(path) for path in (data_set.files[replica::replicas] if by_file else data_set.files)]
        examples = (
            tf.data.Dataset.from_tensor_slices(files)
            .repeat()
            .interleave(
                tf.data.TFRecordDataset,
                cycle_length=min(FILES_AT_ONCE, len(files)),
                num_parallel_calls=tf.data.AUTOTUNE,
                deterministic=False,
            )
        )
        if not by_file:
            examples = examples.shard(replicas, replica)
        images = examples.shuffle(max(1, SHUFFLED_EXAMPLES // replicas)).map(
            lambda record: decode(record, size), tf.data.AUTOTUNE, deterministic=False
        )
        return images.batch(batch, drop_remainder=True).prefetch(PREFETCHED_BATCHES)

    return source_per_replica(strategy, pipeline)


def decode(record: Tensor, size: int) -> Batch:
    """Decode and augment a record.

    Args:
        record: A serialised `tf.train.Example`.
        size: Height and width of the image in pixels.

    Returns:
        A random crop, flipped with probability 1/2, float32 (size, size, 3), and its label from 0, int64 ().
    """
    example = tf.io.parse_single_example(record, _FEATURES)
    encoded = example["image/encoded"]
    sides = [tf.sparse.to_dense(example[side]) for side in _SIDES]
    begin, extent, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(encoded),
        bounding_boxes=tf.stack(sides, -1)[tf.newaxis],
        min_object_covered=CROP_OVERLAP,
        aspect_ratio_range=CROP_ASPECT,
        area_range=CROP_AREA,
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    (top, left, _), (height, width, _) = tf.unstack(begin), tf.unstack(extent)
    # Decoding only the crop saves most of the work for large images.
    image = tf.io.decode_and_crop_jpeg(encoded, tf.stack([top, left, height, width]), channels=3)
    image = tf.image.random_flip_left_right(tf.image.resize(image, [size, size]))
    image = (image - tf.constant(PIXEL_MEAN)) / tf.constant(PIXEL_DEVIATION)
    return image, example["image/class/label"] - 1
