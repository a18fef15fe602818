"""How well the anchors of a detector cover the boxes of a data set, and which would cover more.

A box without a similar anchor is detected badly or not at all. Nothing is trained and no image is
decoded. The report has tables, sentences and a figure.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from stillbox.checking.advice.files import read_label_map
from stillbox.checking.anchor_shapes import (
    Coverage,
    Matched,
    Shape,
    Suggestion,
    cluster_shapes,
    match_boxes,
    split_lattices,
    spread,
    suggest,
)
from stillbox.checking.data import Float32Array, TruthBoxes, coco_sizes, read_truth
from stillbox.errors import UserError
from stillbox.evaluation.charts import add_legend, label_axes, new_figure
from stillbox.evaluation.drawing import PALETTE, css
from stillbox.experiment import schema
from stillbox.models.anchors import anchors_per_location
from stillbox.models.build import build_detector
from stillbox.printing import count_text, printable_line
from stillbox.records.label_map import LabelMap
from stillbox.records.source import ExampleSource
from stillbox.references import Setting

_BINS = 20
# Boxes that typical shapes are computed from.
_CLUSTERED = 20_000


@dataclass(frozen=True)
class MapShare:
    """One feature map."""

    name: str
    """Level or number, with its size."""
    anchors: int
    smallest: float
    """Side of the square with the area of its smallest anchor, in pixels of the network input."""
    largest: float
    """The same of its largest anchor."""
    boxes: int
    """Boxes with their best anchor on the level."""


@dataclass(frozen=True)
class AnchorReport:
    """The anchors of an experiment and the boxes of its training records."""

    records: int
    """Records that were read."""
    total: int
    """Records in all."""
    left_out: int
    """Records that were read but have no usable image."""
    input_size: tuple[int, int]
    """Height and width of the network input, in pixels."""
    sizes: tuple[Coverage, ...]
    """All boxes, then COCO's sizes in pixels of the network input."""
    classes: tuple[Coverage, ...]
    """By class, the worst covered first."""
    maps: tuple[MapShare, ...]
    """Feature maps, from fine to coarse."""
    threshold: float | None
    """IoU at which the matcher matches an anchor; None for matchers without a threshold."""
    unmatched: float | None
    """Part of the boxes without a match at this threshold: no anchor overlaps them enough, or each
    that does overlaps another box more."""
    forced: bool
    """Boxes without a match get their best anchor by force; otherwise they are background."""
    shapes: tuple[Shape, ...]
    """Typical shapes of the boxes in pixels of the network input."""
    is_unit: bool
    """Whether the box coder measures distances in anchors, for which others are not suggested."""
    suggestion: Suggestion | None
    """None if no candidate covers more."""
    histogram: dict[str, list[int]]
    """Boxes by best IoU in steps of .05, for each size."""
    best: NDArray[np.float32] = field(repr=False, compare=False)
    """`[N]`, the best IoU of every box."""
    suggested_best: NDArray[np.float64] | None = field(repr=False, compare=False)
    """`[N]`, the same with the suggestion."""

    def to_dict(self) -> dict[str, object]:
        """Returns plain values, for JSON."""
        plain = asdict(self)
        del plain["best"], plain["suggested_best"]
        plain["shapes"] = [shape._asdict() for shape in self.shapes]
        return plain


def examine_anchors(
    experiment: schema.Experiment,
    *,
    limit: int = 0,
    on_record: Callable[[int, int], None] = lambda done, total: None,
) -> AnchorReport:
    """Compares the anchors of an experiment with the boxes of its training records.

    Args:
        limit: most records to read, spread over the set; 0: all.
        on_record: called with the numbers of records done and in all.

    Raises:
        UserError: the model has no anchors, or there are no records with boxes.
    """
    records, model = experiment.data.train, experiment.model
    if model.anchor_stage is None:
        fix = "give the config of a model of kind one_stage or faster_rcnn"
        raise UserError(f"a model of kind {model.kind} has no anchors", where="model.kind", fix=fix)
    if not records.paths:
        fix = (
            f"name them behind CONFIG, or {Setting('data.train.paths', ['data/train-*.tfrecord'])}"
        )
        raise UserError("there are no records", where="data.train.paths", fix=fix)
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
        tiles=experiment.data.tiles,
        limit=limit,
        ignore_crowds=records.crowds != "train",
        on_record=on_record,
    )
    if not len(truth.boxes):
        reasons = "; ".join(f"{p.count} x {p.reason}" for p in source.problems)
        problem = f"there is no usable box in {count_text(truth.records, 'record')}"
        problem += f": {reasons}" * bool(reasons)
        raise UserError(problem, where=", ".join(records.paths), fix="see `stillbox data check`")
    return _report(model, truth, len(source), label_map)


