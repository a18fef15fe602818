"""Rules about the detector."""

from collections.abc import Iterator

from stillbox.errors import nearest
from stillbox.experiment.rules.broken import Broken, Rule
from stillbox.experiment.schema import (
    Experiment,
    FixedShapeResizer,
    KeepAspectRatioResizer,
    SigmoidFocalLoss,
)

_TAPS = (
    "conv_0",
    *(f"conv_{layer}_{part}" for layer in range(1, 14) for part in ("depthwise", "pointwise")),
)
_MIN_SIDE = 33


def thresholds_are_ordered(experiment: Experiment) -> Iterator[Broken]:
    """The matcher's ignored band lies between background and match."""
    matcher, path = experiment.model.matcher, "model.matcher"
    matched, unmatched = matcher.matched_threshold, matcher.unmatched_threshold
    if unmatched > matched:
        yield Broken(
            f"{path}.unmatched_threshold",
            f"unmatched_threshold {unmatched} is above matched_threshold {matched}",
            "lower it, or raise matched_threshold",
        )
    # Swapping needs a band between the thresholds to swap with.
    if unmatched == matched and not matcher.negatives_lower_than_unmatched:
        yield Broken(
            f"{path}.negatives_lower_than_unmatched",
            f"negatives_lower_than_unmatched false swaps background and ignored anchors, "
            f"but with both thresholds at {matched} no anchor would be background",
            "set it to true, or lower unmatched_threshold",
        )


def nms_limits_are_ordered(experiment: Experiment) -> Iterator[Broken]:
    """No class may ask for more boxes than the image has (fact sheet 1.3)."""
    nms = experiment.model.postprocessing.nms
    if nms.max_per_class > nms.max_total:
        yield Broken(
            "model.postprocessing.nms.max_per_class",
            f"max_per_class {nms.max_per_class} is more than max_total {nms.max_total}",
            "lower it, or raise max_total",
        )


def dimensions_are_ordered(experiment: Experiment) -> Iterator[Broken]:
    """The short side is not asked to be longer than the long one."""
    resizer = experiment.model.resizer
    if isinstance(resizer, KeepAspectRatioResizer) and (
        resizer.min_dimension > resizer.max_dimension
    ):
        yield Broken(
            "model.resizer.min_dimension",
            f"min_dimension {resizer.min_dimension} is above max_dimension {resizer.max_dimension}",
            "lower it, or raise max_dimension",
        )


def image_is_large_enough(experiment: Experiment) -> Iterator[Broken]:
    """MobileNet needs 33 pixels a side (fact sheet 3.1)."""
    resizer, path = experiment.model.resizer, "model.resizer"
    sides = (
        {"height": resizer.height, "width": resizer.width}
        if isinstance(resizer, FixedShapeResizer)
        else {"max_dimension": resizer.max_dimension}
    )
    for name, side in sides.items():
        # Sides below 1 have been reported by the limits.
        if 1 <= side < _MIN_SIDE:
            yield Broken(
                f"{path}.{name}",
                f"an image side of {side} pixels is too small for mobilenet_v1",
                f"at least {_MIN_SIDE}",
            )


def channels_are_three(experiment: Experiment) -> Iterator[Broken]:
    """Images are RGB."""
    lists = {
        "model.pixels.mean": experiment.model.pixels.mean,
        "model.pixels.std": experiment.model.pixels.std,
    }
    if isinstance(experiment.model.resizer, KeepAspectRatioResizer):
        lists["model.resizer.pad_value"] = experiment.model.resizer.pad_value
    for path, values in lists.items():
        if len(values) != 3:
            yield Broken(path, f"{path} has {len(values)} numbers", "give one for each of R, G, B")


def taps_exist(experiment: Experiment) -> Iterator[Broken]:
    """The neck taps layers of the backbone, from fine to coarse."""
    taps, path = experiment.model.neck.taps, "model.neck.taps"
    unknown = [tap for tap in taps if tap not in _TAPS]
    for tap in unknown:
        yield Broken(path, f"mobilenet_v1 has no layer {tap!r}", nearest(tap, _TAPS))
    # A set drops repetitions, so one comparison finds both mistakes.
    positions = [_TAPS.index(tap) for tap in taps if tap in _TAPS]
    if positions != sorted(set(positions)):
        yield Broken(path, "the taps are not in order", "name each once, from fine to coarse")
    if not taps:
        yield Broken(path, "the neck taps nothing", f"for example [{_TAPS[-1]}]")


