"""The sides of the network input, and the fields to blame for them."""

from collections.abc import Iterator

from stillbox.experiment.schema import FixedShapeResizer, Model, ScaleJitterResizer


def input_sides(model: Model) -> Iterator[tuple[str, int]]:
    """Yields the sides of the network input with the fields that they come from."""
    resizer, path = model.resizer, "model.resizer"
    height, width = resizer.input_size
    if isinstance(resizer, FixedShapeResizer | ScaleJitterResizer):
        yield from ((f"{path}.height", height), (f"{path}.width", width))
    elif hasattr(resizer, "canvas"):
        yield from ((f"{path}.canvas", side) for side in dict.fromkeys((height, width)))
    else:
        yield f"{path}.max_dimension", height
