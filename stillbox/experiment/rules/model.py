"""Rules about backbone, neck and head, and how they fit the input."""

from collections.abc import Iterator

from stillbox.errors import nearest
from stillbox.experiment.rules.broken import Broken, Rule
from stillbox.experiment.schema import Experiment, FixedShapeResizer, KeepAspectRatioResizer

_TAPS = (
    "conv_0",
    *(f"conv_{layer}_{part}" for layer in range(1, 14) for part in ("depthwise", "pointwise")),
)
_MIN_SIDE = 33


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
    image_is_large_enough,
    channels_are_three,
    taps_exist,
    every_map_has_anchors,
    depths_are_ordered,
)
"""All of them."""
