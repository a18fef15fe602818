"""AutoAugment for detection (arXiv:1906.11172; `tpu/models/official/detection/utils`).

A policy has sub-policies: rows of operations, each with its probability and its level. Operations
have the original's names. `_BBox` moves image and boxes, `_Only_BBoxes` changes the pixels inside
boxes only.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

import cv2
import numpy as np
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.autoaugment_images import (
    auto_contrast,
    brightness,
    change_inside_boxes,
    color,
    contrast,
    contrast_about_mean,
    cutout,
    cutout_at_a_box,
    equalize,
    posterize,
    rotate,
    rotate_boxes,
    sharpness,
    shear,
    shear_boxes,
    solarize,
    solarize_add,
    translate,
    translate_boxes,
)
from stillbox.inputs.augment.common import random_integer
from stillbox.inputs.sample import Boxes, Bytes, Sample


class Step(NamedTuple):
    """One operation of a row."""

    name: str
    """The operation."""
    probability: float
    """How often the operation is done; one inside boxes is done a third as often, for each box."""
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
    **{"v0": _V0, "v1": _V1, "v2": _V2, "v3": _V3},
    "test": _TEST,
}
"""Rows of each policy, one of which is drawn uniformly."""


PixelOperation = Callable[[Bytes, float, Generator], Bytes]
"""From an image and the operation's argument to an image."""


def _fixed(change: Callable[[Bytes], Bytes]) -> PixelOperation:
    """For operations without an argument."""
    return lambda image, argument, rng: change(image)


def _counted(change: Callable[[Bytes, int], Bytes]) -> PixelOperation:
    """For operations with a whole number as argument."""
    return lambda image, argument, rng: change(image, int(argument))


def _scaled(change: Callable[..., Bytes], **more: int) -> PixelOperation:
    """For operations with any number as argument."""
    return lambda image, argument, rng: change(image, argument, **more)


def _cutout(image: Bytes, half: float, rng: Generator) -> Bytes:
    return cutout(image, int(half), rng)


def _mirror(image: Bytes) -> Bytes:
    return cast(Bytes, cv2.flip(image, 1))


_EVERYWHERE: Mapping[str, PixelOperation] = {
    "AutoContrast": _fixed(auto_contrast),
    "Equalize": _fixed(equalize),
    "Posterize": _counted(posterize),
    "Solarize": _counted(solarize),
    "SolarizeAdd": _counted(solarize_add),
    "Color": _scaled(color),
    "Contrast": _scaled(contrast),
    "Brightness": _scaled(brightness),
    "Sharpness": _scaled(sharpness),
    "Cutout": _cutout,
}
_MOVES: Mapping[str, tuple[Callable[..., Bytes], Callable[..., Boxes]]] = {
    "Rotate_BBox": (rotate, rotate_boxes),
    **{
        f"{name}{letter}_BBox": (partial(image, axis=axis), partial(around, axis=axis))
        for name, image, around in (
            ("Translate", translate, translate_boxes),
            ("Shear", shear, shear_boxes),
        )
        for letter, axis in (("X", 1), ("Y", 0))
    },
}
_INSIDE: Mapping[str, PixelOperation] = {
    "Rotate_Only_BBoxes": _scaled(rotate),
    "ShearX_Only_BBoxes": _scaled(shear, axis=1),
    "ShearY_Only_BBoxes": _scaled(shear, axis=0),
    "TranslateX_Only_BBoxes": _scaled(translate, axis=1),
    "TranslateY_Only_BBoxes": _scaled(translate, axis=0),
    "Flip_Only_BBoxes": _fixed(_mirror),
    "Solarize_Only_BBoxes": _counted(solarize),
    "Equalize_Only_BBoxes": _fixed(equalize),
    "Cutout_Only_BBoxes": _cutout,
}
_BBOX_CUTOUT = "BBox_Cutout"
OPERATIONS: tuple[str, ...] = (*_EVERYWHERE, _BBOX_CUTOUT, *_MOVES, *_INSIDE)
"""Names of all operations."""

CONTRASTS: Mapping[str, PixelOperation] = {
    "original": _EVERYWHERE["Contrast"],
    "mean": _scaled(contrast_about_mean),
}
"""Implementations of `Contrast` by the field `contrast` of the schema."""

