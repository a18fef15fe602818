"""Rules about the neck: between the backbone's levels, the input and the anchors."""

from collections.abc import Iterator, Mapping

from stillbox.errors import nearest
from stillbox.experiment.rules.rule import Broken, fit_stride, rule
from stillbox.experiment.schema import (
    FasterRcnn,
    Fpn,
    Identity,
    MnasFpn,
    MultiscaleAnchors,
    NasFpn,
    OneStage,
    Ppn,
    RetinaNetFpn,
    SsdAnchors,
    SsdLayers,
)
from stillbox.experiment.schema.necks import Pyramid


@rule(OneStage, FasterRcnn)
def pyramid_fits_the_image(model: OneStage | FasterRcnn) -> Iterator[Broken]:
    """Maps are doubled on the way down, so that sides are multiples of the coarsest stride."""
    neck, top = model.neck, None
    if isinstance(neck, NasFpn | MnasFpn):
        top = neck.max_level
    elif isinstance(neck, RetinaNetFpn) or (isinstance(neck, Fpn) and not neck.explicit_padding):
        top = min(neck.max_level, max(model.backbone.levels))
    if top is not None:
        yield from fit_stride(model, 2**top, "a feature pyramid that hands down a map")


@rule(OneStage, FasterRcnn)
def taps_exist(model: OneStage | FasterRcnn) -> Iterator[Broken]:
    """The neck taps layers of the backbone, from fine to coarse."""
    backbone, neck = model.backbone, model.neck
    taps, names = neck.taps_of(backbone), backbone.layers
    path = "neck.tap" if isinstance(neck, Ppn) else "neck.taps"
    if isinstance(neck, Pyramid):
        yield from _levels_exist(neck, backbone.levels)
        return
    for tap in taps:
        if tap not in names:
            what = f"{backbone.kind} has no layer {tap!r}"
            fix = f"{nearest(tap, names)}; it has {names[0]} ... {names[-1]}"
            yield Broken(path, what, fix)
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
        yield Broken("neck.min_level", what, f"give one from {finest} to {coarsest}")
    elif missing := [level for level in range(neck.min_level, coarsest) if level not in levels]:
        what = (
            f"the backbone has no map of level {missing[0]} (a stride of {2 ** missing[0]} pixels)"
        )
        yield Broken("backbone", what, "a pyramid needs every level, from group_strides of 2")
    elif isinstance(neck, Identity) and neck.max_level > coarsest:
        what = f"max_level {neck.max_level}: the backbone's levels end at {coarsest}"
        fix = f"at most {coarsest}, or a neck that makes coarser maps, such as fpn"
        yield Broken("neck.max_level", what, fix)


@rule(OneStage, FasterRcnn)
def every_map_has_anchors(model: OneStage | FasterRcnn) -> Iterator[Broken]:
    """There are as many feature maps as maps of anchors."""
    anchors = model.anchor_stage.anchors
    path = "proposals.anchors" if isinstance(model, FasterRcnn) else "anchors"
    maps, described = model.neck.count_maps(), anchors.count_maps()
    if isinstance(model.neck, Pyramid) and isinstance(anchors, MultiscaleAnchors):
        for name in ("min_level", "max_level"):
            level, wanted = getattr(anchors, name), getattr(model.neck, name)
            if level != wanted:
                what = f"anchors of {name} {level} for a pyramid of {name} {wanted}"
                yield Broken(f"{path}.{name}", what, f"set it to {wanted}")
    elif described != maps:
        yield Broken(
            f"{path}.num_layers" if isinstance(anchors, SsdAnchors) else path,
            f"anchors for {described} feature maps, but the neck makes {maps}",
            f"describe anchors for {maps} maps, or change the neck",
        )


@rule(SsdLayers)
def extra_maps_have_strides_and_sizes(neck: SsdLayers) -> Iterator[Broken]:
    """Strides and kernels are given for all extra maps or for none."""
    depths = len(neck.extra_depths)
    for name in ("extra_strides", "extra_kernel_sizes"):
        if (count := len(getattr(neck, name))) not in (0, depths):
            what = f"{count} {name} for {depths} extra_depths"
            yield Broken(name, what, "give one for each, or none")


@rule(RetinaNetFpn, NasFpn)
def pyramid_has_channels(neck: RetinaNetFpn | NasFpn) -> Iterator[Broken]:
    """Only in other necks a depth of 0 means an absent layer."""
    if neck.depth == 0:
        yield Broken("depth", "a pyramid of 0 channels", "such as 256")


@rule(MnasFpn)
def cell_has_four_levels(neck: MnasFpn) -> Iterator[Broken]:
    """The cell was found for four levels."""
    top = neck.min_level + 3
    if neck.max_level != top:
        what = f"mnasfpn from min_level {neck.min_level} to max_level {neck.max_level}"
        yield Broken("max_level", what, f"its cell has four levels: set it to {top}")


@rule(NasFpn)
def bottlenecks_exist(neck: NasFpn) -> Iterator[Broken]:
    """Hyperparameters of bottlenecks have no effect on nodes that are convolutions."""
    if neck.block == "bottleneck":
        return
    if neck.drop_connect_rate:
        what = (
            f"drop_connect_rate {neck.drop_connect_rate:g} leaves out blocks beside a shortcut, "
            "and a convolution has none"
        )
        fix = "--set model.neck.drop_connect_rate=0, or set block to bottleneck"
        yield Broken("drop_connect_rate", what, fix)
    if neck.block_conv is not None:
        what = "block_conv describes the convolutions of bottlenecks, and block is conv"
        fix = "--set model.neck.block_conv=null, or set block to bottleneck"
        yield Broken("block_conv", what, fix)


@rule(NasFpn)
def cell_is_sound(neck: NasFpn) -> Iterator[Broken]:
    """Every node reads two maps before it, and one map of every level is an output."""
    levels = range(neck.min_level, neck.max_level + 1)
    for index, node in enumerate(neck.cell):
        before = len(levels) + index
        if len(node.inputs) != 2 or not all(0 <= number < before for number in node.inputs):
            what = f"node {before} of the cell has the inputs {list(node.inputs)}"
            yield Broken(f"cell.{index}.inputs", what, f"two numbers from 0 to {before - 1}")
        if node.level not in levels:
            what = f"node {before} of the cell makes level {node.level}"
            fix = f"one from {neck.min_level} to {neck.max_level}"
            yield Broken(f"cell.{index}.level", what, fix)
    outputs = [node.level for node in neck.cell if node.output]
    for level in levels:
        if outputs.count(level) != 1:
            what = f"{outputs.count(level)} nodes of the cell are the output of level {level}"
            yield Broken("cell", what, "mark one node of every level by output: true")
