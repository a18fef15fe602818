"""`Hyperparams`: how convolutions are regularised, initialised, normalised, activated."""

from typing import Any, Literal

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


def read_hyperparams(section: Section, path: str, *, keras: bool) -> ConvHyperparams:
    """Reads a `Hyperparams` message.

    Args:
        section: the message.
        path: its place in the experiment.
        keras: whether it belongs to a model of the original's second generation, which leaves
            depthwise kernels without penalty where the config does not say; the first does not.
    """
    depthwise = section.value("regularize_depthwise", f"{path}.regularize_depthwise")
    return ConvHyperparams(
        activation=_ACTIVATIONS[section.value("activation", f"{path}.activation")],
        regularizer=_read_regularizer(section.child("regularizer"), f"{path}.regularizer"),
        initializer=_read_initializer(section.child("initializer"), f"{path}.initializer"),
        batch_norm=_read_batch_norm(section, f"{path}.batch_norm"),
        regularize_depthwise=depthwise or not (keras or section.has("regularize_depthwise")),
        **section.fill(path, force_bias="force_use_bias"),
    )


def _read_batch_norm(section: Section, path: str) -> BatchNorm | None:
    """Reads either spelling: plain batch norm knows one replica's images, the other one all."""
    kinds: dict[str, Literal["global", "per_replica"]] = {
        "batch_norm": "per_replica",
        "sync_batch_norm": "global",
    }
    for name, statistics in kinds.items():
        if section.has(name):
            section.log.origins[f"{path}.statistics"] = section.position(name)
            names = ("decay", "epsilon", "center", "scale", "train")
            return BatchNorm(statistics=statistics, **section.child(name).fill(path, *names))
    return None


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