# From the level as a share of the greatest, in the original's order of arithmetic.
_RULES: Mapping[str, Callable[[float], float]] = {
    "Posterize": lambda share: int(share * 4),
    "Solarize": lambda share: int(share * 256),
    "Solarize_Only_BBoxes": lambda share: int(share * 256),
    "SolarizeAdd": lambda share: int(share * 110),
    **dict.fromkeys(
        ("Color", "Contrast", "Brightness", "Sharpness"), lambda share: share * 1.8 + 0.1
    ),
    "Cutout": lambda share: int(share * 100),
    "Cutout_Only_BBoxes": lambda share: int(share * 50),
    "BBox_Cutout": lambda share: share * 0.75,
    **dict.fromkeys(("Rotate_BBox", "Rotate_Only_BBoxes"), lambda share: share * 30.0),
    **dict.fromkeys(
        ("ShearX_BBox", "ShearY_BBox", "ShearX_Only_BBoxes", "ShearY_Only_BBoxes"),
        lambda share: share * 0.3,
    ),
    **dict.fromkeys(("TranslateX_BBox", "TranslateY_BBox"), lambda share: share * 250.0),
    **dict.fromkeys(
        ("TranslateX_Only_BBoxes", "TranslateY_Only_BBoxes"), lambda share: share * 120.0
    ),
}


def take_step(step: Step, sample: Sample, rng: Generator, contrast: str = "original") -> Sample:
    """Applies one step of a policy with its probability.

    Operations inside boxes are drawn box by box, with a third of the probability.
    """
    if step.name in _INSIDE:
        share = step.probability / 3
    elif rng.random() + step.probability >= 1:
        share = 1.0
    else:
        return sample
    return operate(step.name, step.level, sample, rng, share=share, contrast=contrast)


def operate(
    name: str,
    level: float,
    sample: Sample,
    rng: Generator,
    *,
    share: float = 1.0,
    contrast: str = "original",
) -> Sample:
    """Applies one of the `OPERATIONS` with a level of 0 to 10 and a random sign.

    Operations inside boxes change each box with the probability `share`. `contrast` is one of
    `CONTRASTS`.
    """
    argument = argument_of(name, level)
    if has_sign(name) and rng.random() < 0.5:
        argument = -argument
    if name in _INSIDE:
        change = _INSIDE[name]
        return change_inside_boxes(
            sample, lambda part, rng: change(part, argument, rng), share, rng
        )
    if name in _MOVES:
        move_image, move_boxes = _MOVES[name]
        boxes = move_boxes(sample.boxes, sample.size, argument)
        return replace(sample, image=move_image(sample.image, argument), boxes=boxes)
    image = sample.image
    if name == _BBOX_CUTOUT:
        return replace(sample, image=cutout_at_a_box(image, sample.boxes, argument, rng))
    pixels = CONTRASTS[contrast] if name == "Contrast" else _EVERYWHERE[name]
    return replace(sample, image=pixels(image, argument, rng))


def argument_of(name: str, level: float) -> float:
    """Returns the argument of an operation for a level of 0 to 10, without its sign."""
    rule = _RULES.get(name)
    return rule(level / 10) if rule else 0.0


def has_sign(name: str) -> bool:
    """Returns whether the sign of an operation's argument is random."""
    return name.startswith(("Rotate", "Shear", "Translate"))


@implements(schema.AutoAugment)
def auto_augment(sample: Sample, config: schema.AutoAugment, rng: Generator) -> Sample:
    """Draws one row of the policy and applies its operations in order, to uint8 values."""
    rows = POLICIES[config.policy]
    sample = in_bytes(sample)
    for step in rows[random_integer(rng, 0, len(rows))]:
        sample = take_step(step, sample, rng, config.contrast)
    return sample


def in_bytes(sample: Sample) -> Sample:
    """Returns the sample with its pixels as contiguous uint8."""
    pixels = sample.image
    image = pixels if pixels.dtype == np.uint8 else pixels.clip(0, 255).astype(np.uint8)
    return replace(sample, image=np.ascontiguousarray(cast(Bytes, image)))
