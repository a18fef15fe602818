"""Advice about `model`: scores and losses of classes, then models of one stage and of two.

The checks of scores and losses apply to one-stage models and to second stages. Checks of one-stage
models look at losses, targets and anchors, checks of two-stage models at proposals, minibatches
and crops.
"""

import math
from typing import Protocol

from stillbox.experiment import schema
from stillbox.experiment.rules.rule import Remark, Remarks, Scoring, Written, rule
from stillbox.experiment.schema.necks import Pyramid
from stillbox.findings import Origins
from stillbox.printing import count_text
from stillbox.references import Setting

SOFTMAX = (schema.SoftmaxLoss, schema.SoftmaxAgainstLogitsLoss)
"""Losses that compare classes with each other."""
STATIC_FORM = "the originals could not run it on a TPU; here it is a compiled, fixed-shape step"
"""The note on parts that configs may omit for this reason."""
# A higher threshold removes whole parts of the precision-recall curve.
_HIGH_THRESHOLD = 0.1


class Dropout(Protocol):
    """A section with dropout."""

    @property
    def dropout(self) -> bool:
        """Whether there is dropout."""

    @property
    def dropout_keep_probability(self) -> float:
        """Share of the features that it keeps."""


@rule(Scoring, severity="note", on="checking")
def focal_loss_has_alpha(scoring: Scoring) -> Remarks:
    """Without alpha the loss has no class weights (`object_detection/core/losses.py`)."""
    classification, path = scoring.loss.classification, f"{scoring.loss_path}.classification"
    if isinstance(classification, schema.SigmoidFocalLoss) and classification.alpha is None:
        problem = (
            "without alpha the focal loss weighs objects and background equally; published configs "
            "have .25"
        )
        yield Remark(path, problem, f"{Setting(f'{path}.alpha', 0.25)}")


@rule(Scoring, severity="warning", on="checking")
def scores_fit_the_loss(scoring: Scoring) -> Remarks:
    """Scores are computed from logits by the function that the loss assumes."""
    path = f"{scoring.path}.postprocessing.score_converter"
    converter, loss = scoring.postprocessing.score_converter, scoring.loss.classification
    fitting = "softmax" if isinstance(loss, SOFTMAX) else "sigmoid"
    if converter != fitting:
        problem = (
            f"score_converter {converter} after a {loss.kind} loss: scores are no probabilities"
        )
        yield Remark(path, problem, f"{Setting(path, fitting)}")


@rule(Scoring, severity="warning", on="checking")
def losses_count(scoring: Scoring) -> Remarks:
    """Classification and localization are trained."""
    names = ("classification_weight", "localization_weight")
    yield from _untrained(scoring.loss, scoring.loss_path, names, "detector")


def _untrained(
    section: object, path: str, names: tuple[str, ...], whole: str, prefix: str = ""
) -> Remarks:
    for name in names:
        if getattr(section, name) == 0.0:
            problem = f"{name} 0: this half of the {whole} is never trained"
            setting = Setting(f"{prefix}{path}.{name}", 1)
            yield Remark(f"{path}.{name}", problem, f"{setting}")


@rule(Scoring, severity="note", on="checking")
def curves_are_whole(scoring: Scoring) -> Remarks:
    """AP needs detections of all scores; `evaluation.min_score` limits pictures."""
    path = f"{scoring.path}.postprocessing.nms.score_threshold"
    threshold = scoring.postprocessing.nms.score_threshold
    if threshold > _HIGH_THRESHOLD:
        problem = (
            f"detections up to a score of {threshold:g} are thrown away before they are scored, "
            "which lowers AP"
        )
        yield Remark(path, problem, f"{Setting(path, 1e-08)}")


@rule(Scoring, severity="note", on="checking")
def mining_is_static(scoring: Scoring) -> Remarks:
    """Configs may omit mining because the originals could not run it on a TPU."""
    miner = scoring.loss.hard_example_miner
    # Without comparing boxes it is SSD's own mining, which the originals run on a TPU.
    if miner is not None and miner.iou_threshold < 1.0:
        path = f"{scoring.loss_path}.hard_example_miner"
        yield Remark(path, f"hard_example_miner: {STATIC_FORM}")


