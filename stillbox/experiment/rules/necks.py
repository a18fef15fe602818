"""Rules about the neck: between the backbone's levels, the input and the anchors."""

from collections.abc import Iterator, Mapping

from stillbox.errors import nearest
from stillbox.experiment.rules.broken import Broken, Rule
from stillbox.experiment.rules.input_sides import input_sides
from stillbox.experiment.schema import (
    Experiment,
    Fpn,
    Identity,
    MultiscaleAnchors,
    Ppn,
    SsdAnchors,
    SsdLayers,
)
from stillbox.experiment.schema.necks import Pyramid


def pyramid_fits_the_image(experiment: Experiment) -> Iterator[Broken]:
    """Going down the pyramid doubles a map, so sides are multiples of the coarsest stride."""
    model = experiment.model
    if not isinstance(model.neck, Fpn) or model.neck.explicit_padding or model.pad_to_multiple < 1:
        return
    stride = 2 ** min(model.neck.max_level, max(model.backbone.levels))
    for path, side in input_sides(model):
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


def taps_exist(experiment: Experiment) -> Iterator[Broken]:
    """The neck taps layers of the backbone, from fine to coarse."""
    backbone, neck = experiment.model.backbone, experiment.model.neck
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


def every_map_has_anchors(experiment: Experiment) -> Iterator[Broken]:
    """Anchors and feature maps are counted alike; the original fails late on this."""
    model = experiment.model
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


def extra_maps_have_strides(experiment: Experiment) -> Iterator[Broken]:
    """Strides are given for all extra maps or for none."""
    neck = experiment.model.neck
    if isinstance(neck, SsdLayers) and neck.extra_strides:
        strides, depths = len(neck.extra_strides), len(neck.extra_depths)
        if strides != depths:
            what = f"{strides} extra_strides for {depths} extra_depths"
            yield Broken("model.neck.extra_strides", what, "give one for each, or none")


def _examples(names: tuple[str, ...]) -> str:
    return f"{names[0]} ... {names[-1]}"


NECK_RULES: tuple[Rule, ...] = (
    pyramid_fits_the_image,
    taps_exist,
    every_map_has_anchors,
    extra_maps_have_strides,
)
"""All of them."""
