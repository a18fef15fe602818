"""Whether an artefact finds what its checkpoint finds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stillbox.errors import UserError
from stillbox.evaluation.results import iou_matrix
from stillbox.predicting.backend import Backend, Found, Pixels
from stillbox.predicting.predictor import Predictor

BOX_TOLERANCE = 0.5
"""Pixels of the image."""
SCORE_TOLERANCE = 1e-3
SURE = 0.3
"""The score from which a detection counts in the comparison of a quantised artefact."""
LEAST_FOUND = 0.8
_REPORT = "nothing was written; please report this with the model's experiment.yaml"


@dataclass(frozen=True, kw_only=True)
class Verification:
    """How far an artefact is from its checkpoint."""

    images: int
    """Images compared."""
    detections: int
    """Detections of the checkpoint that were compared."""
    max_box_difference: float
    """Greatest difference of a side, in pixels of the image."""
    max_score_difference: float
    """Greatest difference of a score."""

    def render(self) -> str:
        """Returns the comparison as a sentence."""
        if not self.detections:
            return (
                f"compared with the checkpoint on {self.images} images, in which neither finds "
                "anything: give --images that show objects"
            )
        return (
            f"compared with the checkpoint on {self.images} images: {self.detections} detections, "
            f"boxes within {self.max_box_difference:.2g} pixels, scores within "
            f"{self.max_score_difference:.2g}"
        )


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How much of what its checkpoint finds a quantised artefact finds."""

    images: int
    """Images compared."""
    detections: int
    """Detections of the checkpoint with a score of at least `SURE`."""
    found: int
    """Those of them that the artefact finds: the same class, an IoU of at least a half."""

    def render(self) -> str:
        """Returns the comparison as a sentence."""
        return (
            f"compared with the checkpoint on {self.images} images: {self.found} of "
            f"{self.detections} detections with a score of {SURE} or more are found; "
            "`stillbox evaluate` says what that costs in AP"
        )


def verify(
    artefact: Backend,
    checkpoint: Backend,
    images: Sequence[Pixels],
    *,
    blank: Sequence[Pixels] = (),
    score_threshold: float = 0.0,
) -> Verification:
    """Runs both on the same images and compares the detections.

    A detection needs no counterpart if its score is within the tolerance of what the other side
    leaves out: the score threshold, or the last score of a list that is full.

    Args:
        artefact: what was exported.
        checkpoint: what it was made from.
        images: `[h, w, 3]` uint8 each.
        blank: images of one colour. Many anchors have equal scores there, so that rounding decides
            which of them suppress the others: only the falling scores are compared.
        score_threshold: of the model; nothing below it is a detection.

    Raises:
        UserError: they differ; the message names the first detection that has no counterpart.
    """
    got, wanted = (_detect(backend, images) for backend in (artefact, checkpoint))
    boxes, scores, count = [0.0], [0.0], 0
    for index, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
        ends = [_end(one, checkpoint.max_detections, score_threshold) for one in (theirs, mine)]
        pairs, lost = _pair(mine, theirs, ends)
        if lost:
            raise _difference(index, images[index], lost[0], mine)
        count += len(pairs)
        boxes += [float(np.abs(mine.boxes[a] - theirs.boxes[b]).max()) for a, b in pairs]
        scores += [float(abs(mine.scores[a] - theirs.scores[b])) for a, b in pairs]
    for image in blank:
        mine, theirs = (_detect(backend, [image])[0] for backend in (artefact, checkpoint))
        scores.append(_score_difference(mine, theirs, score_threshold))
        if scores[-1] > SCORE_TOLERANCE:
            raise UserError(
                f"the scores of a blank image of {image.shape[0]}x{image.shape[1]} differ by "
                f"{scores[-1]:.4f}: {len(mine.scores)} objects in the artefact, "
                f"{len(theirs.scores)} in the checkpoint",
                where="verification of the export",
                fix=_REPORT,
            )
    return Verification(
        images=len(images) + len(blank),
        detections=count,
        max_box_difference=max(boxes),
        max_score_difference=max(scores),
    )


