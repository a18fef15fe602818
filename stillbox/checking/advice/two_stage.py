"""Proposals, minibatches and crops of two-stage models."""

from stillbox.checking.advice.advice import Advice, Findings, Origins
from stillbox.checking.advice.scores import dropout_of
from stillbox.experiment.schema import (
    Anchors,
    CropAndResize,
    Experiment,
    FasterRcnn,
    FixedShapeResizer,
    FlexibleGridAnchors,
    GridAnchors,
    KeepAspectRatioResizer,
    MultiscaleAnchors,
)
from stillbox.experiment.schema.necks import Pyramid
from stillbox.printing import count_text

_PROPOSALS, _BOXES = "model.proposals", "model.boxes"


def proposals_have_anchors(experiment: Experiment, model: FasterRcnn, origins: Origins) -> Findings:
    """An anchor becomes one proposal at most."""
    anchors, proposals = _count_anchors(model), model.proposals.max_proposals
    if anchors and proposals > anchors:
        path = f"{_PROPOSALS}.max_proposals"
        yield Advice(
            "warning",
            path,
            f"max_proposals {proposals} is more than the {anchors} anchors of an image: the rest "
            "is padding, which the second stage computes all the same",
            f"--set {path}={anchors}",
        )


def samples_have_anchors(experiment: Experiment, model: FasterRcnn, origins: Origins) -> Findings:
    """A sample of the anchors is a part of them."""
    anchors, sample = _count_anchors(model), model.proposals.sample_size
    if anchors and sample > anchors:
        path = f"{_PROPOSALS}.sample_size"
        yield Advice(
            "warning",
            path,
            f"no image can fill a sample_size of {sample}: it has {count_text(anchors, 'anchor')}",
            f"--set {path}={anchors}",
        )


def samples_have_positives(experiment: Experiment, model: FasterRcnn, origins: Origins) -> Findings:
    """The number of matched boxes in a sample is rounded down, to none perhaps."""
    mined = model.boxes is not None and model.boxes.hard_example_miner is not None
    stages = {_PROPOSALS: model.proposals, _BOXES: None if mined else model.boxes}
    for path, stage in stages.items():
        if stage is not None and int(stage.sample_size * stage.positive_fraction) < 1:
            share = f"{stage.positive_fraction:g} of a sample_size of {stage.sample_size}"
            yield Advice(
                "warning",
                f"{path}.positive_fraction",
                f"positive_fraction {share} is less than one box: this stage is trained with "
                "background alone",
                f"raise {path}.sample_size or {path}.positive_fraction",
            )


def anchors_fit_into_images(
    experiment: Experiment, model: FasterRcnn, origins: Origins
) -> Findings:
    """Unless they are clipped, training leaves out anchors that leave the image."""
    shapes = [shape for shapes in _shapes(model.proposals.anchors) for shape in shapes]
    large = [shape for shape in shapes if not _fits(*shape, model)]
    if large and not model.proposals.clip_anchors:
        height, width = large[-1]
        yield Advice(
            "warning" if len(large) == len(shapes) else "note",
            f"{_PROPOSALS}.clip_anchors",
            f"{len(large)} of {len(shapes)} shapes of anchors fit into no image, such as "
            f"{height:.0f} x {width:.0f} pixels: training leaves them out, and detection does not",
            f"--set {_PROPOSALS}.clip_anchors=true, or smaller anchors",
        )


def anchors_stand_on_the_map(
    experiment: Experiment, model: FasterRcnn, origins: Origins
) -> Findings:
    """A grid of anchors has the stride of its map."""
    anchors, neck = model.proposals.anchors, model.neck
    if not isinstance(anchors, GridAnchors) or not isinstance(neck, Pyramid):
        return
    stride = 2**neck.min_level
    for name in ("height_stride", "width_stride"):
        given, path = getattr(anchors, name), f"{_PROPOSALS}.anchors.{name}"
        if given != stride:
            yield Advice(
                "warning",
                path,
                f"anchors stand every {given} pixels, but those of the map every {stride}",
                f"--set {path}={stride}",
            )