def every_map_has_anchors(experiment: Experiment) -> Iterator[Broken]:
    """Anchors and feature maps are counted alike; the original fails late on this."""
    neck, anchors = experiment.model.neck, experiment.model.anchors
    maps = len(neck.taps) + len(neck.extra_depths)
    if anchors.num_layers != maps:
        yield Broken(
            "model.anchors.num_layers",
            f"anchors for {anchors.num_layers} feature maps, but the neck makes {maps} "
            f"({len(neck.taps)} taps and {len(neck.extra_depths)} extra)",
            f"set num_layers to {maps}, or change the neck",
        )
    lists = {
        "scales": anchors.scales,
        "height_strides": anchors.height_strides,
        "width_strides": anchors.width_strides,
        "height_offsets": anchors.height_offsets,
        "width_offsets": anchors.width_offsets,
    }
    for name, values in lists.items():
        if values and len(values) != anchors.num_layers:
            yield Broken(
                f"model.anchors.{name}",
                f"{name} has {len(values)} values for {anchors.num_layers} feature maps",
                "one for each map, or none",
            )


def anchors_have_shapes(experiment: Experiment) -> Iterator[Broken]:
    """Scales and ratios give at least one anchor a place."""
    anchors, path = experiment.model.anchors, "model.anchors"
    if not anchors.aspect_ratios:
        yield Broken(f"{path}.aspect_ratios", "no aspect ratios", "give at least one, such as 1.0")
    # Explicit scales make the range of scales meaningless.
    if anchors.scales:
        return
    if anchors.min_scale > anchors.max_scale:
        yield Broken(
            f"{path}.min_scale",
            f"min_scale {anchors.min_scale} is above max_scale {anchors.max_scale}",
            "lower it, or raise max_scale",
        )
    if anchors.num_layers == 1:
        yield Broken(
            f"{path}.scales",
            "one feature map has no room between min_scale and max_scale",
            "give scales, one number",
        )


def strides_come_in_pairs(experiment: Experiment) -> Iterator[Broken]:
    """A grid has a vertical and a horizontal distance, or neither."""
    anchors = experiment.model.anchors
    for name in ("strides", "offsets"):
        vertical = getattr(anchors, f"height_{name}")
        horizontal = getattr(anchors, f"width_{name}")
        if bool(vertical) != bool(horizontal):
            given, missing = ("height", "width") if vertical else ("width", "height")
            yield Broken(
                f"model.anchors.{given}_{name}",
                f"{given}_{name} without {missing}_{name}",
                "give both or neither",
            )


def focal_loss_has_no_miner(experiment: Experiment) -> Iterator[Broken]:
    """Both answer the same question in contradictory ways (fact sheet 1.3)."""
    loss = experiment.model.loss
    if loss.hard_example_miner is not None and isinstance(loss.classification, SigmoidFocalLoss):
        yield Broken(
            "model.loss.hard_example_miner",
            "hard_example_miner together with a focal loss: both choose the hard examples",
            "take the miner out, or use the plain sigmoid loss",
        )


def background_has_a_target(experiment: Experiment) -> Iterator[Broken]:
    """One-hot on the background needs a slot for it."""
    model = experiment.model
    if not model.background_class and not model.loss.encode_background_as_zeros:
        yield Broken(
            "model.background_class",
            "without a background class there is no slot that a background target could fill",
            "set model.loss.encode_background_as_zeros to true",
        )


def depths_are_ordered(experiment: Experiment) -> Iterator[Broken]:
    """The head's channel limits are a range."""
    head = experiment.model.head
    if 0 < head.max_depth < head.min_depth:
        yield Broken(
            "model.head.min_depth",
            f"min_depth {head.min_depth} is above max_depth {head.max_depth}",
            "lower it, or raise max_depth",
        )


MODEL_RULES: tuple[Rule, ...] = (
    thresholds_are_ordered,
    nms_limits_are_ordered,
    dimensions_are_ordered,
    image_is_large_enough,
    channels_are_three,
    taps_exist,
    every_map_has_anchors,
    anchors_have_shapes,
    strides_come_in_pairs,
    focal_loss_has_no_miner,
    background_has_a_target,
    depths_are_ordered,
)
"""All of them."""
