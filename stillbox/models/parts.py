"""What backbones, necks and heads have in common."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from flax import nnx

from stillbox.errors import UserError, nearest
from stillbox.experiment import schema


class Part(nnx.Module):
    """A backbone, neck or head: layers as attributes, named like the parameters' paths.

    Called with what it reads, `train`, and `dropout_key`, which every part takes and only one that
    drops something in training needs.
    """


@dataclass(frozen=True)
class BuildOptions:
    """What all layers of one detector share while it is built."""

    dtype: Any
    """Type of activations and products."""
    freeze_norm: bool
    """Batch norm uses its moving statistics in training too."""
    rng: np.random.Generator
    """Draws the kernels; it advances from layer to layer."""

    def layer_arguments(self) -> dict[str, Any]:
        """The same as keyword arguments of a layer."""
        return {"dtype": self.dtype, "freeze_norm": self.freeze_norm, "rng": self.rng}


@dataclass(frozen=True)
class Outputs:
    """What a head predicts for one location of each feature map."""

    anchors: tuple[int, ...]
    """Anchors of each feature map."""
    slots: int
    """Class logits of one anchor, the background's included."""
    codes: int
    """Numbers that the box coder writes a box with."""


def layers_in_use(
    backbone: schema.Backbone, taps: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the layers that exist and, a part of them, those that are computed.

    Layers behind the last tap would be trained by nothing but their penalty. They exist only where
    the description asks for them by `last_layer`.

    Args:
        backbone: the description.
        taps: layers whose outputs are wanted.

    Raises:
        UserError: there is no layer of that name.
    """
    names = backbone.layers
    for wanted in (*taps, *filter(None, [backbone.last_layer])):
        if wanted not in names:
            what = f"{backbone.kind} has no layer {wanted!r}"
            raise UserError(what, where="model.neck", fix=nearest(wanted, names))
    computed = max(names.index(tap) for tap in taps) + 1
    last = names.index(backbone.last_layer) + 1 if backbone.last_layer else 0
    return names[: max(computed, last)], names[:computed]
