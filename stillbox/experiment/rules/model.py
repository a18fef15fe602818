"""Rules about backbone and head, and how they fit the input and the anchors."""

from collections.abc import Iterator

from stillbox.errors import nearest
from stillbox.experiment.rules.broken import Broken, OneStageRule
from stillbox.experiment.rules.input_sides import input_sides
from stillbox.experiment.schema import (
    ConvolutionalHead,
    FixedShapeResizer,
    MobileNetV1,
    OneStage,
    ResNet,
    ResNetV1,
    SsdAnchors,
    WeightSharedHead,
)

_RESNET_V1_DEPTHS = (50, 101, 152)
_RESNET_DEPTHS = (10, 14, 18, 26, 34, 50, 101, 152, 200)


def image_is_large_enough(model: OneStage) -> Iterator[Broken]:
    """A backbone needs a least side (fact sheet 3.1)."""
    backbone = model.backbone
    for path, side in input_sides(model):
        # Sides below 1 have been reported by the limits, or by the canvas that is missing.
        if 1 <= side < backbone.min_side:
            yield Broken(
                path,
                f"an image side of {side} pixels is too small for {backbone.kind}",
                f"at least {backbone.min_side}",
            )


def channels_are_three(model: OneStage) -> Iterator[Broken]:
    """Images are RGB."""
    lists = {
        "model.pixels.mean": model.pixels.mean,
        "model.pixels.std": model.pixels.std,
    }
    if not isinstance(model.resizer, FixedShapeResizer):
        lists["model.resizer.pad_value"] = model.resizer.pad_value
    for path, values in lists.items():
        if len(values) != 3:
            yield Broken(path, f"{path} has {len(values)} numbers", "give one for each of R, G, B")


def backbone_exists(model: OneStage) -> Iterator[Broken]:
    """The backbone is one that was ever defined."""
    backbone, path = model.backbone, "model.backbone"
    if isinstance(backbone, ResNetV1 | ResNet):
        depths = _RESNET_DEPTHS if isinstance(backbone, ResNet) else _RESNET_V1_DEPTHS
        if backbone.depth not in depths:
            what = f"there is no {backbone.kind} with {backbone.depth} layers"
            yield Broken(f"{path}.depth", what, f"one of {', '.join(map(str, depths))}")
    if isinstance(backbone, ResNet) and len(backbone.group_strides) != 4:
        what = f"group_strides has {len(backbone.group_strides)} numbers"
        yield Broken(f"{path}.group_strides", what, "give four, such as [1, 2, 2, 2]")
    if isinstance(backbone, MobileNetV1) and len(backbone.last_depths) != 2:
        what = f"last_depths has {len(backbone.last_depths)} numbers"
        yield Broken(f"{path}.last_depths", what, "give two, such as [1024, 1024]")
    if backbone.last_layer and backbone.last_layer not in backbone.layers:
        what = f"{backbone.kind} has no layer {backbone.last_layer!r}"
        yield Broken(f"{path}.last_layer", what, nearest(backbone.last_layer, backbone.layers))


def stem_folds_the_image(model: OneStage) -> Iterator[Broken]:
    """Blocks of two by two pixels cover images of even sides only."""
    if not isinstance(model.backbone, ResNet) or not model.backbone.space_to_depth_stem:
        return
    for path, side in input_sides(model):
        if side >= 1 and model.pad_to_multiple >= 1 and (side + -side % model.pad_to_multiple) % 2:
            what = f"space_to_depth_stem wants an even image side, not {side}"
            yield Broken(path, what, f"such as {side + 1}, or set space_to_depth_stem to false")


def head_is_consistent(model: OneStage) -> Iterator[Broken]:
    """The head's settings do not contradict each other (fact sheet 3.3)."""
    head, path = model.head, "model.head"
    if isinstance(head, ConvolutionalHead) and 0 < head.max_depth < head.min_depth:
        yield Broken(
            f"{path}.min_depth",
            f"min_depth {head.min_depth} is above max_depth {head.max_depth}",
            "lower it, or raise max_depth",
        )
    if not isinstance(head, ConvolutionalHead | WeightSharedHead):
        return
    if head.depthwise and head.kernel_size == 1:
        yield Broken(
            f"{path}.depthwise",
            "a depthwise head with kernel_size 1 looks at single pixels of single channels",
            "set kernel_size to 3, or depthwise to false",
        )


def shared_head_has_equal_anchors(model: OneStage) -> Iterator[Broken]:
    """One kernel for all maps predicts as many anchors on each (fact sheet 3.3)."""
    anchors = model.anchors
    if not isinstance(model.head, WeightSharedHead):
        return
    if isinstance(anchors, SsdAnchors) and anchors.reduce_boxes_in_lowest_layer:
        yield Broken(
            "model.anchors.reduce_boxes_in_lowest_layer",
            "a weight_shared head predicts as many anchors on every map, but the finest has three",
            "set it to false",
        )


MODEL_RULES: tuple[OneStageRule, ...] = (
    image_is_large_enough,
    channels_are_three,
    backbone_exists,
    stem_folds_the_image,
    head_is_consistent,
    shared_head_has_equal_anchors,
)
"""All of them."""
