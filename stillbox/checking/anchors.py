"""How well the anchors of a detector cover the boxes of a data set, and what would cover more.

A box that no anchor resembles is learnt badly or not at all, whatever else is right. Nothing is
trained here and no image is decoded.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillbox.checking.advice.files import read_label_map
from stillbox.checking.anchor_overlaps import Matched, best_overlaps, match_boxes, split_lattices
from stillbox.checking.anchor_shapes import Shape, candidates, cluster_shapes
from stillbox.checking.truth_boxes import Floats, TruthBoxes, read_truth
from stillbox.errors import UserError
from stillbox.experiment.schema import (
    Anchors,
    ArgmaxMatcher,
    Experiment,
    IouSimilarity,
    MultiscaleAnchors,
    OneStage,
)
from stillbox.experiment.values import differences
from stillbox.models.anchors import anchors_per_location, build_anchors
from stillbox.models.build import build_detector
from stillbox.records.label_map import LabelMap
from stillbox.records.source import ExampleSource

# COCO's borders between small, medium and large, here in square pixels of the network input.
_SMALL, _LARGE = 32**2, 96**2
_BINS = 20
# As many boxes decide about a suggestion; its figures are then those of all boxes.
_TRIED_ON = 4000


@dataclass(frozen=True)
class Coverage:
    """How well some boxes are covered."""

    name: str
    """Which boxes."""
    boxes: int
    """How many."""
    recall_40: float
    """Part of them that some anchor overlaps with an IoU of at least .4."""
    recall_50: float
    """The same at .5."""
    mean_iou: float
    """Mean over the boxes of the IoU with their best anchor."""


@dataclass(frozen=True)
class MapShare:
    """One feature map."""

    name: str
    """Level or number, with its size."""
    anchors: int
    """Anchors on it."""
    smallest: float
    """Side of the square with the area of its smallest anchor, in pixels of the network input."""
    largest: float
    """The same of its largest anchor."""
    boxes: int
    """Boxes whose best anchor stands on it."""


@dataclass(frozen=True)
class Suggestion:
    """Other values of the anchors' own kind, with what they reach on the same boxes."""

    overrides: tuple[str, ...]
    """`path=value` for each field that changes."""
    anchors_per_location: tuple[int, ...]
    """Anchors at one location of each map."""
    coverage: Coverage
    """Recomputed with these anchors."""


@dataclass(frozen=True)
class AnchorReport:
    """What is known about anchors and boxes."""

    records: int
    """Records that were looked at."""
    total: int
    """Records that there are."""
    left_out: int
    """Records among them without a usable image."""
    input_size: tuple[int, int]
    """Height and width of the network input, in pixels."""
    sizes: tuple[Coverage, ...]
    """All boxes, then COCO's sizes in pixels of the network input."""
    classes: tuple[Coverage, ...]
    """Class by class, the worst covered first."""
    maps: tuple[MapShare, ...]
    """Feature maps, from fine to coarse."""
    threshold: float | None
    """IoU at which the matcher takes an anchor; None for matchers that have none."""
    unmatched: float | None
    """Part of the boxes that no anchor takes at this threshold, because none overlaps them enough
    or all that do suit another box better."""
    forced: bool
    """Those boxes are given their best anchor by force; otherwise they are background."""
    shapes: tuple[Shape, ...]
    """Typical shapes of the boxes in pixels of the network input."""
    suggestion: Suggestion | None
    """None where nothing that was tried covers more, or the kind has no values to suggest."""
    histogram: dict[str, list[int]]
    """Boxes by best IoU in steps of .05, for each size."""
    best: NDArray[np.float32] = field(repr=False, compare=False)
    """`[N]`, the best IoU of every box."""
    suggested_best: NDArray[np.float64] | None = field(repr=False, compare=False)
    """`[N]`, the same with the suggestion."""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        plain = asdict(self)
        del plain["best"], plain["suggested_best"]
        plain["shapes"] = [shape._asdict() for shape in self.shapes]
        return plain


