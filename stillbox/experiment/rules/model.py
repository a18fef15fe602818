"""Rules about backbone, neck and head, and how they fit the input and the anchors."""

from collections.abc import Iterator, Mapping

from stillbox.errors import nearest
from stillbox.experiment.rules.broken import Broken, Rule
from stillbox.experiment.schema import (
    ConvolutionalHead,
    Experiment,
    FixedShapeResizer,
    Fpn,
    MobileNetV1,
    Model,
    MultiscaleAnchors,
    Ppn,
    ResNet,
    ResNetV1,
    SsdAnchors,
    SsdLayers,
    WeightSharedHead,
)

_RESNET_V1_DEPTHS = (50, 101, 152)
_RESNET_DEPTHS = (10, 14, 18, 26, 34, 50, 101, 152, 200)


def image_is_large_enough(experiment: Experiment) -> Iterator[Broken]:
    """A backbone needs a least side (fact sheet 3.1)."""
    backbone = experiment.model.backbone
    for path, side in _input_sides(experiment.model):
        # Sides below 1 have been reported by the limits, or by the canvas that is missing.
        if 1 <= side < backbone.min_side:
            yield Broken(
                path,
                f"an image side of {side} pixels is too small for {backbone.kind}",
                f"at least {backbone.min_side}",
            )


