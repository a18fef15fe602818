"""Images that an export is compared on with its checkpoint, and calibrated on."""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from stillbox.errors import UserError
from stillbox.evaluation.scoring import open_evaluation
from stillbox.experiment.resolve import changed
from stillbox.experiment.schema import Experiment
from stillbox.exporting.settings import ExportSettings
from stillbox.inputs.channels import of_kind
from stillbox.inputs.dataset import Dataset, open_dataset
from stillbox.predicting.backend import Pixels
from stillbox.predicting.images import read_image
from stillbox.printing import count_text
from stillbox.records.scenes import draw_images
from stillbox.references import Command, Parameter

COMPARED = 4
"""Images that an export is compared on if none are given."""
_CALIBRATED = 32
# All images are in memory, here and in the process that measures.
_MOST_BYTES = 2**28


def choose_images(
    experiment: Experiment,
    files: Sequence[str | Path],
    settings: ExportSettings,
    say: Callable[[str], None],
) -> Sequence[Pixels]:
    """Returns the images of the files, or else some of the evaluation set that can be used.

    Without any they are drawn scenes, or images of training if they calibrate. `say` is called with
    the choice.

    Raises:
        UserError: a file cannot be read, or there is no image to calibrate on.
    """
    kind = experiment.model.image_kind
    if files:
        return [read_image(file, kind)[0] for file in files]
    calibrates = settings.quantize == "int8" and experiment.train.quantization is None
    use = "compared and calibrated on" if calibrates else "compared on"
    if settings.raw and experiment.train.quantization is None:
        training = calibration_images(experiment, [])
        say(
            f"compared on {count_text(len(training), 'image')} of the training set, which the "
            "export holds to calibrate a compiler on"
        )
        return training
    if chosen := _evaluation_images(experiment, settings):
        say(f"{use} {count_text(len(chosen), 'image')} of the evaluation set")
        return chosen
    why = (
        f"since no image of the evaluation set is usable; {Command('export', images=True)} "
        "takes others"
    )
    if calibrates:
        training = calibration_images(experiment, [])
        say(f"{use} {count_text(len(training), 'image')} of the training set, {why}")
        return training
    say(f"{use} drawn scenes, {why}")
    return [of_kind(image, kind) for image in draw_images(COMPARED)]


def _evaluation_images(experiment: Experiment, settings: ExportSettings) -> list[Pixels]:
    """Returns the first images of the evaluation set that the artefact takes, if there are any."""
    try:
        dataset = open_evaluation(changed(experiment, {"data.bad_records": "drop"}))
    except UserError:  # the records may be on another machine
        return []
    images = (
        loaded.image for loaded in map(dataset.load, range(len(dataset))) if loaded is not None
    )
    resizer = experiment.model.resizer
    taken = (image for image in images if settings.takes((image.shape[0], image.shape[1]), resizer))
    return list(islice(taken, COMPARED))


def calibration_images(experiment: Experiment, given: Sequence[Pixels]) -> Sequence[Pixels]:
    """Returns the given images, or some of training; none for a detector that has its ranges.

    Images of the evaluation set would make the scores of the integers too good.

    Raises:
        UserError: there is no image of training.
    """
    if given or experiment.train.quantization is not None:
        return given[:_CALIBRATED]
    fix = f"give some tens of typical images with {Parameter('images')}"
    try:
        dataset = open_dataset(experiment.data, experiment.data.train, experiment.model)
    except UserError as error:
        problem = "the records of training, to calibrate on, cannot be read"
        raise UserError(problem, fix=fix) from error
    if not (training := spread_images(dataset, _CALIBRATED)):
        raise UserError("the records of training hold no image to calibrate on", fix=fix)
    return training


def spread_images(dataset: Dataset, most: int) -> list[Pixels]:
    """Returns some images from all over a set, without unusable records."""
    records = np.unique(np.linspace(0, len(dataset) - 1, most).astype(int)).tolist()
    images, nbytes = list[Pixels](), 0
    for record in records:
        sample = dataset.load(record)
        if sample is not None and nbytes + sample.image.nbytes <= _MOST_BYTES:
            images.append(sample.image)
            nbytes += sample.image.nbytes
    return images
