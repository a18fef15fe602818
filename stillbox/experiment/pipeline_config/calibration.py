"""`CalibrationConfig`: from scores to probabilities."""

from typing import Any

from stillbox.experiment.pipeline_config.section import MessageSection, choice
from stillbox.experiment.schema import (
    ClassCurve,
    ClassCurveCalibration,
    ClassSigmoid,
    ClassSigmoidCalibration,
    CurveCalibration,
    SigmoidCalibration,
    TemperatureCalibration,
)
from stillbox.experiment.sections import part


def _read_curve(section: MessageSection, path: str) -> CurveCalibration:
    return CurveCalibration(**_points(section.child("x_y_pairs"), path))


# An entry of a map is a message of key and value. Of two with one key protobuf keeps the second;
# here the rules refuse them.
def _read_class_curve(entry: MessageSection, path: str) -> ClassCurve:
    return ClassCurve(**entry.fill(path, slot="key"), **_points(entry.child("value"), path))


def _read_class_sigmoid(entry: MessageSection, path: str) -> ClassSigmoid:
    return ClassSigmoid(**entry.fill(path, slot="key"), **entry.child("value").fill(path, "a", "b"))


def _points(section: MessageSection, path: str) -> dict[str, Any]:
    pairs = section.children("x_y_pair")
    return {
        "scores": tuple(pair.value("x", f"{path}.scores") for pair in pairs),
        "calibrated": tuple(pair.value("y", f"{path}.calibrated") for pair in pairs),
    }


def _read_sigmoid(section: MessageSection, path: str) -> SigmoidCalibration:
    return SigmoidCalibration(**section.child("sigmoid_parameters").fill(path, "a", "b"))


read_calibration = choice(
    "calibrator",
    {
        "function_approximation": _read_curve,
        "class_id_function_approximations": part(
            ClassCurveCalibration, curves=("class_id_xy_pairs_map", _read_class_curve)
        ),
        "sigmoid_calibration": _read_sigmoid,
        "class_id_sigmoid_calibrations": part(
            ClassSigmoidCalibration,
            sigmoids=("class_id_sigmoid_parameters_map", _read_class_sigmoid),
        ),
        "temperature_scaling_calibration": part(TemperatureCalibration),
    },
)
"""Reads `calibration_config`."""
