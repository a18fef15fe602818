"""Operations by their names in the policies."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import cast

import cv2
from numpy.random import Generator

from stillbox.inputs.augment.autoaugment.boxes import rotate_boxes, shear_boxes, translate_boxes
from stillbox.inputs.augment.autoaugment.colors import (
    auto_contrast,
    brightness,
    color,
    contrast,
    contrast_about_mean,
    equalize,
    posterize,
    sharpness,
    solarize,
    solarize_add,
)
from stillbox.inputs.augment.autoaugment.patches import change_inside_boxes, cutout, cutout_at_a_box
from stillbox.inputs.augment.autoaugment.policies import Step
from stillbox.inputs.augment.autoaugment.warps import rotate, shear, translate
from stillbox.inputs.resize import Size
from stillbox.inputs.sample import Bytes, Floats, Sample

# From an image and the operation's argument to an image.
Operation = Callable[[Bytes, float, Generator], Bytes]


def _fixed(change: Callable[[Bytes], Bytes]) -> Operation:
    """For operations without an argument."""
    return lambda image, argument, rng: change(image)


def _counted(change: Callable[[Bytes, int], Bytes]) -> Operation:
    """For operations whose argument is a whole number."""
    return lambda image, argument, rng: change(image, int(argument))


def _scaled(change: Callable[..., Bytes], **more: int) -> Operation:
    """For operations whose argument is any number."""
    return lambda image, argument, rng: change(image, argument, **more)


def _cutout(image: Bytes, half: float, rng: Generator) -> Bytes:
    return cutout(image, int(half), rng)


def _mirror(image: Bytes) -> Bytes:
    return cast(Bytes, cv2.flip(image, 1))


_EVERYWHERE: Mapping[str, Operation] = {
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
_MOVES: Mapping[str, tuple[Callable[..., Bytes], Callable[..., Floats]]] = {
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
_INSIDE: Mapping[str, Operation] = {
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

CONTRASTS: Mapping[str, Operation] = {
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
    """Applies one operation.

    Args:
        name: one of `OPERATIONS`.
        level: strength, 0 to 10.
        rng: source of the sign and of the operation's random numbers.
        share: probability of each box to be changed, for operations inside boxes.
        contrast: one of `CONTRASTS`.
    """
    argument = argument_of(name, level)
    if has_sign(name) and rng.random() < 0.5:
        argument = -argument
    if name in _INSIDE:
        change = _INSIDE[name]
        return change_inside_boxes(
            sample, lambda content, rng: change(content, argument, rng), share, rng
        )
    if name in _MOVES:
        return _move(sample, argument, *_MOVES[name])
    image = cast(Bytes, sample.image)
    if name == _BBOX_CUTOUT:
        return replace(sample, image=cutout_at_a_box(image, sample.boxes, argument, rng))
    pixels = CONTRASTS[contrast] if name == "Contrast" else _EVERYWHERE[name]
    return replace(sample, image=pixels(image, argument, rng))


def _move(
    sample: Sample,
    argument: float,
    move_image: Callable[..., Bytes],
    move_boxes: Callable[..., Floats],
) -> Sample:
    size: Size = (sample.image.shape[0], sample.image.shape[1])
    return replace(
        sample,
        image=move_image(sample.image, argument),
        boxes=move_boxes(sample.boxes, size, argument),
    )


def argument_of(name: str, level: float) -> float:
    """Returns the argument of an operation for a level of 0 to 10, without a random sign.

    Bits, a threshold, a factor, pixels, degrees or a slope; 0 for operations without argument.
    """
    rule = _RULES.get(name)
    return rule(level / 10) if rule else 0.0


def has_sign(name: str) -> bool:
    """Returns whether the sign of an operation's argument is random."""
    return name.startswith(("Rotate", "Shear", "Translate"))
