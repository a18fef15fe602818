"""Rules about anchors."""

from collections.abc import Iterator

from stillbox.experiment.rules.broken import Broken, Rule
from stillbox.experiment.schema import Experiment


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


ANCHOR_RULES: tuple[Rule, ...] = (
    anchors_have_shapes,
    strides_come_in_pairs,
)
"""All of them."""
