"""The predictor: from images to detections, in batches of a fixed size."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from os import PathLike
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar, Unpack, overload

import numpy as np
from PIL import Image

from stillbox.errors import UserError
from stillbox.evaluation.results import RawDetections, not_finite
from stillbox.evaluation.step_observer import NO_OBSERVER, StepObserver
from stillbox.evaluation.tiling import Tiling
from stillbox.inputs.channels import for_people
from stillbox.predicting.backend import Backend, Pixels, Prepared
from stillbox.predicting.detections import Detections
from stillbox.predicting.images import ImageLike, as_sequence, each_image, names_many, read_image
from stillbox.predicting.selection import IOU, MIN_SCORE, USUAL, ClassesPerObject, Selection
from stillbox.printing import count_text
from stillbox.records.parallel import ordered_map
from stillbox.records.tile_grid import TileWindow

Source = TypeVar("Source")


class _Selection(TypedDict, total=False):
    """The keywords of `Predictor.predict`."""

    min_score: float
    classes_per_object: ClassesPerObject
    iou: float
    classes: Sequence[str]


class Predictor:
    """Detects objects in images. `stillbox.load` makes one.

    It can be pickled for the workers of Ray Data or Spark, which each compile a program.

    Args:
        backend: runs the model.
        batch_size: images, or tiles of images, in a call of the backend. The last batch is padded
            with copies of its last image, so that one program serves all batches.
        tiling: the tiles of large images to detect in; None: the model's own, if it has any;
            False: whole images.

    Raises:
        UserError: the batch size is below 1.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        batch_size: int = 1,
        tiling: Tiling | Literal[False] | None = None,
    ) -> None:
        if batch_size < 1:
            raise UserError("a batch holds at least one image", where="batch_size", fix="give 1")
        self.backend = backend
        self.batch_size = _nearest_size(batch_size, backend.batch_sizes)
        self.tiling = backend.tiling if tiling is None else tiling or None

    @property
    def class_names(self) -> Mapping[int, str]:
        """Class names by label map id."""
        return self.backend.class_names

    def __repr__(self) -> str:
        classes = count_text(len(self.class_names), "class")
        return f"<Predictor of {classes} from {self.backend.source}>"

    @overload
    def predict(
        self, images: bytes | Image.Image | np.ndarray, **selection: Unpack[_Selection]
    ) -> Detections: ...

    # The result is Any: a path is one image, a folder or pattern many.
    @overload
    def predict(self, images: str | PathLike[str], **selection: Unpack[_Selection]) -> Any: ...  # noqa: ANN401

    @overload
    def predict(
        self, images: Sequence[ImageLike], **selection: Unpack[_Selection]
    ) -> list[Detections]: ...

    def predict(
        self,
        images: ImageLike | Sequence[ImageLike],
        *,
        min_score: float = MIN_SCORE,
        classes_per_object: ClassesPerObject = "one",
        iou: float = IOU,
        classes: Sequence[str] = (),
    ) -> Detections | list[Detections]:
        """Detects in one image or in many.

        Args:
            images: one image or a sequence: paths, bytes of image files, uint8 arrays `[H, W, 3]`
                (RGB), an array `[B, H, W, 3]`, or PIL images; a folder, or a pattern such as
                `photos/*.jpg`, is the sequence of its images. The EXIF tag of a file turns it
                upright.
            min_score: least score of a returned detection.
            classes_per_object: see `Selection`, as for the following.
            iou: boxes with a greater overlap are one object.
            classes: names of the only classes to return; empty: all.

        Returns:
            The detections of the image; a list of them for a sequence, a folder or a pattern.

        Raises:
            UserError: an image cannot be read, a value is not in 0..1, a class is not the model's,
                or the model's predictions are not finite.
        """
        sequence = as_sequence(images)
        stream = self.stream(
            sequence,
            min_score=min_score,
            classes_per_object=classes_per_object,
            iou=iou,
            classes=classes,
        )
        is_single = sequence is not images and not names_many(images)
        return next(stream) if is_single else list(stream)

    def stream(
        self,
        images: Iterable[ImageLike],
        *,
        min_score: float = MIN_SCORE,
        classes_per_object: ClassesPerObject = "one",
        iou: float = IOU,
        classes: Sequence[str] = (),
        observer: StepObserver = NO_OBSERVER,
    ) -> Iterator[Detections]:
        """Yields the detections of each image in order; one batch of images is in memory.

        The arguments are as in `predict`, with an observer of the batches. `min_score` is also
        applied to tiles, before their detections are merged.

        Raises:
            UserError: see `predict`.
        """
        selection = Selection(
            min_score=min_score, classes_per_object=classes_per_object, iou=iou, classes=classes
        )
        return self.detect(each_image(images), self.read, selection, observer=observer)

    def detect(
        self,
        images: Iterable[Source],
        read: Callable[[Source], tuple[Pixels, str]],
        selection: Selection = USUAL,
        *,
        observer: StepObserver = NO_OBSERVER,
        on_bad: Callable[[Source, UserError | OSError], None] | None = None,
        workers: int = 0,
    ) -> Iterator[Detections]:
        """Like `stream`, for images of any kind.

        Args:
            read: returns pixels and file name of an image.
            selection: the detections to yield.
            observer: see `stream`.
            on_bad: called with each image that cannot be read, and the reason; the others are
                yielded. None: the reason is raised.
            workers: threads that read images, some ahead of their batch; 0: none is read ahead.

        Raises:
            UserError: see `predict`.
        """
        selection.check_classes(self.class_names.values())
        return self._stream(self._opened(images, read, on_bad, workers), selection, observer)

    def _stream(
        self, images: Iterable["_Opened"], selection: Selection, observer: StepObserver
    ) -> Iterator[Detections]:
        views = ((image, prepared) for image in images for prepared in image.prepared)
        batches = iter(lambda: list(islice(views, self.batch_size)), [])
        for batch in observer.mark(batches):
            results = self.run([prepared for _, prepared in batch])
            observer.dispatched([])
            for (image, _), detections in zip(batch, results, strict=True):
                image.detections.append(detections)
                if len(image.detections) == len(image.windows):
                    yield self._merged(image, selection)

    def _opened(
        self,
        images: Iterable[Source],
        read: Callable[[Source], tuple[Pixels, str]],
        on_bad: Callable[[Source, UserError | OSError], None] | None,
        workers: int,
    ) -> Iterator["_Opened"]:
        def opened(image: Source) -> tuple[Source, _Opened | UserError | OSError]:
            try:
                return image, self._open(*read(image))
            except (UserError, OSError) as error:
                return image, error

        pairs = ordered_map(opened, images, workers) if workers else map(opened, images)
        for image, opening in pairs:
            if isinstance(opening, _Opened):
                yield opening
            elif on_bad is None:
                raise opening
            else:
                on_bad(image, opening)

    def windows(self, height: int, width: int) -> list[TileWindow]:
        """Returns the windows of an image that are detected in: its tiles, or the whole image."""
        if self.tiling is None:
            return [(0, 0, height, width)]
        return self.tiling.windows(height, width)

    def read(self, image: ImageLike) -> tuple[Pixels, str]:
        """Returns what `read_image` does, as the kind of images that the model takes."""
        return read_image(image, self.backend.image_kind)

    def prepare(
        self, pixels: Pixels, windows: Sequence[TileWindow], where: str | None = None
    ) -> Iterator[Prepared]:
        """Prepares windows of an image for `run`, one after the other."""
        for ymin, xmin, ymax, xmax in windows:
            part = np.ascontiguousarray(pixels[ymin:ymax, xmin:xmax])
            yield self.backend.prepare(part, where=where)

    def merged(
        self,
        detections: Sequence[RawDetections],
        windows: Sequence[TileWindow],
        min_score: float = 0.0,
    ) -> RawDetections:
        """Merges the detections of at least a score in each window to the whole image's."""
        if self.tiling is None:
            return detections[0]
        candidates = [view.pick(view.scores >= min_score) for view in detections]
        return self.tiling.merged(candidates, windows)

    def _open(self, pixels: Pixels, source: str) -> "_Opened":
        windows = self.windows(*pixels.shape[:2])

        def prepare(some: Sequence[TileWindow]) -> Iterator[Prepared]:
            return self.prepare(pixels, some, source or None)

        # Here, perhaps in a thread, an image that does not fit is refused: all tiles have the size
        # of the first, and the whole image is the last. All windows would take too much memory.
        first, last = (list(prepare(some)) for some in (windows[:1], windows[1:][-1:]))
        views = chain(first, prepare(windows[1:-1]), last)
        return _Opened(pixels, source, windows, views, [])

    def _merged(self, image: "_Opened", selection: Selection) -> Detections:
        detections = self.merged(image.detections, image.windows, selection.min_score)
        return selection.of(self.detections(image.pixels, detections, image.source))

    def run(self, prepared: Sequence[Prepared]) -> list[RawDetections]:
        """Detects in at most `batch_size` prepared images, padded to `batch_size`."""
        filled = [*prepared, *[prepared[-1]] * (self.batch_size - len(prepared))]
        return self.backend.run(filled)[: len(prepared)]

    def warm_up(self) -> None:
        """Loads or compiles the program."""
        self.backend.warm_up(self.batch_size)

    def detections(self, image: Pixels, raw: RawDetections, source: str = "") -> Detections:
        """Returns a backend's result with class names, image and file, clipped to the image.

        Raises:
            UserError: the model's predictions are not finite.
        """
        if not raw.finite:
            raise not_finite(source or "image")
        boxes = np.clip(raw.boxes, 0, np.tile(image.shape[:2], 2))
        seen = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
        return Detections(
            boxes=boxes[seen],
            scores=raw.scores[seen],
            class_ids=raw.class_ids[seen],
            class_names=self.class_names,
            image=for_people(image),
            source=source,
        )


class _Opened(NamedTuple):
    """An image, its windows, and the detections in them so far."""

    pixels: Pixels
    source: str
    windows: Sequence[TileWindow]
    prepared: Iterable[Prepared]
    detections: list[RawDetections]


def _nearest_size(wanted: int, sizes: Sequence[int] | None) -> int:
    if sizes is None:
        return wanted
    return next((size for size in sorted(sizes) if size >= wanted), max(sizes))
