"""`ImageResizer`: from an image of any size to the network input."""

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.section import MessageSection, choice
from stillbox.experiment.schema import (
    ConditionalShapeResizer,
    FixedShapeResizer,
    IdentityResizer,
    KeepAspectRatioResizer,
    PadToMultipleResizer,
    Resizer,
)
from stillbox.experiment.sections import part

_KEEP_ASPECT_RATIO = "keep_aspect_ratio_resizer"
_WITHOUT_SHAPE = ("identity_resizer", "conditional_shape_resizer", "pad_to_multiple_resizer")
_read_conditional = part(
    ConditionalShapeResizer, method="resize_method", threshold="size_threshold"
)


def read_resizer(section: MessageSection, path: str) -> Resizer:
    """Reads `image_resizer`.

    The resizers without a fixed shape leave their `canvas` empty, which a rule refuses.
    """
    resizer: Resizer = _read(section, path)
    for name in filter(section.has, _WITHOUT_SHAPE):
        section.log.origins[f"{path}.canvas"] = section.where(name)
    return resizer


def resizer_without_shape(section: MessageSection) -> MessageSection | None:
    """Returns the resizer in an `image_resizer` whose results have many shapes in the original."""
    for name in (_KEEP_ASPECT_RATIO, *_WITHOUT_SHAPE):
        resizer = section.child(name)
        padded = name == _KEEP_ASPECT_RATIO and resizer.value("pad_to_max_dimension")
        if section.has(name) and not padded:
            return resizer
    return None


def _conditional_shape(section: MessageSection, path: str) -> ConditionalShapeResizer:
    if section.get("condition") == "invalid":
        raise UserError(
            "ConditionalShapeResizer.condition = INVALID is not supported",
            where=section.where("condition"),
            fix="there is: GREATER, SMALLER",
        )
    resizer: ConditionalShapeResizer = _read_conditional(section, path)
    return resizer


_read = choice(
    "image_resizer_oneof",
    {
        "fixed_shape_resizer": part(FixedShapeResizer, method="resize_method"),
        _KEEP_ASPECT_RATIO: part(
            KeepAspectRatioResizer,
            ("pad_value",),
            method="resize_method",
            pad_value="per_channel_pad_value",
        ),
        "identity_resizer": part(IdentityResizer),
        "conditional_shape_resizer": _conditional_shape,
        "pad_to_multiple_resizer": part(PadToMultipleResizer),
    },
)
