"""The policies: rows of operations, each with its probability and its level.

Operations have the original's names. `_BBox` moves image and boxes, `_Only_BBoxes` changes the
pixels inside boxes only.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Step(NamedTuple):
    """One operation of a row."""

    name: str
    """The operation."""
    probability: float
    """Of the operation; for operations inside boxes a third of it, box by box."""
    level: int
    """Strength, 0 to 10."""


SubPolicy = tuple[Step, ...]

_V0: tuple[SubPolicy, ...] = (
    (Step("TranslateX_BBox", 0.6, 4), Step("Equalize", 0.8, 10)),
    (Step("TranslateY_Only_BBoxes", 0.2, 2), Step("Cutout", 0.8, 8)),
    (Step("Sharpness", 0.0, 8), Step("ShearX_BBox", 0.4, 0)),
    (Step("ShearY_BBox", 1.0, 2), Step("TranslateY_Only_BBoxes", 0.6, 6)),
    (Step("Rotate_BBox", 0.6, 10), Step("Color", 1.0, 6)),
)
_V1: tuple[SubPolicy, ...] = (
    *_V0,
    (Step("Color", 0.0, 0), Step("ShearX_Only_BBoxes", 0.8, 4)),
    (Step("ShearY_Only_BBoxes", 0.8, 2), Step("Flip_Only_BBoxes", 0.0, 10)),
    (Step("Equalize", 0.6, 10), Step("TranslateX_BBox", 0.2, 2)),
    (Step("Color", 1.0, 10), Step("TranslateY_Only_BBoxes", 0.4, 6)),
    (Step("Rotate_BBox", 0.8, 10), Step("Contrast", 0.0, 10)),
    (Step("Cutout", 0.2, 2), Step("Brightness", 0.8, 10)),
    (Step("Color", 1.0, 6), Step("Equalize", 1.0, 2)),
    (Step("Cutout_Only_BBoxes", 0.4, 6), Step("TranslateY_Only_BBoxes", 0.8, 2)),
    (Step("Color", 0.2, 8), Step("Rotate_BBox", 0.8, 10)),
    (Step("Sharpness", 0.4, 4), Step("TranslateY_Only_BBoxes", 0.0, 4)),
    (Step("Sharpness", 1.0, 4), Step("SolarizeAdd", 0.4, 4)),
    (Step("Rotate_BBox", 1.0, 8), Step("Sharpness", 0.2, 8)),
    (Step("ShearY_BBox", 0.6, 10), Step("Equalize_Only_BBoxes", 0.6, 8)),
    (Step("ShearX_BBox", 0.2, 6), Step("TranslateY_Only_BBoxes", 0.2, 10)),
    (Step("SolarizeAdd", 0.6, 8), Step("Brightness", 0.8, 10)),
)
_V2: tuple[SubPolicy, ...] = (
    (Step("Color", 0.0, 6), Step("Cutout", 0.6, 8), Step("Sharpness", 0.4, 8)),
    (Step("Rotate_BBox", 0.4, 8), Step("Sharpness", 0.4, 2), Step("Rotate_BBox", 0.8, 10)),
    (Step("TranslateY_BBox", 1.0, 8), Step("AutoContrast", 0.8, 2)),
    (Step("AutoContrast", 0.4, 6), Step("ShearX_BBox", 0.8, 8), Step("Brightness", 0.0, 10)),
    (Step("SolarizeAdd", 0.2, 6), Step("Contrast", 0.0, 10), Step("AutoContrast", 0.6, 0)),
    (Step("Cutout", 0.2, 0), Step("Solarize", 0.8, 8), Step("Color", 1.0, 4)),
    (Step("TranslateY_BBox", 0.0, 4), Step("Equalize", 0.6, 8), Step("Solarize", 0.0, 10)),
    (Step("TranslateY_BBox", 0.2, 2), Step("ShearY_BBox", 0.8, 8), Step("Rotate_BBox", 0.8, 8)),
    (Step("Cutout", 0.8, 8), Step("Brightness", 0.8, 8), Step("Cutout", 0.2, 2)),
    (Step("Color", 0.8, 4), Step("TranslateY_BBox", 1.0, 6), Step("Rotate_BBox", 0.6, 6)),
    (Step("Rotate_BBox", 0.6, 10), Step("BBox_Cutout", 1.0, 4), Step("Cutout", 0.2, 8)),
    (Step("Rotate_BBox", 0.0, 0), Step("Equalize", 0.6, 6), Step("ShearY_BBox", 0.6, 8)),
    (Step("Brightness", 0.8, 8), Step("AutoContrast", 0.4, 2), Step("Brightness", 0.2, 2)),
    (Step("TranslateY_BBox", 0.4, 8), Step("Solarize", 0.4, 6), Step("SolarizeAdd", 0.2, 10)),
    (Step("Contrast", 1.0, 10), Step("SolarizeAdd", 0.2, 8), Step("Equalize", 0.2, 4)),
)
_V3: tuple[SubPolicy, ...] = (
    (Step("Posterize", 0.8, 2), Step("TranslateX_BBox", 1.0, 8)),
    (Step("BBox_Cutout", 0.2, 10), Step("Sharpness", 1.0, 8)),
    (Step("Rotate_BBox", 0.6, 8), Step("Rotate_BBox", 0.8, 10)),
    (Step("Equalize", 0.8, 10), Step("AutoContrast", 0.2, 10)),
    (Step("SolarizeAdd", 0.2, 2), Step("TranslateY_BBox", 0.2, 8)),
    (Step("Sharpness", 0.0, 2), Step("Color", 0.4, 8)),
    (Step("Equalize", 1.0, 8), Step("TranslateY_BBox", 1.0, 8)),
    (Step("Posterize", 0.6, 2), Step("Rotate_BBox", 0.0, 10)),
    (Step("AutoContrast", 0.6, 0), Step("Rotate_BBox", 1.0, 6)),
    (Step("Equalize", 0.0, 4), Step("Cutout", 0.8, 10)),
    (Step("Brightness", 1.0, 2), Step("TranslateY_BBox", 1.0, 6)),
    (Step("Contrast", 0.0, 2), Step("ShearY_BBox", 0.8, 0)),
    (Step("AutoContrast", 0.8, 10), Step("Contrast", 0.2, 10)),
    (Step("Rotate_BBox", 1.0, 10), Step("Cutout", 1.0, 10)),
    (Step("SolarizeAdd", 0.8, 6), Step("Equalize", 0.8, 8)),
)
_TEST: tuple[SubPolicy, ...] = ((Step("TranslateX_BBox", 1.0, 4), Step("Equalize", 1.0, 10)),)

POLICIES: Mapping[str, tuple[SubPolicy, ...]] = {
    "v0": _V0,
    "v1": _V1,
    "v2": _V2,
    "v3": _V3,
    "test": _TEST,
}
"""Rows of each policy, one of which is drawn uniformly."""
