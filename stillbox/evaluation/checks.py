"""What every metric refuses: images that would count twice or not at all, and unusable numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from stillbox.errors import UserError
from stillbox.evaluation.results import ImageResult, ImageTruth


def number_images(truths: Sequence[ImageTruth], results: Sequence[ImageResult]) -> dict[str, int]:
    """Gives every image id a number from 1, and refuses what would be counted twice or not at all.

    Of two detections with the same score, the one in the image with the lower number comes first,
    which moves AP in the fifth place. The numbers therefore follow the ids, as in pycocotools, and
    not the order in which the images happen to arrive.

    Raises:
        UserError: no image, an image twice, or a result for an image without ground truth.
    """
    if not truths:
        raise UserError(
            "there is no image to score", fix="give an evaluation set with at least one record"
        )
    _refuse_repeats([truth.image_id for truth in truths], "ground truth")
    _refuse_repeats([result.image_id for result in results], "result")
    ordered = sorted((truth.image_id for truth in truths), key=_id_order)
    numbers = {image_id: number for number, image_id in enumerate(ordered, start=1)}
    strangers = [r.image_id for r in results if r.image_id not in numbers]
    if strangers:
        raise UserError(
            f"{len(strangers)} results belong to images without ground truth, "
            f"{strangers[0]!r} among them",
            fix="score the results against the set that they were made from",
        )
    return numbers


def refuse_unknown_classes(truths: Sequence[ImageTruth], class_names: Mapping[int, str]) -> None:
    """Refuses ground truth of a class that the label map lacks.

    Raises:
        UserError: there is some; names the first image.
    """
    for truth in truths:
        for class_id in truth.class_ids.tolist():
            if class_id not in class_names:
                raise UserError(
                    f"the label map has no class with id {class_id}",
                    where=f"ground truth of image {truth.image_id!r}",
                    fix="use the label map that the records were made with",
                )


def refuse_infinite_results(results: Sequence[ImageResult]) -> None:
    """Refuses detections that cannot be put in order.

    Raises:
        UserError: a box or score is not a finite number.
    """
    for result in results:
        if not np.isfinite(result.scores).all() or not np.isfinite(result.boxes).all():
            raise UserError(
                "a detection has a box or score that is not a finite number",
                where=f"results of image {result.image_id!r}",
                fix="look at the training log: the weights themselves are probably not finite",
            )


def class_keys(class_names: Mapping[int, str]) -> dict[int, str]:
    """Returns a name by label map id that no other class has; ids rise."""
    shared = Counter(class_names.values())
    return {
        class_id: name if shared[name] == 1 else f"{name} (id {class_id})"
        for class_id, name in sorted(class_names.items())
    }


def _id_order(image_id: str) -> tuple[int, int, str]:
    return (0, int(image_id), "") if image_id.isdecimal() else (1, 0, image_id)


def _refuse_repeats(image_ids: list[str], what: str) -> None:
    repeated = [name for name, count in Counter(image_ids).items() if count > 1]
    if repeated:
        raise UserError(
            f"{len(repeated)} image ids have more than one {what}, {repeated[0]!r} among them",
            fix="give every image an id of its own (`image/source_id` in a record)",
        )
