"""An annotated image in a foreign format, before its file has been opened."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError
from stillbox.printing import file_name_text, printable_line
from stillbox.records.example import Example, no_flags, no_numbers
from stillbox.records.image_files import MAX_IMAGE_BYTES, PreparedImage
from stillbox.records.problems import ProblemLog
from stillbox.untrusted import read_untrusted

LONGEST_SIDE = 2**31
"""An annotation that claims as many pixels or more has no usable size."""


@dataclass(frozen=True, kw_only=True)
class AnnotatedImage:
    """The annotation of one image. N is the number of its boxes."""

    path: Path
    """The image file; it need not exist."""
    where: str
    """Annotation file and image, for messages; what cannot be printed is spelt out."""
    image_id: str
    """Becomes `image/source_id`; bytes that are no text become `%E9`, and so in `filename`."""
    filename: str
    """Becomes `image/filename`."""
    height: int
    """Rows that the annotation claims, 0 if it does not."""
    width: int
    """Columns that the annotation claims, 0 if it does not."""
    pixel_boxes: NDArray[np.float64]
    """`[N, 4]`, ymin, xmin, ymax, xmax in pixels of the claimed size."""
    relative: bool = False
    """Boxes are in fractions of the image's sides instead, upright if no size is claimed."""
    class_ids: NDArray[np.int32]
    """`[N]`, label map ids, 0 where the class is unknown."""
    unknown: dict[int, str] = field(default_factory=dict)
    """The annotation's name of an unknown class, by box."""
    is_crowd: NDArray[np.bool_] = field(default_factory=no_flags)
    """`[N]`; this and the following columns are empty if the format does not have them."""
    difficult: NDArray[np.bool_] = field(default_factory=no_flags)
    """`[N]`."""
    truncated: NDArray[np.bool_] = field(default_factory=no_flags)
    """`[N]`."""
    area: NDArray[np.float32] = field(default_factory=no_numbers)
    """`[N]`, segment area in square pixels of the claimed size, NaN if unknown."""
    stored: Callable[[], bytes] | None = None
    """Returns the image file of a format that keeps images in files of its own."""

    def __post_init__(self) -> None:
        for name in ("image_id", "filename"):
            object.__setattr__(self, name, file_name_text(getattr(self, name)))
        object.__setattr__(self, "where", printable_line(self.where))

    def content(self) -> bytes:
        """Returns the bytes of the image file.

        Raises:
            OSError: it cannot be opened.
        """
        if self.stored is not None:
            return self.stored()
        if not self.path.exists():
            raise FileNotFoundError(self.path)
        try:
            return read_untrusted(self.path, most=MAX_IMAGE_BYTES)
        except UserError as error:
            raise OSError(error.what) from error


def to_example(item: AnnotatedImage, image: PreparedImage, problems: ProblemLog) -> Example:
    """Returns the example of an annotated image; its boxes have not been checked.

    If annotation and file disagree about the size, boxes are divided by the claimed size if they
    fit into it (the file was resized after it was annotated), otherwise by the real one if they fit
    into that.
    """
    real = (image.height, image.width)
    claimed = (item.height, item.width)
    frame = (1, 1) if item.relative else real
    if claimed != real and not item.relative:
        frame, outcome = _frame(item.pixel_boxes, claimed, real)
        detail = f"{item.width} x {item.height}, image {image.width} x {image.height}"
        reason = "annotation without a size" if min(claimed) <= 0 else "size is not the image's"
        problems.add(reason, item.where, detail, action=outcome)
    # In float64 and then once to float32, so that the value is the nearest to the true quotient.
    # A number beyond float32 becomes infinite, which is no sound box.
    scale = 1 if item.relative else (real[0] * real[1]) / (frame[0] * frame[1])
    with np.errstate(over="ignore"):
        boxes = (item.pixel_boxes / np.array([*frame, *frame], np.float64)).astype(np.float32)
        area = (item.area * scale).astype(np.float32)
    return Example(
        image_id=item.image_id,
        encoded=image.encoded,
        filename=item.filename,
        height=image.height,
        width=image.width,
        boxes=boxes,
        class_ids=item.class_ids,
        is_crowd=item.is_crowd,
        difficult=item.difficult,
        truncated=item.truncated,
        area=area,
    )


def _frame(
    boxes: NDArray[np.float64], claimed: tuple[int, int], real: tuple[int, int]
) -> tuple[tuple[int, int], str]:
    """Returns the size by which pixel boxes are divided, and its description."""
    if min(claimed) <= 0:
        return real, "real size used"
    reach = np.nan_to_num(boxes[:, 2:]).max(axis=0, initial=0)
    if np.all(reach <= np.array(claimed) + 1) and claimed[::-1] != real:
        return claimed, "boxes divided by the annotation's size"
    if np.all(reach <= np.array(real) + 1):
        return real, "boxes divided by the real size"
    return claimed, "boxes divided by the annotation's size"