def _report(
    model: schema.Model, truth: TruthBoxes, total: int, label_map: LabelMap | None
) -> AnchorReport:
    stage = model.anchor_stage
    assert stage is not None
    # Only a built detector has the shapes of its feature maps; its weights are not used.
    detector: Any = build_detector(model)
    shapes, image = detector.feature_shapes, model.resizer.input_size
    matcher, similarity = stage.matcher, stage.similarity
    threshold = None
    if isinstance(matcher, schema.ArgmaxMatcher) and isinstance(similarity, schema.IouSimilarity):
        threshold = matcher.matched_threshold
    matched = match_boxes(truth, detector.anchors, 2.0 if threshold is None else threshold)
    sides = (truth.boxes[:, 2:] - truth.boxes[:, :2]).astype(np.float64) * image
    groups = {"all": np.ones(len(sides), np.bool_), **coco_sizes(sides.prod(axis=1))}
    clusters = cluster_shapes(spread(sides, _CLUSTERED))
    where = "model.anchors" if stage is model else "model.proposals.anchors"
    is_unit = isinstance(stage.box_coder, schema.DistanceBoxCoder)
    suggested = None
    if not is_unit:
        suggested = suggest(stage.anchors, truth.boxes, sides, clusters, shapes, image, where=where)
    if suggested and not suggested[0].coverage.exceeds(Coverage.of("all", matched.best)):
        suggested = None
    return AnchorReport(
        records=truth.records,
        total=total,
        left_out=truth.left_out,
        input_size=image,
        sizes=tuple(Coverage.of(name, matched.best[group]) for name, group in groups.items()),
        classes=_cover_classes(truth, matched, label_map),
        maps=_share_maps(stage.anchors, detector.anchors, matched, shapes, image),
        threshold=threshold,
        unmatched=None if threshold is None else float(1 - matched.chosen.mean()),
        forced=isinstance(matcher, schema.ArgmaxMatcher) and matcher.force_match_for_each_row,
        shapes=tuple(clusters),
        is_unit=is_unit,
        suggestion=suggested[0] if suggested else None,
        histogram={
            name: np.histogram(matched.best[group], _BINS, (0, 1))[0].tolist()
            for name, group in groups.items()
        },
        best=matched.best,
        suggested_best=suggested[1] if suggested else None,
    )


def _cover_classes(
    truth: TruthBoxes, matched: Matched, label_map: LabelMap | None
) -> tuple[Coverage, ...]:
    rows = (
        Coverage.of(
            label_map.name_of(class_id) if label_map else f"class {class_id}",
            matched.best[truth.class_ids == class_id],
        )
        for class_id in np.unique(truth.class_ids).tolist()
    )
    return tuple(sorted(rows, key=lambda row: (row.recall_50, row.mean_iou)))


