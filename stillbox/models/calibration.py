"""Calibrations by their schema classes; the family in `schema` says how they are called."""

import jax
import numpy as np
from numpy.typing import NDArray

from stillbox.boxes import coders
from stillbox.experiment import schema
from stillbox.experiment.variants import implements


@implements(schema.CurveCalibration)
def _curve(config: schema.CurveCalibration, scores: jax.Array) -> jax.Array:
    return coders.curve_scores(
        scores, inputs=np.array(config.scores), outputs=np.array(config.calibrated)
    )


@implements(schema.ClassCurveCalibration)
def _class_curves(config: schema.ClassCurveCalibration, scores: jax.Array) -> jax.Array:
    longest = max(len(curve.scores) for curve in config.curves)
    return coders.class_curve_scores(
        scores,
        slots=np.array([curve.slot for curve in config.curves]),
        inputs=np.stack([_repeat_last(curve.scores, longest) for curve in config.curves]),
        outputs=np.stack([_repeat_last(curve.calibrated, longest) for curve in config.curves]),
    )


@implements(schema.SigmoidCalibration)
def _sigmoid(config: schema.SigmoidCalibration, scores: jax.Array) -> jax.Array:
    return coders.platt_scores(scores, a=config.a, b=config.b)


@implements(schema.ClassSigmoidCalibration)
def _class_sigmoids(config: schema.ClassSigmoidCalibration, scores: jax.Array) -> jax.Array:
    return coders.class_platt_scores(
        scores,
        slots=np.array([sigmoid.slot for sigmoid in config.sigmoids]),
        a=np.array([sigmoid.a for sigmoid in config.sigmoids]),
        b=np.array([sigmoid.b for sigmoid in config.sigmoids]),
    )


@implements(schema.TemperatureCalibration)
def _temperature(config: schema.TemperatureCalibration, scores: jax.Array) -> jax.Array:
    return scores / config.scaler


def _repeat_last(values: tuple[float, ...], length: int) -> NDArray[np.float32]:
    return np.pad(np.asarray(values, np.float32), (0, length - len(values)), mode="edge")
