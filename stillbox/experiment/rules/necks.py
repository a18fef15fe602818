"""Rules about the neck: between the backbone's levels, the input and the anchors."""

from collections.abc import Iterator, Mapping

from stillbox.errors import nearest
from stillbox.experiment.rules.broken import Broken, OneStageRule
from stillbox.experiment.rules.input_sides import input_sides
from stillbox.experiment.schema import (
    Fpn,
    Identity,
    MultiscaleAnchors,
    NasFpn,
    OneStage,
    Ppn,
    RetinaNetFpn,
    SsdAnchors,
    SsdLayers,
)
from stillbox.experiment.schema.necks import Pyramid


def pyramid_fits_the_image(model: OneStage) -> Iterator[Broken]:
    """Going down the pyramid doubles a map, so sides are multiples of the coarsest stride."""
    top = _level_handed_down(model)
    if top is None or model.pad_to_multiple < 1:
        return
    stride = 2**top
    for path, side in input_sides(model):
        padded = side + -side % model.pad_to_multiple
        if side >= 1 and padded % stride:
            below = max(side // stride, 1) * stride
            yield Broken(
                path,
                f"an image side of {side} pixels does not fit a feature pyramid that hands down "
                f"a map of stride {stride}",
                f"the nearest sides that do are {below} and {below + stride}; "
                f"or set model.pad_to_multiple to {stride}",
            )


def _level_handed_down(model: OneStage) -> int | None:
    """Returns the coarsest level that is doubled to fit the next one; None: there is none."""
    neck = model.neck
    if isinstance(neck, NasFpn):
        return neck.max_level
    if isinstance(neck, RetinaNetFpn) or (isinstance(neck, Fpn) and not neck.explicit_padding):
        return min(neck.max_level, max(model.backbone.levels))
    return None


def taps_exist(model: OneStage) -> Iterator[Broken]:
    """The neck taps layers of the backbone, from fine to coarse."""
    backbone, neck = model.backbone, model.neck
    taps, names = neck.taps_of(backbone), backbone.layers
    path = "model.neck.tap" if isinstance(neck, Ppn) else "model.neck.taps"
    if isinstance(neck, Pyramid):
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


def _levels_exist(neck: Pyramid, levels: Mapping[int, str]) -> Iterator[Broken]:
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
    elif isinstance(neck, Identity) and neck.max_level > coarsest:
        what = f"max_level {neck.max_level}: the backbone's levels end at {coarsest}"
        fix = f"at most {coarsest}, or a neck that makes coarser maps, such as fpn"
        yield Broken("model.neck.max_level", what, fix)


def every_map_has_anchors(model: OneStage) -> Iterator[Broken]:
    """Anchors and feature maps are counted alike; the original fails late on this."""
    maps, described = model.neck.count_maps(), model.anchors.count_maps()
    if isinstance(model.neck, Pyramid) and isinstance(model.anchors, MultiscaleAnchors):
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


def extra_maps_have_strides(model: OneStage) -> Iterator[Broken]:
    """Strides are given for all extra maps or for none."""
    neck = model.neck
    if isinstance(neck, SsdLayers) and neck.extra_strides:
        strides, depths = len(neck.extra_strides), len(neck.extra_depths)
        if strides != depths:
            what = f"{strides} extra_strides for {depths} extra_depths"
            yield Broken("model.neck.extra_strides", what, "give one for each, or none")


def pyramid_has_channels(model: OneStage) -> Iterator[Broken]:
    """A depth of 0 stands for a layer that is not there in other necks only."""
    neck = model.neck
    if isinstance(neck, RetinaNetFpn | NasFpn) and neck.depth == 0:
        yield Broken("model.neck.depth", "a pyramid of 0 channels", "such as 256")


def bottlenecks_exist(model: OneStage) -> Iterator[Broken]:
    """What describes bottlenecks has nothing to say where nodes are convolutions."""
    neck, path = model.neck, "model.neck"
    if not isinstance(neck, NasFpn) or neck.block == "bottleneck":
        return
    if neck.drop_connect_rate:
        what = (
            f"drop_connect_rate {neck.drop_connect_rate:g} leaves out blocks beside a shortcut, "
            "and a convolution has none"
        )
        fix = f"--set {path}.drop_connect_rate=0, or set block to bottleneck"
        yield Broken(f"{path}.drop_connect_rate", what, fix)
    if neck.block_conv is not None:
        what = "block_conv describes the convolutions of bottlenecks, and block is conv"
        fix = f"--set {path}.block_conv=null, or set block to bottleneck"
        yield Broken(f"{path}.block_conv", what, fix)


def cell_is_sound(model: OneStage) -> Iterator[Broken]:
    """Every node reads two maps before it, and one map of every level leaves the cell."""
    neck, path = model.neck, "model.neck.cell"
    if not isinstance(neck, NasFpn):
        return
    levels = range(neck.min_level, neck.max_level + 1)
    for index, node in enumerate(neck.cell):
        before = len(levels) + index
        if len(node.inputs) != 2 or not all(0 <= number < before for number in node.inputs):
            what = f"node {before} of the cell has the inputs {list(node.inputs)}"
            yield Broken(f"{path}.{index}.inputs", what, f"two numbers from 0 to {before - 1}")
        if node.level not in levels:
            what = f"node {before} of the cell makes level {node.level}"
            fix = f"one from {neck.min_level} to {neck.max_level}"
            yield Broken(f"{path}.{index}.level", what, fix)
    outputs = [node.level for node in neck.cell if node.output]
    for level in levels:
        if outputs.count(level) != 1:
            what = f"{outputs.count(level)} nodes of the cell are the output of level {level}"
            yield Broken(path, what, "mark one node of every level by output: true")


def _examples(names: tuple[str, ...]) -> str:
    return f"{names[0]} ... {names[-1]}"


NECK_RULES: tuple[OneStageRule, ...] = (
    pyramid_fits_the_image,
    taps_exist,
    every_map_has_anchors,
    extra_maps_have_strides,
    pyramid_has_channels,
    bottlenecks_exist,
    cell_is_sound,
)
"""All of them."""
