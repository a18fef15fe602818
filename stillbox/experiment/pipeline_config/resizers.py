"""`ImageResizer`: from an image of any size to the network input."""

import dataclasses
from typing import Any

from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import (
    FixedShapeResizer,
    KeepAspectRatioResizer,
    Resizer,
)

_METHODS: dict[str, Any] = {
    "BILINEAR": "bilinear",
    "NEAREST_NEIGHBOR": "nearest",
    "BICUBIC": "bicubic",
    "AREA": "area",
}


def read_resizer(section: Section, path: str) -> Resizer:
    """Reads `image_resizer`."""
    name, chosen = section.choose(
        "image_resizer_oneof", ("fixed_shape_resizer", "keep_aspect_ratio_resizer")
    )
    method = _METHODS[chosen.value("resize_method", f"{path}.method")]
    if name == "fixed_shape_resizer":
        return FixedShapeResizer(method=method, **chosen.fill(path, "height", "width"))
    if not chosen.value("pad_to_max_dimension"):
        chosen.log.warnings.append(
            f"{chosen.position('pad_to_max_dimension')}: keep_aspect_ratio_resizer without "
            "pad_to_max_dimension gives images of many shapes; stillbox pads them to "
            "max_dimension squared, and anchors are relative to that square"
        )
    colour = chosen.values("per_channel_pad_value", f"{path}.pad_value")
    resizer = KeepAspectRatioResizer(
        method=method, **chosen.fill(path, "min_dimension", "max_dimension")
    )
    return dataclasses.replace(resizer, pad_value=colour) if colour else resizer
