"""The predictor: from images to detections, in batches of a fixed size."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import overload

import numpy as np

from stillbox.evaluation.finite import not_finite
from stillbox.evaluation.step_observer import NO_OBSERVER, StepObserver
from stillbox.predicting.backend import Backend, Found, Pixels, Prepared
from stillbox.predicting.detections import Detections
from stillbox.predicting.images import ImageLike, is_one_image, read_image


class Predictor:
    """Detects objects in images. `stillbox.load` makes one.

    It can be pickled for the workers of Ray Data, Beam or Spark, which each compile a program.

    Args:
        backend: runs the model.
        batch_size: images in a call of the backend. The last batch is padded with copies of its
            last image, so that one program serves all batches.
    """

    def __init__(self, backend: Backend, *, batch_size: int = 1) -> None:
        self.backend = backend
        self.batch_size = _nearest_size(batch_size, backend.batch_sizes)

    @property
    def class_names(self) -> Mapping[int, str]:
        """Class names by label map id."""
        return self.backend.class_names

    def __repr__(self) -> str:
        return f"<Predictor of {len(self.class_names)} classes from {self.backend.source}>"

    @overload
    def predict(  # type: ignore[overload-overlap]  # a path is a sequence of texts, too
        self, images: ImageLike, *, min_score: float = 0.0
    ) -> Detections: ...

    @overload
    def predict(
        self, images: Sequence[ImageLike], *, min_score: float = 0.0
    ) -> list[Detections]: ...

    def predict(
        self, images: ImageLike | Sequence[ImageLike], *, min_score: float = 0.0
    ) -> Detections | list[Detections]:
        """Detects in one image or in many.

        Args:
            images: one image or a sequence: paths, bytes of image files, uint8 arrays `[H, W, 3]`
                (RGB), an array `[B, H, W, 3]`, or PIL images. The EXIF tag of a file turns it
                upright.
            min_score: least score of a returned detection.

        Returns:
            The detections of the image; a list of them for a sequence.

        Raises:
            UserError: an image cannot be read.
        """
        if is_one_image(images):
            return next(self.stream([images], min_score=min_score))  # type: ignore[list-item]
        return list(self.stream(images, min_score=min_score))  # type: ignore[arg-type]

    def stream(
        self,
        images: Iterable[ImageLike],
        *,
        min_score: float = 0.0,
        observer: StepObserver = NO_OBSERVER,
    ) -> Iterator[Detections]:
        """Yields the detections of each image in order; one batch of images is in memory.

        Args:
            images: see `predict`.
            min_score: least score of a yielded detection.
            observer: observes the batches.
        """
        rest = iter(images)
        batches = iter(lambda: list(islice(rest, self.batch_size)), [])
        for batch in observer.mark(batches):
            read = [read_image(image) for image in batch]
            prepared = [
                self.backend.prepare(pixels, where=source or None) for pixels, source in read
            ]
            found = self.run(prepared)
            observer.dispatched([])
            for (pixels, source), one in zip(read, found, strict=True):
                yield self.detections(pixels, one, source).at_least(min_score)

    def run(self, prepared: Sequence[Prepared]) -> list[Found]:
        """Detects in at most `batch_size` prepared images, padded to `batch_size`."""
        filled = [*prepared, *[prepared[-1]] * (self.batch_size - len(prepared))]
        return self.backend.run(filled)[: len(prepared)]

    def warm_up(self) -> None:
        """Compiles the program by running it once on a blank image."""
        self.run([self.backend.prepare(np.zeros((64, 64, 3), np.uint8))])

    def detections(self, image: Pixels, found: Found, source: str = "") -> Detections:
        """Returns a backend's result with class names, image and file, clipped to the image.

        Raises:
            UserError: the model's predictions are not finite.
        """
        if not found.finite:
            raise not_finite(source or "image")
        boxes = np.clip(found.boxes, 0, np.tile(image.shape[:2], 2))
        seen = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
        return Detections(
            boxes=boxes[seen],
            scores=found.scores[seen],
            class_ids=found.class_ids[seen],
            class_names=self.class_names,
            image=image,
            source=source,
        )


def _nearest_size(wanted: int, sizes: Sequence[int] | None) -> int:
    """Returns the least size of at least `wanted`, or the greatest."""
    if sizes is None:
        return wanted
    return next((size for size in sorted(sizes) if size >= wanted), max(sizes))
