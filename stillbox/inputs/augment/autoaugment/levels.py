"""The argument of each operation by its level."""

from collections.abc import Callable, Mapping

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


def argument_of(name: str, level: float) -> float:
    """Returns the argument of an operation for a level of 0 to 10, without a random sign.

    Bits, a threshold, a factor, pixels, degrees or a slope; 0 for operations without argument.
    """
    rule = _RULES.get(name)
    return rule(level / 10) if rule else 0.0


def has_sign(name: str) -> bool:
    """Returns whether the sign of an operation's argument is random."""
    return name.startswith(("Rotate", "Shear", "Translate"))
