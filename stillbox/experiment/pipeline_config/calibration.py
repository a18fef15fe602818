"""`CalibrationConfig`: from scores to probabilities."""

from typing import Any

from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import (
    Calibration,
    ClassCurve,
    ClassCurveCalibration,
    ClassSigmoid,
    ClassSigmoidCalibration,
    CurveCalibration,
    SigmoidCalibration,
    TemperatureCalibration,
)


def read_calibration(section: Section, path: str) -> Calibration:
    """Reads `calibration_config`."""
    name, chosen = section.choose(
        "calibrator",
        (
            "function_approximation",
            "class_id_function_approximations",
            "sigmoid_calibration",
            "class_id_sigmoid_calibrations",
            "temperature_scaling_calibration",
        ),
    )
    if name == "function_approximation":
        return CurveCalibration(**_read_curve(chosen.child("x_y_pairs"), path))
    if name == "class_id_function_approximations":
        curves = enumerate(chosen.children("class_id_xy_pairs_map"))
        return ClassCurveCalibration(
            curves=tuple(_read_class_curve(entry, f"{path}.curves.{i}") for i, entry in curves)
        )
    if name == "sigmoid_calibration":
        return SigmoidCalibration(**chosen.child("sigmoid_parameters").fill(path, "a", "b"))
    if name == "class_id_sigmoid_calibrations":
        sigmoids = enumerate(chosen.children("class_id_sigmoid_parameters_map"))
        return ClassSigmoidCalibration(
            sigmoids=tuple(
                _read_class_sigmoid(entry, f"{path}.sigmoids.{i}") for i, entry in sigmoids
            )
        )
    return TemperatureCalibration(**chosen.fill(path, "scaler"))


# An entry of a map is a message of key and value. Of two with one key protobuf keeps the second;
# here the rules refuse them.
def _read_class_curve(entry: Section, path: str) -> ClassCurve:
    return ClassCurve(**entry.fill(path, slot="key"), **_read_curve(entry.child("value"), path))


def _read_class_sigmoid(entry: Section, path: str) -> ClassSigmoid:
    return ClassSigmoid(**entry.fill(path, slot="key"), **entry.child("value").fill(path, "a", "b"))


def _read_curve(section: Section, path: str) -> dict[str, Any]:
    pairs = section.children("x_y_pair")
    return {
        "scores": tuple(pair.value("x", f"{path}.scores") for pair in pairs),
        "calibrated": tuple(pair.value("y", f"{path}.calibrated") for pair in pairs),
    }