def _dropout_of(path: str, section: Dropout, fields: Origins) -> Remarks:
    """Yields advice on the dropout of a section: it is on and drops something, or it is off."""
    keep, field = section.dropout_keep_probability, f"{path}.dropout_keep_probability"
    if section.dropout and keep == 1.0:
        fix = f"{Setting(f'{path}.dropout', False)}"
        yield Remark(field, "dropout that keeps everything drops nothing", fix)
    if not section.dropout and field in fields and keep < 1.0:
        problem = f"dropout_keep_probability {keep:g} has no effect while dropout is false"
        yield Remark(field, problem, f"take it out, or {Setting(f'{path}.dropout', True)}")


@rule(schema.OneStage, severity="warning", on="checking")
def background_is_balanced(model: schema.OneStage) -> Remarks:
    """Thousands of background anchors for each object must not dominate the loss."""
    loss = model.loss
    focal = schema.SigmoidFocalLoss, schema.QualityFocalLoss, schema.VarifocalLoss
    if loss.hard_example_miner is None and not isinstance(loss.classification, focal):
        problem = (
            f"the {loss.classification.kind} loss weighs every background anchor equally: neither "
            "a focal loss nor hard_example_miner reduces their weight"
        )
        path, fitting = "loss.classification", "{kind: sigmoid_focal, alpha: 0.25, gamma: 2}"
        yield Remark(path, problem, f"{Setting(f'model.{path}', fitting)}")


@rule(schema.OneStage, severity="warning", on="checking")
def bias_reaches_the_loss(model: schema.OneStage) -> Remarks:
    """A softmax does not change when the same number is added to all logits."""
    bias, loss = getattr(model.head, "class_bias_init", 0.0), model.loss.classification
    if bias and isinstance(loss, SOFTMAX):
        problem = (
            f"class_bias_init {bias:g} has no effect with a {loss.kind} loss: it moves the logits "
            "of all classes equally"
        )
        fix = f"{Setting('model.head.class_bias_init', 0)}"
        yield Remark("head.class_bias_init", problem, fix)


@rule(schema.OneStage, severity="note", on="checking")
def every_box_has_an_anchor(model: schema.OneStage) -> Remarks:
    """Boxes without a matching anchor are background, unless a match is forced."""
    matcher = model.matcher
    if not isinstance(matcher, schema.ArgmaxMatcher):
        return
    if not matcher.force_match_for_each_row and not matcher.ignore_thresholds:
        problem = (
            f"a box that no anchor overlaps by {matcher.matched_threshold:g} is trained as "
            "background; `stillbox anchors` counts them"
        )
        fix = f"{Setting('model.matcher.force_match_for_each_row', True)}"
        yield Remark("matcher.force_match_for_each_row", problem, fix)


@rule(schema.OneStage, severity="note", on="checking")
def static_forms_exist(model: schema.OneStage) -> Remarks:
    """Configs may omit parts that the originals could not run on a TPU."""
    if isinstance(model.matcher, schema.BipartiteMatcher):
        yield Remark("matcher", f"bipartite_matcher: {STATIC_FORM}")


@rule(Written, severity="note", on="checking")
def one_stage_dropout_drops(written: Written) -> Remarks:
    """Dropout is on and drops something, or it is off."""
    head = getattr(written.experiment.model, "head", None)
    if isinstance(head, schema.ConvolutionalHead | schema.WeightSharedHead):
        yield from _dropout_of("model.head", head, written.fields)


@rule(Written, severity="note", on="checking")
def scales_are_used(written: Written) -> Remarks:
    """Explicit scales replace the range of scales."""
    anchors = getattr(written.experiment.model, "anchors", None)
    names = ("min_scale", "max_scale")
    given = [name for name in names if f"model.anchors.{name}" in written.fields]
    if isinstance(anchors, schema.SsdAnchors) and anchors.scales and given:
        problem = f"{' and '.join(given)} have no effect beside scales"
        yield Remark(f"model.anchors.{given[0]}", problem, "take one or the other out")


_PROPOSALS, _BOXES = "proposals", "boxes"


