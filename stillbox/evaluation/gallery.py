"""Chooses images of an evaluation and draws ground truth beside prediction."""

from collections.abc import Iterator, Mapping

import numpy as np

from stillbox.evaluation.evaluator import EvaluationResult
from stillbox.evaluation.ground_truth import TruthSource
from stillbox.evaluation.pictures import count_boxes, side_by_side
from stillbox.evaluation.report import ReportPicture
from stillbox.inputs.decode import decode_image


def draw_gallery(
    evaluation: EvaluationResult,
    source: TruthSource,
    class_names: Mapping[int, str],
    *,
    count: int = 10,
    min_score: float = 0.5,
    max_boxes: int = 20,
) -> Iterator[ReportPicture]:
    """Yields pictures of `count` images, spread evenly over the evaluation set.

    The choice does not look at the scores, so that what is shown is what there is, and the same
    images are shown after every evaluation.

    Args:
        evaluation: truths and results.
        source: where the images are.
        class_names: label map id -> name.
        count: pictures, fewer where there are fewer images.
        min_score: least score of a detection that is drawn.
        max_boxes: most detections that are drawn in one image.
    """
    images = len(evaluation.records)
    for place in np.unique(np.linspace(0, images - 1, min(count, images)).round().astype(int)):
        truth, result = evaluation.truths[place], evaluation.results[place]
        example = source.example(evaluation.records[place])
        if example is None:
            continue
        yield ReportPicture(
            picture=side_by_side(
                decode_image(example.encoded),
                truth,
                result,
                class_names,
                min_score=min_score,
                max_boxes=max_boxes,
            ),
            name=truth.image_id,
            about=f"{count_boxes(len(truth.boxes))} in the ground truth, "
            f"{len(result.at_least(min_score, max_boxes).boxes)} found with a score of at least "
            f"{min_score:g}",
        )
