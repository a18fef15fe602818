"""`ImageResizer`: from an image of any size to the network input."""

import dataclasses
from typing import Literal, TypeVar

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import (
    ConditionalShapeResizer,
    FixedShapeResizer,
    IdentityResizer,
    KeepAspectRatioResizer,
    PadToMultipleResizer,
    Resizer,
)
from stillbox.experiment.schema.resizers import ResizeMethod

_METHODS: dict[str, ResizeMethod] = {
    "BILINEAR": "bilinear",
    "NEAREST_NEIGHBOR": "nearest",
    "BICUBIC": "bicubic",
    "AREA": "area",
}
_CONDITIONS: dict[str, Literal["greater", "smaller"]] = {"GREATER": "greater", "SMALLER": "smaller"}


def read_resizer(section: Section, path: str) -> Resizer:
    """Reads `image_resizer`.

    Three of its members have no fixed shape: their `canvas` stays empty, and the rules ask for it.
    """
    name, chosen = section.choose(
        "image_resizer_oneof",
        (
            "fixed_shape_resizer",
            "keep_aspect_ratio_resizer",
            "identity_resizer",
            "conditional_shape_resizer",
            "pad_to_multiple_resizer",
        ),
    )
    if name == "identity_resizer":
        return _placed(IdentityResizer(), section, name, path)
    if name == "pad_to_multiple_resizer":
        return _placed(PadToMultipleResizer(**chosen.fill(path, "multiple")), section, name, path)
    method = _METHODS[chosen.value("resize_method", f"{path}.method")]
    if name == "conditional_shape_resizer":
        resizer = ConditionalShapeResizer(
            condition=_read_condition(chosen, f"{path}.condition"),
            method=method,
            **chosen.fill(path, threshold="size_threshold"),
        )
        return _placed(resizer, section, name, path)
    if name == "fixed_shape_resizer":
        return FixedShapeResizer(method=method, **chosen.fill(path, "height", "width"))
    return _read_keep_aspect_ratio(chosen, method, path)


def _read_keep_aspect_ratio(
    chosen: Section, method: ResizeMethod, path: str
) -> KeepAspectRatioResizer:
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


def _read_condition(section: Section, path: str) -> Literal["greater", "smaller"]:
    condition: str = section.value("condition", path)
    if condition not in _CONDITIONS:
        raise UserError(
            f"the condition {condition} says nothing",
            where=section.position("condition"),
            fix=f"there is: {', '.join(_CONDITIONS)}",
        )
    return _CONDITIONS[condition]


_AnyResizer = TypeVar("_AnyResizer", bound=Resizer)


def _placed(resizer: _AnyResizer, section: Section, name: str, path: str) -> _AnyResizer:
    """Remembers where the resizer stands, for the rule that asks for its canvas."""
    section.log.origins[f"{path}.canvas"] = section.position(name)
    return resizer
