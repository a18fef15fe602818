"""Statistics for batch norms that have none, such as folded ones, measured on training images.

A norm that a converter folded into a kernel is read back as a factor and an offset. Training
normalises by the batch, and so would begin with another network. A norm with mean and variance of
its input computes what it did, and training goes on where the weights' own training ended.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from stillbox.boxes.structures import AnyArray, Batch
from stillbox.devices.mesh import build_mesh, tracing_for
from stillbox.devices.process import input_threads
from stillbox.experiment import schema
from stillbox.inputs.loader import open_train_loader
from stillbox.models.build import abstract_detector
from stillbox.models.detector import Detector
from stillbox.models.layers import NormLayer
from stillbox.models.paths import named_modules
from stillbox.models.variables import Arrays, Structure, bind_detector, split_detector

_BATCH, _BATCHES = 4, 16
MEASURED_IMAGES = _BATCH * _BATCHES
"""The number of images; small sets are repeated."""


class _Moments(NamedTuple):
    """Values of the input of a norm: their number, and by channel mean and biased variance."""

    total: Float[AnyArray, ""]
    mean: Float[AnyArray, " C"]
    variance: Float[AnyArray, " C"]


def measure_norms(detector: Detector, experiment: schema.Experiment, paths: Collection[str]) -> int:
    """Gives batch norms the statistics of the first training images, in place.

    The detector computes the same detections. Nothing depends on the number of devices.

    Args:
        paths: of norms without statistics of their input.

    Returns:
        The number of norms. Frozen norms, and norms that lack scale or offset, stay as they are.

    Raises:
        UserError: a record is bad and the policy is `fail`.
    """
    norms = {
        path: norm
        for path, norm in _norms(detector)
        if path in paths and not norm.frozen and norm.scale is not None and norm.bias is not None
    }
    if norms:
        for path, moments in _measure(detector, experiment, norms).items():
            _give_statistics(norms[path], moments)
    return len(norms)


def _norms(detector: nnx.Module) -> Iterator[tuple[str, NormLayer]]:
    for path, module in named_modules(detector):
        if isinstance(module, NormLayer):
            yield ".".join(path), module


def _give_statistics(norm: NormLayer, moments: _Moments) -> None:
    """Sets mean and variance, and scale and offset so that the norm computes what it did."""
    assert norm.scale is not None and norm.bias is not None
    variables = (norm.scale, norm.bias, norm.mean, norm.var)
    scale, bias, mean, variance = (np.asarray(array[...], np.float64) for array in variables)
    epsilon = norm.config.epsilon
    factor = scale / np.sqrt(variance + epsilon)
    values = (
        factor * np.sqrt(moments.variance + epsilon),
        bias + (moments.mean - mean) * factor,
        moments.mean,
        moments.variance,
    )
    for variable, value in zip(variables, values, strict=True):
        variable.set_value(jnp.asarray(value, jnp.float32))


def _measure(
    detector: Detector, experiment: schema.Experiment, norms: Collection[str]
) -> dict[str, _Moments]:
    """Returns the moments of the inputs of norms by path."""
    # Rounding to integers takes the place of norms, and shorter types round their inputs.
    described = abstract_detector(experiment.model, "float32")
    _, params, stats = split_detector(detector)
    arrays = params, {path: stats[path] for path in described.stats}
    # The same program for every number of devices.
    mesh = build_mesh(_BATCH, schema.Devices(), jax.local_devices()[:1])
    program = jax.jit(partial(_moments_of_batch, described.graph, frozenset(norms)))
    with tracing_for(mesh, experiment.devices):
        batches = [
            jax.device_get(program(*arrays, batch.images, batch.true_sizes))
            for batch in _first_batches(experiment)
        ]
    return {path: _joined([part for batch in batches for part in batch[path]]) for path in norms}


def _first_batches(experiment: schema.Experiment) -> Iterator[Batch]:
    """Yields the first training images, the same in every process."""
    train = replace(experiment.train, batch_size=_BATCH, accumulation_steps=1, input_sizes=())
    data = replace(experiment.data, processes=0, prefetch=1)
    loader = open_train_loader(
        replace(experiment, train=train, data=data), workers=input_threads(data.workers)
    )
    return islice(loader.iterate(0, _BATCHES), _BATCHES)


def _moments_of_batch(
    structure: Structure[Detector],
    norms: Collection[str],
    params: Arrays,
    stats: Arrays,
    images: jax.Array,
    true_sizes: jax.Array,
) -> dict[str, list[_Moments]]:
    """Returns the moments of the inputs of norms, for each map that a norm is applied to."""
    detector = bind_detector(structure, params, stats)
    seen: dict[str, list[_Moments]] = {path: [] for path in norms}

    def observe(path: str, x: jax.Array) -> None:
        values = x.astype(jnp.float32).reshape(-1, x.shape[-1])
        mean = jnp.mean(values, axis=0)
        variance = jnp.mean(jnp.square(values - mean), axis=0)
        seen[path].append(_Moments(jnp.float32(len(values)), mean, variance))

    for path, norm in _norms(detector):
        if path in norms:
            norm.observer = partial(observe, path)
    detector.detect(images, true_sizes)
    return seen


def _joined(parts: Sequence[_Moments]) -> _Moments:
    """Returns the moments of all values that parts were measured of."""
    total, mean, variance = (
        np.stack(values).astype(np.float64) for values in zip(*parts, strict=True)
    )
    share = (total / total.sum())[:, None]
    centre = (share * mean).sum(axis=0)
    within = (share * (variance + np.square(mean - centre))).sum(axis=0)
    return _Moments(total.sum(), centre, within)
