"""Compares the detections of an artefact and of its checkpoint on the same images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from stillbox.boxes.geometry import change_frame, clip_to_window
from stillbox.errors import UserError
from stillbox.evaluation.results import RawDetections, iou_matrix
from stillbox.experiment import schema
from stillbox.exporting.program import ExportProgram, WeightArrays
from stillbox.models.one_stage.detector import class_scores
from stillbox.models.postprocessing import suppression_windows
from stillbox.predicting.backend import Backend, Pixels
from stillbox.predicting.predictor import Predictor
from stillbox.printing import count_text
from stillbox.references import Command, Parameter

BOX_TOLERANCE = 0.5
"""Pixels of the image."""
SCORE_TOLERANCE = 1e-3
OVERLAP_TOLERANCE = 1e-3
"""Of an IoU."""
SURE = 0.3
"""Least score of a detection in the comparison of a quantised artefact."""
LEAST_FOUND = 0.8
"""Least part of the checkpoint's detections that a quantised artefact has to find."""
QUANTISED_TOLERANCE = 0.1
"""Of the best score of a class, where the checkpoint is sure of nothing."""
_SHOW = f"{Command('export', images=True)} compares on images that show objects"
_REPORT = "nothing was written; please report this with the model's experiment.yaml"


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Difference of an artefact from its checkpoint."""

    images: int
    detections: int
    """Detections of the checkpoint that were compared."""
    max_box_difference: float
    """Greatest difference of a side, in pixels of the image."""
    max_score_difference: float
    ties: int = 0
    """Detections of one side alone, where scores are equal and suppression has a choice."""

    def render(self) -> str:
        """Returns the comparison as a sentence."""
        if not self.detections:
            return (
                f"compared with the checkpoint on {count_text(self.images, 'image')}, in which "
                f"neither finds anything: {_SHOW}"
            )
        others = "1 other is" if self.ties == 1 else f"{self.ties} others are"
        ties = f"; {others} a choice among equal scores" if self.ties else ""
        return (
            f"compared with the checkpoint on {count_text(self.images, 'image')}: "
            f"{count_text(self.detections, 'detection')}, boxes within "
            f"{self.max_box_difference:.2g} pixels, scores within "
            f"{self.max_score_difference:.2g}{ties}"
        )


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The checkpoint's detections that a quantised artefact finds too."""

    images: int
    detections: int
    """Detections of the checkpoint with a score of at least `SURE`."""
    found: int
    """How many the artefact finds too: same class, IoU of at least a half."""
    max_score_difference: float | None = None
    """Greatest difference between the best scores of a class in an image, where the checkpoint has
    no such detection; None: neither finds anything, or the detections were compared."""

    def render(self) -> str:
        """Returns the comparison as a sentence."""
        images = f"compared with the checkpoint on {count_text(self.images, 'image')}"
        if self.detections:
            return (
                f"{images}: {self.found} of {count_text(self.detections, 'detection')} with a "
                f"score of {SURE} or more found; `stillbox evaluate` measures the loss of AP"
            )
        if self.max_score_difference is None:
            return f"{images}, in which neither finds anything: nothing is verified; {_SHOW}"
        return (
            f"{images}, in which it has no detection with a score of {SURE} or more: the best "
            f"scores of the classes are within {self.max_score_difference:.2g}, and boxes were not "
            f"compared; {_SHOW}"
        )


