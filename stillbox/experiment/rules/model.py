"""Rules about resizer, backbone and head, and how they fit each other."""

from collections.abc import Iterator

from stillbox.errors import nearest
from stillbox.experiment.rules.rule import Broken, input_sides, padding_multiple, rule
from stillbox.experiment.schema import (
    CanvasResizer,
    ConvolutionalHead,
    FasterRcnn,
    FixedShapeResizer,
    MobileNetV1,
    OneStage,
    PadToMultipleResizer,
    ResNet,
    ResNetV1,
    SsdAnchors,
    WeightSharedHead,
)
from stillbox.printing import count_text

# The original's Faster R-CNN has no coarser map than the proposals', and so a smaller one.
_PROPOSALS_MIN_SIDE = 33
_RESNET_V1_DEPTHS = (50, 101, 152)
_RESNET_DEPTHS = (10, 14, 18, 26, 34, 50, 101, 152, 200)


@rule(CanvasResizer)
def canvas_is_given(resizer: CanvasResizer) -> Iterator[Broken]:
    """A resizer that leaves sizes as they are needs the one shape of the network input."""
    path = "model.resizer.canvas"
    if not resizer.canvas:
        yield Broken(
            "canvas",
            f"the resizer {resizer.kind} gives images of many shapes, and the network has one",
            f"--set {path}=[HEIGHT,WIDTH], pixels that every image fits into; it is padded to that",
        )
    elif len(resizer.canvas) != 2:
        yield Broken("canvas", f"canvas has {len(resizer.canvas)} numbers", "give height and width")
    elif isinstance(resizer, PadToMultipleResizer) and resizer.multiple >= 1:
        legal = [-(-side // resizer.multiple) * resizer.multiple for side in resizer.canvas]
        if legal != list(resizer.canvas):
            yield Broken(
                "canvas",
                f"canvas {list(resizer.canvas)} is no multiple of {resizer.multiple}",
                f"--set {path}=[{legal[0]},{legal[1]}]",
            )


@rule(OneStage, FasterRcnn)
def image_is_large_enough(model: OneStage | FasterRcnn) -> Iterator[Broken]:
    """A backbone has a least side."""
    backbone, least = model.backbone, model.backbone.min_side
    if isinstance(model, FasterRcnn) and isinstance(backbone, ResNetV1):
        least = _PROPOSALS_MIN_SIDE
    for path, side in input_sides(model):
        # Sides below 1 are reported as out of range, or as a missing canvas.
        if 1 <= side < least:
            what = f"an image side of {side} pixels is too small for {backbone.kind}"
            yield Broken(path, what, f"at least {least}")


@rule(OneStage, FasterRcnn)
def channels_are_three(model: OneStage | FasterRcnn) -> Iterator[Broken]:
    """Images are RGB."""
    lists = {"pixels.mean": model.pixels.mean, "pixels.std": model.pixels.std}
    if not isinstance(model.resizer, FixedShapeResizer):
        lists["resizer.pad_value"] = model.resizer.pad_value
    for path, values in lists.items():
        if len(values) != 3:
            what = f"model.{path} has {count_text(len(values), 'number')}"
            yield Broken(path, what, "give one for each of R, G, B")


@rule(ResNetV1, ResNet)
def resnet_exists(backbone: ResNetV1 | ResNet) -> Iterator[Broken]:
    """The depth is one of the published ones."""
    depths = _RESNET_DEPTHS if isinstance(backbone, ResNet) else _RESNET_V1_DEPTHS
    if backbone.depth not in depths:
        what = f"there is no {backbone.kind} with {backbone.depth} layers"
        yield Broken("depth", what, f"one of {', '.join(map(str, depths))}")
    if isinstance(backbone, ResNet) and len(backbone.group_strides) != 4:
        what = f"group_strides has {len(backbone.group_strides)} numbers"
        yield Broken("group_strides", what, "give four, such as [1, 2, 2, 2]")


@rule(MobileNetV1)
def mobilenet_ends_with_two_layers(backbone: MobileNetV1) -> Iterator[Broken]:
    """The last layers have a depth each."""
    if len(backbone.last_depths) != 2:
        what = f"last_depths has {len(backbone.last_depths)} numbers"
        yield Broken("last_depths", what, "give two, such as [1024, 1024]")


@rule(OneStage, FasterRcnn)
def last_layer_exists(model: OneStage | FasterRcnn) -> Iterator[Broken]:
    """The backbone ends with one of its layers."""
    backbone = model.backbone
    if backbone.last_layer and backbone.last_layer not in backbone.layers:
        what = f"{backbone.kind} has no layer {backbone.last_layer!r}"
        fix = nearest(backbone.last_layer, backbone.layers)
        yield Broken("backbone.last_layer", what, fix)


@rule(OneStage, FasterRcnn)
def stem_folds_the_image(model: OneStage | FasterRcnn) -> Iterator[Broken]:
    """Blocks of two by two pixels cover images of even sides only."""
    if not isinstance(model.backbone, ResNet) or not model.backbone.space_to_depth_stem:
        return
    multiple = padding_multiple(model)
    for path, side in input_sides(model):
        if side >= 1 and multiple >= 1 and (side + -side % multiple) % 2:
            what = f"space_to_depth_stem requires an even image side, not {side}"
            yield Broken(path, what, f"such as {side + 1}, or set space_to_depth_stem to false")


@rule(ConvolutionalHead, WeightSharedHead)
def depthwise_kernels_span_pixels(head: ConvolutionalHead | WeightSharedHead) -> Iterator[Broken]:
    """A depthwise kernel of one pixel only scales a channel."""
    if head.depthwise and head.kernel_size == 1:
        what = "a depthwise head with kernel_size 1 reads single pixels of single channels"
        yield Broken("depthwise", what, "set kernel_size to 3, or depthwise to false")


@rule(OneStage)
def shared_head_has_equal_anchors(model: OneStage) -> Iterator[Broken]:
    """One kernel for all maps predicts equally many anchors on each."""
    if not isinstance(model.head, WeightSharedHead) or not isinstance(model.anchors, SsdAnchors):
        return
    if model.anchors.reduce_boxes_in_lowest_layer:
        yield Broken(
            "anchors.reduce_boxes_in_lowest_layer",
            "a weight_shared head predicts as many anchors on every map, but the finest has three",
            "set it to false",
        )
