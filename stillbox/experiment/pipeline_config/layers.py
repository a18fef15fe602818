"""`Hyperparams`: how convolutions are regularised, initialised, normalised, activated."""

import dataclasses

from stillbox.experiment.pipeline_config.section import MessageSection, choice
from stillbox.experiment.schema import (
    L1,
    L2,
    BatchNorm,
    ConvHyperparams,
    RandomNormal,
    TruncatedNormal,
    VarianceScaling,
)
from stillbox.experiment.sections import part

# Plain batch norm takes the statistics of one replica's images, synchronised batch norm of all.
_NORMS = {"batch_norm": "per_replica", "sync_batch_norm": "global"}
_REGULARIZERS = {"l2_regularizer": part(L2), "l1_regularizer": part(L1)}
_read_regularizer = choice("regularizer_oneof", _REGULARIZERS)
_read_initializer = choice(
    "initializer_oneof",
    {
        "truncated_normal_initializer": part(TruncatedNormal),
        "random_normal_initializer": part(RandomNormal),
        "variance_scaling_initializer": part(VarianceScaling),
    },
)
_read_conv = part(ConvHyperparams, force_bias="force_use_bias")


def read_hyperparams(section: MessageSection, path: str, *, keras: bool) -> ConvHyperparams:
    """Reads a `Hyperparams` message.

    Args:
        section: the message.
        path: its place in the experiment.
        keras: whether it belongs to a model of the original's second generation, which leaves
            depthwise kernels without penalty where the config does not say; the first does not.
    """
    depthwise = section.value("regularize_depthwise", f"{path}.regularize_depthwise")
    regularizer = section.child("regularizer")
    # Unlike in other choices, setting no member is common: no penalty.
    has_penalty = any(regularizer.has(name) for name in _REGULARIZERS)
    conv: ConvHyperparams = _read_conv(
        section,
        path,
        regularizer=_read_regularizer(regularizer, f"{path}.regularizer") if has_penalty else None,
        initializer=_read_initializer(section.child("initializer"), f"{path}.initializer"),
        batch_norm=_read_batch_norm(section, f"{path}.batch_norm"),
        regularize_depthwise=depthwise or not (keras or section.has("regularize_depthwise")),
    )
    return conv


def of_a_replica(conv: ConvHyperparams) -> ConvHyperparams:
    """Returns hyperparameters with batch norm over one replica's images, as in the original."""
    if conv.batch_norm is None:
        return conv
    norm = dataclasses.replace(conv.batch_norm, statistics="per_replica")
    return dataclasses.replace(conv, batch_norm=norm)


def overridden(section: MessageSection, base: ConvHyperparams, *, keras: bool) -> ConvHyperparams:
    """Returns the hyperparameters of a base network that the config overrides."""
    given = read_hyperparams(section.child("conv_hyperparams"), "model.backbone.conv", keras=keras)
    # Without batch_norm in the config the base keeps its own: its scope is opened first.
    return dataclasses.replace(given, batch_norm=given.batch_norm or base.batch_norm)


def _read_batch_norm(section: MessageSection, path: str) -> BatchNorm | None:
    for name, statistics in _NORMS.items():
        if section.has(name):
            section.log.origins[f"{path}.statistics"] = section.where(name)
            norm: BatchNorm = part(BatchNorm)(section.child(name), path, statistics=statistics)
            return norm
    return None
