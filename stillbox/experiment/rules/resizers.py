"""Rules about sizes."""

from collections.abc import Iterator

from stillbox.experiment.rules.broken import Broken, Rule
from stillbox.experiment.schema import (
    ConditionalShapeResizer,
    Experiment,
    IdentityResizer,
    KeepAspectRatioResizer,
    PadToMultipleResizer,
    ScaleJitterResizer,
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


def canvas_is_given(experiment: Experiment) -> Iterator[Broken]:
    """A resizer that leaves sizes as they are cannot know the one shape of the network input."""
    resizer, path = experiment.model.resizer, "model.resizer.canvas"
    if not isinstance(resizer, IdentityResizer | ConditionalShapeResizer | PadToMultipleResizer):
        return
    if not resizer.canvas:
        yield Broken(
            path,
            f"the resizer {resizer.kind} gives images of many shapes, and the network has one",
            f"--set {path}=[HEIGHT,WIDTH], pixels that every image fits into; it is padded to that",
        )
    elif len(resizer.canvas) != 2:
        yield Broken(path, f"canvas has {len(resizer.canvas)} numbers", "give height and width")
    elif isinstance(resizer, PadToMultipleResizer) and resizer.multiple >= 1:
        legal = [-(-side // resizer.multiple) * resizer.multiple for side in resizer.canvas]
        if legal != list(resizer.canvas):
            yield Broken(
                path,
                f"canvas {list(resizer.canvas)} is no multiple of {resizer.multiple}",
                f"--set {path}=[{legal[0]},{legal[1]}]",
            )


def scales_are_a_range(experiment: Experiment) -> Iterator[Broken]:
    """The least scale is no greater than the greatest."""
    resizer, path = experiment.model.resizer, "model.resizer.min_scale"
    if isinstance(resizer, ScaleJitterResizer) and resizer.min_scale > resizer.max_scale:
        yield Broken(
            path,
            f"min_scale {resizer.min_scale} is above max_scale {resizer.max_scale}",
            "lower it, or raise max_scale",
        )


RESIZER_RULES: tuple[Rule, ...] = (dimensions_are_ordered, canvas_is_given, scales_are_a_range)
"""All of them."""