def _share_maps(
    config: schema.Anchors,
    anchors: Float32Array,
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
        name = f"map {number + 1}"
        if isinstance(config, schema.MultiscaleAnchors):
            name = f"level {config.min_level + number}"
        name += f", {shapes[number][0]}x{shapes[number][1]}"
        sides = np.sqrt((lattice.sizes * image).prod(axis=1))
        least, greatest = float(sides.min()), float(sides.max())
        rows.append(MapShare(name, counts[number], least, greatest, int(claimed[number])))
    return tuple(rows)


_CLASSES_SHOWN = 12


def coverage_tables(report: AnchorReport) -> list[Table]:
    """Returns coverage by size and by class, and the boxes of each feature map."""
    tables = [_coverage("Boxes by size in the network input", "size", report.sizes)]
    if len(report.classes) > 1:
        shown = report.classes[:_CLASSES_SHOWN]
        more = len(report.classes) - len(shown)
        title = "Classes" if not more else f"Classes, the {len(shown)} worst of {len(shown) + more}"
        tables.append(_coverage(title, "class", shown))
    maps = Table(title="Whose anchors suit the boxes best", title_justify="left")
    for name in ("feature map", "anchors", "sides", "boxes", "share"):
        maps.add_column(name, justify="left" if name == "feature map" else "right")
    for row in report.maps:
        share = 100 * row.boxes / report.sizes[0].boxes
        sides = f"{row.smallest:.0f} to {row.largest:.0f} px"
        maps.add_row(row.name, f"{row.anchors:,}", sides, f"{row.boxes:,}", f"{share:.1f} %")
    return [*tables, maps]


def conclusions(report: AnchorReport) -> list[str]:
    """Returns the conclusions, one sentence a line."""
    lines = []
    if report.records < report.total:
        lines.append(f"{report.records:,} of {count_text(report.total, 'record')} read.")
    if report.left_out:
        records = count_text(report.left_out, "record")
        lines.append(f"{records} without an image that can be used here.")
    if report.unmatched is not None:
        fate = "they are trained as background: see force_match_for_each_row"
        if report.forced:
            fate = "force_match_for_each_row gives them one anchor each"
        lines.append(
            f"{100 * report.unmatched:.1f} % of the boxes are no anchor's match at an IoU of "
            f"{report.threshold:g}; {fate}."
        )
    shapes = ", ".join(
        f"{shape.width:.0f}x{shape.height:.0f} ({100 * shape.share:.0f} %)"
        for shape in report.shapes
    )
    lines.append(f"Typical boxes, width x height in pixels of the network input: {shapes}.")
    return lines + _suggested(report)


def _suggested(report: AnchorReport) -> list[str]:
    if report.is_unit:
        return ["The box coder measures distances in anchors, so that no others are suggested."]
    if report.suggestion is None:
        return ["No other values that were tried cover these boxes better."]
    now, then = report.sizes[0], report.suggestion.coverage
    options = " ".join(f"{Setting(*change)}" for change in report.suggestion.changes.items())
    return [
        f"Recall at .4 would be {then.recall_40:.3f} instead of {now.recall_40:.3f}, at .5 "
        f"{then.recall_50:.3f} instead of {now.recall_50:.3f}, the mean IoU {then.mean_iou:.3f} "
        f"instead of {now.mean_iou:.3f}, with:",
        f"  {options}",
    ]


def _coverage(title: str, name: str, rows: tuple[Coverage, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(name)
    for column in ("boxes", "recall .4", "recall .5", "mean IoU"):
        table.add_column(column, justify="right")
    for row in rows:
        values = (row.recall_40, row.recall_50, row.mean_iou)
        shown = [f"{value:.3f}" if row.boxes else "-" for value in values]
        table.add_row(Text(printable_line(row.name)), f"{row.boxes:,}", *shown)
    return table


def overlap_figure(report: AnchorReport) -> Figure:
    """Returns the boxes by the IoU of their best anchor: sizes stacked, the suggestion a line."""
    figure, axes = new_figure()
    label_axes(axes, "Best anchor of each box", "IoU with the best anchor", "boxes")
    bins = len(report.histogram["all"])
    edges = np.linspace(0, 1, bins + 1)
    bottom = np.zeros(bins)
    for number, name in enumerate(("small", "medium", "large")):
        counts = np.array(report.histogram[name])
        if not counts.any():
            continue
        color = css(PALETTE[number])
        axes.bar(
            edges[:-1], counts, 1 / bins, bottom, align="edge", color=color, label=name,
            edgecolor="white", linewidth=0.5,
        )  # fmt: skip
        bottom += counts
    if report.suggested_best is not None:
        counts = np.histogram(report.suggested_best, bins, (0, 1))[0]
        axes.stairs(counts, edges, color="#212529", linewidth=1.8, label="suggested anchors")
    for iou in (0.4, 0.5):
        axes.axvline(iou, color="#495057", linewidth=1.0, linestyle=":")
    axes.set_xlim(0.0, 1.0)
    add_legend(axes)
    return figure
