"""Annotations of the schema's fields: ranges of numbers, and what leads out of the experiment.

`gamma: NonNegative = 2.0` declares a number of at least 0. `rules/rule.py` reads the range from
the annotation and refuses other values. Every number has one: what lies above is a mistake or an
attack, and overflows or fills the memory.

`label_map: InputPath = ""` declares a file that is read. A field that names a file, a folder, a
service, or an amount of threads or memory is marked as `Outside`. Fields of the machine have no
effect in an experiment that is stored with a model: see `yaml_config.from_stored`.
"""

import math
from dataclasses import dataclass
from typing import Annotated

# The greatest number below one makes "below one" a closed range.
BELOW_ONE = math.nextafter(1.0, 0.0)
_LEAST, _MOST = 1e-12, 1e9
# Steps are counted in 32 bits.
_MOST_INT = 2**31 - 1


@dataclass(frozen=True)
class Range:
    """Least and greatest allowed value, both included."""

    low: float
    high: float = math.inf

    def __str__(self) -> str:
        ends = f"{self.least} {self.greatest}".replace("of at least", "from")
        return ends.replace("of at most", "to").replace(" below", ", below")

    @property
    def least(self) -> str:
        """The least value in words."""
        return "above 0" if self.low == _LEAST else f"of at least {_spell(self.low)}"

    @property
    def greatest(self) -> str:
        """The greatest value in words."""
        return "below 1" if self.high == BELOW_ONE else f"of at most {_spell(self.high)}"


@dataclass(frozen=True)
class Outside:
    """Marks a field that leads out of the experiment."""

    stored: bool
    """Whether an experiment that is stored with a model may set it."""


INPUT, MACHINE = Outside(stored=True), Outside(stored=False)
InputPath = Annotated[str, INPUT]


@dataclass(frozen=True)
class Items:
    """How many items a list has, for the annotation of a field."""

    most: int = 64
    least: int = 0
    lengths: tuple[int, ...] = ()
    """The allowed numbers of items; empty: all from `least` to `most`."""
    fix: str = "give at least one"
    """The remedy for a list that is too short or has another length."""


AtLeastOne = Items(least=1)
Ratios = Items(least=1, fix="give at least one, such as 1.0")
Rgb = Items(lengths=(3,), fix="give one for each of R, G, B")
PerChannel = Items(lengths=(1, 3, 4), fix="give one for each of R, G, B, or for each channel")
PadColor = Items(lengths=(0, 3), fix="give one for each of R, G, B, or none for the image's mean")
SizeRatio = Items(lengths=(2,), fix="give one for the height and one for the width")
Many = Items(10_000)
Texts = Items(1000)
PerClass = Items(1_000_000)
"""The length of a list with an item for each class, or for each file."""


def _spell(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


Real = Annotated[float, Range(-_MOST, _MOST)]
Positive = Annotated[float, Range(_LEAST, _MOST)]
NonNegative = Annotated[float, Range(0, _MOST)]
LearningRate = Annotated[float, Range(0, 3e38)]
"""Up to the largest float32."""
Fraction = Annotated[float, Range(0, 1)]
PositiveFraction = Annotated[float, Range(_LEAST, 1)]
FractionBelowOne = Annotated[float, Range(0, BELOW_ONE)]
ColorValue = Annotated[float, Range(0, 255)]
Multiplier = Annotated[float, Range(0.001, 100)]
"""Factor on numbers of channels or layers."""
PositiveInt = Annotated[int, Range(1, _MOST_INT)]
NonNegativeInt = Annotated[int, Range(0, _MOST_INT)]
Seed = Annotated[int, Range(0, 2**63 - 1)]
Percent = Annotated[int, Range(0, 100)]
Side = Annotated[int, Range(1, 16_384)]
"""A side of an image, in pixels."""
Offset = Annotated[int, Range(-16_384, 16_384)]
"""In pixels."""
KernelSide = Annotated[int, Range(1, 64)]
OptionalKernelSide = Annotated[int, Range(0, 64)]
Channels = Annotated[int, Range(1, 65_536)]
OptionalChannels = Annotated[int, Range(0, 65_536)]
Count = Annotated[int, Range(1, 32)]
Repeats = Annotated[int, Range(1, 16)]
"""How often a part of a network is repeated."""
Layers = Annotated[int, Range(0, 8)]
"""The depth of a tower, which stands on every feature map."""
NodeNumber = Annotated[int, Range(0, 1000)]
"""The number of an earlier node of a network."""
Level = Annotated[int, Range(0, 15)]
"""Level l of a pyramid has a stride of 2^l pixels."""
Batch = Annotated[int, Range(1, 1_048_576)]
Boxes = Annotated[int, Range(1, 1_000_000)]
"""A number of boxes in an image."""
Draws = Annotated[int, Range(1, 10_000)]
Classes = Annotated[int, Range(1, 1_000_000)]
Slot = Annotated[int, Range(-1_000_000, 1_000_000)]
"""Of a class among the logits."""