def examine_anchors(
    experiment: Experiment,
    *,
    limit: int = 0,
    on_record: Callable[[int, int], None] = lambda done, total: None,
) -> AnchorReport:
    """Holds the anchors of an experiment against the boxes of its training records.

    Args:
        experiment: model and data.
        limit: read no more than so many records, from all over the set; 0 reads all.
        on_record: called with how many records are done and how many there are.

    Raises:
        UserError: no records are named, they cannot be read, or there is no box in them.
    """
    records, model = experiment.data.train, experiment.model
    if not records.paths:
        raise UserError(
            "no records to look at",
            where="data.train.paths",
            fix="name them behind CONFIG, or --set data.train.paths='[data/train-*.tfrecord]'",
        )
    label_map = read_label_map(records)
    source = ExampleSource(
        records.paths,
        label_map,
        use_display_name=records.use_display_name,
        bad_records="drop",
        bad_boxes="fix",
    )
    truth = read_truth(
        source,
        model.resizer,
        limit=limit,
        ignore_crowds=records.crowds != "train",
        on_record=on_record,
    )
    if not len(truth.boxes):
        reasons = "; ".join(f"{p.count} x {p.reason}" for p in source.problems)
        raise UserError(
            f"there is no usable box in {truth.records} records" + (f": {reasons}" * bool(reasons)),
            where=", ".join(records.paths),
            fix="see `stillbox data check`",
        )
    return _report(experiment, truth, len(source), label_map)


def _report(
    experiment: Experiment, truth: TruthBoxes, total: int, label_map: LabelMap | None
) -> AnchorReport:
    model = experiment.model
    if not isinstance(model, OneStage):
        raise UserError(
            f"a model of kind {model.kind} has no anchors",
            fix="give the config of an SSD",
        )
    # Weights are drawn and thrown away: it takes a second, and nobody else knows the shapes.
    detector: Any = build_detector(model)
    shapes, image = detector.feature_shapes, model.resizer.input_size
    matcher = model.matcher
    plain = isinstance(matcher, ArgmaxMatcher) and isinstance(model.similarity, IouSimilarity)
    threshold = matcher.matched_threshold if isinstance(matcher, ArgmaxMatcher) and plain else None
    matched = match_boxes(truth, detector.anchors, 2.0 if threshold is None else threshold)
    sides = (truth.boxes[:, 2:] - truth.boxes[:, :2]).astype(np.float64) * image
    groups = _size_groups(sides)
    clusters = cluster_shapes(_some(sides, _TRIED_ON * 5))
    suggestion, suggested = _suggest(model.anchors, truth.boxes, sides, clusters, shapes, image)
    if suggestion and not _covers_more(suggestion.coverage, _cover("all", matched.best)):
        suggestion, suggested = None, None
    return AnchorReport(
        records=truth.records,
        total=total,
        left_out=truth.left_out,
        input_size=image,
        sizes=tuple(_cover(name, matched.best[group]) for name, group in groups.items()),
        classes=_cover_classes(truth, matched, label_map),
        maps=_share_maps(model.anchors, detector.anchors, matched, shapes, image),
        threshold=threshold,
        unmatched=None if threshold is None else float(1 - matched.chosen.mean()),
        forced=isinstance(matcher, ArgmaxMatcher) and matcher.force_match_for_each_row,
        shapes=tuple(clusters),
        suggestion=suggestion,
        histogram={
            name: np.histogram(matched.best[group], _BINS, (0, 1))[0].tolist()
            for name, group in groups.items()
        },
        best=matched.best,
        suggested_best=suggested,
    )


def _size_groups(sides: NDArray[np.float64]) -> dict[str, NDArray[np.bool_]]:
    areas = sides.prod(axis=1)
    return {
        "all": np.ones(len(areas), np.bool_),
        "small": areas < _SMALL,
        "medium": (areas >= _SMALL) & (areas < _LARGE),
        "large": areas >= _LARGE,
    }