def pyramid_fits_the_image(experiment: Experiment) -> Iterator[Broken]:
    """Going down the pyramid doubles a map, so sides are multiples of the coarsest stride."""
    model = experiment.model
    if not isinstance(model.neck, Fpn) or model.neck.explicit_padding or model.pad_to_multiple < 1:
        return
    stride = 2 ** min(model.neck.max_level, max(model.backbone.levels))
    for path, side in _input_sides(model):
        padded = side + -side % model.pad_to_multiple
        if side >= 1 and padded % stride:
            below = max(side // stride, 1) * stride
            yield Broken(
                path,
                f"an image side of {side} pixels does not fit a feature pyramid whose coarsest "
                f"backbone map has a stride of {stride}",
                f"the nearest sides that do are {below} and {below + stride}; "
                f"or set model.pad_to_multiple to {stride}",
            )


def channels_are_three(experiment: Experiment) -> Iterator[Broken]:
    """Images are RGB."""
    lists = {
        "model.pixels.mean": experiment.model.pixels.mean,
        "model.pixels.std": experiment.model.pixels.std,
    }
    if not isinstance(experiment.model.resizer, FixedShapeResizer):
        lists["model.resizer.pad_value"] = experiment.model.resizer.pad_value
    for path, values in lists.items():
        if len(values) != 3:
            yield Broken(path, f"{path} has {len(values)} numbers", "give one for each of R, G, B")


def backbone_exists(experiment: Experiment) -> Iterator[Broken]:
    """The backbone is one that was ever defined."""
    backbone, path = experiment.model.backbone, "model.backbone"
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


def taps_exist(experiment: Experiment) -> Iterator[Broken]:
    """The neck taps layers of the backbone, from fine to coarse."""
    backbone, neck = experiment.model.backbone, experiment.model.neck
    taps, names = neck.taps_of(backbone), backbone.layers
    path = "model.neck.tap" if isinstance(neck, Ppn) else "model.neck.taps"
    if isinstance(neck, Fpn):
        yield from _levels_exist(neck, backbone.levels)
        return
    for tap in taps:
        if tap not in names:
            what = f"{backbone.kind} has no layer {tap!r}"
            yield Broken(path, what, f"{nearest(tap, names)}; it has {_examples(names)}")
    # A set drops repetitions, so one comparison finds both mistakes.
    positions = [names.index(tap) for tap in taps if tap in names]
    if positions != sorted(set(positions)):
        yield Broken(path, "the taps are not in order", "name each once, from fine to coarse")
    if not taps:
        yield Broken(path, "the neck taps nothing", f"for example [{names[-1]}]")


def _levels_exist(neck: Fpn, levels: Mapping[int, str]) -> Iterator[Broken]:
    finest, coarsest = min(levels), max(levels)
    if not finest <= neck.min_level <= coarsest:
        what = f"min_level {neck.min_level}: the backbone has the levels {finest} to {coarsest}"
        yield Broken("model.neck.min_level", what, f"give one from {finest} to {coarsest}")
    elif missing := [level for level in range(neck.min_level, coarsest) if level not in levels]:
        what = (
            f"the backbone has no map of level {missing[0]} (a stride of {2 ** missing[0]} pixels)"
        )
        yield Broken("model.backbone", what, "a pyramid wants every level, from group_strides of 2")
    elif neck.max_level < neck.min_level:
        what = f"max_level {neck.max_level} is below min_level {neck.min_level}"
        yield Broken("model.neck.max_level", what, "raise it")


def every_map_has_anchors(experiment: Experiment) -> Iterator[Broken]:
    """Anchors and feature maps are counted alike; the original fails late on this."""
    model = experiment.model
    maps, described = model.neck.count_maps(), model.anchors.count_maps()
    if isinstance(model.neck, Fpn) and isinstance(model.anchors, MultiscaleAnchors):
        for name in ("min_level", "max_level"):
            level, wanted = getattr(model.anchors, name), getattr(model.neck, name)
            if level != wanted:
                what = f"anchors of {name} {level} for a pyramid of {name} {wanted}"
                yield Broken(f"model.anchors.{name}", what, f"set it to {wanted}")
    elif described != maps:
        ssd = isinstance(model.anchors, SsdAnchors)
        yield Broken(
            "model.anchors.num_layers" if ssd else "model.anchors",
            f"anchors for {described} feature maps, but the neck makes {maps}",
            f"describe anchors for {maps} maps, or change the neck",
        )


def stem_folds_the_image(experiment: Experiment) -> Iterator[Broken]:
    """Blocks of two by two pixels cover images of even sides only."""
    model = experiment.model
    if not isinstance(model.backbone, ResNet) or not model.backbone.space_to_depth_stem:
        return
    for path, side in _input_sides(model):
        if side >= 1 and model.pad_to_multiple >= 1 and (side + -side % model.pad_to_multiple) % 2:
            what = f"space_to_depth_stem wants an even image side, not {side}"
            yield Broken(path, what, f"such as {side + 1}, or set space_to_depth_stem to false")


def extra_maps_have_strides(experiment: Experiment) -> Iterator[Broken]:
    """Strides are given for all extra maps or for none."""
    neck = experiment.model.neck
    if isinstance(neck, SsdLayers) and neck.extra_strides:
        strides, depths = len(neck.extra_strides), len(neck.extra_depths)
        if strides != depths:
            what = f"{strides} extra_strides for {depths} extra_depths"
            yield Broken("model.neck.extra_strides", what, "give one for each, or none")


def head_is_consistent(experiment: Experiment) -> Iterator[Broken]:
    """The head's settings do not contradict each other (fact sheet 3.3)."""
    head, path = experiment.model.head, "model.head"
    if isinstance(head, ConvolutionalHead) and 0 < head.max_depth < head.min_depth:
        yield Broken(
            f"{path}.min_depth",
            f"min_depth {head.min_depth} is above max_depth {head.max_depth}",
            "lower it, or raise max_depth",
        )
    if head.depthwise and head.kernel_size == 1:
        yield Broken(
            f"{path}.depthwise",
            "a depthwise head with kernel_size 1 looks at single pixels of single channels",
            "set kernel_size to 3, or depthwise to false",
        )


def shared_head_has_equal_anchors(experiment: Experiment) -> Iterator[Broken]:
    """One kernel for all maps predicts as many anchors on each (fact sheet 3.3)."""
    anchors = experiment.model.anchors
    if not isinstance(experiment.model.head, WeightSharedHead):
        return
    if isinstance(anchors, SsdAnchors) and anchors.reduce_boxes_in_lowest_layer:
        yield Broken(
            "model.anchors.reduce_boxes_in_lowest_layer",
            "a weight_shared head predicts as many anchors on every map, but the finest has three",
            "set it to false",
        )


def _input_sides(model: Model) -> Iterator[tuple[str, int]]:
    """Yields the sides of the network input with the fields that they come from."""
    resizer, path = model.resizer, "model.resizer"
    height, width = resizer.input_size
    if isinstance(resizer, FixedShapeResizer):
        yield from ((f"{path}.height", height), (f"{path}.width", width))
    elif hasattr(resizer, "canvas"):
        yield from ((f"{path}.canvas", side) for side in dict.fromkeys((height, width)))
    else:
        yield f"{path}.max_dimension", height


def _examples(names: tuple[str, ...]) -> str:
    return f"{names[0]} ... {names[-1]}"


MODEL_RULES: tuple[Rule, ...] = (
    image_is_large_enough,
    pyramid_fits_the_image,
    channels_are_three,
    backbone_exists,
    taps_exist,
    every_map_has_anchors,
    stem_folds_the_image,
    extra_maps_have_strides,
    head_is_consistent,
    shared_head_has_equal_anchors,
)
"""All of them."""
