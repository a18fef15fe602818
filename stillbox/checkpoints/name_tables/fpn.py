"""The feature pyramid; its coarse layers are counted on from the backbone's own."""

from stillbox.checkpoints.name_tables.rules import LayerName

_MOST_COARSE_LAYERS = 10
_LAYERS = (LayerName(r"neck\.(projection|smoothing)_(\d+)", "{root}/fpn/{0}_{1}"),)


def layers(template: str, first: int) -> tuple[LayerName, ...]:
    """Returns the table for one backbone.

    Args:
        template: what its layers are called.
        first: number of the first coarse layer.
    """
    coarse = (
        LayerName(rf"neck\.coarse_{step}", "{root}/fpn/bottom_up_" + template.format(number))
        for step, number in enumerate(range(first, first + _MOST_COARSE_LAYERS), start=1)
    )
    return _LAYERS + tuple(coarse)
