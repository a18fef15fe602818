"""Operations on boxes and classes alone."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.rules.boxes import named_labels
from stillbox.experiment.variants import implements
from stillbox.inputs.sample import Sample
from stillbox.records.label_map import ClassSlots

# A box without height or width grows from this, as in the original.
_LEAST_SIDE = 1e-6


@implements(schema.RandomJitterBoxes)
def random_jitter_boxes(sample: Sample, config: schema.RandomJitterBoxes, rng: Generator) -> Sample:
    """Multiplies the distance of every edge from the centre by a random factor; clips to 0..1.

    The factor is uniform in `1 - ratio .. 1 + ratio`, with `expand` in `1 .. 1 + ratio`, with
    `shrink` in `1 - ratio .. 1`. Every edge has its own, with `symmetric` every axis, with
    `symmetric_xy` every box. A symmetric factor ends where the box would leave the image, so that
    the centre stays.
    """
    low = 1 - config.ratio * (not config.mode.startswith("expand"))
    high = 1 + config.ratio * (not config.mode.startswith("shrink"))
    # Four numbers for a box in every mode, so that later operations draw the same numbers.
    factors = low + rng.random((len(sample.boxes), 4)) * (high - low)
    boxes = sample.boxes.astype(np.float64)
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2
    half = np.maximum(boxes[:, 2:] - boxes[:, :2], _LEAST_SIDE) / 2
    room = np.abs(np.minimum(centre, 1 - centre)) / half
    if config.mode.endswith("symmetric"):
        factors = np.tile(np.minimum(factors[:, :2], room), 2)
    elif config.mode.endswith("symmetric_xy"):
        factors = np.minimum(factors[:, :1], room.min(axis=1, keepdims=True))
    moved = np.tile(centre, 2) + np.tile(half, 2) * [-1, -1, 1, 1] * factors
    return replace(sample, boxes=np.clip(moved, 0, 1).astype(np.float32))


@implements(schema.DropLabelProbabilistically)
def drop_label_probabilistically(
    sample: Sample, config: schema.DropLabelProbabilistically, rng: Generator
) -> Sample:
    """Drops boxes of one class, each with the given probability on its own."""
    kept = rng.random(len(sample.class_ids)) >= config.probability
    return sample.select(kept | (sample.class_ids != config.label))


@implements(schema.RemapLabels)
def remap_labels(sample: Sample, config: schema.RemapLabels, rng: Generator) -> Sample:
    """Gives the boxes of some classes another class. Nothing is random."""
    changed = np.isin(sample.class_ids, np.array(config.original_labels, np.int32))
    class_ids = np.where(changed, np.int32(config.new_label), sample.class_ids)
    return replace(sample, class_ids=class_ids)


def labels_without_slots(
    augmentations: Sequence[schema.Augmentation], slots: ClassSlots
) -> Iterator[tuple[str, str]]:
    """Yields path and message for fields that name a class which the model does not have."""
    for path, class_ids in named_labels(augmentations):
        unknown = [class_id for class_id in class_ids if class_id not in slots]
        if unknown:
            yield path, f"there is no class {unknown[0]}: the model has ids {slots}"