class Choices(NamedTuple):
    """The N boxes of an image and C classes that greedy suppression chooses from."""

    boxes: NDArray[np.float64]
    """`[N, 4]`, as overlaps are measured."""
    shown: NDArray[np.float64]
    """`[N, 4]`, as detections have them, in pixels of the image."""
    scores: NDArray[np.float64]
    """`[N, C]`."""
    class_ids: NDArray[np.int64]
    """`[C]`, label map ids."""
    iou_threshold: float
    most: int = 0
    """Best boxes of a class that take part; 0: all."""

    def allow(self, detections: RawDetections, end: float) -> bool:
        """Returns whether suppression may find these detections, if rounding orders equal scores.

        Each has to be one of the boxes, without an overlap with another of its class beyond the
        threshold. Every box with a score above `end` has to be among them, or to overlap one of its
        class that has no lower score.
        """
        places = self._places(detections)
        if (places < 0).any():
            return False
        visible = (self.shown[:, 2:] > self.shown[:, :2]).all(axis=1)
        for slot, class_id in enumerate(self.class_ids.tolist()):
            of_class, scores = detections.class_ids == class_id, self.scores[:, slot]
            kept, highest = (
                self.boxes[places[of_class]],
                detections.scores[of_class] + SCORE_TOLERANCE,
            )
            if (np.triu(iou_matrix(kept, kept), 1) > self.iou_threshold + OVERLAP_TOLERANCE).any():
                return False
            least = np.sort(scores)[-self.most] if 0 < self.most < len(scores) else end
            left = visible & (scores > max(end, least) + SCORE_TOLERANCE)
            left[places[of_class]] = False
            over = iou_matrix(self.boxes[left], kept) >= self.iou_threshold - OVERLAP_TOLERANCE
            if not (over & (scores[left, None] <= highest)).any(axis=1).all():
                return False
        return True

    def _places(self, detections: RawDetections) -> NDArray[np.int64]:
        """Returns the row of each detection within the tolerances; -1 if there is none."""
        slots = {class_id: slot for slot, class_id in enumerate(self.class_ids.tolist())}
        rows = zip(detections.boxes, detections.scores, detections.class_ids.tolist(), strict=True)
        return np.array(
            [self._place(box, score, slots.get(class_id)) for box, score, class_id in rows], int
        )

    def _place(self, box: NDArray[np.float64], score: float, slot: int | None) -> int:
        if slot is None:
            return -1
        differences = np.abs(self.shown - box).max(axis=1)
        same = np.abs(self.scores[:, slot] - score) <= SCORE_TOLERANCE
        differences = np.where(same, differences, np.inf)
        nearest = int(differences.argmin())
        return nearest if differences[nearest] <= BOX_TOLERANCE else -1


def choices_of(program: ExportProgram, checkpoint: Backend) -> Callable[[Pixels], Choices] | None:
    """Returns the function from an image to what suppression chooses from in it.

    None: the detector has two stages, or its suppression is soft, does not separate classes, is
    limited to some candidates of a feature map, or clips to a window with a margin.
    """
    model = program.description
    nms = model.nms
    if not isinstance(model, schema.OneStage) or nms is None or nms.clip_margin:
        return None
    if nms.soft_sigma > 0.0 or nms.class_agnostic or nms.max_candidates_per_level:
        return None

    @jax.jit
    def decode(
        weights: WeightArrays, images: Array, true_sizes: Array
    ) -> tuple[Array, Array, Array]:
        candidates = program.bind(weights).detect_among(images, true_sizes)[1]
        assert candidates is not None  # of a one-stage detector
        window, frame = suppression_windows(true_sizes, nms, program.input_size)
        boxes = candidates.boxes
        clipped = boxes if window is None else clip_to_window(boxes, window[:, None])
        shown = clipped if frame is None else change_frame(clipped, frame[:, None])
        return clipped if nms.clip_first else boxes, shown, class_scores(candidates.scores, model)

    def choices(image: Pixels) -> Choices:
        prepared = checkpoint.prepare(image)
        decoded = decode(
            program.weights, prepared.pixels[None], np.array([prepared.true_size], np.int32)
        )
        boxes, shown, scores = (np.asarray(array[0], np.float64) for array in decoded)
        return Choices(
            boxes=boxes,
            shown=shown * np.tile(prepared.size, 2),
            scores=scores,
            class_ids=np.array(program.model.slots().ids),
            iou_threshold=nms.iou_threshold,
            most=nms.max_candidates_per_class,
        )

    return choices


