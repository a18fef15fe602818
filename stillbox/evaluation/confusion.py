"""The confusion matrix."""

from dataclasses import dataclass

import numpy as np

from stillbox.evaluation.confidence import IOU, Matched
from stillbox.evaluation.flat import FlatSet, Ints, match


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """Which class is taken for which, at one threshold of the score."""

    class_ids: tuple[int, ...]
    """C label map ids, ascending."""
    counts: Ints
    """`[C + 1, C + 1]`: rows are classes of objects, columns those of detections. In the last row
    are detections without an object, in the last column objects without a detection."""


def confusion(flat: FlatSet, matched: Matched, class_ids: tuple[int, ...]) -> Confusion:
    """Counts classes against classes; the caller chooses the detections, as by `FlatSet.above`.

    Objects are matched with detections of their class first, so that the diagonal has the correct
    detections; what is left is matched across classes.
    """
    taken = np.zeros(len(flat.truth_class), np.bool_)
    taken[matched.truth[matched.correct]] = True
    free = ~matched.correct & ~matched.ignored
    near = (flat.pair_iou >= IOU) & free[flat.pair_detection]
    near &= ~taken[flat.pair_truth] & ~flat.truth_ignored[flat.pair_truth]
    places = np.flatnonzero(near)
    places = places[match(flat.pair_detection[places], flat.pair_truth[places])]
    truth = matched.truth.copy()
    truth[flat.pair_detection[places]] = flat.pair_truth[places]
    background = len(class_ids)
    # A place of its own for detections without an object, -1.
    rows = np.append(np.searchsorted(class_ids, flat.truth_class), background)
    columns = np.searchsorted(class_ids, flat.class_ids)
    counts = np.zeros((background + 1, background + 1), np.int64)
    valid = ~matched.ignored
    np.add.at(counts, (rows[truth[valid]], columns[valid]), 1)
    left = ~flat.truth_ignored
    left[truth[truth >= 0]] = False
    counts[:, background] += np.bincount(rows[:-1][left], minlength=background + 1)
    return Confusion(class_ids=class_ids, counts=counts)
