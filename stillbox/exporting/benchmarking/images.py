"""The images that a benchmark measures and calibrates on."""

from collections.abc import Sequence

import numpy as np

from stillbox.errors import UserError
from stillbox.experiment.schema import Experiment
from stillbox.inputs.dataset import Dataset, open_dataset
from stillbox.predicting.backend import Pixels
from stillbox.records.scenes import draw_scene

_MEASURED, _CALIBRATED = 16, 32
# All are in memory, here and in the process that measures.
_MOST_BYTES = 2**28


def measured_images(dataset: Dataset | None) -> Sequence[Pixels]:
    """Returns images of the evaluation set, or drawn scenes if there is none, `[h, w, 3]` each."""
    if dataset is not None and (found := _spread(dataset, _MEASURED)):
        return found
    return [draw_scene(np.random.default_rng(seed)).image for seed in range(_MEASURED)]


def calibration_images(experiment: Experiment, given: Sequence[Pixels]) -> Sequence[Pixels]:
    """Returns the given images, or some of training; none for a detector that has its ranges.

    Those of the evaluation set would flatter the integers.

    Raises:
        UserError: there are none.
    """
    if given or experiment.train.quantization is not None:
        return given[:_CALIBRATED]
    fix = "give some tens of typical images with --images"
    try:
        dataset = open_dataset(experiment.data, experiment.data.train, experiment.model)
    except UserError as error:
        what = "the records of training, to calibrate on, cannot be read"
        raise UserError(what, fix=fix) from error
    if not (found := _spread(dataset, _CALIBRATED)):
        raise UserError("the records of training hold no image to calibrate on", fix=fix)
    return found


def _spread(dataset: Dataset, most: int) -> list[Pixels]:
    """Returns some images from all over a set, without unusable records."""
    records = np.unique(np.linspace(0, len(dataset) - 1, most).astype(int)).tolist()
    images, nbytes = list[Pixels](), 0
    for record in records:
        sample = dataset.load(record)
        if sample is not None and nbytes + sample.image.nbytes <= _MOST_BYTES:
            images.append(sample.image)
            nbytes += sample.image.nbytes
    return images
