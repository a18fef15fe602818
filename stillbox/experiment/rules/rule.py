"""Rules: what they return, their registry, and the limits of single fields.

A limit is broken by a number outside its range, a least value above the greatest, or text that is
none.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from stillbox.experiment import schema
from stillbox.experiment.values import Value, field_marks, sections_of


@dataclass(frozen=True)
class Violation:
    """A rule that an experiment breaks."""

    path: str
    """Dotted path of the field at fault. A rule gives it relative to the section that it checks."""
    what: str
    """What is wrong, with the values."""
    fix: str
    """How to mend it."""


Check = Callable[[Any], Iterator[Violation]]
"""From a section of an experiment to the rules that it breaks."""
AnyCheck = TypeVar("AnyCheck", bound=Callable[..., Iterator[Violation]])

_RULES: list[tuple[tuple[type, ...], Check]] = []


def rule(*classes: type) -> Callable[[AnyCheck], AnyCheck]:
    """Registers a rule about every section of an experiment that is of one of the classes."""

    def register(check: AnyCheck) -> AnyCheck:
        _RULES.append((classes, check))
        return check

    return register


def find(experiment: schema.Experiment) -> Iterator[Violation]:
    """Yields every registered rule that an experiment breaks, in the order of registration."""
    sections = list(sections_of(experiment))
    for classes, check in _RULES:
        for path, section in sections:
            if isinstance(section, classes):
                for broken in check(section):
                    place = ".".join(filter(None, (path, broken.path)))
                    yield dataclasses.replace(broken, path=place)


def input_sides(model: schema.Model) -> Iterator[tuple[str, int]]:
    """Yields the sides of the network input with the fields of the model that set them."""
    resizer, path = model.resizer, "resizer"
    height, width = resizer.input_size
    if isinstance(resizer, schema.FixedShapeResizer | schema.ScaleJitterResizer):
        yield from ((f"{path}.height", height), (f"{path}.width", width))
    elif isinstance(resizer, schema.CanvasResizer):
        yield from ((f"{path}.canvas", side) for side in dict.fromkeys((height, width)))
    else:
        yield f"{path}.max_dimension", height


def padding_multiple(model: schema.OneStage | schema.FasterRcnn) -> int:
    """Returns what sides of the network input are padded to multiples of."""
    return model.pad_to_multiple if isinstance(model, schema.OneStage) else 1


def fit_stride(
    model: schema.OneStage | schema.FasterRcnn, stride: int, who: str
) -> Iterator[Violation]:
    """Yields the sides of the network input that are no multiples of a stride.

    Args:
        model: the model.
        stride: of its coarsest map, in pixels.
        who: what requires it, for the message.
    """
    multiple = padding_multiple(model)
    if multiple < 1:
        return
    for path, side in input_sides(model):
        if side >= 1 and (side + -side % multiple) % stride:
            below = max(side // stride, 1) * stride
            fix = f"the nearest sides that do are {below} and {below + stride}"
            if isinstance(model, schema.OneStage):
                fix += f"; or set model.pad_to_multiple to {stride}"
            what = f"an image side of {side} pixels does not fit {who} of stride {stride}"
            yield Violation(path, what, fix)


_GREATEST = 2**63 - 1
# Paths have at most 4096 characters; expressions are the longest texts.
_LONGEST = 10_000
# NUL ends a path, and a surrogate is half a character. Escapes can spell both.
_UNUSABLE = re.compile("[\0\ud800-\udfff]")


class Excess(Violation):
    """A number, list or text so large that no other rule may count with it."""


def check_limits(experiment: schema.Experiment) -> Iterator[Violation]:
    """Finds numbers outside their range, lists and texts that are too long, odd characters."""
    for path, section in sections_of(experiment):
        ranges = field_marks(section.__class__, schema.Range)
        items = field_marks(section.__class__, schema.Items)
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            inner = f"{path}.{field.name}" if path else field.name
            most = items.get(field.name, schema.Items()).most
            if isinstance(value, tuple) and len(value) > most:
                yield Excess(inner, f"{inner} has {len(value):,} items", f"give at most {most:,}")
                continue
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, int | float) and not isinstance(item, bool):
                    yield from _check_number(item, inner, ranges.get(field.name))
                elif isinstance(item, str):
                    yield from _check_text(item, inner)


def _check_number(number: float, path: str, allowed: schema.Range | None) -> Iterator[Violation]:
    # Rules can count with a share of 7.
    broken = Excess if allowed and abs(number) > max(allowed.high, 1000) else Violation
    # The text format can spell inf and nan.
    if isinstance(number, float) and not math.isfinite(number):
        yield Excess(path, f"{path} is {number}", "give a finite number")
    # YAML has whole numbers of any length, arrays have not.
    elif isinstance(number, int) and abs(number) > _GREATEST:
        what = f"{path} is a number of {int(math.log10(abs(number))) + 1} digits"
        yield Excess(path, what, "give one that fits into 64 bits")
    elif allowed is not None and number < allowed.low:
        yield broken(path, f"{path} is {number}", f"give a value {allowed.least}")
    elif allowed is not None and number > allowed.high:
        yield broken(path, f"{path} is {number}", f"give a value {allowed.greatest}")


def _check_text(text: str, path: str) -> Iterator[Violation]:
    if len(text) > _LONGEST:
        what = f"{path} is a text of {len(text):,} characters"
        yield Excess(path, what, f"give at most {_LONGEST:,}")
    elif _UNUSABLE.search(text):
        what = f"{path} holds a character that neither files nor names have: {text!r}"
        yield Violation(path, what, "take it out")


@rule(object)
def ranges_are_ordered(section: Any) -> Iterator[Violation]:  # noqa: ANN401
    """A least value is no greater than the greatest."""
    for field in dataclasses.fields(section):
        name = field.name.removeprefix("min_")
        low, high = getattr(section, field.name), getattr(section, f"max_{name}", None)
        if name == field.name or not _is_above(low, high):
            continue
        # Explicit scales replace the range; a max_depth of 0 is no limit.
        if isinstance(section, schema.SsdAnchors) and section.scales:
            continue
        if isinstance(section, schema.ConvolutionalHead) and section.max_depth == 0:
            continue
        yield Violation(
            f"min_{name}",
            f"min_{name} {_spell(low)} is above max_{name} {_spell(high)}",
            f"lower it, or raise max_{name}",
        )


def _is_above(low: Value, high: Value) -> bool:
    if low is None or high is None:
        return False
    if isinstance(low, tuple):
        return any(map(_is_above, low, high))
    return bool(low > high)


def _spell(value: Value) -> str:
    return str(list(value) if isinstance(value, tuple) else value)
