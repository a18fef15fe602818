"""Samples with rare classes, drawn more often: the repeat factors of LVIS (arXiv:1908.03195).

A class in a share f of the samples has the factor max(1, sqrt(threshold / f)). A sample has the
greatest factor of its classes. An epoch has as many draws as there are samples, divided in
proportion to the factors: other samples make room for the repeated ones. All numbers are whole, so
that every machine has the same order.

Source: mmdet `ClassBalancedDataset`, detectron2 `RepeatFactorTrainingSampler`, where an epoch grows
by the repetitions.
"""

import math
from collections import Counter
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError
from stillbox.inputs.tiles import ImageTiles
from stillbox.records.parallel import ordered_map
from stillbox.records.source import ExampleSource
from stillbox.records.tile_grid import visible_boxes

# A factor of 1, and the precision of factors.
_UNIT = 4096
_Classes = tuple[int, ...]


class Draws(NamedTuple):
    """The samples of an epoch, in the order of their use."""

    samples: NDArray[np.int64]
    copies: NDArray[np.int64]
    """How often the epoch has drawn the sample already, so that copies are augmented apart."""


def repeat_factors(
    source: ExampleSource, tiles: ImageTiles | None, threshold: float, *, crowds: bool
) -> NDArray[np.int64]:
    """Returns the factor of each sample in units of 1/4096; no image is decoded.

    Args:
        tiles: that images are cut into, each of which is a sample; None: images are whole.
        threshold: the share of the samples below which a class is rare.
        crowds: whether crowd boxes are objects of their class.
    """
    read = partial(_classes_in, source, tiles, crowds)
    # Far fewer than samples, so that a sample costs one number.
    combinations: dict[_Classes, int] = {}
    numbers = np.fromiter(
        (
            combinations.setdefault(classes, len(combinations))
            for samples in ordered_map(read, range(len(source)))
            for classes in samples
        ),
        np.int64,
    )
    counts = np.bincount(numbers, minlength=len(combinations)).tolist()
    samples_with: Counter[int] = Counter()
    for classes, count in zip(combinations, counts, strict=True):
        samples_with.update(dict.fromkeys(classes, count))
    rare = {
        class_id: max(1.0, math.sqrt(threshold * len(numbers) / count))
        for class_id, count in samples_with.items()
    }
    factors = [max(map(rare.__getitem__, classes), default=1.0) for classes in combinations]
    return np.rint(_UNIT * np.array(factors)).astype(np.int64)[numbers]


def _classes_in(
    source: ExampleSource, tiles: ImageTiles | None, crowds: bool, record: int
) -> list[_Classes]:
    """Returns the classes of each sample of a record; loading an unusable one reports it."""
    try:
        example = source.example(record)
    except UserError:
        example = None
    if example is None:
        return [()] * (1 if tiles is None else len(tiles.windows(record)))
    counts = (example.weights > 0) & (crowds | ~example.is_crowd)
    if tiles is None:
        kept = [counts]
    else:
        pixels = example.boxes * np.tile(tiles.sizes[record].astype(np.float64), 2)
        windows = tiles.windows(record)
        kept = [counts & visible_boxes(pixels, window).kept for window in windows]
    return [tuple(np.unique(example.class_ids[rows]).tolist()) for rows in kept]


def repeated(
    order: NDArray[np.int64], factors: NDArray[np.int64], words: NDArray[np.uint64], *, mix: bool
) -> Draws:
    """Returns as many draws as samples, each sample in proportion to its factor.

    A sample is drawn as often as the two whole numbers next to its proportion, which it has on
    average over all draws of `words` (systematic sampling).

    Args:
        order: of all samples; decides which ones are rounded up together.
        words: one random word more than samples.
        mix: shuffle the draws; otherwise the copies of a sample follow each other.
    """
    ends, size = np.cumsum(factors[order]), len(order)
    offset = int(words[0]) % int(ends[-1])
    counts = np.diff((ends * size + offset) // ends[-1], prepend=0)
    samples = np.repeat(order, counts)
    copies = np.arange(size) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.argsort(words[1:], kind="stable") if mix else slice(None)
    return Draws(samples[places], copies[places])
