"""Draws ground truth beside predictions on some images, and cuts out the worst mistakes."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from PIL import ImageColor

from stillbox.evaluation.analysis import KINDS, MISSED, Analysis, Kind
from stillbox.evaluation.drawing import class_color, clipped
from stillbox.evaluation.evaluator import EvaluationResult
from stillbox.evaluation.ground_truth import TruthSource
from stillbox.evaluation.pictures import Mark, Picture, result_marks, save_picture, truth_marks
from stillbox.evaluation.report import Cutout, ReportPicture
from stillbox.evaluation.results import FloatArray, ImageResult, ImageTruth
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

    The choice does not depend on the scores: every evaluation shows the same images. `count`
    replaces the number of images of the settings.
    """
    images, most_boxes = len(evaluation.records), settings.max_boxes_drawn
    most = min(settings.num_visualizations if count is None else count, images)
    for place in np.unique(np.linspace(0, images - 1, most).round().astype(int)):
        truth, result = evaluation.truths[place], evaluation.results[place]
        example = source.example(evaluation.records[place])
        if example is None:
            continue
        least = evaluation.shown_from(settings.min_score)
        shown = int((result.scores >= least).sum())
        best = f", the best {most_boxes} of them drawn" if shown > most_boxes else ""
        yield ReportPicture(
            image=decode_image(example.encoded),
            panels=draw_panels(truth, result, class_names, settings, least),
            name=truth.image_id,
            about=f"{count_text(len(truth.boxes), 'box')} in the ground truth, "
            f"{count_text(shown, 'detection')} with a score of at least {least:.3g}{best}",
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
    predicted = result_marks(
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
        (f"prediction: {count_text(len(predicted), 'box')}", [*among, *predicted]),
    ]


def export_pictures(
    pictures: Iterable[ReportPicture], settings: Evaluation, directory: Path
) -> None:
    """Writes the pictures into `settings.pictures_directory` below a folder, if set.

    Files are named as in the Object Detection API: `export-image-0.png`, with the image's id before
    the ending if requested. Files of the previous evaluation are overwritten.

    Raises:
        UserError: the folder cannot be written to, or leads out of the other.
    """
    if not settings.pictures_directory:
        return
    folder = directory / pictures_folder(settings)
    for number, shown in enumerate(pictures):
        # An id may contain characters that file systems do not allow.
        ending = re.sub(r"[^\w.-]+", "_", shown.name) if settings.name_pictures_by_image else ""
        name = f"export-image-{number}{'-' if ending else ''}{ending}.png"
        save_picture(shown.picture, folder / name, below=directory)


def pictures_folder(settings: Evaluation) -> str:
    """Returns the path of `settings.pictures_directory` below the folder of the results."""
    given = Path(settings.pictures_directory)
    return given.relative_to(given.anchor).as_posix()


_OTHER_COLOR = (255, 255, 255)
# The margin around the marked boxes: a share of their longer side, and the least pixels.
_MARGIN, _LEAST_MARGIN = 0.5, 24
# The width of a name in a caption, in pixels.
_CAPTION_WIDTH = 260


def cut_out(
    evaluation: EvaluationResult, source: TruthSource, class_names: Mapping[int, str], count: int
) -> Iterator[Cutout]:
    """Yields at most `count` mistakes of each kind: the highest scores, the largest missed objects.

    Only mistakes above the best threshold are shown.
    """
    analysis = evaluation.analysis
    mistakes, shown = analysis.mistakes, analysis.shown
    for index, kind in enumerate(KINDS):
        if index == MISSED:
            order = np.argsort(-shown.truth_area[mistakes.missed], kind="stable")
            chosen = [(-1, int(truth)) for truth in mistakes.missed[order][:count]]
        else:
            # Best first already.
            places = np.flatnonzero(mistakes.kind == index)[:count]
            chosen = [(int(place), int(mistakes.truth[place])) for place in places]
        for detection, truth in chosen:
            place = int(shown.truth_image[truth] if detection < 0 else shown.image[detection])
            example = source.example(evaluation.records[place])
            if example is not None:
                image = decode_image(example.encoded)
                yield _cutout(analysis, kind, image, place, detection, truth, class_names)


def _cutout(
    analysis: Analysis,
    kind: Kind,
    image: Picture,
    place: int,
    detection: int,
    truth: int,
    class_names: Mapping[int, str],
) -> Cutout:
    shown = analysis.shown
    boxes = [shown.boxes[detection]] if detection >= 0 else []
    boxes += [shown.truth_boxes[truth]] if truth >= 0 else []
    window = window_around(np.array(boxes), image.shape[:2])
    top, left, bottom, right = window
    marks = [
        Mark(
            box=within(shown.truth_boxes[other], window),
            text=class_names[int(shown.truth_class[other])],
            color=class_color(int(shown.truth_class[other])) if other == truth else _OTHER_COLOR,
            dashed=True,
        )
        for other in _inside(analysis, place, window)
    ]
    short = {each: clipped(name, 13, _CAPTION_WIDTH) for each, name in class_names.items()}
    words = [f"image {analysis.image_ids[place]}"]
    if truth >= 0:
        words.insert(0, f"object: {short[int(shown.truth_class[truth])]}")
    if detection >= 0:
        class_id, score = int(shown.class_ids[detection]), shown.scores[detection]
        box = within(shown.boxes[detection], window)
        name = f"{class_names[class_id]} {score:.2f}"
        marks.append(Mark(box=box, text=name, color=class_color(class_id)))
        words.insert(0, f"{short[class_id]} {score:.2f}")
    part = np.ascontiguousarray(image[top:bottom, left:right])
    return Cutout(kind=kind, image=part, marks=marks, about=", ".join(words))


def _inside(analysis: Analysis, place: int, window: tuple[int, int, int, int]) -> list[int]:
    shown = analysis.shown
    low = np.maximum(shown.truth_boxes[:, :2], window[:2])
    high = np.minimum(shown.truth_boxes[:, 2:], window[2:])
    inside = (shown.truth_image == place) & (high > low).all(axis=1)
    return np.flatnonzero(inside).tolist()


def window_around(boxes: FloatArray, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Returns ymin, xmin, ymax, xmax around boxes, as square as the image allows."""
    low, high = boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)
    longest = float((high - low).max())
    reach = longest / 2 + max(_MARGIN * longest, _LEAST_MARGIN)
    middle, limit = (low + high) / 2, np.array(size)
    start = np.clip(np.floor(middle - reach), 0, np.maximum(limit - 1, 0))
    end = np.clip(np.ceil(middle + reach), start + 1, limit)
    ymin, xmin, ymax, xmax = np.concatenate([start, end]).astype(int).tolist()
    return ymin, xmin, ymax, xmax


def within(box: FloatArray, window: tuple[int, int, int, int]) -> tuple[float, ...]:
    """Returns a box in pixels of a window."""
    return tuple((box - np.tile(window[:2], 2)).tolist())
