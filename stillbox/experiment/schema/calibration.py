"""From scores to probabilities, after the score converter.

The original's `object_detection/protos/calibration.proto`.

Class slots are counted as the head has them: slot 0 is the background, if any.
"""

from dataclasses import dataclass
from typing import ClassVar

from stillbox.experiment.schema.ranges import Positive
from stillbox.experiment.variants import Variant


class Calibration(Variant):
    """From scores to probabilities.

    Called as `(config, scores [B, A, C])`; returns `[B, A, C]`.
    """


@dataclass(frozen=True, kw_only=True)
class CurveCalibration(Calibration):
    """One curve for the scores of all classes: straight lines between points."""

    kind: ClassVar[str] = "curve"
    scores: tuple[float, ...] = (0.0, 1.0)
    """Scores of the points, rising."""
    calibrated: tuple[float, ...] = (0.0, 1.0)
    """Probabilities of the points; scores beyond the outer points have theirs."""


@dataclass(frozen=True, kw_only=True)
class ClassCurve:
    """The curve of one class."""

    slot: int = 1
    """Class slot."""
    scores: tuple[float, ...] = (0.0, 1.0)
    """Scores of the points, rising."""
    calibrated: tuple[float, ...] = (0.0, 1.0)
    """Probabilities of the points; scores beyond the outer points have theirs."""


@dataclass(frozen=True, kw_only=True)
class ClassCurveCalibration(Calibration):
    """A curve for each of some classes; the scores of the others stay."""

    kind: ClassVar[str] = "class_curves"
    curves: tuple[ClassCurve, ...] = (ClassCurve(),)
    """One for each class that has one."""


@dataclass(frozen=True, kw_only=True)
class SigmoidCalibration(Calibration):
    """Platt's scaling, `1 / (1 + exp(a score + b))`, of all classes alike."""

    kind: ClassVar[str] = "sigmoid"
    a: float = -1.0
    """Slope; below 0 it keeps the order of the scores."""
    b: float = 0.0
    """Offset."""


@dataclass(frozen=True, kw_only=True)
class ClassSigmoid:
    """Platt's numbers of one class."""

    slot: int = 1
    """Class slot."""
    a: float = -1.0
    """Slope; below 0 it keeps the order of the scores."""
    b: float = 0.0
    """Offset."""


@dataclass(frozen=True, kw_only=True)
class ClassSigmoidCalibration(Calibration):
    """Platt's scaling of some classes; the scores of the others stay."""

    kind: ClassVar[str] = "class_sigmoids"
    sigmoids: tuple[ClassSigmoid, ...] = (ClassSigmoid(),)
    """One for each class that has one."""


@dataclass(frozen=True, kw_only=True)
class TemperatureCalibration(Calibration):
    """Divides the scores, as the original does: after the score converter, not before it."""

    kind: ClassVar[str] = "temperature"
    scaler: Positive = 1.0
    """The divisor."""