def verify(
    artefact: Backend,
    checkpoint: Backend,
    images: Sequence[Pixels],
    *,
    blank: Sequence[Pixels] = (),
    score_threshold: float = 0.0,
    choices: Callable[[Pixels], Choices] | None = None,
) -> Verification:
    """Runs both on the same images and compares the detections.

    A detection needs no counterpart if its score is within the tolerance of the lowest score that
    the other side returns: the score threshold, or the last score of a full list. Nor does it need
    one if the artefact's detections are what suppression may choose among the checkpoint's boxes,
    where scores are equal within the tolerance. A detector that has hardly been trained has many
    such scores.

    Args:
        images: of the kind that both take.
        blank: images of one colour. Many anchors have equal scores there, and rounding decides
            which of them suppress the others. Only the best score of each class is compared,
            because it is never suppressed.
        choices: `choices_of` the checkpoint; None: every detection needs a counterpart.

    Raises:
        UserError: they differ; the message names the first detection that has no counterpart.
    """
    got, wanted = (_detect(backend, images) for backend in (artefact, checkpoint))
    boxes, scores, count, ties = [0.0], [0.0], 0, 0
    for index, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
        box_differences, score_differences = _differences(mine, theirs)
        same = theirs.class_ids[:, None] == mine.class_ids
        same &= (box_differences <= BOX_TOLERANCE) & (score_differences <= SCORE_TOLERANCE)
        ends = [
            _end(detections, checkpoint.max_detections, score_threshold)
            for detections in (mine, theirs)
        ]
        lost = ~same.any(axis=1) & (theirs.scores > ends[0] + SCORE_TOLERANCE)
        alone = ~same.any(axis=0) & (mine.scores > ends[1] + SCORE_TOLERANCE)
        if lost.any() or alone.any():
            if choices is None or not choices(images[index]).allow(mine, ends[0]):
                name, detections, sole = (
                    ("checkpoint", theirs, lost) if lost.any() else ("artefact", mine, alone)
                )
                raise _difference(name, detections, int(sole.argmax()), index, images[index], mine)
            ties += int(lost.sum() + alone.sum())
        rows = np.flatnonzero(same.any(axis=1))
        pairs = rows, same[rows].argmax(axis=1) if len(rows) else rows
        count += len(rows)
        boxes += box_differences[pairs].tolist()
        scores += score_differences[pairs].tolist()
    scores += (_compare_blank(artefact, checkpoint, image, score_threshold) for image in blank)
    return Verification(
        images=len(images) + len(blank),
        detections=count,
        max_box_difference=max(boxes),
        max_score_difference=max(scores),
        ties=ties,
    )


def _compare_blank(
    artefact: Backend, checkpoint: Backend, image: Pixels, score_threshold: float
) -> float:
    """Returns the greatest difference of the best scores in an image of one colour."""
    mine, theirs = (_detect(backend, [image])[0] for backend in (artefact, checkpoint))
    difference = _score_difference(mine, theirs, checkpoint.max_detections, score_threshold)
    if difference > SCORE_TOLERANCE:
        problem = (
            f"the scores of a blank image of {image.shape[0]}x{image.shape[1]} differ by "
            f"{difference:.4f}: {_objects(mine)} in the artefact, "
            f"{len(theirs.scores)} in the checkpoint"
        )
        raise UserError(problem, where="verification of the export", fix=_REPORT)
    return difference


