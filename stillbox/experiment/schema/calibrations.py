"""Calibrations, from scores to probabilities (`object_detection/protos/calibration.proto`).

Class slots are counted as the head has them: slot 0 is the background, if any.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from stillbox.experiment.schema.ranges import Items, Many, Positive, Real, Slot
from stillbox.experiment.variants import RegisteredConfig, implements

if TYPE_CHECKING:
    import numpy as np
    from jax import Array
    from numpy.typing import NDArray

_CLASSES = Items(1_000_000, least=1, fix="give one, or calibration: null")


class Calibration(RegisteredConfig):
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


@implements(CurveCalibration)
def _curve(config: CurveCalibration, scores: "Array") -> "Array":
    import numpy as np

    from stillbox.boxes.coders import curve_scores

    inputs, outputs = np.array(config.scores), np.array(config.calibrated)
    return curve_scores(scores, inputs=inputs, outputs=outputs)


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

    curves: Annotated[tuple[ClassCurve, ...], _CLASSES] = (ClassCurve(),)
    """One for each class that has one."""


@implements(ClassCurveCalibration)
def _class_curves(config: ClassCurveCalibration, scores: "Array") -> "Array":
    import numpy as np

    from stillbox.boxes.coders import class_curve_scores

    longest = max(len(curve.scores) for curve in config.curves)

    def padded(values: tuple[float, ...]) -> "NDArray[np.float32]":
        row = np.asarray(values, np.float32)
        return np.pad(row, (0, longest - len(row)), mode="edge")

    return class_curve_scores(
        scores,
        class_channels=np.array([curve.slot for curve in config.curves]),
        inputs=np.stack([padded(curve.scores) for curve in config.curves]),
        outputs=np.stack([padded(curve.calibrated) for curve in config.curves]),
    )


@dataclass(frozen=True, kw_only=True)
class SigmoidCalibration(Calibration, kind="sigmoid"):
    """Platt's scaling, `1 / (1 + exp(a score + b))`, of all classes alike."""

    a: Real = -1.0
    """Slope; below 0 it keeps the order of the scores."""
    b: Real = 0.0
    """Offset."""


@implements(SigmoidCalibration)
def _sigmoid(config: SigmoidCalibration, scores: "Array") -> "Array":
    from stillbox.boxes.coders import platt_scores

    return platt_scores(scores, a=config.a, b=config.b)


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

    sigmoids: Annotated[tuple[ClassSigmoid, ...], _CLASSES] = (ClassSigmoid(),)
    """One for each class that has one."""


@implements(ClassSigmoidCalibration)
def _class_sigmoids(config: ClassSigmoidCalibration, scores: "Array") -> "Array":
    import numpy as np

    from stillbox.boxes.coders import class_platt_scores

    return class_platt_scores(
        scores,
        class_channels=np.array([sigmoid.slot for sigmoid in config.sigmoids]),
        a=np.array([sigmoid.a for sigmoid in config.sigmoids]),
        b=np.array([sigmoid.b for sigmoid in config.sigmoids]),
    )


@dataclass(frozen=True, kw_only=True)
class TemperatureCalibration(Calibration, kind="temperature"):
    """Divides the scores, as the original does: after the score converter, not before it."""

    scaler: Positive = 1.0
    """The divisor."""


@implements(TemperatureCalibration)
def _temperature(config: TemperatureCalibration, scores: "Array") -> "Array":
    return scores / config.scaler
