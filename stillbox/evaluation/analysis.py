"""What a report says beyond the metrics: thresholds, confusions, mistakes, sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stillbox.evaluation.checks import class_keys
from stillbox.evaluation.confidence import Confidence, Matched, confidence, match_classes
from stillbox.evaluation.confusion import Confusion, confusion
from stillbox.evaluation.flat import FlatSet, flatten
from stillbox.evaluation.mistakes import Costs, Mistakes, cost_of, find_mistakes
from stillbox.evaluation.results import ImageResult, ImageTruth
from stillbox.evaluation.shapes import Shapes, shapes


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The analysis of one set of detections.

    `confusion`, `mistakes`, `shapes` are about the detections `shown`: those with at least the best
    score of all classes together, all if none is correct.
    """

    names: dict[int, str]
    """Label map id -> unique name, ascending."""
    image_ids: tuple[str, ...]
    """By place in the set."""
    overall: Confidence
    per_class: dict[int, Confidence]
    """Of every class, by label map id."""
    shown: FlatSet
    matched: Matched
    """Of `shown`."""
    confusion: Confusion
    mistakes: Mistakes
    costs: Costs
    """Over all detections, those with low scores too."""
    shapes: Shapes


def analyse(
    truths: Sequence[ImageTruth],
    results: Sequence[ImageResult],
    class_names: Mapping[int, str],
    *,
    difficult: bool = False,
) -> Analysis:
    """Analyses the results of a detector.

    `difficult`: difficult objects are ignored in place of crowds, as in Pascal VOC's metrics.

    Raises:
        UserError: see `number_images`.
    """
    names = class_keys(class_names)
    flat = flatten(truths, results, class_names, difficult=difficult)
    matched = match_classes(flat)
    overall = confidence(flat, matched)
    shown = flat if overall.threshold is None else flat.above(overall.threshold)
    # A detection has the same object whether or not worse ones are there.
    count = len(shown.scores)
    kept = Matched(truth=matched.truth[:count], ignored=matched.ignored[:count])
    return Analysis(
        names=names,
        image_ids=tuple(truth.image_id for truth in truths),
        overall=overall,
        per_class={class_id: confidence(flat, matched, class_id) for class_id in names},
        shown=shown,
        matched=kept,
        confusion=confusion(shown, kept, tuple(names)),
        mistakes=find_mistakes(shown, kept),
        costs=cost_of(flat, matched, find_mistakes(flat, matched)),
        shapes=shapes(shown, kept),
    )