@rule(schema.FasterRcnn, severity="warning", on="checking")
def proposals_have_anchors(model: schema.FasterRcnn) -> Remarks:
    """An anchor becomes one proposal at most."""
    anchors, proposals = _count_anchors(model), model.proposals.max_proposals
    if anchors and proposals > anchors:
        path = f"{_PROPOSALS}.max_proposals"
        problem = (
            f"max_proposals {proposals} is more than the {anchors} anchors of an image: the rest "
            "is padding, which the second stage still computes"
        )
        yield Remark(path, problem, f"{Setting(f'model.{path}', anchors)}")


@rule(schema.FasterRcnn, severity="warning", on="checking")
def samples_have_anchors(model: schema.FasterRcnn) -> Remarks:
    """A sample of the anchors is a part of them."""
    anchors, sample = _count_anchors(model), model.proposals.sample_size
    if anchors and sample > anchors:
        path = f"{_PROPOSALS}.sample_size"
        problem = (
            f"no image can fill a sample_size of {sample}: it has {count_text(anchors, 'anchor')}"
        )
        yield Remark(path, problem, f"{Setting(f'model.{path}', anchors)}")


@rule(schema.FasterRcnn, severity="warning", on="checking")
def samples_have_positives(model: schema.FasterRcnn) -> Remarks:
    """The number of matched boxes in a sample is rounded down, to none perhaps."""
    mined = model.boxes is not None and model.boxes.hard_example_miner is not None
    stages = {_PROPOSALS: model.proposals, _BOXES: None if mined else model.boxes}
    for path, stage in stages.items():
        if stage is not None and int(stage.sample_size * stage.positive_fraction) < 1:
            share = f"{stage.positive_fraction:g} of a sample_size of {stage.sample_size}"
            problem = (
                f"positive_fraction {share} is less than one box: this stage is trained with "
                "background alone"
            )
            fix = f"raise model.{path}.sample_size or model.{path}.positive_fraction"
            yield Remark(f"{path}.positive_fraction", problem, fix)


@rule(schema.FasterRcnn, severity="warning", on="checking")
def anchors_fit_into_images(model: schema.FasterRcnn) -> Remarks:
    """Unless they are clipped, training leaves out anchors that leave the image."""
    shapes = [shape for shapes in _shapes(model.proposals.anchors) for shape in shapes]
    large = [shape for shape in shapes if not _fits(*shape, model)]
    if large and not model.proposals.clip_anchors:
        height, width = large[-1]
        yield Remark(
            f"{_PROPOSALS}.clip_anchors",
            f"{len(large)} of {len(shapes)} shapes of anchors fit into no image, such as "
            f"{height:.0f} x {width:.0f} pixels: training leaves them out, and detection does not",
            f"{Setting('model.proposals.clip_anchors', True)}, or smaller anchors",
            "warning" if len(large) == len(shapes) else "note",
        )


@rule(schema.FasterRcnn, severity="warning", on="checking")
def anchors_stand_on_the_map(model: schema.FasterRcnn) -> Remarks:
    """A grid of anchors has the stride of its map."""
    anchors, neck = model.proposals.anchors, model.neck
    if not isinstance(anchors, schema.GridAnchors) or not isinstance(neck, Pyramid):
        return
    stride = 2**neck.min_level
    for name in ("height_stride", "width_stride"):
        given, path = getattr(anchors, name), f"{_PROPOSALS}.anchors.{name}"
        if given != stride:
            problem = f"anchors stand every {given} pixels, but those of the map every {stride}"
            yield Remark(path, problem, f"{Setting(f'model.{path}', stride)}")


@rule(schema.FasterRcnn, severity="warning", on="checking")
def crops_have_pixels(model: schema.FasterRcnn) -> Remarks:
    """A crop is taken from a map that is larger than itself."""
    sides = _map_sides(model)
    crop = model.boxes.crop if model.boxes is not None else None
    if isinstance(crop, schema.CropAndResize) and len(sides) == 1 and crop.size > min(sides[0]):
        rows, columns = sides[0]
        path = f"{_BOXES}.crop.size"
        problem = (
            f"crops of {crop.size} x {crop.size} points from a map of {rows} x {columns}: even the "
            "whole image has fewer pixels than its crop"
        )
        fix = f"a larger network input, or {Setting(f'model.{path}', min(sides[0]))}"
        yield Remark(path, problem, fix)