def crops_have_pixels(experiment: Experiment, model: FasterRcnn, origins: Origins) -> Findings:
    """A crop is taken from a map that is larger than itself."""
    sides = _map_sides(model)
    crop = model.boxes.crop if model.boxes is not None else None
    if isinstance(crop, CropAndResize) and len(sides) == 1 and crop.size > min(sides[0]):
        rows, columns = sides[0]
        path = f"{_BOXES}.crop.size"
        yield Advice(
            "warning",
            path,
            f"crops of {crop.size} x {crop.size} points from a map of {rows} x {columns}: even the "
            "whole image has fewer pixels than its crop",
            f"a larger network input, or --set {path}={min(sides[0])}",
        )


def classes_are_told_apart(experiment: Experiment, model: FasterRcnn, origins: Origins) -> Findings:
    """Without a second stage all detections are of the first class."""
    if model.boxes is None and model.num_classes > 1:
        yield Advice(
            "warning",
            "model.num_classes",
            f"{model.num_classes} classes without a second stage: all detections are of the first",
            "give model.boxes (number_of_stages 2), or --set model.num_classes=1",
        )


def proposals_are_trained(experiment: Experiment, model: FasterRcnn, origins: Origins) -> Findings:
    """Objectness and boxes of the first stage are trained."""
    for name in ("objectness_weight", "localization_weight"):
        if getattr(model.proposals, name) == 0.0:
            path = f"{_PROPOSALS}.{name}"
            what = f"{name} 0: this half of the first stage is never trained"
            yield Advice("warning", path, what, f"--set {path}=1")


def padding_is_there(experiment: Experiment, model: FasterRcnn, origins: Origins) -> Findings:
    """Padding is masked where there is any."""
    if model.mask_padding and isinstance(model.resizer, FixedShapeResizer):
        what = "mask_padding has no effect: a fixed_shape resizer pads no image"
        yield Advice("note", "model.mask_padding", what, "--set model.mask_padding=false")


def two_stage_dropout_drops(
    experiment: Experiment, model: FasterRcnn, origins: Origins
) -> Findings:
    """Dropout of the second stage is on and drops something, or it is off."""
    if model.boxes is not None:
        yield from dropout_of(_BOXES, model.boxes, origins)


def _count_anchors(model: FasterRcnn) -> int:
    """Returns the anchors of an image, 0 if they are not known before the model is built."""
    sides, shapes = _map_sides(model), _shapes(model.proposals.anchors)
    if len(sides) != len(shapes):
        return 0
    return sum(
        rows * columns * len(own) for (rows, columns), own in zip(sides, shapes, strict=True)
    )


def _map_sides(model: FasterRcnn) -> list[tuple[int, int]]:
    """Returns height and width of each map of a pyramid."""
    if not isinstance(model.neck, Pyramid):
        return []
    rows, columns = model.resizer.input_size
    strides = [2**level for level in range(model.neck.min_level, model.neck.max_level + 1)]
    return [(-(-rows // stride), -(-columns // stride)) for stride in strides]


def _shapes(anchors: Anchors) -> list[list[tuple[float, float]]]:
    """Returns height and width in pixels of the anchors of a location, for each map."""
    if isinstance(anchors, GridAnchors):
        base = anchors.base_height, anchors.base_width
        return [
            [_shape(*base, scale, r) for r in anchors.aspect_ratios for scale in anchors.scales]
        ]
    if isinstance(anchors, MultiscaleAnchors):
        scales = [
            2 ** (step / anchors.scales_per_octave) for step in range(anchors.scales_per_octave)
        ]
        sizes = [
            anchors.anchor_scale * 2**level
            for level in range(anchors.min_level, anchors.max_level + 1)
        ]
        return [
            [_shape(size, size, scale, r) for r in anchors.aspect_ratios for scale in scales]
            for size in sizes
        ]
    if isinstance(anchors, FlexibleGridAnchors):
        return [
            [
                _shape(size, size, 1.0, r)
                for size, r in zip(grid.sizes, grid.aspect_ratios, strict=False)
            ]
            for grid in anchors.grids
        ]
    return []


def _shape(height: float, width: float, scale: float, ratio: float) -> tuple[float, float]:
    return height * scale / ratio**0.5, width * scale * ratio**0.5


def _fits(height: float, width: float, model: FasterRcnn) -> bool:
    """Says whether some image has room for a box."""
    resizer = model.resizer
    if model.mask_padding and isinstance(resizer, KeepAspectRatioResizer):
        # Images stand or lie.
        short, long = sorted((height, width))
        return short <= resizer.min_dimension and long <= resizer.max_dimension
    rows, columns = resizer.input_size
    return height <= rows and width <= columns
