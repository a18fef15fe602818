"""Base and shared arguments of backbones, necks and heads."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float

from stillbox.errors import UserError, nearest
from stillbox.experiment import schema
from stillbox.models.layers.quantization import FakeQuant

FeatureMap = Float[jax.Array, "B _ _ _"]
"""One map of each of B images, `[B, H, W, C]`; heights, widths and channels differ by place."""


class Part(nnx.Module):
    """A backbone, neck or head, or a part of one; see `paths` for the names in parameter paths.

    Implementations of `schema.Backbone` are built with `(config, taps, options)`, `taps` being the
    names of the layers with the outputs to return; of `schema.Neck` with `(config, inputs,
    options)`, `inputs` being the channels of each tap; of `schema.Head` with `(config, inputs,
    outputs, options)`, `inputs` being the channels of each feature map. Backbones and necks have
    `channels`, of each output. Backbones raise `UserError` for taps that they do not have.

    Called with the input, `train`, and `dropout_key`, which is needed in training by parts with
    dropout only.
    """

    rematerialize = False
    """Whether its blocks are computed again in the backward pass."""


@dataclass(frozen=True)
class BuildOptions:
    """Options that all layers of one detector share."""

    dtype: DTypeLike
    """The type of activations and products."""
    freeze_norm: bool
    """Normalise with the moving statistics in training too."""
    rng: np.random.Generator
    """Draws the kernels; advances from layer to layer."""
    quantization: schema.Quantization | None = None
    """Round kernels and results of layers; None: do not."""
    image_channels: int = 3
    """Channels of the images, which a first layer takes."""

    def layer_arguments(self) -> dict[str, Any]:
        """Returns them as keyword arguments of a layer."""
        arguments: dict[str, Any] = {
            "dtype": self.dtype,
            "freeze_norm": self.freeze_norm,
            "rng": self.rng,
        }
        if self.quantization is not None:
            arguments["quantization"] = self.quantization
        return arguments

    def rounding(self) -> FakeQuant | None:
        """Returns a rounding of a result that no layer rounds, such as a sum; None: without."""
        return None if self.quantization is None else FakeQuant(self.quantization)


@dataclass(frozen=True)
class Outputs:
    """Sizes of a head's predictions at one location of each feature map."""

    anchors: tuple[int, ...]
    """Anchors of each feature map."""
    class_channels: int
    """Logits of one anchor, the background's included."""
    code_size: int
    """Box deltas of one anchor."""


def common_channels(inputs: tuple[int, ...], text: str, fix: str) -> int:
    """Returns the channels of all feature maps, for a part with one kernel, which `text` names.

    Raises:
        UserError: feature maps differ in their channels.
    """
    if len(set(inputs)) > 1:
        listed = ", ".join(map(str, inputs))
        problem = f"{text} for all feature maps, which have {listed} channels"
        raise UserError(problem, where="model.neck", fix=fix)
    return inputs[0]


def rounded(rounding: FakeQuant | None, x: jax.Array, *, train: bool) -> jax.Array:
    """Applies a rounding, if there is one."""
    return x if rounding is None else rounding(x, train=train)


def widened(depth: int, multiplier: float, least: int) -> int:
    """Returns channels times a multiplier, rounded down, at least `least`.

    The multiplier is a float32, as the originals read it: 160 * 0.35 is less than 56 there.
    """
    return max(int(depth * float(np.float32(multiplier))), least)


def make_divisible(depth: float, least: int = 8) -> int:
    """Rounds channels to the nearest multiple of 8, at least `least`, never down by over 10%."""
    rounded = max(least, int(depth + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * depth else rounded


def layers_in_use(
    backbone: schema.Backbone, taps: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the layers that exist, and the leading ones of them that are computed.

    Layers after the last tap would be trained by their penalty alone. They exist only if the
    configuration asks for them by `last_layer`.

    Raises:
        UserError: the backbone has no layer of that name.
    """
    names = backbone.layers
    for wanted in (*taps, *filter(None, [backbone.last_layer])):
        if wanted not in names:
            problem = f"{backbone.kind} has no layer {wanted!r}"
            raise UserError(problem, where="model.neck", fix=nearest(wanted, names))
    computed = max(names.index(tap) for tap in taps) + 1
    last = names.index(backbone.last_layer) + 1 if backbone.last_layer else 0
    return names[: max(computed, last)], names[:computed]


def divided(names: tuple[str, ...], sizes: Iterable[int]) -> Iterator[tuple[str, ...]]:
    """Yields successive runs of names, of these sizes, as far as there are names."""
    left = iter(names)
    return takewhile(len, (tuple(islice(left, size)) for size in sizes))
