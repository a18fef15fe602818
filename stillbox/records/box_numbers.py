"""The meaning of the four numbers of a box, recognised from a whole set.

A format defines a unit and a layout, and people's files have others: pixels in YOLO's files,
fractions in Pascal VOC's, corners where COCO has a corner and a size. A single box cannot tell,
since nearly any four numbers are some box. All boxes of a set can: in a wrong reading they leave
their images, or shrink into a corner of them.

A set that is as its format says is not looked at further. Otherwise the only reading in which all
boxes lie in their images is taken, and said; if there are several such readings, the conversion
stops.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError, nearest
from stillbox.printing import count_text
from stillbox.records.annotations import AnnotatedImage, only_boxes
from stillbox.records.example import IN_PIXELS, format_box, no_numbers
from stillbox.records.image_files import inspect_image
from stillbox.records.problems import BadRecordError, ConversionLog
from stillbox.references import Parameter

Unit = Literal["pixels", "fractions", "percent"]
Layout = Literal["corners", "corner_size", "centre_size"]
Floats: TypeAlias = NDArray[np.float64]

_LAYOUTS: dict[Layout, str] = {
    "corners": "xmin, ymin, xmax, ymax",
    "corner_size": "xmin, ymin, width, height",
    "centre_size": "x and y of the centre, width, height",
}
_SCALES: dict[Unit, float] = {"pixels": 1, "fractions": 1, "percent": 100}


@dataclass(frozen=True)
class BoxNumbers:
    """A unit and a layout."""

    unit: Unit
    layout: Layout | None = None
    """None: the numbers are points, such as the corners of an outline."""

    @classmethod
    def from_name(cls, name: str) -> "BoxNumbers":
        """Returns the numbers of a name such as `pixels:corners`.

        Raises:
            UserError: there is no such name.
        """
        names = {str(reading): reading for reading in _all_readings()}
        if name not in names:
            problem, fix = f"box numbers cannot be {name!r}", nearest(name, names)
            raise UserError(problem, where=Parameter("box_numbers"), fix=fix)
        return names[name]

    def __str__(self) -> str:
        """Returns the name of both, as `pixels:corners`."""
        return f"{self.unit}:{self.layout}" if self.layout else self.unit

    def describe(self) -> str:
        """Returns a phrase, as `pixels (xmin, ymin, xmax, ymax)`."""
        return f"{self.unit} ({_LAYOUTS[self.layout]})" if self.layout else self.unit

    def raw(self, corners: Floats) -> Floats:
        """Returns the four numbers `[N, 4]` of corners `[N, 4]` that a reader has made of them."""
        low, high = corners[:, :2], corners[:, 2:]
        scaled = np.concatenate(_INVERSE[self.layout or "corners"](low, high), axis=1)
        return scaled * _SCALES[self.unit]

    def fractions(self, raw: Floats, sides: Floats) -> Floats:
        """Returns corners `[N, 4]` in fractions of the sides `[N, 2]` (height, width)."""
        first, second = raw[:, :2], raw[:, 2:]
        corners = np.concatenate(_CORNERS[self.layout or "corners"](first, second), axis=1)
        if self.unit == "pixels":
            return corners / np.tile(sides, 2)
        return corners / _SCALES[self.unit]


_Halves = Callable[[Floats, Floats], tuple[Floats, Floats]]
_CORNERS: dict[Layout, _Halves] = {
    "corners": lambda low, high: (low, high),
    "corner_size": lambda low, size: (low, low + size),
    "centre_size": lambda centre, size: (centre - size / 2, centre + size / 2),
}
_INVERSE: dict[Layout, _Halves] = {
    "corners": lambda low, high: (low, high),
    "corner_size": lambda low, high: (low, high - low),
    "centre_size": lambda low, high: ((low + high) / 2, high - low),
}


def _all_readings() -> list[BoxNumbers]:
    layouts = (*get_args(Layout), None)
    return [BoxNumbers(unit, layout) for unit in get_args(Unit) for layout in layouts]


def read_numbers(
    items: Sequence[AnnotatedImage],
    groups: Sequence[object],
    numbers: BoxNumbers,
    log: ConversionLog,
    chosen: BoxNumbers | None = None,
) -> list[AnnotatedImage]:
    """Returns the items with boxes in the unit and layout that the whole set has.

    Args:
        items: as a reader has read them, in the `numbers` of the format.
        groups: `[len(items)]`; the items of a group, such as a split, have the same numbers.
        chosen: the numbers, if the user has said them.

    Raises:
        UserError: boxes are not as the format says, and no other reading or several fit.
    """
    if chosen and numbers.layout is None:
        chosen = BoxNumbers(chosen.unit)
    members: dict[object, list[int]] = defaultdict(list)
    for place, (item, group) in enumerate(zip(items, groups, strict=True)):
        if len(item.pixel_boxes):
            members[group].append(place)
    result = list(items)
    for group, places in members.items():
        group_items = [items[place] for place in places]
        actual = chosen or _recognised(group_items, numbers, f" of {group}" if group else "")
        for place, item in zip(places, group_items, strict=True):
            if actual == numbers:
                result[place] = _without_other_unit(item, numbers, log)
            else:
                log.add(
                    f"boxes are {actual.describe()}, not {numbers.describe()}",
                    item.where,
                    format_box(item.pixel_boxes[0]) + " as the format says",
                    action="read as such",
                )
                result[place] = _converted(item, numbers, actual)
    return result


def _converted(item: AnnotatedImage, numbers: BoxNumbers, actual: BoxNumbers) -> AnnotatedImage:
    """Returns an item in which boxes are pixels or fractions, and areas are unknown."""
    # Pixels stay pixels: without a claimed size, they count in the file's image.
    boxes = actual.fractions(numbers.raw(item.pixel_boxes), np.ones((1, 2)))
    relative = actual.unit != "pixels"
    return replace(item, pixel_boxes=boxes, relative=relative, area=no_numbers())


_FEW = 3
"""Fewer boxes that do not fit are a matter of each box."""
_MANY = 0.1
"""Share of the boxes that must not fit before other readings are tried."""
_MOST = 0.5
"""Share of the boxes above which a set that fits nothing stops."""
_CLEAR = 0.25
"""Share of the boxes below which another layout is asked for and not taken."""
_ALL = 0.99
"""Share of the boxes that must lie in their images in another reading."""
_MARGIN = 0.02
"""Part of the side by which a box may reach outside the image; annotators' hands shake."""
_REACH = 0.35
"""Part of both sides that the boxes of a set reach, all together."""
_REACHING = 5
"""Fewer boxes may well lie in a corner."""
_SURE = 20
"""A number of boxes that do not lie in a corner by chance."""
_BROKEN = 0.25
"""Share of numbers with digits behind the point, above which they may be percent."""
_CORNER = 0.011
"""Part of the sides that boxes reach at most if they were divided once too often."""
_PEEKED = 500
"""Number of images to read the header of, if no size is claimed or boxes do not fit the size."""


