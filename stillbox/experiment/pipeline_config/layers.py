"""`Hyperparams`: how convolutions are regularised, initialised, normalised, activated."""

from typing import Any

from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import (
    L1,
    L2,
    BatchNorm,
    ConvHyperparams,
    Initializer,
    RandomNormal,
    TruncatedNormal,
    VarianceScaling,
)

_ACTIVATIONS: dict[str, Any] = {
    "NONE": "none",
    "RELU": "relu",
    "RELU_6": "relu6",
    "SWISH": "swish",
}
_MODES: dict[str, Any] = {"FAN_IN": "fan_in", "FAN_OUT": "fan_out", "FAN_AVG": "fan_avg"}

SLIM_MOBILENET_V1 = ConvHyperparams(
    activation="relu6",
    regularizer=L2(weight=4e-5),
    initializer=TruncatedNormal(stddev=0.09),
    batch_norm=BatchNorm(decay=0.9997, epsilon=0.001, center=True, scale=True),
    regularize_depthwise=True,
)
"""What MobileNet v1 has of its own, where the config does not override it (fact sheet 1.3)."""


def read_hyperparams(section: Section, path: str) -> ConvHyperparams:
    """Reads a `Hyperparams` message into the place `path` of the experiment."""
    has_norm = section.has("batch_norm")
    norm = section.child("batch_norm")
    norm_path = f"{path}.batch_norm"
    return ConvHyperparams(
        activation=_ACTIVATIONS[section.value("activation", f"{path}.activation")],
        regularizer=_read_regularizer(section.child("regularizer"), f"{path}.regularizer"),
        initializer=_read_initializer(section.child("initializer"), f"{path}.initializer"),
        batch_norm=BatchNorm(**norm.fill(norm_path, "decay", "epsilon", "center", "scale", "train"))
        if has_norm
        else None,
        regularize_depthwise=section.value("regularize_depthwise", f"{path}.regularize_depthwise"),
    )


def _read_regularizer(section: Section, path: str) -> L1 | L2 | None:
    kinds: dict[str, type[L1 | L2]] = {"l2_regularizer": L2, "l1_regularizer": L1}
    # Unlike the other choices, none at all is an ordinary thing to write: no penalty.
    if not any(section.has(name) for name in kinds):
        return None
    name, chosen = section.choose("regularizer_oneof", tuple(kinds))
    return kinds[name](**chosen.fill(path, "weight"))


def _read_initializer(section: Section, path: str) -> Initializer:
    name, chosen = section.choose(
        "initializer_oneof",
        (
            "truncated_normal_initializer",
            "random_normal_initializer",
            "variance_scaling_initializer",
        ),
    )
    if name == "truncated_normal_initializer":
        return TruncatedNormal(**chosen.fill(path, "mean", "stddev"))
    if name == "random_normal_initializer":
        return RandomNormal(**chosen.fill(path, "mean", "stddev"))
    mode = _MODES[chosen.value("mode", f"{path}.mode")]
    return VarianceScaling(mode=mode, **chosen.fill(path, "factor", "uniform"))
