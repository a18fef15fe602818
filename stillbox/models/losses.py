"""Losses by their schema classes; the families in `schema` say how they are called."""

from collections.abc import Callable

import jax

from stillbox.boxes import losses
from stillbox.experiment import schema
from stillbox.experiment.variants import implements

Decode = Callable[[jax.Array], jax.Array]
"""From codes `[B, A, S]` to boxes `[B, A, 4]`."""


@implements(schema.SigmoidLoss)
def _sigmoid(config: schema.SigmoidLoss, *arrays: jax.Array) -> jax.Array:
    return losses.sigmoid_loss(*arrays)


@implements(schema.SigmoidFocalLoss)
def _focal(config: schema.SigmoidFocalLoss, *arrays: jax.Array) -> jax.Array:
    return losses.sigmoid_focal_loss(*arrays, gamma=config.gamma, alpha=config.alpha)


@implements(schema.BootstrappedSigmoidLoss)
def _bootstrapped(config: schema.BootstrappedSigmoidLoss, *arrays: jax.Array) -> jax.Array:
    return losses.bootstrapped_sigmoid_loss(*arrays, alpha=config.alpha, hard=config.hard)


@implements(schema.SoftmaxLoss)
def _softmax(config: schema.SoftmaxLoss, *arrays: jax.Array) -> jax.Array:
    return losses.softmax_loss(*arrays, logit_scale=config.logit_scale)


@implements(schema.SoftmaxAgainstLogitsLoss)
def _against_logits(config: schema.SoftmaxAgainstLogitsLoss, *arrays: jax.Array) -> jax.Array:
    return losses.softmax_against_logits_loss(*arrays, logit_scale=config.logit_scale)


@implements(schema.SmoothL1Loss)
def _smooth_l1(
    config: schema.SmoothL1Loss, *arrays: jax.Array, decode: Decode, skip_zeros: bool
) -> jax.Array:
    return losses.smooth_l1_loss(*arrays, delta=config.delta, skip_zeros=skip_zeros)


@implements(schema.L1Loss)
def _l1(config: schema.L1Loss, *arrays: jax.Array, decode: Decode, skip_zeros: bool) -> jax.Array:
    return losses.l1_loss(*arrays, skip_zeros=skip_zeros)


@implements(schema.L2Loss)
def _l2(config: schema.L2Loss, *arrays: jax.Array, decode: Decode, skip_zeros: bool) -> jax.Array:
    return losses.l2_loss(*arrays, skip_zeros=skip_zeros)


@implements(schema.IouLoss)
def _iou(config: schema.IouLoss, *arrays: jax.Array, decode: Decode, skip_zeros: bool) -> jax.Array:
    codes, targets, weights = arrays
    return losses.iou_loss(decode(codes), decode(targets), weights)


@implements(schema.GiouLoss)
def _giou(
    config: schema.GiouLoss, *arrays: jax.Array, decode: Decode, skip_zeros: bool
) -> jax.Array:
    codes, targets, weights = arrays
    return losses.giou_loss(decode(codes), decode(targets), weights)