def _recognised(items: Sequence[AnnotatedImage], numbers: BoxNumbers, of: str) -> BoxNumbers:
    """Returns the numbers of the items; `of` names the group for messages."""
    boxes, sides = _stacked(items)
    if not _is_much(_misfits(boxes, sides, numbers), len(boxes)):
        return numbers
    # The claimed sizes may be wrong too.
    places = np.unique(np.linspace(0, len(items) - 1, _PEEKED).round().astype(int))
    seen = [_with_real_size(items[place], numbers) for place in places]
    boxes, sides = _stacked([item for item in seen if min(item.height, item.width) > 0])
    misfits = _misfits(boxes, sides, numbers)
    if not _is_much(misfits, len(boxes)):
        return numbers
    layouts = get_args(Layout) if numbers.layout else (None,)
    candidates = [BoxNumbers(unit, layout) for unit in get_args(Unit) for layout in layouts]
    raw = numbers.raw(boxes)
    fitting = [c for c in candidates if c != numbers and _fits(c.fractions(raw, sides), sides)]
    fitting = _likeliest(fitting, numbers)
    small = numbers.unit == "pixels" and _could_be_percent(boxes, sides, numbers)
    # The policy of boxes repairs corners in another order.
    inside = _are_inside(_in_order(numbers.fractions(raw, sides)))
    in_doubt = len(boxes) < _SURE if small else bool((boxes[:, :2] > boxes[:, 2:]).all())
    in_doubt &= inside
    in_doubt |= misfits < _CLEAR and any(reading.unit == numbers.unit for reading in fitting)
    if fitting and in_doubt:
        fitting.append(numbers)
    elif len(fitting) == 1:
        return fitting[0]
    elif (inside and not (small and fitting)) or (not fitting and misfits <= _MOST):
        return numbers
    reason = "have no number above 100" if small else "do not lie in their images"
    raise _unclear(
        items[0], f"{misfits:.0%} of {count_text(len(boxes), 'box')}{of} {reason}", numbers, fitting
    )


def _is_much(misfits: float, count: int) -> bool:
    """Tells whether a share of boxes that do not fit puts the reading in doubt."""
    return misfits > _MANY and round(misfits * count) >= _FEW


def _likeliest(fitting: list[BoxNumbers], numbers: BoxNumbers) -> list[BoxNumbers]:
    """Returns the readings with the layout of the format, if any fits.

    Corners stay beside a centre and a size: few such boxes would pass for corners.
    """
    same = [reading for reading in fitting if reading.layout == numbers.layout]
    if not same:
        return fitting
    rivals = ("corners",) if numbers.layout == "centre_size" else ()
    return [reading for reading in fitting if reading in same or reading.layout in rivals]


def _unclear(
    first: AnnotatedImage, said: str, numbers: BoxNumbers, fitting: Sequence[BoxNumbers]
) -> UserError:
    """Returns the error for boxes that fit nothing, or several readings."""
    ways = " or ".join(reading.describe() for reading in fitting)
    known = f"all boxes fit as {ways}" if fitting else "no other reading fits all boxes"
    problem = f"{said} as {numbers.describe()}, which is what the format has; {known}"
    options = (str(Parameter("box_numbers", str(reading))) for reading in fitting or [numbers])
    fix = f"write them as {numbers.describe()}, or say what they are, as {' or '.join(options)}"
    return UserError(problem, where=first.where, fix=fix)


