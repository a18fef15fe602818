"""Ground truth of evaluation from a COCO file instead of the records."""

from collections.abc import Sequence
from dataclasses import dataclass

from stillbox.errors import UserError
from stillbox.evaluation.agreement import listing
from stillbox.evaluation.coco_json import from_coco_json
from stillbox.evaluation.results import ImageTruth

_FIX = (
    "give the file that the records were made from, or --set data.evaluation.annotations= to take "
    "the records' own boxes"
)


@dataclass(frozen=True)
class Annotations:
    """A ground-truth file, by image."""

    path: str
    truths: dict[str, ImageTruth]
    """Every image of the file by its id."""
    class_names: dict[int, str]
    """Category id -> name."""

    def refuse_missing(self, image_ids: Sequence[str]) -> None:
        """Checks that the file has these images of the records.

        Raises:
            UserError: the file lacks some.
        """
        missing = [image_id for image_id in image_ids if self._find(image_id) is None]
        if missing:
            raise UserError(
                f"the file has no image with the id {listing(missing, 3)}, which the evaluation "
                "records have",
                where=self.path,
                fix=_FIX,
            )

    def truth_of(self, image_id: str, size: tuple[int, int]) -> ImageTruth:
        """Returns the ground truth of an image that the file has; `size` is (height, width).

        Raises:
            UserError: the image has another size in the file.
        """
        truth = self._find(image_id)
        assert truth is not None
        if size != (truth.height, truth.width):
            raise UserError(
                f"image {image_id} is {truth.height}x{truth.width} (height x width) in the file "
                f"and {size[0]}x{size[1]} in the records, so that its boxes do not fit",
                where=self.path,
                fix=_FIX,
            )
        return truth

    def _find(self, image_id: str) -> ImageTruth | None:
        # Some writers pad the id with zeros, as in COCO's file names.
        return self.truths.get(image_id) or self.truths.get(image_id.lstrip("0"))


def read_annotations(path: str) -> Annotations:
    """Reads a ground-truth file.

    Raises:
        UserError: there is no such file, or it is no COCO ground truth.
    """
    truths, names = from_coco_json(path)
    return Annotations(path, {truth.image_id: truth for truth in truths}, names)
