"""Draws ground truth beside prediction on some images of an evaluation."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from PIL import ImageColor

from stillbox.evaluation.evaluator import EvaluationResult
from stillbox.evaluation.ground_truth import TruthSource
from stillbox.evaluation.pictures import (
    Mark,
    result_marks,
    save_picture,
    truth_marks,
)
from stillbox.evaluation.report import ReportPicture
from stillbox.evaluation.results import ImageResult, ImageTruth
from stillbox.experiment.schema import Evaluation
from stillbox.inputs.decode import decode_image
from stillbox.printing import count_text


def draw_gallery(
    evaluation: EvaluationResult,
    source: TruthSource,
    class_names: Mapping[int, str],
    settings: Evaluation,
    *,
    count: int | None = None,
) -> Iterator[ReportPicture]:
    """Yields pictures of images that are spread evenly over the evaluation set.

    The choice does not depend on the scores: every evaluation shows the same images.

    `count` is the number of images in place of that of the settings.
    """
    images = len(evaluation.records)
    most = min(settings.num_visualizations if count is None else count, images)
    for place in np.unique(np.linspace(0, images - 1, most).round().astype(int)):
        truth, result = evaluation.truths[place], evaluation.results[place]
        example = source.example(evaluation.records[place])
        if example is None:
            continue
        least = evaluation.shown_from(settings.min_score)
        shown = len(result.at_least(least, settings.max_boxes_drawn).boxes)
        yield ReportPicture(
            image=decode_image(example.encoded),
            panels=draw_panels(truth, result, class_names, settings, least),
            name=truth.image_id,
            about=f"{count_text(len(truth.boxes), 'box')} in the ground truth, "
            f"{shown} found with a score of at least {least:.3g}",
        )


def draw_panels(
    truth: ImageTruth,
    result: ImageResult,
    class_names: Mapping[int, str],
    settings: Evaluation,
    min_score: float,
) -> list[tuple[str, list[Mark]]]:
    """Returns caption and marks of the ground truth and of the prediction."""
    expected = truth_marks(truth, class_names, show_labels=settings.show_labels)
    found = result_marks(
        result,
        class_names,
        min_score=min_score,
        max_boxes=settings.max_boxes_drawn,
        show_labels=settings.show_labels,
        show_scores=settings.show_scores,
    )
    among = []
    if settings.draw_truth_on_predictions:
        red, green, blue, *_ = ImageColor.getrgb(settings.truth_color)
        among = truth_marks(truth, class_names, show_labels=False, color=(red, green, blue))
    return [
        (f"ground truth: {count_text(len(expected), 'box')}", expected),
        (f"prediction: {count_text(len(found), 'box')}", [*among, *found]),
    ]


def export_pictures(
    pictures: Iterable[ReportPicture], settings: Evaluation, directory: Path
) -> None:
    """Writes the pictures into `settings.pictures_directory` below a folder, if set.

    Files are named as in the Object Detection API: `export-image-0.png`, with the image's id before
    the ending if requested. Those of the previous evaluation are overwritten.

    Raises:
        UserError: the folder cannot be written to, or leads out of the other.
    """
    if not settings.pictures_directory:
        return
    given = Path(settings.pictures_directory)
    for number, shown in enumerate(pictures):
        # An id may contain characters that file systems do not allow.
        ending = re.sub(r"[^\w.-]+", "_", shown.name) if settings.name_pictures_by_image else ""
        name = f"export-image-{number}{'-' if ending else ''}{ending}.png"
        path = directory / given.relative_to(given.anchor) / name
        save_picture(shown.picture, path, below=directory)