def _stacked(items: Sequence[AnnotatedImage]) -> tuple[Floats, Floats]:
    """Returns finite boxes `[N, 4]` and the sides `[N, 2]` of their images, 0 if unknown."""
    boxes = np.concatenate([item.pixel_boxes for item in items] or [np.zeros((0, 4))])
    counts = [len(item.pixel_boxes) for item in items]
    claimed = np.array([(item.height, item.width) for item in items], np.float64).reshape(-1, 2)
    sides = np.repeat(claimed, counts, axis=0)
    usable = np.isfinite(boxes).all(axis=1)
    return boxes[usable], sides[usable]


def _misfits(boxes: Floats, sides: Floats, numbers: BoxNumbers) -> float:
    """Returns the share of the boxes that are not in their image, or below a pixel of it."""
    if not len(boxes):
        return 0.0
    low, high = boxes[:, :2], boxes[:, 2:]
    if numbers.unit != "pixels":
        if boxes.max() <= _CORNER:
            return 1.0
        return 1 - float(_in_fractions(boxes).mean())
    if _could_be_percent(boxes, sides, numbers):
        return 1.0
    # Without a size, only boxes in other units than pixels are found.
    known = np.where(sides > 0, sides, np.inf)
    fine = _inside(low, high, known, np.where(sides > 0, np.maximum(_MARGIN * sides, 2), 2))
    fine &= ((high - low) >= 1).any(axis=1) & (np.abs(boxes).max(axis=1) > 1)
    return 1 - float(fine.mean())


def _could_be_percent(boxes: Floats, sides: Floats, numbers: BoxNumbers) -> bool:
    """Tells whether no number is above 100, and all boxes of pixels lie at the left or the top.

    Whole numbers are pixels.
    """
    raw = numbers.raw(boxes)
    most = raw.max(axis=0)
    at_most = bool((most <= 100).all() and (most >= 100 * _REACH).any())
    reach = (boxes[:, 2:] / np.where(sides > 0, sides, np.inf)).max(axis=0)
    in_corner = len(boxes) >= _REACHING and bool((reach < _REACH).any())
    return in_corner and at_most and bool((raw % 1 != 0).mean() > _BROKEN)


def _inside(low: Floats, high: Floats, sides: Floats, margin: Floats | float) -> NDArray[np.bool_]:
    fine = (low >= -margin) & (high <= sides + margin) & (low <= high)
    return np.asarray(fine.all(axis=1))


def _in_fractions(boxes: Floats) -> NDArray[np.bool_]:
    """Tells which boxes in fractions `[N, 4]` lie in their images."""
    return _inside(boxes[:, :2], boxes[:, 2:], np.ones((1, 2)), _MARGIN)


def _fits(fractions: Floats, sides: Floats) -> bool:
    """Tells whether boxes lie in their images, are seen there, and are not all in a corner."""
    low, high = fractions[:, :2], fractions[:, 2:]
    fine = _in_fractions(fractions)
    fine &= ((high - low) * sides >= 1).any(axis=1)
    return bool(fine.mean() >= _ALL and (high.max(axis=0) >= _REACH).all())


def _are_inside(fractions: Floats) -> bool:
    """Tells whether nearly all boxes lie in their images."""
    return bool(_in_fractions(fractions).mean() >= _ALL)


def _in_order(boxes: Floats) -> Floats:
    """Returns corners with the lower one first."""
    low, high = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(low, high), np.maximum(low, high)], axis=1)


def _with_real_size(item: AnnotatedImage, numbers: BoxNumbers) -> AnnotatedImage:
    """Returns an item with its file's size if there is no claimed one that its boxes fit."""
    if min(item.height, item.width) > 0 and not _misfits(*_stacked([item]), numbers):
        return item
    try:
        height, width = inspect_image(item.content(), whole=False).upright_size
    except (OSError, BadRecordError, ValueError):
        return item
    return replace(item, height=height, width=width)


_FRACTION = "box in fractions, in a format of pixels"
_PIXELS_FROM = 2.0
"""No box in fractions reaches so far."""


def _without_other_unit(
    item: AnnotatedImage, numbers: BoxNumbers, log: ConversionLog
) -> AnnotatedImage:
    """Drops the single boxes of another unit: clipped, they would cover the image or a pixel."""
    greatest = np.abs(item.pixel_boxes).max(axis=1, initial=0)  # NaN compares as False
    reason, other = IN_PIXELS, greatest > _PIXELS_FROM
    if numbers.unit == "pixels":
        reason, other = _FRACTION, (greatest <= 1) & (greatest > 0)
        other &= max(item.height, item.width) > 1
    for row in np.flatnonzero(other).tolist():
        log.bad_box(reason, f"{item.where}, box {row}", format_box(item.pixel_boxes[row]))
    return only_boxes(item, ~other)
