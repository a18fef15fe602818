"""Sheets of augmented training images with their boxes.

Alone in its module: other checks of data need no input pipeline and no Matplotlib.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from stillbox.errors import UserError
from stillbox.evaluation.drawing import class_color
from stillbox.evaluation.pictures import Mark, Picture, beside, contact_sheet, draw_marks
from stillbox.experiment.schema import Augmentation
from stillbox.inputs.augment import apply_augmentations
from stillbox.inputs.augment.autoaugment import OPERATIONS, in_bytes, operate
from stillbox.inputs.channels import for_people
from stillbox.inputs.dataset import Dataset
from stillbox.inputs.loader import sample_generator
from stillbox.inputs.sample import Sample
from stillbox.records.source import spread_indices

_BLANK: Picture = np.full((1, 1, 3), 255, np.uint8)
_COLUMNS = 9


def epochs_sheet(
    dataset: Dataset, augmentations: Sequence[Augmentation], *, seed: int, images: int, epochs: int
) -> Picture:
    """Returns a row for each image: as stored, then as in each of the first epochs.

    Resizing comes after augmentation and is left out.

    Args:
        seed: of the experiment; the same random numbers are drawn as in training.
        images: most images, spread evenly over the records.

    Raises:
        UserError: a record is bad and the policy is `fail`, or none is left.
    """

    def variants(record: int, sample: Sample) -> Iterator[tuple[str, Sample]]:
        for epoch in range(epochs):
            rng = sample_generator(seed, epoch, record)
            yield f"epoch {epoch + 1}", apply_augmentations(augmentations, sample, rng, dataset)

    return contact_sheet(_tiles(dataset, images, variants, 1 + epochs), columns=1 + epochs)


def operations_sheet(
    dataset: Dataset, *, seed: int, images: int, level: float, contrast: str
) -> Picture:
    """Returns each image after each of AutoAugment's operations.

    Operations inside boxes change every box here, unlike in a policy.

    Args:
        seed: of signs and places.
        images: most images, spread evenly over the records.
        level: strength of all operations, 0 to 10.
        contrast: `original` or `mean`.

    Raises:
        UserError: as `epochs_sheet`.
    """

    def variants(record: int, sample: Sample) -> Iterator[tuple[str, Sample]]:
        shown = replace(sample, image=for_people(sample.image))
        for name in OPERATIONS:
            rng = sample_generator(seed, 0, record)
            yield name, operate(name, level, in_bytes(shown), rng, contrast=contrast)

    return contact_sheet(_tiles(dataset, images, variants, _COLUMNS), columns=_COLUMNS, cell=300)


def _tiles(
    dataset: Dataset,
    images: int,
    variants: Callable[[int, Sample], Iterator[tuple[str, Sample]]],
    columns: int,
) -> list[Picture]:
    """Returns evenly spread records, each with its captioned variants and beginning a row."""
    loaded = ((record, dataset.load(record)) for record in spread_indices(len(dataset), images))
    tiles: list[Picture] = []
    for record, sample in loaded:
        if sample is not None:
            named = [("as stored", sample), *variants(record, sample)]
            tiles += [_tile(seen, name, dataset.class_names) for name, seen in named]
            tiles += [_BLANK] * (-len(tiles) % columns)
    if not tiles:
        problem = "none of the images that were read can be used"
        raise UserError(problem, where="data.train.paths", fix="`stillbox data check` says why")
    return tiles


def _tile(sample: Sample, caption: str, class_names: Mapping[int, str]) -> Picture:
    height, width = sample.image.shape[:2]
    image = for_people(sample.image)
    marks = [
        Mark(
            box=(ymin * height, xmin * width, ymax * height, xmax * width),
            text=class_names.get(class_id, f"class {class_id}"),
            color=class_color(class_id),
            dashed=weight == 0,
        )
        for (ymin, xmin, ymax, xmax), class_id, weight in zip(
            sample.boxes.tolist(), sample.class_ids.tolist(), sample.weights.tolist(), strict=True
        )
    ]
    return beside([draw_marks(image, marks)], [caption])
