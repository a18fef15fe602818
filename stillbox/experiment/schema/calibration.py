"""From scores to probabilities, after the score converter.

The original's `object_detection/protos/calibration.proto`.

Class slots are counted as the head has them: slot 0 is the background, if any.
"""

from dataclasses import dataclass
from typing import Annotated

from stillbox.experiment.schema.ranges import *
from stillbox.experiment.variants import Variant


class Calibration(Variant):
    """From scores to probabilities.

    Called as `(config, scores [B, A, C])`; returns `[B, A, C]`.
    """


@dataclass(frozen=True, kw_only=True)
class CurveCalibration(Calibration, kind="curve"):
    """One curve for the scores of all classes: straight lines between points."""

    scores: Annotated[tuple[Real, ...], Many] = (0.0, 1.0)
    """Scores of the points, rising."""
    calibrated: Annotated[tuple[Real, ...], Many] = (0.0, 1.0)
    """Probabilities of the points; scores beyond the outer points have theirs."""


@dataclass(frozen=True, kw_only=True)
class ClassCurve:
    """The curve of one class."""

    slot: Slot = 1
    """Class slot."""
    scores: Annotated[tuple[Real, ...], Many] = (0.0, 1.0)
    """Scores of the points, rising."""
    calibrated: Annotated[tuple[Real, ...], Many] = (0.0, 1.0)
    """Probabilities of the points; scores beyond the outer points have theirs."""


@dataclass(frozen=True, kw_only=True)
class ClassCurveCalibration(Calibration, kind="class_curves"):
    """A curve for each of some classes; the scores of the others stay."""

    curves: Annotated[tuple[ClassCurve, ...], PerClass] = (ClassCurve(),)
    """One for each class that has one."""


@dataclass(frozen=True, kw_only=True)
class SigmoidCalibration(Calibration, kind="sigmoid"):
    """Platt's scaling, `1 / (1 + exp(a score + b))`, of all classes alike."""

    a: Real = -1.0
    """Slope; below 0 it keeps the order of the scores."""
    b: Real = 0.0
    """Offset."""


@dataclass(frozen=True, kw_only=True)
class ClassSigmoid:
    """Platt's numbers of one class."""

    slot: Slot = 1
    """Class slot."""
    a: Real = -1.0
    """Slope; below 0 it keeps the order of the scores."""
    b: Real = 0.0
    """Offset."""


@dataclass(frozen=True, kw_only=True)
class ClassSigmoidCalibration(Calibration, kind="class_sigmoids"):
    """Platt's scaling of some classes; the scores of the others stay."""

    sigmoids: Annotated[tuple[ClassSigmoid, ...], PerClass] = (ClassSigmoid(),)
    """One for each class that has one."""


@dataclass(frozen=True, kw_only=True)
class TemperatureCalibration(Calibration, kind="temperature"):
    """Divides the scores, as the original does: after the score converter, not before it."""

    scaler: Positive = 1.0
    """The divisor."""