def _cover(name: str, best: Floats | NDArray[np.float64]) -> Coverage:
    count = len(best)
    if not count:
        return Coverage(name, 0, 0.0, 0.0, 0.0)
    recall_40, recall_50 = (float((best >= iou).mean()) for iou in (0.4, 0.5))
    return Coverage(name, count, recall_40, recall_50, float(best.mean()))


def _cover_classes(
    truth: TruthBoxes, matched: Matched, label_map: LabelMap | None
) -> tuple[Coverage, ...]:
    rows = []
    for class_id in np.unique(truth.class_ids).tolist():
        name = label_map.name_of(class_id) if label_map else f"class {class_id}"
        rows.append(_cover(name, matched.best[truth.class_ids == class_id]))
    return tuple(sorted(rows, key=lambda row: (row.recall_50, row.mean_iou)))


def _share_maps(
    config: Anchors,
    anchors: Floats,
    matched: Matched,
    shapes: Sequence[tuple[int, int]],
    image: tuple[int, int],
) -> tuple[MapShare, ...]:
    per_location = anchors_per_location(config, len(shapes))
    counts = [h * w * each for (h, w), each in zip(shapes, per_location, strict=True)]
    ends = np.cumsum(counts)
    claimed = np.bincount(np.searchsorted(ends, matched.anchor, side="right"), minlength=len(ends))
    rows = []
    for number, lattice in enumerate(split_lattices(anchors, shapes, per_location)):
        size = f"{shapes[number][0]}x{shapes[number][1]}"
        name = f"map {number + 1}, {size}"
        if isinstance(config, MultiscaleAnchors):
            name = f"level {config.min_level + number}, {size}"
        sides = np.sqrt((lattice.sizes * image).prod(axis=1))
        rows.append(
            MapShare(
                name,
                counts[number],
                float(sides.min()),
                float(sides.max()),
                int(claimed[number]),
            )
        )
    return tuple(rows)


def _suggest(
    config: Anchors,
    boxes: Floats,
    sides: NDArray[np.float64],
    clusters: Sequence[Shape],
    shapes: tuple[tuple[int, int], ...],
    image: tuple[int, int],
) -> tuple[Suggestion | None, NDArray[np.float64] | None]:
    """Tries descriptions on some of the boxes and measures the best of them on all."""

    def overlaps(description: Anchors, some: Floats) -> NDArray[np.float64]:
        anchors = build_anchors(description, shapes, image)
        per_location = anchors_per_location(description, len(shapes))
        return best_overlaps(some, split_lattices(anchors, shapes, per_location))

    def cover(description: Anchors) -> Coverage:
        return _cover("tried", overlaps(description, tried_on))

    tried_on = _some(boxes, _TRIED_ON)
    tried = {
        description: cover(description)
        for description in candidates(config, _some(sides, _TRIED_ON), clusters, image)
    }
    now = cover(config)
    better = [description for description in tried if _covers_more(tried[description], now)]
    if not better:
        return None, None
    # Recall alone does not move once all boxes are above .5.
    chosen = max(better, key=lambda d: tried[d].recall_50 + tried[d].mean_iou)
    changes = tuple(
        f"model.anchors.{path}={_spell(after)}" for path, _, after in differences(config, chosen)
    )
    best = overlaps(chosen, boxes)
    per_location = anchors_per_location(chosen, len(shapes))
    return Suggestion(changes, per_location, _cover("suggested", best)), best


def _covers_more(suggested: Coverage, now: Coverage) -> bool:
    """No box is given up for the sake of others, and a thousandth more is worth no change."""
    if suggested.recall_40 < now.recall_40 or suggested.recall_50 < now.recall_50:
        return False
    return suggested.recall_50 + suggested.mean_iou > now.recall_50 + now.mean_iou + 0.005


def _some(rows: Any, count: int) -> Any:  # noqa: ANN401
    """Returns at most so many rows, from all over."""
    places = np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(int)
    return rows[places]


def _spell(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)
