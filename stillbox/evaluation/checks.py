"""Checks that all metrics share."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from stillbox.errors import UserError
from stillbox.evaluation.results import ImageResult, ImageTruth
from stillbox.printing import count_text


def number_images(
    truths: Sequence[ImageTruth], results: Sequence[ImageResult], class_names: Mapping[int, str]
) -> dict[str, int]:
    """Returns a number, from 1, for every image id, and refuses what cannot be scored.

    Of two detections with the same score, the one in the image with the lower number comes first,
    which changes AP in the fifth decimal. The numbers therefore are in the order of the ids, as in
    pycocotools, and not in the order in which images arrive.

    Raises:
        UserError: no image, an image twice, a result without ground truth, a box or score that is
            not finite, or ground truth of a class that `class_names` lacks.
    """
    if not truths:
        raise UserError(
            "there is no image to score", fix="give an evaluation set with at least one record"
        )
    _refuse_repeats([truth.image_id for truth in truths], "ground truth")
    _refuse_repeats([result.image_id for result in results], "result")
    ordered = sorted((truth.image_id for truth in truths), key=_id_order)
    numbers = {image_id: number for number, image_id in enumerate(ordered, start=1)}
    foreign = [r.image_id for r in results if r.image_id not in numbers]
    if foreign:
        raise UserError(
            f"{count_text(len(foreign), 'result')} of images without ground truth, {foreign[0]!r} "
            "among them",
            fix="score the results against the set that they were made from",
        )
    _refuse_unknown_classes(truths, class_names)
    _refuse_infinite_results(results)
    return numbers


def class_keys(class_names: Mapping[int, str]) -> dict[int, str]:
    """Returns a unique name by label map id; ids ascend."""
    shared = Counter(class_names.values())
    return {
        class_id: name if shared[name] == 1 else f"{name} (id {class_id})"
        for class_id, name in sorted(class_names.items())
    }


def _refuse_unknown_classes(truths: Sequence[ImageTruth], class_names: Mapping[int, str]) -> None:
    for truth in truths:
        for class_id in truth.class_ids.tolist():
            if class_id not in class_names:
                raise UserError(
                    f"the label map has no class with id {class_id}",
                    where=f"ground truth of image {truth.image_id!r}",
                    fix="use the label map that the records were made with",
                )


def _refuse_infinite_results(results: Sequence[ImageResult]) -> None:
    for result in results:
        if not np.isfinite(result.scores).all() or not np.isfinite(result.boxes).all():
            raise UserError(
                "a detection has a box or score that is not a finite number",
                where=f"results of image {result.image_id!r}",
                fix="look at the training log: the weights themselves are probably not finite",
            )


def _id_order(image_id: str) -> tuple[int, int, str]:
    return (0, int(image_id), "") if image_id.isdecimal() else (1, 0, image_id)


def _refuse_repeats(image_ids: list[str], what: str) -> None:
    repeated = [name for name, count in Counter(image_ids).items() if count > 1]
    if repeated:
        raise UserError(
            f"{len(repeated)} image ids have more than one {what}, {repeated[0]!r} among them",
            fix="give every image an id of its own (`image/source_id` in a record)",
        )