def agree(artefact: Backend, checkpoint: Backend, images: Sequence[Pixels]) -> Agreement:
    """Counts the sure detections of a checkpoint that its quantised artefact finds too.

    Args:
        artefact: what was exported.
        checkpoint: what it was made from.
        images: `[h, w, 3]` uint8 each.

    Raises:
        UserError: fewer than `LEAST_FOUND` of them are found.
    """
    got, wanted = (_detect(backend, images) for backend in (artefact, checkpoint))
    matches: list[bool] = []
    for mine, theirs in zip(got, wanted, strict=True):
        same = theirs.class_ids[:, None] == mine.class_ids[None]
        near = iou_matrix(theirs.boxes, mine.boxes) >= 0.5
        matches += np.any(same & near, axis=1)[theirs.scores >= SURE].tolist()
    found = Agreement(images=len(images), detections=len(matches), found=sum(matches))
    if found.found < LEAST_FOUND * found.detections:
        raise UserError(
            f"quantising loses too much: {found.render()}",
            where="--quantize",
            fix="calibrate on some tens of typical images with --images, or export in float",
        )
    return found


def _score_difference(mine: Found, theirs: Found, score_threshold: float) -> float:
    """Returns the greatest difference of the falling scores; a list ends at the threshold."""
    most = max(len(mine.scores), len(theirs.scores), 1)
    rows = np.full((2, most), score_threshold)
    for row, found in zip(rows, (mine, theirs), strict=True):
        row[: len(found.scores)] = found.scores
    return float(np.abs(rows[0] - rows[1]).max())


def _detect(backend: Backend, images: Sequence[Pixels]) -> list[Found]:
    predictor = Predictor(backend)
    return [predictor.run([backend.prepare(image)])[0] for image in images]


_Pairs = list[tuple[int, int]]
_Lost = list[tuple[str, Found, int]]


def _pair(mine: Found, theirs: Found, ends: Sequence[float]) -> tuple[_Pairs, _Lost]:
    """Returns pairs of indices that agree, and what has no counterpart, of either side.

    Args:
        mine: of the artefact.
        theirs: of the checkpoint.
        ends: the score below which the checkpoint, and the artefact, leave detections out.
    """
    pairs = [(match, row) for row in range(len(theirs.scores))
             if (match := _counterpart(theirs, row, mine)) is not None]  # fmt: skip
    lost = [
        (name, one, row)
        for name, one, other, end in (
            ("checkpoint", theirs, mine, ends[1]),
            ("artefact", mine, theirs, ends[0]),
        )
        for row in range(len(one.scores))
        if one.scores[row] > end + SCORE_TOLERANCE and _counterpart(one, row, other) is None
    ]
    return pairs, lost


def _counterpart(one: Found, row: int, other: Found) -> int | None:
    """Returns the detection of `other` that equals one of `one` within the tolerances."""
    same = other.class_ids == one.class_ids[row]
    same &= np.abs(other.scores - one.scores[row]) <= SCORE_TOLERANCE
    same &= (np.abs(other.boxes - one.boxes[row]) <= BOX_TOLERANCE).all(axis=1)
    return int(np.argmax(same)) if same.any() else None


def _end(found: Found, most: int, score_threshold: float) -> float:
    """Returns the score below which a detection may be missing from the list."""
    return float(found.scores.min()) if len(found.scores) == most else score_threshold


def _difference(index: int, image: Pixels, lost: tuple[str, Found, int], mine: Found) -> UserError:
    name, found, row = lost
    box = ", ".join(f"{at:.1f}" for at in found.boxes[row])
    return UserError(
        f"the {name} alone finds class {found.class_ids[row]} with score {found.scores[row]:.4f} "
        f"at [{box}] (ymin, xmin, ymax, xmax) in image {index}, {image.shape[0]}x{image.shape[1]}; "
        f"the artefact finds {len(mine.scores)} objects there",
        where="verification of the export",
        fix=_REPORT,
    )