def agree(
    artefact: Backend,
    checkpoint: Backend,
    images: Sequence[Pixels],
    *,
    score_threshold: float = 0.0,
) -> Agreement:
    """Counts the sure detections of a checkpoint that its quantised artefact finds too.

    If there are none, the best scores of the classes are compared instead.

    Raises:
        UserError: fewer than `LEAST_FOUND` of them are found, or scores differ by more than
            `QUANTISED_TOLERANCE`.
    """
    got, wanted = (_detect(backend, images) for backend in (artefact, checkpoint))
    matches: list[bool] = []
    for mine, theirs in zip(got, wanted, strict=True):
        same = theirs.class_ids[:, None] == mine.class_ids[None]
        near = iou_matrix(theirs.boxes, mine.boxes) >= 0.5
        matches += np.any(same & near, axis=1)[theirs.scores >= SURE].tolist()
    pairs = [] if matches else [(a, b) for a, b in zip(got, wanted, strict=True) if _any(a, b)]
    most = checkpoint.max_detections
    agreement = Agreement(
        images=len(images),
        detections=len(matches),
        found=sum(matches),
        max_score_difference=max(
            (_score_difference(mine, theirs, most, score_threshold) for mine, theirs in pairs),
            default=None,
        ),
    )
    lost = agreement.found < LEAST_FOUND * agreement.detections
    if lost or (agreement.max_score_difference or 0.0) > QUANTISED_TOLERANCE:
        fix = (
            f"calibrate on some tens of typical images with {Parameter('images')}, or export in "
            "float"
        )
        raise UserError(
            f"quantising loses too much: {agreement.render()}",
            where=Parameter("quantize"),
            fix=fix,
        )
    return agreement


def _any(mine: RawDetections, theirs: RawDetections) -> bool:
    return bool(len(mine.scores) or len(theirs.scores))


def _score_difference(
    mine: RawDetections, theirs: RawDetections, most: int, score_threshold: float
) -> float:
    """Returns the greatest difference between the best scores of a class.

    A class that one of them does not find has a score below the end of its list.
    """
    best, other = _best_scores(mine), _best_scores(theirs)
    ends = [_end(detections, most, score_threshold) for detections in (mine, theirs)]
    differences = [abs(best[class_id] - other[class_id]) for class_id in best.keys() & other]
    differences += [other[class_id] - ends[0] for class_id in other.keys() - best]
    differences += [best[class_id] - ends[1] for class_id in best.keys() - other]
    return max([0.0, *differences])


def _best_scores(detections: RawDetections) -> dict[int, float]:
    best: dict[int, float] = {}
    for class_id, score in zip(
        detections.class_ids.tolist(), detections.scores.tolist(), strict=True
    ):
        best[class_id] = max(score, best.get(class_id, score))
    return best


def _detect(backend: Backend, images: Sequence[Pixels]) -> list[RawDetections]:
    predictor = Predictor(backend)
    return [predictor.run([backend.prepare(image)])[0] for image in images]


def _differences(mine: RawDetections, theirs: RawDetections) -> tuple[np.ndarray, np.ndarray]:
    """Returns the greatest differences of a side, and of scores, `[theirs, mine]` each."""
    boxes = np.abs(theirs.boxes[:, None] - mine.boxes).max(axis=2, initial=0.0)
    return boxes, np.abs(theirs.scores[:, None] - mine.scores)


def _end(detections: RawDetections, most: int, score_threshold: float) -> float:
    """Returns the score below which a detection may be missing from the list."""
    return float(detections.scores.min()) if len(detections.scores) == most else score_threshold


def _difference(
    name: str, detections: RawDetections, row: int, index: int, image: Pixels, mine: RawDetections
) -> UserError:
    class_id, score = detections.class_ids[row], detections.scores[row]
    box = ", ".join(f"{at:.1f}" for at in detections.boxes[row])
    problem = (
        f"the {name} alone finds class {class_id} with score {score:.4f} "
        f"at [{box}] (ymin, xmin, ymax, xmax) in image {index}, {image.shape[0]}x{image.shape[1]}; "
        f"the artefact finds {_objects(mine)} there"
    )
    return UserError(problem, where="verification of the export", fix=_REPORT)


def _objects(detections: RawDetections) -> str:
    return count_text(len(detections.scores), "object")