@rule(schema.FasterRcnn, severity="warning", on="checking")
def classes_are_told_apart(model: schema.FasterRcnn) -> Remarks:
    """Without a second stage all detections are of the first class."""
    if model.boxes is None and model.num_classes > 1:
        problem = (
            f"{model.num_classes} classes without a second stage: all detections are of the first"
        )
        fix = f"give model.boxes (number_of_stages 2), or {Setting('model.num_classes', 1)}"
        yield Remark("num_classes", problem, fix)


@rule(schema.FasterRcnn, severity="warning", on="checking")
def proposals_are_trained(model: schema.FasterRcnn) -> Remarks:
    """Objectness and boxes of the first stage are trained."""
    names = ("objectness_weight", "localization_weight")
    yield from _untrained(model.proposals, _PROPOSALS, names, "first stage", "model.")


@rule(schema.FasterRcnn, severity="note", on="checking")
def padding_is_there(model: schema.FasterRcnn) -> Remarks:
    """A mask of the padding needs padding."""
    if model.mask_padding and isinstance(model.resizer, schema.FixedShapeResizer):
        problem = "mask_padding has no effect: a fixed_shape resizer pads no image"
        yield Remark("mask_padding", problem, f"{Setting('model.mask_padding', False)}")


@rule(Written, severity="note", on="checking")
def two_stage_dropout_drops(written: Written) -> Remarks:
    """Dropout of the second stage is on and drops something, or it is off."""
    boxes = getattr(written.experiment.model, "boxes", None)
    if isinstance(boxes, schema.RoIHead):
        yield from _dropout_of("model.boxes", boxes, written.fields)


def _count_anchors(model: schema.FasterRcnn) -> int:
    """Returns the anchors of an image, 0 if they are not known before the model is built."""
    sides, shapes = _map_sides(model), _shapes(model.proposals.anchors)
    if len(sides) != len(shapes):
        return 0
    return sum(
        math.prod(size) * len(level_shapes)
        for size, level_shapes in zip(sides, shapes, strict=True)
    )


def _map_sides(model: schema.FasterRcnn) -> list[tuple[int, int]]:
    """Returns height and width of each map of a pyramid."""
    if not isinstance(model.neck, Pyramid):
        return []
    rows, columns = model.resizer.input_size
    strides = [2**level for level in range(model.neck.min_level, model.neck.max_level + 1)]
    return [(-(-rows // stride), -(-columns // stride)) for stride in strides]


def _shapes(anchors: schema.Anchors) -> list[list[tuple[float, float]]]:
    """Returns height and width in pixels of the anchors of a location, for each map."""
    if isinstance(anchors, schema.GridAnchors):
        base = anchors.base_height, anchors.base_width
        return [
            [_shape(*base, scale, r) for r in anchors.aspect_ratios for scale in anchors.scales]
        ]
    if isinstance(anchors, schema.MultiscaleAnchors):
        count, levels = anchors.scales_per_octave, range(anchors.min_level, anchors.max_level + 1)
        pairs = [(r, 2 ** (step / count)) for r in anchors.aspect_ratios for step in range(count)]
        sizes = [anchors.anchor_scale * 2**level for level in levels]
        return [[_shape(size, size, scale, r) for r, scale in pairs] for size in sizes]
    if isinstance(anchors, schema.FlexibleGridAnchors):
        grids = [zip(grid.sizes, grid.aspect_ratios, strict=False) for grid in anchors.grids]
        return [[_shape(size, size, 1.0, r) for size, r in grid] for grid in grids]
    return []


def _shape(height: float, width: float, scale: float, ratio: float) -> tuple[float, float]:
    return height * scale / ratio**0.5, width * scale * ratio**0.5


def _fits(height: float, width: float, model: schema.FasterRcnn) -> bool:
    """Says whether some image has room for a box."""
    resizer = model.resizer
    if model.mask_padding and isinstance(resizer, schema.KeepAspectRatioResizer):
        # Images stand or lie.
        short, long = sorted((height, width))
        return short <= resizer.min_dimension and long <= resizer.max_dimension
    rows, columns = resizer.input_size
    return height <= rows and width <= columns
